//! The kernel side played through: sums stay exact and nothing goes down, whatever comes when.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use iotrace_common::who::{Counts, Handover, NOBODY, SLOTS, Slot, Who};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    cgroups::{Cgroup, Names},
    snapshot::{Delta, Process, Snapshot},
};

const CPUS: usize = 2;

/// What `ebpf/src/who.rs` does, with what it counted.
struct Kernel {
    slots: Vec<Slot>,
    ring: VecDeque<Handover>,
    /// What was read of the slots since the last look.
    read: Option<Vec<Slot>>,
    /// Records that were in the ring buffer at the last look.
    overdue: usize,
    truth: BTreeMap<Key, Counts>,
    total: Counts,
}

fn who(tgid: u32, generation: u32) -> Who {
    let mut comm = [0; 16];
    comm[0] = b'a' + (generation % 3) as u8;
    Who { tgid, generation, cgroup: u64::from(tgid % 3), comm }
}

fn some(calls: u64) -> Counts {
    let mut counts =
        Counts { others: calls - calls / 2, single: calls / 2, segments: 3 * calls, ..Counts::default() };
    counts.iter_calls[calls as usize % 4] = calls * 2;
    counts.iter_bytes[calls as usize % 4] = calls * 4096;
    counts
}

impl Kernel {
    fn new() -> Kernel {
        Kernel {
            slots: vec![Slot::default(); CPUS * SLOTS as usize],
            ring: VecDeque::new(),
            read: None,
            overdue: 0,
            truth: BTreeMap::new(),
            total: Counts::default(),
        }
    }

    /// `full`: a hand-over that is due now cannot be sent.
    fn work(&mut self, cpu: usize, who: Who, counts: &Counts, full: bool) {
        // Few places, so that many meet in one.
        let number = (who.tgid % 4) as usize;
        let (index, nobody) = (cpu * SLOTS as usize + number, cpu * SLOTS as usize + NOBODY as usize);
        let slot = &mut self.slots[index];
        if slot.who != who {
            let sent = Handover { cpu: cpu as u32, slot: number as u32, content: *slot };
            if full {
                self.slots[nobody].counts.add(&sent.content.counts);
            } else if !is_zero(&sent.content.counts) {
                self.ring.push_back(sent);
            }
            let turn = sent.content.turn + 2;
            self.slots[index] = Slot { who, turn, ..Slot::default() };
        }
        self.slots[index].counts.add(counts);
        self.truth.entry(Key::of(&who)).or_default().add(counts);
        self.total.add(counts);
    }
}

fn drain(kernel: &mut Kernel, processes: &mut Processes, most: usize) {
    for _ in 0..most {
        let Some(handover) = kernel.ring.pop_front() else { break };
        processes.handover(&handover);
        kernel.overdue = kernel.overdue.saturating_sub(1);
    }
}

/// A record that is under way at one look has come before the next.
fn look(kernel: &mut Kernel, processes: &mut Processes) {
    drain(kernel, processes, kernel.overdue);
    processes.look(&kernel.read.take().unwrap_or_else(|| kernel.slots.clone()));
    kernel.overdue = kernel.ring.len();
}

fn covers(later: &Counts, earlier: &Counts) -> bool {
    later.words().zip(earlier.words()).all(|(later, earlier)| later >= earlier)
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    let mut sum = Counts::default();
    counts.into_iter().for_each(|counts| sum.add(counts));
    sum
}

