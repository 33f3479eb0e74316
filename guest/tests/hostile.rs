//! Conditions that are against iotrace: its numbers are right there, or it says in one line why it cannot.
//!
//! Needs a guest with four processors. What is run with `--ignored` needs one with one processor, and spoils it.

use std::{
    collections::BTreeMap, fs, io, os::unix::process::CommandExt as _, process::Command, thread,
    time::Duration,
};

use iotrace_guest::{
    LOAD,
    daemon::Daemon,
    findings, in_guest,
    kernel::{self, Hidden, Setting},
    process::{Ended, content, iotrace, run, top},
    report::{ByPath, Imports, Report, between},
};

const LIMIT: Duration = Duration::from_secs(60);
const TRACING: &str = "/sys/kernel/tracing";

/// What `iotrace-load exact` does so many times.
fn exact(times: u64) -> ByPath {
    let row = |calls, single, segments, allocated| Imports {
        calls: times * calls,
        single: times * single,
        segments: times * segments,
        allocated: Some(times * allocated),
        bytes: times * segments * 64,
        errors: 0,
    };
    [("readv", row(15_000, 10_000, 25_000, 0)), ("writev", row(2_000, 0, 18_000, 2_000))]
        .map(|(path, row)| (path.into(), row))
        .into()
}

fn measured(script: &str) -> Report {
    let (code, report) = top(&["sh", "-c", script]);
    assert_eq!(code, 0, "{script}");
    assert_eq!(report.lost(), BTreeMap::new());
    report
}

fn right(condition: &str, report: &Report, times: u64) {
    assert_eq!(report.imports(), exact(times), "{condition}");
    findings::note("condition", &format!("{condition}: exact numbers"));
}

/// `top` does not start, and says why in one line with all these words.
fn refused(condition: &str, command: &mut Command, words: &[&str]) {
    let ended = run(command, LIMIT);
    assert_eq!(ended.code, 2, "{condition}: {ended:?}");
    told(condition, &ended, words);
}

fn told(condition: &str, ended: &Ended, words: &[&str]) {
    let line = ended.line();
    println!("{condition}: {line}");
    for word in words {
        assert!(line.contains(word), "{condition}: no {word} in: {line}");
    }
    findings::note("condition", &format!("{condition}: {line}"));
}

fn processors() -> String {
    content("/sys/devices/system/cpu/online").trim().to_owned()
}

