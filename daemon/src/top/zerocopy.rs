//! TCP without copies, as tables.

use super::{Block, decimals, number, per};
use crate::snapshot::{Snapshot, ZerocopyCounted};

/// What was received.
pub fn receive(snapshot: &Snapshot) -> Option<String> {
    let (row, counted) = (&snapshot.zerocopy, ZerocopyCounted::by(&snapshot.probes));
    let (seconds, calls) = (snapshot.seconds, row.calls as f64);
    let mut table = Block::new(&[
        "zerocopy",
        "calls/s",
        "mapped MB/s",
        "copied MB/s",
        "mapped %",
        "ns/call",
        "insert ns/page",
        "zap ns/page",
        "lock waits",
        "wait ms",
        "errors",
    ]);
    let (pages, bytes) = (row.pages() as f64, (row.mapped + row.copied) as f64);
    let page = |nanos: u64, counted: bool| decimals(per(nanos as f64, pages).filter(|_| counted), 0);
    let waits = |text: String| if counted.waits { text } else { "-".into() };
    table.row([
        "tcp receive".into(),
        number(per(calls, seconds)),
        number(per(row.mapped as f64 / 1e6, seconds)),
        number(per(row.copied as f64 / 1e6, seconds)),
        number(per(row.mapped as f64 * 100.0, bytes)),
        decimals(per(row.nanos as f64, row.timed as f64), 0),
        page(row.insert_nanos, counted.inserts),
        page(row.zap_nanos, counted.zaps),
        waits(row.waits.to_string()),
        waits(number(Some(row.wait_nanos as f64 / 1e6))),
        row.errors.to_string(),
    ]);
    (row.calls > 0).then(|| table.text())
}

/// What was sent.
pub fn send(snapshot: &Snapshot) -> Option<String> {
    let (row, counted) = (&snapshot.zerocopy, ZerocopyCounted::by(&snapshot.probes));
    let mut table = Block::new(&["zerocopy", "calls/s", "completed", "fell back %"]);
    let completed = |text: String| if counted.completed { text } else { "-".into() };
    table.row([
        "tcp send".into(),
        number(per(row.sends as f64, snapshot.seconds)),
        completed(row.completed.to_string()),
        completed(number(per(row.fell_back as f64 * 100.0, row.completed as f64))),
    ]);
    (row.sends + row.completed > 0).then(|| table.text())
}

/// Who received.
pub fn processes(snapshot: &Snapshot) -> Option<String> {
    let mut table = Block::new(&["pid", "comm", "unit", "zerocopy calls", "mapped MB", "copied MB"]);
    let rows = || snapshot.processes.iter().filter(|row| row.zerocopy_calls > 0);
    for row in rows() {
        table.row([
            row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            row.comm.clone(),
            row.unit.clone(),
            row.zerocopy_calls.to_string(),
            number(Some(row.zerocopy_mapped as f64 / 1e6)),
            number(Some(row.zerocopy_copied as f64 / 1e6)),
        ]);
    }
    rows().next().is_some().then(|| table.text())
}
