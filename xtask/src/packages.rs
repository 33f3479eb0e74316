//! Debian packages for guests: unpacked with all that they depend on, and kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::apt::Packages;
use crate::workspace;

/// The suite that they come from, whatever the kernel: a stable one, so that they stay the same.
const SUITE: &str = "trixie";

/// What no program needs to run, below a tree of packages.
const IDLE: &[&str] = &[
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/i18n",
    "usr/share/zoneinfo",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// The folder with the packages `names` and their dependencies, fetched once. They are resolved together, so
/// that no two trees bring two versions of one library.
pub fn tree(names: &[String]) -> Result<Option<PathBuf>> {
    if names.is_empty() {
        return Ok(None);
    }
    let folder = workspace::guests().join("packages").join(folder_name(names));
    let _lock = workspace::lock(&workspace::guests().join("packages.lock"))?;
    if !folder.is_dir() {
        fetch(names, &folder).with_context(|| format!("cannot get the packages {}", names.join(", ")))?;
    }
    Ok(Some(folder))
}

/// A name for a set of packages, in whatever order they were asked for.
fn folder_name(names: &[String]) -> String {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    format!("{}_{SUITE}", names.join(","))
}

fn fetch(names: &[String], folder: &Path) -> Result<()> {
    eprintln!("setup: fetching {} from Debian's {SUITE}, with what they depend on", names.join(", "));
    let scratch = folder.with_extension(format!("part-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    Packages::open()?.unpack_with_dependencies(names, SUITE, &scratch)?;
    for idle in IDLE {
        let idle = scratch.join(idle);
        if idle.is_dir() {
            fs::remove_dir_all(&idle).with_context(|| format!("cannot remove {}", idle.display()))?;
        }
    }
    fs::rename(&scratch, folder).with_context(|| format!("cannot make {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_one_folder_in_any_order() {
        let name = |names: &[&str]| folder_name(&names.iter().map(|&name| name.into()).collect::<Vec<_>>());
        assert_eq!(name(&["nginx", "fio", "nginx"]), "fio,nginx_trixie");
        assert_eq!(name(&["fio", "nginx"]), name(&["nginx", "fio"]));
    }
}
