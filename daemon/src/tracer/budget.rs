//! Keeps the probes to their budget: tells the governor what passed, and does what it says.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::Result;

use crate::{
    calibration::{self, Calls, Costs, Load, WALKS},
    governor::{Governor, Open, Order},
    kernel,
    probes::Probes,
    snapshot::{Governed, IMPORT, Passed},
    totals::Totals,
};

/// A budget that is to be kept once all is attached.
pub(super) struct Wanted {
    /// The share of each processor.
    share: f64,
    /// The calls without probes, made meanwhile.
    without: JoinHandle<Result<Calls>>,
}

impl Wanted {
    /// Begins to make the calls without probes. Nothing may be attached before [`Wanted::measured`].
    pub(super) fn new(share: f64) -> Wanted {
        Wanted { share, without: thread::spawn(|| calibration::calls(&AtomicBool::new(false), |_| {})) }
    }

    /// Waits for the calls without probes; `None` where they failed, after a warning.
    pub(super) fn measured(self) -> Option<Measured> {
        let without = self.without.join().unwrap_or_else(|_| Ok(Calls::new()));
        match without {
            Ok(without) => Some(Measured { share: self.share, without }),
            Err(error) => {
                log::warn!(
                    "what the probes cost cannot be measured, so no overhead budget is kept: {error:#}"
                );
                None
            }
        }
    }
}

/// The calls without probes.
pub(super) struct Measured {
    share: f64,
    without: Calls,
}

/// A budget that is kept.
pub(super) struct Budget {
    governor: Governor,
    costs: Costs,
    started: Instant,
    totals: Arc<Totals>,
}

impl Measured {
    /// Makes the calls again, now that all is attached; `None` where that tells no cost, after a warning. What is closed can be
    /// opened again if this thread `reopens`, for which it needs its privileges. Ends early, with `None`, when it is to `stop`.
    pub(super) fn keep(
        self,
        probes: &Probes,
        totals: Arc<Totals>,
        reopens: bool,
        stop: &AtomicBool,
    ) -> Option<Budget> {
        let mut mechanisms: BTreeMap<Load, &'static str> = BTreeMap::new();
        let mut before = probes.passes();
        let with = calibration::calls(stop, |load| {
            let now = probes.passes();
            // The second time it has run: its site is the one that so many calls passed.
            let passed = |number: u16| {
                let place = usize::from(number);
                now[place].wrapping_sub(before[place])
            };
            let sites = probes.open_sites().into_iter();
            let most =
                sites.max_by_key(|site| passed(site.number)).filter(|site| passed(site.number) >= WALKS);
            if let (Some(site), false) = (most, load == Load::Import) {
                mechanisms.insert(load, site.mechanism);
            }
            before = now;
        });
        let costs = match with {
            Ok(with) => Costs::between(&self.without, &with, &mechanisms),
            Err(_) if stop.load(Relaxed) => return None,
            Err(error) => {
                log::warn!(
                    "what the probes cost cannot be measured, so no overhead budget is kept: {error:#}"
                );
                return None;
            }
        };
        if costs.walkers.is_empty() {
            log::warn!("what a walker's probes cost was not to be seen, so no overhead budget is kept");
            return None;
        }
        let budget = self.share * f64::from(kernel::online_cpus());
        log::info!(
            "the probes of a call take {}; {:.1} ms of processor time in a second are for those of walkers",
            told(&costs),
            budget * 1e3
        );
        Some(Budget { governor: Governor::new(budget, reopens), costs, started: Instant::now(), totals })
    }
}

fn told(costs: &Costs) -> String {
    let import = costs.import.map(|cost| (IMPORT, cost));
    let all = costs.walkers.iter().map(|(&mechanism, &cost)| (mechanism, cost)).chain(import);
    let all: Vec<String> = all.map(|(name, cost)| format!("{:.0} ns ({name})", cost * 1e9)).collect();
    all.join(", ")
}

impl Budget {
    /// Forgets what is there no more; before other sites are attached.
    pub(super) fn forget(&mut self, probes: &Probes) {
        self.governor.keep(|number| probes.has(number));
    }

    /// Looks at what passed, and closes and opens sites.
    pub(super) fn tick(&mut self, probes: &mut Probes) {
        self.forget(probes);
        let (passes, now) = (probes.passes(), self.started.elapsed());
        let open: Vec<Open> = probes
            .open_sites()
            .into_iter()
            .filter_map(|site| {
                Some(Open {
                    number: site.number,
                    cost: self.costs.walker(site.mechanism)?,
                    function: site.function,
                    passes: passes[usize::from(site.number)],
                    closable: site.closable,
                })
            })
            .collect();
        for order in self.governor.tick(now, &open) {
            match order {
                Order::Close(number) => probes.close(number),
                Order::Open(number) => {
                    if probes.open(number) {
                        let passes = probes.passes();
                        self.governor.opened(number, self.started.elapsed(), passes[usize::from(number)]);
                    }
                }
                Order::GiveUp => {
                    log::warn!(
                        "walkers are called so often that their probes stay above four times the overhead budget: they are detached; --overhead-budget allows more, --exact any"
                    );
                    open.iter().filter(|site| site.closable).for_each(|site| probes.close(site.number));
                }
            }
        }
        self.totals.governed(self.told());
    }

    fn told(&self) -> Governed {
        let walkers = self.costs.walkers.iter().map(|(&mechanism, &cost)| (mechanism.to_owned(), cost));
        let import = self.costs.import.map(|cost| (IMPORT.to_owned(), cost));
        let functions = self.governor.functions().iter().map(|(function, calls)| {
            (function.clone(), Passed { seen: calls.seen, estimated: calls.estimated })
        });
        Governed {
            budget: self.governor.budget(),
            costs: walkers.chain(import).collect(),
            seconds: self.governor.spent(),
            functions: functions.collect(),
            gave_up: self.governor.gave_up(),
        }
    }
}
