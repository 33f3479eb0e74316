//! Debian's Prometheus, and what its own tool says of the rules and of what the daemon exports.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{packages, workspace};

/// Unit tests of the rules.
const TESTS: &str = "dashboards/rules/tests";
/// The example that includes the rules.
const CONFIG: &str = "dashboards/prometheus.yml";
/// What the daemon exports of a snapshot; the daemon's own tests hold it to that.
const EXPOSITION: &str = "daemon/tests/golden/metrics.txt";

/// The folder with Prometheus and all that it needs, its tool too; fetched once.
pub fn tree() -> Result<PathBuf> {
    packages::tree(&["prometheus".to_owned()])?.context("no packages were asked for")
}

/// Checks the example and its rules, runs the tests of these, and checks the exposition: how many of these passed, and how
/// many did not.
pub fn test() -> Result<(usize, usize)> {
    let tool = Promtool { tree: tree()? };
    let config = [workspace::root().join(CONFIG)];
    let exposition = workspace::root().join(EXPOSITION);
    let exposition =
        File::open(&exposition).with_context(|| format!("cannot read {}", exposition.display()))?;
    let passed = [
        // With the rules that it names.
        tool.passes(&["check", "config"], &config, Stdio::null())?,
        tool.passes(&["test", "rules"], &files(TESTS)?, Stdio::null())?,
        tool.passes(&["check", "metrics"], &[], exposition.into())?,
    ];
    let count = passed.iter().filter(|passed| **passed).count();
    Ok((count, passed.len() - count))
}

/// The YAML files of a folder, which must have some.
fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = workspace::root().join(folder);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yml"));
    files.sort();
    ensure!(!files.is_empty(), "{} has no rules", folder.display());
    Ok(files)
}

/// Debian's promtool, with the C library that it was built for: this machine's may be older.
struct Promtool {
    tree: PathBuf,
}

impl Promtool {
    /// Whether it is content; what it says goes where this program's words go.
    fn passes(&self, arguments: &[&str], files: &[PathBuf], stdin: Stdio) -> Result<bool> {
        let mut command = Command::new(self.tree.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.tree.join("usr/lib/x86_64-linux-gnu"));
        command.arg(self.tree.join("usr/bin/promtool")).args(arguments);
        command.args(files).stdin(stdin);
        let status = command.status().context("cannot start promtool")?;
        if !status.success() {
            eprintln!("test: promtool {} ended with {status}", arguments.join(" "));
        }
        Ok(status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_their_tests_have_the_same_names() {
        let names = |folder| -> Vec<_> {
            files(folder).unwrap().iter().map(|file| file.file_name().unwrap().to_owned()).collect()
        };
        assert_eq!(names("dashboards/rules"), names(TESTS));
    }
}