#[derive(Clone, Debug)]
enum Event {
    /// A process works on a CPU; the ring buffer may be full.
    Work { cpu: usize, tgid: u32, calls: u64, full: bool },
    /// The id goes to another process, or the process runs another program.
    Renew(u32),
    /// The ring buffer is read in part.
    Drain(usize),
    /// The slots are read, and looked at when more has happened.
    Read,
    /// The slots are looked at, perhaps before what they handed over.
    Look,
    /// All is read in order, and compared. So much time passed.
    Report(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let work = (0..CPUS, 1..24u32, 1..50u64, prop::bool::weighted(0.1))
        .prop_map(|(cpu, tgid, calls, full)| Event::Work { cpu, tgid, calls, full });
    vec(
        prop_oneof![
            12 => work,
            1 => (1..24u32).prop_map(Event::Renew),
            2 => (0..6usize).prop_map(Event::Drain),
            2 => Just(Event::Read),
            2 => Just(Event::Look),
            2 => (0..90u64).prop_map(Event::Report),
        ],
        1..400,
    )
}

/// What was shown before, and must not go down.
#[derive(Default)]
struct Before {
    rows: BTreeMap<(Key, Arc<Names>), Counts>,
    since: BTreeMap<(Key, Arc<Names>), Duration>,
    rest: Counts,
    table: Snapshot,
    total: Counts,
}

/// All rows, as `top` has them.
fn table(processes: &Processes) -> Snapshot {
    let kinds: Vec<String> = ["ubuf", "iovec", "bvec", "other"].map(String::from).into();
    let cgroup = Cgroup { path: "/".into(), names: Arc::default() };
    let rows = processes.rows().map(|(key, row)| rows::process(key, &cgroup, &cgroup.names, row, &kinds));
    let rest = rows::other(&processes.other(), &kinds);
    Snapshot { processes: rows.chain([rest]).collect(), ..Snapshot::default() }
}

/// The difference of two tables adds up to that of the wholes, also when it is cut.
fn compare(before: &mut Before, processes: &Processes, shown: usize) -> Result<(), TestCaseError> {
    let later = table(processes);
    let happened = growth(&processes.total(), &before.total);
    let delta = Delta::between(&before.table, &later);
    let cut = delta.clone().heaviest(shown);
    prop_assert!(cut.0.processes.len() <= shown + 1);
    for Delta(delta) in [delta, cut] {
        let mut whole = Process::default();
        delta.processes.iter().for_each(|row| whole.add(row));
        prop_assert_eq!((whole.imports, whole.segments), (happened.imports(), happened.all_segments()));
        prop_assert_eq!(whole.calls(), calls(&happened));
        prop_assert_eq!(whole.iter_bytes(), happened.iter_bytes.iter().sum::<u64>());
        let order: Vec<u64> =
            delta.processes.iter().filter(|it| it.pid.is_some()).map(Process::calls).collect();
        prop_assert!(order.is_sorted_by(|a, b| a >= b));
        prop_assert_eq!(delta.processes.last().map(|row| row.pid), Some(None));
    }
    (before.table, before.total) = (later, processes.total());
    Ok(())
}

fn play(events: &[Event], most: usize, shown: usize) -> Result<(), TestCaseError> {
    let mut kernel = Kernel::new();
    let mut processes = Processes::new(CPUS, most);
    let mut ledger = Ledger::new(shown, Duration::from_secs(60));
    let mut generations: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut now, mut before) = (Duration::ZERO, Before::default());
    let (mut exact, mut before_total) = (true, Counts::default());
    for event in events.iter().chain([&Event::Report(1)]) {
        match *event {
            Event::Work { cpu, tgid, calls, full } => {
                let generation = generations.get(&tgid).copied().unwrap_or(0);
                exact &= !full;
                kernel.work(cpu, who(tgid, generation), &some(calls), full);
            }
            Event::Renew(tgid) => *generations.entry(tgid).or_default() += 1,
            Event::Drain(records) => drain(&mut kernel, &mut processes, records),
            Event::Read => kernel.read = Some(kernel.slots.clone()),
            Event::Look => look(&mut kernel, &mut processes),
            Event::Report(seconds) => {
                now += Duration::from_secs(seconds);
                kernel.read = None;
                drain(&mut kernel, &mut processes, usize::MAX);
                look(&mut kernel, &mut processes);
                prop_assert_eq!(processes.total(), kernel.total);
                let rows: BTreeMap<Key, Counts> = processes.rows().map(|(key, row)| (*key, *row)).collect();
                prop_assert!(rows.len() <= most);
                let mut whole = sum(rows.values());
                whole.add(&processes.other());
                prop_assert_eq!(whole, kernel.total);
                for (key, row) in &rows {
                    prop_assert!(covers(&kernel.truth[key], row), "{:?} did not do that", key);
                }
                if exact && kernel.truth.len() <= most {
                    prop_assert_eq!(&rows, &kernel.truth);
                }
                compare(&mut before, &processes, shown)?;
                step(&mut ledger, &mut processes, now, &mut before, (&kernel, &generations, shown))?;
            }
        }
        prop_assert!(covers(&processes.total(), &before_total));
        before_total = processes.total();
    }
    Ok(())
}

