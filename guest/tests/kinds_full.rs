//! Kinds of iterators that only file systems on a network make. Needs a guest with the full kernel, the modules of
//! 9p and NFS, and the Debian package diod, a server of 9p.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use iotrace_guest::{
    daemon::Daemon,
    findings, in_guest, kernel,
    process::{Background, eventually, run, top},
    report::{Report, Walks},
};

const LIMIT: Duration = Duration::from_secs(30);
const FILE: u64 = 1_000_000;

/// The kind of the pages of a file on a network, by kernel.
fn pages() -> &'static str {
    if kernel::version() < (6, 12) { "xarray" } else { "folioq" }
}

fn of_kind(report: &Report, kind: &str) -> BTreeMap<String, Walks> {
    let walks = report.walks().into_iter().filter(|((_, other), _)| other == kind);
    walks.map(|((function, _), walks)| (function, walks)).collect()
}

/// A file there and back, through a mount of 9p over loopback; what iotrace counted meanwhile.
fn copied(options: &str) -> Report {
    let mount =
        format!("trans=tcp,port=5640,version=9p2000.L,aname=/tmp/served,uname=root,access=any,{options}");
    let mount = ["mount", "-t", "9p", "-o", &mount, "127.0.0.1", "/tmp/mount"];
    let mounted = eventually(LIMIT, || run(Command::new("busybox").args(mount), LIMIT).code == 0);
    assert!(mounted, "cannot mount: {mount:?}");
    // The copy that is local is out of the way, and writing is over when dd is.
    let (code, report) = top(&[
        "sh",
        "-c",
        "dd if=/tmp/mount/in of=/tmp/copy bs=64k 2>/dev/null && \
         dd if=/tmp/copy of=/tmp/mount/out bs=64k conv=fsync 2>/dev/null",
    ]);
    let unmounted = run(Command::new("umount").arg("/tmp/mount"), LIMIT);
    assert_eq!((code, unmounted.code), (0, 0), "{unmounted:?}");
    assert!(fs::read("/tmp/served/in").ok() == fs::read("/tmp/served/out").ok(), "the copy is another");
    assert_eq!(report.lost(), BTreeMap::new());
    report
}

#[test]
fn pages_of_a_file_on_9p() {
    let _alone = in_guest();
    for folder in ["/tmp/served", "/tmp/mount"] {
        fs::create_dir_all(folder).expect("the guest's /tmp can be written");
    }
    let content: Vec<u8> = (0..FILE).map(|at| (at % 251) as u8).collect();
    fs::write("/tmp/served/in", content).expect("the guest's /tmp can be written");
    let server = ["-f", "-n", "-N", "-L", "stderr", "-l", "127.0.0.1:5640", "-e", "/tmp/served"];
    let _server = Background::start(Command::new("diod").args(server));

    // Without `ignoreqv`, newer kernels do not trust this server's versions, and do not cache.
    let report = copied("cache=loose,ignoreqv");
    let walks = of_kind(&report, pages());
    // Behind the end of the file its last page is filled up with zeros.
    let rest = FILE.next_multiple_of(4096) - FILE;
    for (function, bytes) in [("copy_to_iter", FILE), ("copy_from_iter", FILE), ("iov_iter_zero", rest)] {
        assert_eq!(walks.get(function).map(|row| row.bytes), Some(bytes), "{function}: {walks:?}");
    }
    assert!(walks.values().all(|row| row.calls > 0 && row.timed == row.calls), "{walks:?}");

    // Without a cache there are no pages of the file.
    let report = copied("cache=none");
    assert_eq!(of_kind(&report, pages()), BTreeMap::new());
    let direct = if kernel::version() < (6, 12) { "ubuf" } else { "bvec" };
    let sent = of_kind(&report, direct)["copy_from_iter"].bytes;
    assert_eq!(sent, FILE, "{:?}", report.walks());
}

/// What each answer is long, behind its mark.
const ANSWER: usize = 20_000;
/// The number of the call and that it is an answer: what a client reads before it knows whose answer it is.
const HEAD: usize = 8;

/// A server that gives every call an answer to another, which the client must skip.
fn nonsense(mut client: TcpStream) {
    let mut call = [0; 1024];
    while client.read(&mut call).is_ok_and(|length| length > 0) {
        // The mark of RPC over TCP: the last piece, and its length.
        let mut answer = (0x8000_0000 | ANSWER as u32).to_be_bytes().to_vec();
        answer.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1]);
        answer.resize(4 + ANSWER, 0);
        if client.write_all(&answer).is_err() {
            return;
        }
    }
}

#[test]
fn answers_that_nfs_skips() {
    let _alone = in_guest();
    fs::create_dir_all("/tmp/nfs").expect("the guest's /tmp can be written");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of loopback");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || listener.incoming().flatten().for_each(nonsense));
    let options = format!(
        "addr=127.0.0.1,vers=3,proto=tcp,port={port},mountproto=tcp,mountport={port},mountaddr=127.0.0.1,\
         mountvers=3,nolock,soft,timeo=20,retrans=1"
    );
    // The kernel's own threads receive, so this is about the whole system.
    let mut daemon = Daemon::start(19_482);
    daemon.attached();
    let skipped = || {
        daemon.metrics().sum("iotrace_iter_bytes_total", &[("function", "copy_to_iter"), ("kind", "discard")])
    };
    let before = skipped();
    let mount = ["mount", "-t", "nfs", "-o", &options, "127.0.0.1:/none", "/tmp/nfs"];
    assert_ne!(run(Command::new("busybox").args(mount), LIMIT).code, 0, "there is nothing to mount");
    let skipped = skipped() - before;
    println!("skipped {skipped}");
    assert!(skipped > 0 && skipped.is_multiple_of((ANSWER - HEAD) as u64), "{skipped}");
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
    findings::note("kind", "discard copy_to_iter");
}
