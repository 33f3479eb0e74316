//! Kernel modules: which file has one, and what it needs before it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A module ready to be loaded.
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// Its unpacked ELF file.
    pub content: Vec<u8>,
}

/// What a guest's network card needs; those that a kernel has built in are left out.
pub const NETWORK: &[&str] = &["virtio_pci", "virtio_net"];

/// The modules `wanted`, each after those that it depends on. A built-in one is no module.
pub fn in_order(folder: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let files = files(folder)?;
    let built_in = built_in(folder);
    let mut contents = BTreeMap::new();
    let order = order(wanted, |name| {
        let Some(path) = files.get(name) else {
            if built_in.iter().any(|other| other == name) {
                return Ok(None);
            }
            bail!("{} has no module {name}", folder.display());
        };
        let content = unpacked(path)?;
        let needs = needs(&content);
        contents.insert(name.to_owned(), content);
        Ok(Some(needs))
    })?;
    let module = |name: String| contents.remove(&name).map(|content| Module { name, content });
    Ok(order.into_iter().filter_map(module).collect())
}

/// `wanted` and all that they need, in an order in which each can be loaded.
/// `needs` says what a module needs directly, or `None` for what is built in.
fn order(wanted: &[&str], mut needs: impl FnMut(&str) -> Result<Option<Vec<String>>>) -> Result<Vec<String>> {
    fn visit(
        name: &str,
        needs: &mut impl FnMut(&str) -> Result<Option<Vec<String>>>,
        seen: &mut Vec<String>,
        order: &mut Vec<String>,
    ) -> Result<()> {
        if seen.iter().any(|other| other == name) {
            return Ok(());
        }
        seen.push(name.to_owned());
        let Some(needed) = needs(name)? else { return Ok(()) };
        for other in needed {
            visit(&other, needs, seen, order)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
    let (mut seen, mut order) = (Vec::new(), Vec::new());
    for name in wanted {
        visit(&plain(name), &mut needs, &mut seen, &mut order)?;
    }
    Ok(order)
}

/// The module's name as the kernel spells it.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in the file `path`, if it is one.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".gz" | ".zst").then(|| plain(name))
}

/// Every module below `folder` by name.
fn files(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(dir) = folders.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some(name) = module_name(&entry.path()) {
                found.insert(name, entry.path());
            }
        }
    }
    Ok(found)
}

/// The names of what would be modules if they were not built in.
fn built_in(folder: &Path) -> Vec<String> {
    let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
    list.lines().filter_map(|line| module_name(Path::new(line))).collect()
}

/// The ELF file in `path`, whatever it is packed with.
fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("gz") => "gzip",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut command = Command::new(tool);
    command.arg("-dc").arg(path);
    let out = command.output().with_context(|| format!("cannot start {tool}; run `cargo xtask setup`"))?;
    if !out.status.success() {
        bail!("{tool} cannot unpack {}", path.display());
    }
    Ok(out.stdout)
}

/// The direct dependencies that a module's own file names (`depends=a,b` among its NUL-ended strings).
fn needs(content: &[u8]) -> Vec<String> {
    let list = content.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(b"depends="));
    let list = String::from_utf8_lossy(list.unwrap_or_default());
    list.split(',').filter(|name| !name.is_empty()).map(plain).collect()
}

/// The folder with the modules of the kernel `vmlinuz`, if it lies where distributions put it.
pub fn folder_beside(vmlinuz: &Path) -> Option<PathBuf> {
    let dir = vmlinuz.parent()?;
    let release = vmlinuz.file_name()?.to_str()?.split_once('-').map(|(_, release)| release);
    let beside = |lib: &str| release.map(|release| dir.join(lib).join(release));
    [Some(dir.join("modules")), Some(dir.to_owned()), beside("../lib/modules"), beside("../usr/lib/modules")]
        .into_iter()
        .flatten()
        .find(|candidate| candidate.join("modules.builtin").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_needs() {
        let needs = |name: &str| {
            Ok(match name {
                "virtio_net" => Some(vec!["net_failover".to_owned(), "virtio_ring".to_owned()]),
                "net_failover" => Some(vec!["failover".to_owned()]),
                "virtio_ring" => None,
                _ => Some(Vec::new()),
            })
        };
        let order = order(&["failover", "virtio-net"], needs).unwrap();
        assert_eq!(order, ["failover", "net_failover", "virtio_net"]);
    }

    #[test]
    fn a_module_names_its_needs_itself() {
        assert_eq!(needs(b"x\0license=GPL\0depends=net-failover,virtio\0y"), ["net_failover", "virtio"]);
        assert!(needs(b"depends=\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }

    #[test]
    fn modules_are_known_by_their_file_names() {
        for file in ["a/virtio-rng.ko", "virtio-rng.ko.xz", "virtio_rng.ko.zst"] {
            assert_eq!(module_name(Path::new(file)).as_deref(), Some("virtio_rng"));
        }
        assert_eq!(module_name(Path::new("modules.builtin")), None);
    }
}