fn step(
    ledger: &mut Ledger,
    processes: &mut Processes,
    now: Duration,
    before: &mut Before,
    (kernel, generations, shown): (&Kernel, &BTreeMap<u32, u32>, usize),
) -> Result<(), TestCaseError> {
    // Cgroups 0 and 1 have the same names; an id that was renewed often belongs to nobody.
    let names = |id: u64| Arc::new(Names { unit: format!("{}.service", id / 2), ..Names::default() });
    let gone = |tgid: u32| generations.get(&tgid).is_some_and(|generation| generation % 2 == 1);
    let (rows, rest) = ledger.step(now, processes, names, gone);
    prop_assert!(rows.len() <= shown);
    let mut whole = sum(rows.iter().map(|row| &row.counts));
    whole.add(&rest);
    prop_assert_eq!(whole, kernel.total);
    prop_assert!(covers(&rest, &before.rest), "the rest went down");
    let mut found = BTreeMap::new();
    for row in rows {
        prop_assert!(covers(&kernel_sum(kernel, &row, names), &row.counts));
        prop_assert!(found.insert((row.key, row.names), row.counts).is_none(), "a row twice");
    }
    for (row, counts) in &before.rows {
        match found.get(row) {
            Some(later) => prop_assert!(covers(later, counts), "a row went down"),
            None => prop_assert!(
                gone(row.0.tgid) || now - before.since[row] >= Duration::from_secs(60),
                "a row went early"
            ),
        }
    }
    before.since.retain(|row, _| found.contains_key(row));
    for row in found.keys() {
        before.since.entry(row.clone()).or_insert(now);
    }
    (before.rows, before.rest) = (found, rest);
    Ok(())
}

/// All that the processes of a row did.
fn kernel_sum(kernel: &Kernel, row: &Row, names: impl Fn(u64) -> Arc<Names>) -> Counts {
    let same =
        |key: &Key| key.tgid == row.key.tgid && key.comm == row.key.comm && names(key.cgroup) == row.names;
    sum(kernel.truth.iter().filter(|(key, _)| same(key)).map(|(_, counts)| counts))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_exact_and_nothing_goes_down(events in events(), most in 4..80usize, shown in 1..8usize) {
        play(&events, most, shown)?;
    }
}

#[test]
fn a_record_that_comes_late_changes_no_sum_and_takes_nothing_back() {
    let (mut kernel, mut processes) = (Kernel::new(), Processes::new(CPUS, 100));
    let (first, second) = (who(1, 0), who(5, 0));
    kernel.work(0, first, &some(10), false);
    processes.look(&kernel.slots);
    kernel.work(0, first, &some(1), false);
    kernel.work(0, second, &some(100), false);
    // The record is under way: what was read of it stays.
    processes.look(&kernel.slots);
    let of = |processes: &Processes, who: &Who| {
        processes.rows().find(|(key, _)| **key == Key::of(who)).map(|(_, counts)| counts.imports())
    };
    assert_eq!((of(&processes, &first), of(&processes, &second)), (Some(10), Some(100)));
    drain(&mut kernel, &mut processes, 1);
    assert_eq!((of(&processes, &first), of(&processes, &second)), (Some(11), Some(100)));
    assert_eq!((processes.total(), processes.other()), (kernel.total, Counts::default()));
}

