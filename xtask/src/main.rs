//! The project's own commands: `cargo xtask setup`, `run`, `test`, `bench` and `vm`.

mod apt;
mod bench;
mod cpio;
mod experiments;
mod findings;
mod kernel;
mod kernels;
mod lanes;
mod modules;
mod overhead;
mod packages;
mod programs;
mod prometheus;
mod promises;
mod qemu;
mod rigs;
mod root;
mod run;
mod series;
mod setup;
mod shell;
mod test;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Set up, run, test and measure iotrace on real kernels.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Run(run::Options),
    Test(test::Options),
    Bench(bench::Options),
    Experiments(experiments::Options),
    Setup(setup::Options),
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Run(options) => run::command(&options),
        Command::Test(options) => test::command(&options),
        Command::Bench(options) => bench::command(&options),
        Command::Experiments(options) => experiments::command(&options),
        Command::Setup(options) => setup::command(&options),
        Command::Vm(options) => vm::command(&options),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(qemu::HARNESS_FAILED)
    })
}
