//! The store, the ledger and the names together: from what the kernel side says to the rows of a snapshot.

use std::time::Duration;

use iotrace_common::who::{Counts, Handover, Slot};

use super::{Ledger, Processes, rows};
use crate::{cgroups::Cgroups, snapshot::Process};

/// What is known of all processes, and which of them are shown.
#[derive(Debug)]
pub struct Book {
    processes: Processes,
    /// `None` shows all that are remembered.
    ledger: Option<Ledger>,
    cgroups: Cgroups,
    kinds: Vec<String>,
}

impl Book {
    /// For one measurement: every process that is remembered is a row. `kinds` as in `Records`: all kinds of
    /// iterator by their number, the last for all others.
    pub fn of_all(cpus: usize, kinds: Vec<String>) -> Book {
        let processes = Processes::new(cpus, Processes::MOST);
        Book { processes, ledger: None, cgroups: Cgroups::new(), kinds }
    }

    /// For good: rows are the heaviest processes of late, at most so many.
    pub fn of_heaviest(cpus: usize, kinds: Vec<String>, most: usize) -> Book {
        Book { ledger: Some(Ledger::new(most, Ledger::AGE)), ..Book::of_all(cpus, kinds) }
    }

    /// Takes a record of the ring buffer: each once, in their order.
    pub fn handover(&mut self, handover: &Handover) {
        self.processes.handover(handover);
    }

    /// Takes what the slots of all CPUs hold, index `cpu * SLOTS + slot`.
    pub fn look(&mut self, live: &[Slot]) {
        self.processes.look(live);
    }

    /// What one process of this name did so far, as far as it is remembered.
    pub fn process(&self, tgid: u32, comm: [u8; 16]) -> Counts {
        let mut sum = Counts::default();
        for (_, counts) in self.processes.rows().filter(|(key, _)| key.tgid == tgid && key.comm == comm) {
            sum.add(counts);
        }
        sum
    }

    /// The rows of a snapshot, `other` last. `now` is the time since the start; `gone` tells whether a thread
    /// group has ended, as `|tgid| !pids::runs(tgid)`.
    pub fn rows(&mut self, now: Duration, gone: impl Fn(u32) -> bool) -> Vec<Process> {
        let Book { processes, ledger, cgroups, kinds } = self;
        let mut table = Vec::new();
        let rest = match ledger {
            Some(ledger) => {
                let (rows, rest) = ledger.step(now, processes, |id| cgroups.get(id).names, gone);
                for row in rows {
                    let cgroup = cgroups.get(row.key.cgroup);
                    table.push(rows::process(&row.key, &cgroup, &row.names, &row.counts, kinds));
                }
                rest
            }
            None => {
                for (key, counts) in processes.rows() {
                    let cgroup = cgroups.get(key.cgroup);
                    table.push(rows::process(key, &cgroup, &cgroup.names, counts, kinds));
                }
                processes.other()
            }
        };
        table.push(rows::other(&rest, kinds));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iotrace_common::who::{Counts, SLOTS, Who};

    #[test]
    fn rows_are_those_of_the_ledger_or_all_and_the_rest_is_last() {
        let slot = |tgid: u32| Slot {
            who: Who { tgid, comm: *b"dd\0\0\0\0\0\0\0\0\0\0\0\0\0\0", ..Who::default() },
            turn: 2,
            counts: Counts { others: u64::from(tgid), ..Counts::default() },
            ..Slot::default()
        };
        let mut live = vec![Slot::default(); SLOTS as usize];
        (live[1], live[2]) = (slot(1), slot(2));
        let handover = Handover { cpu: 0, slot: 3, content: slot(3) };
        let rows = |mut book: Book| -> Vec<(Option<u32>, u64)> {
            book.handover(&handover);
            book.look(&live);
            let mut rows = book.rows(Duration::ZERO, |_| false);
            let last = rows.pop().unwrap();
            assert_eq!((last.pid, last.comm.as_str()), (None, Process::OTHER));
            rows.sort_by_key(|row| row.pid);
            rows.push(last);
            rows.iter().map(|row| (row.pid, row.imports)).collect()
        };
        assert_eq!(rows(Book::of_all(1, Vec::new())), [(Some(1), 1), (Some(2), 2), (Some(3), 3), (None, 0)]);
        assert_eq!(rows(Book::of_heaviest(1, Vec::new(), 2)), [(Some(2), 2), (Some(3), 3), (None, 1)]);
    }
}
