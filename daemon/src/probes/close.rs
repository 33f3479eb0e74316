//! Sites of walkers that are closed and opened again, and how often each was passed.

use std::{collections::BTreeSet, mem::offset_of};

use iotrace_common::{
    block::{Block, NUMBERS, UNNUMBERED},
    site::FENTRIES,
};

use super::{Held, Job, Probes};
use crate::{
    plan::{Instrument, Mechanism},
    snapshot::State,
};

/// Why a closed site is so.
pub(super) const CLOSED: &str = "it would cost more than the overhead budget (--overhead-budget, --exact)";

/// A walker's site that is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSite {
    /// Its number among [`Probes::passes`].
    pub number: u16,
    /// The function that it calls.
    pub function: String,
    /// How it is probed: `jump`, `trap` or `fentry`.
    pub mechanism: &'static str,
    /// Whether it can be closed.
    pub closable: bool,
}

/// Numbers of walkers' sites; those from [`UNNUMBERED`] down belong to the functions that are probed by fentry.
#[derive(Debug)]
pub(super) struct Numbers(BTreeSet<u16>);

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers((UNNUMBERED + 1..NUMBERS as u16).collect())
    }
}

impl Numbers {
    /// Gives a walker's site a number, as long as there are some.
    pub(super) fn give(&mut self, job: &mut Job) {
        if job.instrument == Instrument::Time
            && job.number == UNNUMBERED
            && !matches!(job.site.mechanism, Mechanism::Fentry)
        {
            job.number = self.0.pop_first().unwrap_or(UNNUMBERED);
        }
    }

    pub(super) fn take_back(&mut self, job: &Job) {
        if job.number > UNNUMBERED {
            self.0.insert(job.number);
        }
    }
}

const _: () = assert!(UNNUMBERED as usize >= FENTRIES && NUMBERS > FENTRIES);

impl Probes {
    /// Calls that passed each site so far, by its number, modulo 2³².
    pub fn passes(&self) -> [u32; NUMBERS] {
        let mut sums = [0u32; NUMBERS];
        for cpu in 0..self.cpus {
            let offset = offset_of!(Block, passes);
            let Some(passes) = self.blocks.part::<[u32; NUMBERS]>(cpu, offset) else { continue };
            for (sum, passed) in sums.iter_mut().zip(passes) {
                *sum = sum.wrapping_add(passed);
            }
        }
        sums
    }

    /// Every walker's site that is probed and has a number.
    pub fn open_sites(&self) -> Vec<OpenSite> {
        let walkers = self.held.iter().filter(|held| held.job.instrument == Instrument::Time);
        walkers
            .filter_map(|Held { job, .. }| {
                let function = self.functions.get(usize::from(job.function))?.clone();
                let (mechanism, closable) = match job.site.mechanism {
                    Mechanism::Jump { .. } => ("jump", true),
                    Mechanism::Trap { .. } => ("trap", true),
                    Mechanism::Fentry => ("fentry", false),
                    _ => return None,
                };
                Some(OpenSite { number: job.number, function, mechanism, closable })
            })
            .filter(|site| site.number != UNNUMBERED)
            .collect()
    }

    /// Whether an open or a closed site has this number.
    pub fn has(&self, number: u16) -> bool {
        let open = self.held.iter().map(|held| &held.job);
        open.chain(&self.closed).any(|job| job.number == number)
    }

    /// Detaches the probes of an open site; it keeps its number.
    pub fn close(&mut self, number: u16) {
        let Some(place) = self.held.iter().position(|held| held.job.number == number) else { return };
        let Held { job, links } = self.held.swap_remove(place);
        // The one at the call first, so that no call waits for its return.
        links.into_iter().rev().for_each(drop);
        self.forget(&job);
        self.states.set(job.row, State::Closed, CLOSED.into());
        self.closed.push(job);
    }

    /// Attaches the probes of a closed site again; `false` if that failed.
    pub fn open(&mut self, number: u16) -> bool {
        let Some(place) = self.closed.iter().position(|job| job.number == number) else { return false };
        let job = self.closed.swap_remove(place);
        self.attach(job);
        self.held.iter().any(|held| held.job.number == number)
    }
}
