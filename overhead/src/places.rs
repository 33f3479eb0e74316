//! Where empty probes go: at the very sites that iotrace probes, as `iotrace check` tells them.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result};
use iotrace_guest::process;
use serde_json::Value;

/// A direct call is so long, and the next instruction so far behind it.
pub const CALL: u64 = 5;

/// How long the kernel may take, after it has decided to, until it has made jumps of kprobes.
pub const OPTIMIZED: Duration = Duration::from_secs(3);

/// A place in the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
}

impl Place {
    /// Of a name such as `vfs_readv+0xcf`.
    pub fn parse(text: &str) -> Option<Place> {
        let text = text.split_whitespace().next()?;
        let (function, offset) = text.split_once('+')?;
        let offset = u64::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
        Some(Place { function: function.to_owned(), offset })
    }

    /// The instruction after the call here.
    pub fn after(&self) -> Place {
        Place { offset: self.offset + CALL, ..self.clone() }
    }

    /// As the kernel's list of kprobes names it.
    pub fn name(&self) -> String {
        format!("{}+0x{:x}", self.function, self.offset)
    }

    /// Whether the kernel makes a jump of the kprobe here. It says so as soon as it has decided to; see [`OPTIMIZED`].
    pub fn is_optimized(&self) -> bool {
        for _ in 0..20 {
            let list = fs::read_to_string("/sys/kernel/debug/kprobes/list").unwrap_or_default();
            if optimized(&list, &self.name()) {
                return true;
            }
            thread::sleep(Duration::from_millis(100));
        }
        false
    }
}

fn optimized(list: &str, name: &str) -> bool {
    list.lines().any(|line| line.split_whitespace().any(|word| word == name) && line.contains("[OPTIMIZED]"))
}

/// What `iotrace check -o json` says of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The function that is called.
    pub target: String,
    /// The call.
    pub place: Place,
    /// Where iotrace's kprobes are, in the order of the text.
    pub kprobes: Vec<Place>,
}

/// The sites of the running kernel.
///
/// # Errors
/// If iotrace does not tell them.
pub fn sites() -> Result<Vec<Site>> {
    let ended = process::run(&mut process::iotrace(&["check", "-o", "json"]), Duration::from_secs(100));
    let report = serde_json::from_str(&ended.stdout).with_context(|| format!("no report: {ended:?}"))?;
    Ok(parse(&report))
}

fn parse(report: &Value) -> Vec<Site> {
    let probes = report["probes"].as_array().into_iter().flatten();
    let site = |probe: &Value| {
        let word = |key: &str| probe[key].as_str().unwrap_or_default().to_owned();
        let place = Place::parse(&word("site"))?;
        let kprobes = probe["kprobes"].as_array().into_iter().flatten();
        let kprobes = kprobes.filter_map(|kprobe| Place::parse(kprobe["at"].as_str()?)).collect();
        Some(Site { target: word("target"), place, kprobes })
    };
    probes.filter_map(site).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back() {
        let place = Place::parse("vfs_readv+0xcf [module]").unwrap();
        assert_eq!(place, Place { function: "vfs_readv".into(), offset: 0xcf });
        assert_eq!(
            (place.name().as_str(), place.after().name().as_str()),
            ("vfs_readv+0xcf", "vfs_readv+0xd4")
        );
        for text in ["", "vfs_readv", "vfs_readv+cf", "vfs_readv+0xg"] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_optimized_probe_is_told_from_a_trap() {
        let list = "ffffffff81 k vfs_readv+0xd4    [OPTIMIZED]\nffffffff82 k vfs_readv+0xcf\n";
        assert!(optimized(list, "vfs_readv+0xd4"));
        assert!(!optimized(list, "vfs_readv+0xcf") && !optimized(list, "vfs_readv+0xd"));
    }

    #[test]
    fn sites_are_what_check_lists() {
        let probe = |site: &str| serde_json::json!({"target": "import_iovec", "site": site, "kprobes": [{"at": "a+0x6"}]});
        let sites = parse(&serde_json::json!({"probes": [probe("a+0x1"), probe("")]}));
        assert_eq!(sites.len(), 1);
        assert_eq!((sites[0].place.offset, sites[0].kprobes[0].offset), (1, 6));
    }
}
