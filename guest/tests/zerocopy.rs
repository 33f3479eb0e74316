//! TCP without copies: what iotrace counts is what the program got by getsockopt(2) and from its error queue, to the byte.

use std::{fs, time::Duration};

use iotrace_guest::{
    IOTRACE,
    daemon::Daemon,
    findings, in_guest, kernel,
    process::{Background, iotrace, run, top},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);
const FILE: &str = "/tmp/transferred.json";

fn command(options: &str) -> String {
    format!("{IOTRACE} sample tcp --chunk 262144 --align 2097152 --size 5000003 {options} >{FILE} || exit 99")
}

fn transferred() -> Value {
    let text = fs::read_to_string(FILE).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

/// What both sides know: calls, errors, mapped, copied; sends, completed, copied in the end.
fn known(done: &Value) -> [u64; 7] {
    let (received, sent) = (&done["received"], &done["sent"]);
    let errors = number(received, "errors");
    [
        number(received, "calls") + errors,
        errors,
        number(received, "mapped"),
        number(received, "copied"),
        number(sent, "zerocopy"),
        number(sent, "completed"),
        number(sent, "fell_back"),
    ]
}

#[test]
fn bytes_are_those_of_getsockopt() {
    let _alone = in_guest();
    for (options, maps) in [
        ("--sender splice --map --clients 3 --ipv6", true),
        ("--sender zerocopy --map --clients 2", true),
        ("--sender send --map", false),
    ] {
        let (code, report) = top(&["sh", "-c", &command(options)]);
        assert_eq!(code, 0, "{options}");
        let (done, seen) = (transferred(), report.value("zerocopy"));
        println!("{options}: {done} {seen}");
        let keys = ["calls", "errors", "mapped", "copied", "sends", "completed", "fell_back"];
        assert_eq!(keys.map(|key| number(&seen, key)), known(&done), "{options}");
        assert_eq!(number(&seen, "timed"), number(&seen, "calls"), "{options}");
        // Who did it.
        let rows = report.value("processes");
        let sum =
            |key: &str| -> u64 { rows.as_array().expect("rows").iter().map(|row| number(row, key)).sum() };
        let who = ["zerocopy_calls", "zerocopy_mapped", "zerocopy_copied"].map(sum);
        assert_eq!(who, ["calls", "mapped", "copied"].map(|key| number(&seen, key)), "{options}");
        assert_eq!(maps, number(&seen, "mapped") > 0, "{options}");
        for key in ["inserts", "zaps"] {
            assert!(!maps || number(&seen, key) > 0, "{options}: no {key}");
        }
        assert!(
            number(&seen, "insert_nanos") + number(&seen, "zap_nanos") <= number(&seen, "nanos"),
            "{options}"
        );
        let share = number(&seen, "mapped") * 100 / 5_000_003;
        findings::note("condition", &format!("zerocopy {options}: {share} % of a connection mapped"));
    }
}

#[test]
fn the_daemon_exports_it() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(19_481, &["--no-selftest", "--exact"]);
    daemon.attached();
    let script = command("--sender zerocopy --map");
    assert_eq!(run(std::process::Command::new("sh").args(["-c", &script]), LIMIT).code, 0);
    let (done, scrape) = (transferred(), daemon.metrics());
    let value = |name: &str| -> f64 { scrape.with(name, &[]).map(|sample| sample.value).sum() };
    let names = [
        "iotrace_zerocopy_receive_calls_total",
        "iotrace_zerocopy_receive_errors_total",
        "iotrace_zerocopy_receive_mapped_bytes_total",
        "iotrace_zerocopy_receive_copied_bytes_total",
        "iotrace_zerocopy_sends_total",
        "iotrace_zerocopy_sends_completed_total",
        "iotrace_zerocopy_sends_copied_total",
    ];
    assert_eq!(names.map(value), known(&done).map(|number| number as f64));
    let mapped = value("iotrace_process_zerocopy_receive_mapped_bytes_total");
    assert_eq!(mapped, value("iotrace_zerocopy_receive_mapped_bytes_total"));
    assert!(value("iotrace_zerocopy_page_table_seconds_total") > 0.0);
    let waits = scrape.with("iotrace_zerocopy_lock_waits_total", &[]).count();
    assert_eq!(waits, usize::from(kernel::version() >= (5, 19)));
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}

#[test]
fn others_do_not_count() {
    let _alone = in_guest();
    let other =
        format!("while true; do {} ; done", command("--sender zerocopy --map").replace(FILE, "/dev/null"));
    let _other = Background::start(std::process::Command::new("sh").args(["-c", &other]));
    let (code, report) = top(&["sleep", "2"]);
    let seen = report.value("zerocopy");
    assert_eq!(code, 0);
    for key in ["calls", "mapped", "inserts", "zaps", "waits", "sends", "completed"] {
        assert_eq!(number(&seen, key), 0, "{key}: {seen}");
    }
}

#[test]
fn tcp_mmap_is_counted_to_the_byte() {
    let _alone = in_guest();
    let arguments =
        ["bench", "tcp-mmap", "--size", "3000001", "--clients", "2", "--sender", "zerocopy", "-o", "json"];
    let ended = run(&mut iotrace(&arguments), LIMIT);
    let result: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(ended.code, 0, "{result:#}");
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    for row in rows {
        let (counted, clients) = (&row["counted"], number(row, "clients"));
        let bytes = ["mapped", "copied", "read"].map(|key| number(&counted["received"], key));
        assert_eq!(bytes.iter().sum::<u64>(), 3 * clients * 3_000_001, "{row:#}");
        assert_eq!(counted["sees_receive"], true, "{row:#}");
        let maps = row["receiver"] == "mmap";
        assert_eq!(maps, number(&counted["seen"], "mapped") > 0, "{row:#}");
        assert_eq!(number(&counted["seen"], "mapped"), bytes[0], "{row:#}");
        assert_eq!(number(&counted["seen"], "copied"), bytes[1], "{row:#}");
    }
}
