//! The table of all metrics: the collector, docs/metrics.md and the check of the dashboards are made from it.

use std::fmt::Write as _;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// It only grows, until a restart.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Buckets, sum and count, each a counter.
    Histogram,
}

impl Type {
    /// The name in the exposition format.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        }
    }
}

/// A family of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Type,
    /// Its labels, `le` of a histogram not among them.
    pub labels: &'static [&'static str],
    /// What its value counts; the sum of a histogram, and its `le`, too.
    pub unit: &'static str,
    /// What it is, with the kernel function and what its time includes.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal)*] $unit:literal $help:literal)*) => {
        $(#[doc = $help] pub const $constant: Metric = Metric {
            name: $name, kind: Type::$kind, labels: &[$($label),*], unit: $unit, help: $help,
        };)*

        /// Every metric, in the order of the exposition.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    IMPORT_SEGMENTS: Histogram "iotrace_import_segments" ["path"] "segments"
        "Segments asked for by each call of import_iovec or __import_iovec, successful or not."
    IMPORT_BYTES: Counter "iotrace_import_bytes_total" ["path"] "bytes"
        "Bytes described by the iovec arrays that import_iovec or __import_iovec accepted, before any were moved."
    IMPORT_ERRORS: Counter "iotrace_import_errors_total" ["path"] "calls"
        "Calls of import_iovec or __import_iovec that returned an error."
    IMPORT_ALLOCATED: Counter "iotrace_import_allocated_total" ["path"] "calls"
        "Calls of import_iovec or __import_iovec with more segments than the caller's own array holds (nr_segs > fast_segs), for which the kernel allocates one."
    ITER_CALLS: Counter "iotrace_iter_calls_total" ["function" "kind"] "calls"
        "Calls of the function that walks an iov_iter, by the kind of the iterator, from the sites that are attached."
    ITER_ASKED_BYTES: Counter "iotrace_iter_asked_bytes_total" ["function" "kind"] "bytes"
        "Bytes that the calls of the function were asked to do."
    ITER_BYTES: Counter "iotrace_iter_bytes_total" ["function" "kind"] "bytes"
        "Bytes that the calls of the function did, as far as it returns them."
    ITER_SHORT: Counter "iotrace_iter_short_total" ["function" "kind"] "calls"
        "Calls of the function that did fewer bytes than asked, at a fault or at the end of the iterator."
    ITER_SEGMENTS: Counter "iotrace_iter_segments_total" ["function" "kind"] "segments"
        "Segments that the calls of the function walked, whole or in part: those of iovec, kvec and bvec, and one for each call with ubuf; other kinds have none."
    ITER_CALL_SECONDS: Histogram "iotrace_iter_call_seconds" ["function" "kind"] "seconds"
        "Time from the call of the function to its return: walking and copying, page faults, interrupts and preemption within it, and the part of the probes that lies between."
    ZEROCOPY_CALLS: Counter "iotrace_zerocopy_receive_calls_total" [] "calls"
        "Calls of tcp_zerocopy_receive (getsockopt of TCP_ZEROCOPY_RECEIVE) that returned, successful or not."
    ZEROCOPY_ERRORS: Counter "iotrace_zerocopy_receive_errors_total" [] "calls"
        "Calls of tcp_zerocopy_receive that returned an error."
    ZEROCOPY_MAPPED: Counter "iotrace_zerocopy_receive_mapped_bytes_total" [] "bytes"
        "Bytes that tcp_zerocopy_receive mapped into its caller's memory: what it returned in length."
    ZEROCOPY_COPIED: Counter "iotrace_zerocopy_receive_copied_bytes_total" [] "bytes"
        "Bytes that tcp_zerocopy_receive copied into its caller's buffer: what it returned in copybuf_len."
    ZEROCOPY_SECONDS: Counter "iotrace_zerocopy_receive_seconds_total" [] "seconds"
        "Time in tcp_zerocopy_receive: mapping, copying, waiting for the page table's locks, interrupts and preemption within it, and the part of the probes that lies between."
    PAGE_TABLE_CALLS: Counter "iotrace_zerocopy_page_table_calls_total" ["operation"] "calls"
        "Calls within tcp_zerocopy_receive that put pages into the page table (insert: vm_insert_pages) or take earlier ones out of it (zap: zap_vma_range, zap_page_range_single or zap_page_range, whichever this kernel uses)."
    PAGE_TABLE_SECONDS: Counter "iotrace_zerocopy_page_table_seconds_total" ["operation"] "seconds"
        "Time in the calls of iotrace_zerocopy_page_table_calls_total, waiting for the page table's locks included, and for the other processors to drop their translations."
    LOCK_WAITS: Counter "iotrace_zerocopy_lock_waits_total" [] "waits"
        "Waits for a spinlock within the calls of iotrace_zerocopy_page_table_calls_total, by lock:contention_begin (from 5.19 on). The kernel does not tell of the first waiter of a lock, and in guests without paravirtual spinlocks of none."
    LOCK_WAIT_SECONDS: Counter "iotrace_zerocopy_lock_wait_seconds_total" [] "seconds"
        "Time of the waits of iotrace_zerocopy_lock_waits_total."
    ZEROCOPY_SENDS: Counter "iotrace_zerocopy_sends_total" [] "calls"
        "Calls with MSG_ZEROCOPY that the kernel began to send from the caller's pages (msg_zerocopy_realloc)."
    ZEROCOPY_SENDS_COMPLETED: Counter "iotrace_zerocopy_sends_completed_total" [] "calls"
        "Calls of iotrace_zerocopy_sends_total that are complete; one whose last two parts end on two processors at the same instant may be missing."
    ZEROCOPY_SENDS_COPIED: Counter "iotrace_zerocopy_sends_copied_total" [] "calls"
        "Calls of iotrace_zerocopy_sends_completed_total that the kernel copied in the end (SO_EE_CODE_ZEROCOPY_COPIED)."
    PROCESS_IMPORTS: Counter "iotrace_process_imports_total" ["pid" "comm" "unit" "container"] "calls"
        "Calls of import_iovec or __import_iovec by one of the heaviest processes since it is exported; those of all others, and those before, in the row without a pid. Absent for a process that made none."
    PROCESS_SINGLE: Counter "iotrace_process_single_segment_imports_total" ["pid" "comm" "unit" "container"] "calls"
        "Calls of iotrace_process_imports_total that asked for exactly one segment."
    PROCESS_SEGMENTS: Counter "iotrace_process_segments_total" ["pid" "comm" "unit" "container"] "segments"
        "Segments asked for by the calls of iotrace_process_imports_total."
    PROCESS_IMPORT_BYTES: Counter "iotrace_process_import_bytes_total" ["pid" "comm" "unit" "container"] "bytes"
        "Bytes described by the iovec arrays that import_iovec or __import_iovec accepted from the process, before any were moved."
    PROCESS_ITER_CALLS: Counter "iotrace_process_iter_calls_total" ["pid" "comm" "unit" "container" "kind"] "calls"
        "Calls of all functions that walk an iov_iter on behalf of the process, by the kind of the iterator, from the sites that are attached."
    PROCESS_ITER_BYTES: Counter "iotrace_process_iter_bytes_total" ["pid" "comm" "unit" "container" "kind"] "bytes"
        "Bytes that the calls of iotrace_process_iter_calls_total did, as far as the functions return them."
    PROCESS_ZEROCOPY_CALLS: Counter "iotrace_process_zerocopy_receive_calls_total" ["pid" "comm" "unit" "container"] "calls"
        "Calls of tcp_zerocopy_receive by the process; absent for one that made none."
    PROCESS_ZEROCOPY_MAPPED: Counter "iotrace_process_zerocopy_receive_mapped_bytes_total" ["pid" "comm" "unit" "container"] "bytes"
        "Bytes that the calls of iotrace_process_zerocopy_receive_calls_total mapped."
    PROCESS_ZEROCOPY_COPIED: Counter "iotrace_process_zerocopy_receive_copied_bytes_total" ["pid" "comm" "unit" "container"] "bytes"
        "Bytes that the calls of iotrace_process_zerocopy_receive_calls_total copied."
    PATH_VERIFIED: Gauge "iotrace_path_verified" ["path"] "0 or 1"
        "Whether the self-test at the start found that imports on this path count right, to the last call, segment and byte; absent for paths that it could not take here, and with --no-selftest."
    LOST: Counter "iotrace_lost_total" ["reason"] "events"
        "Events at the probes that are missing from other metrics, whole or in part, by reason."
    SITE_ATTACHED: Gauge "iotrace_site_attached" ["target" "site" "mechanism" "state"] "0 or 1"
        "Whether calls of the target from this site are counted: 1 in state attached, 0 in state pending, failed, unavailable, or closed to keep to the overhead budget."
    TARGET_SITES: Gauge "iotrace_target_sites" ["target"] "sites"
        "Places outside lib/iov_iter.c from which this kernel's text reaches the target."
    TARGET_SITES_ATTACHED: Gauge "iotrace_target_sites_attached" ["target"] "sites"
        "Places of iotrace_target_sites whose calls are counted."
    WINDOW_SECONDS: Counter "iotrace_window_seconds_total" ["instrument"] "seconds"
        "Time for which the instrument was on: count for iotrace_import_*, time for iotrace_iter_*."
    ITER_PASSES: Counter "iotrace_iter_passes_total" ["function"] "calls"
        "Calls of the function that passed one of its places while that was probed, by whatever process. Absent with --exact."
    ITER_PASSES_ESTIMATED: Counter "iotrace_iter_passes_estimated_total" ["function"] "calls"
        "The calls of iotrace_iter_passes_total and those that passed while the place was closed to keep to the overhead budget: an estimate from the windows before and after, and therefore up to a minute late. Rates of iotrace_iter_*, times the rate of this one, divided by that of iotrace_iter_passes_total, are rates of all calls."
    OVERHEAD_SECONDS: Counter "iotrace_overhead_seconds_total" ["instrument"] "seconds"
        "Processor time that the probes took in other processes: their calls times iotrace_probe_cost_seconds, so an estimate. Absent with --exact, and where the cost was not to be measured."
    OVERHEAD_BUDGET: Gauge "iotrace_overhead_budget_processors" [] "processors"
        "What the probes of walkers may take of all processors together (--overhead-budget). Absent with --exact, and where the cost was not to be measured."
    PROBE_COST: Gauge "iotrace_probe_cost_seconds" ["mechanism"] "seconds"
        "Processor time that the probes of one call take, as measured at the start by the same calls without and with them: of a walker by the mechanism of its place, and of an import."
    SCRAPE_DURATION: Gauge "iotrace_scrape_duration_seconds" [] "seconds"
        "Time it took to read all totals from the kernel's maps for this scrape, encoding and sending left out."
    START_SECONDS: Gauge "iotrace_start_seconds" ["stage"] "seconds"
        "Time that a part of the start took: read the kernel's symbols, types and text, plan from them, load programs and maps into the kernel, attach the hot sites, attach the rest. A part that is not done yet is absent."
    MAP_BYTES: Gauge "iotrace_map_bytes" ["map"] "bytes"
        "Memory of a map of the kernel side, as the kernel counts it (memlock in /proc/self/fdinfo)."
    BUILD_INFO: Gauge "iotrace_build_info" ["version"] "1"
        "Always 1; the labels describe the running binary."
    KERNEL_INFO: Gauge "iotrace_kernel_info" ["release"] "1"
        "Always 1; the label is the release of the running kernel, as uname -r has it."
    PROCESS_CPU: Counter "process_cpu_seconds_total" [] "seconds"
        "Processor time of the daemon, in user space and in the kernel; what the probes take in other processes is not in it."
    PROCESS_OPEN_FILES: Gauge "process_open_fds" [] "files"
        "Files that the daemon has open: each probe is one."
    PROCESS_MOST_FILES: Gauge "process_max_fds" [] "files"
        "Files that the daemon may have open."
    PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" [] "bytes"
        "Address space of the daemon."
    PROCESS_RESIDENT: Gauge "process_resident_memory_bytes" [] "bytes"
        "Memory of the daemon, with its program and with those maps of the kernel side that it reads."
    PROCESS_THREADS: Gauge "process_threads" [] "threads"
        "Threads of the daemon."
    PROCESS_START: Gauge "process_start_time_seconds" [] "seconds"
        "When the daemon was started, in seconds since 1970."
}

