//! `cargo xtask vm`: runs a command in guests with real kernels.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::kernel::Kernel;
use crate::programs::{self, Program};
use crate::qemu::{self, Forward, Machine};
use crate::root::{self, Contents};
use crate::series::Flavour;
use crate::{modules, packages, setup, shell, tools};

/// The kernel of a guest when none is named.
pub const DEFAULT_KERNEL: &str = "6.12";

/// Run a command in guests with real kernels.
///
/// Each guest has busybox, `iotrace` and the project's test programs in /bin. What CMD prints is this command's
/// standard output and nothing else is; the kernel's console goes to a file, shown if the guest fails.
#[derive(Args)]
#[command(
    after_help = "Exit codes: CMD's own; with several kernels the first that is not 0; 124 after --timeout; \
                        125 if the guest or this command itself failed."
)]
pub struct Options {
    /// A series such as 6.12, for the newest Debian kernel of it, or the path of a vmlinuz [default: 6.12].
    #[arg(long = "kernel", value_name = "SERIES|PATH")]
    kernels: Vec<String>,
    /// Which of Debian's builds of a series.
    #[arg(long, value_enum, default_value_t)]
    flavour: Flavour,
    /// Processors.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=255))]
    smp: u32,
    /// Memory, as QEMU writes it; files and packages that are large come on top.
    #[arg(long, value_name = "M", default_value = "2G")]
    mem: String,
    /// Make guest time equal guest instructions (one processor, emulated).
    #[arg(long)]
    icount: bool,
    /// Put a file of this machine into the guest: a program into /bin, with the libraries it needs, anything
    /// else into /root. Call it by its path where busybox has a command of the same name.
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Put a Debian package into the guest, with all that it depends on. Busybox and /bin come first in its PATH.
    #[arg(long = "package", value_name = "NAME")]
    packages: Vec<String>,
    /// Let a port of 127.0.0.1 lead to a port of the guest; there, listen on 0.0.0.0.
    #[arg(long = "forward", value_name = "HOST:GUEST")]
    forwards: Vec<Forward>,
    /// Load a module of the kernel, and what it needs, before CMD.
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Add words to the kernel's command line, such as lockdown=confidentiality.
    #[arg(long, value_name = "WORDS")]
    append: Vec<String>,
    /// How long boot and command may take together.
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout: u64,
    /// The command; a single word is a shell command line.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    tools::ensure()?;
    setup::guest_tools()?;
    let programs = programs::build()?;
    let default = [DEFAULT_KERNEL.to_owned()];
    let kernels = if options.kernels.is_empty() { &default[..] } else { &options.kernels };
    let guest = Guest {
        script: shell::script(&options.command),
        machine: Machine {
            smp: options.smp,
            mem: options.mem.clone(),
            icount: options.icount,
            forwards: options.forwards.clone(),
            append: options.append.clone(),
            timeout: Duration::from_secs(options.timeout),
        },
        programs: &programs,
        tests: &[],
        files: &options.files,
        tree: packages::tree(&options.packages)?,
        modules: &options.modules,
    };
    let mut first = 0;
    for kernel in kernels {
        let code = guest.run(&Kernel::find(kernel, options.flavour)?, to_stdout)?;
        first = if first == 0 { code } else { first };
    }
    Ok(ExitCode::from(first))
}

/// Passes bytes on as they are.
pub fn to_stdout(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    let _reader_gone = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// Everything about a guest but its kernel.
pub struct Guest<'a> {
    /// What it runs.
    pub script: String,
    /// Its hardware.
    pub machine: Machine,
    /// Programs in /bin.
    pub programs: &'a [Program],
    /// Programs in /tests.
    pub tests: &'a [Program],
    /// Files of the host.
    pub files: &'a [PathBuf],
    /// A folder whose content goes to the same places in the guest.
    pub tree: Option<PathBuf>,
    /// Kernel modules.
    pub modules: &'a [String],
}

impl Guest<'_> {
    /// Boots it with `kernel`; returns the exit code of its script.
    pub fn run(&self, kernel: &Kernel, print: impl FnMut(&[u8]) + Send) -> Result<u8> {
        eprintln!("vm: booting {}", kernel.release);
        let mut wanted: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        if !self.machine.forwards.is_empty() {
            wanted.extend(modules::NETWORK);
        }
        let modules = match &kernel.modules {
            Some(folder) if !wanted.is_empty() => modules::in_order(folder, &wanted)?,
            _ => Vec::new(),
        };
        let archive = root::archive(&Contents {
            script: self.script.clone(),
            programs: self.programs,
            tests: self.tests,
            files: self.files,
            tree: self.tree.clone(),
            modules,
        })?;
        let machine = Machine { mem: memory(&self.machine.mem, archive.len()), ..self.machine.clone() };
        qemu::run(kernel, &machine, &archive, print)
    }
}

/// A first file system up to this size leaves a guest enough of its memory.
const SMALL: usize = 64 << 20;

/// The memory `wanted`, as QEMU writes it, with room for a large first file system: the kernel has it twice for a
/// moment, and lets it fill half of the memory.
fn memory(wanted: &str, archive: usize) -> String {
    let digits = wanted.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &wanted[digits.len()..] {
        "" | "M" | "m" => 1,
        "G" | "g" => 1 << 10,
        _ => return wanted.to_owned(),
    };
    match digits.parse::<usize>() {
        Ok(number) if archive > SMALL => format!("{}M", number * unit + 2 * archive.div_ceil(1 << 20)),
        _ => wanted.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_the_archive() {
        assert_eq!(memory("2G", SMALL), "2G");
        assert_eq!(memory("2G", 100 << 20), "2248M");
        assert_eq!(memory("512", 100 << 20), "712M");
        assert_eq!(memory("2T", 100 << 20), "2T");
    }
}
