//! Calls with one segment against calls without a vector, as in Jens Axboe's thread "Turn single vector imports into
//! ITER_UBUF" (March 2023).

use std::collections::BTreeSet;

use anyhow::Result;
use iotrace_load::{
    Outcome,
    turns::{Place, Sample, Turn},
};
use serde::{Deserialize, Serialize};

use super::{
    counted::Counted,
    run::{self, ROUNDS, Samples, Task},
    stats::Stats,
    table::{Columns, decimals},
};
use crate::{cli, kernel, measure::Measure};

/// A turn, and the one without a vector that does the same.
type Line = (Place, Turn, Option<Turn>);

const fn line(place: Place, turn: Turn) -> Line {
    (place, turn, None)
}

const fn against(place: Place, turn: Turn, plain: Turn) -> Line {
    (place, turn, Some(plain))
}

const LINES: &[Line] = &[
    line(Place::Zero, Turn::Read),
    against(Place::Zero, Turn::Readv, Turn::Read),
    line(Place::Zero, Turn::Pread),
    against(Place::Zero, Turn::Preadv, Turn::Pread),
    line(Place::Zero, Turn::UringRead),
    against(Place::Zero, Turn::UringReadv, Turn::UringRead),
    line(Place::Null, Turn::Write),
    against(Place::Null, Turn::Writev, Turn::Write),
    line(Place::Null, Turn::UringWrite),
    against(Place::Null, Turn::UringWritev, Turn::UringWrite),
    line(Place::Tmpfs, Turn::Pread),
    against(Place::Tmpfs, Turn::Preadv, Turn::Pread),
    line(Place::Tmpfs, Turn::Pwrite),
    against(Place::Tmpfs, Turn::Pwritev, Turn::Pwrite),
    line(Place::Pipe, Turn::WriteRead),
    against(Place::Pipe, Turn::WritevRead, Turn::WriteRead),
    against(Place::Pipe, Turn::WriteReadv, Turn::WriteRead),
    line(Place::Unix, Turn::SendRecv),
    against(Place::Unix, Turn::SendmsgRecv, Turn::SendRecv),
    against(Place::Unix, Turn::SendRecvmsg, Turn::SendRecv),
    line(Place::Tcp, Turn::SendRecv),
    against(Place::Tcp, Turn::SendmsgRecv, Turn::SendRecv),
    against(Place::Tcp, Turn::SendRecvmsg, Turn::SendRecv),
    line(Place::Null, Turn::NoSegment),
    against(Place::Null, Turn::EmptySegment, Turn::NoSegment),
];

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SingleSegment {
    /// [`SingleSegment::NAME`].
    pub experiment: String,
    /// `uname -r`.
    pub kernel: String,
    /// Turns of each sample.
    pub count: u64,
    /// Bytes of each call.
    pub bytes: usize,
    /// Samples of each row that were asked for, and with probes as many again.
    pub samples: u32,
    /// Whether a signal ended it before.
    pub interrupted: bool,
    /// What importing one segment takes, in nanoseconds: `readv` of one empty segment less that of none, by the medians.
    pub import: Option<f64>,
    /// In the order of the table.
    pub rows: Vec<Row>,
}

/// One kind of turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it works on.
    pub place: String,
    /// Its calls.
    pub calls: String,
    /// The calls without a vector that do the same; none for these themselves.
    pub against: Option<String>,
    /// Without probes.
    pub plain: Option<Cost>,
    /// With probes.
    pub probed: Option<Cost>,
    /// What the probes saw of it.
    pub counted: Option<Counted>,
    /// Why there is nothing.
    pub impossible: Option<String>,
}

/// What turns cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Nanoseconds of a turn, of the wall clock.
    pub nanos: Stats,
    /// Seconds of a sample in user space, on the average.
    pub user: f64,
    /// Seconds of a sample in the kernel, on the average.
    pub system: f64,
}

impl Cost {
    fn of(count: u64, samples: &[&Sample]) -> Option<Cost> {
        let each = |nanos: fn(&Sample) -> u64, of: f64| -> Vec<f64> {
            samples.iter().map(|sample| nanos(sample) as f64 / of).collect()
        };
        Some(Cost {
            nanos: Stats::of(&each(|sample| sample.spent.wall, count as f64))?,
            user: Stats::of(&each(|sample| sample.spent.user, 1e9))?.avg,
            system: Stats::of(&each(|sample| sample.spent.system, 1e9))?.avg,
        })
    }
}

