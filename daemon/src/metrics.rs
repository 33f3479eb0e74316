//! From a [`Snapshot`] to the text that Prometheus scrapes. The only file that knows the prometheus crate.

use std::collections::BTreeMap;

use iotrace_common::{
    import::SEGMENT_BOUNDS,
    iter::{NANOS_BUCKETS, nanos_bound},
};
use prometheus::{
    Encoder as _, TextEncoder,
    core::{Collector, Desc},
    proto,
};

mod governed;
mod open;
mod zerocopy;

use crate::{
    names::{self, Metric, Type},
    own::Own,
    snapshot::{Iter, Process, Snapshot, State},
};

/// The media type of what [`encode`] gives.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The media type of what [`open_metrics`] gives.
pub const OPEN_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the exported time histogram in nanoseconds: the powers of four from 64 ns to 16.8 ms. Each
/// is a bound of the kernel side's finer histogram, so that no call is put into a wrong bucket.
pub const SECONDS_BOUNDS: [u64; 10] =
    [1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];

/// All metrics of a snapshot, and of the process that made it, in the text format, version 0.0.4.
///
/// # Errors
/// What the encoder says; a snapshot gives no cause.
pub fn encode(snapshot: &Snapshot, own: &Own) -> Result<Vec<u8>, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&Exposition { snapshot, own }.collect(), &mut text)?;
    Ok(text)
}

/// What [`encode`] gave, as OpenMetrics 1.0.
///
/// # Errors
/// That it is no text; what [`encode`] gives is.
pub fn open_metrics(text: &[u8]) -> Result<Vec<u8>, std::str::Utf8Error> {
    std::str::from_utf8(text).map(|text| open::metrics(text).into_bytes())
}

/// The metrics of one snapshot, as constants.
#[derive(Clone, Copy, Debug)]
pub struct Exposition<'a> {
    /// What is exported.
    pub snapshot: &'a Snapshot,
    /// What that took.
    pub own: &'a Own,
}

impl Collector for Exposition<'_> {
    fn desc(&self) -> Vec<&Desc> {
        // Nothing is registered, so nobody asks: the table in `names` describes the metrics.
        Vec::new()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let zerocopy = zerocopy::families(self);
        let families = [
            self.imports(),
            self.iters(),
            zerocopy,
            self.processes(),
            self.sites(),
            governed::families(self),
            self.itself(),
            self.process(),
        ];
        // The encoder takes a family without a metric for a mistake.
        families.into_iter().flatten().filter(|family| !family.get_metric().is_empty()).collect()
    }
}

