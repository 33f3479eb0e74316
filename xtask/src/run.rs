//! `cargo xtask run`: the main job, on this host where it lets us, else in a guest.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::kernel::Kernel;
use crate::qemu::{self, Forward, Machine};
use crate::series::Flavour;
use crate::vm::{DEFAULT_KERNEL, Guest, to_stdout};
use crate::{programs, setup, tools, workspace};

/// Where there is no terminal to press Ctrl-C on.
const UNATTENDED: u64 = 60;
/// For boot, attaching, workload and snapshot in an emulated guest.
const PRELUDE: u64 = 180;
/// The daemon's own port.
const PORT: u16 = 9469;

/// Trace a real workload on a real kernel, show a snapshot of it, and serve its metrics.
///
/// On this host where it lets you load tracing programs (sudo may ask), else in a guest with a Debian kernel.
#[derive(Args)]
pub struct Options {
    /// How long to serve [default: until Ctrl-C; 60 where there is no terminal].
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Serve here, or on the next port that is free.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Do not try this host.
    #[arg(long)]
    guest: bool,
    /// The guest's kernel: a series, or the path of a vmlinuz.
    #[arg(long, value_name = "SERIES|PATH", default_value = DEFAULT_KERNEL)]
    kernel: String,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    tools::ensure()?;
    let attended = io::stdin().is_terminal() && io::stdout().is_terminal();
    let seconds = options.seconds.or((!attended).then_some(UNATTENDED));
    let port = qemu::free_port(options.port)?;
    if port != options.port {
        eprintln!("run: port {} is taken, serving on {port}", options.port);
    }
    catch_interrupt();
    if !options.guest {
        eprintln!("run: building");
        let folder = build_for_host()?;
        match host_refuses(&folder.join("iotrace"))? {
            None => return on_host(&folder, port, seconds),
            Some(reason) => {
                eprintln!("run: this host does not let us trace ({reason}); booting a guest instead");
            }
        }
    }
    in_guest(&options.kernel, port, seconds)
}

/// Ctrl-C ends the children, which share the terminal; this process then ends in order.
fn catch_interrupt() {
    extern "C" fn caught(_signal: libc::c_int) {
        qemu::INTERRUPT.store(true, Relaxed);
    }
    let handler: extern "C" fn(libc::c_int) = caught;
    // SAFETY: the handler stores to an atomic, which is safe at any time. Unlike SIG_IGN it is not inherited.
    unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
}

fn build_for_host() -> Result<std::path::PathBuf> {
    let mut build = workspace::cargo();
    build.args(["build", "--quiet", "--release", "--bins", "-p", "iotrace", "-p", "iotrace-guest"]);
    workspace::run(&mut build)?;
    Ok(workspace::target().join("release"))
}

/// Why this host does not let this user trace; `None` where it does.
fn host_refuses(iotrace: &Path) -> Result<Option<String>> {
    let out = workspace::as_root(iotrace).arg("check").stdin(Stdio::inherit()).output();
    let out = match out {
        Ok(out) => out,
        Err(error) => return Ok(Some(format!("no root: {error}"))),
    };
    if matches!(out.status.code(), Some(0 | 1)) {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("`iotrace check` failed");
    Ok(Some(line.trim_start_matches("iotrace: ").to_owned()))
}

fn on_host(folder: &Path, port: u16, seconds: Option<u64>) -> Result<ExitCode> {
    let iotrace = folder.join("iotrace");
    let mut daemon = workspace::as_root(&iotrace);
    let mut daemon = Ending(
        daemon
            .args(["daemon", "--no-selftest", "--exact", "--listen", &format!("127.0.0.1:{port}")])
            .spawn()?,
    );
    let mut load = Command::new(folder.join("iotrace-load"));
    let _load = Ending(load.args(["mix", "--seconds", "30"]).spawn().context("cannot start the workload")?);
    workspace::run(workspace::as_root(&iotrace).args(["top", "-d", "5"]))?;
    announce(port, seconds);
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    while until.is_none_or(|until| Instant::now() < until) {
        if daemon.0.try_wait()?.is_some() {
            // By Ctrl-C, or it has said why.
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(ExitCode::SUCCESS)
}

/// A child that is asked to end, and waited for, when its owner goes.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // Through kill(1), as root where the child is: sudo passes the signal on.
        let _gone = workspace::as_root("kill").arg(self.0.id().to_string()).stderr(Stdio::null()).status();
        let _reaped = self.0.wait();
    }
}

fn in_guest(kernel: &str, port: u16, seconds: Option<u64>) -> Result<ExitCode> {
    setup::guest_tools()?;
    let programs = programs::build()?;
    let serve =
        seconds.map_or_else(|| "while :; do sleep 3600; done".into(), |seconds| format!("sleep {seconds}"));
    let guest = Guest {
        script: format!(
            "iotrace daemon --no-selftest --exact --listen 0.0.0.0:{PORT} &\n\
             until wget -q -O /dev/null http://127.0.0.1:{PORT}/-/ready 2>/dev/null; do sleep 0.1; done\n\
             (while :; do iotrace-load mix --seconds 10; done) >/dev/null &\n\
             iotrace top -d 5 || exit\n\
             echo serving\n\
             {serve}"
        ),
        machine: Machine {
            smp: 2,
            mem: "1G".into(),
            icount: false,
            forwards: vec![Forward { host: port, guest: PORT }],
            append: Vec::new(),
            timeout: Duration::from_secs(seconds.map_or(u64::from(u32::MAX), |seconds| seconds + PRELUDE)),
        },
        programs: &programs,
        tests: &[],
        files: &[],
        tree: None,
        modules: &[],
    };
    let (mut served, mut line) = (false, Vec::new());
    let ended = guest.run(&Kernel::find(kernel, Flavour::Cloud)?, |bytes| {
        // Bytes come as the guest's serial port sends them; only whole lines can be understood.
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(part);
            if !line.ends_with(b"\n") {
                continue;
            }
            // The last line of the prelude is for us.
            if !served && line == b"serving\n" {
                served = true;
                announce(port, seconds);
            } else {
                to_stdout(&line);
            }
            line.clear();
        }
    });
    match ended {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(qemu::INTERRUPTED) if served => Ok(ExitCode::SUCCESS),
        Ok(qemu::INTERRUPTED) => Ok(ExitCode::from(qemu::INTERRUPTED)),
        Ok(code) => bail!("the guest ended with exit code {code}"),
        Err(error) => Err(error),
    }
}

fn announce(port: u16, seconds: Option<u64>) {
    let until = seconds.map_or_else(|| "until Ctrl-C".into(), |seconds| format!("for {seconds} s"));
    println!("serving http://127.0.0.1:{port}/metrics {until}");
}
