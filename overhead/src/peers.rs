//! Other tracers on the same load: what people use today, from Debian's packages.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use iotrace_guest::process::{self, eventually};

use crate::load::Load;

/// Where what a tracer says goes.
const LOG: &str = "/tmp/peer.log";
/// How long an emulated guest may take to start one.
const PATIENCE: Duration = Duration::from_secs(120);
/// From its first probe on, until all are there and its messages are out.
const SETTLE: Duration = Duration::from_secs(3);

/// How a tracer is used.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// It traces the whole machine, the load runs beside it.
    Beside,
    /// It starts the load itself.
    Around,
}

/// A tracer and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its name in tables.
    pub name: &'static str,
    /// What is started.
    pub command: &'static [&'static str],
    /// How.
    pub used: Use,
}

const fn bpftrace(name: &'static str, command: &'static [&'static str; 3]) -> Peer {
    Peer { name, command, used: Use::Beside }
}

/// All of them, on the function that [`crate::empty::FUNCTION`] names.
pub const PEERS: &[Peer] = &[
    bpftrace("bpftrace, fentry, count", &["bpftrace", "-e", "fentry:vfs_readv { @ = count(); }"]),
    bpftrace(
        "bpftrace, fentry and fexit, histogram of times",
        &[
            "bpftrace",
            "-e",
            "fentry:vfs_readv { @s[tid] = nsecs; } fexit:vfs_readv /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]); }",
        ],
    ),
    bpftrace("bpftrace, kprobe, count", &["bpftrace", "-e", "kprobe:vfs_readv { @ = count(); }"]),
    bpftrace(
        "bpftrace, kprobe and kretprobe, histogram of times",
        &[
            "bpftrace",
            "-e",
            "kprobe:vfs_readv { @s[tid] = nsecs; } kretprobe:vfs_readv /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]); }",
        ],
    ),
    Peer {
        name: "libbpf-tools funclatency, fentry and fexit",
        command: &["funclatency-libbpf", "vfs_readv"],
        used: Use::Beside,
    },
    Peer {
        name: "libbpf-tools funclatency, kprobe and kretprobe",
        command: &["funclatency-libbpf", "-k", "vfs_readv"],
        used: Use::Beside,
    },
    Peer { name: "perf trace -s", command: &["perf", "trace", "-s", "-o", LOG], used: Use::Around },
    Peer { name: "strace -c", command: &["strace", "-c", "-o", LOG], used: Use::Around },
];

impl Peer {
    /// Nanoseconds for a call of `load` under it.
    ///
    /// # Errors
    /// Why it could not be used.
    pub fn measure(&self, load: Load) -> Result<f64> {
        match self.used {
            Use::Beside => {
                let mut running = self.start()?;
                let measured = running.settle().and_then(|()| load.measure());
                running.end()?;
                measured
            }
            Use::Around => {
                let own = std::env::current_exe().context("cannot tell where this program is")?;
                let mut command = Command::new(self.command[0]);
                command.args(&self.command[1..]).arg(own).args(["load", load.name()]);
                let ended = process::run(&mut command, PATIENCE);
                let told = ended.stdout.trim().parse().ok().filter(|_| ended.code == 0);
                told.with_context(|| format!("exit code {}: {}", ended.code, last_line(&ended.stderr)))
            }
        }
    }

    fn start(&self) -> Result<Running> {
        let log = File::create(LOG).context("cannot write the log")?;
        let child = Command::new(self.command[0])
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.command[0]))?;
        Ok(Running(child))
    }
}

struct Running(Child);

impl Running {
    /// Waits until the kernel says that the function is traced, and a moment more.
    fn settle(&mut self) -> Result<()> {
        let mut dead = None;
        let came = eventually(PATIENCE, || {
            dead = self.0.try_wait().ok().flatten();
            dead.is_some() || traced()
        });
        if let (true, None) = (came, dead) {
            thread::sleep(SETTLE);
            return Ok(());
        }
        let said = fs::read_to_string(LOG).unwrap_or_default();
        bail!("it {}: {}", if dead.is_some() { "ended" } else { "attached nothing" }, last_line(&said))
    }

    fn end(mut self) -> Result<()> {
        // SAFETY: only sends a signal; the child is not reaped yet, so the number is its own.
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGINT) };
        if process::wait(&mut self.0, PATIENCE).is_none() {
            self.0.kill().context("cannot end the tracer")?;
            self.0.wait()?;
        }
        if !eventually(PATIENCE, || !traced()) {
            bail!("the function is still traced after the tracer's end");
        }
        Ok(())
    }
}

/// Whether anything traces the function.
fn traced() -> bool {
    let file = ["/sys/kernel/tracing/enabled_functions", "/sys/kernel/debug/tracing/enabled_functions"];
    let file = file.iter().find(|file| Path::new(file).exists());
    let list = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    list.lines().any(|line| line.split_whitespace().next() == Some(crate::empty::FUNCTION))
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("it said nothing")
}
