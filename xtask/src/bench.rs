//! `cargo xtask bench`: what iotrace costs, beside probes that do nothing and other tracers.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::kernel::Kernel;
use crate::overhead::{Overhead, Table};
use crate::programs::{self, Program};
use crate::qemu::{self, Machine};
use crate::series::Flavour;
use crate::vm::Guest;
use crate::{packages, setup, tools, workspace};

/// The kernels that are measured when none is named.
const KERNELS: &[&str] = &["6.12", "7.3"];
/// The kernel whose numbers the tests hold against docs/overhead.json.
pub const CHECKED_ON: &str = "6.12";
/// The other tracers.
const PEERS: &[&str] = &["bpftrace", "libbpf-tools", "linux-perf", "strace"];
/// For boot and all rows.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Measure what iotrace costs, in guests where time is instructions, beside empty probes and other tracers.
///
/// Writes overhead.md and overhead.json to the target folder.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 measured, 1 iotrace costs more than docs/overhead.json allows, \
                        125 could not run.")]
pub struct Options {
    /// Measure on these kernels, instead of 6.12 and 7.3.
    #[arg(long = "kernel", value_name = "SERIES|PATH")]
    kernels: Vec<String>,
    /// Only iotrace and empty probes, as `cargo xtask test` does.
    #[arg(long)]
    own: bool,
    /// Measure nanoseconds instead of instructions, where KVM works.
    #[arg(long, conflicts_with_all = ["bless", "own"])]
    wall: bool,
    /// Write docs/overhead.md and docs/overhead.json, instead of holding the numbers against them.
    #[arg(long)]
    bless: bool,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    if options.wall
        && let Some(missing) = qemu::kvm_missing()
    {
        bail!("no KVM, and times in an emulated guest say nothing: {missing}");
    }
    tools::ensure()?;
    setup::guest_tools()?;
    let programs = programs::build_bench()?;
    let names: Vec<String> = KERNELS.iter().map(|&name| name.into()).collect();
    let names = if options.kernels.is_empty() { &names } else { &options.kernels };
    let mut now = Overhead::default();
    for name in names {
        let (label, table) = measure(name, &programs, !options.own, !options.wall)?;
        now.0.insert(label, table);
    }
    if options.wall {
        print!("{}", now.page());
        return Ok(ExitCode::SUCCESS);
    }
    now.write(&workspace::target())?;
    let mut committed = Overhead::committed()?;
    if options.bless {
        committed.renew(&now);
        committed.write(&workspace::root().join("docs"))?;
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", now.page());
    let grown = grown(&now, &committed);
    grown.iter().for_each(|line| eprintln!("bench: {line}"));
    Ok(if grown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For `cargo xtask test`: how many of iotrace's rows on one kernel are within their bounds, and the others.
pub fn test() -> Result<(usize, usize)> {
    let committed = Overhead::committed()?;
    let (label, table) = measure(CHECKED_ON, &programs::build_bench()?, false, true)?;
    let now = Overhead([(label, table)].into());
    now.write(&workspace::target())?;
    let grown = grown(&now, &committed);
    grown.iter().for_each(|line| println!("{line}"));
    Ok((usize::from(grown.is_empty()), grown.len()))
}

/// The rows that grew too much. Another release of a kernel is not held against the committed one.
fn grown(now: &Overhead, committed: &Overhead) -> Vec<String> {
    let mut lines = Vec::new();
    for (label, table) in &now.0 {
        match committed.0.get(label) {
            Some(before) if before.release == table.release => lines.extend(table.grown(before, label)),
            before => eprintln!(
                "bench: docs/overhead.json is about {}, not {}: nothing to hold {label} against",
                before.map_or("no such kernel", |before| &before.release),
                table.release
            ),
        }
    }
    lines
}

/// Measures in a guest with this kernel.
fn measure(name: &str, programs: &[Program], peers: bool, icount: bool) -> Result<(String, Table)> {
    let kernel = Kernel::find(name, Flavour::Cloud)?;
    let tree: Vec<String> = PEERS.iter().filter(|_| peers).map(|&name| name.into()).collect();
    let guest = Guest {
        script: format!("exec iotrace-overhead calls{}", if peers { " --peers" } else { "" }),
        machine: Machine {
            smp: 1,
            mem: "2G".into(),
            icount,
            forwards: Vec::new(),
            append: Vec::new(),
            timeout: TIMEOUT,
        },
        programs,
        tests: &[],
        files: &[],
        tree: packages::tree(&tree)?,
        modules: &[],
    };
    let mut out = Vec::new();
    let code = guest.run(&kernel, |bytes| out.extend_from_slice(bytes))?;
    ensure!(code == 0, "the measurement on {name} ended with exit code {code}");
    let value = serde_json::from_slice(&out).context("the measurement printed no JSON")?;
    Ok((kernel.label, Table::parse(&value)?))
}
