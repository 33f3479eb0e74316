//! Modules that come and go while the daemon runs: their sites come and go with them.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use iotrace_guest::{
    daemon::Daemon,
    exposition::Exposition,
    in_guest,
    process::{eventually, run},
    report::{Imports, Walks, between},
    timed,
};

const MODULE: &str = "/modules/tun.ko";
/// Within this time the sites must have come or gone, where time counts.
const PROMISED: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(90);
const PACKETS: u64 = 200;
/// Of an Ethernet header and what follows it.
const LENGTHS: [usize; 2] = [14, 50];

fn busybox(arguments: &[&str]) {
    let ended = run(Command::new("/bin/busybox").args(arguments), Duration::from_secs(30));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
}

/// The module's sites, and whether each counts.
fn sites(scrape: &Exposition) -> BTreeMap<String, bool> {
    let samples = scrape.with("iotrace_site_attached", &[]);
    let samples = samples.filter(|sample| sample.labels["site"].contains("[tun]"));
    let name = |of: &BTreeMap<String, String>| format!("{} {} {}", of["target"], of["site"], of["state"]);
    samples.map(|sample| (name(&sample.labels), sample.value == 1.0)).collect()
}

/// Waits until this holds for the module's sites.
fn until(daemon: &Daemon, what: &str, holds: impl Fn(&BTreeMap<String, bool>) -> bool) {
    let started = Instant::now();
    let mut found = BTreeMap::new();
    let limit = if timed() { PROMISED } else { PATIENCE };
    let came = eventually(limit, || {
        found = sites(&daemon.metrics());
        holds(&found)
    });
    assert!(came, "sites have not {what} within {limit:?}: {found:#?}\n{}", daemon.log());
    println!("{} sites have {what} after {:?}", found.len(), started.elapsed());
}

fn all_attached(sites: &BTreeMap<String, bool>) -> bool {
    !sites.is_empty() && sites.iter().all(|(site, counts)| *counts || site.ends_with("unavailable"))
}

/// A device that takes Ethernet packets from this process, and is up.
fn tap() -> io::Result<File> {
    /// `_IOW('T', 202, int)`, and flags of include/uapi/linux/if_tun.h.
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    // Not blocking, or the kernel takes the way by a socket buffer, whose copying is not the module's.
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: a name and numbers, of which all may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"tap0") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes the request.
    match unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Packets of two segments each are counted where the module copies them.
fn packets_are_counted(daemon: &Daemon) {
    let tap = tap().expect("a tap device");
    busybox(&["ifconfig", "tap0", "up"]);
    let [mut header, mut rest] = LENGTHS.map(|length| vec![0u8; length]);
    // To everybody, from a local address, of a type for experiments.
    header.copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    let segments = [&mut header, &mut rest]
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    let length: usize = LENGTHS.iter().sum();
    let before = daemon.metrics();
    for _ in 0..PACKETS {
        // SAFETY: both segments are there.
        let written = unsafe { libc::writev(tap.as_raw_fd(), segments.as_ptr(), 2) };
        assert_eq!(written, length as isize, "{}", io::Error::last_os_error());
    }
    let after = daemon.metrics();
    let bytes = PACKETS * length as u64;
    let writev =
        Imports { calls: PACKETS, single: 0, segments: 2 * PACKETS, allocated: Some(0), bytes, errors: 0 };
    assert_eq!(between(&before.imports(), &after.imports()), BTreeMap::from([("writev".into(), writev)]));
    let pages = |scrape: &Exposition| {
        let key = ("copy_page_from_iter".to_owned(), "iovec".to_owned());
        scrape.walks().get(&key).copied().unwrap_or_default()
    };
    let (before, after) = (pages(&before), pages(&after));
    let walks = Walks {
        calls: after.calls - before.calls,
        bytes: after.bytes - before.bytes,
        timed: after.timed - before.timed,
    };
    assert_eq!(walks, Walks { calls: PACKETS, bytes, timed: PACKETS });
    assert_eq!(daemon.metrics().sum("iotrace_lost_total", &[]), 0);
}

#[test]
fn sites_come_and_go_with_their_module() {
    let _alone = in_guest();
    assert!(
        Path::new(MODULE).exists(),
        "this test needs a guest with the module tun, as by `cargo xtask vm --module tun`"
    );
    busybox(&["rmmod", "tun"]);
    let mut daemon = Daemon::start_with(19_490, &["--no-selftest", "--exact"]);
    println!("attached after {:?}", daemon.attached());
    assert_eq!(sites(&daemon.metrics()), BTreeMap::new());
    for round in 1..=2 {
        busybox(&["insmod", MODULE]);
        until(&daemon, "come", all_attached);
        let copies = |site: &String| site.starts_with("copy_page_from_iter ") && site.ends_with("attached");
        assert!(sites(&daemon.metrics()).keys().any(copies), "round {round}");
        packets_are_counted(&daemon);
        if round == 1 {
            busybox(&["rmmod", "tun"]);
            until(&daemon, "gone", BTreeMap::is_empty);
        }
    }
    let ended = daemon.end(libc::SIGTERM);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}
