//! docs/overhead.json and docs/overhead.md: what a call costs under each tracer, and how much it may cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::promises;
use crate::workspace;

const INTRODUCTION: &str = "\
# Overhead

Guest instructions for one system call under each tracer, measured by `cargo xtask bench`, which also writes this file with
`--bless`. The guest has one processor, and its time is its instructions, so the numbers are the same on any machine to
about 0.1 %. They say how much work is done, not how long it takes: on hardware a trap costs more than its instructions.

`import` is `readv(2)` of /dev/null: it imports an array of one segment and walks nothing. `both` is `readv(2)` of 64 bytes
of /dev/zero, `walk` is `pread(2)` of 64 bytes of a file in memory. `splice` is `vmsplice(2)` of one empty segment, an import
that iotrace counts by an fexit of its own, and `peek` is `recv(2)` of 64 bytes that stay in a socket, a walk that it counts and
times by fentry and fexit. `added` is what comes on top of the call without any tracer. `cargo xtask test` fails when iotrace adds
more than `bound`, which is 5 % above what is committed.

What happens once is below: planning from the bytes of the kernel's symbols, types and text to the plan, also with modules made up
beside it, and the parts of the daemon's own start, in which its other threads and the kernel take part.

perf trace and strace start the load themselves; their own work on the guest's processor is in the number.

What is not here: times on hardware. `cargo xtask bench --wall` measures them where KVM works, and says so where it does not.
";

/// Rows of these tracers have bounds.
const OURS: &str = "iotrace";
/// How much more a row may add before the tests fail, in percent.
const TOLERANCE: f64 = 5.0;

/// What was measured on each kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overhead(pub BTreeMap<String, Table>);

/// What was measured on one kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The kernel's release.
    pub release: String,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
    /// What happens once, not with every call.
    pub once: Vec<Once>,
}

/// Something that is done once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Once {
    /// What is done.
    pub name: String,
    /// Instructions.
    pub instructions: f64,
    /// Bytes of kernel text that it is about, where it is. Only such rows repeat well enough for a bound: in a start other
    /// threads take part.
    pub text: Option<f64>,
}

/// A tracer and a load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The tracer, and what it does.
    pub name: String,
    /// The call that is made again and again.
    pub load: String,
    /// Instructions for a call; none if it could not be measured.
    pub instructions: Option<f64>,
    /// What is to be known about it, or why it could not be measured.
    pub note: String,
}

impl Table {
    /// Reads what the guest printed, or a part of what [`Overhead::json`] made.
    pub fn parse(value: &Value) -> Result<Self> {
        let release = value["release"].as_str().context("a table without a release")?.to_owned();
        let rows = value["rows"].as_array().context("a table without rows")?;
        // Tables from before these were measured have none.
        let once = value["once"].as_array().into_iter().flatten();
        Ok(Self {
            release,
            rows: rows.iter().map(row).collect::<Result<_>>()?,
            once: once.map(Once::parse).collect::<Result<_>>()?,
        })
    }

