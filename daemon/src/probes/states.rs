//! The state of every site, shared between the thread that attaches and whoever reads.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    plan::{Mechanism, Plan},
    snapshot::{Probe, State},
};

/// The state of every site, in the order of the plan, shared with whoever reads.
#[derive(Clone, Debug)]
pub struct States(Arc<Mutex<Vec<Probe>>>);

impl States {
    pub(super) fn of(plan: &Plan) -> States {
        let row = |target: &str, site: String, mechanism: &str, state, reason: &str| Probe {
            target: target.into(),
            site,
            mechanism: mechanism.into(),
            state,
            reason: reason.into(),
        };
        let mut rows = Vec::new();
        for target in &plan.targets {
            if target.sites.is_empty() {
                let reason = target.reason.as_deref().unwrap_or("no call to it was found");
                rows.push(row(&target.symbol, String::new(), "none", State::Unavailable, reason));
            }
            rows.extend(target.sites.iter().map(|site| match &site.mechanism {
                Mechanism::Fentry => row(&target.symbol, site.name(), "fentry", State::Pending, ""),
                Mechanism::Trap { .. } => row(&target.symbol, site.name(), "trap", State::Pending, ""),
                Mechanism::Fexit => row(&target.symbol, site.name(), "fexit", State::Pending, ""),
                Mechanism::Unavailable { reason } => {
                    row(&target.symbol, site.name(), "none", State::Unavailable, reason)
                }
            }));
        }
        States(Arc::new(Mutex::new(rows)))
    }

    /// Takes over the rows of a new plan.
    pub(super) fn take(&self, other: &States) {
        let rows = other.rows();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// A copy of all rows.
    pub fn rows(&self) -> Vec<Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, row: usize, state: State, reason: String) {
        if let Some(row) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(row) {
            row.state = state;
            row.reason = reason;
        }
    }
}
