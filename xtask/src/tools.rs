//! The tools that building the kernel side needs: the library source of rustc, and bpf-linker.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::Packages;
use crate::workspace::{self, find_program, output, run};

/// The bpf-linker that this tree is built with.
const BPF_LINKER: &str = "0.13.0";

/// Finds or fetches everything that `cargo build` needs.
pub fn ensure() -> Result<()> {
    if find_program("cc").is_none() {
        crate::apt::install(&["gcc", "libc6-dev"])?;
    }
    let rustc = Rustc::here()?;
    rust_src(&rustc)?;
    bpf_linker(&rustc)
}

/// What matters of the compiler here.
struct Rustc {
    /// Such as 1.95.0.
    version: String,
    sysroot: PathBuf,
    /// The major version of its LLVM.
    llvm: String,
}

impl Rustc {
    fn here() -> Result<Self> {
        let verbose = output(Command::new("rustc").arg("-vV")).context("install Rust first (rustup)")?;
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        Ok(Self {
            version: field(&verbose, "release").context("rustc tells no version")?,
            llvm: field(&verbose, "LLVM version")
                .and_then(|version| Some(version.split_once('.')?.0.to_owned()))
                .context("rustc tells no LLVM version")?,
            sysroot: PathBuf::from(sysroot.trim()),
        })
    }

    fn library(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib/src/rust/library")
    }

    fn has_source(&self) -> bool {
        self.library().join("core/src/lib.rs").is_file()
    }
}

/// The value of `key` in the output of `rustc -vV`.
fn field(verbose: &str, key: &str) -> Option<String> {
    let line = verbose.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn rust_src(rustc: &Rustc) -> Result<()> {
    if rustc.has_source() {
        return Ok(());
    }
    eprintln!("setup: installing rust-src {}", rustc.version);
    let rustup = output(Command::new("rustup").args(["component", "add", "rust-src"]));
    if rustup.is_ok() && rustc.has_source() {
        return Ok(());
    }
    eprintln!("setup: rustup does not have it; taking Debian's package of the same version");
    rust_src_from_debian(rustc)
}

fn rust_src_from_debian(rustc: &Rustc) -> Result<()> {
    let packages = Packages::open()?;
    let wanted = format!("{}+", rustc.version);
    let version = packages.versions("rust-src")?.into_iter().find(|version| version.starts_with(&wanted));
    let Some(version) = version else {
        bail!("Debian has no rust-src {}; install rustc's library source by hand", rustc.version);
    };
    let scratch = workspace::tools().join("rust-src");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    packages.unpack(&format!("rust-src={version}"), &scratch)?;
    let library = scratch.join(format!("usr/src/rustc-{}/library", rustc.version));
    // Copied, not linked: the target folder may go, the compiler stays.
    let place = rustc.library();
    let parent = place.parent().context("the sysroot has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot write to {}", parent.display()))?;
    run(Command::new("cp").arg("-rT").arg(&library).arg(&place))?;
    fs::remove_dir_all(&scratch)?;
    Ok(())
}

fn bpf_linker(rustc: &Rustc) -> Result<()> {
    let own = workspace::tools().join("bin/bpf-linker");
    if [Some(own), find_program("bpf-linker")].into_iter().flatten().any(|linker| is_current(&linker)) {
        return Ok(());
    }
    eprintln!("setup: building bpf-linker {BPF_LINKER}, once, about two minutes");
    let prefix = workspace::tools().join("llvm");
    link_llvm(&rustc.sysroot.join("lib"), &prefix.join("lib"))?;
    let mut install = workspace::cargo();
    install.env("LLVM_PREFIX", &prefix).args(["install", "bpf-linker", "--quiet", "--version", BPF_LINKER]);
    install.args(["--no-default-features", "--features", &format!("llvm-{}", rustc.llvm)]);
    // cargo would leave its own target folder to this build, which has other settings.
    install.env_remove("CARGO_TARGET_DIR").arg("--root").arg(workspace::tools());
    run(&mut install)
}

fn is_current(linker: &Path) -> bool {
    output(Command::new(linker).arg("--version")).is_ok_and(|version| version.contains(BPF_LINKER))
}

/// Links rustc's own LLVM into `folder` under the names that the linker's build looks for: it must be the
/// same library that wrote the bitcode.
fn link_llvm(sysroot: &Path, folder: &Path) -> Result<()> {
    let is_llvm = |name: &str| name.starts_with("libLLVM.so.") && name.contains("-rust-");
    let entries = fs::read_dir(sysroot).with_context(|| format!("cannot read {}", sysroot.display()))?;
    let library = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| is_llvm(name))
        .with_context(|| format!("{} has no libLLVM of rustc's own", sysroot.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for name in ["libLLVM.so", &library] {
        let link = folder.join(name);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(sysroot.join(&library), &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustc_tells_its_version_and_its_llvm() {
        let verbose = "rustc 1.95.0 (59807616e 2026-04-14)\nrelease: 1.95.0\nLLVM version: 22.1.2\n";
        assert_eq!(field(verbose, "release").as_deref(), Some("1.95.0"));
        assert_eq!(field(verbose, "LLVM version").as_deref(), Some("22.1.2"));
        assert_eq!(field(verbose, "host"), None);
    }

    #[test]
    fn llvm_is_linked_under_both_names() {
        let home = tempfile::tempdir().unwrap();
        let (sysroot, folder) = (home.path().join("lib"), home.path().join("prefix/lib"));
        fs::create_dir_all(&sysroot).unwrap();
        fs::write(sysroot.join("libLLVM.so.22.1-rust-1.95.0-stable"), "llvm").unwrap();
        for _again in 0..2 {
            link_llvm(&sysroot, &folder).unwrap();
            for name in ["libLLVM.so", "libLLVM.so.22.1-rust-1.95.0-stable"] {
                assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), "llvm");
            }
        }
    }
}
