//! Takes samples: each a process of its own, in rounds, first with probes and then without.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal as _},
    os::unix::process::ExitStatusExt as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use iotrace_load::{Outcome, Report};
use serde::de::DeserializeOwned;

use crate::{
    measure::{Ended, Measure, Runner},
    snapshot::{Delta, Probe},
};

/// Rounds: what drifts meanwhile meets every row alike.
pub const ROUNDS: u32 = 3;

/// How often the progress is shown.
const SHOW: Duration = Duration::from_millis(500);

/// A process that takes a sample: this program, with these arguments and `--report FD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What is said of it meanwhile.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// What came of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken<T> {
    /// Which task's it is.
    pub task: usize,
    /// What it said of itself.
    pub outcome: Outcome<T>,
    /// What the probes saw of it; `None` without them.
    pub seen: Option<Delta>,
}

/// Everything that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples<T> {
    /// In the order of time.
    pub taken: Vec<Taken<T>>,
    /// Whether a signal ended it before it was complete.
    pub interrupted: bool,
    /// The state of the probes; `None` without them.
    pub probes: Option<Vec<Probe>>,
}

/// Takes `ROUNDS` × `samples` samples of each task, with `measure` and then as many without probes.
///
/// # Errors
/// No process can be run.
pub fn samples<T: DeserializeOwned>(
    tasks: &[Task],
    samples: u32,
    measure: Option<Measure>,
) -> Result<Samples<T>> {
    let mut all = Samples { taken: Vec::new(), interrupted: false, probes: None };
    let passes = 1 + u32::from(measure.is_some());
    let mut progress = Progress::new(tasks.len() * (passes * ROUNDS * samples) as usize);
    if let Some(mut measure) = measure {
        all.probes = Some(measure.probes());
        let mut command = |command: &[OsString]| {
            let (delta, ended) = measure.command(command)?;
            Ok((Some(delta), Stopped(measure.asked_to_stop() || killed(ended)), ended.0.to_string()))
        };
        let pass = pass(tasks, samples, "with probes", &mut progress, &mut all, &mut command);
        measure.stop();
        pass?;
    }
    if !all.interrupted {
        let mut runner = Runner::new()?;
        let mut command = |command: &[OsString]| {
            let ended = runner.command(command)?;
            Ok((None, Stopped(runner.asked_to_stop() || killed(ended)), ended.0.to_string()))
        };
        pass(tasks, samples, "without probes", &mut progress, &mut all, &mut command)?;
    }
    progress.clear();
    Ok(all)
}

/// Whether the load ended by the signal that this process is about to get, too.
fn killed(ended: Ended) -> bool {
    matches!(ended.0.signal(), Some(libc::SIGINT | libc::SIGTERM))
}

struct Stopped(bool);

type Command<'a> = &'a mut dyn FnMut(&[OsString]) -> io::Result<(Option<Delta>, Stopped, String)>;

fn pass<T: DeserializeOwned>(
    tasks: &[Task],
    samples: u32,
    name: &str,
    progress: &mut Progress,
    all: &mut Samples<T>,
    command: Command<'_>,
) -> Result<()> {
    let program = env::current_exe().context("cannot tell where this program is")?;
    for round in 1..=ROUNDS {
        for (number, task) in tasks.iter().enumerate() {
            for _ in 0..samples {
                progress.step(&format!("{name}, round {round} of {ROUNDS}, {}", task.name));
                let report = Report::new().context(
                    "cannot make a file in memory, perhaps for the limit of open files (ulimit -n)",
                )?;
                let own = [program.clone().into()];
                let arguments = task.arguments.iter().map(OsString::from);
                let last = ["--report".into(), report.number().to_string().into()];
                let words: Vec<OsString> = own.into_iter().chain(arguments).chain(last).collect();
                let (seen, Stopped(stopped), ended) = command(&words).context("cannot run a load")?;
                if stopped {
                    all.interrupted = true;
                    return Ok(());
                }
                let outcome =
                    report.read().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}: {ended}")));
                if let Outcome::Failed(why) = &outcome {
                    bail!("{}: {why}", task.name);
                }
                all.taken.push(Taken { task: number, outcome, seen });
            }
        }
    }
    Ok(())
}

/// On a terminal, what is being done and how long it will take.
struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    fn new(steps: usize) -> Progress {
        Progress { steps, done: 0, started: Instant::now(), shown: None }
    }

    fn step(&mut self, what: &str) {
        let passed = self.started.elapsed();
        if io::stderr().is_terminal() && self.shown.is_none_or(|shown| shown.elapsed() >= SHOW) {
            let left = passed.as_secs_f64() / self.done.max(1) as f64 * (self.steps - self.done) as f64;
            let left = if self.done == 0 { String::new() } else { format!(", about {left:.0} s to go") };
            eprint!("\r{} of {}: {what}{left}\x1b[K", self.done + 1, self.steps);
            self.shown = Some(Instant::now());
        }
        self.done += 1;
    }

    fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
