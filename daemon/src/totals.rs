//! From the maps, in shared memory, to a [`Snapshot`].

use std::{
    collections::BTreeMap,
    io,
    mem::offset_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use iotrace_common::{
    block::{Block, ROWS},
    import::{ImportRecord, Path, segment_bucket},
    iter::IterRecord,
    lost::{Lost, LostRecord},
    who::Counts,
    zerocopy::ZerocopyRecord,
};

use crate::{
    probes::{Programs, Records, States, Waiter},
    shared::Shared,
    snapshot::{Governed, Import, Iter, Probe, Snapshot, Zerocopy},
    who::Book,
};

mod attribution;

use attribution::Attribution;

/// The bucket of imports with one segment: of those the kernel side does not add up the segments.
const ONE: usize = segment_bucket(1);

/// Which processes are rows of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All that are remembered: for one measurement.
    All,
    /// The heaviest of late, at most so many: for good.
    Heaviest(usize),
}

/// Everything counted since the probes were loaded.
#[derive(Debug)]
pub struct Totals {
    blocks: Arc<Shared<Block>>,
    zerocopy: Shared<ZerocopyRecord>,
    cpus: usize,
    functions: Vec<String>,
    kinds: Vec<String>,
    states: States,
    programs: Programs,
    maps: BTreeMap<String, u64>,
    attribution: Mutex<Attribution>,
    verified: Mutex<BTreeMap<String, bool>>,
    governed: Mutex<Option<Governed>>,
    since: Instant,
}

impl Totals {
    /// Of these records, from now on.
    pub fn of(records: Records, rows: Rows) -> Totals {
        let Records { blocks, zerocopy, handovers, cpus, functions, kinds, states, programs, maps } = records;
        let book = match rows {
            Rows::All => Book::of_all(cpus, kinds.clone()),
            Rows::Heaviest(most) => Book::of_heaviest(cpus, kinds.clone(), most),
        };
        let verified = Mutex::default();
        let attribution = Mutex::new(Attribution::of(Arc::clone(&blocks), handovers, cpus, book));
        Totals {
            blocks,
            zerocopy,
            cpus,
            functions,
            kinds,
            states,
            programs,
            maps,
            attribution,
            verified,
            governed: Mutex::default(),
            since: Instant::now(),
        }
    }

    /// All totals at this instant. The processes are read first: what happens meanwhile is in the totals, not in
    /// theirs.
    pub fn snapshot(&self) -> Snapshot {
        let processes = self.attribution().rows(self.since.elapsed());
        let functions = self.functions.iter().enumerate();
        let kinds = self.kinds.len();
        let pairs = functions.flat_map(|(function, name)| (0..kinds).map(move |kind| (function, name, kind)));
        let records = self.iter_records();
        Snapshot {
            seconds: self.since.elapsed().as_secs_f64(),
            imports: Path::ALL.iter().map(|&path| self.import(path)).collect(),
            iters: pairs
                .map(|(function, name, kind)| self.iter(&records[function * kinds + kind], name, kind))
                .collect(),
            zerocopy: self.zerocopy(),
            processes,
            verified: self.verified.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            governed: self.governed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            lost: Lost::ALL.iter().map(|&reason| (reason.name().to_owned(), self.lost(reason))).collect(),
            probes: self.probes(),
        }
    }

    /// The state of every site at this instant.
    pub fn probes(&self) -> Vec<Probe> {
        self.states.rows()
    }

    /// Instructions that the verifier processed, by program; see [`Programs`].
    pub fn programs(&self) -> BTreeMap<String, u32> {
        self.programs.all()
    }

    /// Bytes of each of the kernel side's maps, as the kernel counts them.
    pub fn maps(&self) -> BTreeMap<String, u64> {
        self.maps.clone()
    }

    /// The kinds of iterator on this kernel; the last, `other`, is no kind of its own.
    pub fn kinds(&self) -> Vec<String> {
        let kinds = &self.kinds;
        kinds[..kinds.len().saturating_sub(1)].to_vec()
    }

