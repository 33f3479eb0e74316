//! `cargo xtask test`: all tests, on the host and in guests.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench;
use crate::findings::{Findings, Output};
use crate::kernel::Kernel;
use crate::kernels::Page;
use crate::lanes;
use crate::programs::{self, Program};
use crate::qemu::Machine;
use crate::rigs::{self, RIGS, Rig};
use crate::vm::{Guest, to_stdout};
use crate::workspace::{self, run};
use crate::{packages, prometheus, setup, tools};

/// The kernels that every change is tested on: the oldest, two stable ones, the newest.
const MATRIX: &[&str] = &["5.10", "6.1", "6.12", "7.3"];
/// Where the start and stop cycles are as many as promised; the others do a few.
const CYCLES_ON: &str = "6.12";
const CYCLES: u32 = 50;
/// Packages for the bpf target.
const KERNEL_SIDE: &[&str] = &["iotrace-ebpf", "iotrace-overhead-ebpf"];
/// For one guest and all of its tests.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Run all tests: format, lints and unit tests here, the rest in guests with real kernels.
#[derive(Args)]
#[command(
    after_help = "The last line is `N passed, N failed`. Exit codes: 0 all passed, 1 not, 125 could not run."
)]
pub struct Options {
    /// Only what needs no guest.
    #[arg(long, conflicts_with = "guest_only")]
    host_only: bool,
    /// Only what needs a guest.
    #[arg(long)]
    guest_only: bool,
    /// Test on these kernels, instead of 5.10, 6.1, 6.12 and 7.3.
    #[arg(long = "kernel", value_name = "SERIES|PATH", conflicts_with = "host_only")]
    kernels: Vec<String>,
    /// Of the tests in guests, only these programs.
    #[arg(long = "test", value_name = "NAME", conflicts_with_all = ["host_only", "bless"])]
    tests: Vec<String>,
    /// Write what was found to docs/kernels.md, instead of checking it.
    #[arg(long, conflicts_with = "host_only")]
    bless: bool,
}

