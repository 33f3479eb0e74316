//! The commands, each from its options to its exit code.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::{Error, Result};

use crate::{
    bench,
    check::{self, CheckReport, Fact, Verdict},
    cli::{self, CheckOutput, Cli, LogFormat, TopOutput},
    daemon::{self, Service},
    filter::{Filter, FilterError},
    http::Web,
    kernel, logging,
    measure::Measure,
    probes::Scope,
    selftest,
    snapshot::{Delta, Probe, State},
    top,
    totals::Rows,
    tracer::{Modules, TracerError},
};

/// The exit code of a failure: 2 where nothing can be traced or what the options name is not there, 1 otherwise.
pub fn failure(error: &Error) -> ExitCode {
    let nothing =
        error.is::<TracerError>() || error.is::<FilterError>() || error.is::<iotrace_load::Misuse>();
    if nothing { cli::NOTHING.into() } else { ExitCode::FAILURE }
}

/// `iotrace daemon`.
///
/// # Errors
/// The web configuration that cannot be used, the address that cannot be listened on, or why nothing can be traced.
pub fn daemon(options: &cli::Daemon) -> Result<ExitCode> {
    if !options.check_config {
        logging::start(options.log, options.log_format == LogFormat::Json);
    }
    let web = match &options.web_config {
        Some(path) => Web::read(path, options.open_health)?,
        None => Web::default(),
    };
    let filter = Filter::resolve(&options.only)?;
    if options.check_config {
        print("The configuration is in order.\n");
        return Ok(ExitCode::SUCCESS);
    }
    let modules = if options.no_follow_modules { Modules::AtStart } else { Modules::Follow };
    let scope = Scope { filter, follow: false, diagnose: options.debug_probes };
    // What the self-test does may be left out by what the user chose.
    let selftest = !options.no_selftest && scope.filter == Filter::default();
    let (listen, rows) = (options.listen.clone(), Rows::Heaviest(options.top_k));
    let budget = (!options.exact).then_some(options.overhead_budget / 100.0);
    let reload = || reload(options);
    daemon::run(Service { listen, web, scope, modules, rows, selftest, budget, reload: &reload })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the command line and its file again: the level of the log changes at once.
fn reload(running: &cli::Daemon) {
    let read = match Cli::read(env::args_os()).map(|cli| cli.command) {
        Ok(cli::Command::Daemon(read)) => read,
        Ok(_) => return,
        Err(done) => return log::error!("{}; what was in force stays", done.text),
    };
    logging::limit(read.log);
    log::info!("the options are read again, and the log has what is at least {}", read.log);
    if (cli::Daemon { log: running.log, ..read }) != *running {
        log::warn!("other options have changed, too: they count from the next start");
    }
}

/// `iotrace top`.
///
/// # Errors
/// Why nothing can be traced.
pub fn top(options: &cli::Top) -> Result<ExitCode> {
    let filter = Filter::resolve(&options.only)?;
    let follow = !options.command.is_empty();
    let mut measure = Measure::start(Scope { filter, follow, diagnose: false })?;
    let probes = measure.probes();
    tell_failed(&probes);
    if probes.iter().all(|probe| probe.state != State::Attached) {
        measure.stop();
        return Err(TracerError::Nothing.into());
    }
    let code = if follow {
        match measure.command(&options.command) {
            Ok((delta, ended)) => {
                show(delta, options);
                ended.code().into()
            }
            Err(error) => {
                eprintln!("iotrace: cannot run {}: {error}", options.command[0].display());
                // As a shell: not found, or found and not to be run.
                if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }.into()
            }
        }
    } else {
        let delta = measure.span(options.duration);
        show(delta, options);
        ExitCode::SUCCESS
    };
    measure.stop();
    Ok(code)
}

/// Says how many sites the kernel refused, and why the first.
fn tell_failed(probes: &[Probe]) {
    let failed: Vec<_> = probes.iter().filter(|probe| probe.state == State::Failed).collect();
    if let Some(first) = failed.first() {
        eprintln!(
            "iotrace: {} of {} sites could not be probed, such as {}: {}; `iotrace check` lists them",
            failed.len(),
            probes.iter().filter(|probe| !probe.site.is_empty()).count(),
            first.site,
            first.reason
        );
    }
}

/// Before the probes are detached: that takes longer than most readers want to wait.
fn show(delta: Delta, options: &cli::Top) {
    let delta = delta.heaviest(options.rows());
    print(&match options.output {
        TopOutput::Table => top::table(&delta),
        TopOutput::Json => format!("{:#}\n", top::json(&delta)),
    });
}

