//! The command line: what it takes, and what its exit codes mean.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser as _},
    error::ErrorKind,
};
use log::LevelFilter;

use crate::listen::Address;

mod bench;
mod file;
mod only;

pub use bench::{Bench, Common, Experiment, SingleSegment, TcpMmap};
pub use only::Only;

/// Rows of processes that the daemon shows, and `top` in JSON.
const ROWS: usize = 50;

/// Rows of processes in a table.
const TABLE_ROWS: usize = 10;

/// Exit code: a usage error, or nothing that could be measured.
pub const NOTHING: u8 = 2;

/// Shows what vectored I/O and the kernel's iov_iter layer really cost.
///
/// Counts the segments of every import_iovec and times every call that walks an iov_iter, by the kind of the
/// iterator, on a stock kernel.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "iotrace", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Command {
    /// Serve metrics to Prometheus until stopped.
    ///
    /// Attaches the probes, the busiest places first, and serves /metrics. SIGTERM and SIGINT detach everything
    /// and end it. Nothing stays in the kernel, however it ends.
    Daemon(Daemon),
    /// Show what happened in a span of time, or while a command ran.
    ///
    /// Attaches probes of its own, so that no daemon is needed, and takes them away again. With a command,
    /// counts that command and its children alone, from its start to its end.
    Top(Top),
    /// Show what this kernel offers, and what can be measured on it.
    ///
    /// One line for each thing that is needed and for each place where a probe would sit, with the reason where
    /// there is none. Attaches the probes for a moment to find out.
    Check(Check),
    /// Compare what is counted with what happened, to the last unit.
    ///
    /// Runs loads that know their own numbers, one for each path, with calls of 64 and of 32 bits, and for each kind
    /// of iterator that can be had here. Tells for each whether it was counted exactly, and for system calls whether
    /// the kernel's own count agrees.
    Selftest(Selftest),
    /// Repeat an experiment about vectors and iterators on this kernel.
    ///
    /// Prints a table as its thread did; beside the plain times stands what the probes saw of the same loads, which
    /// must be exact, and what they cost. --no-probes needs no root.
    Bench(Bench),
    /// Do I/O in exactly known numbers.
    #[command(
        hide = true,
        after_help = "Exit codes: 0 done, 1 failure, or not possible here, 2 usage error."
    )]
    Load(iotrace_load::Options),
    /// Take one sample of an experiment.
    #[command(hide = true, subcommand)]
    Sample(Sample),
}

/// A sample of an experiment, taken in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Sample {
    /// Calls in a tight loop.
    Turns(iotrace_load::turns::Sampling),
    /// Bytes received over TCP.
    Tcp(iotrace_load::tcp::Transfer),
}

/// Options of `iotrace daemon`.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(
    after_help = "Exit codes: 0 stopped by a signal, 1 failure, 2 usage error, or nothing can be measured here."
)]
pub struct Daemon {
    /// A TOML file with options of this command, by their long names: those that are not given here count as it says.
    ///
    /// SIGHUP has it read again: the level of the log changes at once, the rest at the next start.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read the options, and the files that they name, and do no more.
    #[arg(long)]
    pub check_config: bool,
    /// Where to serve, also several times: an address, where port 0 takes a free one, or unix:/PATH. Sockets that
    /// systemd passes take the place of all.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9469")]
    pub listen: Vec<Address>,
    /// How to serve: TLS, passwords, headers, a rate; in the format of the Prometheus exporter-toolkit.
    ///
    /// This file and those that it names are read again when they change.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Tell /-/healthy and /-/ready without a password.
    #[arg(long, requires = "web_config")]
    pub open_health: bool,
    /// What to log to standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = levels())]
    pub log: LevelFilter,
    /// How to log it.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log rare diagnostics of the kernel side too; each probe gets slower by a little.
    #[arg(long)]
    pub debug_probes: bool,
    /// Leave modules alone that are loaded later, and give up every privilege once all is attached.
    #[arg(long)]
    pub no_follow_modules: bool,
    /// Do not test at the start, with a few calls on every path, whether they count right.
    #[arg(long)]
    pub no_selftest: bool,
    /// How much of each processor the probes of calls that walk an iterator may take, in percent.
    ///
    /// Where they would take more, the busiest places are probed for a quarter of a second now and then, and what passed
    /// them meanwhile is estimated; with --no-follow-modules they are left alone from then on. Imports are counted at all
    /// times.
    #[arg(long, value_name = "PERCENT", default_value = "0.5", value_parser = percent)]
    pub overhead_budget: f64,
    /// Keep no overhead budget: every call is counted and timed.
    #[arg(long, conflicts_with = "overhead_budget")]
    pub exact: bool,
    /// How many processes have rows of their own, the heaviest of late.
    #[arg(long, value_name = "N", default_value_t = ROWS, value_parser = only::rows())]
    pub top_k: usize,
    /// Which processes count.
    #[command(flatten)]
    pub only: Only,
}

