//! Programs that people run, against the numbers that they report themselves, or that the kernel's own tracepoints
//! count for them. Needs a guest with their Debian packages.

use std::{collections::BTreeMap, fs};

use iotrace_guest::{
    in_guest,
    process::{content, top},
    report::{Imports, Report},
    syscalls::Syscalls,
};
use serde_json::Value;

/// The system calls that import vectors, one for each call. Those of messages by the dozen are not: they import
/// once for each message.
const VECTORED: &[&str] =
    &["readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "sendmsg", "recvmsg", "vmsplice"];

/// What this script does, counted by iotrace; it must succeed.
fn measured(script: &str) -> Report {
    let (code, report) = top(&["sh", "-c", script]);
    assert_eq!(code, 0, "{script}");
    assert_eq!(report.lost(), BTreeMap::new());
    report
}

/// The same, against the tracepoints' count of the same run: calls by path.
fn measured_twice(script: &str) -> (Report, BTreeMap<String, u64>) {
    let syscalls = Syscalls::of(VECTORED);
    let report = measured(&format!("{}; {script}", syscalls.enter()));
    let counted = syscalls.counted();
    println!("{counted:?}");
    let imports = report.imports().into_iter().map(|(path, row)| (path, row.calls));
    assert_eq!(imports.collect::<BTreeMap<_, _>>(), counted);
    (report, counted)
}

/// One segment for each call, none refused.
fn single(calls: u64, bytes: u64, allocated: Option<u64>) -> Imports {
    Imports { calls, single: calls, segments: calls, allocated, bytes, errors: 0 }
}

/// A job of fio on one file of 2 MiB; what fio says it issued: reads and writes.
fn fio(options: &str) -> (Report, [u64; 2]) {
    let (job, log) = ("/tmp/fio.json", "/tmp/fio.log");
    let file = "--name=job --filename=/tmp/fio --bs=4k --size=2M";
    let report = measured(&format!("fio {file} {options} --output-format=json --output={job} >{log} 2>&1"));
    let told: Value = serde_json::from_str(&content(job)).expect("fio tells in JSON");
    assert_eq!(told["jobs"][0]["error"], 0, "{}", content(log));
    (report, ["read", "write"].map(|way| told["jobs"][0][way]["total_ios"].as_u64().expect("a number")))
}

#[test]
fn fio_with_preadv() {
    let _alone = in_guest();
    let (report, [reads, writes]) = fio("--ioengine=pvsync --rw=randrw --randseed=1");
    assert!(reads > 0 && writes > 0 && reads + writes == 512, "{reads} {writes}");
    let expected = [("preadv", reads), ("pwritev", writes)];
    let expected = expected.map(|(path, calls)| (path.into(), single(calls, calls * 4096, Some(0))));
    assert_eq!(report.imports(), BTreeMap::from(expected));
}

#[test]
fn fio_with_io_uring() {
    let _alone = in_guest();
    // Vectored requests of one segment; fio prefers plain ones otherwise.
    let (report, told) = fio("--ioengine=io_uring --nonvectored=0 --rw=randread --iodepth=4");
    assert_eq!(told, [512, 0]);
    assert_eq!(report.imports(), BTreeMap::from([("io_uring".into(), single(512, 512 * 4096, None))]));
}

#[test]
fn python_with_sendmsg() {
    let _alone = in_guest();
    let script = "import socket\na, b = socket.socketpair()\n\
                  for _ in range(3000):\n    a.sendmsg([b'x', b'yy', b'zzz'])\n    b.recvmsg(64)\n";
    fs::write("/tmp/loop.py", script).expect("the guest's /tmp can be written");
    let (report, _) = measured_twice("python3 /tmp/loop.py");
    let sendmsg =
        Imports { calls: 3000, single: 0, segments: 9000, allocated: Some(0), bytes: 18_000, errors: 0 };
    let recvmsg = single(3000, 3000 * 64, Some(0));
    let expected = [("sendmsg".into(), sendmsg), ("recvmsg".into(), recvmsg)];
    assert_eq!(report.imports(), BTreeMap::from(expected));
    // What was sent goes into the socket from three segments.
    let sent = report.walks()[&("copy_from_iter".into(), "iovec".into())];
    assert_eq!((sent.calls, sent.bytes), (3000, 18_000));
}

/// Bytes that were written to files, which all are in memory here.
fn written(report: &Report) -> u64 {
    let walks = report.walks();
    let into_pages = walks.iter().filter(|((function, kind), _)| {
        kind == "ubuf"
            && ["copy_page_from_iter_atomic", "copy_folio_from_iter_atomic"].contains(&function.as_str())
    });
    into_pages.map(|(_, walks)| walks.bytes).sum()
}

#[test]
fn dd_and_tar() {
    let _alone = in_guest();
    let report = measured("/usr/bin/dd if=/dev/zero of=/tmp/dd bs=4k count=500 2>/dev/null");
    assert_eq!(report.imports(), BTreeMap::new());
    assert_eq!(written(&report), 500 * 4096);

    fs::create_dir_all("/tmp/folder").expect("the guest's /tmp can be written");
    for (name, bytes) in [("a", 100_000), ("b", 70_000), ("c", 1)] {
        fs::write(format!("/tmp/folder/{name}"), vec![b'x'; bytes]).expect("the guest's /tmp can be written");
    }
    let report = measured("/usr/bin/tar -cf /tmp/folder.tar -C /tmp/folder .");
    assert_eq!(report.imports(), BTreeMap::new());
    assert_eq!(written(&report), fs::metadata("/tmp/folder.tar").expect("tar wrote it").len());
    let read = report.walks()[&("copy_page_to_iter".into(), "ubuf".into())].bytes;
    assert!(read >= 170_001, "{read}");
}

#[test]
fn nginx_with_writev() {
    let _alone = in_guest();
    for folder in ["/tmp/www", "/var/log/nginx", "/var/lib/nginx"] {
        fs::create_dir_all(folder).expect("the guest's disk can be written");
    }
    fs::write("/tmp/www/big", vec![b'x'; 100_000]).expect("the guest's /tmp can be written");
    let settings = "user root; worker_processes 1; daemon off; pid /tmp/nginx.pid; error_log /tmp/nginx.log; events {} \
                    http { access_log off; sendfile on; server { listen 127.0.0.1:8080; root /tmp/www; } }";
    fs::write("/tmp/nginx.conf", settings).expect("the guest's /tmp can be written");
    let script = "nginx -c /tmp/nginx.conf 2>/dev/null & \
                  until wget -q -O /tmp/page http://127.0.0.1:8080/big 2>/dev/null; do sleep 0.1; done; \
                  for page in 1 2 3 4 5 6 7 8 9; do wget -q -O /tmp/page http://127.0.0.1:8080/big || exit; done; \
                  kill $(cat /tmp/nginx.pid); wait";
    let (report, counted) = measured_twice(script);
    // The header of each answer; the file itself goes by sendfile, and walks no vector.
    let writev = report.imports()["writev"];
    assert_eq!(
        (counted["writev"], writev.single, writev.segments),
        (10, 10, 10),
        "{}",
        content("/tmp/nginx.log")
    );
    assert_eq!(content("/tmp/page").len(), 100_000);
}

#[test]
fn redis_with_long_answers() {
    let _alone = in_guest();
    // Answers that do not fit into one buffer go out by writev.
    let script = "redis-server --port 7000 --save '' --dir /tmp >/tmp/redis.log & \
                  until redis-cli -p 7000 ping >/dev/null 2>&1; do sleep 0.1; done; \
                  redis-benchmark -p 7000 -n 300 -c 2 -d 100 -t lrange_600 -q >/tmp/benchmark.log 2>&1 || exit; \
                  redis-cli -p 7000 shutdown nosave; wait";
    let (report, counted) = measured_twice(script);
    let writev = report.imports()["writev"];
    assert!(counted["writev"] >= 300 && writev.segments > writev.calls, "{writev:?}");
}
