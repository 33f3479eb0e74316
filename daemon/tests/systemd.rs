//! The systemd unit starts what there is, with what it needs and no more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs};

use iotrace::{
    cli::{Cli, Command},
    listen::Address,
};

type Unit = BTreeMap<(String, String), String>;

/// Section and key → value. Each key once.
fn parse(text: &str) -> Unit {
    let mut unit = Unit::new();
    let mut section = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.strip_suffix(']').unwrap().to_owned();
        } else {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let before = unit.insert((section.clone(), key.to_owned()), value.to_owned());
            assert_eq!(before, None, "{key} twice");
        }
    }
    unit
}

fn read(name: &str) -> Unit {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/");
    parse(&fs::read_to_string(folder.to_owned() + name).unwrap())
}

fn unit() -> Unit {
    read("iotrace.service")
}

fn service<'a>(unit: &'a Unit, key: &str) -> Option<&'a str> {
    unit.get(&("Service".to_owned(), key.to_owned())).map(String::as_str)
}

#[test]
fn it_starts_the_daemon() {
    let unit = unit();
    let command = service(&unit, "ExecStart").unwrap();
    assert!(command.starts_with("/usr/bin/iotrace "));
    let cli = Cli::read(command.split_whitespace()).unwrap();
    assert!(matches!(cli.command, Command::Daemon(daemon)
        if matches!(daemon.listen[..], [Address::Tcp(address)] if address.ip().is_loopback())));
    for (key, value) in [("Type", "notify"), ("Restart", "on-failure"), ("WatchdogSec", "30")] {
        assert_eq!(service(&unit, key), Some(value), "{key}");
    }
    // The exit code for "nothing can be measured".
    assert_eq!(service(&unit, "RestartPreventExitStatus"), Some(iotrace::cli::NOTHING.to_string().as_str()));
}

#[test]
fn its_socket_is_where_the_daemon_would_serve() {
    let unit = read("iotrace.socket");
    let stream: Address = unit[&("Socket".to_owned(), "ListenStream".to_owned())].parse().unwrap();
    let Command::Daemon(daemon) = Cli::read(["iotrace", "daemon"]).unwrap().command else { panic!("daemon") };
    assert_eq!(daemon.listen, [stream]);
}

#[test]
fn it_is_not_root_and_keeps_what_it_needs() {
    let unit = unit();
    for (key, value) in [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("LimitMEMLOCK", "infinity"),
        ("PrivateNetwork", "yes"),
        ("SystemCallErrorNumber", "EPERM"),
    ] {
        assert_eq!(service(&unit, key), Some(value), "{key}");
    }
    let needed = "CAP_BPF CAP_PERFMON CAP_SYSLOG CAP_SYS_RAWIO CAP_DAC_READ_SEARCH CAP_SYS_ADMIN";
    assert_eq!(service(&unit, "AmbientCapabilities"), Some(needed));
    assert_eq!(service(&unit, "CapabilityBoundingSet"), Some(needed));
    // Its socket comes from a unit of its own, which goes with it.
    let key = |section: &str, key: &str| unit.get(&(section.to_owned(), key.to_owned())).map(String::as_str);
    assert_eq!(key("Unit", "Requires"), Some("iotrace.socket"));
    assert_eq!(key("Install", "Also"), Some("iotrace.socket"));
    for breaks in
        ["User", "PrivateUsers", "ProtectKernelTunables", "ProtectKernelLogs", "PrivateDevices", "ProcSubset"]
    {
        assert_eq!(service(&unit, breaks), None, "{breaks}");
    }
}
