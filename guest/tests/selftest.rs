//! `iotrace selftest` finds nothing wrong, and finds out itself what this kernel cannot do.

use std::{collections::BTreeSet, time::Duration};

use iotrace_guest::{
    daemon::Daemon,
    in_guest, kernel,
    process::{eventually, iotrace, run},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);

fn word<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {row}"))
}

#[test]
fn every_number_is_exact() {
    let _alone = in_guest();
    let ended = run(&mut iotrace(&["selftest", "-o", "json"]), LIMIT);
    let rows: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    let not =
        |state: &str| -> Vec<&Value> { rows.iter().filter(|row| word(row, "state") != state).collect() };
    for row in not("ok") {
        println!("{row}");
    }
    assert!(rows.iter().all(|row| word(row, "state") != "wrong"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let done: BTreeSet<(&str, &str)> = rows
        .iter()
        .filter(|row| word(row, "state") == "ok")
        .map(|row| (word(row, "path"), word(row, "abi")))
        .collect();
    for path in
        ["readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "sendmsg", "recvmsg", "process_vm"]
    {
        assert!(done.contains(&(path, "64")) && done.contains(&(path, "32")), "{path}");
    }
    for kind in ["iovec", "kvec", "bvec"] {
        assert!(done.contains(&(kind, "64")), "{kind}");
    }
    let kind = if kernel::version() < (6, 0) { "pipe" } else { "ubuf" };
    assert!(done.contains(&(kind, "64")), "{kind}");
    assert!(rows.iter().any(|row| row["sys_enter"] == "agree"));
}

#[test]
fn a_load_of_its_own() {
    let _alone = in_guest();
    let arguments = ["load", "readv", "--count", "10", "--segments", "1,2", "--bytes", "8", "--json"];
    let ended = run(&mut iotrace(&arguments), LIMIT);
    let tally: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!((ended.code, &tally["imports"][0]["segments"]), (0, &Value::from(30)));
    for (arguments, code) in [
        (&["load", "chew"][..], 2),
        (&["load", "readv", "--segments", "0"], 2),
        (&["load", "pipe", "--bytes", "1000000"], 2),
        (&["load", "readv", "--file", "/no/such/file"], 1),
    ] {
        let ended = run(&mut iotrace(arguments), LIMIT);
        assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{arguments:?}");
        println!("{}", ended.line());
    }
}

#[test]
fn a_daemon_tests_itself_when_it_has_attached() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(19_479, &[]);
    daemon.attached();
    assert!(eventually(LIMIT, || daemon.log().contains("self-test:")), "{}", daemon.log());
    let scrape = daemon.metrics();
    let verified: Vec<(&str, f64)> = scrape
        .with("iotrace_path_verified", &[])
        .map(|sample| (sample.labels["path"].as_str(), sample.value))
        .collect();
    for path in ["readv", "writev", "preadv2", "sendmsg", "recvmmsg", "process_vm", "process_vm_remote"] {
        assert!(verified.contains(&(path, 1.0)), "{path}: {verified:?}; {}", daemon.log());
    }
    assert!(verified.iter().all(|(_, value)| *value == 1.0), "{verified:?}; {}", daemon.log());
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
