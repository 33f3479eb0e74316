//! The systemd units, under a real systemd: what they take away is not needed, and what they promise is kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::Duration,
};

use iotrace_guest::{
    IOTRACE,
    daemon::Daemon,
    exposition::Exposition,
    http, in_guest,
    kernel::Held,
    process::{self, Ended, content, eventually},
};

const SERVICE: &str = include_str!("../../packaging/iotrace.service");
const SOCKET: &str = include_str!("../../packaging/iotrace.socket");
/// What docs and unit promise, in tenths; `systemd-analyze security` calls it OK.
const EXPOSURE: u32 = 24;
/// An emulated guest on a busy machine, which attaches and tests itself.
const PATIENCE: Duration = Duration::from_secs(240);

/// Where iotrace.socket listens.
fn address() -> SocketAddr {
    "127.0.0.1:9469".parse().expect("an address")
}

fn systemd(program: &str, arguments: &[&str]) -> Ended {
    process::run(Command::new(Path::new("/usr/bin").join(program)).args(arguments), PATIENCE)
}

/// `systemctl`, which must succeed and say nothing.
fn systemctl(arguments: &[&str]) {
    let ended = systemd("systemctl", arguments);
    assert_eq!(ended.code, 0, "systemctl {arguments:?}: {}; {}", ended.stderr, journal());
}

fn property(name: &str) -> String {
    systemd("systemctl", &["show", "--value", "--property", name, "iotrace.service"]).stdout.trim().to_owned()
}

fn journal() -> String {
    journal_from("debug")
}

/// What was logged with this priority and higher.
fn journal_from(priority: &str) -> String {
    let options = ["--no-pager", "--unit", "iotrace", "--output", "cat", "--priority", priority];
    systemd("journalctl", &options).stdout
}

fn scrape() -> Exposition {
    let answer = http::get(address(), "/metrics").unwrap_or_else(|error| panic!("{error}; {}", journal()));
    assert_eq!(answer.status, 200, "{}", answer.body);
    Exposition::parse(&answer.body).unwrap_or_else(|error| panic!("{error}"))
}

/// Paths and whether the self-test found them to count right.
fn verified(scrape: &Exposition) -> BTreeMap<String, u64> {
    let paths = scrape.values("iotrace_path_verified", "path");
    let paths = paths
        .into_iter()
        .map(|path| (path.to_owned(), scrape.sum("iotrace_path_verified", &[("path", path)])));
    paths.collect()
}

/// The paths once they have been tested.
fn tested(scrape: impl Fn() -> Exposition) -> BTreeMap<String, u64> {
    let mut paths = BTreeMap::new();
    let done = eventually(PATIENCE, || {
        paths = verified(&scrape());
        !paths.is_empty()
    });
    assert!(done, "no path was tested: {}", journal());
    paths
}

/// The capabilities that each thread of a process may use, in numbers.
fn capabilities(pid: &str) -> BTreeSet<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    let permitted = threads.flatten().filter_map(|thread| {
        let status = content(&thread.path().join("status").to_string_lossy());
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"))?.trim().to_owned();
        u64::from_str_radix(&line, 16).ok()
    });
    permitted.collect()
}

#[test]
fn the_units_keep_what_they_promise() {
    let _alone = in_guest();
    symlink(IOTRACE, "/usr/bin/iotrace").expect("the guest's files can be written");
    let folder = Path::new("/etc/systemd/system");
    fs::write(folder.join("iotrace.service"), SERVICE).expect("the guest's files can be written");
    fs::write(folder.join("iotrace.socket"), SOCKET).expect("the guest's files can be written");

    // What the self-test finds without any of the unit's restrictions.
    let before = Held::settled();
    let mut free = Daemon::start_with(19_476, &["--exact"]);
    free.attached();
    let mut unrestricted = tested(|| free.metrics());
    // Where there is a filter of system calls, the load cannot tell its refusal from the kernel's.
    unrestricted.remove("keyctl");
    assert_eq!(free.end(libc::SIGTERM).code, 0);

    systemctl(&["daemon-reload"]);
    systemctl(&["start", "iotrace"]);
    // Answered from the moment that it has started.
    assert!(scrape().with("iotrace_site_attached", &[("state", "attached")]).count() > 0);
    assert_eq!(tested(scrape), unrestricted);
    // Nothing that is refused to it, and nothing else.
    assert_eq!(journal_from("warning"), "");
    assert!(journal_from("info").contains("sites attached"), "{}", journal());
    assert!(property("StatusText").contains("sites attached, 0 to come"), "{}", property("StatusText"));

    let pid = property("MainPID");
    let status = content(&format!("/proc/{pid}/status"));
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a process that runs");
    assert!(!users.split_whitespace().any(|user| user == "0"), "{users}");
    // CAP_DAC_READ_SEARCH, CAP_SYS_RAWIO, CAP_SYS_ADMIN, CAP_SYSLOG, CAP_PERFMON, CAP_BPF: what one thread keeps.
    let kept = [2, 17, 21, 34, 38, 39].iter().map(|number| 1 << number).sum();
    assert_eq!(capabilities(&pid), BTreeSet::from([0, kept]));

    let ended = systemd("systemd-analyze", &["security", "--no-pager", "iotrace.service"]);
    let exposure =
        ended.stdout.lines().find_map(|line| line.split_once("exposure level for iotrace.service: "));
    let exposure = exposure.and_then(|(_, level)| level.split(' ').next()).expect("a level");
    println!("exposure {exposure}");
    let (ones, tenths) = exposure.split_once('.').expect("tenths");
    assert!(
        ones.parse::<u32>().expect("a number") * 10 + tenths.parse::<u32>().expect("a digit") <= EXPOSURE
    );

    systemctl(&["reload", "iotrace"]);
    assert!(eventually(PATIENCE, || journal().contains("the options are read again")), "{}", journal());
    assert_eq!(property("MainPID"), pid);

    // Killed, it comes back, and scrapes meanwhile wait instead of failing.
    systemctl(&["kill", "--signal=SIGKILL", "--kill-whom=main", "iotrace"]);
    assert!(eventually(PATIENCE, || !["0", &pid].contains(&&*property("MainPID"))), "{}", journal());
    scrape();
    assert_eq!(property("NRestarts"), "1");

    // Hung, it is started anew.
    let hung = property("MainPID");
    assert!(eventually(PATIENCE, || property("ActiveState") == "active"), "{}", journal());
    systemctl(&["kill", "--signal=SIGSTOP", "--kill-whom=main", "iotrace"]);
    assert!(eventually(PATIENCE, || !["0", &hung].contains(&&*property("MainPID"))), "{}", journal());
    assert!(eventually(PATIENCE, || property("ActiveState") == "active"), "{}", journal());
    assert_eq!(property("NRestarts"), "2");

    systemctl(&["stop", "iotrace.socket", "iotrace.service"]);
    assert_eq!(
        (property("Result"), property("ExecMainStatus")),
        ("success".into(), "0".into()),
        "{}",
        journal()
    );
    let mut left = Vec::new();
    eventually(PATIENCE, || {
        left = Held::now().beyond(&before);
        left.is_empty()
    });
    assert!(left.is_empty(), "{left:?}");
}
