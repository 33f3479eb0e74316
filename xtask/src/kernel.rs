//! Kernels to boot: Debian's by series, or a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::apt::Packages;
use crate::modules;
use crate::series::{self, Flavour, Release, Series};
use crate::workspace;

/// A kernel on this machine's disk.
pub struct Kernel {
    /// What the user calls it: a series, with the flavour unless that is the default, or a path.
    pub label: String,
    /// Its release, such as `6.12.117+deb13`.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// The folder with its modules.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// The kernel that `name`, a series or a path, stands for. A series is fetched once for each flavour and kept.
    pub fn find(name: &str, flavour: Flavour) -> Result<Self> {
        if name.contains('/') || Path::new(name).is_file() {
            return Self::at(Path::new(name));
        }
        let series: Series = name.parse()?;
        let label = match flavour {
            Flavour::Cloud => name.to_owned(),
            Flavour::Full => format!("{name}-full"),
        };
        let home = workspace::guests().join("kernels").join(&label);
        let _lock = workspace::lock(&workspace::guests().join("kernels.lock"))?;
        if !home.join("release").is_file() {
            fetch(series, flavour, &home).with_context(|| format!("cannot get a {series} kernel"))?;
        }
        let release = fs::read_to_string(home.join("release"))?;
        if !release.starts_with(&format!("{series}.")) {
            eprintln!("vm: Debian has no {series} kernel any more, {release} is the nearest");
        }
        Ok(Self { label, release, vmlinuz: home.join("vmlinuz"), modules: Some(home.join("modules")) })
    }

    fn at(path: &Path) -> Result<Self> {
        let path = path.canonicalize().with_context(|| format!("no kernel at {}", path.display()))?;
        let label = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            release: label.trim_start_matches("vmlinuz-").to_owned(),
            label,
            modules: modules::folder_beside(&path),
            vmlinuz: path,
        })
    }
}

/// Fetches the newest Debian kernel of `series`, or the nearest, into the folder `home`.
fn fetch(series: Series, flavour: Flavour, home: &Path) -> Result<()> {
    let packages = Packages::open()?;
    let names = packages.names("linux-")?;
    let releases = series::releases(names.iter().map(String::as_str), flavour);
    let release = series::newest(&releases, series).context("the package lists name no kernel at all")?;
    eprintln!("setup: fetching Debian's kernel {}{}", release.name, flavour.suffix());

    let scratch = home.with_extension(format!("part-{}", std::process::id()));
    let unpacked = scratch.join("unpacked");
    fs::create_dir_all(&unpacked).with_context(|| format!("cannot make {}", unpacked.display()))?;
    for package in release.packages(&names) {
        packages.unpack(&package, &unpacked)?;
    }
    arrange(release, flavour, &unpacked, &scratch)?;
    fs::remove_dir_all(&unpacked)?;
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::rename(&scratch, home).with_context(|| format!("cannot make {}", home.display()))
}

/// Moves the parts of the `unpacked` packages to where [`Kernel::find`] expects them below `home`.
fn arrange(release: &Release, flavour: Flavour, unpacked: &Path, home: &Path) -> Result<()> {
    let full = format!("{}{}", release.name, flavour.suffix());
    let first = |candidates: &[String]| candidates.iter().map(|at| unpacked.join(at)).find(|at| at.exists());
    let folders = [format!("usr/lib/modules/{full}"), format!("lib/modules/{full}")];
    let images = [format!("boot/vmlinuz-{full}"), format!("usr/lib/modules/{full}/vmlinuz")];
    let (Some(image), Some(folder)) = (first(&images), first(&folders)) else {
        bail!("the package {} holds no kernel where one is expected", release.package);
    };
    fs::rename(image, home.join("vmlinuz"))?;
    fs::rename(folder, home.join("modules"))?;
    fs::write(home.join("release"), &release.name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arranged(image: &str, modules: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let unpacked = home.path().join("unpacked");
        for file in [image, &format!("{modules}/modules.builtin")] {
            let file = unpacked.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        let releases = series::releases(["linux-image-7.3.4+deb13-cloud-amd64"], Flavour::Cloud);
        arrange(&releases[0], Flavour::Cloud, &unpacked, home.path()).unwrap();
        home
    }

    #[test]
    fn both_package_layouts_end_in_the_same_place() {
        let v = "7.3.4+deb13-cloud-amd64";
        for (image, modules) in [
            (format!("boot/vmlinuz-{v}"), format!("lib/modules/{v}")),
            (format!("usr/lib/modules/{v}/vmlinuz"), format!("usr/lib/modules/{v}")),
        ] {
            let home = arranged(&image, &modules);
            assert!(home.path().join("vmlinuz").is_file());
            assert!(home.path().join("modules/modules.builtin").is_file());
            assert_eq!(fs::read_to_string(home.path().join("release")).unwrap(), "7.3.4+deb13");
            let kernel = Kernel::at(&home.path().join("vmlinuz")).unwrap();
            assert!(kernel.modules.unwrap().ends_with("modules"));
        }
    }

    #[test]
    fn a_path_that_leads_nowhere_is_named() {
        let error = Kernel::find("/no/such/vmlinuz", Flavour::Cloud).err().unwrap();
        assert!(format!("{error:#}").contains("/no/such/vmlinuz"));
    }
}
