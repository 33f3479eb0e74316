//! What users see, word for word. `IOTRACE_BLESS=1 cargo test --test golden` rewrites the files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;

use clap::CommandFactory as _;
use iotrace::{
    check::{self, CheckReport, Fact, Verdict},
    cli::Cli,
    metrics, names,
    snapshot::Delta,
    top,
};
use iotrace_common::{
    block::{Block, ROWS},
    iter::IterRecord,
    memory,
    who::{SLOTS, Slot},
};
use support::{golden, idle, own, repository, snapshot};

#[test]
fn exposition() {
    let text = metrics::encode(&snapshot(), &own()).unwrap();
    let text = String::from_utf8(text).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    golden("daemon/tests/golden/metrics.txt", &text);
}

#[test]
fn top_table() {
    golden("daemon/tests/golden/top.txt", &top::table(&Delta(snapshot())));
    golden("daemon/tests/golden/top-idle.txt", &top::table(&Delta(idle())));
}

#[test]
fn top_json() {
    golden("daemon/tests/golden/top.json", &format!("{:#}\n", top::json(&Delta(snapshot()))));
}

#[test]
fn check_report() {
    let fact = |name: &str, verdict, note: &str| Fact { name: name.into(), verdict, note: note.into() };
    let report = CheckReport {
        release: "6.12.0-amd64".into(),
        arch: "x86_64".into(),
        facts: vec![
            fact("btf", Verdict::Yes, "/sys/kernel/btf/vmlinux"),
            fact("kcore", Verdict::No, "/proc/kcore: Permission denied"),
            fact("lockdown", Verdict::Unknown, ""),
        ],
        kinds: ["ubuf", "iovec", "bvec"].map(String::from).to_vec(),
        tried: true,
        programs: [("import_call".to_owned(), 412)].into(),
        probes: snapshot().probes,
    };
    assert_eq!(report.exit_code(), 1);
    golden("daemon/tests/golden/check.txt", &check::report(&report));
    golden("daemon/tests/golden/check.json", &format!("{:#}\n", report.json()));
    let planned = CheckReport { tried: false, ..report };
    assert!(check::report(&planned).ends_with("\n14 of 16 sites can be attached, 1 failed, 1 unavailable\n"));
}

#[test]
fn help() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = command.render_long_help().to_string();
    for name in ["daemon", "top", "check", "selftest", "bench"] {
        let help = command.find_subcommand_mut(name).unwrap().render_long_help();
        text += &format!("\n──── {name}\n\n{help}");
    }
    // clap pads the empty lines between the parts of an option.
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    golden("daemon/tests/golden/help.txt", &text);
}

/// The part of a page that is made from a source file.
fn made(page: &str, source: &str, table: &str) {
    let begin = format!("<!-- made from {source} -->\n\n");
    const END: &str = "<!-- end -->";
    let text = fs::read_to_string(repository(page)).unwrap();
    let (before, rest) = text.split_once(&begin).expect("a begin mark");
    let (_, after) = rest.split_once(END).expect("an end mark");
    golden(page, &format!("{before}{begin}{table}\n{END}{after}"));
}

#[test]
fn table_of_metrics() {
    made("docs/metrics.md", "daemon/src/names.rs", &names::markdown());
}

#[test]
fn table_of_maps() {
    /// As on 5.10, whose sites and room for a thousand more take 4,096 sets.
    const SETS: usize = 1 << 12;
    let maps = memory::maps(SETS);
    let mut text = String::from("| map | holds | bytes | bytes for each CPU |\n|---|---|---:|---:|\n");
    for map in maps {
        text += &format!("| `{}` | {} | {} | {} |\n", map.name, map.holds, map.fixed, map.per_cpu);
    }
    let sum = |bytes: fn(&memory::Map) -> usize| maps.iter().map(bytes).sum::<usize>();
    text += &format!("| sum | | {} | {} |\n\n", sum(|map| map.fixed), sum(|map| map.per_cpu));
    text += &format!(
        "The table of sites has {SETS} sets on 5.10, and one from 5.15 on. A CPU's block has {ROWS} rows of {} bytes for functions and kinds.\n",
        size_of::<IterRecord>()
    );
    text += &format!(
        "In user space each CPU takes {} bytes: its block, as pages that are shared with the kernel, and a copy of its slots.\n",
        size_of::<Block>() + SLOTS as usize * size_of::<Slot>()
    );
    made("docs/memory.md", "common/src/memory.rs", &text);
}
