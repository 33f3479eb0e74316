//! What the probes saw of a load, against what the load knows.

use std::collections::BTreeSet;

use iotrace_load::{Imports, Tally};
use serde::{Deserialize, Serialize};

use crate::{
    selftest::{compare, importers},
    snapshot::{Delta, Import, Probe},
};

/// Imports on one path, by the load and by the probes: calls, single, segments, bytes, errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// `Path::name`.
    pub path: String,
    /// What the load did.
    pub done: [u64; 5],
    /// What was seen.
    pub seen: [u64; 5],
    /// Where it may have passed unseen, and why.
    pub unseen: Option<String>,
}

/// What the probes saw, and whether it is what happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Every path on which the load or the probes have something.
    pub paths: Vec<Path>,
}

impl Counted {
    /// Of all samples of a row; `None` if there is none.
    pub fn of<'a>(
        samples: impl Iterator<Item = (&'a Tally, &'a Delta)>,
        probes: &[Probe],
    ) -> Option<Counted> {
        let samples: Vec<_> = samples.collect();
        if samples.is_empty() {
            return None;
        }
        let mut names = BTreeSet::new();
        for (tally, delta) in &samples {
            names.extend(tally.paths());
            let seen = delta.0.imports.iter().filter(|row| row.calls() > 0);
            names.extend(seen.map(|row| row.path.as_str()));
        }
        let paths = names.into_iter().map(|path| {
            let done = samples.iter().map(|(tally, _)| load(&tally.imports(path)));
            let seen = samples
                .iter()
                .map(|(_, delta)| delta.0.imports.iter().find(|row| row.path == path).map_or([0; 5], probe));
            Path {
                path: path.to_owned(),
                done: done.fold([0; 5], add),
                seen: seen.fold([0; 5], add),
                unseen: compare::missing(probes, compare::IMPORTERS, importers(path)),
            }
        });
        Some(Counted { paths: paths.collect() })
    }

    fn wrong(&self) -> Option<&Path> {
        self.paths.iter().find(|path| path.done != path.seen)
    }

    /// Whether all is seen as it was, as far as it can be.
    pub fn is_right(&self) -> bool {
        self.wrong().is_none_or(|path| path.seen == [0; 5] && path.unseen.is_some())
    }

    /// In a table.
    pub fn word(&self) -> &'static str {
        match self.wrong() {
            None => "exact",
            Some(_) if self.is_right() => "unseen",
            Some(_) => "WRONG",
        }
    }

    /// What is to be said below it.
    pub fn note(&self, place: &str, calls: &str) -> Option<String> {
        let Path { path, done, seen, unseen } = self.wrong()?;
        Some(match unseen {
            Some(why) if self.is_right() => format!("{place} {calls}: {why}"),
            _ => format!(
                "{place} {calls}: calls, single, segments, bytes and errors of {path} are {done:?}, but seen were {seen:?}"
            ),
        })
    }
}

fn load(row: &Imports) -> [u64; 5] {
    [row.calls, row.single, row.segments, row.bytes, row.errors]
}

fn probe(row: &Import) -> [u64; 5] {
    [row.calls(), row.single(), row.segments, row.bytes, row.errors]
}

fn add(sum: [u64; 5], more: [u64; 5]) -> [u64; 5] {
    std::array::from_fn(|place| sum[place] + more[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_more_is_wrong_and_none_at_all_may_have_a_reason() {
        let path = |seen, unseen: Option<&str>| Path {
            path: "readv".into(),
            done: [3, 3, 3, 9, 0],
            seen,
            unseen: unseen.map(String::from),
        };
        let word = |path: Path| Counted { paths: vec![path] }.word();
        assert_eq!(word(path([3, 3, 3, 9, 0], None)), "exact");
        assert_eq!(word(path([4, 4, 4, 9, 0], Some("x"))), "WRONG");
        assert_eq!(word(path([0; 5], Some("x"))), "unseen");
        assert_eq!(word(path([0; 5], None)), "WRONG");
    }
}
