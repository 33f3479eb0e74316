//! Which sites of walkers are open, so that the probes keep to their budget. It is told what passed and says what to do;
//! it knows no probe and no clock.
//!
//! A site is open (probed) or closed (its probes are detached: nothing less is free). While all that is open costs less than
//! the budget, nothing is closed. Else the dearest sites are closed, and opened now and then for a window of one tick. What
//! passed a closed site is estimated from the windows on both sides of the gap.

use std::{collections::BTreeMap, time::Duration};

/// Time between two looks, and the length of a window.
pub const TICK: Duration = Duration::from_millis(250);
/// A site stays closed at least so long, and at most so long.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The part of the budget that is for the windows of closed sites.
const WINDOWS: f64 = 0.25;
/// So many budgets for so long are too much: then all that can be closed stays closed.
const LIMIT: (f64, Duration) = (4.0, Duration::from_secs(5));

/// An open site at a tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Its number: see `Block::passes` of the common crate.
    pub number: u16,
    /// The function that it calls.
    pub function: String,
    /// Seconds of a processor that the probes take for one call.
    pub cost: f64,
    /// Calls so far, modulo 2³².
    pub passes: u32,
    /// Whether it can be closed and opened again.
    pub closable: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Detach the probes of this site.
    Close(u16),
    /// Attach them again, and then tell [`Governor::opened`].
    Open(u16),
    /// Detach all that can be detached, for good.
    GiveUp,
}

/// Calls of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// That passed an open site.
    pub seen: f64,
    /// All, those at closed sites estimated.
    pub estimated: f64,
}

#[derive(Clone, Debug)]
struct Site {
    function: String,
    cost: f64,
    /// When its calls were last read, and what was read.
    read: (Duration, u32),
    /// Calls in a second, of late.
    rate: f64,
    /// Seconds for which it was closed before this window, as long as they are not accounted for.
    gap: f64,
    /// When it is to be opened again.
    closed: Option<Duration>,
}

/// Opens and closes sites.
#[derive(Clone, Debug)]
pub struct Governor {
    budget: f64,
    reopens: bool,
    sites: BTreeMap<u16, Site>,
    functions: BTreeMap<String, Calls>,
    spent: f64,
    over: Option<Duration>,
    gave_up: bool,
}

impl Governor {
    /// With a budget in seconds of a processor for each second. Closed sites stay closed where they cannot be opened again.
    pub fn new(budget: f64, reopens: bool) -> Governor {
        Governor {
            budget,
            reopens,
            sites: BTreeMap::new(),
            functions: BTreeMap::new(),
            spent: 0.0,
            over: None,
            gave_up: false,
        }
    }

    /// The budget in seconds of a processor for each second.
    pub fn budget(&self) -> f64 {
        self.budget
    }

    /// Calls of every function that was called.
    pub fn functions(&self) -> &BTreeMap<String, Calls> {
        &self.functions
    }

    /// Seconds of a processor that the probes of walkers took so far, by the cost of a call.
    pub fn spent(&self) -> f64 {
        self.spent
    }

    /// Whether the hard limit was reached.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// What is to be done at `now`, in this order. `open` are all open sites.
    pub fn tick(&mut self, now: Duration, open: &[Open]) -> Vec<Order> {
        let mut cost = 0.0;
        for site in open {
            cost += self.read(now, site);
        }
        if self.gave_up {
            return Vec::new();
        }
        let (times, long) = LIMIT;
        if cost <= times * self.budget {
            self.over = None;
        } else if now.saturating_sub(*self.over.get_or_insert(now)) >= long {
            self.gave_up = true;
            return vec![Order::GiveUp];
        }
        let mut orders = self.close(now, open);
        orders.extend(self.overdue(now).map(Order::Open));
        orders
    }

    /// A closed site is open again: at `now` so many calls had passed it.
    pub fn opened(&mut self, number: u16, now: Duration, passes: u32) {
        let Some(site) = self.sites.get_mut(&number) else { return };
        // Some passed while its probes were taken away or set; the gap they are in is estimated as a whole.
        let passed = f64::from(passes.wrapping_sub(site.read.1));
        self.spent += passed * site.cost;
        self.functions.entry(site.function.clone()).or_default().seen += passed;
        site.gap = now.saturating_sub(site.read.0).as_secs_f64();
        site.read = (now, passes);
        site.closed = None;
    }

    /// Forgets the other sites: they are no more, such as those of a module that is gone.
    pub fn keep(&mut self, is_there: impl Fn(u16) -> bool) {
        self.sites.retain(|number, _| is_there(*number));
    }

    /// Takes in what passed a site; what that cost for each second.
    fn read(&mut self, now: Duration, open: &Open) -> f64 {
        let site = self.sites.entry(open.number).or_insert_with(|| Site {
            function: open.function.clone(),
            cost: open.cost,
            read: (now, open.passes),
            rate: 0.0,
            gap: 0.0,
            closed: None,
        });
        let seconds = now.saturating_sub(site.read.0).as_secs_f64();
        if seconds <= 0.0 {
            return 0.0;
        }
        let passed = f64::from(open.passes.wrapping_sub(site.read.1));
        let rate = passed / seconds;
        let calls = self.functions.entry(site.function.clone()).or_default();
        calls.seen += passed;
        calls.estimated += passed + site.gap * (site.rate + rate) / 2.0;
        self.spent += passed * site.cost;
        // After a gap the rate of before says nothing of now.
        site.rate = if site.gap > 0.0 { rate } else { (site.rate + rate) / 2.0 };
        site.gap = 0.0;
        site.read = (now, open.passes);
        rate * site.cost
    }

    /// Closes the dearest sites until the others keep to what is for them.
    fn close(&mut self, now: Duration, open: &[Open]) -> Vec<Order> {
        let cost = |site: &Site| site.rate * site.cost;
        let closed = self.sites.values().filter(|site| site.closed.is_some()).count();
        let mut dearest: Vec<(u16, f64)> =
            open.iter().filter_map(|open| Some((open.number, cost(self.sites.get(&open.number)?)))).collect();
        dearest.sort_by(|one, other| other.1.total_cmp(&one.1));
        let mut sum: f64 = dearest.iter().map(|(_, cost)| cost).sum();
        if sum <= self.budget && closed == 0 {
            return Vec::new();
        }
        let most = self.budget * (1.0 - WINDOWS);
        let closable = |number: u16| open.iter().any(|open| open.number == number && open.closable);
        let mut closing = Vec::new();
        for (number, cost) in dearest {
            if sum <= most {
                break;
            }
            if closable(number) {
                sum -= cost;
                closing.push((number, cost));
            }
        }
        let together = (closed + closing.len()) as f64;
        for &(number, cost) in &closing {
            // One window of each in this time costs what is for all windows.
            let pause = TICK.as_secs_f64() * cost * together / (self.budget * WINDOWS);
            let pause = Duration::try_from_secs_f64(pause).unwrap_or(PAUSE[1]).clamp(PAUSE[0], PAUSE[1]);
            let pause = if self.reopens { pause } else { Duration::MAX };
            if let Some(site) = self.sites.get_mut(&number) {
                site.closed = Some(now.saturating_add(pause));
            }
        }
        closing.into_iter().map(|(number, _)| Order::Close(number)).collect()
    }

    /// The closed site whose turn to be opened is; one at a time.
    fn overdue(&self, now: Duration) -> Option<u16> {
        let due = self.sites.iter().filter_map(|(&number, site)| Some((site.closed?, number)));
        due.filter(|(until, _)| *until <= now).min().map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests;
