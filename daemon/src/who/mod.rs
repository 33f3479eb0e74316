//! Who caused it: what the kernel side counted for each process, put together without loss or limit exceeded.
//!
//! ```text
//! ring buffer ─► handover ─┐                         ┌─► all rows ────────► Snapshot of `top`
//!                          ├─► Processes (all known) ┤
//! live slots ──► look ─────┘                         └─► Ledger (top k) ──► Snapshot of the daemon
//! ```
//!
//! A [`Book`] is all of it. Whoever reads the kernel's maps does for each snapshot, and between snapshots often
//! enough that the ring buffer does not run full:
//!
//! 1. each record in the ring buffer → [`Book::handover`];
//! 2. all live slots, index `cpu * SLOTS + slot` → [`Book::look`];
//! 3. what came into the ring buffer meanwhile → [`Book::handover`];
//! 4. for a snapshot: [`Book::rows`].
//!
//! Steps 1 and 3 take a record once, in the order of the ring buffer. The third is why sums are exact: a slot that
//! was handed over while the slots were being read is counted by what was sent, not by what was read of it. A record
//! that is under way even then is no harm, if it is taken before the next look.
//!
//! What holds after each of these steps, whatever is lost on the way:
//!
//! - the rows and `other` together are the whole that the kernel side counted;
//! - neither the whole, nor `other`, nor a row while it is shown goes down;
//! - memory is bounded by the number of CPUs and the constants here.

mod book;
mod ledger;
mod processes;
mod rows;

#[cfg(test)]
mod tests;

use iotrace_common::who::{Counts, Who};

pub use book::Book;
pub use ledger::{Ledger, Row};
pub use processes::Processes;

/// A process as far as rows are told apart: the same program under a new id, or after a move, is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Thread group id.
    pub tgid: u32,
    /// Its leader's name, NUL-padded.
    pub comm: [u8; 16],
    /// Cgroup id.
    pub cgroup: u64,
}

impl Key {
    /// Of the process that a slot belongs to.
    pub const fn of(who: &Who) -> Key {
        Key { tgid: who.tgid, comm: who.comm, cgroup: who.cgroup }
    }
}

/// Imports and walker calls: what makes a process heavy.
fn calls(counts: &Counts) -> u64 {
    counts.iter_calls.iter().fold(counts.imports(), |sum, calls| sum.wrapping_add(*calls))
}

fn is_zero(counts: &Counts) -> bool {
    counts.words().all(|word| word == 0)
}

/// `later − earlier`, no count below zero.
fn growth(later: &Counts, earlier: &Counts) -> Counts {
    let mut growth = *later;
    for (word, before) in growth.words_mut().zip(earlier.words()) {
        *word = word.saturating_sub(before);
    }
    growth
}

/// The greater of each count.
fn raise(counts: &mut Counts, to: &Counts) {
    for (word, to) in counts.words_mut().zip(to.words()) {
        *word = (*word).max(to);
    }
}
