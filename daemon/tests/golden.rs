//! What users see, word for word. `IOTRACE_BLESS=1 cargo test --test golden` rewrites the files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs, time::Duration};

use clap::CommandFactory as _;
use iotrace::{
    check::{self, CheckReport, Fact, Verdict},
    cli::Cli,
    metrics, names,
    snapshot::Delta,
    top,
};
use support::{golden, idle, repository, snapshot};

#[test]
fn exposition() {
    let text = metrics::encode(&snapshot(), Duration::from_micros(125)).unwrap();
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

#[test]
fn table_of_metrics() {
    const FILE: &str = "docs/metrics.md";
    const BEGIN: &str = "<!-- made from daemon/src/names.rs -->\n\n";
    const END: &str = "<!-- end -->";
    let text = fs::read_to_string(repository(FILE)).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("a begin mark");
    let (_, after) = rest.split_once(END).expect("an end mark");
    golden(FILE, &format!("{before}{BEGIN}{}\n{END}{after}", names::markdown()));
}
