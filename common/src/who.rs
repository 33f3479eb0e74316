//! Who caused it: what one process did on one CPU since its slot there was claimed.
//!
//! Each CPU keeps a few slots, found by the thread group's id. When another process wants one, what it holds is
//! sent to the daemon as a [`Handover`] and taken out, so sums stay exact and memory bounded: a CPU sends at most
//! one for each switch from one process to another. What could not be sent is added to the CPU's last slot.

/// Slots of a CPU that processes share, as a power of two.
pub const SLOT_BITS: u32 = 6;
/// The slot of a CPU for what could not be sent: nobody's.
pub const NOBODY: u32 = 1 << SLOT_BITS;
/// Slots of a CPU, [`NOBODY`]'s included.
pub const SLOTS: u32 = NOBODY + 1;
/// Kinds of iterator that are told apart here; from the last on they share one place.
pub const KINDS: usize = 9;
/// Places for the generations of thread group ids, as a power of two.
pub const GENERATION_BITS: u32 = 12;

/// A process while it runs one program in one cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    /// Thread group id: what user space calls pid.
    pub tgid: u32,
    /// Grows with each fork, exec and change of cgroup that may have given this id to something else.
    pub generation: u32,
    /// The cgroup (v2) id of the thread that claimed the slot.
    pub cgroup: u64,
    /// Name of the thread group's leader when the slot was claimed, NUL-padded.
    pub comm: [u8; 16],
}

/// What was counted for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Imports with exactly one segment.
    pub single: u64,
    /// Imports with another number of segments.
    pub others: u64,
    /// Segments imported by those.
    pub segments: u64,
    /// Bytes imported.
    pub bytes: u64,
    /// Imports that failed.
    pub errors: u64,
    /// Walker calls by the number of the kind.
    pub iter_calls: [u64; KINDS],
    /// Bytes walked by the number of the kind.
    pub iter_bytes: [u64; KINDS],
    /// Calls of `tcp_zerocopy_receive` that returned.
    pub zerocopy_calls: u64,
    /// Bytes that they mapped.
    pub zerocopy_mapped: u64,
    /// Bytes that they copied.
    pub zerocopy_copied: u64,
}

/// One process' slot on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Whose it is. `comm` is empty where the slot was never claimed.
    pub who: Who,
    /// How often the slot was handed over: what a [`Handover`] with this turn holds is no longer here.
    pub turn: u64,
    /// What it did.
    pub counts: Counts,
    /// Fills the cache lines.
    pub pad: [u64; 1],
}

/// A slot's content, sent to the daemon.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The CPU's number.
    pub cpu: u32,
    /// The slot's number on that CPU.
    pub slot: u32,
    /// Its content, with the turn that ends.
    pub content: Slot,
}

const _: () = assert!(size_of::<Slot>() == 256 && size_of::<Handover>() == 264);

impl Counts {
    /// All imports.
    pub const fn imports(&self) -> u64 {
        self.single.wrapping_add(self.others)
    }

    /// All segments imported.
    pub const fn all_segments(&self) -> u64 {
        self.single.wrapping_add(self.segments)
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Counts) {
        for (sum, part) in self.words_mut().zip(other.words()) {
            *sum = sum.wrapping_add(part);
        }
    }

    /// All counts, in the order of the members.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let Counts { single, others, segments, bytes, errors, iter_calls, iter_bytes, .. } = self;
        let first = [*single, *others, *segments, *bytes, *errors];
        let last = [self.zerocopy_calls, self.zerocopy_mapped, self.zerocopy_copied];
        first.into_iter().chain(iter_calls.iter().copied()).chain(iter_bytes.iter().copied()).chain(last)
    }

    /// All counts, to be changed.
    pub fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Counts { single, others, segments, bytes, errors, iter_calls, iter_bytes, .. } = self;
        let last = [&mut self.zerocopy_calls, &mut self.zerocopy_mapped, &mut self.zerocopy_copied];
        [single, others, segments, bytes, errors].into_iter().chain(iter_calls).chain(iter_bytes).chain(last)
    }
}

impl Who {
    /// The slot of a thread group on each CPU: neighbours in the row of ids do not share one.
    #[inline(always)]
    pub const fn slot(tgid: u32) -> u32 {
        tgid & (NOBODY - 1)
    }

    /// The place of a thread group id's generation.
    #[inline(always)]
    pub const fn generation_place(tgid: u32) -> u32 {
        tgid & ((1 << GENERATION_BITS) - 1)
    }

    /// The name's bytes; any but NUL may be among them.
    pub fn comm(&self) -> &[u8] {
        let end = self.comm.iter().position(|&byte| byte == 0).unwrap_or(self.comm.len());
        &self.comm[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_added() {
        let mut one = Counts::default();
        for (number, word) in one.words_mut().enumerate() {
            *word = number as u64 + 1;
        }
        assert_eq!(one.words().count() * 8, size_of::<Counts>());
        let mut sum = one;
        sum.add(&one);
        assert!(sum.words().zip(one.words()).all(|(sum, part)| sum == 2 * part));
    }

    #[test]
    fn a_name_ends_at_its_nul() {
        let mut who = Who::default();
        who.comm[..3].copy_from_slice(b"dd\0");
        assert_eq!(who.comm(), b"dd");
        who.comm = *b"0123456789abcdef";
        assert_eq!(who.comm().len(), 16);
    }
}
