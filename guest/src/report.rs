//! What iotrace and iotrace-load report as JSON, as rows that can be compared.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

/// Imports on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imports {
    /// Calls, those refused included.
    pub calls: u64,
    /// Calls with one segment.
    pub single: u64,
    /// Segments asked for.
    pub segments: u64,
    /// Calls whose array was allocated; `None` on the path whose importers each decide for themselves.
    pub allocated: Option<u64>,
    /// Bytes imported.
    pub bytes: u64,
    /// Calls refused.
    pub errors: u64,
}

impl Imports {
    /// Forgets what a workload cannot know.
    pub fn known(mut self, path: &str) -> Imports {
        if path == "io_uring" {
            self.allocated = None;
        }
        self
    }

    fn plus(self, other: Imports) -> Imports {
        self.zip(other, |one, other| one + other)
    }

    fn minus(self, other: Imports) -> Imports {
        self.zip(other, |one, other| one - other)
    }

    fn zip(self, other: Imports, with: fn(u64, u64) -> u64) -> Imports {
        Imports {
            calls: with(self.calls, other.calls),
            single: with(self.single, other.single),
            segments: with(self.segments, other.segments),
            allocated: self.allocated.zip(other.allocated).map(|(one, other)| with(one, other)),
            bytes: with(self.bytes, other.bytes),
            errors: with(self.errors, other.errors),
        }
    }
}

/// Calls of one function with one kind of iterator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// Calls.
    pub calls: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Calls that were timed.
    pub timed: u64,
}

/// All numbers of one function with one kind of iterator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iter {
    /// Calls, bytes done and calls that were timed.
    pub walks: Walks,
    /// Bytes asked for.
    pub asked: u64,
    /// Calls that did less than asked.
    pub short: u64,
    /// Segments walked.
    pub segments: u64,
    /// Time in calls.
    pub seconds: f64,
}

/// What one process did, or in the last row all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its id; none in the row of the others.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// Its cgroup's path.
    pub cgroup: String,
    /// Its unit.
    pub unit: String,
    /// Its container.
    pub container: String,
    /// Imports.
    pub imports: u64,
    /// Imports with one segment.
    pub single: u64,
    /// Segments imported.
    pub segments: u64,
    /// Bytes imported.
    pub bytes: u64,
    /// Imports refused.
    pub errors: u64,
    /// Walker calls by kind.
    pub iter_calls: BTreeMap<String, u64>,
    /// Bytes walked by kind.
    pub iter_bytes: BTreeMap<String, u64>,
}

impl Process {
    /// Imports, those with one segment, segments, bytes and errors.
    pub fn imported(&self) -> [u64; 5] {
        [self.imports, self.single, self.segments, self.bytes, self.errors]
    }
}

/// Imports by path.
pub type ByPath = BTreeMap<String, Imports>;

/// What came to the imports between two scrapes; without what did not change.
pub fn between(before: &ByPath, after: &ByPath) -> ByPath {
    let zero = |path: &str| Imports { allocated: Some(0), ..Imports::default() }.known(path);
    let rows = after.iter().map(|(path, row)| {
        let before = before.get(path).copied().unwrap_or_else(|| zero(path));
        (path.clone(), row.minus(before))
    });
    rows.filter(|(_, row)| row.calls > 0).collect()
}

/// A number that counts.
///
/// # Panics
/// If it is none.
pub fn count(value: f64) -> u64 {
    assert!(value >= 0.0 && value.fract() == 0.0 && value < 9e15, "{value} counts nothing");
    value as u64
}

/// What `iotrace top -o json` printed.
#[derive(Clone, Debug)]
pub struct Report(Value);

impl Report {
    /// What it has under this key.
    pub fn value(&self, key: &str) -> Value {
        self.0[key].clone()
    }

    /// Reads it.
    ///
    /// # Panics
    /// If it is no JSON, or has not all keys.
    pub fn parse(text: &str) -> Report {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        for key in ["seconds", "imports", "iters", "processes", "lost", "probes", "coverage"] {
            assert!(value.get(key).is_some(), "no {key} in {text}");
        }
        Report(value)
    }