/// The instruments, as in the label `instrument`.
pub const INSTRUMENTS: [&str; 2] = ["count", "time"];

/// The metric that a name in a query belongs to: its own, or a series of a histogram.
pub fn find(series: &str) -> Option<&'static Metric> {
    let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
    ALL.iter().find(|metric| match metric.kind {
        Type::Histogram => histogram == Some(metric.name),
        _ => series == metric.name,
    })
}

/// The table in docs/metrics.md.
pub fn markdown() -> String {
    let mut text = String::from("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for metric in ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            metric.kind.name(),
            labels.join(", "),
            metric.unit,
            metric.help.replace('|', "\\|")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = std::collections::BTreeSet::new();
        for metric in ALL {
            let name = metric.name;
            assert!(seen.insert(name), "{name} twice");
            // `process_` is what all exporters call these numbers of themselves.
            assert!(name.starts_with("iotrace_") || name.starts_with("process_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(metric.kind == Type::Counter, name.ends_with("_total"), "{name}");
            for (unit, suffix) in [("seconds", "_seconds"), ("bytes", "_bytes")] {
                let base = name.strip_suffix("_total").unwrap_or(name);
                assert_eq!(metric.unit == unit, base.ends_with(suffix), "{name}");
            }
            assert!(!metric.labels.contains(&"le") && !metric.labels.contains(&"type"), "{name}");
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        }
    }

    #[test]
    fn a_histogram_is_found_by_its_series_only() {
        assert_eq!(find("iotrace_import_segments_bucket"), Some(&IMPORT_SEGMENTS));
        assert_eq!(find("iotrace_iter_call_seconds_sum"), Some(&ITER_CALL_SECONDS));
        assert_eq!(find("iotrace_lost_total"), Some(&LOST));
        for unknown in ["iotrace_import_segments", "iotrace_lost_total_count", "iotrace_lost", "up", ""] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }
}
