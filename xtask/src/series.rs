//! Kernel series, and which of the releases that exist belongs to one.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// Which of Debian's builds of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// For virtual machines: small, and without most drivers and network file systems
    #[default]
    Cloud,
    /// For any machine, with every module
    Full,
}

impl Flavour {
    /// How the names of its packages and folders end.
    pub fn suffix(self) -> &'static str {
        match self {
            Flavour::Cloud => "-cloud-amd64",
            Flavour::Full => "-amd64",
        }
    }
}

/// A kernel series such as 6.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series(u64, u64);

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is neither a kernel series such as 6.12 nor the path of a vmlinuz");
        let (major, minor) = text.split_once('.').with_context(wrong)?;
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Self(major, minor)),
            _ => bail!(wrong()),
        }
    }
}

/// A release that the package lists offer, such as `6.12.117+deb13`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The release's name, as it is part of its packages' names.
    pub name: String,
    /// The package that holds its vmlinuz.
    pub package: String,
}

impl Release {
    /// The series of this release.
    pub fn series(&self) -> Series {
        let numbers = numbers(&self.name);
        Series(numbers[0], numbers[1])
    }

    /// The packages that make it up, of those that are `known`: newer releases come in parts, older ones in one
    /// piece.
    pub fn packages(&self, known: &[String]) -> Vec<String> {
        let part = |name: &str| self.package.replace("linux-binary-", name);
        let mut parts = vec![self.package.clone()];
        // The last, where it exists, lists what is built in.
        for other in ["linux-modules-", "linux-base-"].map(part) {
            if !parts.contains(&other) && known.contains(&other) {
                parts.push(other);
            }
        }
        parts
    }
}

/// Every release that `packages` (names, in any order) offer in a flavour, oldest first.
pub fn releases<'a>(packages: impl IntoIterator<Item = &'a str>, flavour: Flavour) -> Vec<Release> {
    let mut found: Vec<_> = packages
        .into_iter()
        .filter_map(|package| {
            let rest =
                package.strip_prefix("linux-image-").or_else(|| package.strip_prefix("linux-binary-"))?;
            let name = rest.strip_suffix(flavour.suffix())?;
            // Of another flavour, whose name ends with this one's.
            if ["-cloud", "-rt"].iter().any(|other| name.ends_with(other)) {
                return None;
            }
            // Fewer than three numbers is a metapackage; a word in front is an unsigned twin.
            (name.starts_with(|c: char| c.is_ascii_digit()) && numbers(name).len() >= 3)
                .then(|| Release { name: name.to_owned(), package: package.to_owned() })
        })
        .collect();
    // Where a release has both, the image package is empty and the binary package has the kernel.
    found.sort_by(|a, b| numbers(&a.name).cmp(&numbers(&b.name)).then(a.package.cmp(&b.package)));
    found.dedup_by(|later, earlier| later.name == earlier.name);
    found
}

/// The newest release of `series`, else of the nearest series: the next newer one, else the last older one.
pub fn newest(releases: &[Release], series: Series) -> Option<&Release> {
    let nearest = releases
        .iter()
        .map(Release::series)
        .find(|&candidate| candidate >= series)
        .or_else(|| releases.last().map(Release::series))?;
    releases.iter().rfind(|release| release.series() == nearest)
}

/// All numbers in a name, in order: enough to order releases by age.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGES: &[&str] = &[
        "linux-image-6.12.118+deb13-cloud-amd64",
        "linux-image-6.12.90+deb13.1-cloud-amd64",
        "linux-image-6.12-cloud-amd64",
        "linux-image-cloud-amd64",
        "linux-image-6.12.118+deb12-cloud-amd64",
        "linux-image-6.1.0-0.deb11.52-cloud-amd64",
        "linux-image-6.1.0-57-cloud-amd64",
        "linux-image-6.1.0-9-cloud-amd64",
        "linux-image-6.1.0-58-amd64",
        "linux-image-7.3.4+deb13-cloud-amd64",
        "linux-binary-7.3.4+deb13-cloud-amd64",
        "linux-binary-unsigned-7.3.5+deb13-cloud-amd64",
        "linux-modules-7.3.4+deb13-cloud-amd64",
    ];

    fn chosen(series: &str) -> String {
        let releases = releases(PACKAGES.iter().copied(), Flavour::Cloud);
        newest(&releases, series.parse().unwrap()).unwrap().package.clone()
    }

    #[test]
    fn the_newest_of_the_series_wins() {
        assert_eq!(chosen("6.12"), "linux-image-6.12.118+deb13-cloud-amd64");
        assert_eq!(chosen("6.1"), "linux-image-6.1.0-57-cloud-amd64");
    }

    #[test]
    fn a_flavour_is_not_taken_for_another() {
        let mut packages = PACKAGES.to_vec();
        packages.push("linux-image-6.1.0-59-rt-amd64");
        let full = releases(packages, Flavour::Full);
        assert_eq!(
            full.iter().map(|release| &release.package).collect::<Vec<_>>(),
            ["linux-image-6.1.0-58-amd64"]
        );
    }

    #[test]
    fn a_kernel_in_parts_is_taken_from_the_binary_package() {
        assert_eq!(chosen("7.3"), "linux-binary-7.3.4+deb13-cloud-amd64");
        let releases = releases(PACKAGES.iter().copied(), Flavour::Cloud);
        let known: Vec<_> = PACKAGES.iter().map(|&package| package.to_owned()).collect();
        let parts = ["linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64"];
        assert_eq!(releases.last().unwrap().packages(&known), parts);
        assert_eq!(releases[0].packages(&known), [releases[0].package.clone()]);
    }

    #[test]
    fn a_series_that_is_gone_gives_the_nearest() {
        assert_eq!(chosen("5.10"), "linux-image-6.1.0-57-cloud-amd64");
        assert_eq!(chosen("6.18"), "linux-binary-7.3.4+deb13-cloud-amd64");
        assert_eq!(chosen("9.0"), "linux-binary-7.3.4+deb13-cloud-amd64");
        assert!(newest(&[], Series(6, 1)).is_none());
    }

    #[test]
    fn a_series_is_two_numbers() {
        assert_eq!("6.12".parse::<Series>().unwrap().to_string(), "6.12");
        for wrong in ["6", "6.12.1", "six.1", "", "6."] {
            assert!(wrong.parse::<Series>().is_err(), "{wrong}");
        }
    }
}
