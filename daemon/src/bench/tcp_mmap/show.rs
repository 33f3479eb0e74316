//! The result as tables.

use super::{Cost, Counted, Row, TcpMmap};
use crate::bench::table::{Columns, decimals};

impl TcpMmap {
    /// The table.
    pub fn table(&self) -> String {
        let mut columns = Columns::new(
            &[
                "receiver",
                "align",
                "clients",
                "MB",
                "mmap'ed %",
                "s",
                "stddev",
                "Gbit/s",
                "user s",
                "sys s",
                "us/MB",
                "switches",
                "insert ns/page",
                "zap ns/page",
                "lock waits",
                "wait ms",
                "probed us/MB",
                "counted",
            ],
            1,
        );
        for row in &self.rows {
            columns.row(cells(row));
        }
        let mut text = format!(
            "{} on {}, {} processors: {} bytes on each connection, {} at once, sent by {}, {} samples each\n",
            self.experiment, self.kernel, self.cpus, self.size, self.chunk, self.sender, self.samples
        );
        text += match self.sender.as_str() {
            "send" => {
                "Over loopback nothing that send(2) sends can be mapped: its pages are larger, and shared.\n"
            }
            _ => {
                "So that pages can be mapped over loopback, each segment is one page: TCP_MAXSEG is 4096 + 12.\n"
            }
        };
        text += &format!("\n{}\n", columns.text());
        for row in &self.rows {
            if let Some(why) = &row.impossible {
                text += &format!("{} with {} clients: {why}\n", row.receiver, row.clients);
            }
            if let Some(counted) = row.counted.filter(|counted| !counted.is_right()) {
                let Counted { received, sent, seen, .. } = counted;
                text += &format!(
                    "{} with {} clients did {received:?} and {sent:?}, but seen was {seen:?}\n",
                    row.receiver, row.clients
                );
            }
        }
        if self.interrupted {
            text += "stopped by a signal: what is above is of the samples that were complete\n";
        }
        text
    }

    /// This result and another side by side.
    pub fn beside(&self, other: &TcpMmap) -> String {
        let header = ["receiver", "align", "clients", "A us/MB", "B us/MB", "B/A", "A Gbit/s", "B Gbit/s"];
        let mut columns = Columns::new(&header, 1);
        for row in &self.rows {
            let key = |row: &Row| (row.receiver.clone(), row.align, row.clients);
            let Some(found) = other.rows.iter().find(|found| key(found) == key(row)) else { continue };
            let micros = |row: &Row| row.plain.map(|cost| cost.micros_per_mb.median);
            let (a, b) = (micros(row), micros(found));
            columns.row(vec![
                row.receiver.clone(),
                align(row),
                row.clients.to_string(),
                decimals(a, 0),
                decimals(b, 0),
                decimals(a.zip(b).map(|(a, b)| b / a), 2),
                decimals(row.plain.map(gbits), 2),
                decimals(found.plain.map(gbits), 2),
            ]);
        }
        let head = |name: &str, of: &TcpMmap| {
            format!(
                "{name}: {}, {} processors, {} bytes on each connection, sent by {}\n",
                of.kernel, of.cpus, of.size, of.sender
            )
        };
        format!("{}{}\n{}", head("A", self), head("B", other), columns.text())
    }
}

fn align(row: &Row) -> String {
    row.align.map_or_else(|| "-".into(), |align| align.to_string())
}

fn gbits(cost: Cost) -> f64 {
    cost.bytes * 8.0 / 1e9 / cost.seconds.avg
}

fn cells(row: &Row) -> Vec<String> {
    let plain = |of: fn(Cost) -> f64, places| decimals(row.plain.map(of), places);
    let pages = |of: fn(&Counted) -> Option<u64>| {
        let counted = row.counted.as_ref()?;
        let pages = counted.seen.pages();
        of(counted).filter(|_| pages > 0).map(|nanos| nanos as f64 / pages as f64)
    };
    let waits = row.counted.filter(|counted| counted.sees_waits && row.align.is_some());
    vec![
        row.receiver.clone(),
        align(row),
        row.clients.to_string(),
        plain(|cost| cost.bytes / f64::from(1 << 20), 0),
        plain(|cost| cost.mapped_percent, 1),
        plain(|cost| cost.seconds.avg, 3),
        plain(|cost| cost.seconds.stddev, 3),
        plain(gbits, 2),
        plain(|cost| cost.user, 3),
        plain(|cost| cost.system, 3),
        plain(|cost| cost.micros_per_mb.avg, 0),
        plain(|cost| cost.switches, 0),
        decimals(pages(|counted| counted.sees_page_table[0].then_some(counted.seen.insert_nanos)), 0),
        decimals(pages(|counted| counted.sees_page_table[1].then_some(counted.seen.zap_nanos)), 0),
        waits.map_or_else(|| "-".into(), |counted| counted.seen.waits.to_string()),
        decimals(waits.map(|counted| counted.seen.wait_nanos as f64 / 1e6), 2),
        decimals(row.probed.map(|cost| cost.micros_per_mb.avg), 0),
        row.counted.as_ref().map_or("-", Counted::word).to_owned(),
    ]
}
