//! Plan, probes and totals of the running kernel, put together: what the daemon, `top` and `check` have in common.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use thiserror::Error;

use crate::{
    allocator,
    governor::TICK,
    kernel::{self, Facts, KernelError},
    privileges,
    probes::{KernelLog, Prepared, Probes, ProbesError, Scope},
    totals::{Rows, Totals},
};

mod budget;

use budget::{Measured, Wanted};

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
    Thread(io::Error),
}

/// Probes that are being attached or are attached, by a thread of their own; detached by [`Tracer::stop`].
pub struct Tracer {
    /// What they count.
    pub totals: Arc<Totals>,
    /// The log of the kernel side, if rare events are logged.
    pub log: Option<KernelLog>,
    /// How long it took until attaching began.
    pub took: Took,
    progress: mpsc::Receiver<Progress>,
    drained: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    wake: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// How long the parts of the start took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// The kernel handed out its symbols, types and text.
    pub read: Duration,
    /// The plan was made of them.
    pub plan: Duration,
    /// Programs and maps were loaded.
    pub load: Duration,
}

/// Which modules' sites are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modules {
    /// Also of those that are loaded later; the attaching thread keeps the capabilities that this takes.
    Follow,
    /// Of those that are there at the start; the attaching thread drops its capabilities when it is done.
    AtStart,
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
    /// Reads the running kernel, loads the kernel side, and begins to attach, hot sites first. With a budget, a share of each
    /// processor, sites of walkers are closed where they would cost more.
    ///
    /// # Errors
    /// Why nothing can be traced here.
    pub fn start(
        scope: Scope,
        modules: Modules,
        rows: Rows,
        budget: Option<f64>,
    ) -> Result<Tracer, TracerError> {
        let started = Instant::now();
        let budget = budget.map(Wanted::new);
        // Reading the symbols keeps the kernel busy on one CPU, reading the types this process on another.
        let preparing = thread::spawn(Prepared::new);
        let facts = Facts::read()?;
        let known = started.elapsed();
        let prepared = preparing.join().unwrap_or_default();
        let (mut probes, records) = Probes::load(prepared, &facts, &scope)?;
        let log = probes.log(&scope);
        // What aya prepared meanwhile and had not done by then belongs to the loading.
        let took = Took { read: facts.read, plan: facts.planned, load: started.elapsed() - known };
        log::debug!("{took:?}");
        let totals = Arc::new(Totals::of(records, rows));
        let drained = Arc::default();
        drain(&totals, Arc::clone(&drained)).map_err(TracerError::Thread)?;
        let budget = budget.and_then(Wanted::measured).map(|measured| (measured, Arc::clone(&totals)));
        let (report, progress) = mpsc::channel();
        let (wake, sleeping) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("attach".into())
            .spawn(move || {
                attach(probes, &report, &stopped, modules, &sleeping, budget);
            })
            .map_err(TracerError::Thread)?;
        Ok(Tracer { totals, log, took, progress, drained, stop, wake, thread })
    }

    /// How far attaching has come, if it has come farther since this was last asked.
    pub fn progress(&self) -> Option<Progress> {
        self.progress.try_iter().last()
    }

    /// How often the thread that reads the maps has come round, which it does once a second at least.
    pub fn drained(&self) -> u64 {
        self.drained.load(Relaxed)
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

/// Handovers are taken together this often at most: the ring buffer holds 100,000 a second.
const DRAIN: Duration = Duration::from_millis(20);

/// How often it is looked whether anybody still holds the totals.
const IDLE: Duration = Duration::from_secs(1);

/// Takes what processes hand over, as long as anybody holds the totals; counts how often in `rounds`.
fn drain(totals: &Arc<Totals>, rounds: Arc<AtomicU64>) -> io::Result<()> {
    let waiter = totals.waiter()?;
    let totals = Arc::downgrade(totals);
    let drain = move || {
        while let Some(totals) = totals.upgrade() {
            totals.drain();
            drop(totals);
            rounds.fetch_add(1, Relaxed);
            thread::sleep(DRAIN);
            waiter.wait(IDLE);
        }
    };
    thread::Builder::new().name("drain".into()).spawn(drain).map(drop)
}

/// How often it is looked whether modules have come or gone.
const MODULES: Duration = Duration::from_secs(2);

/// Attaches, hot sites first; then follows the modules that come and go, until it is told to stop.
fn attach(
    mut probes: Probes,
    report: &mpsc::Sender<Progress>,
    stop: &AtomicBool,
    modules: Modules,
    sleeping: &mpsc::Receiver<()>,
    budget: Option<(Measured, Arc<Totals>)>,
) {
    let mut seen = kernel::modules();
    let mut hot = true;
    let (mut measured, mut budget) = (budget, None);
    loop {
        while let Some(rank) = probes.next_rank() {
            if hot && rank != 0 {
                hot = false;
                // Nobody listening is no reason to stop.
                let _gone = report.send(Progress::Hot);
            }
            if stop.load(Relaxed) {
                return probes.detach();
            }
            probes.attach_next();
        }
        if stop.load(Relaxed) {
            return probes.detach();
        }
        probes.attach_zerocopy();
        match modules {
            Modules::Follow => privileges::keep(),
            Modules::AtStart => privileges::drop_all(),
        }
        probes.rest();
        allocator::give_back();
        let _gone = report.send(Progress::All);
        if let Some((measured, totals)) = measured.take() {
            budget = measured.keep(&probes, totals, modules == Modules::Follow, stop);
        }
        let mut looked = Instant::now();
        while probes.next_rank().is_none() {
            let pause = if budget.is_some() { TICK } else { MODULES };
            if sleeping.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return probes.detach();
            }
            if let Some(budget) = &mut budget {
                budget.tick(&mut probes);
            }
            if looked.elapsed() < MODULES {
                continue;
            }
            looked = Instant::now();
            let now = kernel::modules();
            if modules == Modules::Follow && now != seen {
                seen = now;
                match Facts::read() {
                    Ok(facts) => {
                        probes.renew(&facts.plan);
                        if let Some(budget) = &mut budget {
                            budget.forget(&probes);
                        }
                    }
                    Err(error) => log::warn!("modules have changed, and their sites are not known: {error}"),
                }
                allocator::give_back();
            }
        }
    }
}
