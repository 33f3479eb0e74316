//! All totals at one instant, and the difference of two. Plain data: it serialises, it knows no map and no metric.

use std::collections::BTreeMap;

use iotrace_common::{import::SEGMENT_BUCKETS, iter::NANOS_BUCKETS};
use serde::{Deserialize, Serialize};

mod governed;
mod process;
mod zerocopy;

pub use governed::{Governed, IMPORT, Passed};
pub use process::Process;
pub use zerocopy::{Counted as ZerocopyCounted, Zerocopy};

/// All totals since the probes were attached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Seconds since the instruments were switched on, of the monotonic clock.
    pub seconds: f64,
    /// Every path, in the order of `Path::ALL`, also those that saw nothing.
    pub imports: Vec<Import>,
    /// Every function of the plan with every kind of this kernel, also those that saw nothing.
    pub iters: Vec<Iter>,
    /// TCP without copies.
    #[serde(default)]
    pub zerocopy: Zerocopy,
    /// Events lost, by the name of the reason; every reason, also those with 0.
    pub lost: BTreeMap<String, u64>,
    /// Processes, the row of all others last; empty where nothing was attributed.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// Of the paths that the self-test took, whether they count right.
    #[serde(default)]
    pub verified: BTreeMap<String, bool>,
    /// The overhead budget; absent where none is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governed: Option<Governed>,
    /// Every target's sites and their state.
    pub probes: Vec<Probe>,
}

/// Imports on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Import {
    /// `Path::name`.
    pub path: String,
    /// Calls by segments, see `SEGMENT_BOUNDS`; not cumulative.
    pub buckets: [u64; SEGMENT_BUCKETS],
    /// Segments asked for.
    pub segments: u64,
    /// Calls whose iovec array was allocated.
    pub allocated: u64,
    /// Bytes imported.
    pub bytes: u64,
    /// Calls that failed.
    pub errors: u64,
}

impl Import {
    /// Calls, whatever their result.
    pub fn calls(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Calls with exactly one segment.
    pub fn single(&self) -> u64 {
        self.buckets[1]
    }
}

/// Calls of one function with one kind of iterator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iter {
    /// The function's API name, such as `copy_to_iter`.
    pub function: String,
    /// The kind, such as `ubuf`; `other` where it could not be told.
    pub kind: String,
    /// Calls entered.
    pub calls: u64,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Calls that did less than asked.
    pub short: u64,
    /// Segments walked, by the calls that returned and did something; 0 for kinds that have none.
    #[serde(default)]
    pub segments: u64,
    /// Nanoseconds in calls that returned.
    pub nanos: u64,
    /// Calls that returned, by duration, see `nanos_bound`; not cumulative.
    #[serde(with = "buckets")]
    pub buckets: [u64; NANOS_BUCKETS],
}

impl Iter {
    /// Calls that were timed: those that returned and were matched.
    pub fn timed(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// A site of the plan, or a target without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The target's symbol, such as `import_iovec`.
    pub target: String,
    /// Where it is called, such as `vfs_readv+0xcf`; empty for a target without a site.
    pub site: String,
    /// `fentry`, `fexit`, `jump`, `trap`, or `none`.
    pub mechanism: String,
    /// Whether it counts.
    pub state: State,
    /// Why it does not; empty where it does.
    pub reason: String,
    /// The kprobes that it takes, in the order of the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kprobes: Vec<Kprobe>,
}

/// A kprobe of a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kprobe {
    /// Where, such as `vfs_readv+0xd4`.
    pub at: String,
    /// Whether the kernel has made a jump of it (`[OPTIMIZED]` in its list of kprobes); not known where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimized: Option<bool>,
}

/// The state of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Planned, its turn has not come.
    Pending,
    /// It counts.
    Attached,
    /// The kernel refused it.
    Failed,
    /// The plan left it out.
    Unavailable,
    /// Its probes are detached for now, or for good, to keep to the overhead budget.
    Closed,
}

impl State {
    /// The name in metrics and tables.
    pub const fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Attached => "attached",
            State::Failed => "failed",
            State::Unavailable => "unavailable",
            State::Closed => "closed",
        }
    }
}

/// What happened between two snapshots of the same probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta(pub Snapshot);

impl Delta {
    /// `later − earlier`, row by row. Rows only in `later` count whole.
    pub fn between(earlier: &Snapshot, later: &Snapshot) -> Delta {
        let mut delta = later.clone();
        delta.seconds -= earlier.seconds;
        for row in &mut delta.imports {
            if let Some(before) = earlier.imports.iter().find(|before| before.path == row.path) {
                subtract(&mut row.buckets, &before.buckets);
                row.segments = row.segments.saturating_sub(before.segments);
                row.allocated = row.allocated.saturating_sub(before.allocated);
                row.bytes = row.bytes.saturating_sub(before.bytes);
                row.errors = row.errors.saturating_sub(before.errors);
            }
        }
        for row in &mut delta.iters {
            let same = |before: &&Iter| before.function == row.function && before.kind == row.kind;
            if let Some(before) = earlier.iters.iter().find(same) {
                subtract(&mut row.buckets, &before.buckets);
                row.calls = row.calls.saturating_sub(before.calls);
                row.asked = row.asked.saturating_sub(before.asked);
                row.bytes = row.bytes.saturating_sub(before.bytes);
                row.short = row.short.saturating_sub(before.short);
                row.segments = row.segments.saturating_sub(before.segments);
                row.nanos = row.nanos.saturating_sub(before.nanos);
            }
        }
        for (reason, events) in &mut delta.lost {
            *events = events.saturating_sub(earlier.lost.get(reason).copied().unwrap_or(0));
        }
        if let Some((now, before)) = delta.governed.as_mut().zip(earlier.governed.as_ref()) {
            now.subtract(before);
        }
        delta.zerocopy.subtract(&earlier.zerocopy);
        delta.processes = process::difference(&earlier.processes, &later.processes);
        Delta(delta)
    }

