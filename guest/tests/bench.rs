//! `iotrace bench`: what the probes see of an experiment is what its loads did.

use std::{collections::BTreeSet, os::unix::process::CommandExt as _, process::Command, time::Duration};

use iotrace_guest::{
    IOTRACE, in_guest, kernel,
    process::{iotrace, run},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);

fn result(arguments: &[&str]) -> (i32, Value) {
    let ended = run(&mut iotrace(arguments), LIMIT);
    let value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended.code, value)
}

/// The row's calls as the load and as the probes have them.
fn both(row: &Value) -> Vec<(&Value, &Value)> {
    let paths = row["counted"]["paths"].as_array().unwrap_or_else(|| panic!("not counted: {row}"));
    paths.iter().map(|path| (&path["done"], &path["seen"])).collect()
}

#[test]
fn single_segment_is_counted_to_the_call() {
    let _alone = in_guest();
    let (code, result) = result(&["bench", "single-segment", "--count", "211", "-o", "json"]);
    assert_eq!((code, &result["interrupted"]), (0, &Value::from(false)), "{result:#}");
    let mut exact = BTreeSet::new();
    for row in result["rows"].as_array().expect("rows") {
        let name = format!("{} {}", row["place"], row["calls"]);
        if !row["impossible"].is_null() {
            println!("{name}: {}", row["impossible"]);
            continue;
        }
        for cost in ["plain", "probed"] {
            assert_eq!(row[cost]["nanos"]["samples"], 3, "{name}: {}", row[cost]);
            assert!(row[cost]["nanos"]["min"].as_f64() > Some(0.0), "{name}");
        }
        let both = both(row);
        let vectored = !row["against"].is_null() || name.contains("0 segments");
        assert_eq!(both.len(), usize::from(vectored), "{name}");
        for (done, seen) in both {
            assert_eq!(done[0], 3 * 211, "{name}");
            if seen[0] == 0 && name.contains("io_uring") && kernel::version() < (6, 0) {
                println!("{name} is not seen: {}", row["counted"]["paths"][0]["unseen"]);
                continue;
            }
            assert_eq!(done, seen, "{name}");
            exact.insert(name.clone());
        }
    }
    println!("exact: {exact:?}");
    assert!(exact.len() >= 11, "{exact:?}");
}

#[test]
fn without_probes_nobody_needs_to_be_root() {
    let _alone = in_guest();
    let arguments =
        ["bench", "single-segment", "--no-probes", "--count", "50", "--only", "unix", "-o", "json"];
    let ended = run(iotrace(&arguments).uid(65_534).gid(65_534), LIMIT);
    let result: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(ended.code, 0);
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row["plain"]["nanos"]["samples"] == 3 && row["counted"].is_null()));
}

#[test]
fn an_interrupted_run_prints_what_is_done() {
    let _alone = in_guest();
    let script = format!(
        "setsid {IOTRACE} bench single-segment --no-probes --count 2000000 --only zero & sleep 4; kill -INT -$!; wait $!"
    );
    let ended = run(Command::new("sh").args(["-c", &script]), LIMIT);
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.stdout.contains("\nstopped by a signal: "), "{ended:?}");
    assert!(ended.stdout.contains("\nzero "), "{ended:?}");
}
