//! The state of every site, shared between the thread that attaches and whoever reads.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    plan::{Mechanism, Plan, Site},
    snapshot::{Kprobe, Probe, State},
};

/// The state of every site, in the order of the plan, and of what is probed beside it, shared with whoever reads.
#[derive(Clone, Debug)]
pub struct States {
    sites: Arc<Mutex<Vec<Probe>>>,
    others: Arc<Mutex<Vec<Probe>>>,
}

impl States {
    pub(super) fn of(plan: &Plan) -> States {
        let row = |target: &str, site: String, mechanism: &str, state, reason: &str| Probe {
            target: target.into(),
            site,
            mechanism: mechanism.into(),
            state,
            reason: reason.into(),
            kprobes: Vec::new(),
        };
        let mut rows = Vec::new();
        for target in &plan.targets {
            if target.sites.is_empty() {
                let reason = target.reason.as_deref().unwrap_or("no call to it was found");
                rows.push(row(&target.symbol, String::new(), "none", State::Unavailable, reason));
            }
            rows.extend(target.sites.iter().map(|site| Probe {
                kprobes: kprobes(site),
                ..match &site.mechanism {
                    Mechanism::Fentry => row(&target.symbol, site.name(), "fentry", State::Pending, ""),
                    Mechanism::Jump { .. } => row(&target.symbol, site.name(), "jump", State::Pending, ""),
                    Mechanism::Trap { .. } => row(&target.symbol, site.name(), "trap", State::Pending, ""),
                    Mechanism::Fexit => row(&target.symbol, site.name(), "fexit", State::Pending, ""),
                    Mechanism::Unavailable { reason } => {
                        row(&target.symbol, site.name(), "none", State::Unavailable, reason)
                    }
                }
            }));
        }
        States { sites: Arc::new(Mutex::new(rows)), others: Arc::default() }
    }

    /// Takes over the rows of a new plan.
    pub(super) fn take(&self, other: &States) {
        let rows = other.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.sites.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// A copy of all rows.
    pub fn rows(&self) -> Vec<Probe> {
        let mut rows = self.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rows.extend(self.others.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        rows
    }

    /// What is probed beside the sites.
    pub(super) fn set_others(&self, rows: Vec<Probe>) {
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// The state of one of these.
    pub(super) fn set_other(&self, target: &str, state: State, reason: String) {
        let mut rows = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = rows.iter_mut().find(|row| row.target == target) {
            (row.state, row.reason) = (state, reason);
        }
    }

    /// Notes that a site is probed by a trap after all.
    pub(super) fn trap(&self, row: usize, site: &Site) {
        if let Some(row) = self.sites.lock().unwrap_or_else(PoisonError::into_inner).get_mut(row) {
            row.mechanism = "trap".into();
            row.kprobes = kprobes(site);
        }
    }

    pub(super) fn set(&self, row: usize, state: State, reason: String) {
        if let Some(row) = self.sites.lock().unwrap_or_else(PoisonError::into_inner).get_mut(row) {
            row.state = state;
            row.reason = reason;
        }
    }
}

/// The kprobes of a site, in the order of the text.
fn kprobes(site: &Site) -> Vec<Kprobe> {
    let at = |address: u64| {
        let offset = site.offset.wrapping_add(address.wrapping_sub(site.address));
        Kprobe { at: site.place(offset), optimized: None }
    };
    match site.mechanism {
        Mechanism::Jump { before, after, .. } => before.into_iter().chain([after]).map(at).collect(),
        Mechanism::Trap { after } => vec![at(site.address), at(after)],
        _ => Vec::new(),
    }
}