/// `iotrace check`.
///
/// # Errors
/// Why nothing can be traced.
pub fn check(options: &cli::Check) -> Result<ExitCode> {
    let mut report = CheckReport {
        release: kernel::release(),
        arch: env::consts::ARCH.into(),
        facts: facts(),
        kinds: Vec::new(),
        tried: true,
        programs: BTreeMap::new(),
        probes: Vec::new(),
    };
    let measured = Measure::start(Scope::default());
    let refused = match measured {
        Ok(measure) => {
            report.kinds = measure.kinds();
            report.programs = measure.programs();
            report.probes = measure.probes();
            report.optimized(kernel::optimized_kprobes);
            print_report(&report, options.output);
            measure.stop();
            None
        }
        Err(error) => {
            print_report(&report, options.output);
            Some(error)
        }
    };
    if let Some(error) = refused {
        eprintln!("iotrace: {error:#}");
    }
    Ok(report.exit_code().into())
}

/// `iotrace selftest`.
///
/// # Errors
/// Why nothing can be traced, or no load can be run.
pub fn selftest(options: &cli::Selftest) -> Result<ExitCode> {
    let mut measure = Measure::start(Scope { follow: true, ..Scope::default() })?;
    if measure.probes().iter().all(|probe| probe.state != State::Attached) {
        measure.stop();
        return Err(TracerError::Nothing.into());
    }
    tell_failed(&measure.probes());
    let rows = selftest::run(&mut measure);
    if let Ok(rows) = &rows {
        print(&match options.output {
            CheckOutput::Text => selftest::text(rows),
            CheckOutput::Json => format!("{:#}\n", selftest::json(rows)),
        });
    }
    measure.stop();
    Ok(selftest::exit_code(&rows?).into())
}

/// `iotrace bench`.
///
/// # Errors
/// Why nothing can be probed, or no load can be run.
pub fn bench(options: &cli::Bench) -> Result<ExitCode> {
    let (text, code) = bench::run(options)?;
    print(&text);
    Ok(code)
}

/// `iotrace sample`: the outcome is in the report, and its like in the exit code.
///
/// # Errors
/// The outcome that cannot be handed over.
pub fn sample(options: &cli::Sample) -> Result<ExitCode> {
    match options {
        cli::Sample::Turns(options) => iotrace_load::turns::sample(options)?,
        cli::Sample::Tcp(options) => iotrace_load::tcp::sample(options)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `iotrace load`.
///
/// # Errors
/// What could not be done.
pub fn load(options: &iotrace_load::Options) -> Result<ExitCode> {
    iotrace_load::perform(options)
}

fn print_report(report: &CheckReport, output: CheckOutput) {
    print(&match output {
        CheckOutput::Text => check::report(report),
        CheckOutput::Json => format!("{:#}\n", report.json()),
    });
}

/// What this kernel and this process have of what iotrace needs.
fn facts() -> Vec<Fact> {
    let readable = |name: &str, path: &str, need: &str| {
        let (verdict, note) = match fs::File::open(path) {
            Ok(_) => (Verdict::Yes, path.to_owned()),
            Err(error) => (Verdict::No, format!("{path}: {error}; {need}")),
        };
        Fact { name: name.into(), verdict, note }
    };
    let lockdown = match kernel::lockdown().as_deref() {
        None => (Verdict::Unknown, "securityfs is not mounted, or the kernel has no lockdown".to_owned()),
        Some("confidentiality") => (Verdict::No, "confidentiality: forbids reading kernel memory".to_owned()),
        Some(level) => (Verdict::Yes, format!("{level}: allows tracing")),
    };
    vec![
        readable("btf", "/sys/kernel/btf/vmlinux", "needs CONFIG_DEBUG_INFO_BTF"),
        readable("kallsyms", "/proc/kallsyms", "needs CONFIG_KALLSYMS"),
        readable("kcore", "/proc/kcore", "needs root or CAP_SYS_RAWIO and CAP_DAC_READ_SEARCH"),
        kprobes(readable(
            "kprobes",
            "/sys/bus/event_source/devices/kprobe/type",
            "needs CONFIG_KPROBE_EVENTS",
        )),
        Fact { name: "lockdown".into(), verdict: lockdown.0, note: lockdown.1 },
    ]
}

/// Kprobes that the kernel has may still be switched off.
fn kprobes(built: Fact) -> Fact {
    let (verdict, note) = match (built.verdict, kernel::kprobes_enabled()) {
        (Verdict::Yes, Some(false)) => (Verdict::No, "/sys/kernel/debug/kprobes/enabled is 0; write 1 to it"),
        (Verdict::Yes, None) => {
            (Verdict::Unknown, "there, but debugfs does not tell whether they are switched on")
        }
        _ => return built,
    };
    Fact { verdict, note: note.into(), ..built }
}

/// A reader that has gone, as in `iotrace top | head`, is no failure.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _reader_gone = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
