//! How soon a daemon is of use.

use std::{
    collections::BTreeMap,
    fs,
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use iotrace_guest::{IOTRACE, daemon::Daemon, http, in_guest, kernel, process::eventually, timed};

#[test]
fn ready_within_four_seconds() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(19_473, &["--no-selftest", "--exact", "--log-format", "json"]);
    let ready = daemon.ready();
    let first = daemon.metrics();
    let pending = first.with("iotrace_site_attached", &[("state", "pending")]).count();
    let counting = first.with("iotrace_site_attached", &[("state", "attached")]).count();
    let attached = daemon.attached();
    let (major, minor) = kernel::version();
    println!(
        "{major}.{minor}: ready in {ready:?} with {counting} sites, {pending} to come; all in {attached:?}"
    );
    assert!(counting > 0, "ready without a site");
    for path in ["/", "/v1/snapshot", "/-/healthy", "/-/ready"] {
        assert_eq!(http::get(daemon.address(), path).expect("an answer").status, 200, "{path}");
    }
    assert_eq!(http::get(daemon.address(), "/nothing").expect("an answer").status, 404);
    let ended = daemon.end(libc::SIGTERM);
    println!("stopped in {:?}", ended.took);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines = ended.stderr.lines().map(|line| {
        let line: BTreeMap<String, String> = serde_json::from_str(line).expect("an object");
        assert!(line.keys().eq(["level", "message", "time"]) && line["time"].ends_with('Z'), "{line:?}");
        (line["level"].clone(), line["message"].clone())
    });
    assert!(lines.collect::<Vec<_>>().contains(&("info".into(), "stopping".into())), "{}", ended.stderr);
    if timed() {
        assert!(ready < Duration::from_secs(4), "ready in {ready:?}");
    }
}

#[test]
fn what_is_asked_before_the_start_waits_for_it() {
    let _alone = in_guest();
    let listener = TcpListener::bind("127.0.0.1:19474").expect("a free port");
    let address = listener.local_addr().expect("an address");
    // As systemd: a scrape that comes before the daemon is in the socket's queue.
    let scrape = thread::spawn(move || http::get(address, "/-/healthy"));
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" daemon --no-selftest --listen 127.0.0.1:19475 3<&0";
    let mut daemon = Command::new("sh")
        .args(["-c", script, IOTRACE])
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .expect("the guest has a shell");
    assert_eq!(scrape.join().expect("no panic").expect("an answer").status, 200);
    let ready = || http::get(address, "/-/ready").is_ok_and(|answer| answer.status == 200);
    assert!(eventually(Duration::from_secs(120), ready), "not ready");
    // What systemd passes takes the place of --listen.
    assert!(TcpStream::connect("127.0.0.1:19475").is_err());
    // SAFETY: only sends a signal; the child is not reaped yet, so the number is its own.
    unsafe { libc::kill(daemon.id().cast_signed(), libc::SIGTERM) };
    assert!(daemon.wait().expect("a child of ours").success());
}

#[test]
fn a_hangup_changes_what_is_logged() {
    let _alone = in_guest();
    let file = "/tmp/iotrace.toml";
    let write = |level: &str, rows: u32| {
        let text = format!("log = \"{level}\"\nno-selftest = true\nexact = true\ntop-k = {rows}\n");
        fs::write(file, text).expect("the guest's /tmp can be written");
    };
    write("warn", 5);
    let mut daemon = Daemon::start_with(19_476, &["--config", file]);
    daemon.attached();
    assert_eq!(daemon.log(), "", "all is well, and only warnings are logged");
    let hang_up = || {
        // SAFETY: only sends a signal; the child is not reaped yet, so the number is its own.
        unsafe { libc::kill(daemon.pid().cast_signed(), libc::SIGHUP) };
    };
    write("info", 6);
    hang_up();
    assert!(
        eventually(Duration::from_secs(20), || daemon.log().contains("from the next start")),
        "{}",
        daemon.log()
    );
    fs::write(file, "log = loud\n").expect("the guest's /tmp can be written");
    hang_up();
    let told = || daemon.log().contains("/tmp/iotrace.toml: line 1: ");
    assert!(eventually(Duration::from_secs(20), told), "{}", daemon.log());
    let ended = daemon.end(libc::SIGTERM);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("stopping"), "{}", ended.stderr);
}
