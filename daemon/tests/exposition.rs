//! Every number of a snapshot is found again in what Prometheus scrapes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use iotrace::{
    metrics,
    names::{self, Type},
    own::Own,
    snapshot::{Snapshot, State},
};
use support::{Labels, host, idle, own, series, snapshot};

fn text(snapshot: &Snapshot) -> String {
    String::from_utf8(metrics::encode(snapshot, &own()).unwrap()).unwrap()
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[test]
fn imports_round_trip() {
    let snapshot = snapshot();
    let series = series(&text(&snapshot));
    for row in &snapshot.imports {
        let path = labels([("path", &row.path)]);
        let get = |name: &str| series[&(name.to_owned(), path.clone())];
        let below = |le: &str| {
            let labels = labels([("path", &row.path), ("le", le)]);
            series[&("iotrace_import_segments_bucket".to_owned(), labels)]
        };
        assert_eq!(get("iotrace_import_segments_count"), row.calls() as f64);
        assert_eq!(get("iotrace_import_segments_sum"), row.segments as f64);
        assert_eq!(get("iotrace_import_bytes_total"), row.bytes as f64);
        assert_eq!(get("iotrace_import_errors_total"), row.errors as f64);
        assert_eq!(get("iotrace_import_allocated_total"), row.allocated as f64);
        assert_eq!(below("1") - below("0"), row.single() as f64);
        assert_eq!(below("+Inf"), row.calls() as f64);
        let mut sum = 0;
        for (bound, calls) in iotrace_common::import::SEGMENT_BOUNDS.iter().zip(row.buckets) {
            sum += calls;
            assert_eq!(below(&bound.to_string()), sum as f64, "{} le={bound}", row.path);
        }
    }
}

#[test]
fn iterators_round_trip() {
    let snapshot = snapshot();
    let series = series(&text(&snapshot));
    for row in &snapshot.iters {
        let pair = labels([("function", &row.function), ("kind", &row.kind)]);
        let get = |name: &str| series.get(&(name.to_owned(), pair.clone())).copied();
        assert_eq!(get("iotrace_iter_calls_total"), Some(row.calls as f64));
        let seen = row.calls > 0;
        assert_eq!(get("iotrace_iter_asked_bytes_total"), seen.then_some(row.asked as f64));
        assert_eq!(get("iotrace_iter_bytes_total"), seen.then_some(row.bytes as f64));
        assert_eq!(get("iotrace_iter_short_total"), seen.then_some(row.short as f64));
        assert_eq!(get("iotrace_iter_segments_total"), seen.then_some(row.segments as f64));
        assert_eq!(get("iotrace_iter_call_seconds_count"), seen.then(|| row.timed() as f64));
        assert_eq!(get("iotrace_iter_call_seconds_sum"), seen.then(|| row.nanos as f64 / 1e9));
    }
}

#[test]
fn processes_round_trip() {
    let snapshot = snapshot();
    let series = series(&text(&snapshot));
    for row in &snapshot.processes {
        let pid = row.pid.map_or_else(String::new, |pid| pid.to_string());
        let who = labels([
            ("pid", pid.as_str()),
            ("comm", &row.comm),
            ("unit", &row.unit),
            ("container", &row.container),
        ]);
        let get = |name: &str| series.get(&(name.to_owned(), who.clone())).copied();
        let seen = row.imports > 0 || row.pid.is_none();
        assert_eq!(get("iotrace_process_imports_total"), seen.then_some(row.imports as f64));
        assert_eq!(get("iotrace_process_single_segment_imports_total"), seen.then_some(row.single as f64));
        assert_eq!(get("iotrace_process_segments_total"), seen.then_some(row.segments as f64));
        assert_eq!(get("iotrace_process_import_bytes_total"), seen.then_some(row.bytes as f64));
        for (name, kinds) in [
            ("iotrace_process_iter_calls_total", &row.iter_calls),
            ("iotrace_process_iter_bytes_total", &row.iter_bytes),
        ] {
            let of = |(key, labels): &&(String, Labels)| {
                key == name && who.iter().all(|it| labels.get(it.0) == Some(it.1))
            };
            assert_eq!(series.keys().filter(of).count(), kinds.len(), "{name}");
            for (kind, value) in kinds {
                let mut who = who.clone();
                who.insert("kind".into(), kind.clone());
                assert_eq!(series[&(name.to_owned(), who)], *value as f64);
            }
        }
    }
}

#[test]
fn rows_that_no_label_tells_apart_are_one_series() {
    let mut snapshot = snapshot();
    let mut moved = snapshot.processes[0].clone();
    (moved.cgroup, moved.cgroup_id) = ("/system.slice/nginx.service/workers".into(), 5);
    snapshot.processes.insert(1, moved);
    let sum = |snapshot: &Snapshot| -> f64 {
        let series = series(&text(snapshot));
        series.iter().filter(|((name, _), _)| name == "iotrace_process_imports_total").map(|(_, it)| it).sum()
    };
    assert_eq!(sum(&snapshot), snapshot.processes.iter().map(|row| row.imports as f64).sum::<f64>());
}

#[test]
fn histograms_are_cumulative_and_end_in_their_count() {
    let text = text(&snapshot());
    let series = series(&text);
    let mut histograms = 0;
    for ((name, labels), count) in series.iter().filter(|((name, _), _)| name.ends_with("_count")) {
        let bucket = name.replace("_count", "_bucket");
        // In the order of the text, which is the order Prometheus expects of the bounds.
        let mut last = (f64::NEG_INFINITY, 0.0);
        for line in text.lines().filter(|line| line.starts_with(&format!("{bucket}{{"))) {
            let ((_, mut found), calls) = support::series(line).pop_first().unwrap();
            let bound: f64 = found.remove("le").unwrap().parse().unwrap();
            if found == *labels {
                assert!(bound > last.0 && calls >= last.1, "{line}");
                last = (bound, calls);
            }
        }
        assert_eq!(last, (f64::INFINITY, *count), "{name} {labels:?}");
        histograms += 1;
    }
    assert!(histograms > 18);
}

#[test]
fn sites_lost_and_windows_round_trip() {
    let snapshot = snapshot();
    let series = series(&text(&snapshot));
    let of = |name: &str| series.iter().filter(|((it, _), _)| it == name).collect::<Vec<_>>();
    let sites = of("iotrace_site_attached");
    assert_eq!(sites.len(), 16, "all sites, two of one name apart, the target without a site left out");
    for ((_, labels), value) in &sites {
        assert_eq!(**value, f64::from(u8::from(labels["state"] == State::Attached.name())), "{labels:?}");
    }
    assert!(sites.iter().any(|((_, labels), _)| labels["site"] == "hid+0x9 \"odd\\name\""));
    for row in snapshot.coverage() {
        let get = |name: &str| series[&(name.to_owned(), labels([("target", &row.target)]))];
        assert_eq!(get("iotrace_target_sites"), row.sites as f64);
        assert_eq!(get("iotrace_target_sites_attached"), row.attached as f64);
    }
    for (reason, events) in &snapshot.lost {
        assert_eq!(series[&("iotrace_lost_total".to_owned(), labels([("reason", reason)]))], *events as f64);
    }
    for instrument in names::INSTRUMENTS {
        let key = ("iotrace_window_seconds_total".to_owned(), labels([("instrument", instrument)]));
        assert_eq!(series[&key], 10.0);
    }
    assert_eq!(series[&("iotrace_scrape_duration_seconds".to_owned(), Labels::new())], 0.000_125);
}

#[test]
fn the_budget_round_trips_and_is_absent_where_there_is_none() {
    let mut snapshot = snapshot();
    snapshot.probes[0].state = State::Closed;
    let read = series(&text(&snapshot));
    let closed = |(key, value): &(&(String, Labels), &f64)| {
        key.1.get("state").is_some_and(|it| it == "closed") && **value == 0.0
    };
    assert_eq!(read.iter().filter(closed).count(), 1);
    let get = |name: &str, label, value| read[&(name.to_owned(), labels([(label, value)]))];
    assert_eq!(get("iotrace_iter_passes_total", "function", "copy_to_iter"), 10_014.0);
    assert_eq!(get("iotrace_iter_passes_estimated_total", "function", "copy_to_iter"), 250_014.0);
    assert_eq!(get("iotrace_overhead_seconds_total", "instrument", "time"), 0.125);
    let imports: u64 = snapshot.imports.iter().map(|row| row.calls()).sum();
    let cost = get("iotrace_probe_cost_seconds", "mechanism", "import");
    assert_eq!(get("iotrace_overhead_seconds_total", "instrument", "count"), cost * imports as f64);
    assert_eq!(read[&("iotrace_overhead_budget_processors".to_owned(), Labels::new())], 0.02);
    let none = series(&text(&Snapshot { governed: None, ..snapshot }));
    let ours = ["iotrace_iter_passes", "iotrace_overhead", "iotrace_probe_cost"];
    assert!(none.keys().all(|(name, _)| ours.iter().all(|ours| !name.starts_with(ours))));
}

#[test]
fn what_the_daemon_takes_round_trips() {
    let (own, series) = (own(), series(&text(&snapshot())));
    for (map, bytes) in &own.maps {
        assert_eq!(series[&("iotrace_map_bytes".to_owned(), labels([("map", map)]))], *bytes as f64);
    }
    for (stage, took) in &own.start {
        let key = ("iotrace_start_seconds".to_owned(), labels([("stage", stage)]));
        assert_eq!(series[&key], took.as_secs_f64());
    }
    let get = |name: &str| series[&(name.to_owned(), Labels::new())];
    let release = labels([("release", "6.12.118+deb13-amd64")]);
    assert_eq!(series[&("iotrace_kernel_info".to_owned(), release)], 1.0);
    assert_eq!(get("process_cpu_seconds_total"), 1.25);
    assert_eq!(get("process_resident_memory_bytes"), 12_345_344.0);
    assert_eq!(get("process_virtual_memory_bytes"), 22_335_488.0);
    assert_eq!((get("process_open_fds"), get("process_max_fds")), (291.0, 4_096.0));
    assert_eq!((get("process_threads"), get("process_start_time_seconds")), (3.0, 1_700_000_042.0));
}

#[test]
fn zeros_are_exported_from_the_start() {
    let series = series(&text(&idle()));
    let count = |name: &str| series.keys().filter(|(it, _)| it == name).count();
    assert_eq!(count("iotrace_import_segments_count"), iotrace_common::import::Path::COUNT);
    assert_eq!(count("iotrace_import_errors_total"), iotrace_common::import::Path::COUNT);
    assert_eq!(count("iotrace_iter_calls_total"), 15);
    assert_eq!(count("iotrace_process_imports_total"), 1, "of all others");
    assert_eq!(count("iotrace_lost_total"), iotrace_common::lost::Lost::ALL.len());
    assert_eq!(count("iotrace_iter_call_seconds_count"), 0, "only for pairs that occur");
}

#[test]
fn an_empty_snapshot_is_a_valid_exposition() {
    let text = metrics::encode(&Snapshot::default(), &Own::default()).unwrap();
    assert_eq!(series(&String::from_utf8(text).unwrap()).len(), 4);
}

#[test]
fn the_table_of_names_and_the_collector_agree() {
    let text = text(&snapshot());
    let mut types = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let metric = names::ALL.iter().find(|metric| metric.name == name).unwrap();
        assert_eq!(metric.kind.name(), kind, "{name}");
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name}");
        types.insert(name);
    }
    assert_eq!(types.len(), names::ALL.len(), "every metric of the table is exported");
    for (name, labels) in series(&text).keys() {
        let metric = names::find(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        let mut found: BTreeSet<&str> = labels.keys().map(String::as_str).collect();
        if metric.kind == Type::Histogram {
            found.remove("le");
        }
        assert_eq!(found, metric.labels.iter().copied().collect(), "{name}");
    }
}