/// Options of `iotrace top`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 failure, 2 usage error, or nothing can be measured here; with a command, the command's own."
)]
pub struct Top {
    /// How long to measure.
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = duration, conflicts_with = "command")]
    pub duration: Duration,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: TopOutput,
    /// How many processes to show, the heaviest first; if not given, 10 in a table and 50 in JSON.
    #[arg(long, value_name = "N", value_parser = only::rows())]
    pub top_k: Option<usize>,
    /// A command to run and measure, with its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// Which processes count.
    #[command(flatten)]
    pub only: Only,
}

impl Top {
    /// How many processes to show.
    pub fn rows(&self) -> usize {
        self.top_k.unwrap_or(match self.output {
            TopOutput::Table => TABLE_ROWS,
            TopOutput::Json => ROWS,
        })
    }
}

/// Options of `iotrace check`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "Exit codes: 0 all sites can be measured, 1 some, 2 none, or a usage error.")]
pub struct Check {
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: CheckOutput,
}

/// Options of `iotrace selftest`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(
    after_help = "Exit codes: 0 nothing is wrong, 1 something is, 2 usage error, or nothing can be measured here."
)]
pub struct Selftest {
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: CheckOutput,
}

/// How the daemon logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people, and for the journal with its levels.
    Text,
    /// For programs: an object in each line, with time, level and message.
    Json,
}

/// How `top` shows its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOutput {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// How `check` shows its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// One line each.
    Text,
    /// For programs.
    Json,
}

/// Why there is nothing to do: what to print and how to exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What to print, without the last line end.
    pub text: String,
    /// 0 for help and version, which go to standard output; the rest goes to standard error.
    pub code: u8,
}

impl Cli {
    /// Reads the arguments, the program's name first.
    ///
    /// # Errors
    /// Help and version if they were asked for; one line if the arguments are wrong.
    pub fn read<I>(arguments: I) -> Result<Cli, Done>
    where
        I: IntoIterator,
        I::Item: Into<OsString> + Clone,
    {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut program = Cli::command();
        program.build();
        let typed = program.clone().try_get_matches_from(&arguments).map_err(|error| Done::from(&error))?;
        let cli = Cli::from_arg_matches(&typed).map_err(|error| Done::from(&error))?;
        let (Command::Daemon(Daemon { config: Some(path), .. }), Some((_, typed))) =
            (&cli.command, typed.subcommand())
        else {
            return Ok(cli);
        };
        let all =
            file::with_file(&program, arguments, typed, path).map_err(|text| Done { text, code: NOTHING })?;
        Cli::try_parse_from(all).map_err(|error| Done::from(&error))
    }
}

impl From<&clap::Error> for Done {
    fn from(error: &clap::Error) -> Done {
        let whole = |code| Done { text: error.render().to_string().trim_end().to_owned(), code };
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => whole(0),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => whole(NOTHING),
            _ => Done { text: one_line(error), code: NOTHING },
        }
    }
}

/// What clap says in its first paragraph, and its tip if it has one.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.join(" ")
    });
    let first = paragraphs.next().unwrap_or_default();
    match paragraphs.find(|paragraph| paragraph.starts_with("tip:")) {
        Some(tip) => format!("{first}; {tip}"),
        None => first,
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    /// A day.
    const MOST: f64 = 86_400.0;
    const EXPECTED: &str = "expected seconds, more than 0 and at most 86400";
    let seconds: f64 = text.parse().map_err(|_| EXPECTED)?;
    if !(seconds > 0.0 && seconds <= MOST) {
        return Err(EXPECTED);
    }
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED)?;
    if duration.is_zero() { Err(EXPECTED) } else { Ok(duration) }
}

fn percent(text: &str) -> Result<f64, &'static str> {
    const EXPECTED: &str = "expected percent of a processor, more than 0 and at most 100";
    let percent: f64 = text.parse().map_err(|_| EXPECTED)?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent) } else { Err(EXPECTED) }
}

fn levels() -> impl clap::builder::TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"])
        .map(|level| level.parse().unwrap_or(LevelFilter::Info))
}

#[cfg(test)]
mod tests;
