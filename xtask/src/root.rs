//! A guest's first file system: busybox, the project's programs, and what the caller adds.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cpio::Archive;
use crate::modules::Module;
use crate::programs::Program;
use crate::workspace::find_program;

/// What goes into a guest beside busybox.
#[derive(Default)]
pub struct Contents<'a> {
    /// The script that the guest runs.
    pub script: String,
    /// Programs, below /bin.
    pub programs: &'a [Program],
    /// Test programs, below /tests.
    pub tests: &'a [Program],
    /// Files of the host.
    pub files: &'a [PathBuf],
    /// A folder whose content goes to the same places in the guest.
    pub tree: Option<PathBuf>,
    /// Kernel modules, in the order in which they are loaded.
    pub modules: Vec<Module>,
}

const INIT: &[u8] = include_bytes!("init.sh");
const REPORT: &[u8] = include_bytes!("report.sh");
/// What systemd starts, in guests that have it.
const UNIT: &[u8] = include_bytes!("report.service");
/// Where systemd looks for units of the machine's own.
const UNITS: &str = "etc/systemd/system";
/// Units that have nothing to do in a guest.
const NOT_HERE: [&str; 2] = ["ldconfig.service", "systemd-modules-load.service"];
const FOLDERS: &[&str] = &[
    "bin",
    "dev",
    "etc",
    "modules",
    "proc",
    "root",
    "run",
    "sys",
    "tests",
    "tmp",
    "usr/lib",
    "usr/lib64",
    "usr/sbin",
    "var/tmp",
];
/// Folders that are links into /usr, as in Debian itself; /bin has busybox and the project's programs.
const LINKS: &[&str] = &["lib", "lib64", "sbin"];

/// The archive that the kernel unpacks.
pub fn archive(contents: &Contents<'_>) -> Result<Vec<u8>> {
    let busybox = find_program("busybox").context("busybox is missing; run `cargo xtask setup`")?;
    let mut archive = Archive::new(Vec::new());
    for folder in FOLDERS {
        archive.folder(Path::new(folder))?;
    }
    for link in LINKS {
        archive.link(Path::new(link), &Path::new("usr").join(link))?;
    }
    if let Some(tree) = &contents.tree {
        add_tree(&mut archive, tree, Path::new(""))?;
    }
    archive.file(Path::new("init"), 0o755, INIT)?;
    archive.file(Path::new("report"), 0o755, REPORT)?;
    archive.file(&Path::new(UNITS).join("report.service"), 0o644, UNIT)?;
    for unit in NOT_HERE {
        archive.link(&Path::new(UNITS).join(unit), Path::new("/dev/null"))?;
    }
    // Without a name of its own the machine would ask to be configured.
    archive.file(Path::new("etc/machine-id"), 0o444, b"00000000000000000000000000000001\n")?;
    archive.file(Path::new("command"), 0o755, contents.script.as_bytes())?;
    archive.file(Path::new("etc/passwd"), 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file(Path::new("etc/hosts"), 0o644, b"127.0.0.1 localhost\n")?;
    archive.file(Path::new("etc/group"), 0o644, b"root:x:0:\n")?;
    archive.file(Path::new("bin/busybox"), 0o755, &read(&busybox)?)?;
    for (folder, programs) in [("bin", contents.programs), ("tests", contents.tests)] {
        for program in programs {
            archive.file(&Path::new(folder).join(&program.name), 0o755, &read(&program.path)?)?;
        }
    }
    let order: String = contents.modules.iter().map(|module| module.name.clone() + "\n").collect();
    archive.file(Path::new("modules/order"), 0o644, order.as_bytes())?;
    for module in &contents.modules {
        archive.file(Path::new(&format!("modules/{}.ko", module.name)), 0o644, &module.content)?;
    }
    let mut libraries = BTreeSet::new();
    for file in contents.files {
        let content = read(file)?;
        let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
        let executable = fs::metadata(file)?.permissions().mode() & 0o111 != 0;
        let (folder, mode) = if executable { ("bin", 0o755) } else { ("root", 0o644) };
        archive.file(&Path::new(folder).join(name), mode, &content)?;
        if content.starts_with(b"\x7fELF") {
            libraries.extend(shared_libraries(file));
        }
    }
    for library in libraries {
        archive.file(&merged(&library), 0o755, &read(&library)?)?;
    }
    Ok(archive.finish()?)
}

/// Adds what lies in the folder `at` of `tree`, and below.
fn add_tree(archive: &mut Archive<Vec<u8>>, tree: &Path, at: &Path) -> Result<()> {
    let folder = tree.join(at);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (at.join(entry.file_name()), entry.file_type()?);
        let place = merged(&path);
        if kind.is_dir() {
            archive.folder(&place)?;
            add_tree(archive, tree, &path)?;
        } else if kind.is_file() {
            let mode = entry.metadata()?.permissions().mode() & 0o7777;
            archive.file(&place, mode, &read(&entry.path())?)?;
        } else if kind.is_symlink() && !LINKS.contains(&&*path.to_string_lossy()) && path != Path::new("bin")
        {
            archive.link(&place, &fs::read_link(entry.path())?)?;
        }
    }
    Ok(())
}

/// Where `path` is, in a file system with all programs and libraries below /usr.
fn merged(path: &Path) -> PathBuf {
    let mut parts = path.strip_prefix("/").unwrap_or(path).components();
    match parts.next() {
        Some(first) if first.as_os_str() == "bin" || LINKS.iter().any(|link| first.as_os_str() == *link) => {
            Path::new("usr").join(first).join(parts.as_path())
        }
        _ => path.to_owned(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The libraries and the loader of a dynamic program, at their places on this machine; none of a static one.
fn shared_libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(out) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    library_paths(&String::from_utf8_lossy(&out.stdout))
}

/// The paths in the output of ldd: behind `=>`, or at the start for the loader.
fn library_paths(ldd: &str) -> Vec<PathBuf> {
    let lines = ldd.lines().map(str::trim);
    let paths = lines.filter_map(|line| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place.trim());
        place.split_whitespace().next().filter(|place| place.starts_with('/'))
    });
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries_are_below_usr() {
        for (path, place) in [
            ("/lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
            ("bin/tar", "usr/bin/tar"),
            ("sbin", "usr/sbin"),
            ("usr/bin/tar", "usr/bin/tar"),
            ("etc/bin", "etc/bin"),
        ] {
            assert_eq!(merged(Path::new(path)), Path::new(place));
        }
    }

    #[test]
    fn ldd_names_libraries_and_the_loader() {
        let ldd = "\tlinux-vdso.so.1 (0x00007fff)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n\tlibgone.so => not found\n";
        assert_eq!(
            library_paths(ldd),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert!(library_paths("\tnot a dynamic executable\n").is_empty());
    }
}
