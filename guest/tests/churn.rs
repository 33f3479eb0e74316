//! Whatever processes do, and however they end: what was counted and what was lost is what was issued.

use std::{
    env, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use iotrace_guest::{
    LOAD, in_guest,
    process::{iotrace, run},
    report::Report,
};
use serde_json::Value;

const FILE: &str = "/tmp/churn.json";
/// One event in so many may be lost.
const LOST: u64 = 100_000;
/// The most that one work imports on a path, all begun at once.
const AT_ONCE: u64 = 4;

/// A number that the environment gives.
fn given(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Whether this kernel allows no probe where vectors are imported on this path, and the report says so.
fn is_refused(report: &Report, path: &str) -> bool {
    let importer = match path {
        "vmsplice" => "__do_sys_vmsplice+",
        "io_uring" => "io_",
        "aio" => "aio_",
        _ => return false,
    };
    report.missing().iter().any(|[target, site, state, reason]| {
        target.contains("import_iovec")
            && site.starts_with(importer)
            && state == "unavailable"
            && !reason.is_empty()
    })
}

#[test]
fn counted_and_lost_is_issued() {
    let _alone = in_guest();
    let seconds = given("IOTRACE_SECONDS").unwrap_or(20);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = given("IOTRACE_SEED").unwrap_or(now.as_nanos() as u64);
    println!("{seconds} s; IOTRACE_SEED={seed} makes the same choices");
    let (seconds_text, seed_text) = (seconds.to_string(), seed.to_string());
    let load = [LOAD, "churn", "--seconds", &seconds_text, "--seed", &seed_text, "--file", FILE];
    let arguments: Vec<&str> = ["top", "-o", "json", "--"].into_iter().chain(load).collect();
    let ended = run(&mut iotrace(&arguments), Duration::from_secs(seconds + 120));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let report = Report::parse(&ended.stdout);
    let issued: Value =
        serde_json::from_str(&fs::read_to_string(FILE).expect("what was issued")).expect("JSON");
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"));
    let kills = number(&issued, "kills");

    let (counted, lost) = (report.imports(), report.lost());
    let events = |reason: &str| lost.get(reason).copied().unwrap_or(0);
    let uncounted = events("site") + events("process") + events("record");
    let (mut begun_of_all, mut ended_of_all, mut counted_of_all) = (0, 0, 0);
    for row in issued["paths"].as_array().expect("rows") {
        let path = row["path"].as_str().expect("a path");
        let [begun, ended] = ["begun", "ended"].map(|key| number(row, key));
        let calls = counted.get(path).map_or(0, |row| row.calls);
        println!("{path:<18} begun {begun:>7} counted {calls:>7} ended {ended:>7}");
        if calls == 0 && is_refused(&report, path) {
            println!("{path} cannot be seen on this kernel");
            continue;
        }
        assert!(begun - ended <= kills * AT_ONCE, "{path}: {kills} kills do not explain {row}");
        assert!((ended.saturating_sub(uncounted)..=begun).contains(&calls), "{path}: {calls} counted, {row}");
        let segments = counted.get(path).map_or(0, |row| row.segments);
        let [least, most] = ["ended_segments", "begun_segments"].map(|key| number(row, key));
        if uncounted == 0 {
            assert!((least..=most).contains(&segments), "{path}: {segments} segments counted, {row}");
        }
        (begun_of_all, ended_of_all) = (begun_of_all + begun, ended_of_all + ended);
        counted_of_all += calls;
    }
    assert!(counted_of_all + uncounted >= ended_of_all && counted_of_all <= begun_of_all);
    let others: Vec<_> = counted
        .keys()
        .filter(|path| issued["paths"].as_array().into_iter().flatten().all(|row| row["path"] != **path))
        .collect();
    assert_eq!(others, Vec::<&String>::new(), "paths that no worker took");

    let walks = report.walks();
    let (walked, timed) = walks.values().fold((0, 0), |sum, row| (sum.0 + row.calls, sum.1 + row.timed));
    assert!(walked - timed <= events("flight"), "{} calls were not matched, lost: {lost:?}", walked - timed);
    let (all, gone) = (counted_of_all + walked, lost.values().sum::<u64>());
    println!("{kills} kills, {counted_of_all} imports, {walked} walks, lost: {lost:?}");
    assert!(gone * LOST < all || gone == 0, "{gone} of {all} lost: {lost:?}");
    let rows = report.processes();
    assert_eq!(
        rows.iter().map(|row| row.imports).sum::<u64>(),
        counted.values().map(|row| row.calls).sum::<u64>()
    );
    let of_rows: u64 = rows.iter().flat_map(|row| row.iter_calls.values()).sum();
    assert_eq!(of_rows, walked);
}
