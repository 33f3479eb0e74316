//! A daemon that is started, asked and stopped.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::{
    exposition::Exposition,
    http,
    process::{self, Ended, code, eventually},
    timed,
};

/// An emulated guest on a busy machine attaches a hundred sites in about ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// After this a scrape is a new reading.
pub const FRESH: Duration = Duration::from_millis(1100);
/// What is promised on 6.12, whose 240 kprobes each take two grace periods.
const STOPPED: Duration = Duration::from_secs(12);

/// `iotrace daemon`, killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    address: SocketAddr,
    log: String,
    started: Instant,
    scraped: Mutex<Option<Instant>>,
}

impl Daemon {
    /// Starts it on this port of loopback, without its self-test and without a budget: all that a test does is counted, and
    /// nothing else.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(port: u16) -> Daemon {
        Daemon::start_with(port, &["--no-selftest", "--exact"])
    }

    /// Starts it on this port of loopback with more options.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(port: u16, options: &[&str]) -> Daemon {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let log = format!("/tmp/iotrace-{port}.log");
        let file = File::create(&log).expect("the guest's /tmp can be written");
        let child = process::iotrace(&["daemon", "--listen", &address.to_string()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("the guest has iotrace");
        Daemon { child, address, log, started: Instant::now(), scraped: Mutex::new(None) }
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for `/-/ready` to say 200; how long that took from the start.
    ///
    /// # Panics
    /// If it ends or takes too long.
    pub fn ready(&mut self) -> Duration {
        self.until("ready", |daemon| {
            http::get(daemon.address, "/-/ready").is_ok_and(|answer| answer.status == 200)
        })
    }

    /// Waits until no site's turn is still to come; how long that took from the start.
    ///
    /// # Panics
    /// If it ends or takes too long.
    pub fn attached(&mut self) -> Duration {
        self.ready();
        let took = self.until("attached", |daemon| {
            let scrape = daemon.metrics();
            let sites = scrape.with("iotrace_site_attached", &[]).count();
            sites > 0 && scrape.with("iotrace_site_attached", &[("state", "pending")]).count() == 0
        });
        // What is in flight while a site is attached is not counted as lost for a moment more.
        thread::sleep(Duration::from_millis(200));
        took
    }

    fn until(&mut self, what: &str, condition: impl Fn(&Daemon) -> bool) -> Duration {
        let mut dead = None;
        let came = eventually(PATIENCE, || {
            dead = self.child.try_wait().expect("a child of ours");
            dead.is_some() || condition(self)
        });
        assert_eq!(dead, None, "the daemon ended before it was {what}: {}", self.log());
        assert!(came, "the daemon was not {what} within {PATIENCE:?}: {}", self.log());
        self.started.elapsed()
    }

    /// What it exports now, which takes a wait: it reads its totals once in a second.
    ///
    /// # Panics
    /// If it does not answer, or with something that Prometheus could not read.
    pub fn metrics(&self) -> Exposition {
        let mut scraped = self.scraped.lock().expect("no scrape has panicked");
        if let Some(last) = *scraped {
            thread::sleep(FRESH.saturating_sub(last.elapsed()));
        }
        let answer = http::get(self.address, "/metrics")
            .unwrap_or_else(|error| panic!("no metrics: {error}; {}", self.log()));
        *scraped = Some(Instant::now());
        assert_eq!(answer.status, 200, "{}", answer.body);
        Exposition::parse(&answer.body).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends a signal and waits for the end.
    ///
    /// # Panics
    /// If the end does not come; where time counts (see [`timed`]), in twelve seconds.
    pub fn end(mut self, signal: i32) -> Ended {
        let asked = Instant::now();
        // SAFETY: only sends a signal; the child is not reaped yet, so the number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        let status = process::wait(&mut self.child, if timed() { STOPPED } else { PATIENCE });
        let (log, took) = (self.log(), asked.elapsed());
        let Some(status) = status else { panic!("the daemon did not end in {took:?}: {log}") };
        Ended { code: code(status), stdout: String::new(), stderr: log, took }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}
