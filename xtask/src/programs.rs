//! The project's own programs, built static for a guest.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// There is no C library in a guest, so programs bring theirs.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// A program and the name it has in a guest.
#[derive(Clone)]
pub struct Program {
    /// Its file name there.
    pub name: String,
    /// Where it was built.
    pub path: PathBuf,
}

/// `iotrace` and the workloads.
pub fn build() -> Result<Vec<Program>> {
    built(workspace::cargo().args(["build", "--bins"]), "bin")
}

/// The same, and what measures them.
pub fn build_bench() -> Result<Vec<Program>> {
    built(workspace::cargo().args(["build", "--bins", "-p", "iotrace-overhead"]), "bin")
}

/// The tests that run in a guest.
pub fn build_tests() -> Result<Vec<Program>> {
    built(workspace::cargo().args(["test", "--no-run", "--tests"]), "test")
}

/// What `cargo` builds of `kind`, for a guest. A folder of its own: host builds have other flags.
fn built(cargo: &mut Command, kind: &str) -> Result<Vec<Program>> {
    cargo.args(["--quiet", "--release", "--target", TRIPLE, "--message-format=json-render-diagnostics"]);
    cargo.args(["-p", "iotrace-guest"]);
    if kind == "bin" {
        cargo.args(["-p", "iotrace"]);
    }
    cargo.arg("--target-dir").arg(workspace::target().join("guest"));
    // These would take the place of the next line's, and the programs would need libraries.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    let out = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !out.status.success() {
        bail!("the guest's programs do not build");
    }
    let programs = executables(&String::from_utf8_lossy(&out.stdout), kind);
    if programs.is_empty() {
        bail!("cargo built no {kind} for the guest");
    }
    Ok(programs)
}

/// The executables of `kind` in cargo's messages.
fn executables(messages: &str, kind: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["kind"][0] == kind)
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some(Program { name, path: message["executable"].as_str()?.into() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_told_from_the_rest() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"x"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"iotrace"},"executable":"/t/iotrace"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"top"},"executable":"/t/top-1f"}
{"reason":"build-finished","success":true}"#;
        let names =
            |kind| executables(messages, kind).into_iter().map(|program| program.name).collect::<Vec<_>>();
        assert_eq!(names("bin"), ["iotrace"]);
        assert_eq!(names("test"), ["top"]);
    }
}
