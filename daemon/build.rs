//! Builds the kernel side with aya-build; says in one line which tool is missing and how to get it.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use aya_build::{Package, Toolchain, build_ebpf};

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error:#}");
    }
}

fn build() -> Result<()> {
    println!("cargo::rerun-if-changed=../common/src");
    let sysroot = command_line("rustc", &["--print", "sysroot"])?;
    let core = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    println!("cargo::rerun-if-changed={}", core.display());
    if !core.is_file() {
        bail!("the library source of rustc (rust-src) is missing; `cargo xtask setup` gets it");
    }
    let path = path_with_tools()?;
    let linker = env::split_paths(&path).map(|folder| folder.join("bpf-linker")).find(|file| file.is_file());
    let Some(linker) = linker else {
        bail!("bpf-linker is missing; `cargo xtask setup` gets it");
    };
    println!("cargo::rerun-if-changed={}", linker.display());

    let toolchain = env::var("RUSTUP_TOOLCHAIN").unwrap_or_else(|_| "stable".into());
    // SAFETY: a build script has one thread, this one, until aya-build starts its own.
    unsafe {
        env::set_var("PATH", path);
        // The bpf target has no library of its own: `-Z build-std=core`, on the stable compiler.
        env::set_var("RUSTC_BOOTSTRAP", "1");
        // Only what goes wrong is of interest; aya-build makes a warning of every line.
        env::set_var("CARGO_TERM_QUIET", "true");
    }
    let ebpf = Package { name: "iotrace-ebpf", root_dir: "../ebpf", ..Package::default() };
    build_ebpf([ebpf], Toolchain::Custom(&toolchain)).context("the kernel side does not build")
}

/// `PATH`, with the folder before it where `cargo xtask setup` puts bpf-linker: `tools/bin` beside the
/// profile folders of the target folder this script writes to, or of the workspace's own.
fn path_with_tools() -> Result<OsString> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set; run this through cargo")?);
    let above = out.ancestors().map(|folder| folder.join("tools/bin"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
    let tools = above.chain([own]).filter(|folder| folder.join("bpf-linker").is_file());
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(tools.chain(env::split_paths(&path)))?)
}

fn command_line(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {} failed: {}", arguments.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
