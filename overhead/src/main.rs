//! `iotrace-overhead`: measures in a guest what iotrace and other tracers cost, and prints it as JSON.

mod calls;
mod empty;
mod load;
mod peers;
mod places;
mod planning;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use load::Load;

/// Measures what tracers cost, in a guest where time is instructions.
#[derive(Parser)]
#[command(name = "iotrace-overhead")]
enum Command {
    /// Instructions for a call, under each tracer in turn
    Calls {
        /// Also other tracers, which must be there
        #[arg(long)]
        peers: bool,
    },
    /// Only the load, for tracers that start it
    Load { load: Load },
}

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iotrace-overhead: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Calls { peers } => println!("{}", calls::measure(*peers)?),
        Command::Load { load } => println!("{}", load.measure()?),
    }
    Ok(())
}
