//! Which file may know which crate, and which module which other: the data has one direction.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A crate, and the only files and folders of `daemon/src` that may name it.
const CRATES: &[(&str, &[&str])] = &[
    ("aya", &["probes.rs", "probes/"]),
    ("aya_log", &["probes.rs", "probes/"]),
    ("prometheus", &["metrics.rs"]),
    ("axum", &["http.rs", "http/"]),
    ("flate2", &["http/"]),
    ("hyper_util", &["http.rs"]),
    ("tokio_rustls", &["http/web/clients.rs", "http/web/tls.rs"]),
    ("webpki", &["http/web/clients.rs"]),
    ("ring", &["http/web/auth.rs", "http/web/tls.rs"]),
    ("base64", &["http/web/auth.rs"]),
    ("bcrypt", &["http/web/auth.rs", "http/web/config.rs"]),
    ("serde_saphyr", &["http/web/config.rs", "http/web/config/"]),
    ("comfy_table", &["bench/table.rs", "top.rs"]),
    ("iced_x86", &["plan/arch_x86_64.rs", "plan/run_x86_64.rs"]),
    ("clap", &["cli.rs", "cli/"]),
    ("toml", &["cli/file.rs"]),
    ("caps", &["privileges.rs"]),
    ("sd_notify", &["systemd.rs"]),
    ("env_logger", &["logging.rs"]),
    ("socket2", &["listen.rs"]),
    (
        "iotrace_load",
        &["bench/", "calibration.rs", "cli.rs", "cli/", "commands.rs", "selftest.rs", "selftest/"],
    ),
];

/// A module, and the only modules of this crate it may name besides itself. What is not listed composes.
const MODULES: &[(&str, &[&str])] = &[
    ("arch", &[]),
    ("bench", &["cli", "kernel", "measure", "probes", "selftest", "snapshot", "tracer"]),
    ("calibration", &[]),
    ("cgroups", &["printable"]),
    ("check", &["snapshot"]),
    ("cli", &["files", "listen"]),
    ("files", &["printable"]),
    ("filter", &["cgroups", "cli", "pids", "printable"]),
    ("governor", &[]),
    ("http", &["files", "listen", "metrics"]),
    ("kernel", &["plan"]),
    ("listen", &["systemd"]),
    ("logging", &[]),
    ("allocator", &[]),
    ("metrics", &["names", "own", "snapshot"]),
    ("names", &[]),
    ("own", &[]),
    ("pids", &[]),
    ("plan", &[]),
    ("printable", &[]),
    ("privileges", &[]),
    ("probes", &["arch", "filter", "kernel", "plan", "privileges", "shared", "snapshot"]),
    ("selftest", &["kernel", "measure", "snapshot", "totals"]),
    ("shared", &[]),
    ("snapshot", &[]),
    ("systemd", &[]),
    ("top", &["snapshot"]),
    ("totals", &["pids", "probes", "shared", "snapshot", "who"]),
    (
        "tracer",
        &["allocator", "calibration", "governor", "kernel", "privileges", "probes", "snapshot", "totals"],
    ),
    ("who", &["cgroups", "printable", "snapshot"]),
];

/// Identifiers and punctuation of Rust source; comments and literals are left out, `::` is one token.
fn tokens(source: &str) -> Vec<String> {
    let characters: Vec<char> = source.chars().collect();
    let at = |place: usize| characters.get(place).copied().unwrap_or('\0');
    let (mut tokens, mut place) = (Vec::new(), 0);
    while place < characters.len() {
        match (at(place), at(place + 1)) {
            ('/', '/') => {
                while place < characters.len() && at(place) != '\n' {
                    place += 1;
                }
            }
            ('"', _) => {
                place += 1;
                while place < characters.len() && at(place) != '"' {
                    place += if at(place) == '\\' { 2 } else { 1 };
                }
                place += 1;
            }
            // A character; a lifetime has no closing quote.
            ('\'', '\\') => {
                place += 3;
                while place < characters.len() && at(place) != '\'' {
                    place += 1;
                }
                place += 1;
            }
            ('\'', _) if at(place + 2) == '\'' => place += 3,
            (':', ':') => {
                tokens.push("::".to_owned());
                place += 2;
            }
            (first, _) if first.is_alphanumeric() || first == '_' => {
                let start = place;
                while at(place).is_alphanumeric() || at(place) == '_' {
                    place += 1;
                }
                tokens.push(characters[start..place].iter().collect());
            }
            (other, _) => {
                if !other.is_whitespace() {
                    tokens.push(other.to_string());
                }
                place += 1;
            }
        }
    }
    tokens
}

