//! How soon a daemon is of use.

use std::time::Duration;

use iotrace_guest::{daemon::Daemon, http, in_guest, kernel, timed};

#[test]
fn ready_within_four_seconds() {
    let _alone = in_guest();
    let mut daemon = Daemon::start(19_473);
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
    for path in ["/", "/-/healthy", "/-/ready"] {
        assert_eq!(http::get(daemon.address(), path).expect("an answer").status, 200, "{path}");
    }
    assert_eq!(http::get(daemon.address(), "/nothing").expect("an answer").status, 404);
    let ended = daemon.end(libc::SIGTERM);
    println!("stopped in {:?}", ended.took);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    if timed() {
        assert!(ready < Duration::from_secs(4), "ready in {ready:?}");
    }
}
