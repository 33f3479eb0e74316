//! What should have been counted, and what was.

use iotrace_load::Imports;
use serde_json::{Map, Value};

use crate::snapshot::{Delta, Import, Probe, State};

/// The functions that import, as targets of the plan.
pub const IMPORTERS: &[&str] = &["import_iovec", "__import_iovec", "iovec_from_user"];

/// Numbers with their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(Vec<(&'static str, u64)>);

impl Numbers {
    /// None at all.
    pub const NONE: Numbers = Numbers(Vec::new());

    fn imports([calls, single, segments, bytes, errors]: [u64; 5]) -> Numbers {
        let names = ["calls", "single", "segments", "bytes", "errors"];
        Numbers(names.into_iter().zip([calls, single, segments, bytes, errors]).collect())
    }

    /// What a load imported.
    pub fn of_load(row: &Imports) -> Numbers {
        Numbers::imports([row.calls, row.single, row.segments, row.bytes, row.errors])
    }

    /// What was counted on a path.
    pub fn of_import(row: &Import) -> Numbers {
        Numbers::imports([row.calls(), row.single(), row.segments, row.bytes, row.errors])
    }

    /// Calls of a walker and their bytes.
    pub fn of_calls(calls: u64, bytes: u64) -> Numbers {
        Numbers(vec![("calls", calls), ("bytes", bytes)])
    }

    /// What was counted for some functions with this kind. A call that comes to a page that is not there does less,
    /// and the kernel makes another when it is.
    pub fn of_walks(delta: &Delta, functions: &[&str], kind: &str) -> Numbers {
        let rows =
            delta.0.iters.iter().filter(|row| row.kind == kind && functions.contains(&row.function.as_str()));
        let (calls, bytes) = rows.fold((0, 0), |(calls, bytes), row| {
            (calls + row.calls.saturating_sub(row.short), bytes + row.bytes)
        });
        Numbers::of_calls(calls, bytes)
    }

    /// Without those of another, of the same names.
    pub fn less(self, other: &Numbers) -> Numbers {
        let of = |name| other.0.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        Numbers(self.0.into_iter().map(|(name, value)| (name, value.saturating_sub(of(name)))).collect())
    }

    /// Whether nothing at all was counted.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|(_, value)| *value == 0)
    }

    /// As in `calls 630, single 210`.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "nothing".into();
        }
        self.0.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// By name.
    pub fn json(&self) -> Value {
        self.0.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect::<Map<_, _>>().into()
    }
}

/// Where a call may have passed unseen, and why: the first site of such a target in such a function that does not
/// count.
pub fn missing(probes: &[Probe], targets: &[&str], callers: &[&str]) -> Option<String> {
    let target = |probe: &&Probe| {
        targets.contains(&probe.target.as_str()) || targets.contains(&probe.target.trim_start_matches('_'))
    };
    let unseen = |probe: &&Probe| probe.state != State::Attached;
    let caller = |probe: &&Probe| callers.iter().any(|caller| probe.site.contains(caller));
    let probe = probes.iter().filter(target).filter(unseen).find(caller)?;
    Some(format!("{} is not seen: {}", probe.site, probe.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_by_name() {
        let numbers = Numbers::of_calls(5, 60).less(&Numbers::of_calls(2, 100));
        assert_eq!((numbers.text().as_str(), numbers.is_zero()), ("calls 3, bytes 0", false));
        assert_eq!(numbers.json(), serde_json::json!({ "calls": 3, "bytes": 0 }));
        assert!(Numbers::default().is_zero() && Numbers::of_calls(0, 0).is_zero());
    }

    #[test]
    fn a_site_that_does_not_count_is_named() {
        let probe = |target: &str, site: &str, state| Probe {
            target: target.into(),
            site: site.into(),
            mechanism: "trap".into(),
            state,
            reason: "its caller is notrace".into(),
            kprobes: Vec::new(),
        };
        let probes = [
            probe("import_iovec", "vfs_readv+0xcf", State::Attached),
            probe("__import_iovec", "aio_read+0x12", State::Unavailable),
            probe("_copy_to_iter", "aio_complete+0x1", State::Failed),
        ];
        assert_eq!(missing(&probes, IMPORTERS, &["vfs_readv"]), None);
        let reason = missing(&probes, IMPORTERS, &["aio_"]).unwrap();
        assert_eq!(reason, "aio_read+0x12 is not seen: its caller is notrace");
        assert!(missing(&probes, &["copy_to_iter"], &["aio_"]).unwrap().starts_with("aio_complete+0x1 "));
    }
}
