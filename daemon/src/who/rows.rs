//! From counts to the rows of a snapshot.

use std::collections::BTreeMap;

use iotrace_common::who::{Counts, KINDS};

use super::Key;
use crate::{
    cgroups::{Cgroup, Names},
    printable,
    snapshot::Process,
};

/// A process' row. The names may be others than the cgroup's: those that it had when the row came up.
pub fn process(key: &Key, cgroup: &Cgroup, names: &Names, counts: &Counts, kinds: &[String]) -> Process {
    let end = key.comm.iter().position(|&byte| byte == 0).unwrap_or(key.comm.len());
    Process {
        pid: Some(key.tgid),
        comm: printable::comm(&key.comm[..end]),
        cgroup: cgroup.path.to_string(),
        cgroup_id: key.cgroup,
        unit: names.unit.clone(),
        container: names.container.clone(),
        ..numbers(counts, kinds)
    }
}

/// The row of what belongs to no process that is shown.
pub fn other(counts: &Counts, kinds: &[String]) -> Process {
    Process { comm: Process::OTHER.to_owned(), ..numbers(counts, kinds) }
}

fn numbers(counts: &Counts, kinds: &[String]) -> Process {
    Process {
        imports: counts.imports(),
        single: counts.single,
        segments: counts.all_segments(),
        bytes: counts.bytes,
        errors: counts.errors,
        iter_calls: by_kind(&counts.iter_calls, kinds),
        iter_bytes: by_kind(&counts.iter_bytes, kinds),
        zerocopy_calls: counts.zerocopy_calls,
        zerocopy_mapped: counts.zerocopy_mapped,
        zerocopy_copied: counts.zerocopy_copied,
        ..Process::default()
    }
}

/// Kinds that did nothing are left out.
fn by_kind(counts: &[u64; KINDS], kinds: &[String]) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    for (place, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        *map.entry(kind(place, kinds).to_owned()).or_default() += count;
    }
    map
}

/// The kind whose counts are at this place. `kinds` are all of the kernel, the last no kind of its own.
fn kind(place: usize, kinds: &[String]) -> &str {
    let shared = place + 1 == KINDS && kinds.len() > KINDS;
    kinds.get(place).filter(|_| !shared).or(kinds.last()).map_or(Process::OTHER, String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(number: usize) -> Vec<String> {
        (1..number).map(|kind| format!("k{kind}")).chain(["other".to_owned()]).collect()
    }

    #[test]
    fn the_last_place_is_of_many_kinds_only_where_there_are_many() {
        let last = |number: usize| kind(KINDS - 1, &kinds(number)).to_owned();
        assert_eq!(last(KINDS - 2), "other");
        assert_eq!(last(KINDS), "other");
        assert_eq!(last(KINDS + 1), "other");
        assert_eq!(kind(KINDS - 2, &kinds(KINDS + 1)), "k8");
        assert_eq!(kind(KINDS - 2, &kinds(KINDS)), "k8");
        assert_eq!((kind(0, &kinds(3)), kind(2, &kinds(3)), kind(5, &kinds(3))), ("k1", "other", "other"));
        assert_eq!(kind(0, &[]), "other");
    }

    #[test]
    fn no_count_gets_lost_on_the_way() {
        let mut counts = Counts::default();
        for (number, word) in counts.words_mut().enumerate() {
            *word = 1 << number;
        }
        for number in [0, 3, KINDS, KINDS + 4] {
            let row = other(&counts, &kinds(number.max(1)));
            let sum = |map: &BTreeMap<String, u64>| map.values().sum::<u64>();
            let first = row.imports + row.single + row.segments + row.bytes + row.errors;
            let zerocopy = row.zerocopy_calls + row.zerocopy_mapped + row.zerocopy_copied;
            let all = first + sum(&row.iter_calls) + sum(&row.iter_bytes) + zerocopy;
            // One with a single segment is an import, and a segment, too.
            assert_eq!(all, counts.words().sum::<u64>() + 2 * counts.single);
        }
    }
}