/// The crates and the modules of this one that the source names: `a::…` and `use a`, `crate::b` and
/// `crate::{b, c::…}`.
fn named(source: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let tokens = tokens(source);
    let get = |place: usize| tokens.get(place).map_or("", String::as_str);
    let (mut crates, mut modules) = (BTreeSet::new(), BTreeSet::new());
    for (place, token) in tokens.iter().enumerate() {
        let before = if place > 0 { get(place - 1) } else { "" };
        let leads = get(place + 1) == "::" && before != "::";
        if leads || before == "use" {
            crates.insert(token.clone());
        }
        // What a macro of the crate takes as `$crate` counts as well.
        if token == "crate" && get(place + 1) == "::" {
            let mut next = place + 2;
            if get(next) != "{" {
                modules.insert(get(next).to_owned());
                continue;
            }
            let mut depth = 0;
            loop {
                match get(next) {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    "" => panic!("a group without an end"),
                    name if depth == 1 && matches!(get(next - 1), "{" | ",") => {
                        modules.insert(name.to_owned());
                    }
                    _ => {}
                }
                next += 1;
                if depth == 0 {
                    break;
                }
            }
        }
    }
    (crates, modules)
}

/// What is wrong with this file of `daemon/src`.
fn violations(file: &str, source: &str) -> Vec<String> {
    let (crates, modules) = named(source);
    let mut wrong = Vec::new();
    for (name, files) in CRATES {
        let may = files.iter().any(|may| file == *may || (may.ends_with('/') && file.starts_with(may)));
        if crates.contains(*name) && !may {
            wrong.push(format!("{file} names the crate {name}"));
        }
    }
    let own = file.split(['/', '.']).next().unwrap();
    if let Some((_, may)) = MODULES.iter().find(|(module, _)| *module == own) {
        let strange = modules.iter().filter(|name| *name != own && !may.contains(&name.as_str()));
        wrong.extend(strange.map(|name| format!("{file} names the module {name}")));
    }
    wrong
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let nested = entries.map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    nested.flatten().filter(|path| path.extension().is_some_and(|it| it == "rs")).collect()
}

#[test]
fn every_file_keeps_to_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let sources: BTreeMap<String, String> = sources(&root)
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    let wrong: Vec<String> = sources.iter().flat_map(|(file, source)| violations(file, source)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Rules about what is no longer there would say nothing.
    for (name, files) in CRATES {
        let used = |file: &str| {
            sources.iter().any(|(path, source)| path.starts_with(file) && named(source).0.contains(*name))
        };
        assert!(files.iter().any(|file| used(file)), "no file names {name}");
    }
    for (module, _) in MODULES {
        assert!(
            sources.contains_key(&format!("{module}.rs"))
                || sources.contains_key(&format!("{module}/mod.rs"))
        );
    }
}

#[test]
fn a_breach_is_seen() {
    let seen = |file: &str, source: &str| !violations(file, source).is_empty();
    assert!(seen("top.rs", "use aya::maps::Map;"));
    assert!(seen("top.rs", "use {\n    aya::maps::Map,\n    std::io,\n};"));
    assert!(seen("plan/text.rs", "fn f() { iced_x86::Decoder::new(); }"));
    assert!(seen("metrics.rs", "use crate::{\n    names,\n    snapshot::{Iter, State},\n    http,\n};"));
    assert!(seen("metrics.rs", "fn f() -> crate::tracer::Tracer {}"));
    assert!(seen("plan/btf/find.rs", "use crate::kernel;"));
    assert!(seen("daemon.rs", "use prometheus as p;"));
    assert!(!seen(
        "top.rs",
        "// aya::maps\n/// [`aya::Ebpf`]\nconst A: &str = \"aya::\\\"x\"; const Q: char = '\"';"
    ));
    assert!(!seen("metrics.rs", "use crate::{names::{self, Metric}, snapshot::{http::X, State}};"));
    assert!(!seen("probes/job.rs", "use aya::programs::KProbe; use crate::plan;"));
    assert!(!seen("daemon.rs", "use crate::{http, metrics, tracer}; fn f<'a>() {}"));
}
