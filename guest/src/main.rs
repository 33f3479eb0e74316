//! `iotrace-load`: workloads that know their own numbers exactly.
//!
//! Nothing but the workload itself makes vectored calls, so that what iotrace counts for this program can be
//! compared with what the program reports, to the last unit.

mod load;
mod sys;
mod tally;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = load::Options::parse();
    match load::run(&options) {
        Ok(tally) if options.json => match sys::print(&format!("{:#}\n", tally.json())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_reader_gone) => ExitCode::FAILURE,
        },
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iotrace-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
