//! Several kernels at once: an emulated guest keeps one processor of this machine busy.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use crate::vm::to_stdout;

/// Guests at a time.
pub const LANES: usize = 2;

/// Runs this program with these arguments and `--kernel` for each kernel, a few at a time, and prints what each says
/// when it has ended. Returns what they said, in the order of their ends.
pub fn run(kernels: &[String], arguments: &[String]) -> Result<Vec<String>> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let waiting: Mutex<VecDeque<&String>> = Mutex::new(kernels.iter().collect());
    let said = Mutex::new(Vec::new());
    let lane = || -> Result<()> {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(kernel) = next else { return Ok(()) };
            let mut child = Command::new(&program);
            child.args(arguments).args(["--kernel", kernel]).stderr(Stdio::inherit());
            let out = child.output().with_context(|| format!("cannot run the tests on {kernel}"))?;
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            to_stdout(&out.stdout);
            said.push(String::from_utf8_lossy(&out.stdout).into_owned());
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes
            .into_iter()
            .try_for_each(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(said.into_inner().unwrap_or_else(PoisonError::into_inner))
}