impl Exposition<'_> {
    fn imports(&self) -> Vec<proto::MetricFamily> {
        let rows = &self.snapshot.imports;
        let counter = |metric: &Metric, value: fn(&crate::snapshot::Import) -> u64| {
            family(metric, rows.iter().map(|row| sample(metric, &[&row.path], value(row) as f64)))
        };
        let segments = rows.iter().map(|row| {
            let bounds = SEGMENT_BOUNDS.map(f64::from);
            let counts = bounds.into_iter().zip(row.buckets);
            histogram(&names::IMPORT_SEGMENTS, &[&row.path], counts, row.calls(), row.segments as f64)
        });
        vec![
            family(&names::IMPORT_SEGMENTS, segments),
            counter(&names::IMPORT_BYTES, |row| row.bytes),
            counter(&names::IMPORT_ERRORS, |row| row.errors),
            counter(&names::IMPORT_ALLOCATED, |row| row.allocated),
        ]
    }

    fn iters(&self) -> Vec<proto::MetricFamily> {
        // Most pairs never occur: of those there is only the zero of their calls.
        let all = self.snapshot.iters.iter();
        let rows = || all.clone().filter(|row| row.calls > 0);
        let series = |metric: &Metric, row: &Iter, value: u64| {
            sample(metric, &[&row.function, &row.kind], value as f64)
        };
        let counter = |metric: &Metric, value: fn(&Iter) -> u64| {
            family(metric, rows().map(|row| series(metric, row, value(row))))
        };
        let seconds = rows().map(|row| {
            let labels = [row.function.as_str(), row.kind.as_str()];
            let counts = SECONDS_BOUNDS.iter().map(|&bound| bound as f64 / 1e9).zip(coarse(&row.buckets));
            histogram(&names::ITER_CALL_SECONDS, &labels, counts, row.timed(), row.nanos as f64 / 1e9)
        });
        vec![
            family(&names::ITER_CALLS, all.clone().map(|row| series(&names::ITER_CALLS, row, row.calls))),
            counter(&names::ITER_ASKED_BYTES, |row| row.asked),
            counter(&names::ITER_BYTES, |row| row.bytes),
            counter(&names::ITER_SHORT, |row| row.short),
            counter(&names::ITER_SEGMENTS, |row| row.segments),
            family(&names::ITER_CALL_SECONDS, seconds),
        ]
    }

    fn processes(&self) -> Vec<proto::MetricFamily> {
        // Rows that the labels do not tell apart are one series: one given twice would make the scrape invalid.
        let mut rows: BTreeMap<[&str; 4], Process> = BTreeMap::new();
        let pids: Vec<String> = self.snapshot.processes.iter().map(pid).collect();
        for (row, pid) in self.snapshot.processes.iter().zip(&pids) {
            rows.entry([pid, &row.comm, &row.unit, &row.container]).or_default().add(row);
        }
        // A process that made none has no series; of all others together there is a zero.
        let import = |metric: &Metric, value: fn(&Process) -> u64| {
            let rows = rows.iter().filter(|([pid, ..], row)| row.imports > 0 || pid.is_empty());
            family(metric, rows.map(|(labels, row)| sample(metric, labels, value(row) as f64)))
        };
        let zerocopy = |metric: &Metric, value: fn(&Process) -> u64| {
            let rows = rows.iter().filter(|(_, row)| row.zerocopy_calls > 0);
            family(metric, rows.map(|(labels, row)| sample(metric, labels, value(row) as f64)))
        };
        let by_kind = |metric: &Metric, values: fn(&Process) -> &BTreeMap<String, u64>| {
            let samples = rows.iter().flat_map(|([pid, comm, unit, container], row)| {
                let kinds = values(row).iter();
                kinds.map(|(kind, &value)| sample(metric, &[pid, comm, unit, container, kind], value as f64))
            });
            family(metric, samples)
        };
        vec![
            import(&names::PROCESS_IMPORTS, |row| row.imports),
            import(&names::PROCESS_SINGLE, |row| row.single),
            import(&names::PROCESS_SEGMENTS, |row| row.segments),
            import(&names::PROCESS_IMPORT_BYTES, |row| row.bytes),
            by_kind(&names::PROCESS_ITER_CALLS, |row| &row.iter_calls),
            by_kind(&names::PROCESS_ITER_BYTES, |row| &row.iter_bytes),
            zerocopy(&names::PROCESS_ZEROCOPY_CALLS, |row| row.zerocopy_calls),
            zerocopy(&names::PROCESS_ZEROCOPY_MAPPED, |row| row.zerocopy_mapped),
            zerocopy(&names::PROCESS_ZEROCOPY_COPIED, |row| row.zerocopy_copied),
        ]
    }

    fn sites(&self) -> Vec<proto::MetricFamily> {
        let verified = self.snapshot.verified.iter();
        let verified =
            verified.map(|(path, &right)| sample(&names::PATH_VERIFIED, &[path], f64::from(u8::from(right))));
        let lost = self.snapshot.lost.iter();
        let lost = lost.map(|(reason, &events)| sample(&names::LOST, &[reason], events as f64));
        // Two functions of one name may call a target at the same offset.
        let mut seen: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let sites = self.snapshot.probes.iter().filter(|probe| !probe.site.is_empty()).map(|probe| {
            let times = seen.entry((&probe.target, &probe.site)).or_default();
            *times += 1;
            let site = match *times {
                1 => probe.site.clone(),
                times => format!("{} #{times}", probe.site),
            };
            let labels = [&probe.target, site.as_str(), &probe.mechanism, probe.state.name()];
            sample(&names::SITE_ATTACHED, &labels, f64::from(u8::from(probe.state == State::Attached)))
        });
        let sites = family(&names::SITE_ATTACHED, sites);
        let coverage = self.snapshot.coverage();
        let count = |metric: &Metric, value: fn(&crate::snapshot::Coverage) -> usize| {
            family(metric, coverage.iter().map(|row| sample(metric, &[&row.target], value(row) as f64)))
        };
        vec![
            family(&names::PATH_VERIFIED, verified),
            family(&names::LOST, lost),
            sites,
            count(&names::TARGET_SITES, |row| row.sites),
            count(&names::TARGET_SITES_ATTACHED, |row| row.attached),
        ]
    }

    fn itself(&self) -> Vec<proto::MetricFamily> {
        let window = names::INSTRUMENTS
            .iter()
            .map(|instrument| sample(&names::WINDOW_SECONDS, &[instrument], self.snapshot.seconds));
        let read = sample(&names::SCRAPE_DURATION, &[], self.own.read.as_secs_f64());
        let start = self.own.start.iter();
        let start = start.map(|(stage, took)| sample(&names::START_SECONDS, &[stage], took.as_secs_f64()));
        let maps = self.own.maps.iter();
        let maps = maps.map(|(map, &bytes)| sample(&names::MAP_BYTES, &[map], bytes as f64));
        let build = sample(&names::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1.0);
        let release = Some(&self.own.release).filter(|release| !release.is_empty());
        let kernel = release.map(|release| sample(&names::KERNEL_INFO, &[release], 1.0));
        vec![
            family(&names::WINDOW_SECONDS, window),
            family(&names::SCRAPE_DURATION, [read]),
            family(&names::START_SECONDS, start),
            family(&names::MAP_BYTES, maps),
            family(&names::BUILD_INFO, [build]),
            family(&names::KERNEL_INFO, kernel),
        ]
    }

    fn process(&self) -> Vec<proto::MetricFamily> {
        let own = &self.own.process;
        let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs_f64());
        let number = |number: Option<u64>| number.map(|number| number as f64);
        let one = |metric: &Metric, value: Option<f64>| {
            family(metric, value.map(|value| sample(metric, &[], value)))
        };
        vec![
            one(&names::PROCESS_CPU, seconds(own.cpu)),
            one(&names::PROCESS_OPEN_FILES, number(own.open_files)),
            one(&names::PROCESS_MOST_FILES, number(own.most_files)),
            one(&names::PROCESS_VIRTUAL, number(own.mapped)),
            one(&names::PROCESS_RESIDENT, number(own.resident)),
            one(&names::PROCESS_THREADS, number(own.threads)),
            one(&names::PROCESS_START, seconds(own.started)),
        ]
    }
}