/// Runs it.
///
/// # Errors
/// A load that cannot be run.
pub fn run(options: &cli::SingleSegment, measure: Option<Measure>) -> Result<SingleSegment> {
    let lines = chosen(options.only.as_deref());
    let tasks: Vec<Task> = lines.iter().map(|(place, turn, _)| task(*place, *turn, options)).collect();
    let all: Samples<Sample> = run::samples(&tasks, options.common.samples, measure)?;
    let rows: Vec<Row> =
        lines.iter().enumerate().map(|(number, line)| row(number, line, options, &all)).collect();
    let nanos = |turn: Turn| {
        let row = rows.iter().find(|row| row.calls == turn.name())?;
        Some(row.plain?.nanos.median)
    };
    Ok(SingleSegment {
        experiment: SingleSegment::NAME.into(),
        kernel: kernel::release(),
        count: options.count,
        bytes: options.bytes,
        samples: ROUNDS * options.common.samples,
        interrupted: all.interrupted,
        import: nanos(Turn::EmptySegment).zip(nanos(Turn::NoSegment)).map(|(one, none)| one - none),
        rows,
    })
}

/// The lines that the user wants; with a vectored call always the one that it is held against, and always the import.
fn chosen(only: Option<&str>) -> Vec<Line> {
    let Some(only) = only else { return LINES.to_vec() };
    let import = |turn: Turn| matches!(turn, Turn::NoSegment | Turn::EmptySegment);
    let wanted =
        |(place, turn, _): &&Line| import(*turn) || place.name().contains(only) || turn.name().contains(only);
    let mut names = BTreeSet::new();
    for (place, turn, plain) in LINES.iter().filter(wanted) {
        names.insert((place.name(), turn.name()));
        names.extend(plain.map(|plain| (place.name(), plain.name())));
    }
    LINES.iter().filter(|(place, turn, _)| names.contains(&(place.name(), turn.name()))).copied().collect()
}

fn task(place: Place, turn: Turn, options: &cli::SingleSegment) -> Task {
    let words = ["sample", "turns", place.name(), turn.name(), "--count"].map(String::from);
    let rest = [options.count.to_string(), "--bytes".into(), options.bytes.to_string()];
    Task {
        name: format!("{} {}", place.name(), turn.name()),
        arguments: words.into_iter().chain(rest).collect(),
    }
}

fn row(
    number: usize,
    (place, turn, plain): &Line,
    options: &cli::SingleSegment,
    all: &Samples<Sample>,
) -> Row {
    let taken = || all.taken.iter().filter(|taken| taken.task == number);
    let done = |probed: bool| -> Vec<&Sample> {
        let taken = taken().filter(|taken| taken.seen.is_some() == probed);
        taken
            .filter_map(|taken| match &taken.outcome {
                Outcome::Done(sample) => Some(sample),
                _ => None,
            })
            .collect()
    };
    let impossible = taken().find_map(|taken| match &taken.outcome {
        Outcome::Impossible(why) => Some(why.clone()),
        _ => None,
    });
    let seen = taken().filter_map(|taken| match (&taken.outcome, &taken.seen) {
        (Outcome::Done(sample), Some(delta)) => Some((&sample.tally, delta)),
        _ => None,
    });
    Row {
        place: place.name().into(),
        calls: turn.name().into(),
        against: plain.map(|plain| plain.name().to_owned()),
        plain: Cost::of(options.count, &done(false)),
        probed: Cost::of(options.count, &done(true)),
        counted: all.probes.as_deref().and_then(|probes| Counted::of(seen, probes)),
        impossible,
    }
}

impl SingleSegment {
    /// On the command line and in the result.
    pub const NAME: &'static str = "single-segment";

    /// What a vectored call takes longer than the one without a vector, in nanoseconds, by the medians: one sample that
    /// was disturbed does not count. `None` for a row that has no vector.
    pub fn surplus(&self, row: &Row) -> Option<f64> {
        Some(row.plain?.nanos.median - self.plain(row)?.plain?.nanos.median)
    }

    /// Whether the surplus is more than twice its standard error.
    fn is_certain(&self, row: &Row) -> bool {
        let nanos = |row: &Row| row.plain.map(|cost| cost.nanos);
        let error = || Some(nanos(row)?.error_of_difference(&nanos(self.plain(row)?)?));
        self.surplus(row).zip(error()).is_some_and(|(surplus, error)| surplus > 2.0 * error)
    }

