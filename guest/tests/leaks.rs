//! However iotrace ends, the kernel holds what it held before.

use std::{env, thread, time::Duration};

use iotrace_guest::{daemon::Daemon, in_guest, kernel::Held, process::eventually};

/// The kernel frees programs and probes after grace periods, and the files of a killed process one by one.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many times the daemon is started and ended: the whole proof on one kernel, a sample on the others.
fn cycles() -> u32 {
    env::var("IOTRACE_CYCLES").ok().and_then(|cycles| cycles.parse().ok()).unwrap_or(4)
}

/// Where in its life a daemon is ended.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Loading,
    Ready,
    Attached,
}

#[test]
fn nothing_stays_however_it_ends() {
    let _alone = in_guest();
    let before = Held::settled();
    let cycles = cycles();
    for cycle in 0..cycles {
        let signal = if cycle % 2 == 0 { libc::SIGTERM } else { libc::SIGKILL };
        // A killed daemon with all sites attached takes the kernel twenty seconds to bury; once is enough.
        let moment = match cycle {
            1 | 4 => Moment::Attached,
            _ if cycle % 4 < 2 => Moment::Ready,
            _ => Moment::Loading,
        };
        let mut daemon = Daemon::start(19_472);
        match moment {
            Moment::Loading => thread::sleep(Duration::from_millis(u64::from(1_000 + cycle % 10 * 200))),
            Moment::Ready => drop(daemon.ready()),
            Moment::Attached => drop(daemon.attached()),
        }
        let held = Held::now();
        let ended = daemon.end(signal);
        println!(
            "cycle {cycle}: signal {signal} at {moment:?} with {} programs, {} kprobes: ended in {:?}",
            held.programs,
            held.kprobes.len(),
            ended.took
        );
        let expected = if signal == libc::SIGKILL { 128 + libc::SIGKILL } else { 0 };
        assert_eq!(ended.code, expected, "cycle {cycle}, {moment:?}: {}", ended.stderr);
        if !matches!(moment, Moment::Loading) {
            assert!(held.programs > before.programs && held.kprobes.len() > before.kprobes.len());
        }
    }
    let mut left = Vec::new();
    eventually(PATIENCE, || {
        left = Held::now().beyond(&before);
        left.is_empty()
    });
    assert!(left.is_empty(), "left after {cycles} cycles: {left:#?}");
}