    /// The row with this name and load.
    pub fn row(&self, name: &str, load: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.load == load)
    }

    /// What this row's call costs more than without a tracer.
    pub fn added(&self, row: &Row) -> Option<f64> {
        Some(row.instructions? - self.row("nothing", &row.load)?.instructions?)
    }

    /// What the row with this name and load adds.
    pub fn adds(&self, name: &str, load: &str) -> Option<f64> {
        self.added(self.row(name, load)?)
    }

    /// What the row may add.
    fn bound(&self, row: &Row) -> Option<f64> {
        let added = self.added(row).filter(|_| row.name.starts_with(OURS))?;
        Some((added * (1.0 + TOLERANCE / 100.0)).ceil())
    }

    /// A line for each row that adds more than `committed` allows, or that is gone.
    pub fn grown(&self, committed: &Table, label: &str) -> Vec<String> {
        let bounds = committed.rows.iter().filter_map(|row| Some((row, committed.bound(row)?)));
        let grown = bounds.filter_map(|(row, bound)| {
            let old = committed.added(row)?;
            let place = format!("{label}, `{}` on `{}`", row.name, row.load);
            let renew = "`cargo xtask bench --bless` renews docs/overhead.json";
            match self.adds(&row.name, &row.load) {
                None => Some(format!("{place}: not measured, {old} instructions before; {renew}")),
                Some(new) if new > bound => Some(format!(
                    "{place}: adds {new} instructions a call, {old} before, at most {bound}; {renew}"
                )),
                Some(_) => None,
            }
        });
        let once = committed.once.iter().filter_map(|old| Some((old, old.bound()?)));
        let once = once.filter_map(|(old, bound)| {
            let new = self.once.iter().find(|new| new.name == old.name);
            let new = new.map(|new| new.instructions).filter(|new| *new <= bound);
            let line = || {
                format!(
                    "{label}, `{}`: more than {bound} instructions or not measured, {} before; \
                     `cargo xtask bench --bless` renews docs/overhead.json",
                    old.name, old.instructions
                )
            };
            new.is_none().then(line)
        });
        grown.chain(once).collect()
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let mut value = json!({ "row": row.name, "load": row.load });
            match row.instructions {
                Some(instructions) => {
                    value["instructions"] = json!(instructions);
                    value["note"] = json!(row.note);
                }
                None => value["skipped"] = json!(row.note),
            }
            for (key, number) in [("added", self.added(row)), ("bound", self.bound(row))] {
                if let Some(number) = number {
                    value[key] = json!(number);
                }
            }
            value
        });
        let mut table = json!({ "release": self.release, "rows": rows.collect::<Vec<_>>() });
        if !self.once.is_empty() {
            table["once"] = self.once.iter().map(Once::json).collect();
        }
        table
    }

    /// Takes the rows that only `other` has, which is of the same release.
    fn keep(&mut self, other: &Table) {
        let missing = other.rows.iter().filter(|row| self.row(&row.name, &row.load).is_none());
        let missing: Vec<Row> = missing.cloned().collect();
        self.rows.extend(missing);
        if self.once.is_empty() {
            self.once.clone_from(&other.once);
        }
    }

    fn text(&self) -> String {
        let mut text =
            String::from("| tracer | load | per call | added | bound | |\n|---|---|---:|---:|---:|---|\n");
        let number = |number: Option<f64>| number.map(|number| format!("{number}")).unwrap_or_default();
        for row in &self.rows {
            let added = self.added(row).filter(|_| !row.name.starts_with("nothing"));
            let note = if row.instructions.is_some() {
                row.note.clone()
            } else {
                format!("not measured: {}", row.note)
            };
            // Writing to a string cannot fail.
            let _infallible = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                row.name,
                row.load,
                number(row.instructions),
                number(added),
                number(self.bound(row)),
                note.replace('|', "/")
            );
        }
        if !self.once.is_empty() {
            text += "\n| once | instructions | bound | kernel text, bytes |\n|---|---:|---:|---:|\n";
        }
        for once in &self.once {
            let _infallible = writeln!(
                text,
                "| {} | {} | {} | {} |",
                once.name,
                once.instructions,
                number(once.bound()),
                number(once.text)
            );
        }
        text + "\n" + &promises::text(self)
    }
}

impl Once {
    fn parse(value: &Value) -> Result<Once> {
        let name = value["row"].as_str().with_context(|| format!("a row without a name: {value}"))?;
        let instructions = value["instructions"].as_f64().with_context(|| format!("no number: {value}"))?;
        Ok(Once { name: name.to_owned(), instructions, text: value["text"].as_f64() })
    }

    fn json(&self) -> Value {
        let mut value = json!({ "row": self.name, "instructions": self.instructions });
        for (key, number) in [("text", self.text), ("bound", self.bound())] {
            if let Some(number) = number {
                value[key] = json!(number);
            }
        }
        value
    }

    /// How much it may take.
    fn bound(&self) -> Option<f64> {
        self.text.map(|_| (self.instructions * (1.0 + TOLERANCE / 100.0)).ceil())
    }
}

fn row(value: &Value) -> Result<Row> {
    let word = |key: &str| value[key].as_str().map(str::to_owned);
    let (Some(name), Some(load)) = (word("row"), word("load")) else {
        bail!("a row without a name: {value}")
    };
    let instructions = value["instructions"].as_f64();
    let note = word("note").or_else(|| word("skipped")).unwrap_or_default();
    Ok(Row { name, load, instructions, note })
}

