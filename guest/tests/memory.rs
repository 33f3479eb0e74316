//! What the daemon and its maps take, as the kernel counts it, is what docs/memory.md says.

use std::{collections::BTreeMap, env, fs, thread, time::Duration};

use iotrace_common::memory::{self, OVERHEAD};
use iotrace_guest::{
    crowd::Crowd, daemon::Daemon, exposition::Exposition, http, in_guest, kernel, process::content,
};

/// Processes that live at the same time, unless the environment says how many.
const CROWD: usize = 10_000;
/// What is promised of the daemon's memory, in bytes.
const RESIDENT: u64 = 20 << 20;
/// What is promised of a scrape's text, in bytes.
const TEXT: u64 = 200 << 10;

/// Bytes in memory of a process, as `/proc/PID/status` tells them.
fn resident(pid: u32) -> u64 {
    let status = content(&format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process that runs");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// CPUs that the machine may have.
fn possible() -> usize {
    let list = content("/sys/devices/system/cpu/possible");
    list.trim().split(['-', ',']).filter_map(|number| number.parse::<usize>().ok()).max().unwrap_or(0) + 1
}

/// The maps that a process holds, by their numbers: what the kernel says of each descriptor.
fn maps_of(pid: u32) -> BTreeMap<u64, u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process that runs").flatten();
    let map = |text: &str| {
        let number =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        number("map_id:").zip(number("memlock:"))
    };
    files.filter_map(|file| map(&content(&file.path().display().to_string()))).collect()
}

fn map_bytes(scrape: &Exposition) -> BTreeMap<&str, u64> {
    let samples = scrape.with("iotrace_map_bytes", &[]);
    samples.map(|sample| (sample.labels["map"].as_str(), sample.value as u64)).collect()
}

#[test]
fn memory_is_what_is_promised() {
    let _alone = in_guest();
    let mut daemon = Daemon::start(19_490);
    println!("attached after {:?}", daemon.attached());
    let scrape = daemon.metrics();
    let pid = daemon.pid();

    let told = map_bytes(&scrape);
    let held = maps_of(pid);
    println!("maps: {told:?}");
    assert_eq!(told.len(), held.len(), "{told:?} {held:?}");
    let sum: u64 = told.values().sum();
    assert_eq!(sum, held.values().sum::<u64>());
    assert!(sum <= (8 << 20) + (64 << 10) * possible() as u64, "{sum} bytes in maps");
    let sets = told["SITES"] as usize / 64;
    let formula = memory::maps(sets.next_power_of_two() / 2);
    for map in formula {
        let (bytes, reckoned) = (told[map.name] as usize, map.fixed + map.per_cpu * possible());
        assert!((reckoned..=reckoned + OVERHEAD).contains(&bytes), "{}: {bytes}, not {reckoned}", map.name);
    }
    let small = told.iter().filter(|(name, _)| formula.iter().all(|map| map.name != **name));
    small.for_each(|(name, bytes)| assert!(*bytes <= 2 * OVERHEAD as u64, "{name}: {bytes}"));

    let (own, seen) = (scrape.sum("process_resident_memory_bytes", &[]), resident(pid));
    assert!(own.abs_diff(seen) < 1 << 20, "{own} told, {seen} seen");
    assert!(scrape.sum("process_open_fds", &[]).abs_diff(kernel::files(pid) as u64) <= 2);
    assert!(seen <= RESIDENT, "{seen} bytes resident after the start");
    println!("{} kB resident after the start", seen >> 10);

    let members = env::var("IOTRACE_CROWD").ok().and_then(|number| number.parse().ok()).unwrap_or(CROWD);
    let crowd = Crowd::start(members);
    let imports = |scrape: &Exposition| scrape.sum("iotrace_import_segments_count", &[("path", "readv")]);
    let before = imports(&daemon.metrics());
    for round in 1..=2 {
        crowd.call();
        let scrape = daemon.metrics();
        assert_eq!(imports(&scrape) - before, (members * round) as u64);
        let rows = scrape.sum("iotrace_process_imports_total", &[]);
        assert_eq!(rows, scrape.sum("iotrace_import_segments_count", &[]));
        println!("{} kB resident with {members} processes, round {round}", resident(pid) >> 10);
        assert!(resident(pid) <= RESIDENT);
    }
    thread::sleep(Duration::from_secs(1));
    let answer = http::get(daemon.address(), "/metrics").expect("an answer");
    println!("{} bytes of text", answer.body.len());
    assert!(answer.body.len() as u64 <= TEXT);
    drop(crowd);
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
