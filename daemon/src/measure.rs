//! What one-shot commands do: attach everything, look at a span of time, detach.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, IsTerminal as _},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    probes::Scope,
    snapshot::{Delta, Probe, State},
    totals::Rows,
    tracer::{Modules, Progress, Tracer},
};

/// How often the state of the attaching is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How often it is shown.
const SHOW: Duration = Duration::from_millis(500);

/// Probes on every site that this kernel allows, attached for one measurement.
pub struct Measure {
    tracer: Tracer,
    runner: Runner,
}

/// Runs commands, and notices meanwhile that a signal asks to stop.
pub struct Runner {
    signals: Signals,
    runtime: Runtime,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Whether one has come while a command ran.
    came: bool,
}

impl Signals {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// How a measured command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub ExitStatus);

impl Ended {
    /// The exit code a shell would report: 128 and the signal's number for a command killed by one.
    pub fn code(self) -> u8 {
        let code = self.0.code().or_else(|| self.0.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl Runner {
    /// From now on signals do not end this process.
    ///
    /// # Errors
    /// What the system does not give.
    pub fn new() -> Result<Runner> {
        let runtime =
            Builder::new_current_thread().enable_all().build().context("cannot start the event loop")?;
        let signals = runtime.block_on(async {
            anyhow::Ok(Signals {
                interrupt: signal(SignalKind::interrupt()).context("cannot catch SIGINT")?,
                terminate: signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
                came: false,
            })
        })?;
        Ok(Runner { signals, runtime })
    }

    /// Runs a command until it ends. The terminal's SIGINT reaches the command itself; SIGTERM is passed on to it.
    ///
    /// # Errors
    /// The command that cannot be run.
    pub fn command(&mut self, command: &[OsString]) -> io::Result<Ended> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program).args(arguments).spawn()?;
        self.runtime.block_on(wait(child, &mut self.signals)).map(Ended)
    }

    /// Whether a signal has asked to stop while a command ran.
    pub fn asked_to_stop(&self) -> bool {
        self.signals.came
    }
}

impl Measure {
    /// Attaches everything; returns when every site has had its turn.
    ///
    /// # Errors
    /// Why nothing can be traced, or that a signal came before all was attached. That the kernel refused every
    /// site is no error here: see [`Measure::probes`].
    pub fn start(scope: Scope) -> Result<Measure> {
        let mut runner = Runner::new()?;
        let tracer = Tracer::start(scope, Modules::Follow, Rows::All, None)?;
        let attached = runner.runtime.block_on(async {
            tokio::select! {
                () = runner.signals.any() => false,
                () = all_attached(&tracer) => true,
            }
        });
        if !attached {
            tracer.stop();
            bail!("stopped before the probes were attached");
        }
        Ok(Measure { tracer, runner })
    }

    /// What happens in this time, or until a signal asks to stop.
    pub fn span(&mut self, duration: Duration) -> Delta {
        let before = self.tracer.totals.snapshot();
        let (signals, until) = (&mut self.runner.signals, Instant::now() + duration);
        self.runner.runtime.block_on(async {
            tokio::select! {
                () = signals.any() => {}
                () = sleep_until(until) => {}
            }
        });
        Delta::between(&before, &self.tracer.totals.snapshot())
    }

    /// What a command and its descendants do until it ends. The terminal's SIGINT reaches the command itself;
    /// SIGTERM is passed on to it.
    ///
    /// # Errors
    /// The command that cannot be run.
    pub fn command(&mut self, command: &[OsString]) -> Result<(Delta, Ended), io::Error> {
        let before = self.tracer.totals.snapshot();
        let ended = self.runner.command(command)?;
        Ok((Delta::between(&before, &self.tracer.totals.snapshot()), ended))
    }

    /// Whether a signal has asked to stop while a command ran.
    pub fn asked_to_stop(&self) -> bool {
        self.runner.asked_to_stop()
    }

    /// The kinds of iterator on this kernel.
    pub fn kinds(&self) -> Vec<String> {
        self.tracer.totals.kinds()
    }

    /// Instructions that the verifier processed, by program.
    pub fn programs(&self) -> BTreeMap<String, u32> {
        self.tracer.totals.programs()
    }

    /// The state of every site.
    pub fn probes(&self) -> Vec<Probe> {
        self.tracer.totals.probes()
    }

    /// Detaches everything.
    pub fn stop(self) {
        self.tracer.stop();
    }
}

async fn all_attached(tracer: &Tracer) {
    let show = io::stderr().is_terminal();
    let mut shown = (Instant::now(), usize::MAX);
    while tracer.progress() != Some(Progress::All) && !tracer.is_dead() {
        if show && shown.0.elapsed() >= SHOW {
            let probes = tracer.totals.probes();
            let pending = probes.iter().filter(|probe| probe.state == State::Pending).count();
            if pending != shown.1 {
                eprint!("\rattaching, {pending} sites to go \x1b[K");
            }
            shown = (Instant::now(), pending);
        }
        sleep(LOOK).await;
    }
    if shown.1 != usize::MAX {
        eprint!("\r\x1b[K");
    }
}

/// Waits for the command on a thread, so that signals are answered meanwhile.
async fn wait(mut child: Child, signals: &mut Signals) -> io::Result<ExitStatus> {
    let pid = child.id().cast_signed();
    let (tell, mut ended) = oneshot::channel();
    thread::spawn(move || {
        let _nobody_waits = tell.send(child.wait());
    });
    loop {
        tokio::select! {
            status = &mut ended => return status.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())),
            _ = signals.interrupt.recv() => signals.came = true,
            _ = signals.terminate.recv() => {
                signals.came = true;
                // SAFETY: sends a signal; the child is not reaped before `ended` says so.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
        }
    }
}
