//! Plan, probes and totals of the running kernel, put together: what the daemon, `top` and `check` have in common.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use thiserror::Error;

use crate::{
    kernel::{Facts, KernelError},
    privileges,
    probes::{KernelLog, Prepared, Probes, ProbesError, Scope},
    totals::Totals,
};

/// Why nothing can be traced; each with what to do.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TracerError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Probes(#[from] ProbesError),
    #[error("not one site could be probed; `iotrace check` lists the reasons")]
    Nothing,
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Probes that are being attached or are attached, by a thread of their own; detached by [`Tracer::stop`].
pub struct Tracer {
    /// What they count.
    pub totals: Arc<Totals>,
    /// The log of the kernel side, if rare events are logged.
    pub log: Option<KernelLog>,
    progress: mpsc::Receiver<Progress>,
    stop: Arc<AtomicBool>,
    wake: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// How far attaching has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The hot sites have had their turn.
    Hot,
    /// All sites have had their turn.
    All,
}

impl Tracer {
    /// Reads the running kernel, loads the kernel side, and begins to attach, hot sites first.
    ///
    /// `keep_privileges`: do not drop the capabilities of the attaching thread when it is done.
    ///
    /// # Errors
    /// Why nothing can be traced here.
    pub fn start(scope: Scope, keep_privileges: bool) -> Result<Tracer, TracerError> {
        let started = Instant::now();
        // Reading the symbols keeps the kernel busy on one CPU, reading the types this process on another.
        let preparing = thread::spawn(Prepared::new);
        let facts = Facts::read()?;
        log::debug!("planned after {:?}", started.elapsed());
        let prepared = preparing.join().unwrap_or_default();
        let (mut probes, records) = Probes::load(prepared, &facts, scope)?;
        let log = probes.log(scope);
        log::debug!("loaded after {:?}", started.elapsed());
        let (report, progress) = mpsc::channel();
        let (wake, sleeping) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("attach".into())
            .spawn(move || {
                attach(probes, &report, &stopped, keep_privileges, &sleeping);
            })
            .map_err(TracerError::Thread)?;
        Ok(Tracer { totals: Arc::new(Totals::of(records)), log, progress, stop, wake, thread })
    }

    /// How far attaching has come, if it has come farther since this was last asked.
    pub fn progress(&self) -> Option<Progress> {
        self.progress.try_iter().last()
    }

    /// Whether the attaching thread has died: it lives until [`Tracer::stop`].
    pub fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }

    /// Detaches everything and waits until it is done.
    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        drop(self.wake);
        // A panic of that thread has been printed; its probes went with it.
        let _panicked = self.thread.join();
    }
}

fn attach(
    mut probes: Probes,
    report: &mpsc::Sender<Progress>,
    stop: &AtomicBool,
    keep_privileges: bool,
    sleeping: &mpsc::Receiver<()>,
) {
    let mut hot = true;
    loop {
        let rank = probes.next_rank();
        if hot && rank != Some(0) {
            hot = false;
            // Nobody listening is no reason to stop.
            let _gone = report.send(Progress::Hot);
        }
        if rank.is_none() || stop.load(Relaxed) {
            break;
        }
        probes.attach_next();
    }
    if !stop.load(Relaxed) {
        if !keep_privileges {
            privileges::drop_all();
        }
        let _gone = report.send(Progress::All);
        // Until the tracer is stopped or dropped.
        let _stopped = sleeping.recv();
    }
    probes.detach();
}
