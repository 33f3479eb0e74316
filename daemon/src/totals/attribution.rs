//! From the slots of all CPUs and what was handed over to the rows of processes.

use std::{io, mem::offset_of, sync::Arc, time::Duration};

use iotrace_common::{
    block::Block,
    who::{Counts, NOBODY, SLOTS, Slot},
};

use crate::{
    pids,
    probes::{Handovers, Waiter},
    shared::Shared,
    snapshot::Process,
    who::Book,
};

/// How often a slot that is being handed over is read again before what was last read of it must do.
const TRIES: usize = 100;

/// Everything that is known of processes.
#[derive(Debug)]
pub struct Attribution {
    blocks: Arc<Shared<Block>>,
    handovers: Handovers,
    /// As last read.
    live: Vec<Slot>,
    book: Book,
}

impl Attribution {
    /// Of the slots in these blocks and handovers, put together in this book.
    pub fn of(blocks: Arc<Shared<Block>>, handovers: Handovers, cpus: usize, book: Book) -> Attribution {
        Attribution { blocks, handovers, live: vec![Slot::default(); cpus * SLOTS as usize], book }
    }

    /// Takes what has been handed over, so that the ring buffer does not run full.
    pub fn drain(&mut self) {
        while let Some(handover) = self.handovers.take() {
            self.book.handover(&handover);
        }
    }

    /// The rows at this instant, `other` last.
    pub fn rows(&mut self, now: Duration) -> Vec<Process> {
        self.look();
        self.book.rows(now, |tgid| !pids::runs(tgid))
    }

    /// What one process of this name did so far.
    pub fn process(&mut self, tgid: u32, comm: [u8; 16]) -> Counts {
        self.look();
        self.book.process(tgid, comm)
    }

    fn look(&mut self) {
        self.drain();
        for cpu in 0..self.live.len() / SLOTS as usize {
            self.read(cpu);
        }
        self.book.look(&self.live);
        self.drain();
    }

    /// To be waited on until there is something to drain.
    pub fn waiter(&self) -> io::Result<Waiter> {
        self.handovers.waiter()
    }

    /// Reads one CPU's slots: all before, or all after something was added to nobody's.
    fn read(&mut self, cpu: usize) {
        let first = cpu * SLOTS as usize;
        let get = |number: usize| {
            self.blocks.part::<Slot>(cpu, offset_of!(Block, slots) + number * size_of::<Slot>())
        };
        let turn = |number: usize| {
            let slot = offset_of!(Block, slots) + number * size_of::<Slot>();
            self.blocks.part::<u64>(cpu, slot + offset_of!(Slot, turn))
        };
        for _ in 0..TRIES {
            let before = turn(NOBODY as usize);
            for number in 0..SLOTS as usize {
                if let Some(slot) = whole(|| turn(number), || get(number)) {
                    self.live[first + number] = slot;
                }
            }
            if turn(NOBODY as usize) == before {
                break;
            }
        }
    }
}

/// A slot as it was while it was nobody else's: its turn is odd while it changes hands, and the one read between two
/// with the same turn is whole.
fn whole(turn: impl Fn() -> Option<u64>, get: impl Fn() -> Option<Slot>) -> Option<Slot> {
    for _ in 0..TRIES {
        let (before, slot, after) = (turn()?, get()?, turn()?);
        if before == after && before.is_multiple_of(2) {
            return Some(slot);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_slot_that_changes_hands_is_read_again() {
        let reads = Cell::new(0);
        let turns = [2, 3, 4, 4, 4, 4];
        let turn = || {
            let read = reads.replace(reads.get() + 1);
            turns.get(read).copied()
        };
        assert_eq!(
            whole(turn, || turn().map(|turn| Slot { turn, ..Slot::default() })).map(|slot| slot.turn),
            Some(4)
        );
        assert_eq!(reads.get(), 6);
        assert_eq!(whole(|| Some(1), || Some(Slot::default())), None);
    }
}