    /// The row without a vector that does the same.
    fn plain(&self, row: &Row) -> Option<&Row> {
        let plain = row.against.as_ref()?;
        self.rows.iter().find(|other| other.place == row.place && other.calls == *plain)
    }

    /// Whether all counts are those of the loads.
    pub fn agrees(&self) -> bool {
        self.rows.iter().filter_map(|row| row.counted.as_ref()).all(Counted::is_right)
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut columns = Columns::new(
            &[
                "place", "calls", "user s", "sys s", "ns/turn", "stddev", "min", "median", "surplus",
                "import %", "probed", "probes", "counted",
            ],
            2,
        );
        let mut notes = BTreeSet::new();
        for row in &self.rows {
            let cost = |of: fn(&Cost) -> f64| row.plain.as_ref().map(of);
            let surplus = self.surplus(row);
            // Of a surplus that may be none the import is no part.
            let share = surplus.filter(|_| row.calls != Turn::EmptySegment.name() && self.is_certain(row));
            let share = share.zip(self.import).map(|(surplus, import)| import * 100.0 / surplus);
            let probed = row.probed.map(|cost| cost.nanos.median);
            let probes = probed.zip(row.plain).map(|(probed, plain)| probed - plain.nanos.median);
            notes.extend(row.impossible.iter().map(|why| format!("{} {}: {why}", row.place, row.calls)));
            notes.extend(row.counted.iter().filter_map(|counted| counted.note(&row.place, &row.calls)));
            columns.row(vec![
                row.place.clone(),
                row.calls.clone(),
                decimals(cost(|cost| cost.user), 2),
                decimals(cost(|cost| cost.system), 2),
                decimals(cost(|cost| cost.nanos.avg), 1),
                decimals(cost(|cost| cost.nanos.stddev), 1),
                decimals(cost(|cost| cost.nanos.min), 1),
                decimals(cost(|cost| cost.nanos.median), 1),
                decimals(surplus, 1),
                decimals(share, 0),
                decimals(probed, 1),
                decimals(probes, 1),
                row.counted.as_ref().map_or("-", Counted::word).to_owned(),
            ]);
        }
        let mut text = format!(
            "{} on {}: {} turns of {} bytes, {} samples each\n\n{}",
            self.experiment,
            self.kernel,
            self.count,
            self.bytes,
            self.samples,
            columns.text()
        );
        text.push('\n');
        if let Some(import) = self.import {
            text += &format!(
                "importing one segment takes {import:.1} ns; surplus, import and probes by the medians\n"
            );
        }
        for note in notes {
            text += &format!("{note}\n");
        }
        if self.interrupted {
            text += "stopped by a signal: what is above is of the samples that were complete\n";
        }
        text
    }

    /// This result and another side by side.
    pub fn beside(&self, other: &SingleSegment) -> String {
        let mut columns =
            Columns::new(&["place", "calls", "A ns", "B ns", "B/A", "A surplus", "B surplus"], 2);
        for row in &self.rows {
            let same = |found: &&Row| found.place == row.place && found.calls == row.calls;
            let Some(found) = other.rows.iter().find(same) else { continue };
            let (a, b) = (row.plain.map(|cost| cost.nanos.median), found.plain.map(|cost| cost.nanos.median));
            columns.row(vec![
                row.place.clone(),
                row.calls.clone(),
                decimals(a, 1),
                decimals(b, 1),
                decimals(a.zip(b).map(|(a, b)| b / a), 2),
                decimals(self.surplus(row), 1),
                decimals(other.surplus(found), 1),
            ]);
        }
        let head = |name: &str, result: &SingleSegment| {
            format!(
                "{name}: {}, {} turns of {} bytes; importing one segment takes {} ns\n",
                result.kernel,
                result.count,
                result.bytes,
                decimals(result.import, 1)
            )
        };
        format!("{}{}\n{}", head("A", self), head("B", other), columns.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vectored_row_is_held_against_one_that_is_there() {
        for (place, _, plain) in LINES {
            let found = |plain| LINES.iter().any(|(other, turn, _)| other == place && *turn == plain);
            assert!(plain.is_none_or(found));
        }
        let names: Vec<_> = chosen(Some("readv")).iter().map(|line| (line.0.name(), line.1.name())).collect();
        assert!(names.contains(&("zero", "read")) && names.contains(&("pipe", "write+read")));
        assert!(!names.iter().any(|(place, _)| *place == "tcp") && chosen(Some("nothing")).len() == 2);
    }
}