impl Overhead {
    /// What is committed; nothing if there is none yet.
    pub fn committed() -> Result<Self> {
        match fs::read_to_string(workspace::root().join("docs/overhead.json")) {
            Ok(text) => Self::parse(&text).context("docs/overhead.json"),
            Err(_) => Ok(Self::default()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let tables = value.as_object().context("no object")?.iter();
        tables
            .map(|(label, table)| Ok((label.clone(), Table::parse(table)?)))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Puts `now` over `self`: of a release that stays, the rows that were not measured now stay, too.
    pub fn renew(&mut self, now: &Overhead) {
        for (label, table) in &now.0 {
            let mut table = table.clone();
            if let Some(before) = self.0.get(label).filter(|before| before.release == table.release) {
                table.keep(before);
            }
            self.0.insert(label.clone(), table);
        }
    }

    /// Writes both files into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json: BTreeMap<&str, Value> =
            self.0.iter().map(|(label, table)| (&**label, table.json())).collect();
        fs::write(folder.join("overhead.json"), serde_json::to_string_pretty(&json)? + "\n")?;
        fs::write(folder.join("overhead.md"), self.page())?;
        Ok(())
    }

    /// The page for people.
    pub fn page(&self) -> String {
        let sections = self
            .0
            .iter()
            .map(|(label, table)| format!("\n## {label}: {}\n\n{}", table.release, table.text()));
        INTRODUCTION.to_owned() + &sections.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(release: &str, ours: f64) -> Table {
        let rows = [
            json!({"row": "nothing", "load": "import", "instructions": 900}),
            json!({"row": "iotrace", "load": "import", "instructions": 900.0 + ours, "note": "n"}),
            json!({"row": "strace -c", "load": "import", "skipped": "no strace"}),
        ];
        let once = [
            json!({"row": "planning", "instructions": 100.0 * ours, "text": 16}),
            json!({"row": "start", "instructions": 7.0 * ours}),
        ];
        Table::parse(&json!({"release": release, "rows": rows, "once": once})).unwrap()
    }

    #[test]
    fn a_row_that_grows_too_much_is_told() {
        let committed = table("6.12.1", 1000.0);
        assert_eq!(table("6.12.1", 1050.0).grown(&committed, "6.12"), Vec::<String>::new());
        assert_eq!(table("6.12.1", 10.0).grown(&committed, "6.12"), Vec::<String>::new());
        assert_eq!(
            table("6.12.1", 1051.0).grown(&committed, "6.12"),
            [
                "6.12, `iotrace` on `import`: adds 1051 instructions a call, 1000 before, at most 1050; \
              `cargo xtask bench --bless` renews docs/overhead.json",
                "6.12, `planning`: more than 105000 instructions or not measured, 100000 before; \
              `cargo xtask bench --bless` renews docs/overhead.json"
            ]
        );
        assert_eq!(Table::default().grown(&committed, "6.12").len(), 2);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let overhead = Overhead(BTreeMap::from([("6.12".into(), table("6.12.1", 1000.0))]));
        let folder = tempfile::tempdir().unwrap();
        overhead.write(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join("overhead.json")).unwrap();
        assert_eq!(Overhead::parse(&text).unwrap(), overhead);
        let page = fs::read_to_string(folder.path().join("overhead.md")).unwrap();
        for line in [
            "## 6.12: 6.12.1",
            "| nothing | import | 900 |  |  |  |",
            "| iotrace | import | 1900 | 1000 | 1050 | n |",
            "| strace -c | import |  |  |  | not measured: no strace |",
            "| planning | 100000 | 105000 | 16 |",
            "| start | 7000 |  |  |",
        ] {
            assert!(page.lines().any(|other| other == line), "no {line} in {page}");
        }
    }

    #[test]
    fn rows_of_another_release_do_not_stay() {
        let now = |release: &str| {
            let mut table = table(release, 500.0);
            table.rows.pop();
            Overhead(BTreeMap::from([("6.12".into(), table)]))
        };
        for (release, rows) in [("6.12.1", 3), ("6.12.2", 2)] {
            let mut overhead = Overhead(BTreeMap::from([("6.12".into(), table("6.12.1", 1000.0))]));
            overhead.renew(&now(release));
            let table = &overhead.0["6.12"];
            assert_eq!((table.rows.len(), table.adds("iotrace", "import")), (rows, Some(500.0)));
        }
    }
}
