//! The options that say which processes count, the same for each command that has them.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
    value_parser,
};

/// Which processes count: those that all of this holds for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Which processes count")]
pub struct Only {
    /// Only the process of this id; may be given up to 8 times.
    #[arg(short, long = "pid", value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// Only processes of this name, of at most 15 bytes, as `ps -e` shows it.
    #[arg(short, long, value_name = "NAME", value_parser = comm)]
    pub comm: Option<String>,
    /// Only processes in this cgroup or below it, absolute or relative to /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Only processes of this systemd unit; looked for below the cgroup if one is given.
    #[arg(long, value_name = "NAME", value_parser = unit)]
    pub unit: Option<String>,
    /// Only processes of this user.
    #[arg(long, value_name = "NAME|UID", value_parser = NonEmptyStringValueParser::new())]
    pub user: Option<String>,
}

/// The number of rows of `--top-k`.
pub(super) fn rows() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

fn unit(text: &str) -> Result<String, &'static str> {
    if text.trim_matches('.').is_empty() || text.contains(['/', '\0']) {
        return Err("expected a unit's name, such as nginx.service");
    }
    Ok(text.to_owned())
}

fn comm(text: &str) -> Result<String, &'static str> {
    /// The kernel keeps no more.
    const MOST: usize = 15;
    if text.is_empty() || text.len() > MOST || text.contains('\0') {
        return Err("expected a name of 1 to 15 bytes: the kernel keeps no more of it");
    }
    Ok(text.to_owned())
}
