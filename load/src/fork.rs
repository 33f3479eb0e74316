//! Children made by fork.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    process,
};

use anyhow::{Context as _, Result, bail};

use crate::{report::Outcome, sys, tally::Tally};

/// Forks: 0 in the child.
fn fork() -> io::Result<i32> {
    // SAFETY: a load has one thread, so that none holds a lock; in tests, the C library keeps its own ones usable.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

/// Waits for the child, and tells whether it ended well.
fn ended_well(child: i32) -> io::Result<bool> {
    let status = wait(child)?;
    Ok(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0)
}

/// Waits for the child, and tells its status as waitpid(2) does.
pub fn wait(child: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one number.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether a child that asks says yes, and does not die of it.
pub fn answers(ask: impl FnOnce() -> bool) -> io::Result<bool> {
    ended_well(start(|| i32::from(!ask()))?)
}

/// Starts a child that does this and ends with its exit code; to be waited for.
pub fn start(work: impl FnOnce() -> i32) -> io::Result<i32> {
    match fork()? {
        0 => {
            let code = work();
            // SAFETY: ends the child, without what the parent wants done at its own end.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child),
    }
}

/// What a child did.
///
/// # Errors
/// What it could not do.
pub fn in_child(work: impl FnOnce() -> Result<Tally>) -> Result<Tally> {
    let [from, to] = sys::pipe().context("cannot make a pipe")?;
    let child = fork().context("cannot fork")?;
    if child == 0 {
        drop(from);
        let outcome = Outcome::of(work());
        let told = serde_json::to_vec(&outcome).is_ok_and(|text| File::from(to).write_all(&text).is_ok());
        process::exit(i32::from(!told));
    }
    drop(to);
    let mut text = Vec::new();
    let read = File::from(from).read_to_end(&mut text);
    let told = ended_well(child).context("cannot wait for the forked child")?;
    read.context("cannot read from the forked child")?;
    if !told {
        bail!("the forked child died");
    }
    let outcome: Outcome = serde_json::from_slice(&text).context("the forked child says nothing")?;
    outcome.done().context("in a forked child")
}