/// Runs the command.
pub fn command(options: &Options) -> Result<ExitCode> {
    let mut stages = Stages::default();
    stages.time("setup", tools::ensure)?;
    let mut sum = Tally::default();
    if !options.guest_only {
        stages.time("format", || run(workspace::cargo().args(["fmt", "--all", "--check"])))?;
        stages.time("lints", lints)?;
        sum.add(stages.time("host", host_tests)?);
        let (passed, failed) = stages.time("rules", prometheus::test)?;
        sum.add(Tally { passed, failed });
    }
    if !options.host_only {
        setup::guest_tools()?;
        let (programs, mut tests) =
            stages.time("guest programs", || Ok((programs::build()?, programs::build_tests()?)))?;
        let unknown = rigs::unknown(&tests);
        ensure!(unknown.is_empty(), "no test programs of these names: {}", unknown.join(", "));
        if !options.tests.is_empty() {
            tests.retain(|test| options.tests.contains(&test.name));
        }
        let matrix: Vec<String> = MATRIX.iter().map(|&kernel| kernel.into()).collect();
        let kernels = if options.kernels.is_empty() { &matrix } else { &options.kernels };
        if kernels.len() > 1 {
            stages.time("fetch", || fetch(kernels, &tests))?;
            sum.add(stages.time("guests", || in_lanes(kernels, options))?);
        } else {
            // Some of the tests would see only a part of what all find.
            let mut page = options.tests.is_empty().then(Page::default);
            for name in kernels {
                sum.add(stages.time(name, || guest_tests(name, &programs, &tests, page.as_mut()))?);
                if name == bench::CHECKED_ON && options.tests.is_empty() && !options.bless {
                    let (passed, failed) = stages.time("overhead", bench::test)?;
                    sum.add(Tally { passed, failed });
                }
            }
            if let Some(page) = page {
                sum.add(page_test(&page, options.bless)?);
            }
        }
    }
    stages.print();
    println!("{} passed, {} failed", sum.passed, sum.failed);
    Ok(if sum.failed == 0 && sum.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gets what the guests need, so that no two of them get it at once.
fn fetch(kernels: &[String], tests: &[Program]) -> Result<()> {
    for (name, rig) in kernels.iter().flat_map(|name| RIGS.iter().map(move |rig| (name, rig))) {
        if !rig.tests(name, tests).is_empty() {
            Kernel::find(name, rig.flavour)?;
            packages::tree(&rig.packages.iter().map(|&name| name.into()).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Runs the tests in guests by a process for each kernel, the longest first.
fn in_lanes(kernels: &[String], options: &Options) -> Result<Tally> {
    let mut arguments: Vec<String> = ["test", "--guest-only"].map(String::from).into();
    arguments.extend(options.bless.then(|| "--bless".into()));
    arguments.extend(options.tests.iter().flat_map(|test| ["--test".to_owned(), test.clone()]));
    let mut kernels = kernels.to_vec();
    kernels.sort_by_key(|kernel| Reverse(rigs::own_tests(kernel)));
    let mut sum = Tally::default();
    for said in lanes::run(&kernels, &arguments)? {
        // Without a last line it did not come to its end.
        sum.add(Tally::told(&said).unwrap_or(Tally { passed: 0, failed: 1 }));
    }
    Ok(sum)
}

fn lints() -> Result<()> {
    let mut clippy = workspace::cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets"]);
    clippy.args(KERNEL_SIDE.iter().flat_map(|package| ["--exclude", package]));
    run(clippy.args(["--", "-D", "warnings"]))?;
    // The kernel side is for a target of its own, as in daemon/build.rs.
    let mut clippy = workspace::cargo();
    clippy.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", "--cfg=bpf_target_arch=\"x86_64\"");
    clippy.args(["clippy", "--quiet", "--release", "-Z", "build-std=core"]);
    clippy.args(KERNEL_SIDE.iter().flat_map(|package| ["--package", package]));
    clippy
        .args(["--target", "bpfel-unknown-none", "--target-dir"])
        .arg(workspace::target().join("ebpf-lints"));
    run(clippy.args(["--", "-D", "warnings"]))
}

fn host_tests() -> Result<Tally> {
    let mut sum = Tally::default();
    let prometheus = prometheus::tree()?;
    // The guest's tests are for the guest; its helpers are tested here.
    for packages in [
        &[
            "--workspace",
            "--exclude",
            "iotrace-ebpf",
            "--exclude",
            "iotrace-overhead-ebpf",
            "--exclude",
            "iotrace-guest",
        ][..],
        &["--package", "iotrace-guest", "--lib", "--bins"],
        // What only a Prometheus can tell.
        &["--package", "iotrace", "--test", "fleet", "--", "--ignored"],
    ] {
        let mut test = workspace::cargo();
        test.env("IOTRACE_PROMETHEUS", &prometheus);
        let out =
            test.args(["test", "--quiet", "--no-fail-fast"]).args(packages).stderr(Stdio::inherit()).output();
        let out = out.context("cannot start cargo")?;
        to_stdout(&out.stdout);
        let mut tally = Tally::of(&String::from_utf8_lossy(&out.stdout));
        if !out.status.success() && tally.failed == 0 {
            // It did not come as far as to count.
            tally.failed = 1;
        }
        sum.add(tally);
    }
    Ok(sum)
}

/// Runs every test program that is for this kernel, in the guests that they need.
fn guest_tests(
    name: &str,
    programs: &[Program],
    tests: &[Program],
    page: Option<&mut Page>,
) -> Result<Tally> {
    let mut sum = Tally::default();
    let mut found: BTreeMap<String, (Findings, usize)> = BTreeMap::new();
    for rig in RIGS {
        let some = rig.tests(name, tests);
        if some.is_empty() {
            continue;
        }
        let kernel = Kernel::find(name, rig.flavour)?;
        eprintln!("test: {name}: {}", rig.name);
        let (findings, failed) = found.entry(kernel.label.clone()).or_default();
        let tally = rig_tests(rig, &kernel, programs, &some, findings)?;
        *failed += tally.failed;
        println!(
            "{} ({}), {}: {} passed, {} failed\n",
            kernel.label, kernel.release, rig.name, tally.passed, tally.failed
        );
        sum.add(tally);
    }
    if let Some(page) = page {
        // After failures something is missing, and they tell of it.
        for (label, (findings, _)) in found.iter().filter(|(_, (_, failed))| *failed == 0) {
            page.add(label, findings)?;
        }
    }
    Ok(sum)
}

/// Runs `some` test programs in one guest.
fn rig_tests(
    rig: &Rig,
    kernel: &Kernel,
    programs: &[Program],
    some: &[(&Program, bool)],
    findings: &mut Findings,
) -> Result<Tally> {
    let cycles = if kernel.label == CYCLES_ON { format!("IOTRACE_CYCLES={CYCLES} ") } else { String::new() };
    let mut script = String::from("code=0\n");
    if rig.check {
        script += Findings::CHECK;
        script.push('\n');
    }
    for (test, ignored) in some {
        let flags = if *ignored { " --ignored" } else { "" };
        script += &format!(
            "echo '== {0} on {1}'; {cycles}/tests/{0} --test-threads=1{flags} || code=1\n",
            test.name, kernel.label
        );
    }
    script += &format!("{}\n{}\nexit $code", rig.last, Findings::SEEN);
    let tests: Vec<Program> = some.iter().map(|(test, _)| (*test).clone()).collect();
    let guest = Guest {
        script,
        machine: Machine {
            smp: rig.smp,
            mem: "2G".into(),
            icount: false,
            forwards: Vec::new(),
            append: Vec::new(),
            timeout: TIMEOUT,
        },
        programs,
        tests: &tests,
        files: &[],
        tree: packages::tree(&rig.packages.iter().map(|&name| name.into()).collect::<Vec<_>>())?,
        modules: &rig.modules.iter().map(|&name| name.into()).collect::<Vec<_>>(),
    };
    let mut output = Output::new(findings);
    let code = guest.run(kernel, |bytes| output.take(bytes));
    let text = output.end();
    let mut tally = Tally::of(&text);
    // Each program must have come to its end, and have had something to test.
    let idle = some.len().saturating_sub(results(&text).filter(|part| part.passed + part.failed > 0).count());
    tally.failed += idle;
    match code {
        Ok(0) => {}
        Ok(code) if tally.failed == 0 => {
            eprintln!("test: the guest's exit code is {code}");
            tally.failed = 1;
        }
        Ok(_) => {}
        Err(error) => {
            eprintln!("test: {error:#}");
            tally.failed = tally.failed.max(1);
        }
    }
    Ok(tally)
}

/// Holds what was found against docs/kernels.md, or writes it there.
fn page_test(page: &Page, blessed: bool) -> Result<Tally> {
    let changed = if blessed { Vec::new() } else { page.changed(&Page::committed()) };
    for line in &changed {
        println!("docs/kernels.md says something else of {line}");
    }
    if !changed.is_empty() {
        println!("`cargo xtask test --bless` writes docs/kernels.md; what was found is in target/kernels.md");
    }
    page.write(blessed)?;
    Ok(Tally { passed: usize::from(changed.is_empty()), failed: changed.len() })
}

/// Results of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    /// The sum of libtest's closing lines.
    fn of(text: &str) -> Tally {
        let mut sum = Tally::default();
        results(text).for_each(|part| sum.add(part));
        sum
    }

    /// The last line of this command.
    fn told(text: &str) -> Option<Tally> {
        let (passed, failed) = text.trim_end().lines().last()?.split_once(" passed, ")?;
        Some(Tally { passed: passed.parse().ok()?, failed: failed.strip_suffix(" failed")?.parse().ok()? })
    }

    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// What each closing line of libtest says: `test result: ok. 3 passed; 0 failed; …`.
fn results(text: &str) -> impl Iterator<Item = Tally> {
    text.lines().filter_map(|line| {
        let mut numbers = line.strip_prefix("test result: ")?.split(['.', ';']).skip(1).map(str::trim);
        let mut number = |word: &str| numbers.next()?.strip_suffix(word)?.trim().parse().ok();
        Some(Tally { passed: number("passed")?, failed: number("failed")? })
    })
}

/// How long each stage took.
#[derive(Default)]
struct Stages(Vec<(String, Duration)>);

impl Stages {
    fn time<T>(&mut self, name: &str, stage: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("test: {name}");
        let started = Instant::now();
        let done = stage().with_context(|| format!("stage {name} failed"));
        self.0.push((name.to_owned(), started.elapsed()));
        done
    }

    fn print(&self) {
        for (name, took) in &self.0 {
            println!("{name:<16} {:>6.0} s", took.as_secs_f64());
        }
        let sum: Duration = self.0.iter().map(|stage| stage.1).sum();
        println!("{:<16} {:>6.0} s", "all", sum.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let text = "running 2 tests\ntest a ... ok\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n\
                    x\ntest result: FAILED. 3 passed; 4 failed; 0 ignored\ntest result: gone\n";
        assert_eq!(Tally::of(text), Tally { passed: 5, failed: 4 });
        assert_eq!(results(text).count(), 2);
        assert_eq!(Tally::told("x\n3 passed, 4 failed\n"), Some(Tally { passed: 3, failed: 4 }));
        assert_eq!(Tally::told("cut off"), None);
    }
}
