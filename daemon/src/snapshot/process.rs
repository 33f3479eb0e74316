//! What one process did, and the difference of two tables of processes.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};

/// What one process did while it ran one program in one cgroup; the last row is of all that are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Thread group id; none in the row of the others.
    pub pid: Option<u32>,
    /// Its name, fit to be shown; [`Process::OTHER`] in the row of the others.
    pub comm: String,
    /// Its cgroup's path below the mount point, or `cgroup:ID`.
    pub cgroup: String,
    /// Its cgroup's id.
    pub cgroup_id: u64,
    /// The innermost systemd unit; empty if it is in none.
    pub unit: String,
    /// The first twelve digits of its container's id; empty if it is in none.
    pub container: String,
    /// Imports.
    pub imports: u64,
    /// Imports with exactly one segment.
    pub single: u64,
    /// Segments imported.
    pub segments: u64,
    /// Bytes imported.
    pub bytes: u64,
    /// Imports that failed.
    pub errors: u64,
    /// Walker calls by the kind of the iterator; kinds without one are left out.
    pub iter_calls: BTreeMap<String, u64>,
    /// Bytes walked by the kind of the iterator.
    pub iter_bytes: BTreeMap<String, u64>,
    /// Calls of `tcp_zerocopy_receive` that returned.
    #[serde(default)]
    pub zerocopy_calls: u64,
    /// Bytes that they mapped.
    #[serde(default)]
    pub zerocopy_mapped: u64,
    /// Bytes that they copied.
    #[serde(default)]
    pub zerocopy_copied: u64,
}

/// What makes a row the same in two tables. A path may become known in between, an id does not change.
type Identity = (Option<u32>, String, u64);

impl Process {
    /// The name of the row of all that are not shown.
    pub const OTHER: &'static str = "other";

    /// Imports, walker calls and receiving without copies: rows with more come first.
    pub fn calls(&self) -> u64 {
        self.imports + self.iter_calls() + self.zerocopy_calls
    }

    /// Walker calls.
    pub fn iter_calls(&self) -> u64 {
        self.iter_calls.values().sum()
    }

    /// Bytes walked.
    pub fn iter_bytes(&self) -> u64 {
        self.iter_bytes.values().sum()
    }

    /// Adds another's numbers.
    pub fn add(&mut self, other: &Process) {
        self.each(other, u64::wrapping_add);
    }

    fn subtract(&mut self, other: &Process) {
        self.each(other, u64::saturating_sub);
        self.iter_calls.retain(|_, calls| *calls > 0);
        self.iter_bytes.retain(|_, bytes| *bytes > 0);
    }

    fn each(&mut self, other: &Process, change: fn(u64, u64) -> u64) {
        for (mine, other) in self.numbers_mut().into_iter().zip(other.numbers()) {
            *mine = change(*mine, other);
        }
        for (mine, other) in
            [(&mut self.iter_calls, &other.iter_calls), (&mut self.iter_bytes, &other.iter_bytes)]
        {
            for (kind, &number) in other {
                let mine = mine.entry(kind.clone()).or_default();
                *mine = change(*mine, number);
            }
        }
    }

    fn numbers(&self) -> [u64; 8] {
        let Process { imports, single, segments, bytes, errors, .. } = *self;
        let Process { zerocopy_calls, zerocopy_mapped, zerocopy_copied, .. } = *self;
        [imports, single, segments, bytes, errors, zerocopy_calls, zerocopy_mapped, zerocopy_copied]
    }

    fn numbers_mut(&mut self) -> [&mut u64; 8] {
        let Process { imports, single, segments, bytes, errors, .. } = self;
        let (calls, mapped) = (&mut self.zerocopy_calls, &mut self.zerocopy_mapped);
        [imports, single, segments, bytes, errors, calls, mapped, &mut self.zerocopy_copied]
    }

    fn is_idle(&self) -> bool {
        self.numbers() == [0; 8] && self.iter_calls.is_empty() && self.iter_bytes.is_empty()
    }

    /// Whether no number is below the other's.
    fn covers(&self, other: &Process) -> bool {
        let covers = |mine: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
            other.iter().all(|(kind, number)| mine.get(kind).copied().unwrap_or(0) >= *number)
        };
        self.numbers().iter().zip(other.numbers()).all(|(mine, other)| *mine >= other)
            && covers(&self.iter_calls, &other.iter_calls)
            && covers(&self.iter_bytes, &other.iter_bytes)
    }

    fn identity(&self) -> Identity {
        (self.pid, self.comm.clone(), self.cgroup_id)
    }
}

