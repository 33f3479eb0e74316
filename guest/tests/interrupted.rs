//! What happens in the middle of a timed call leaves nothing of the call behind, and its time is right: a page fault,
//! a signal, a migration, the end of the process.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    process::Command,
    time::{Duration, Instant},
};

use iotrace_guest::{
    LOAD,
    daemon::Daemon,
    exposition::Exposition,
    in_guest, kernel,
    process::{run, wait},
    report::{Imports, Walks, between},
};

/// How long each call stands still at least.
const PAUSE: f64 = 0.3;
/// What each call asks for, and what of it is done where the rest does not come.
const ASKED: u64 = 4096;
const HALF: u64 = 2048;
/// The load under a name that only this test gives, so that the daemon counts nothing else.
const PAUSED: &str = "/tmp/paused";

/// What a work did, by function and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Row {
    walks: Walks,
    short: u64,
    seconds: f64,
}

type Rows = BTreeMap<(String, String), Row>;

fn rows(scrape: &Exposition) -> Rows {
    let rows = scrape.walks().into_iter().map(|((function, kind), walks)| {
        let labels = [("function", function.as_str()), ("kind", kind.as_str())];
        let seconds = scrape.with("iotrace_iter_call_seconds_sum", &labels).map(|sample| sample.value).sum();
        let short = scrape.sum("iotrace_iter_short_total", &labels);
        ((function, kind), Row { walks, short, seconds })
    });
    rows.collect()
}

fn since(before: &Rows, after: &Rows) -> Rows {
    let rows = after.iter().map(|(key, row)| {
        let before = before.get(key).copied().unwrap_or_default();
        let walks = Walks {
            calls: row.walks.calls - before.walks.calls,
            bytes: row.walks.bytes - before.walks.bytes,
            timed: row.walks.timed - before.walks.timed,
        };
        let row = Row { walks, short: row.short - before.short, seconds: row.seconds - before.seconds };
        (key.clone(), row)
    });
    rows.filter(|(_, row)| row.walks.calls > 0).collect()
}

/// Runs a work under the name that counts, and tells what the daemon says that it did.
fn done(daemon: &Daemon, arguments: &[&str]) -> (BTreeMap<String, Imports>, Rows, Duration) {
    let before = daemon.metrics();
    let started = Instant::now();
    // Under its own name, so that nothing of it counts.
    let mut beside =
        Command::new(LOAD).args(["kinds", "--count", "200"]).spawn().expect("the guest has the load");
    let ended = run(Command::new(PAUSED).args(arguments), Duration::from_secs(60));
    let took = started.elapsed();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
    assert!(wait(&mut beside, Duration::from_secs(60)).is_some_and(|status| status.success()));
    let after = daemon.metrics();
    assert_eq!(after.sum("iotrace_lost_total", &[]), 0, "{arguments:?}");
    (between(&before.imports(), &after.imports()), since(&rows(&before), &rows(&after)), took)
}

/// The kind of the iterator of a call without a vector.
fn plain() -> &'static str {
    if kernel::version() < (6, 0) { "iovec" } else { "ubuf" }
}

/// One preadv, one pread64 and one write into a pipe, each of which stands still once.
fn stands_still(daemon: &Daemon, work: &str, done_of_each: u64) {
    let (imports, rows, took) = done(daemon, &[work, "--count", "1"]);
    println!("{work}: {rows:?} in {took:?}");
    let preadv = Imports { calls: 1, single: 0, segments: 2, allocated: Some(0), bytes: ASKED, errors: 0 };
    assert_eq!(imports, BTreeMap::from([("preadv".into(), preadv)]), "{work}");
    let mut expected: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for call in
        [("copy_page_to_iter", "iovec"), ("copy_page_to_iter", plain()), ("copy_page_from_iter", plain())]
    {
        *expected.entry(call).or_default() += 1;
    }
    for ((function, kind), calls) in expected {
        let row = rows.get(&(function.into(), kind.into())).copied().unwrap_or_default();
        let walks = Walks { calls, bytes: calls * done_of_each, timed: calls };
        assert_eq!(row.walks, walks, "{work}: {function} {kind}");
        assert_eq!(row.short, if done_of_each < ASKED { calls } else { 0 }, "{work}: {function} {kind}");
        let least = PAUSE * calls as f64;
        assert!(
            (least..took.as_secs_f64()).contains(&row.seconds),
            "{work}: {function} {kind}: {row:?}, {took:?}"
        );
    }
    for (call, row) in &rows {
        assert_eq!(row.walks.calls, row.walks.timed, "{work}: {call:?} left something behind");
    }
}

/// Whatever happened before.
fn an_ordinary_load_is_exact(daemon: &Daemon) {
    let (imports, rows, _) = done(daemon, &["kinds", "--count", "300"]);
    let preadv =
        Imports { calls: 300, single: 0, segments: 600, allocated: Some(0), bytes: 300 * 512, errors: 0 };
    assert_eq!(imports, BTreeMap::from([("preadv".into(), preadv)]));
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    ["iovec", plain()].into_iter().for_each(|kind| *expected.entry(kind).or_default() += 300);
    for (kind, calls) in expected {
        let row = rows[&("copy_page_to_iter".into(), kind.into())];
        assert_eq!(row.walks, Walks { calls, bytes: calls * 512, timed: calls }, "{kind}");
        assert_eq!(row.short, 0);
        assert!(row.seconds < PAUSE * calls as f64, "{row:?}");
    }
}

#[test]
fn nothing_is_left_of_a_call_whatever_happens_in_it() {
    let _alone = in_guest();
    let _left_by_another_run = fs::remove_file(PAUSED);
    symlink(LOAD, PAUSED).expect("the guest's /tmp can be written");
    let mut daemon = Daemon::start_with(19_480, &["--no-selftest", "--exact", "--comm", "paused"]);
    println!("attached after {:?}", daemon.attached());
    for (work, done_of_each) in [
        // A page fault that takes its time.
        ("paused-resolve", ASKED),
        // The same, and a signal is waiting meanwhile.
        ("paused-signal", ASKED),
        // Another processor's records get what this one's call began.
        ("paused-migrate", ASKED),
        // No page, and nobody to return to.
        ("paused-kill", HALF),
        ("paused-exit", HALF),
    ] {
        stands_still(&daemon, work, done_of_each);
        an_ordinary_load_is_exact(&daemon);
    }
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
