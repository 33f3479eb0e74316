//! `iotrace daemon`: attach, serve, and leave nothing behind.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{
    allocator,
    http::{self, Form, Limits, Web},
    kernel,
    listen::{Address, Listener},
    metrics,
    own::{self, Own},
    privileges,
    probes::{KernelLog, Scope},
    selftest,
    snapshot::{Delta, Snapshot, State},
    systemd::{self, Watchdog},
    top,
    totals::{Rows, Totals},
    tracer::{Modules, Progress, Took, Tracer, TracerError},
};

/// How often the state of the attaching is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What the daemon is to do.
pub struct Service<'a> {
    /// Where to serve.
    pub listen: Vec<Address>,
    /// To whom, and how.
    pub web: Web,
    /// What to count.
    pub scope: Scope,
    /// Which modules' sites to probe.
    pub modules: Modules,
    /// Which processes to show.
    pub rows: Rows,
    /// Whether to test at the start what is counted.
    pub selftest: bool,
    /// The share of each processor that the probes of walkers may take; `None` for any.
    pub budget: Option<f64>,
    /// What is to be done on SIGHUP.
    pub reload: &'a dyn Fn(),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The address that cannot be listened on, or why nothing can be traced.
pub fn run(service: Service<'_>) -> Result<()> {
    allocator::frugal();
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().context("cannot start the event loop")?;
    runtime.block_on(serve(service))
}

async fn serve(service: Service<'_>) -> Result<()> {
    let Service { listen, web, scope, modules, rows, selftest, budget, reload } = service;
    // Before anything slow: a port in use is told at once, and a signal at any time ends in order.
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let listeners = listeners(&listen)?;

    let mut tracer = Tracer::start(scope, modules, rows, budget)?;
    privileges::drop_all();
    if let Some(reason) = web.unreadable() {
        log::warn!(
            "web configuration: {reason}: read once, with privileges that are given up now; make it readable to the \
             daemon's user, or restart the daemon when it changes"
        );
    }
    if let Some(log) = tracer.log.take() {
        tokio::spawn(forward(log));
    }
    let ready = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Mutex::new(stages(&tracer.took)));
    let source =
        Served { totals: Arc::clone(&tracer.totals), ready: Arc::clone(&ready), start: Arc::clone(&start) };
    let scheme = if web.is_tls() { "https" } else { "http" };
    for listener in &listeners {
        match listener.address().context("cannot tell the address listened on")? {
            Address::Tcp(address) => log::info!("serving {scheme}://{address}/metrics; attaching"),
            file @ Address::Unix(_) => log::info!("serving /metrics at {file}; attaching"),
        }
    }

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(http::serve(listeners, source, web, Limits::default(), async {
        let _sender_gone = stopped.await;
    }));
    let mut ticks = tokio::time::interval(LOOK);
    let (mut all, mut attaching) = (false, Instant::now());
    let mut watchdog = Watchdog::wanted();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(),
            _ = ticks.tick() => {
                ensure!(!tracer.is_dead(), "the attaching thread died; its last words are above");
                if let Some(watchdog) = &mut watchdog {
                    watchdog.look(tracer.drained());
                }
                if !all {
                    all = follow_attaching(&tracer, &ready, &start, &mut attaching);
                    if all && tracer.totals.probes().iter().all(|probe| probe.state != State::Attached) {
                        return Err(TracerError::Nothing.into());
                    }
                    if all && selftest {
                        test(&tracer.totals);
                    }
                }
            }
        }
    }
    log::info!("stopping");
    systemd::stopping();
    let _server_gone = stop.send(());
    server.await.context("the HTTP server panicked")?;
    tracer.stop();
    Ok(())
}

