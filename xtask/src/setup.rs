//! `cargo xtask setup`: what a machine lacks, found or fetched, and named.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{apt, tools, workspace::find_program};

/// Get what building and testing need and this machine lacks.
#[derive(Args)]
pub struct Options {
    /// Only what one purpose needs.
    #[arg(long, value_name = "PURPOSE")]
    only: Option<Purpose>,
}

/// What the tools are for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Purpose {
    /// `cargo build`: rust-src and bpf-linker.
    Build,
    /// Guests: QEMU, busybox and xz.
    Guest,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    if options.only != Some(Purpose::Guest) {
        tools::ensure()?;
    }
    if options.only != Some(Purpose::Build) {
        guest_tools()?;
    }
    eprintln!("setup: complete");
    Ok(ExitCode::SUCCESS)
}

/// Programs that guests need, and the Debian packages that have them.
const GUEST_TOOLS: &[(&str, &str)] =
    &[("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("xz", "xz-utils")];

/// Finds or fetches everything that booting a guest needs, but for the kernel.
pub fn guest_tools() -> Result<()> {
    let missing: Vec<_> = GUEST_TOOLS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|tool| tool.1)
        .collect();
    if missing.is_empty() { Ok(()) } else { apt::install(&missing) }
}
