//! What this process itself takes, as the kernel tells it: its memory, its time, its files, and how long its start took.

use std::{collections::BTreeMap, fs, time::Duration};

/// What the daemon takes. What could not be read is absent, not zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// How long it took to read all totals for this scrape.
    pub read: Duration,
    /// Bytes of each of the kernel side's maps, by its name, as the kernel counts them.
    pub maps: BTreeMap<String, u64>,
    /// How long each part of the start took, as far as it has come: see `iotrace_start_seconds`.
    pub start: BTreeMap<&'static str, Duration>,
    /// The release of the running kernel; empty if it is not known.
    pub release: String,
    /// The process.
    pub process: Process,
}

/// What every process can tell of itself, under the names that all exporters use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time of all threads, in user space and in the kernel.
    pub cpu: Option<Duration>,
    /// Bytes in memory, those of the mapped maps included.
    pub resident: Option<u64>,
    /// Bytes of address space.
    pub mapped: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Descriptors.
    pub open_files: Option<u64>,
    /// The limit of descriptors.
    pub most_files: Option<u64>,
    /// When it was started, since 1970.
    pub started: Option<Duration>,
}

impl Process {
    /// This process, at this instant.
    pub fn now() -> Process {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut own = Process::parse(&text("/proc/self/stat"), &text("/proc/stat"), hertz(), page());
        own.open_files = fs::read_dir("/proc/self/fd").ok().map(|files| {
            // The one that this takes is not counted.
            files.count().saturating_sub(1) as u64
        });
        own.most_files = open_files_limit(&text("/proc/self/limits"));
        own
    }

    /// From `/proc/PID/stat` and `/proc/stat` (Documentation/filesystems/proc.rst), the ticks in a second and the bytes
    /// of a page.
    fn parse(stat: &str, system: &str, hertz: u64, page: u64) -> Process {
        // The name is in parentheses and may hold anything, parentheses too.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_ascii_whitespace().collect())
            .unwrap_or_default();
        // Fields are numbered from 1; the first behind the name is number 3.
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
        let ticks = |ticks: u64| Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / hertz.max(1)));
        let boot = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
        Process {
            cpu: field(14).zip(field(15)).map(|(user, kernel)| ticks(user.saturating_add(kernel))),
            resident: field(24).map(|pages| pages.saturating_mul(page)),
            mapped: field(23),
            threads: field(20),
            started: field(22).zip(boot).map(|(start, boot)| Duration::from_secs(boot) + ticks(start)),
            ..Process::default()
        }
    }
}

/// The soft limit in `/proc/PID/limits`; `None` where there is none.
fn open_files_limit(limits: &str) -> Option<u64> {
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_ascii_whitespace().next()?.parse().ok())
}

fn hertz() -> u64 {
    // SAFETY: only asks.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.try_into().unwrap_or(100)
}

fn page() -> u64 {
    // SAFETY: only asks.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "1203 (odd) name) S 1 1203 1203 0 -1 4194560 2034 0 12 0 250 50 0 0 20 0 3 0 4200 \
                        22335488 3171 18446744073709551615 1 1 0 0 0 0 0 4096 17666 0 0 0 17 1 0 0 0 0 0\n";
    const SYSTEM: &str = "cpu  10 0 10 100 0 0 0 0 0 0\nctxt 5\nbtime 1700000000\nprocesses 9\n";

    #[test]
    fn fields_are_those_of_the_manual() {
        let own = Process::parse(STAT, SYSTEM, 100, 4096);
        assert_eq!(own.cpu, Some(Duration::from_secs(3)));
        assert_eq!(own.threads, Some(3));
        assert_eq!(own.started, Some(Duration::from_secs(1_700_000_042)));
        assert_eq!((own.mapped, own.resident), (Some(22_335_488), Some(3171 * 4096)));
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        assert_eq!(Process::parse("", "", 100, 4096), Process::default());
        assert_eq!(Process::parse("1 (x) S 2 3", "btime x\n", 0, 0), Process::default());
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files_limit(limits), Some(1024));
        assert_eq!(open_files_limit(&limits.replace("1024 ", "unlimited ")), None);
    }

    #[test]
    fn this_process_tells_all() {
        let own = Process::now();
        assert!(own.cpu.is_some() && own.threads >= Some(1) && own.started.is_some());
        assert!(own.resident.is_some_and(|bytes| own.mapped > Some(bytes) && bytes > 1 << 20));
        assert!(own.open_files.is_some_and(|files| (3..10_000).contains(&files)));
    }
}