/// What each process did from one table to the other, the heaviest first, those that did nothing left out, and the
/// rest last. Together the rows are the difference of the wholes: what a row held that is gone, or that began anew,
/// is in the rest of the later table and is taken out there.
pub fn difference(earlier: &[Process], later: &[Process]) -> Vec<Process> {
    let mut before: BTreeMap<Identity, Vec<&Process>> = BTreeMap::new();
    for row in earlier {
        before.entry(row.identity()).or_default().push(row);
    }
    let (mut rows, mut rest) = (Vec::new(), None);
    for row in later {
        let mut row = row.clone();
        let same = before.get_mut(&row.identity());
        let old = same.and_then(|same| {
            let place = same.iter().position(|old| row.covers(old))?;
            Some(same.swap_remove(place))
        });
        if let Some(old) = old {
            row.subtract(old);
        }
        if row.pid.is_none() {
            rest = Some(row);
        } else if !row.is_idle() {
            rows.push(row);
        }
    }
    if let Some(rest) = &mut rest {
        before.values().flatten().for_each(|gone| rest.subtract(gone));
    }
    rows.sort_by_cached_key(|row| (Reverse(row.calls()), row.identity()));
    rows.extend(rest);
    rows
}

/// The first rows, at most so many, and all others together in the last.
pub fn heaviest(rows: &[Process], most: usize) -> Vec<Process> {
    let mut shown: Vec<Process> = rows.iter().filter(|row| row.pid.is_some()).take(most).cloned().collect();
    let rest: Vec<&Process> = rows
        .iter()
        .filter(|row| row.pid.is_none())
        .chain(rows.iter().filter(|row| row.pid.is_some()).skip(most))
        .collect();
    if !rest.is_empty() {
        let mut other = Process { comm: Process::OTHER.to_owned(), ..Process::default() };
        rest.iter().for_each(|row| other.add(row));
        shown.push(other);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, number: u64) -> Process {
        let map = |number| if number == 0 { BTreeMap::new() } else { [("ubuf".into(), number)].into() };
        Process {
            pid: (pid > 0).then_some(pid),
            comm: if pid > 0 { "dd" } else { Process::OTHER }.into(),
            imports: number,
            single: number / 2,
            segments: number * 3,
            bytes: number * 512,
            iter_calls: map(number * 2),
            iter_bytes: map(number * 2048),
            ..Process::default()
        }
    }

    fn imports(rows: &[Process]) -> Vec<(u32, u64)> {
        rows.iter().map(|row| (row.pid.unwrap_or(0), row.imports)).collect()
    }

    #[test]
    fn the_heaviest_come_first_and_the_idle_are_left_out() {
        let earlier = [row(1, 5), row(2, 7), row(3, 1), row(0, 10)];
        let later = [row(1, 5), row(2, 9), row(3, 100), row(4, 3), row(0, 11)];
        let rows = difference(&earlier, &later);
        assert_eq!(imports(&rows), [(3, 99), (4, 3), (2, 2), (0, 1)]);
        assert_eq!(rows[0].iter_calls["ubuf"], 198);
        assert_eq!(difference(&[], &later).len(), 5);
        assert_eq!(difference(&earlier, &[]), []);
        assert_eq!(imports(&difference(&later, &later)), [(0, 0)]);
    }

    #[test]
    fn what_is_gone_or_began_anew_is_counted_once() {
        let earlier = [row(1, 50), row(2, 7), row(0, 10)];
        // 1 did 5 more and was folded into the rest; so was 2, which then came again.
        let later = [row(2, 3), row(0, 10 + 55 + 7)];
        assert_eq!(imports(&difference(&earlier, &later)), [(2, 3), (0, 5)]);
    }

    #[test]
    fn a_path_that_becomes_known_does_not_make_another_row() {
        let mut earlier = row(1, 5);
        (earlier.cgroup, earlier.cgroup_id) = ("cgroup:9".into(), 9);
        let mut later = row(1, 6);
        (later.cgroup, later.unit, later.cgroup_id) = ("/a.service".into(), "a.service".into(), 9);
        assert_eq!(imports(&difference(&[earlier], &[later])), [(1, 1)]);
    }

    #[test]
    fn what_is_not_shown_is_in_the_last_row() {
        let rows = [row(1, 50), row(2, 7), row(3, 2), row(0, 10)];
        assert_eq!(imports(&heaviest(&rows, 1)), [(1, 50), (0, 19)]);
        assert_eq!(imports(&heaviest(&rows, 0)), [(0, 69)]);
        assert_eq!(heaviest(&rows, 3), rows);
        assert_eq!(heaviest(&[], 3), []);
        assert_eq!(heaviest(&rows, 2)[2].iter_calls["ubuf"], 24);
    }
}