#[test]
fn open_metrics_has_the_same_samples() {
    let text = metrics::encode(&snapshot(), &own()).unwrap();
    let open = String::from_utf8(metrics::open_metrics(&text).unwrap()).unwrap();
    let samples = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect()
    };
    assert_eq!(samples(&open), samples(&String::from_utf8(text).unwrap()));
    assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1);
    // A counter's samples are those of its family, and end in _total.
    let counters: Vec<&str> = open.lines().filter_map(|line| line.strip_suffix(" counter")).collect();
    assert_eq!(counters.len(), names::ALL.iter().filter(|metric| metric.kind == Type::Counter).count());
    for counter in counters {
        let name = counter.strip_prefix("# TYPE ").unwrap();
        assert!(open.contains(&format!("\n{name}_total")) && !open.contains(&format!("\n{name} ")), "{name}");
    }
}

#[test]
fn a_host_has_as_many_series_as_is_said() {
    let count = |pairs, processes| {
        let (snapshot, own) = host(pairs, processes);
        series(&String::from_utf8(metrics::encode(&snapshot, &own).unwrap()).unwrap()).len()
    };
    let (idle, busy) = (count(0, 0), count(18, 50));
    assert!(busy <= 1_500, "{busy}");
    let pair = count(1, 0) - idle;
    let processes = count(0, 2) - idle;
    let page = std::fs::read_to_string(support::repository("docs/fleet.md")).unwrap();
    for (what, found) in [
        ("from the start", idle),
        ("for each pair of function and kind that occurs", pair),
        ("for two processes, of which one imports and both walk two kinds", processes),
        ("a busy host: 18 pairs, 50 processes", busy),
    ] {
        assert!(page.contains(&format!("| {what} | {found} |\n")), "docs/fleet.md: {what}: {found}");
    }
}