#[test]
fn what_was_read_but_not_sent_is_counted_once() {
    let (mut kernel, mut processes) = (Kernel::new(), Processes::new(CPUS, 100));
    kernel.work(1, who(1, 0), &some(10), false);
    processes.look(&kernel.slots);
    kernel.work(1, who(1, 0), &some(1), false);
    kernel.work(1, who(5, 0), &some(100), true);
    processes.look(&kernel.slots);
    assert_eq!(processes.total(), kernel.total);
    assert_eq!(processes.other().imports(), 1, "the reading stays with its process");
}

#[test]
fn a_hundred_thousand_short_lives_leave_bounded_memory_and_exact_sums() {
    let (mut kernel, mut processes) = (Kernel::new(), Processes::new(CPUS, Processes::MOST));
    let mut ledger = Ledger::new(50, Duration::from_secs(60));
    let mut rest = Counts::default();
    for number in 0..100_000u32 {
        kernel.work(
            number as usize % CPUS,
            who(10 + number, 0),
            &some(u64::from(number % 7) + 1),
            number % 97 == 0,
        );
        // One that stays is among them.
        kernel.work(0, who(3, 0), &some(20), false);
        if number % 1000 == 999 {
            drain(&mut kernel, &mut processes, usize::MAX);
            processes.look(&kernel.slots);
            assert!(processes.rows().count() <= Processes::MOST);
        }
        if number % 20_000 == 19_999 {
            let now = Duration::from_secs(u64::from(number) / 1000);
            let alive = BTreeSet::from([3]);
            let (rows, others) =
                ledger.step(now, &mut processes, |_| Arc::default(), |id| !alive.contains(&id));
            assert_eq!(rows.len(), 50);
            assert_eq!(rows[0].key.tgid, 3);
            assert_eq!(rows[0].counts, kernel.truth[&Key::of(&who(3, 0))], "the heaviest is never folded");
            let mut whole = sum(rows.iter().map(|row| &row.counts));
            whole.add(&others);
            assert_eq!(whole, kernel.total);
            assert!(covers(&others, &rest));
            rest = others;
        }
    }
    assert_eq!(processes.total(), kernel.total);
}

#[test]
fn a_heavy_newcomer_waits_for_the_age_of_a_row_and_not_for_one_that_is_gone() {
    let names = |_: u64| Arc::<Names>::default();
    let pids = |rows: &[Row]| -> BTreeSet<u32> { rows.iter().map(|row| row.key.tgid).collect() };
    let (mut kernel, mut processes) = (Kernel::new(), Processes::new(CPUS, 100));
    let mut ledger = Ledger::new(2, Duration::from_secs(60));
    let mut step = |works: &[(u32, u64)], seconds: u64, gone: &[u32]| {
        works.iter().for_each(|&(tgid, calls)| kernel.work(0, who(tgid, 0), &some(calls), false));
        drain(&mut kernel, &mut processes, usize::MAX);
        processes.look(&kernel.slots);
        ledger.step(Duration::from_secs(seconds), &mut processes, names, |tgid| gone.contains(&tgid))
    };
    assert_eq!(pids(&step(&[(1, 5), (2, 6)], 0, &[]).0), [1, 2].into());
    let (rows, rest) = step(&[(3, 100)], 30, &[]);
    assert_eq!((pids(&rows), rest.imports()), ([1, 2].into(), 100));
    // What came before stays where it was told.
    let (rows, rest) = step(&[(3, 7)], 60, &[]);
    assert_eq!((pids(&rows), rest.imports()), ([2, 3].into(), 105));
    assert_eq!(rows.iter().find(|row| row.key.tgid == 3).unwrap().counts.imports(), 7);
    // 3 has gone but its last numbers were not shown yet; 2 was shown long enough.
    assert_eq!(pids(&step(&[(3, 1), (4, 900), (5, 800)], 61, &[3]).0), [3, 4].into());
    assert_eq!(pids(&step(&[], 62, &[3]).0), [4, 5].into());
    // Nobody wants its place, but it is gone.
    assert_eq!(pids(&step(&[], 130, &[4]).0), [5].into());
}
