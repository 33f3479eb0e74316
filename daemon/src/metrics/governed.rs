//! What the probes cost, and what passed while they were away, as metrics.

use super::{Exposition, family, proto, sample};
use crate::{
    names::{self, Metric},
    snapshot::{IMPORT, Import, Passed},
};

/// The families.
pub fn families(exposition: &Exposition<'_>) -> Vec<proto::MetricFamily> {
    let Some(governed) = &exposition.snapshot.governed else { return Vec::new() };
    let passes = |metric: &Metric, value: fn(&Passed) -> f64| {
        let rows = governed.functions.iter();
        family(metric, rows.map(|(function, passed)| sample(metric, &[function], value(passed))))
    };
    let imports: u64 = exposition.snapshot.imports.iter().map(Import::calls).sum();
    let count = governed.costs.get(IMPORT).map(|cost| ("count", cost * imports as f64));
    let overhead = [("time", governed.seconds)].into_iter().chain(count);
    let overhead =
        overhead.map(|(instrument, seconds)| sample(&names::OVERHEAD_SECONDS, &[instrument], seconds));
    let costs =
        governed.costs.iter().map(|(mechanism, &cost)| sample(&names::PROBE_COST, &[mechanism], cost));
    vec![
        passes(&names::ITER_PASSES, |passed| passed.seen),
        passes(&names::ITER_PASSES_ESTIMATED, |passed| passed.estimated),
        family(&names::OVERHEAD_SECONDS, overhead),
        family(&names::OVERHEAD_BUDGET, [sample(&names::OVERHEAD_BUDGET, &[], governed.budget)]),
        family(&names::PROBE_COST, costs),
    ]
}
