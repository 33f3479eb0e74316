//! The log: lines on standard error, for people, for the journal, or for programs.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
};

use env_logger::{Builder, TimestampPrecision, fmt::Formatter};
use log::{Level, LevelFilter, Record};
use serde::Serialize;

/// A line.
#[derive(Serialize)]
struct Line {
    /// RFC 3339, UTC.
    time: String,
    /// error, warn, info, debug or trace.
    level: String,
    /// What is said.
    message: String,
}

/// Begins to log what is at least of this `level`; as JSON, an object in a line, or as text.
pub fn start(level: LevelFilter, json: bool) {
    let journal = is_journal();
    let mut builder = Builder::new();
    // aya tells at `debug` of every instruction that it relocates.
    let aya = if level < LevelFilter::Trace { level.min(LevelFilter::Warn) } else { level };
    builder.filter_level(LevelFilter::Trace).filter_module("aya", aya);
    builder.format_target(false).format_timestamp(Some(TimestampPrecision::Seconds));
    match (json, journal) {
        (true, _) => {
            builder.format(move |out, record| {
                write_priority(out, record, journal)?;
                let time = out.timestamp_millis().to_string();
                let (level, message) =
                    (record.level().as_str().to_ascii_lowercase(), record.args().to_string());
                writeln!(out, "{}", serde_json::to_string(&Line { time, level, message })?)
            });
        }
        // The journal has times of its own.
        (false, true) => {
            builder.format(move |out, record| {
                write_priority(out, record, journal)?;
                writeln!(out, "{}", record.args())
            });
        }
        (false, false) => {}
    }
    builder.init();
    limit(level);
}

/// From now on, logs what is at least of this `level`.
pub fn limit(level: LevelFilter) {
    log::set_max_level(level);
}

/// Whether standard error leads to the journal, as systemd.exec(5) says to find out.
fn is_journal() -> bool {
    let Some(stream) = env::var("JOURNAL_STREAM").ok() else { return false };
    let file = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|here| stream == format!("{}:{}", here.dev(), here.ino()))
}

/// The priority that the journal takes from the start of a line, see sd-daemon(3).
fn write_priority(out: &mut Formatter, record: &Record<'_>, journal: bool) -> io::Result<()> {
    let priority = match record.level() {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    if journal { write!(out, "<{priority}>") } else { Ok(()) }
}
