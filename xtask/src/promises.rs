//! What is promised of iotrace's cost, against what else was measured in the same guest.

use std::fmt::Write as _;

use crate::overhead::Table;

/// A promise: what iotrace adds is at most so many times something else.
struct Promise {
    what: &'static str,
    load: &'static str,
    at_most: f64,
    of: &'static str,
    other: fn(&Table) -> Option<f64>,
}

const PROMISES: &[Promise] = &[
    Promise {
        what: "counting an import",
        load: "import",
        at_most: 1.5,
        of: "an empty optimised kprobe at the same place",
        other: |table| {
            // One that is optimised costs the same wherever it is.
            table.adds("empty kprobe, after the call", "import")
        },
    },
    Promise {
        what: "counting an import where fentry is possible",
        load: "splice",
        at_most: 1.5,
        of: "an empty fentry of the same function",
        other: |table| table.adds("empty fentry", "splice"),
    },
    Promise {
        what: "timing a walk",
        load: "walk",
        at_most: 1.3,
        of: "two optimised kprobes that do nothing but read the clock",
        // That one is optimised on every kernel; 7.3 optimises none where the walk is.
        other: |table| Some(2.0 * table.adds("kprobe that reads the clock, after the call", "import")?),
    },
    Promise {
        what: "timing a walk",
        load: "walk",
        at_most: 0.45,
        of: "bpftrace's histogram of times by fentry and fexit",
        other: |table| table.adds("bpftrace, fentry and fexit, histogram of times", "import"),
    },
    Promise {
        what: "timing a walk",
        load: "walk",
        at_most: 0.7,
        of: "libbpf-tools' funclatency by fentry and fexit",
        other: |table| table.adds("libbpf-tools funclatency, fentry and fexit", "import"),
    },
];

/// Each promise, and whether it is kept.
pub fn text(table: &Table) -> String {
    let mut text = String::from("| promised | at most | measured | kept |\n|---|---:|---:|---|\n");
    for Promise { what, load, at_most, of, other } in PROMISES {
        let ours = table.adds("iotrace", load);
        let ratio = ours.zip(other(table)).map(|(ours, other)| ours / other);
        let (measured, kept) = match ratio {
            Some(ratio) => (format!("{ratio:.2}"), if ratio <= *at_most { "yes" } else { "no" }),
            None => (String::new(), "not measured"),
        };
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "| {what}, to {of} | {at_most} | {measured} | {kept} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_promise_is_kept_or_not_or_not_measured() {
        let row = |name: &str, load: &str, instructions: u32| json!({"row": name, "load": load, "instructions": instructions});
        let rows = [
            row("nothing", "import", 900),
            row("nothing", "walk", 900),
            row("nothing", "splice", 100),
            row("empty kprobe, after the call", "import", 1200),
            row("empty fentry", "splice", 200),
            row("iotrace", "splice", 251),
            row("kprobe that reads the clock, after the call", "import", 1300),
            row("iotrace", "import", 1350),
            row("iotrace", "walk", 2100),
        ];
        let text = text(&Table::parse(&json!({"release": "6.12.1", "rows": rows})).unwrap());
        let ends: Vec<&str> = text
            .lines()
            .skip(2)
            .filter_map(|line| line.split_once("| 1.5 ").or(line.split_once("| 1.3 ")))
            .map(|(_, end)| end)
            .collect();
        assert_eq!(ends, ["| 1.50 | yes |", "| 1.51 | no |", "| 1.50 | no |"]);
        assert_eq!(text.matches("not measured").count(), 2);
    }
}
