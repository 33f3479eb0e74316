//! Debian packages: some installed on this machine, some only unpacked below the target folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Installs system packages.
pub fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if workspace::find_program("apt-get").is_none() {
        bail!("this machine has no apt-get; install what is known as {list} in Debian, then run this again");
    }
    eprintln!("setup: installing {list}");
    let install = || {
        let mut command = workspace::as_root("env");
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q"]);
        command.arg("--no-install-recommends").args(packages);
        workspace::output(&mut command)
    };
    if install().is_err() {
        eprintln!("setup: refreshing the package lists first");
        workspace::output(workspace::as_root("apt-get").args(["-q", "update"]))?;
        install().with_context(|| format!("cannot install {list}"))?;
    }
    Ok(())
}

/// The suites that kernels, rust-src and programs for guests come from, oldest first.
const SUITES: &[&str] = &["bullseye", "bookworm", "trixie", "trixie-backports", "sid"];
const SECURITY_SUITES: &[&str] = &["bullseye-security", "bookworm-security", "trixie-security"];
/// A suite that leaves the mirrors moves to this archive.
const ARCHIVED: &str = "bullseye";
const ARCHIVE: &str = "http://archive.debian.org/debian";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LISTS_STAY_FRESH: Duration = Duration::from_secs(3600);

/// A view of Debian's packages that neither reads nor changes what the machine itself has installed.
pub struct Packages {
    dir: PathBuf,
}

impl Packages {
    /// Opens the view, fetching the package lists if they are old. Of one suite that has gone the rest is left.
    pub fn open() -> Result<Self> {
        if workspace::find_program("apt-get").is_none() {
            bail!("this machine has no apt-get to fetch Debian packages with; pass `--kernel PATH`");
        }
        if !Path::new(KEYRING).is_file() {
            install(&["debian-archive-keyring"])?;
        }
        let this = Self { dir: workspace::target().join("apt") };
        for folder in ["lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/apt.conf.d"] {
            fs::create_dir_all(this.dir.join(folder))
                .with_context(|| format!("cannot make {}", this.dir.display()))?;
        }
        fs::write(this.dir.join("status"), "")?;
        this.refresh()?;
        Ok(this)
    }

    /// The names of all packages that start with `prefix`.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let names = workspace::output(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The versions of `package` that can be had, newest first.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = workspace::output(self.apt("apt-cache").args(["madison", package]))?;
        Ok(table.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())).collect())
    }

    /// Fetches `package` (NAME or NAME=VERSION) and unpacks it into `folder`.
    pub fn unpack(&self, package: &str, folder: &Path) -> Result<()> {
        let download = self.dir.join(format!("download-{}", std::process::id()));
        fs::create_dir_all(&download)?;
        workspace::output(self.apt("apt-get").args(["-q", "download", package]).current_dir(&download))
            .with_context(|| format!("cannot fetch the Debian package {package}"))?;
        for file in fs::read_dir(&download)? {
            workspace::output(Command::new("dpkg").arg("-x").arg(file?.path()).arg(folder))?;
        }
        fs::remove_dir_all(&download)?;
        Ok(())
    }

    /// Fetches `names` of `suite` and everything that they depend on, and unpacks all of it into `folder`.
    pub fn unpack_with_dependencies(&self, names: &[String], suite: &str, folder: &Path) -> Result<()> {
        let download = self.dir.join(format!("download-{}", std::process::id()));
        fs::create_dir_all(download.join("partial"))?;
        // Nothing counts as installed in this view, so not even the C library is left out.
        let mut command = self.apt("apt-get");
        command.args(["-q", "-y", "--no-install-recommends", "--download-only", "-t", suite]);
        command.args(["-o", "Debug::NoLocking=true", "-o"]);
        command.arg(format!("Dir::Cache::archives={}", download.display()));
        workspace::output(command.arg("install").args(names))?;
        for file in fs::read_dir(&download)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                workspace::output(Command::new("dpkg-deb").arg("-x").arg(file).arg(folder))?;
            }
        }
        fs::remove_dir_all(&download)?;
        Ok(())
    }

    fn refresh(&self) -> Result<()> {
        let stamp = self.dir.join("fetched");
        let age = stamp.metadata().and_then(|meta| meta.modified()).ok();
        if age.and_then(|then| SystemTime::now().duration_since(then).ok()) < Some(LISTS_STAY_FRESH)
            && age.is_some()
        {
            return Ok(());
        }
        eprintln!("setup: fetching Debian's package lists ({})", SUITES.join(", "));
        let mirror = mirror()?;
        self.update(&sources(&mirror, None));
        if !self.has(ARCHIVED)? {
            self.update(&sources(&mirror, Some(ARCHIVE)));
        }
        let missing: Vec<_> = missing(|suite| self.has(suite))?;
        if missing.len() == SUITES.len() {
            bail!("no Debian package list could be fetched from {mirror}; is there a network?");
        }
        if !missing.is_empty() {
            eprintln!("setup: {mirror} has no {}", missing.join(", "));
        }
        fs::write(stamp, "")?;
        Ok(())
    }

    /// Fetches the lists of `sources`; what fails is seen by its absence.
    fn update(&self, sources: &str) {
        let _ = fs::write(self.dir.join("sources.list"), sources)
            .map_err(anyhow::Error::from)
            .and_then(|()| workspace::output(self.apt("apt-get").args(["-q", "update"])));
    }

    /// Whether the package list of `suite` is here.
    fn has(&self, suite: &str) -> Result<bool> {
        let list = format!("_dists_{suite}_main_binary-amd64_Packages");
        for entry in fs::read_dir(self.dir.join("lists"))? {
            if entry?.file_name().to_string_lossy().contains(&list) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |name: &str, path: &str| {
            command.arg("-o").arg(format!("{name}={}", self.dir.join(path).display()));
        };
        option("Dir::Etc::sourcelist", "sources.list");
        option("Dir::Etc::preferences", "etc/preferences");
        option("Dir::Etc::preferencesparts", "etc/preferences.d");
        option("Dir::State::lists", "lists");
        option("Dir::State::status", "status");
        option("Dir::Cache", "cache");
        for fixed in [
            "Dir::Etc::sourceparts=-",
            "Dir::Cache::pkgcache=pkgcache.bin",
            "APT::Architecture=amd64",
            "APT::Architectures=amd64",
            "APT::Sandbox::User=",
            "Acquire::Languages=none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ] {
            command.args(["-o", fixed]);
        }
        command
    }
}

