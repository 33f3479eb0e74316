//! The small self-test of a daemon that has just attached: a few calls on every path, from processes of its own among
//! all that happens on the host. What is compared is therefore what was counted for each of these processes.

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt as _, path::Path, process::Command};

use anyhow::{Context as _, Result};
use iotrace_common::who::Counts;
use iotrace_load::{Abi, Imports, Outcome, Report, Tally};

use super::{cases::IMPORTS, compare};
use crate::totals::Totals;

/// Calls of each load with each number of segments.
const COUNT: u64 = 5;

/// Runs the loads that this kernel can do, notes which paths count right, and logs those that do not.
///
/// # Errors
/// No load can be started.
pub fn at_start(totals: &Totals) -> Result<()> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let probes = totals.probes();
    let mut verified: BTreeMap<String, bool> = BTreeMap::new();
    for case in IMPORTS.iter().filter(|case| case.abis.contains(&Abi::Native)) {
        if compare::missing(&probes, compare::IMPORTERS, case.importers).is_some() {
            continue;
        }
        let (pid, outcome) = load(&program, case.work.name())?;
        let Outcome::Done(tally) = outcome else { continue };
        let (expected, seen) = (sum(&tally), counted(&totals.process(pid, comm(&program))));
        if seen != expected {
            log::warn!("self-test: {} expected {expected:?}, seen {seen:?}", case.work.name());
        }
        for path in tally.paths() {
            *verified.entry(path.to_owned()).or_insert(true) &= seen == expected;
        }
    }
    let right = verified.values().filter(|right| **right).count();
    log::info!("self-test: {right} of {} paths count right", verified.len());
    totals.verified(verified);
    Ok(())
}

/// What a load did, and which process it was.
fn load(program: &Path, work: &str) -> Result<(u32, Outcome)> {
    let report = Report::new().context("cannot make a file in memory")?;
    let (count, number) = (COUNT.to_string(), report.number().to_string());
    let options = ["load", work, "--count", &count, "--segments", "1,3", "--report", &number];
    let mut child = Command::new(program).args(options).spawn().context("cannot run a load")?;
    let pid = child.id();
    let status = child.wait().context("cannot wait for a load")?;
    Ok((pid, report.read().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}: {status}")))))
}

/// The name that the kernel gives to a process of this program.
fn comm(program: &Path) -> [u8; 16] {
    let name = program.file_name().map_or(&b""[..], |name| name.as_bytes());
    let mut comm = [0; 16];
    for (place, byte) in comm.iter_mut().take(15).zip(name) {
        *place = *byte;
    }
    comm
}

/// Calls, single, segments, bytes, errors.
type Numbers = [u64; 5];

fn sum(tally: &Tally) -> Numbers {
    tally.paths().map(|path| tally.imports(path)).fold([0; 5], |sum, row| {
        let Imports { calls, single, segments, bytes, errors, .. } = row;
        let row = [calls, single, segments, bytes, errors];
        std::array::from_fn(|place| sum[place] + row[place])
    })
}

fn counted(counts: &Counts) -> Numbers {
    [counts.imports(), counts.single, counts.all_segments(), counts.bytes, counts.errors]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_as_the_kernel_does() {
        assert_eq!(&comm(Path::new("/usr/bin/iotrace"))[..8], b"iotrace\0");
        assert_eq!(&comm(Path::new("/x/a-name-of-twenty-one")), b"a-name-of-twent\0");
    }
}
