//! What happened in a span of time: a table for people, JSON for programs.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

mod zerocopy;

use crate::snapshot::{Coverage, Delta, Import, Iter, Process, Snapshot, State};

/// The table: imports by path, iterators by function and kind, processes, and what is missing from all. No colour, no
/// border; rows without a call are left out.
pub fn table(delta: &Delta) -> String {
    let Delta(snapshot) = delta;
    let blocks = [
        imports(snapshot),
        iters(snapshot),
        zerocopy::receive(snapshot),
        zerocopy::send(snapshot),
        processes(snapshot),
        zerocopy::processes(snapshot),
    ];
    let mut text = format!("in {:.1} s\n", snapshot.seconds);
    let mut quiet = true;
    for block in blocks.into_iter().flatten() {
        quiet = false;
        text.push('\n');
        text.push_str(&block);
    }
    if quiet {
        text.push_str("\nNothing was counted: no import and no call of an iterator function.\n");
    }
    let missing = missing(snapshot);
    if !missing.is_empty() {
        text.push('\n');
        for line in missing {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

fn imports(snapshot: &Snapshot) -> Option<String> {
    let mut rows: Vec<&Import> = snapshot.imports.iter().filter(|row| row.calls() > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.calls()));
    let mut table =
        Block::new(&["imports", "calls/s", "single %", "segments/call", "allocated %", "MB/s", "errors"]);
    for row in &rows {
        let calls = row.calls() as f64;
        table.row([
            row.path.clone(),
            number(per(calls, snapshot.seconds)),
            number(per(row.single() as f64 * 100.0, calls)),
            decimals(per(row.segments as f64, calls), 2),
            number(per(row.allocated as f64 * 100.0, calls)),
            number(per(row.bytes as f64 / 1e6, snapshot.seconds)),
            row.errors.to_string(),
        ]);
    }
    (!rows.is_empty()).then(|| table.text())
}

fn iters(snapshot: &Snapshot) -> Option<String> {
    let mut rows: Vec<&Iter> = snapshot.iters.iter().filter(|row| row.calls > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.calls));
    let mut table =
        Block::new(&["iterators", "kind", "calls/s", "MB/s", "segments/call", "ns/call", "ns/KiB", "short"]);
    for row in &rows {
        let nanos = row.nanos as f64;
        table.row([
            row.function.clone(),
            row.kind.clone(),
            number(per(row.calls as f64, snapshot.seconds)),
            number(per(row.bytes as f64 / 1e6, snapshot.seconds)),
            decimals(per(row.segments as f64, row.timed() as f64).filter(|segments| *segments > 0.0), 2),
            decimals(per(nanos, row.timed() as f64), 0),
            decimals(per(nanos * 1024.0, row.bytes as f64), 0),
            row.short.to_string(),
        ]);
    }
    (!rows.is_empty()).then(|| table.text())
}

/// In the order they come, the heaviest first.
fn processes(snapshot: &Snapshot) -> Option<String> {
    let rows: Vec<&Process> =
        snapshot.processes.iter().filter(|row| row.calls() > row.zerocopy_calls).collect();
    let mut table = Block::new(&[
        "pid",
        "comm",
        "unit",
        "imports",
        "single %",
        "segments",
        "MB",
        "walker calls",
        "walked MB",
    ]);
    for row in &rows {
        table.row([
            row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            row.comm.clone(),
            short(&row.unit),
            row.imports.to_string(),
            number(per(row.single as f64 * 100.0, row.imports as f64)),
            row.segments.to_string(),
            number(Some(row.bytes as f64 / 1e6)),
            row.iter_calls().to_string(),
            number(Some(row.iter_bytes() as f64 / 1e6)),
        ]);
    }
    (!rows.is_empty()).then(|| table.text())
}

/// A name that does not push all others off the screen: the beginning and the end say most.
fn short(name: &str) -> String {
    const MOST: usize = 32;
    let length = name.chars().count();
    if length <= MOST {
        return name.to_owned();
    }
    let begin: String = name.chars().take(MOST / 2 + 4).collect();
    let end: String = name.chars().skip(length - (MOST - MOST / 2 - 5)).collect();
    format!("{begin}…{end}")
}

/// What the numbers above do not hold, one line each.
fn missing(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let lost: Vec<String> = snapshot
        .lost
        .iter()
        .filter(|(_, events)| **events > 0)
        .map(|(reason, events)| format!("{events} {reason}"))
        .collect();
    if !lost.is_empty() {
        lines.push(format!("lost      {}", lost.join(", ")));
    }
    let coverage = snapshot.coverage();
    if coverage.iter().all(|row| row.attached == 0) {
        lines.push("coverage  no site is attached: nothing can be counted".to_owned());
        return lines;
    }
    let before = lines.len();
    for Coverage { target, attached, sites } in coverage.iter().filter(|row| row.attached < row.sites) {
        let states = [State::Pending, State::Failed, State::Unavailable].into_iter().filter_map(|state| {
            let probes = snapshot.probes.iter();
            let number =
                probes.filter(|it| it.target == *target && !it.site.is_empty() && it.state == state).count();
            (number > 0).then(|| format!("{number} {}", state.name()))
        });
        let states: Vec<String> = states.collect();
        lines.push(format!("coverage  {target}: {attached} of {sites} sites, {}", states.join(", ")));
    }
    let siteless: Vec<&str> =
        coverage.iter().filter(|row| row.sites == 0).map(|row| row.target.as_str()).collect();
    if !siteless.is_empty() {
        lines.push(format!("coverage  no site: {}", siteless.join(", ")));
    }
    if lines.len() > before {
        lines.push("          `iotrace check` gives the reasons".to_owned());
    }
    lines
}

/// A table whose first column is a name, and others with [`NAMES`] above them.
struct Block(Table);

const NAMES: [&str; 3] = ["kind", "comm", "unit"];

impl Block {
    fn new(header: &[&str]) -> Block {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(header);
        for (index, column) in table.column_iter_mut().enumerate() {
            let name = (index == 0 && header[0] != "pid") || NAMES.contains(&header[index]);
            column.set_cell_alignment(if name { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, 2));
        }
        Block(table)
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells);
    }

    fn text(&self) -> String {
        self.0.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

fn per(amount: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| amount / of)
}

/// With as many decimals as say something; none for nothing at all.
fn number(value: Option<f64>) -> String {
    let places = match value {
        Some(0.0) => 0,
        Some(value) if value < 0.995 => 2,
        Some(value) if value < 999.5 => 1,
        _ => 0,
    };
    decimals(value, places)
}

fn decimals(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}

/// Every number, also the zeros.
pub fn json(delta: &Delta) -> Value {
    let Delta(snapshot) = delta;
    let imports = snapshot.imports.iter().map(|row| {
        json!({
            "path": row.path,
            "calls": row.calls(),
            "single": row.single(),
            "segments": row.segments,
            "allocated": row.allocated,
            "bytes": row.bytes,
            "errors": row.errors,
        })
    });
    let iters = snapshot.iters.iter().map(|row| {
        json!({
            "function": row.function,
            "kind": row.kind,
            "calls": row.calls,
            "timed": row.timed(),
            "asked": row.asked,
            "bytes": row.bytes,
            "short": row.short,
            "segments": row.segments,
            "seconds": row.nanos as f64 / 1e9,
        })
    });
    json!({
        "seconds": snapshot.seconds,
        "imports": imports.collect::<Vec<_>>(),
        "iters": iters.collect::<Vec<_>>(),
        "zerocopy": snapshot.zerocopy,
        "processes": snapshot.processes,
        "lost": snapshot.lost,
        "probes": snapshot.probes,
        "coverage": snapshot.coverage(),
    })
}
