//! QEMU: boots a kernel with an archive as its first file system, and says how that ended.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::kernel::Kernel;
use crate::workspace::{self, find_program};

/// Exit code when the harness itself failed.
pub const HARNESS_FAILED: u8 = 125;
/// Exit code when the guest took too long, as that of timeout(1).
pub const TIMED_OUT: u8 = 124;
/// Exit code when Ctrl-C ended the guest, as a shell reports it.
pub const INTERRUPTED: u8 = 130;

/// Set by whoever catches SIGINT: the terminal sends it to QEMU as well.
pub static INTERRUPT: AtomicBool = AtomicBool::new(false);

/// How often a running guest is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// A guest that KVM runs is up by then, or never.
const KVM_IS_UP: Duration = Duration::from_secs(40);
/// Lines of the console that are shown when a guest fails.
const CONSOLE_LINES: usize = 40;

/// A guest's hardware.
#[derive(Clone)]
pub struct Machine {
    /// Processors.
    pub smp: u32,
    /// Memory, as QEMU writes it.
    pub mem: String,
    /// Guest time is instructions.
    pub icount: bool,
    /// Ports of this machine that lead into the guest.
    pub forwards: Vec<Forward>,
    /// More words for the kernel's command line.
    pub append: Vec<String>,
    /// For boot and command together.
    pub timeout: Duration,
}