/// Empty for all others together.
fn pid(row: &Process) -> String {
    row.pid.map_or_else(String::new, |pid| pid.to_string())
}

/// The kernel side's buckets, put together to those of [`SECONDS_BOUNDS`]; what lies above is left out.
fn coarse(fine: &[u64; NANOS_BUCKETS]) -> [u64; SECONDS_BOUNDS.len()] {
    let mut coarse = [0; SECONDS_BOUNDS.len()];
    for (bucket, calls) in fine.iter().enumerate() {
        let Some(bound) = nanos_bound(bucket) else { continue };
        if let Some(place) = SECONDS_BOUNDS.iter().position(|&coarse| bound <= coarse) {
            coarse[place] += calls;
        }
    }
    coarse
}

fn family(metric: &Metric, samples: impl IntoIterator<Item = proto::Metric>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(metric.name.to_owned());
    family.set_help(metric.help.to_owned());
    family.set_field_type(match metric.kind {
        Type::Counter => proto::MetricType::COUNTER,
        Type::Gauge => proto::MetricType::GAUGE,
        Type::Histogram => proto::MetricType::HISTOGRAM,
    });
    family.set_metric(samples.into_iter().collect());
    family
}

fn sample(metric: &Metric, labels: &[&str], value: f64) -> proto::Metric {
    let mut sample = labelled(metric, labels);
    match metric.kind {
        Type::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            sample.set_counter(counter);
        }
        _ => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            sample.set_gauge(gauge);
        }
    }
    sample
}

/// `counts` are bounds and the calls between each and the one before; `calls` are all, also those above.
fn histogram(
    metric: &Metric,
    labels: &[&str],
    counts: impl Iterator<Item = (f64, u64)>,
    calls: u64,
    sum: f64,
) -> proto::Metric {
    let buckets = counts.scan(0, |below, (bound, calls)| {
        *below += calls;
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(*below);
        Some(bucket)
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(calls);
    histogram.set_sample_sum(sum);
    let mut sample = labelled(metric, labels);
    sample.set_histogram(histogram);
    sample
}

fn labelled(metric: &Metric, values: &[&str]) -> proto::Metric {
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    let pairs = metric.labels.iter().zip(values).map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    proto::Metric::from_label(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_bounds_are_bounds_of_the_kernel_side() {
        for bound in SECONDS_BOUNDS {
            assert!((0..NANOS_BUCKETS).any(|bucket| nanos_bound(bucket) == Some(bound)), "{bound}");
        }
    }

    #[test]
    fn coarse_buckets_hold_what_the_fine_ones_held() {
        let fine: [u64; NANOS_BUCKETS] = std::array::from_fn(|bucket| bucket as u64 + 1);
        for (place, &bound) in SECONDS_BOUNDS.iter().enumerate() {
            let below =
                (0..NANOS_BUCKETS).filter(|&bucket| nanos_bound(bucket).is_some_and(|it| it <= bound));
            let below: u64 = below.map(|bucket| fine[bucket]).sum();
            assert_eq!(coarse(&fine)[..=place].iter().sum::<u64>(), below, "{bound}");
        }
        assert_eq!(coarse(&fine).iter().sum::<u64>() + fine[NANOS_BUCKETS - 1], fine.iter().sum::<u64>());
    }
}
