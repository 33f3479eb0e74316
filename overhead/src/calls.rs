//! The table of costs: one row for each tracer and load, all measured in this guest, one after the other.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use iotrace_guest::daemon::Daemon;
use serde_json::{Value, json};

use crate::{
    empty::{Empty, FUNCTION},
    load::Load,
    peers::PEERS,
    places::{OPTIMIZED, Place, Site, sites},
    planning,
};

/// Where the daemon serves.
const PORT: u16 = 9469;
/// What a detached probe leaves behind is gone by then.
const AFTERMATH: Duration = Duration::from_secs(1);
/// Where the walk of [`Load::Walk`] is, whatever the walker.
const WALKS_IN: &str = "filemap_read";
/// A function on the way of each of these loads. iotrace itself has fentry or fexit on the last two.
const WHOLE: [(Load, &str); 3] =
    [(Load::Import, FUNCTION), (Load::Splice, "__x64_sys_vmsplice"), (Load::Peek, "simple_copy_to_iter")];
/// The call of the import in [`Load::Import`].
const IMPORT: (&str, &str) = ("import_iovec", FUNCTION);

/// The table so far.
struct Calls {
    rows: Vec<Value>,
}

/// Measures; with `peers` also other tracers.
///
/// # Errors
/// If nothing could be measured at all; a row that cannot be measured says why.
pub fn measure(peers: bool) -> Result<Value> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("no release")?;
    let sites = sites()?;
    let mut once = planning::measure()?;
    let mut calls = Calls { rows: Vec::new() };
    for load in Load::ALL {
        calls.row("nothing", load, || Ok((load.measure()?, String::new())));
    }
    calls.empty(&sites);
    once.extend(calls.ours("iotrace", &["--no-selftest", "--exact"], &Load::ALL));
    calls.ours(
        "iotrace, other processes chosen",
        &["--no-selftest", "--exact", "--comm", "nobody"],
        &Load::ALL,
    );
    if peers {
        for peer in PEERS {
            calls.row(peer.name, Load::Import, || Ok((peer.measure(Load::Import)?, String::new())));
        }
    }
    calls.row("nothing, at the end", Load::Import, || Ok((Load::Import.measure()?, String::new())));
    Ok(json!({ "release": release.trim(), "rows": calls.rows, "once": once }))
}

impl Calls {
    fn row(&mut self, name: &str, load: Load, measured: impl FnOnce() -> Result<(f64, String)>) {
        let row = match measured() {
            Ok((instructions, note)) => {
                json!({"row": name, "load": load.name(), "instructions": instructions.round(), "note": note})
            }
            Err(error) => json!({"row": name, "load": load.name(), "skipped": format!("{error:#}")}),
        };
        eprintln!("bench: {row}");
        self.rows.push(row);
        thread::sleep(AFTERMATH);
    }

    /// Programs that do nothing, at the places where iotrace's are.
    fn empty(&mut self, sites: &[Site]) {
        for (load, function) in WHOLE {
            let mut row = |name: &str, entry: bool, exit: bool| {
                self.row(name, load, || {
                    let mut empty = Empty::new()?;
                    if entry {
                        empty.fentry(function)?;
                    }
                    if exit {
                        empty.fexit(function)?;
                    }
                    Ok((load.measure()?, function.into()))
                });
            };
            row("empty fentry", true, false);
            row("empty fexit", false, true);
            row("empty fentry and fexit", true, true);
        }
        let entry = Place { function: FUNCTION.into(), offset: 0 };
        self.kprobe("empty kprobe, function entry", Load::Import, || Ok(vec![entry]), false);
        let import = |places: fn(&Site) -> Vec<Place>| {
            let site = sites.iter().find(|site| (&*site.target, &*site.place.function) == IMPORT);
            site.map(places).with_context(|| format!("{} does not call {}", IMPORT.1, IMPORT.0))
        };
        let call = || import(|site| vec![site.place.clone()]);
        let after = || import(|site| vec![site.place.after()]);
        let ours = || import(|site| site.kprobes.clone());
        self.kprobe("empty kprobe, the call", Load::Import, call, false);
        self.kprobe("empty kprobe, after the call", Load::Import, after, false);
        self.kprobe("empty kprobes, where iotrace's are", Load::Import, ours, false);
        self.kprobe("kprobe that reads the clock, after the call", Load::Import, after, true);
        let walk = |places: fn(&Site) -> Vec<Place>| {
            let in_function = sites.iter().filter(|site| site.place.function == WALKS_IN);
            let places: Vec<Place> = in_function.flat_map(places).collect();
            if places.is_empty() {
                bail!("iotrace probes nothing in {WALKS_IN}");
            }
            Ok(places)
        };
        let after = || walk(|site| vec![site.place.after()]);
        let ours = || walk(|site| site.kprobes.clone());
        self.kprobe("empty kprobe, after the call", Load::Walk, after, false);
        self.kprobe("kprobe that reads the clock, after the call", Load::Walk, after, true);
        self.kprobe("empty kprobes, where iotrace's are", Load::Walk, ours, false);
        self.kprobe("kprobes that read the clock, where iotrace's are", Load::Walk, ours, true);
    }

    fn kprobe(&mut self, name: &str, load: Load, places: impl FnOnce() -> Result<Vec<Place>>, clock: bool) {
        self.row(name, load, || {
            let places = places()?;
            let mut empty = Empty::new()?;
            let note = empty.kprobes(&places, clock)?;
            Ok((load.measure()?, note))
        });
    }

    /// The daemon, with all that it does. Returns what its start took.
    fn ours(&mut self, name: &str, options: &[&str], loads: &[Load]) -> Vec<Value> {
        let mut daemon = Daemon::start_with(PORT, options);
        daemon.attached();
        thread::sleep(OPTIMIZED);
        let start = daemon.metrics();
        let start = ["read", "plan", "load"].map(|stage| {
            let seconds: f64 =
                start.with("iotrace_start_seconds", &[("stage", stage)]).map(|sample| sample.value).sum();
            json!({"row": format!("start of the daemon, {stage}"), "instructions": (seconds * 1e9).round()})
        });
        for load in loads {
            self.row(name, *load, || {
                let before = daemon.metrics();
                let instructions = load.measure()?;
                let after = daemon.metrics();
                let grown = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
                let note = format!(
                    "{} imports and {} walks counted",
                    grown("iotrace_import_segments_count"),
                    grown("iotrace_iter_calls_total")
                );
                Ok((instructions, note))
            });
        }
        daemon.end(libc::SIGTERM);
        thread::sleep(AFTERMATH);
        start.into()
    }
}