/// A port of the host's loopback that leads to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// On 127.0.0.1 of the host.
    pub host: u16,
    /// In the guest, on any address.
    pub guest: u16,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ports =
            text.split_once(':').and_then(|(host, guest)| Some((host.parse().ok()?, guest.parse().ok()?)));
        match ports {
            Some((host, guest)) if host != 0 && guest != 0 => Ok(Self { host, guest }),
            _ => Err("expected HOST:GUEST, two ports such as 9469:9469".into()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Tcg,
}

enum Ended {
    Code(u8),
    TimedOut,
    Died,
    /// Under KVM it did not come up.
    NeverUp,
}

/// Boots `kernel` with `archive`; what its command prints goes to `print` as it comes. Returns the command's
/// exit code, or [`TIMED_OUT`].
pub fn run(
    kernel: &Kernel,
    machine: &Machine,
    archive: &[u8],
    print: impl FnMut(&[u8]) + Send,
) -> Result<u8> {
    let home = workspace::guests();
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let label: String =
        kernel.label.chars().map(|c| if c.is_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let console = home.join(format!("console-{label}-{}.log", std::process::id()));
    let scratch = Scratch::new(&home)?;
    fs::write(scratch.0.join("initramfs"), archive).context("cannot write the initramfs")?;

    let mut print = print;
    let mut ended = Ended::NeverUp;
    if !machine.icount && kvm_may_work() {
        ended = boot(kernel, machine, Accelerator::Kvm, &scratch.0, &console, &mut print)?;
        if matches!(ended, Ended::NeverUp) {
            eprintln!("vm: KVM does not work here, going on with emulation");
            fs::write(home.join("kvm-broken"), "")?;
        }
    }
    if matches!(ended, Ended::NeverUp) {
        ended = boot(kernel, machine, Accelerator::Tcg, &scratch.0, &console, &mut print)?;
    }
    match ended {
        Ended::Code(0) => {
            // Nobody asks what a guest that did well had to say.
            let _kept = fs::remove_file(&console);
            Ok(0)
        }
        Ended::Code(code) => Ok(code),
        Ended::TimedOut => {
            show_console(&console);
            eprintln!(
                "vm: {} ran longer than {} s and was ended; --timeout gives it more, its console is in {}",
                kernel.release,
                machine.timeout.as_secs(),
                console.display()
            );
            Ok(TIMED_OUT)
        }
        Ended::Died | Ended::NeverUp if INTERRUPT.load(Relaxed) => Ok(INTERRUPTED),
        Ended::Died | Ended::NeverUp => {
            show_console(&console);
            Err(anyhow!(
                "{} ended without an exit code; its console is in {}",
                kernel.release,
                console.display()
            ))
        }
    }
}

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(home: &Path) -> Result<Self> {
        for entry in fs::read_dir(home).with_context(|| format!("cannot read {}", home.display()))?.flatten()
        {
            // Of an xtask that was killed.
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix("run-").is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _taken_by_another = fs::remove_dir_all(entry.path());
            }
        }
        let path = home.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

/// Whether it is worth a try: the device is ours to open, the processor can do it, and it has not failed here
/// before.
pub fn kvm_may_work() -> bool {
    kvm_missing().is_none()
}

/// What KVM lacks here, and what to do about it.
pub fn kvm_missing() -> Option<String> {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let device = File::options().read(true).write(true).open("/dev/kvm").map(drop);
    let broken = workspace::guests().join("kvm-broken");
    missing(&processor, device, broken.exists().then_some(&*broken))
}

fn missing(processor: &str, device: io::Result<()>, broken: Option<&Path>) -> Option<String> {
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    if !flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm") {
        return Some(
            "the processor shows no vmx or svm: switch virtualization on, or nested in a guest".into(),
        );
    }
    if let Err(error) = device {
        return Some(format!("/dev/kvm: {error}: load kvm_intel or kvm_amd, or join the group kvm"));
    }
    broken.map(|path| format!("a guest did not come up before: remove {} to try again", path.display()))
}

fn boot(
    kernel: &Kernel,
    machine: &Machine,
    accelerator: Accelerator,
    scratch: &Path,
    console: &Path,
    print: &mut (impl FnMut(&[u8]) + Send),
) -> Result<Ended> {
    let control = scratch.join("control");
    fs::write(&control, "")?;
    let qemu = find_program("qemu-system-x86_64").context("QEMU is missing; run `cargo xtask setup`")?;
    let mut command = Command::new(qemu);
    command.args(arguments(kernel, machine, accelerator, scratch, console));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: prctl is async-signal-safe and touches only the new process.
    unsafe {
        command.pre_exec(|| {
            // A killed xtask leaves no guest behind.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command.spawn().context("cannot start QEMU")?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(move || pass(&mut out, print));
        scope.spawn(move || {
            pass(&mut err, &mut |bytes| {
                let _reader_gone = io::stderr().write_all(bytes);
            });
        });
        wait(&mut child, machine, accelerator, &control)
    })
}

fn arguments(
    kernel: &Kernel,
    machine: &Machine,
    accelerator: Accelerator,
    scratch: &Path,
    console: &Path,
) -> Vec<OsString> {
    let path = |text: &str, path: &Path| {
        let mut text = OsString::from(text);
        text.push(path);
        text
    };
    let mut line = String::from("console=ttyS0 panic=-1 quiet");
    let mut words: Vec<OsString> =
        ["-M", "q35", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
            .map(Into::into)
            .into();
    let mut smp = machine.smp;
    match accelerator {
        Accelerator::Kvm => words.extend(["-accel", "kvm", "-cpu", "host"].map(Into::into)),
        Accelerator::Tcg if machine.icount => {
            words.extend(["-accel", "tcg,thread=single", "-cpu", "max"].map(Into::into));
            words.extend(["-icount", "shift=0,sleep=off"].map(Into::into));
            line += " tsc=reliable";
            smp = 1;
        }
        // One host thread for all processors. With one for each, QEMU 7.2 may go on with code that another
        // processor has just patched, and probes patch code all the time: seen as an int3 oops.
        Accelerator::Tcg => words.extend(["-accel", "tcg,thread=single", "-cpu", "max"].map(Into::into)),
    }
    for word in &machine.append {
        line = line + " " + word;
    }
    words.extend(["-smp".into(), smp.to_string().into(), "-m".into(), machine.mem.clone().into()]);
    words.extend(["-kernel".into(), kernel.vmlinuz.clone().into()]);
    words.extend(["-initrd".into(), scratch.join("initramfs").into(), "-append".into(), line.into()]);
    for (id, device) in [
        ("console", path("file,id=console,path=", console)),
        ("out", "stdio,id=out,signal=off".into()),
        ("err", "file,id=err,append=on,path=/proc/self/fd/2".into()),
        ("control", path("file,id=control,path=", &scratch.join("control"))),
    ] {
        words.extend(["-chardev".into(), device, "-serial".into(), format!("chardev:{id}").into()]);
    }
    if !machine.forwards.is_empty() {
        let mut net = String::from("user,id=net,restrict=on");
        for Forward { host, guest } in &machine.forwards {
            net += &format!(",hostfwd=tcp:127.0.0.1:{host}-10.0.2.15:{guest}");
        }
        // Without a ROM to boot from, which would be one more package.
        words.extend([
            "-netdev".into(),
            net.into(),
            "-device".into(),
            "virtio-net-pci,netdev=net,romfile=".into(),
        ]);
    }
    words
}

/// Passes all that `from` gives on to `print`.
fn pass(from: &mut Option<impl Read>, print: &mut impl FnMut(&[u8])) {
    let Some(from) = from else { return };
    let mut buffer = [0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        print(&buffer[..length]);
    }
}

fn wait(child: &mut Child, machine: &Machine, accelerator: Accelerator, control: &Path) -> Result<Ended> {
    let started = Instant::now();
    let said = || fs::read_to_string(control).unwrap_or_default();
    let never_up = || accelerator == Accelerator::Kvm && !said().contains("up");
    let early = loop {
        if child.try_wait().context("cannot wait for QEMU")?.is_some() {
            break None;
        }
        if started.elapsed() > machine.timeout {
            break Some(Ended::TimedOut);
        }
        if started.elapsed() > KVM_IS_UP && never_up() {
            break Some(Ended::NeverUp);
        }
        thread::sleep(LOOK);
    };
    if let Some(early) = early {
        child.kill().context("cannot end QEMU")?;
        child.wait()?;
        return Ok(early);
    }
    match exit_code(&said()) {
        Some(code) => Ok(Ended::Code(code)),
        None if never_up() => Ok(Ended::NeverUp),
        None => Ok(Ended::Died),
    }
}

/// The code in what the guest tells the harness.
fn exit_code(control: &str) -> Option<u8> {
    control.lines().find_map(|line| line.trim().strip_prefix("exit ")?.parse().ok())
}

fn show_console(console: &Path) {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(CONSOLE_LINES)..] {
        eprintln!("vm: console: {}", line.trim_end());
    }
}

/// A port of this machine's loopback that is free now: `wanted`, or the next that is.
pub fn free_port(wanted: u16) -> Result<u16> {
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    match (wanted..=wanted.saturating_add(100)).find(free) {
        Some(port) => Ok(port),
        None => bail!("no port from {wanted} on is free; choose another with --port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_two_ports() {
        assert_eq!("8080:9469".parse(), Ok(Forward { host: 8080, guest: 9469 }));
        for text in ["", "9469", "a:1", "1:b", "0:1", "1:0", "1:2:3", "65536:1"] {
            assert!(text.parse::<Forward>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_exit_code_is_the_one_the_guest_tells() {
        assert_eq!(exit_code("up\nexit 0\n"), Some(0));
        assert_eq!(exit_code("up\r\nexit 255\r\n"), Some(255));
        assert_eq!(exit_code("up\n"), None);
        assert_eq!(exit_code("exit 256\n"), None);
    }

    #[test]
    fn what_kvm_lacks_is_told() {
        let processor = "processor : 0\nflags : fpu vmx sse\n";
        let lacks =
            |processor, device, broken: Option<&str>| missing(processor, device, broken.map(Path::new));
        assert_eq!(lacks(processor, Ok(()), None), None);
        let told = |found: Option<String>, word: &str| {
            found.is_some_and(|found| found.contains(word) && !found.contains('\n'))
        };
        assert!(told(lacks("flags : fpu vmxx\n", Ok(()), None), "vmx or svm"));
        assert!(told(lacks(processor, Err(io::ErrorKind::NotFound.into()), None), "/dev/kvm"));
        assert!(told(lacks(processor, Ok(()), Some("/t/kvm-broken")), "/t/kvm-broken"));
    }
}
