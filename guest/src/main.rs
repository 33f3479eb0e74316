//! `iotrace-load`: the workloads of the crate of this name, as a program.

use std::process::ExitCode;

use clap::Parser;

/// Does I/O in exactly known numbers, and reports them.
#[derive(Parser)]
#[command(name = "iotrace-load", version)]
struct Arguments {
    #[command(flatten)]
    options: iotrace_load::Options,
}

fn main() -> ExitCode {
    match iotrace_load::perform(&Arguments::parse().options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("iotrace-load: {error:#}");
            iotrace_load::exit_code(&error).into()
        }
    }
}
