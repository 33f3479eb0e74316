//! TCP without copies, as metrics. What this kernel does not let be counted is absent, and no zero.

use super::{Exposition, family, proto, sample};
use crate::{
    names::{self, Metric},
    snapshot::ZerocopyCounted,
};

/// The families.
pub fn families(exposition: &Exposition<'_>) -> Vec<proto::MetricFamily> {
    let row = &exposition.snapshot.zerocopy;
    let counted = ZerocopyCounted::by(&exposition.snapshot.probes);
    let one = |metric: &Metric, counted: bool, value: f64| {
        family(metric, counted.then(|| sample(metric, &[], value)))
    };
    let by_operation = |metric: &Metric, insert: f64, zap: f64| {
        let both = [("insert", counted.inserts, insert), ("zap", counted.zaps, zap)];
        let counted = both.into_iter().filter(|(_, counted, _)| *counted);
        family(metric, counted.map(|(name, _, value)| sample(metric, &[name], value)))
    };
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    vec![
        one(&names::ZEROCOPY_CALLS, counted.receive, row.calls as f64),
        one(&names::ZEROCOPY_ERRORS, counted.receive, row.errors as f64),
        one(&names::ZEROCOPY_MAPPED, counted.receive, row.mapped as f64),
        one(&names::ZEROCOPY_COPIED, counted.receive, row.copied as f64),
        one(&names::ZEROCOPY_SECONDS, counted.receive, seconds(row.nanos)),
        by_operation(&names::PAGE_TABLE_CALLS, row.inserts as f64, row.zaps as f64),
        by_operation(&names::PAGE_TABLE_SECONDS, seconds(row.insert_nanos), seconds(row.zap_nanos)),
        one(&names::LOCK_WAITS, counted.waits, row.waits as f64),
        one(&names::LOCK_WAIT_SECONDS, counted.waits, seconds(row.wait_nanos)),
        one(&names::ZEROCOPY_SENDS, counted.sends, row.sends as f64),
        one(&names::ZEROCOPY_SENDS_COMPLETED, counted.completed, row.completed as f64),
        one(&names::ZEROCOPY_SENDS_COPIED, counted.completed, row.fell_back as f64),
    ]
}
