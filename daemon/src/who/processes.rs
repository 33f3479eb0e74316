//! The store of all processes that are known. Pure: it reads no map and no clock.

use std::collections::HashMap;

use iotrace_common::who::{Counts, Handover, NOBODY, SLOTS, Slot};

use super::{Key, calls, growth, is_zero, raise};

/// Cumulative totals of processes, and of what belongs to none that is remembered.
#[derive(Clone, Debug)]
pub struct Processes {
    most: usize,
    rows: HashMap<Key, Entry>,
    /// By `cpu * SLOTS + slot`.
    places: Vec<Place>,
    /// Sum of the rows and of `folded`.
    sum: Counts,
    /// Of processes no longer remembered.
    folded: Counts,
    /// What the last look read in the slots of nobody.
    unsent: Counts,
    /// Counted for a process by a reading, but never sent: it is in `unsent` as well.
    kept: Counts,
    /// `unsent` without `kept`. It is raised only: a record under way is in `kept` for a moment although it will come.
    nobody: Counts,
    looks: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    counts: Counts,
    told: Told,
    /// The look before which it last grew.
    moved: u64,
}

/// How much of a process was told by [`Processes::report`]. Most are told once and never heard of again: only what
/// grew since then takes the room of a second [`Counts`].
#[derive(Clone, Debug, Default)]
enum Told {
    #[default]
    Nothing,
    /// All of `counts`.
    All,
    These(Box<Counts>),
}

impl Entry {
    fn add(&mut self, grown: &Counts) {
        if matches!(self.told, Told::All) {
            self.told = Told::These(Box::new(self.counts));
        }
        self.counts.add(grown);
    }

    /// What was not told yet; `None` if that is nothing.
    fn untold(&self) -> Option<Counts> {
        match &self.told {
            Told::Nothing => Some(self.counts),
            Told::All => None,
            Told::These(told) => Some(growth(&self.counts, told)),
        }
    }
}

/// What of a slot was counted already.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The last reading, while its turn was not handed over.
    reading: Option<Reading>,
    /// The last reading of an earlier turn, whose record may be under way.
    before: Option<Box<Reading>>,
    /// Readings of earlier turns are out of date.
    turn: u64,
}

#[derive(Clone, Debug)]
struct Reading {
    key: Key,
    turn: u64,
    counts: Counts,
}

impl Processes {
    /// How many processes are remembered by default.
    pub const MOST: usize = 8192;

    /// An empty store for this many CPUs that remembers at most this many processes.
    pub fn new(cpus: usize, most: usize) -> Processes {
        Processes {
            most: most.max(1),
            rows: HashMap::new(),
            places: vec![Place::default(); cpus * SLOTS as usize],
            sum: Counts::default(),
            folded: Counts::default(),
            unsent: Counts::default(),
            kept: Counts::default(),
            nobody: Counts::default(),
            looks: 0,
        }
    }

    /// Takes a record of the ring buffer: each once, in their order.
    pub fn handover(&mut self, handover: &Handover) {
        let Handover { cpu, slot, content } = handover;
        let index = *cpu as usize * SLOTS as usize + *slot as usize;
        let mut known = Counts::default();
        if let Some(place) = self.places.get_mut(index) {
            place.turn = place.turn.max(content.turn + 1);
            if let Some(before) = place.before.take_if(|before| before.turn <= content.turn) {
                // A later record came first: that of the reading was lost.
                if before.turn == content.turn {
                    self.kept = growth(&self.kept, &before.counts);
                    known = before.counts;
                }
            }
            if let Some(reading) = place.reading.take_if(|reading| reading.turn <= content.turn) {
                if reading.turn == content.turn {
                    known = reading.counts;
                } else {
                    self.kept.add(&reading.counts);
                }
            }
        }
        self.settle();
        self.add(Key::of(&content.who), &growth(&content.counts, &known));
    }

    /// Takes what the slots of all CPUs hold, index `cpu * SLOTS + slot`.
    pub fn look(&mut self, live: &[Slot]) {
        self.looks += 1;
        let mut unsent = Counts::default();
        for (index, slot) in live.iter().enumerate() {
            if index % SLOTS as usize == NOBODY as usize {
                unsent.add(&slot.counts);
            } else {
                self.read(index, slot);
            }
        }
        self.unsent = unsent;
        self.settle();
    }

    fn read(&mut self, index: usize, slot: &Slot) {
        let Some(place) = self.places.get_mut(index) else { return };
        if slot.turn < place.turn || (place.reading.is_none() && is_zero(&slot.counts)) {
            return;
        }
        place.turn = slot.turn;
        let key = Key::of(&slot.who);
        let grown = match &mut place.reading {
            Some(reading) if reading.turn == slot.turn && reading.key == key => {
                let grown = growth(&slot.counts, &reading.counts);
                raise(&mut reading.counts, &slot.counts);
                grown
            }
            reading => {
                if let Some(before) = reading.replace(Reading { key, turn: slot.turn, counts: slot.counts }) {
                    self.kept.add(&before.counts);
                    place.before = Some(Box::new(before));
                }
                slot.counts
            }
        };
        self.add(key, &grown);
    }

    fn settle(&mut self) {
        raise(&mut self.nobody, &growth(&self.unsent, &self.kept));
    }

    fn add(&mut self, key: Key, grown: &Counts) {
        if is_zero(grown) {
            return;
        }
        let entry = self.rows.entry(key).or_default();
        entry.add(grown);
        entry.moved = self.looks;
        self.sum.add(grown);
        if self.rows.len() > self.most {
            self.fold();
        }
    }

    /// Makes room: those that are told entirely go first, then those that rest for longest, then the smallest.
    fn fold(&mut self) {
        let mut order: Vec<_> = self
            .rows
            .iter()
            .map(|(key, entry)| (!matches!(entry.told, Told::All), entry.moved, calls(&entry.counts), *key))
            .collect();
        let surplus = self.rows.len() - (self.most - self.most / 8);
        if surplus < order.len() {
            order.select_nth_unstable(surplus);
        }
        for (.., key) in order.iter().take(surplus) {
            if let Some(entry) = self.rows.remove(key) {
                self.folded.add(&entry.counts);
            }
        }
    }

    /// Every process that is remembered, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (&Key, &Counts)> {
        self.rows.iter().map(|(key, entry)| (key, &entry.counts))
    }

    /// What belongs to no process that is remembered.
    pub fn other(&self) -> Counts {
        let mut other = self.folded;
        other.add(&self.nobody);
        other
    }

    /// All rows and `other`.
    pub fn total(&self) -> Counts {
        let mut total = self.sum;
        total.add(&self.nobody);
        total
    }

    /// By how much each process grew since the last report; those that did not are left out.
    pub fn grown(&self) -> impl Iterator<Item = (&Key, Counts)> {
        self.rows.iter().filter_map(|(key, entry)| Some((key, entry.untold()?)))
    }

    /// The same, and from here on it is told.
    pub fn report(&mut self) -> impl Iterator<Item = (&Key, Counts)> {
        self.rows.iter_mut().filter_map(|(key, entry)| {
            let grown = entry.untold()?;
            entry.told = Told::All;
            Some((key, grown))
        })
    }
}