/// The sockets that systemd passes, or else those asked for.
fn listeners(addresses: &[Address]) -> Result<Vec<Listener>> {
    let passed = Listener::passed().context("cannot serve on what systemd passes")?;
    if !passed.is_empty() {
        return Ok(passed);
    }
    let bind = |address| {
        Listener::bind(address).with_context(|| {
            format!(
                "cannot listen on {address}; is another iotrace daemon running? choose an address with --listen"
            )
        })
    };
    addresses.iter().map(bind).collect()
}

/// Tests what is counted, on a thread of its own; it has no privileges, as this one.
fn test(totals: &Arc<Totals>) {
    let totals = Arc::clone(totals);
    let test = move || {
        if let Err(error) = selftest::at_start(&totals) {
            log::warn!("self-test: {error:#}");
        }
    };
    if let Err(error) = thread::Builder::new().name("selftest".into()).spawn(test) {
        log::warn!("self-test: cannot start a thread: {error}");
    }
}

/// Passes on what the kernel side says, as long as the daemon runs.
async fn forward(log: KernelLog) {
    // SAFETY: the log owns its descriptor, keeps it open, and moves into the `AsyncFd`.
    let Ok(mut log) = (unsafe { AsyncFd::register_with_interest(log, Interest::READABLE) }) else { return };
    while let Ok(mut ready) = log.readable_mut().await {
        ready.get_inner_mut().flush();
        ready.clear_ready();
    }
}

/// How long each part of the start took, by the label `stage`.
type Stages = BTreeMap<&'static str, Duration>;

fn stages(took: &Took) -> Stages {
    [("read", took.read), ("plan", took.plan), ("load", took.load)].into()
}

/// Tells systemd and the log how far attaching has come; `true` when there is no more to come. `since` is when the
/// part that is over began.
fn follow_attaching(tracer: &Tracer, ready: &AtomicBool, start: &Mutex<Stages>, since: &mut Instant) -> bool {
    let Some(progress) = tracer.progress() else { return false };
    let part = if progress == Progress::Hot { "hot" } else { "rest" };
    start.lock().unwrap_or_else(PoisonError::into_inner).entry(part).or_insert(since.elapsed());
    *since = Instant::now();
    let probes = tracer.totals.probes();
    let count = |state| probes.iter().filter(|probe| probe.state == state).count();
    let (attached, pending) = (count(State::Attached), count(State::Pending));
    let status = format!("{attached} of {} sites attached, {pending} to come", probes.len());
    log::info!("{}: {status}", if progress == Progress::Hot { "ready" } else { "done" });
    if let (Progress::All, Some(first)) = (progress, probes.iter().find(|probe| probe.state == State::Failed))
    {
        let failed = count(State::Failed);
        log::warn!("{failed} sites could not be probed, such as {}: {}", first.site, first.reason);
    }
    systemd::status(&status, !ready.swap(true, Relaxed));
    progress == Progress::All
}

/// What the HTTP server serves.
struct Served {
    totals: Arc<Totals>,
    ready: Arc<AtomicBool>,
    start: Arc<Mutex<Stages>>,
}

impl http::Source for Served {
    type Reading = (Snapshot, Own);

    fn read(&self) -> Result<(Snapshot, Own), String> {
        let started = Instant::now();
        let snapshot = self.totals.snapshot();
        let own = Own {
            read: started.elapsed(),
            maps: self.totals.maps(),
            start: self.start.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            release: kernel::release(),
            process: own::Process::now(),
        };
        Ok((snapshot, own))
    }

    fn encode(&self, (snapshot, own): &(Snapshot, Own), form: Form) -> Result<Vec<u8>, String> {
        let text = || metrics::encode(snapshot, own).map_err(|error| error.to_string());
        match form {
            Form::Text => text(),
            Form::OpenMetrics => metrics::open_metrics(&text()?).map_err(|error| error.to_string()),
            Form::Json => Ok(format!("{:#}\n", top::json(&Delta(snapshot.clone()))).into_bytes()),
        }
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Relaxed) {
            Ok(())
        } else {
            Err("the busiest sites are still being attached".into())
        }
    }
}
