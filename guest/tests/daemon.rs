//! What `iotrace daemon` serves is what happened, and it ends when asked to.

use std::{collections::BTreeMap, thread, time::Duration};

use iotrace_guest::{
    LOAD,
    daemon::{Daemon, FRESH},
    exposition::Exposition,
    http, in_guest, kernel,
    process::{eventually, iotrace, run, top},
    report::{between, recorded},
};

/// Calls of writev with 9 to 16 segments. No server answers with so many.
fn long_writev(scrape: &Exposition) -> u64 {
    let bucket = |le| scrape.sum("iotrace_import_segments_bucket", &[("path", "writev"), ("le", le)]);
    bucket("16") - bucket("8")
}

#[test]
fn two_daemons_and_a_top_see_the_same() {
    let _alone = in_guest();
    let (mut first, mut second) = (Daemon::start(19_469), Daemon::start(19_470));
    println!("first attached after {:?}, second after {:?}", first.attached(), second.attached());

    let taken = run(&mut iotrace(&["daemon", "--listen", "127.0.0.1:19469"]), Duration::from_secs(10));
    assert_ne!(taken.code, 0);
    assert!(taken.line().contains("127.0.0.1:19469"), "{}", taken.line());

    // In this order the first sees no answer of the second. The second sees answers of the first: a writev each.
    let (second_before, first_before) = (second.metrics(), first.metrics());
    let (code, report) = top(&["sh", "-c", &format!("{LOAD} exact --json >/tmp/exact.json")]);
    let (first_after, second_after) = (first.metrics(), second.metrics());
    assert_eq!(code, 0);
    let expected = recorded(["/tmp/exact.json"]);
    assert_eq!((expected["readv"].calls, expected["writev"].calls), (15_000, 2_000));
    assert_eq!(report.imports(), expected);
    assert_eq!(between(&first_before.imports(), &first_after.imports()), expected);
    let mut seen_by_second = between(&second_before.imports(), &second_after.imports());
    let answers = seen_by_second.remove("writev").unwrap_or_default();
    assert_eq!(seen_by_second, BTreeMap::from([("readv".into(), expected["readv"])]));
    assert!(answers.calls >= 2_000, "{answers:?}");
    assert_eq!(long_writev(&second_after) - long_writev(&second_before), 2_000);
    let readv = [("path", "readv")];
    for (le, calls) in [("1", 10_000), ("2", 10_000), ("4", 15_000), ("1024", 15_000), ("+Inf", 15_000)] {
        let labels = [readv[0], ("le", le)];
        let bucket = |scrape: &Exposition| scrape.sum("iotrace_import_segments_bucket", &labels);
        assert_eq!(bucket(&first_after) - bucket(&first_before), calls, "le {le}");
    }
    for scrape in [&first_after, &second_after] {
        assert_eq!(scrape.sum("iotrace_lost_total", &[]), 0);
        assert!(!scrape.values("iotrace_lost_total", "reason").is_empty());
    }

    let ended = second.end(libc::SIGINT);
    println!("SIGINT: {:?}", ended.took);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    its_own_traffic_is_left_out(&first);
    let ended = first.end(libc::SIGTERM);
    println!("SIGTERM: {:?}", ended.took);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

/// Nothing but this test runs here: what is sent are its requests, what is received are the answers it reads. The
/// system may add a few bytes of its own; had the daemon been counted, each of its requests and answers would show.
fn its_own_traffic_is_left_out(daemon: &Daemon) {
    const SCRAPES: u64 = 20;
    let bytes = |scrape: &Exposition, functions: &[&str]| -> u64 {
        functions.iter().map(|name| scrape.sum("iotrace_iter_bytes_total", &[("function", name)])).sum()
    };
    // 5.10 copies what TCP sends in a function of its own.
    let sent = |scrape| {
        bytes(
            scrape,
            &["copy_from_iter", "copy_from_iter_nocache", "copy_from_iter_full", "skb_do_copy_data_nocache"],
        )
    };
    let received = |scrape| bytes(scrape, &["copy_to_iter"]);
    let scrape = || {
        let answer = http::get(daemon.address(), "/metrics").expect("an answer");
        (Exposition::parse(&answer.body).expect("an exposition"), answer.length)
    };
    thread::sleep(FRESH);
    let (before, mut answers) = scrape();
    let files = kernel::files(daemon.pid());
    for _ in 1..SCRAPES {
        answers += scrape().1;
    }
    thread::sleep(FRESH);
    let (after, _) = scrape();
    assert_eq!(between(&before.imports(), &after.imports()), BTreeMap::new());
    let request = http::request("/metrics").len() as u64;
    let (all, some_more) = (received(&after) - received(&before), answers + request);
    assert!((answers..some_more).contains(&all), "received {all}, expected {answers}");
    let all = sent(&after) - sent(&before);
    assert!(
        (SCRAPES * request..(SCRAPES + 1) * request).contains(&all),
        "sent {all}, {SCRAPES} of {request}"
    );
    let closed = || kernel::files(daemon.pid()) <= files;
    assert!(eventually(Duration::from_secs(5), closed), "scrapes leave descriptors open");
}

#[test]
fn a_signal_before_it_is_ready_ends_it_too() {
    let _alone = in_guest();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let daemon = Daemon::start(19_471);
        thread::sleep(Duration::from_millis(1_500));
        let ended = daemon.end(signal);
        println!("signal {signal}: {:?}", ended.took);
        assert_eq!(ended.code, 0, "signal {signal}: {}", ended.stderr);
    }
}
