//! Where things lie, and how other programs are run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The workspace's target folder, as cargo itself would choose it.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Tools that the project installs for itself.
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// Kernels, console logs and whatever else guests need.
pub fn guests() -> PathBuf {
    target().join("vm")
}

/// cargo in the workspace, with the project's own tools first in its path.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    if let Ok(path) = env::join_paths(
        [tools().join("bin")].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    ) {
        command.env("PATH", path);
    }
    command
}

/// The first `name` in `PATH` or in the system folders that an unprivileged `PATH` leaves out.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// Runs `command` to its end; an unsuccessful one is an error that names it.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Like [`run`], but returns what `command` printed, and shows its complaints only when it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let out =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !out.status.success() {
        let complaint = String::from_utf8_lossy(&out.stderr);
        bail!("{} ended with {}: {}", shown(command), out.status, last_lines(complaint.trim(), 3));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The program and its first arguments, enough to recognise it in an error.
fn shown(command: &Command) -> String {
    let words: Vec<_> =
        [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    let plain: Vec<_> = words.iter().map(AsRef::as_ref).filter(|word| !word.contains("::")).collect();
    format!("`{}`", plain[..plain.len().min(6)].join(" "))
}

/// The last `count` lines of `text`, on one line.
fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

/// Holds `path` locked against other xtasks until dropped.
pub fn lock(path: &Path) -> Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// `program` as root: through sudo unless this is root already.
pub fn as_root(program: impl Into<OsString>) -> Command {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Command::new(program.into());
    }
    let mut command = Command::new("sudo");
    command.arg(program.into());
    command
}
