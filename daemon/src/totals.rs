//! From the maps, in shared memory, to a [`Snapshot`].

use std::time::Instant;

use iotrace_common::{import::Path, iter::IterRecord, lost::Lost};

use crate::{
    probes::Records,
    snapshot::{Import, Iter, Probe, Snapshot},
};

/// Everything counted since the probes were loaded.
#[derive(Debug)]
pub struct Totals {
    records: Records,
    since: Instant,
}

impl Totals {
    /// Of these records, from now on.
    pub fn of(records: Records) -> Totals {
        Totals { records, since: Instant::now() }
    }

    /// All totals at this instant: memory is read, no system call is made.
    pub fn snapshot(&self) -> Snapshot {
        let functions = self.records.functions.iter().enumerate();
        let kinds = self.records.kinds.len();
        let pairs = functions.flat_map(|(function, name)| (0..kinds).map(move |kind| (function, name, kind)));
        Snapshot {
            seconds: self.since.elapsed().as_secs_f64(),
            imports: Path::ALL.iter().map(|&path| self.import(path)).collect(),
            iters: pairs.map(|(function, name, kind)| self.iter(function, name, kind)).collect(),
            lost: Lost::ALL.iter().map(|&reason| (reason.name().to_owned(), self.lost(reason))).collect(),
            processes: Vec::new(),
            probes: self.probes(),
        }
    }

    /// The state of every site at this instant.
    pub fn probes(&self) -> Vec<Probe> {
        self.records.states.rows()
    }

    /// The kinds of iterator on this kernel; the last, `other`, is no kind of its own.
    pub fn kinds(&self) -> Vec<String> {
        let kinds = &self.records.kinds;
        kinds[..kinds.len().saturating_sub(1)].to_vec()
    }

    fn import(&self, path: Path) -> Import {
        let mut row = Import {
            path: path.name().to_owned(),
            buckets: [0; _],
            segments: 0,
            allocated: 0,
            bytes: 0,
            errors: 0,
        };
        for cpu in 0..self.records.cpus {
            let Some(record) = self.records.imports.get(cpu * Path::COUNT + path as usize) else { continue };
            add(&mut row.buckets, &record.buckets);
            row.segments += record.segments;
            row.allocated += record.allocated;
            row.bytes += record.bytes;
            row.errors += record.errors;
        }
        row
    }

    fn iter(&self, function: usize, name: &str, kind: usize) -> Iter {
        let (functions, kinds) = (self.records.functions.len(), self.records.kinds.len());
        let mut sum = IterRecord::ZERO;
        for cpu in 0..self.records.cpus {
            let index = (cpu * functions + function) * kinds + kind;
            let Some(record) = self.records.iters.get(index) else { continue };
            add(&mut sum.buckets, &record.buckets);
            sum.calls += record.calls;
            sum.asked += record.asked;
            sum.done += record.done;
            sum.short += record.short;
            sum.nanos += record.nanos;
        }
        Iter {
            function: name.to_owned(),
            kind: self.records.kinds[kind].clone(),
            calls: sum.calls,
            asked: sum.asked,
            bytes: sum.done,
            short: sum.short,
            nanos: sum.nanos,
            buckets: sum.buckets,
        }
    }

    fn lost(&self, reason: Lost) -> u64 {
        let records = (0..self.records.cpus).filter_map(|cpu| self.records.lost.get(cpu));
        records.map(|record| record.events[reason as usize]).sum()
    }
}

fn add(sum: &mut [u64], part: &[u64]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}
