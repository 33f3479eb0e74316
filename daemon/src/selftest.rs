//! Whether what iotrace counts is what happened: loads that know their own numbers run one after the other, each as
//! a process of its own, and each number is compared.

mod cases;
pub mod compare;
mod report;
mod start;
mod syscalls;

use std::{env, ffi::OsString, io, os::unix::process::ExitStatusExt as _};

use anyhow::{Context as _, Result, bail};
use iotrace_load::{Abi, Outcome, Report, Tally};

use crate::{
    measure::{Ended, Measure},
    snapshot::{Delta, Probe},
};

use cases::{IMPORTS, Import, NO_WORK, WALKS, Walk};
use compare::Numbers;
pub use report::{Row, State, exit_code, json, text};
pub use start::at_start;
use syscalls::{Agreement, Counters};

/// Calls of each load with each number of segments.
const COUNT: u64 = 200;
/// Segments of the vectors: the one that is imported alone, some, and more than fit an importer's own array.
const SEGMENTS: [u64; 3] = [1, 3, 9];
/// How often a walk is measured until what surrounds it holds still.
const TRIES: usize = 3;
/// Calls with an array that is not there.
const ABSENT: u64 = 30;

/// The functions in which imports on this path are called.
pub fn importers(path: &str) -> &'static [&'static str] {
    IMPORTS.iter().find(|case| case.path == path).map_or(&[], |case| case.importers)
}

/// Runs every load of the table, and compares.
///
/// # Errors
/// A signal came, or no load can be started at all.
pub fn run(measure: &mut Measure) -> Result<Vec<Row>> {
    let (probes, kinds) = (measure.probes(), measure.kinds());
    let program = env::current_exe().context("cannot tell where this program is")?;
    let mut observe = |arguments: Vec<OsString>| {
        let command: Vec<OsString> =
            [program.clone().into(), "load".into()].into_iter().chain(arguments).collect();
        measure.command(&command)
    };
    let mut test = Test { observe: &mut observe, probes: &probes, counters: Counters::open() };
    let mut rows = Vec::new();
    for case in IMPORTS {
        for &abi in case.abis {
            rows.extend(test.import(case, abi)?);
        }
    }
    rows.extend(NO_WORK.iter().map(|&(path, why)| Row::impossible(path, "-", "64", why)));
    for case in WALKS {
        rows.push(test.walk(case, &kinds)?);
    }
    let tested = |kind: &String| WALKS.iter().any(|case| case.kinds.contains(&kind.as_str()));
    let untested = kinds.iter().filter(|kind| !tested(kind) && *kind != "other");
    rows.extend(untested.map(|kind| Row::impossible(kind, "-", "64", "no load makes one on every machine")));
    Ok(rows)
}

/// Runs a load with these arguments, and tells what was counted meanwhile.
type Observe<'a> = &'a mut dyn FnMut(Vec<OsString>) -> io::Result<(Delta, Ended)>;

struct Test<'a> {
    observe: Observe<'a>,
    probes: &'a [Probe],
    counters: Counters,
}

impl Test<'_> {
    fn import(&mut self, case: &Import, abi: Abi) -> Result<Vec<Row>> {
        let segments = SEGMENTS.map(|segments| segments.to_string()).join(",");
        let arguments = format!(
            "{} --abi {} --count {COUNT} --segments {segments} --absent {ABSENT} --fork",
            case.work.name(),
            abi.name()
        );
        let (outcome, delta, agreement) = self.load(&arguments)?;
        let row = |path: &str| Row::new(path, case.work.name(), abi.name());
        let tally = match outcome {
            Outcome::Impossible(why) => return Ok(vec![row(case.path).cannot(&why)]),
            Outcome::Failed(why) => return Ok(vec![row(case.path).fails(&why)]),
            Outcome::Done(tally) => tally,
        };
        let mut paths: Vec<&str> = tally.paths().collect();
        let counted = delta.0.imports.iter().filter(|row| row.calls() > 0).map(|row| row.path.as_str());
        paths.extend(counted);
        paths.sort_unstable();
        paths.dedup();
        let mut rows: Vec<Row> = paths
            .into_iter()
            .map(|path| {
                let seen = delta.0.imports.iter().find(|row| row.path == path).map(Numbers::of_import);
                let missing = compare::missing(self.probes, compare::IMPORTERS, case.importers);
                row(path).compared(Numbers::of_load(&tally.imports(path)), seen.unwrap_or_default(), missing)
            })
            .collect();
        if let Some(first) = rows.first_mut() {
            first.agree(agreement);
        }
        Ok(rows)
    }

    /// What a process does from its start to its end beside its work is measured before and after, and taken away. If it
    /// was not the same both times, nothing follows, and all is done once more.
    fn walk(&mut self, case: &Walk, kinds: &[String]) -> Result<Row> {
        // The option that tells loads apart.
        let work = match case.options.split_once("--file ") {
            Some((_, file)) => format!("{} {file}", case.work.name()),
            None => case.work.name().to_owned(),
        };
        let Some(kind) = case.kinds.iter().find(|kind| kinds.iter().any(|known| known == *kind)) else {
            let why = "this kernel has no such kind";
            return Ok(Row::impossible(case.kinds[0], &work, Abi::Native.name(), why));
        };
        let row = Row::new(kind, &work, Abi::Native.name());
        let mut measured = [const { Numbers::NONE }; 3];
        for _ in 0..TRIES {
            for (seen, count) in measured.iter_mut().zip([0, COUNT, 0]) {
                let arguments = format!("{} --count {count} {}", case.work.name(), case.options);
                let (outcome, delta, _) = self.load(&arguments)?;
                match outcome {
                    Outcome::Impossible(why) => return Ok(row.cannot(&why)),
                    Outcome::Failed(why) => return Ok(row.fails(&why)),
                    Outcome::Done(_) => *seen = Numbers::of_walks(&delta, case.functions, kind),
                }
            }
            if measured[0] == measured[2] {
                break;
            }
        }
        let [idle, busy, _] = measured;
        let missing = compare::missing(self.probes, case.functions, case.callers);
        Ok(row.compared(Numbers::of_calls(COUNT, COUNT * case.bytes), busy.less(&idle), missing))
    }

    fn load(&mut self, arguments: &str) -> Result<(Outcome, Delta, Agreement)> {
        let report = Report::new()
            .context("cannot make a file in memory, perhaps for the limit of open files (ulimit -n)")?;
        let number = report.number().to_string();
        let arguments =
            arguments.split_whitespace().chain(["--report", number.as_str()]).map(OsString::from).collect();
        let before = self.counters.read();
        let (delta, ended) = (self.observe)(arguments).context("cannot run a load")?;
        if matches!(ended.0.signal(), Some(libc::SIGINT | libc::SIGTERM)) {
            bail!("stopped by a signal");
        }
        let outcome =
            report.read().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}: {}", ended.0)));
        let none = Tally::default();
        let made = if let Outcome::Done(tally) = &outcome { tally } else { &none };
        let agreement = self.counters.compare(&before, &made.syscalls());
        Ok((outcome, delta, agreement))
    }
}