    /// Takes what processes have handed over. Whoever holds the totals sees to it that this is done often enough:
    /// when the [waiter](Totals::waiter) says so.
    pub fn drain(&self) {
        self.attribution().drain();
    }

    /// What one process of this name did so far, as far as it is remembered.
    pub fn process(&self, tgid: u32, comm: [u8; 16]) -> Counts {
        self.attribution().process(tgid, comm)
    }

    /// Notes which paths the self-test found to count right, and which not.
    pub fn verified(&self, paths: BTreeMap<String, bool>) {
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = paths;
    }

    /// Notes what the probes cost so far.
    pub fn governed(&self, governed: Governed) {
        *self.governed.lock().unwrap_or_else(PoisonError::into_inner) = Some(governed);
    }

    /// To be waited on until there is something to drain.
    ///
    /// # Errors
    /// That no more files can be opened.
    pub fn waiter(&self) -> io::Result<Waiter> {
        self.attribution().waiter()
    }

    fn attribution(&self) -> MutexGuard<'_, Attribution> {
        self.attribution.lock().unwrap_or_else(PoisonError::into_inner)
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
        for cpu in 0..self.cpus {
            let offset = offset_of!(Block, imports) + path as usize * size_of::<ImportRecord>();
            let Some(record) = self.blocks.part::<ImportRecord>(cpu, offset) else { continue };
            add(&mut row.buckets, &record.buckets);
            row.segments += record.segments + record.buckets[ONE];
            row.allocated += record.allocated;
            row.bytes += record.bytes;
            row.errors += record.errors;
        }
        row
    }

    /// The totals of all CPUs, by function and kind.
    fn iter_records(&self) -> Vec<IterRecord> {
        let mut sums = vec![IterRecord::ZERO; self.functions.len() * self.kinds.len()];
        for cpu in 0..self.cpus {
            let pairs = self.blocks.part::<[u16; ROWS]>(cpu, offset_of!(Block, pairs)).unwrap_or([0; ROWS]);
            for (row, pair) in pairs.into_iter().enumerate() {
                let offset = offset_of!(Block, iters) + row * size_of::<IterRecord>();
                let Some(sum) = usize::from(pair).checked_sub(1).and_then(|pair| sums.get_mut(pair)) else {
                    continue;
                };
                let Some(record) = self.blocks.part::<IterRecord>(cpu, offset) else { continue };
                add(&mut sum.buckets, &record.buckets);
                sum.calls += record.calls;
                sum.asked += record.asked;
                sum.done += record.done;
                sum.short += record.short;
                sum.nanos += record.nanos;
                sum.segments += record.segments;
            }
        }
        sums
    }

    fn iter(&self, sum: &IterRecord, name: &str, kind: usize) -> Iter {
        Iter {
            function: name.to_owned(),
            kind: self.kinds[kind].clone(),
            calls: sum.calls,
            asked: sum.asked,
            bytes: sum.done,
            short: sum.short,
            segments: sum.segments,
            nanos: sum.nanos,
            buckets: sum.buckets,
        }
    }

    fn zerocopy(&self) -> Zerocopy {
        let mut sum = Zerocopy::default();
        for record in (0..self.cpus).filter_map(|cpu| self.zerocopy.get(cpu)) {
            sum.add(&Zerocopy {
                calls: record.calls,
                errors: record.errors,
                mapped: record.mapped,
                copied: record.copied,
                timed: record.timed,
                nanos: record.nanos,
                inserts: record.inserts,
                insert_nanos: record.insert_nanos,
                zaps: record.zaps,
                zap_nanos: record.zap_nanos,
                waits: record.waits,
                wait_nanos: record.wait_nanos,
                sends: record.sends,
                completed: record.completed,
                fell_back: record.fell_back,
            });
        }
        sum
    }

    fn lost(&self, reason: Lost) -> u64 {
        let records =
            (0..self.cpus).filter_map(|cpu| self.blocks.part::<LostRecord>(cpu, offset_of!(Block, lost)));
        records.map(|record| record.events[reason as usize]).sum()
    }
}

fn add(sum: &mut [u64], part: &[u64]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}
