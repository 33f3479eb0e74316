//! Builds the programs that do nothing, with the tools that `cargo xtask setup` gets.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use aya_build::{Package, Toolchain, build_ebpf};

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error:#}");
    }
}

fn build() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set; run this through cargo")?);
    let above = out.ancestors().map(|folder| folder.join("tools/bin"));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
    let tools = above.chain([own]).filter(|folder| folder.join("bpf-linker").is_file());
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(tools.chain(env::split_paths(&path)))?;
    let toolchain = env::var("RUSTUP_TOOLCHAIN").unwrap_or_else(|_| "stable".into());
    // SAFETY: a build script has one thread, this one, until aya-build starts its own.
    unsafe {
        env::set_var("PATH", path);
        // The bpf target has no library of its own: `-Z build-std=core`, on the stable compiler.
        env::set_var("RUSTC_BOOTSTRAP", "1");
        env::set_var("CARGO_TERM_QUIET", "true");
    }
    let ebpf = Package { name: "iotrace-overhead-ebpf", root_dir: "ebpf", ..Package::default() };
    build_ebpf([ebpf], Toolchain::Custom(&toolchain)).context("the empty programs do not build")
}
