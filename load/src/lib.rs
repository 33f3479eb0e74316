//! Workloads that know their own numbers exactly.
//!
//! Nothing but the workload itself makes vectored calls, so that what iotrace counts for the process can be compared
//! with what the workload reports, to the last unit.

mod abi;
mod async_io;
mod churn;
mod exec;
mod file;
mod fork;
mod key;
mod memory;
mod mix;
mod options;
mod paused;
mod process;
mod report;
mod ring;
mod sender;
mod socket;
mod spent;
mod stream;
mod swarm;
mod sys;
mod tally;
pub mod tcp;
pub mod turns;
mod uring;
mod work;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use thiserror::Error;

pub use abi::Abi;
pub use options::Options;
pub use report::{Outcome, Report};
pub use sender::Sent;
pub use spent::Spent;
pub use tally::{Imports, Tally};
pub use work::Name;

/// What this kernel or this machine does not offer.
#[derive(Debug, Error)]
#[error("not possible here: {0}")]
pub struct Impossible(pub String);

/// Options that do not go together.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// The exit code that tells of this error: 2 for wrong options, 1 for what failed.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Misuse>() { 2 } else { 1 }
}

/// Does what the options say, and reports it the way they say.
///
/// # Errors
/// What could not be done; the numbers would not be exact then.
pub fn perform(options: &Options) -> Result<ExitCode> {
    let done = work::run(options);
    if let Some(report) = options.report {
        let outcome = Outcome::of(done);
        report::hand_over(report, &outcome).context("cannot report")?;
        return Ok(if matches!(outcome, Outcome::Done(_)) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let tally = done?;
    if options.json && sys::print(&format!("{:#}\n", tally.json())).is_err() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