    /// The imports, by path; without those that are zero.
    pub fn imports(&self) -> ByPath {
        imports(&self.0)
    }

    /// The walks, by function and kind; without those that are zero.
    pub fn walks(&self) -> BTreeMap<(String, String), Walks> {
        let rows = array(&self.0, "iters")
            .iter()
            .map(|row| ((text(row, "function"), text(row, "kind")), walks(row)));
        rows.filter(|(_, row)| row.calls > 0).collect()
    }

    /// All numbers of the walks, by function and kind; without those that are zero.
    pub fn iters(&self) -> BTreeMap<(String, String), Iter> {
        let rows = array(&self.0, "iters").iter().map(|row| {
            let iter = Iter {
                walks: walks(row),
                asked: number(row, "asked"),
                short: number(row, "short"),
                segments: number(row, "segments"),
                seconds: row["seconds"].as_f64().unwrap_or_else(|| panic!("no seconds in {row}")),
            };
            ((text(row, "function"), text(row, "kind")), iter)
        });
        rows.filter(|(_, row)| row.walks.calls > 0).collect()
    }

    /// What each process did, the heaviest first and all others last.
    pub fn processes(&self) -> Vec<Process> {
        let rows = array(&self.0, "processes").iter().map(|row| Process {
            pid: row["pid"].as_u64().map(|pid| u32::try_from(pid).expect("a process id")),
            comm: text(row, "comm"),
            cgroup: text(row, "cgroup"),
            unit: text(row, "unit"),
            container: text(row, "container"),
            imports: number(row, "imports"),
            single: number(row, "single"),
            segments: number(row, "segments"),
            bytes: number(row, "bytes"),
            errors: number(row, "errors"),
            iter_calls: by_kind(row, "iter_calls"),
            iter_bytes: by_kind(row, "iter_bytes"),
        });
        rows.collect()
    }

    /// What was lost, by reason; without what was not.
    pub fn lost(&self) -> BTreeMap<String, u64> {
        let reasons = self.0["lost"].as_object().expect("lost is an object");
        assert!(!reasons.is_empty(), "every reason is there, also at zero");
        let events =
            reasons.iter().map(|(reason, events)| (reason.clone(), events.as_u64().expect("a number")));
        events.filter(|(_, events)| *events > 0).collect()
    }

    /// The sites that count, each with its target.
    pub fn attached(&self) -> Vec<[String; 2]> {
        let rows = array(&self.0, "probes").iter().filter(|row| row["state"] == "attached");
        rows.map(|row| ["target", "site"].map(|key| text(row, key))).collect()
    }

    /// The sites that do not count, each with target, site, state and reason.
    pub fn missing(&self) -> Vec<[String; 4]> {
        let rows = array(&self.0, "probes").iter();
        let rows = rows.map(|row| ["target", "site", "state", "reason"].map(|key| text(row, key)));
        rows.filter(|[_, _, state, _]| state != "attached").collect()
    }
}

/// What iotrace-load wrote to files with `--json`, together.
///
/// # Panics
/// If a file cannot be read.
pub fn recorded<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> ByPath {
    let mut all = ByPath::new();
    for file in files {
        let file = file.as_ref();
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}: {text}", file.display()));
        for (path, row) in imports(&value) {
            let sum = all.get(&path).map_or(row, |before| before.plus(row));
            all.insert(path, sum);
        }
    }
    all
}

fn imports(value: &Value) -> ByPath {
    let rows = array(value, "imports").iter().map(|row| {
        let path = text(row, "path");
        let imports = Imports {
            calls: number(row, "calls"),
            single: number(row, "single"),
            segments: number(row, "segments"),
            allocated: row["allocated"].as_u64(),
            bytes: number(row, "bytes"),
            errors: number(row, "errors"),
        };
        let imports = imports.known(&path);
        (path, imports)
    });
    rows.filter(|(_, row)| row.calls > 0).collect()
}

fn walks(row: &Value) -> Walks {
    Walks { calls: number(row, "calls"), bytes: number(row, "bytes"), timed: number(row, "timed") }
}

