//! What the probes take for a call on this machine: the same calls without them and with them.
//!
//! The calls are made by processes of this program, and are counted as theirs.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::{Context as _, Result, ensure};
use iotrace_load::{
    Outcome, Report,
    turns::{Place, Sample, Turn},
};

/// Turns of one measurement.
const TURNS: u64 = 500;
/// Measurements of which the shortest counts: what else runs only adds.
const ROUNDS: usize = 6;

/// What is measured: calls that import one vector, or that walk an iterator at a site that depends on the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// `readv(2)` of one empty segment: one import and no walk.
    Import,
    /// `pread64(2)` of a file in memory: one walk.
    File,
    /// `read(2)` of `/dev/zero`: one walk.
    Zero,
}

impl Load {
    const ALL: [Load; 3] = [Load::Import, Load::File, Load::Zero];

    const fn words(self) -> [&'static str; 2] {
        match self {
            Load::Import => [Place::Null.name(), Turn::EmptySegment.name()],
            Load::File => [Place::Tmpfs.name(), Turn::Pread.name()],
            Load::Zero => [Place::Zero.name(), Turn::Read.name()],
        }
    }
}

/// Seconds of a call, by load.
pub type Calls = BTreeMap<Load, f64>;

/// What the probes take for a call, in seconds: of an import, and of a walker by the mechanism of its site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// Of an import; `None` where the difference was not above 0.
    pub import: Option<f64>,
    /// Of a walker, by mechanism; those that no load came by are absent.
    pub walkers: BTreeMap<&'static str, f64>,
}

impl Costs {
    /// Of a walker whose site has this mechanism; the dearest where it was not measured. `None` if none was.
    pub fn walker(&self, mechanism: &str) -> Option<f64> {
        let dearest = self.walkers.values().copied().max_by(f64::total_cmp);
        self.walkers.get(mechanism).copied().or(dearest)
    }

    /// From calls without probes and with them, and the mechanism of the site by which each walking load came.
    pub fn between(without: &Calls, with: &Calls, mechanisms: &BTreeMap<Load, &'static str>) -> Costs {
        let more = |load| Some(with.get(&load)? - without.get(&load)?).filter(|more| *more > 0.0);
        let mut walkers = BTreeMap::new();
        for (&load, &mechanism) in mechanisms {
            if let Some(more) = more(load) {
                let cost = walkers.entry(mechanism).or_insert(more);
                *cost = more.max(*cost);
            }
        }
        Costs { import: more(Load::Import), walkers }
    }
}

/// Makes the calls of every load, and tells of each load that is about to run and of its end; until it is to `stop`.
///
/// # Errors
/// The load that cannot be run; or that it was stopped.
pub fn calls(stop: &AtomicBool, mut around: impl FnMut(Load)) -> Result<Calls> {
    let mut calls = Calls::new();
    for load in Load::ALL {
        around(load);
        for _ in 0..ROUNDS {
            ensure!(!stop.load(Relaxed), "stopped before all calls were made");
            let seconds = once(load)?;
            let least = calls.entry(load).or_insert(seconds);
            *least = least.min(seconds);
        }
        around(load);
    }
    Ok(calls)
}

/// Calls of walkers that a load makes.
pub const WALKS: u32 = TURNS as u32 * ROUNDS as u32;

/// Seconds of one call.
fn once(load: Load) -> Result<f64> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let report = Report::new().context("cannot make a file in memory")?;
    let (turns, number) = (TURNS.to_string(), report.number().to_string());
    let [place, turn] = load.words();
    let words = ["sample", "turns", place, turn, "--count", &turns, "--bytes", "64", "--report", &number];
    let status = Command::new(program).args(words).status().context("cannot run a load")?;
    let outcome: Outcome<Sample> = report.read().with_context(|| format!("a load said nothing: {status}"))?;
    Ok(outcome.done()?.spent.wall as f64 / 1e9 / TURNS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_difference_and_the_dearest_stands_for_what_is_not_known() {
        // Numbers that are exact in binary.
        let without = Calls::from([(Load::Import, 1.0), (Load::File, 2.0), (Load::Zero, 3.0)]);
        let with = Calls::from([(Load::Import, 1.5), (Load::File, 4.0), (Load::Zero, 4.0)]);
        let costs = Costs::between(&without, &with, &[(Load::File, "trap"), (Load::Zero, "jump")].into());
        assert_eq!(costs.import, Some(0.5));
        assert_eq!(["trap", "jump", "fentry"].map(|it| costs.walker(it)), [Some(2.0), Some(1.0), Some(2.0)]);
        // A machine too busy to tell.
        let costs = Costs::between(&with, &without, &[(Load::File, "trap")].into());
        assert_eq!((costs.import, costs.walker("trap")), (None, None));
    }
}