    /// The same with at most so many processes, the heaviest; the others are one row.
    pub fn heaviest(mut self, most: usize) -> Delta {
        self.0.processes = process::heaviest(&self.0.processes, most);
        self
    }
}

fn subtract(buckets: &mut [u64], before: &[u64]) {
    for (bucket, before) in buckets.iter_mut().zip(before) {
        *bucket = bucket.saturating_sub(*before);
    }
}

/// The share of a target's sites that count: a call from any other site is not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// The target's symbol.
    pub target: String,
    /// Sites that count.
    pub attached: usize,
    /// Sites that the kernel's text shows.
    pub sites: usize,
}

impl Snapshot {
    /// The coverage of every target, in the order of the plan.
    pub fn coverage(&self) -> Vec<Coverage> {
        let mut rows: Vec<Coverage> = Vec::new();
        for probe in &self.probes {
            if rows.last().is_none_or(|row| row.target != probe.target) {
                rows.push(Coverage { target: probe.target.clone(), attached: 0, sites: 0 });
            }
            if let Some(row) = rows.last_mut() {
                row.sites += usize::from(!probe.site.is_empty());
                row.attached += usize::from(probe.state == State::Attached);
            }
        }
        rows
    }
}

/// serde derives arrays up to 32 only.
mod buckets {
    use super::NANOS_BUCKETS;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(
        buckets: &[u64; NANOS_BUCKETS],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        buckets.as_slice().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; NANOS_BUCKETS], D::Error> {
        let buckets = Vec::<u64>::deserialize(deserializer)?;
        let found = buckets.len();
        buckets
            .try_into()
            .map_err(|_| D::Error::custom(format_args!("{found} buckets, expected {NANOS_BUCKETS}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(scale: u64) -> Snapshot {
        let mut buckets = [0; SEGMENT_BUCKETS];
        buckets[1] = 10 * scale;
        let mut nanos = [0; NANOS_BUCKETS];
        nanos[7] = 3 * scale;
        Snapshot {
            seconds: scale as f64,
            imports: vec![Import {
                path: "readv".into(),
                buckets,
                segments: 10 * scale,
                allocated: 0,
                bytes: 640 * scale,
                errors: scale,
            }],
            iters: vec![Iter {
                function: "copy_to_iter".into(),
                kind: "ubuf".into(),
                calls: 3 * scale,
                asked: 30 * scale,
                bytes: 29 * scale,
                short: scale,
                segments: 4 * scale,
                nanos: 900 * scale,
                buckets: nanos,
            }],
            zerocopy: Zerocopy {
                calls: scale,
                mapped: 8192 * scale,
                fell_back: scale,
                ..Zerocopy::default()
            },
            lost: BTreeMap::from([("flight".into(), scale)]),
            processes: vec![
                Process { pid: Some(7), comm: "dd".into(), imports: 8 * scale, ..Process::default() },
                Process { comm: Process::OTHER.into(), imports: 2 * scale, ..Process::default() },
            ],
            verified: BTreeMap::new(),
            governed: Some(Governed {
                budget: 0.01,
                costs: BTreeMap::from([(IMPORT.into(), 1e-7)]),
                seconds: scale as f64,
                functions: BTreeMap::from([(
                    "copy_to_iter".into(),
                    Passed { seen: scale as f64, estimated: 2.0 * scale as f64 },
                )]),
                gave_up: false,
            }),
            probes: vec![Probe {
                target: "import_iovec".into(),
                site: "vfs_readv+0xcf".into(),
                mechanism: "trap".into(),
                state: State::Attached,
                reason: String::new(),
                kprobes: Vec::new(),
            }],
        }
    }

    #[test]
    fn a_delta_is_the_difference_of_every_number() {
        assert_eq!(Delta::between(&snapshot(2), &snapshot(5)).0, snapshot(3));
    }

    #[test]
    fn a_snapshot_survives_json() {
        let text = serde_json::to_string(&snapshot(7)).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot(7));
        // One written before there were processes in it.
        let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
        old.as_object_mut().unwrap().remove("processes");
        assert_eq!(serde_json::from_value::<Snapshot>(old).unwrap().processes, []);
    }

    #[test]
    fn coverage_counts_sites() {
        let mut snapshot = snapshot(1);
        let mut missing = snapshot.probes[0].clone();
        missing.state = State::Failed;
        snapshot.probes.push(missing);
        assert_eq!(snapshot.coverage(), [Coverage { target: "import_iovec".into(), attached: 1, sites: 2 }]);
    }
}