fn by_kind(row: &Value, key: &str) -> BTreeMap<String, u64> {
    let map = row[key].as_object().unwrap_or_else(|| panic!("no {key} in {row}"));
    map.iter().map(|(kind, number)| (kind.clone(), number.as_u64().expect("a number"))).collect()
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is no array"))
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} is no number in {row}"))
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {row}")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::parse(
            r#"{"seconds": 1.5, "coverage": [], "lost": {"site": 0, "flight": 2},
            "imports": [
                {"path": "readv", "calls": 3, "single": 1, "segments": 10, "allocated": 1, "bytes": 9, "errors": 1},
                {"path": "io_uring", "calls": 1, "single": 1, "segments": 1, "allocated": 1, "bytes": 9, "errors": 0},
                {"path": "aio", "calls": 0, "single": 0, "segments": 0, "allocated": 0, "bytes": 0, "errors": 0}],
            "iters": [{"function": "f", "kind": "ubuf", "calls": 2, "bytes": 7, "timed": 2, "asked": 8,
                "short": 1, "segments": 2, "seconds": 0.5}],
            "processes": [
                {"pid": 7, "comm": "dd", "cgroup": "/a.service", "unit": "a.service", "container": "",
                    "imports": 4, "single": 2, "segments": 11, "bytes": 18, "errors": 1,
                    "iter_calls": {"ubuf": 2}, "iter_bytes": {"ubuf": 7}},
                {"pid": null, "comm": "other", "cgroup": "", "unit": "", "container": "",
                    "imports": 0, "single": 0, "segments": 0, "bytes": 0, "errors": 0,
                    "iter_calls": {}, "iter_bytes": {}}],
            "probes": [
                {"target": "t", "site": "a+1", "mechanism": "trap", "state": "attached", "reason": ""},
                {"target": "t", "site": "b+1", "mechanism": "none", "state": "unavailable", "reason": "notrace"}]}"#,
        )
    }

    #[test]
    fn only_what_happened_is_a_row() {
        let rows = report().imports();
        assert_eq!(rows.keys().collect::<Vec<_>>(), ["io_uring", "readv"]);
        assert_eq!(rows["io_uring"].allocated, None);
        assert_eq!(
            rows["readv"],
            Imports { calls: 3, single: 1, segments: 10, allocated: Some(1), bytes: 9, errors: 1 }
        );
        assert_eq!(report().walks()[&("f".into(), "ubuf".into())], Walks { calls: 2, bytes: 7, timed: 2 });
    }

    #[test]
    fn rows_have_all_their_numbers() {
        let walks = Walks { calls: 2, bytes: 7, timed: 2 };
        let iter = Iter { walks, asked: 8, short: 1, segments: 2, seconds: 0.5 };
        assert_eq!(report().iters(), BTreeMap::from([(("f".into(), "ubuf".into()), iter)]));
        let rows = report().processes();
        assert_eq!((rows[0].pid, rows[0].imported()), (Some(7), [4, 2, 11, 18, 1]));
        assert_eq!((&*rows[0].cgroup, &*rows[0].unit), ("/a.service", "a.service"));
        assert_eq!(rows[0].iter_bytes, BTreeMap::from([("ubuf".into(), 7)]));
        assert_eq!((rows[1].pid, &*rows[1].comm, rows[1].imported()), (None, "other", [0; 5]));
    }

    #[test]
    fn what_was_lost_or_is_missing_is_told() {
        assert_eq!(report().lost(), BTreeMap::from([("flight".into(), 2)]));
        assert_eq!(report().attached(), [["t", "a+1"].map(String::from)]);
        assert_eq!(report().missing(), [["t", "b+1", "unavailable", "notrace"].map(String::from)]);
    }

    #[test]
    fn a_difference_has_what_changed() {
        let before = report().imports();
        let mut after = before.clone();
        after.get_mut("readv").unwrap().calls += 2;
        let row = Imports { calls: 2, allocated: Some(0), ..Imports::default() };
        assert_eq!(between(&before, &after), BTreeMap::from([("readv".into(), row)]));
    }

    #[test]
    #[should_panic(expected = "counts nothing")]
    fn a_fraction_counts_nothing() {
        count(0.5);
    }
}