/// `iotrace top` without a capability that root has: it is taken from what a program can have at all.
fn without(capability: libc::c_ulong, arguments: &[&str]) -> Command {
    let mut command = iotrace(arguments);
    let drop = move || {
        // SAFETY: numbers only.
        match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: prctl is async-signal-safe and touches only the new process.
    unsafe { command.pre_exec(drop) };
    command
}

#[test]
fn four_processors_at_once() {
    let _alone = in_guest();
    assert_eq!(processors(), "0-3");
    let each = format!(
        "for mask in 1 2 4 8; do taskset $mask {LOAD} exact || echo >/tmp/bad & done; wait; [ ! -e /tmp/bad ]"
    );
    right("four processors", &measured(&each), 4);
}

#[test]
fn a_processor_goes_and_comes_back() {
    let _alone = in_guest();
    let cpu = "/sys/devices/system/cpu/cpu1/online";
    let script = format!(
        "taskset 2 {LOAD} exact && echo 0 >{cpu} && {LOAD} exact && echo 1 >{cpu} && taskset 2 {LOAD} exact"
    );
    right("a processor goes and comes back under top", &measured(&script), 3);

    let mut daemon = Daemon::start(19_481);
    daemon.attached();
    let exact_on = |mask: &str| {
        let ended = run(Command::new("taskset").args([mask, LOAD, "exact"]), LIMIT);
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    let mut scrapes = vec![daemon.metrics().imports()];
    exact_on("2");
    scrapes.push(daemon.metrics().imports());
    {
        let _offline = Setting::set(cpu, "0");
        assert_eq!(processors(), "0,2-3");
        exact_on("4");
        scrapes.push(daemon.metrics().imports());
    }
    assert_eq!(processors(), "0-3");
    exact_on("2");
    scrapes.push(daemon.metrics().imports());
    for pair in scrapes.windows(2) {
        assert_eq!(between(&pair[0], &pair[1]), exact(1));
    }
    findings::note("condition", "a processor goes and comes back under the daemon: exact numbers");
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}

/// A kprobe event and the function tracer of the kernel's own, while they last.
struct OwnTracers(String);

impl OwnTracers {
    fn on(function: &str, offset: &str) -> OwnTracers {
        let event = format!("p:other/site {function}+{offset}");
        for (file, value) in [
            ("kprobe_events", event.as_str()),
            ("events/other/site/enable", "1"),
            ("set_ftrace_filter", function),
            ("current_tracer", "function"),
        ] {
            fs::write(format!("{TRACING}/{file}"), value).unwrap_or_else(|error| panic!("{file}: {error}"));
        }
        OwnTracers("site".into())
    }

    /// How often the event came.
    fn hits(&self) -> u64 {
        let profile = content(&format!("{TRACING}/kprobe_profile"));
        let line = profile.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let words = line.clone().find(|words| words.first() == Some(&self.0.as_str()));
        words.and_then(|words| words.get(1)?.parse().ok()).unwrap_or_else(|| panic!("no hits in {profile}"))
    }
}

impl Drop for OwnTracers {
    fn drop(&mut self) {
        for (file, value) in [
            ("current_tracer", "nop"),
            ("set_ftrace_filter", ""),
            ("events/other/site/enable", "0"),
            ("kprobe_events", ""),
        ] {
            let _nothing_to_do_about_it = fs::write(format!("{TRACING}/{file}"), value);
        }
    }
}

/// The kernel's tracers first, and a second iotrace at the same time.
#[test]
fn other_tracers_at_the_same_places() {
    let _alone = in_guest();
    let sites = measured("true").attached();
    let site = sites
        .iter()
        .find(|[target, site]| target.ends_with("import_iovec") && site.starts_with("vfs_readv+"));
    let site = &site.unwrap_or_else(|| panic!("vfs_readv is not probed: {sites:?}"))[1];
    let (function, offset) = site.split_once('+').expect("a place in a function");
    let tracers = OwnTracers::on(function, offset);
    let second = thread::spawn(|| top(&["sh", "-c", &format!("sleep 3; {LOAD} exact")]));
    let first = measured(&format!("sleep 3; {LOAD} exact"));
    let (code, second) = second.join().expect("the other top does not panic");
    assert_eq!(code, 0);
    assert_eq!(tracers.hits(), 2 * 15_000, "the kprobe event at {site}");
    right("a kprobe event, the function tracer and a second iotrace at the same place", &first, 1);
    assert_eq!(second.imports(), exact(1));
}

#[test]
fn perf_events_for_the_privileged() {
    let _alone = in_guest();
    let _paranoid = Setting::set("/proc/sys/kernel/perf_event_paranoid", "3");
    right("kernel.perf_event_paranoid is 3", &measured(&format!("{LOAD} exact")), 1);
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    let script = format!("{LOAD} exact");
    let mut command = without(CAP_SYS_ADMIN, &["top", "-o", "json", "--", "sh", "-c", &script]);
    let ended = run(&mut command, LIMIT);
    let condition = "kernel.perf_event_paranoid is 3, without CAP_SYS_ADMIN";
    told(condition, &ended, &["kernel.perf_event_paranoid", "CAP_SYS_ADMIN"]);
    // Some probes are no perf events. What they count is right, and that others are missing was told.
    if ended.code != 2 {
        assert_eq!(ended.code, 0, "{ended:?}");
        for (path, row) in Report::parse(&ended.stdout).imports() {
            assert_eq!(exact(1).get(&path), Some(&row), "{path}");
        }
    }
}

#[test]
fn hidden_addresses() {
    let _alone = in_guest();
    let _restricted = Setting::set("/proc/sys/kernel/kptr_restrict", "2");
    refused("kernel.kptr_restrict is 2", &mut iotrace(&["top", "-d", "1"]), &["kernel.kptr_restrict"]);
}

#[test]
fn no_types() {
    let _alone = in_guest();
    {
        let _empty = Hidden::file("/sys/kernel/btf/vmlinux", "/dev/null");
        refused("an empty BTF", &mut iotrace(&["top", "-d", "1"]), &["/sys/kernel/btf/vmlinux"]);
    }
    let _none = Hidden::folder("/sys/kernel/btf");
    refused(
        "no BTF",
        &mut iotrace(&["top", "-d", "1"]),
        &["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"],
    );
}

/// Before 5.11 maps count as locked memory, and without this capability the limit cannot be raised. Since then the
/// limit is nothing to maps.
#[test]
#[ignore = "run where there is one processor"]
fn little_memory_may_be_locked() {
    let _alone = in_guest();
    const CAP_SYS_RESOURCE: libc::c_ulong = 24;
    let script = format!("{LOAD} exact");
    let mut command = without(CAP_SYS_RESOURCE, &["top", "-o", "json", "--", "sh", "-c", &script]);
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
        // SAFETY: the kernel reads the structure.
        match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: setrlimit is async-signal-safe and touches only the new process.
    unsafe { command.pre_exec(limit) };
    let condition = "64 KiB may be locked, without CAP_SYS_RESOURCE";
    if kernel::version() < (5, 11) {
        refused(condition, &mut command, &["ulimit -l"]);
        return;
    }
    let ended = run(&mut command, LIMIT);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    right(condition, &Report::parse(&ended.stdout), 1);
}

#[test]
#[ignore = "locks the guest's kernel down for good"]
fn locked_down_for_integrity_on_one_processor() {
    let _alone = in_guest();
    assert_eq!(processors(), "0");
    fs::write("/sys/kernel/security/lockdown", "integrity").expect("this kernel can be locked down");
    right("lockdown=integrity, one processor", &measured(&format!("{LOAD} exact")), 1);
}