fn missing(has: impl Fn(&str) -> Result<bool>) -> Result<Vec<&'static str>> {
    let mut gone = Vec::new();
    for suite in SUITES {
        if !has(suite)? {
            gone.push(*suite);
        }
    }
    Ok(gone)
}

/// The Debian mirror to use: the one named in the environment, else the one that this machine's apt uses.
fn mirror() -> Result<String> {
    if let Ok(named) = env::var("IOTRACE_DEBIAN_MIRROR") {
        return Ok(named.trim_end_matches('/').to_owned());
    }
    let uris = workspace::output(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]))?;
    debian_mirror(&uris).context(
        "apt's sources here name no Debian mirror; name one: IOTRACE_DEBIAN_MIRROR=http://HOST/debian",
    )
}

/// The first of `uris` (one a line) that is a Debian archive.
fn debian_mirror(uris: &str) -> Option<String> {
    uris.lines().map(|uri| uri.trim_end_matches('/')).find(|uri| uri.ends_with("/debian")).map(str::to_owned)
}

/// A sources.list for `mirror`, with the suite that has left it taken from `archive`.
fn sources(mirror: &str, archive: Option<&str>) -> String {
    let line = |site: &str, suite: &str| format!("deb [signed-by={KEYRING}] {site} {suite} main\n");
    let suites = SUITES.iter().map(|suite| match archive {
        Some(archive) if *suite == ARCHIVED => line(archive, suite),
        _ => line(mirror, suite),
    });
    let security = SECURITY_SUITES.iter().map(|suite| match archive {
        Some(archive) if suite.starts_with(ARCHIVED) => line(&format!("{archive}-security"), suite),
        _ => line(&format!("{mirror}-security"), suite),
    });
    suites.chain(security).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_that_apt_uses() {
        let uris = "https://example.org/node\nhttp://mirror.example/debian-security/\nhttp://mirror.example/debian/\n";
        assert_eq!(debian_mirror(uris).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(debian_mirror("http://mirror.example/ubuntu/\n"), None);
    }

    #[test]
    fn only_the_suite_that_has_gone_comes_from_the_archive() {
        let here = sources("http://m/debian", None);
        assert!(here.contains("http://m/debian bullseye main\n"));
        assert!(here.contains("http://m/debian-security bookworm-security main\n"));
        let moved = sources("http://m/debian", Some("http://a/debian"));
        assert!(moved.contains("http://a/debian bullseye main\n"));
        assert!(moved.contains("http://a/debian-security bullseye-security main\n"));
        assert!(moved.contains("http://m/debian trixie main\n"));
        assert!(!moved.contains("http://m/debian bullseye"));
    }
}
