//! `iotrace bench`: experiments that a reader of the threads behind iotrace may want to repeat on his own kernel.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use crate::{
    cli::{Bench, Common, Experiment, TopOutput},
    measure::Measure,
    probes::Scope,
    snapshot::State,
    tracer::TracerError,
};

mod counted;
mod run;
mod single_segment;
mod stats;
mod table;
mod tcp_mmap;

use single_segment::SingleSegment;
use tcp_mmap::TcpMmap;

/// As a shell tells of SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs an experiment or compares two results; gives what is to be printed.
///
/// # Errors
/// Why nothing can be probed, a load that failed, a file that is no result.
pub fn run(bench: &Bench) -> Result<(String, ExitCode)> {
    let Some(experiment) = &bench.experiment else {
        let [a, b] = bench.compare.as_slice() else { bail!("--compare takes two files") };
        return Ok((compare(a, b)?, ExitCode::SUCCESS));
    };
    match experiment {
        Experiment::SingleSegment(options) => {
            let result = single_segment::run(options, probes(&options.common)?)?;
            let text = text(options.common.output, &result, SingleSegment::table)?;
            Ok((text, exit_code(result.interrupted, result.agrees())))
        }
        Experiment::TcpMmap(options) => {
            let result = tcp_mmap::run(options, probes(&options.common)?)?;
            let text = text(options.common.output, &result, TcpMmap::table)?;
            Ok((text, exit_code(result.interrupted, result.agrees())))
        }
    }
}

fn text<T: Serialize>(output: TopOutput, result: &T, table: fn(&T) -> String) -> Result<String> {
    Ok(match output {
        TopOutput::Table => table(result),
        TopOutput::Json => format!("{}\n", serde_json::to_string_pretty(result)?),
    })
}

/// Probes on children of this process alone, if they are wanted.
fn probes(common: &Common) -> Result<Option<Measure>> {
    if common.no_probes {
        return Ok(None);
    }
    let measure = Measure::start(Scope { follow: true, ..Scope::default() })
        .context("no probes here; --no-probes does without")?;
    if measure.probes().iter().all(|probe| probe.state != State::Attached) {
        measure.stop();
        return Err(TracerError::Nothing.into());
    }
    Ok(Some(measure))
}

fn exit_code(interrupted: bool, agrees: bool) -> ExitCode {
    match (interrupted, agrees) {
        (true, _) => INTERRUPTED.into(),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    }
}

fn compare(a: &Path, b: &Path) -> Result<String> {
    let [first, second] = [a, b].map(|path| -> Result<(String, Value)> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is no result of `iotrace bench NAME -o json`", path.display()))?;
        let Some(name) = value.get("experiment").and_then(Value::as_str) else {
            bail!("{} is no result of `iotrace bench NAME -o json`", path.display());
        };
        Ok((name.to_owned(), value))
    });
    let ((name, first), (other, second)) = (first?, second?);
    if name != other {
        bail!(
            "{} is of {name}, {} of {other}: only results of one experiment can be compared",
            a.display(),
            b.display()
        );
    }
    match name.as_str() {
        SingleSegment::NAME => {
            let (first, second): (SingleSegment, SingleSegment) = (read(a, first)?, read(b, second)?);
            Ok(first.beside(&second))
        }
        TcpMmap::NAME => {
            let (first, second): (TcpMmap, TcpMmap) = (read(a, first)?, read(b, second)?);
            Ok(first.beside(&second))
        }
        _ => bail!("{}: no experiment of this version of iotrace is called {name}", a.display()),
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path, value: Value) -> Result<T> {
    serde_json::from_value(value).with_context(|| format!("{} is not whole", path.display()))
}
