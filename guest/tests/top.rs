//! `iotrace top -- COMMAND` reports the command's own numbers, exactly, and nobody else's.

use std::{collections::BTreeMap, process::Command};

use iotrace_guest::{
    LOAD, in_guest, kernel,
    process::{Background, iotrace, run, top},
    report::{Imports, Report, Walks, recorded},
};

/// What `iotrace-load exact` does, written down here once more: the program is not asked.
fn exact() -> BTreeMap<String, Imports> {
    let readv = Imports {
        calls: 15_000,
        single: 10_000,
        segments: 25_000,
        allocated: Some(0),
        bytes: 25_000 * 64,
        errors: 0,
    };
    let writev = Imports {
        calls: 2_000,
        single: 0,
        segments: 18_000,
        allocated: Some(2_000),
        bytes: 18_000 * 64,
        errors: 0,
    };
    BTreeMap::from([("readv".into(), readv), ("writev".into(), writev)])
}

fn nothing_lost(report: &Report) {
    assert_eq!(report.lost(), BTreeMap::new());
    for ((function, kind), walks) in report.walks() {
        assert_eq!(walks.timed, walks.calls, "{function} {kind}");
    }
}

#[test]
fn seventeen_thousand_calls_are_exactly_these() {
    let _alone = in_guest();
    // The load beside it waits for the probes, and ends before they go: QEMU before 8.1 now and then runs stale
    // code when a function is patched that the other CPU is in, and the guest's kernel panics.
    let wait = |sign: &str| format!("while [ ! -e {sign} ]; do sleep 0.1; done");
    let beside = format!("{}; {LOAD} mix --seconds 4 && echo >/tmp/noise-over", wait("/tmp/noise"));
    let _noise = Background::start(Command::new("sh").args(["-c", &beside]));
    let measured = format!("echo >/tmp/noise; sleep 1; {LOAD} exact; {}; exit 7", wait("/tmp/noise-over"));
    let (code, report) = top(&["sh", "-c", &measured]);
    assert_eq!(code, 7);
    assert_eq!(report.imports(), exact());
    nothing_lost(&report);
    let sum = |of: fn(&Imports) -> u64| report.imports().values().map(of).sum::<u64>();
    assert_eq!(sum(|row| row.single) as f64 / sum(|row| row.calls) as f64, 10_000.0 / 17_000.0);
}

/// Also: a child of a child is followed, and a command killed by a signal is told as shells do.
#[test]
fn kinds_are_told_apart_call_by_call() {
    let _alone = in_guest();
    let script = format!("sh -c '{LOAD} kinds --count 2000; true'; kill -9 $$");
    let (code, report) = top(&["sh", "-c", &script]);
    assert_eq!(code, 128 + 9);
    nothing_lost(&report);
    let reads: BTreeMap<String, Walks> = report
        .walks()
        .into_iter()
        .filter(|((function, kind), _)| function == "copy_page_to_iter" && kind != "kvec")
        .map(|((_, kind), walks)| (kind, walks))
        .collect();
    let half = Walks { calls: 2_000, bytes: 2_000 * 512, timed: 2_000 };
    let expected = if kernel::version() < (6, 0) {
        // There is no ubuf yet: pread makes an iovec of one segment.
        BTreeMap::from([("iovec".into(), Walks { calls: 4_000, bytes: 4_000 * 512, timed: 4_000 })])
    } else {
        BTreeMap::from([("iovec".into(), half), ("ubuf".into(), half)])
    };
    assert_eq!(reads, expected);
    let preadv = Imports {
        calls: 2_000,
        single: 0,
        segments: 4_000,
        allocated: Some(0),
        bytes: 2_000 * 512,
        errors: 0,
    };
    assert_eq!(report.imports(), BTreeMap::from([("preadv".into(), preadv)]));
}

/// The only importer of this path, where the kernel allows no probe in it and the report says so.
fn refused_site(report: &Report, path: &str) -> Option<[String; 4]> {
    let importer = match path {
        "vmsplice" => "__do_sys_vmsplice+",
        "io_uring" => "io_",
        "aio" => "aio_",
        _ => return None,
    };
    report.missing().into_iter().find(|[target, site, state, reason]| {
        target.ends_with("import_iovec")
            && site.starts_with(importer)
            && state == "unavailable"
            && !reason.is_empty()
    })
}

#[test]
fn every_path_counts_under_its_own_name() {
    let _alone = in_guest();
    let works = [
        "preadv --count 301 --segments 2",
        "pwritev --count 302 --segments 9",
        "preadv2 --count 303 --segments 1",
        "pwritev2 --count 304 --segments 64 --bytes 8",
        "sendmsg --count 305 --segments 3",
        "sendmsg --count 106 --segments 1 --tcp",
        "recvmsg --count 307 --segments 8",
        "recvmsg --count 108 --segments 2 --tcp",
        "sendmmsg --count 109 --segments 2",
        "recvmmsg --count 110 --segments 1",
        "vmsplice --count 111 --segments 4",
        "pipe --count 112 --segments 5",
        "process-vm --count 113 --segments 10",
        "aio --count 114 --segments 3",
        "uring --count 115 --segments 3",
        "readv --count 116 --segments 1024 --bytes 1",
        "efault --count 117 --segments 2",
        "einval --count 118",
        // These import nothing.
        "read --count 50",
        "write --count 50",
        "send --count 50",
        "sendfile --count 50 --bytes 5000",
        "exec --count 3",
    ];
    let files: Vec<String> = (0..works.len()).map(|number| format!("/tmp/path-{number}.json")).collect();
    let script: Vec<String> = works
        .iter()
        .zip(&files)
        .map(|(work, file)| format!("{LOAD} {work} --json >{file} || exit 99"))
        .collect();
    let (code, report) = top(&["sh", "-c", &script.join("; ")]);
    assert_eq!(code, 0);
    let expected = recorded(&files);
    assert_eq!(expected["readv"].errors, 117 + 118);
    assert_eq!(expected["sendmmsg"].calls, 4 * 109);
    let counted = report.imports();
    for (path, row) in &expected {
        match refused_site(&report, path) {
            Some(site) if !counted.contains_key(path) => {
                println!("{path} cannot be seen on this kernel: {site:?}");
            }
            _ => assert_eq!(counted.get(path), Some(row), "{path}; not attached: {:?}", report.missing()),
        }
    }
    let others: Vec<_> = counted.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert_eq!(others, Vec::<&String>::new());
    nothing_lost(&report);
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let _alone = in_guest();
    let ended = run(
        &mut iotrace(&["top", "-o", "json", "--", "/no/such/program", "x"]),
        std::time::Duration::from_secs(60),
    );
    assert_eq!((ended.code, ended.stdout.as_str()), (127, ""));
    assert!(ended.line().contains("/no/such/program"), "{}", ended.line());
}
