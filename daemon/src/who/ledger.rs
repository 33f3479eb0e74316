//! The heaviest processes, as rows that stay long enough to be of use, each a counter of its own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use iotrace_common::who::Counts;

use super::{Key, Processes, calls, growth};
use crate::cgroups::Names;

/// The heaviest processes of late, and what they did since they became so.
#[derive(Clone, Debug)]
pub struct Ledger {
    rows: usize,
    age: Duration,
    shown: HashMap<Series, Shown>,
    /// Calls of late of those that are not shown.
    waiting: HashMap<Series, Waiting>,
    stepped: Duration,
}

/// What is told apart by the labels of a metric: two cgroups of one unit are not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Series {
    tgid: u32,
    comm: [u8; 16],
    names: Arc<Names>,
}

#[derive(Clone, Debug)]
struct Shown {
    cgroup: u64,
    counts: Counts,
    /// Calls, halved with each [`HALVED`] that passed.
    weight: f64,
    promoted: Duration,
    moved: Duration,
}

/// Thousands may wait: what they did is not kept here, but looked up once more when one of them comes up.
#[derive(Clone, Debug)]
struct Waiting {
    cgroup: u64,
    weight: f64,
}

/// A process that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The process, in the first of its cgroups that was seen.
    pub key: Key,
    /// The names that tell its row from others of the same id and name.
    pub names: Arc<Names>,
    /// What it did since it is shown.
    pub counts: Counts,
}

/// The time after which a call weighs half.
const HALVED: Duration = Duration::from_secs(60);

impl Ledger {
    /// How long a row is shown at least.
    pub const AGE: Duration = Duration::from_secs(60);

    /// An empty ledger of at most this many rows.
    pub fn new(rows: usize, age: Duration) -> Ledger {
        Ledger { rows, age, shown: HashMap::new(), waiting: HashMap::new(), stepped: Duration::ZERO }
    }

    /// Takes what happened since the last step, and gives the rows, the heaviest first, and what is in none of
    /// them: together `processes.total()`.
    ///
    /// `now` is any clock that does not go back. `names` are those of a cgroup; `gone` tells whether a thread group
    /// has ended. A row that comes up counts what was not told before; one that goes leaves its counts in the rest.
    pub fn step(
        &mut self,
        now: Duration,
        processes: &mut Processes,
        mut names: impl FnMut(u64) -> Arc<Names>,
        gone: impl Fn(u32) -> bool,
    ) -> (Vec<Row>, Counts) {
        self.fade(now);
        // Asked for once: a cgroup that gets its names in the middle would make two rows of one.
        let mut known: HashMap<u64, Arc<Names>> = HashMap::new();
        let mut names = |id| Arc::clone(known.entry(id).or_insert_with(|| names(id)));
        for (key, grown) in processes.grown() {
            self.weigh(now, key, names(key.cgroup), calls(&grown) as f64);
        }
        self.end(now, &gone);
        self.promote(now, &gone);
        for (key, grown) in processes.report() {
            self.count(key, names(key.cgroup), &grown);
        }
        // Whoever weighs less than a call of two half-lives ago is as good as new when it comes again.
        self.waiting.retain(|_, waiting| waiting.weight >= 0.25);
        self.forget();

        let mut rest = processes.total();
        let mut rows: Vec<Row> = Vec::with_capacity(self.shown.len());
        for (Series { tgid, comm, names }, shown) in &self.shown {
            rest = growth(&rest, &shown.counts);
            let key = Key { tgid: *tgid, comm: *comm, cgroup: shown.cgroup };
            rows.push(Row { key, names: names.clone(), counts: shown.counts });
        }
        rows.sort_by_cached_key(|row| (std::cmp::Reverse(calls(&row.counts)), row.key, row.names.clone()));
        (rows, rest)
    }

    fn fade(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.stepped).as_secs_f64();
        let factor = (-passed / HALVED.as_secs_f64()).exp2();
        self.shown.values_mut().for_each(|shown| shown.weight *= factor);
        for waiting in self.waiting.values_mut() {
            waiting.weight *= factor;
        }
        self.stepped = now;
    }

    fn weigh(&mut self, now: Duration, key: &Key, names: Arc<Names>, weight: f64) {
        let series = Series { tgid: key.tgid, comm: key.comm, names };
        if let Some(shown) = self.shown.get_mut(&series) {
            shown.weight += weight;
            shown.moved = now;
            return;
        }
        self.waiting.entry(series).or_insert(Waiting { cgroup: key.cgroup, weight: 0.0 }).weight += weight;
    }

    fn count(&mut self, key: &Key, names: Arc<Names>, grown: &Counts) {
        if let Some(shown) = self.shown.get_mut(&Series { tgid: key.tgid, comm: key.comm, names }) {
            shown.counts.add(grown);
        }
    }

    /// Rows of processes that ended go when they were shown for long enough after their last call.
    fn end(&mut self, now: Duration, gone: &impl Fn(u32) -> bool) {
        let age = self.age;
        self.shown.retain(|series, shown| now.saturating_sub(shown.moved) < age || !gone(series.tgid));
    }

    fn promote(&mut self, now: Duration, gone: &impl Fn(u32) -> bool) {
        let mut coming: Vec<(f64, &Series)> =
            self.waiting.iter().map(|(series, waiting)| (waiting.weight, series)).collect();
        let heaviest =
            |a: &(f64, &Series), b: &(f64, &Series)| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1));
        if self.rows < coming.len() {
            // Of thousands only a few can come: the others need no order.
            coming.select_nth_unstable_by(self.rows, heaviest);
            coming.truncate(self.rows);
        }
        coming.sort_by(heaviest);
        let coming: Vec<(f64, Series)> =
            coming.into_iter().map(|(weight, series)| (weight, series.clone())).collect();
        // The lightest last. A row that moved in this step has numbers that were not shown yet.
        let mut going: Vec<(f64, Series)> = Vec::new();
        if self.shown.len() + coming.len() > self.rows {
            let old = |shown: &Shown| now.saturating_sub(shown.promoted) >= self.age;
            let may =
                |(series, shown): &(&Series, &Shown)| old(shown) || (shown.moved < now && gone(series.tgid));
            let rows = self.shown.iter().filter(may);
            going = rows.map(|(series, shown)| (shown.weight, series.clone())).collect();
            going.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| b.1.cmp(&a.1)));
        }
        for (weight, series) in coming {
            if self.shown.len() >= self.rows {
                match going.pop() {
                    Some((lightest, loser)) if lightest < weight => self.shown.remove(&loser),
                    _ => break,
                };
            }
            if let Some(Waiting { cgroup, weight }) = self.waiting.remove(&series) {
                // What it did in this step is counted when all have their place.
                let shown = Shown { cgroup, counts: Counts::default(), weight, promoted: now, moved: now };
                self.shown.insert(series, shown);
            }
        }
    }

    /// Bounds those that wait, whatever the store remembers.
    fn forget(&mut self) {
        if self.waiting.len() > Processes::MOST {
            let mut weights: Vec<f64> = self.waiting.values().map(|waiting| waiting.weight).collect();
            let surplus = self.waiting.len() - Processes::MOST;
            let (_, &mut lightest, _) = weights.select_nth_unstable_by(surplus, f64::total_cmp);
            self.waiting.retain(|_, waiting| waiting.weight > lightest);
        }
    }
}
