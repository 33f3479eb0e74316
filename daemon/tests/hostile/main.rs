//! The planner's parsers against bytes that no kernel would give: no panic, no hang, no memory beyond what each
//! states, errors that name place and cause. `IOTRACE_FUZZ_CASES=N` makes N times as many random cases
//! (docs/decisions/0005-hostile-input.md).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod btf;
#[allow(dead_code, reason = "shared with the planner's own tests")]
#[path = "../../src/plan/fixture.rs"]
mod fixture;
mod growth;
mod kallsyms;
mod kcore;
mod meter;
mod mutate;
mod plan;
mod text;

use proptest::test_runner::Config;

/// So many random cases, or a multiple. What is found becomes a test of its own, not a file of seeds.
fn cases(few: u32) -> Config {
    let times = std::env::var("IOTRACE_FUZZ_CASES").ok().map_or(1, |times| times.parse().unwrap());
    Config { cases: few.saturating_mul(times), failure_persistence: None, ..Config::default() }
}

/// Checks that an error of a parser reads `FILE, offset N: CAUSE` with a place that is in the file.
fn is_located(error: &str, file: &str, length: usize) -> usize {
    let rest = error.strip_prefix(file).and_then(|rest| rest.strip_prefix(", offset "));
    let (offset, cause) = rest.and_then(|rest| rest.split_once(": ")).unwrap_or_else(|| panic!("{error}"));
    let offset = offset.parse().unwrap();
    assert!(offset <= length, "{error}, in {length} bytes");
    assert!(!cause.is_empty());
    offset
}
