//! The running kernel's own account of itself: the only file that reads /proc and /sys for the planner.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use thiserror::Error;

use crate::plan::{
    self, Plan,
    btf::Btf,
    kallsyms::{self, Symbols},
    text::Text,
};

mod kcore;

/// Why the running kernel cannot be read; each with what to do.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum KernelError {
    #[error("cannot read {path}: {error}; {remedy}")]
    Read { path: &'static str, error: io::Error, remedy: String },
    #[error(
        "/proc/kallsyms hides its addresses: run as root or grant CAP_SYSLOG, and set sysctl kernel.kptr_restrict to 0 or 1"
    )]
    Restricted,
    #[error("/proc/{0}; iotrace needs a kernel with CONFIG_KALLSYMS, and its own /proc")]
    Symbols(kallsyms::SymbolsError),
    #[error(
        "/sys/kernel/btf/vmlinux: {0}; iotrace needs a kernel with CONFIG_DEBUG_INFO_BTF, and its own /sys"
    )]
    Btf(plan::btf::BtfError),
    #[error(
        "/proc/{0}; iotrace needs a kernel with CONFIG_PROC_KCORE, its own /proc, and root or CAP_SYS_RAWIO"
    )]
    Kcore(plan::kcore::KcoreError),
    #[error("kprobes are switched off: {KPROBES_ENABLED} is 0, so no probe would ever fire; write 1 to it")]
    KprobesOff,
    #[error("/proc/kcore does not hold the kernel's text at {0:#x}")]
    NoText(u64),
    #[error(
        "/sys/kernel/btf/vmlinux: struct {structure} has no member {path}; this kernel is newer than this version of iotrace"
    )]
    NoMember { structure: &'static str, path: &'static str },
    #[error(
        "struct iov_iter keeps what iotrace needs at offset {0}, farther than it reads; this kernel is newer than this version of iotrace"
    )]
    Layout(u32),
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
}

/// What the daemon must know of this kernel beyond the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What to probe.
    pub plan: Plan,
    /// Offsets in `struct task_struct`.
    pub task: TaskLayout,
    /// Whether programs may call `bpf_task_pt_regs` (≥ 5.15).
    pub has_task_pt_regs: bool,
    /// Whether a probe may carry a word for its program: `bpf_get_attach_cookie` (≥ 5.15).
    pub has_cookies: bool,
    /// How programs may read a `struct iov_iter` by themselves: `bpf_rdonly_cast` (≥ 6.2).
    pub cast: Option<Cast>,
    /// Offsets in `struct iov_iter`.
    pub iter: IterLayout,
    /// Where a cgroup's ancestors are listed by their ids (before 6.0); later there is a helper.
    pub ancestors: Option<AncestorsLayout>,
    /// What does TCP without copies.
    pub zerocopy: plan::zerocopy::Zerocopy,
    /// One more than the highest number a CPU may have.
    pub cpus: u32,
    /// How long it took the kernel to hand out its symbols, types and text.
    pub read: Duration,
    /// How long it took to make facts and a plan of them.
    pub planned: Duration,
}

/// Numbers in the kernel's BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The function `bpf_rdonly_cast`.
    pub call: u32,
    /// `struct iov_iter`.
    pub iter: u32,
}

/// Offsets of members of `struct task_struct`, from BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLayout {
    /// `pid`.
    pub pid: u32,
    /// `tgid`.
    pub tgid: u32,
    /// `stack`.
    pub stack: u32,
    /// `thread_info.status`.
    pub status: u32,
    /// `group_leader`.
    pub group_leader: u32,
    /// `comm`.
    pub comm: u32,
}

/// Offsets of members of `struct iov_iter`, from BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterLayout {
    /// `count`.
    pub count: u32,
    /// `nr_segs`.
    pub nr_segs: u32,
    /// `iov_offset`.
    pub iov_offset: u32,
}

/// Offsets on the way from a task to its cgroup's ancestors, from BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AncestorsLayout {
    /// `cgroups` in `struct task_struct`.
    pub cgroups: u32,
    /// `dfl_cgrp` in `struct css_set`.
    pub cgroup: u32,
    /// `level` in `struct cgroup`.
    pub level: u32,
    /// `ancestor_ids` in `struct cgroup`.
    pub ids: u32,
}

/// Bytes of a `struct iov_iter` that the kernel side reads.
const ITER_READ: u32 = 40;

/// Switches all kprobes off, and with them all that is counted (Documentation/trace/kprobes.rst).
const KPROBES_ENABLED: &str = "/sys/kernel/debug/kprobes/enabled";
const KALLSYMS: &str = "/proc/kallsyms";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const KCORE: &str = "/proc/kcore";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

impl Facts {
    /// Reads the running kernel and plans.
    ///
    /// # Errors
    /// The file that could not be read or understood, and what to do.
    pub fn read() -> Result<Facts, KernelError> {
        if kprobes_enabled() == Some(false) {
            return Err(KernelError::KprobesOff);
        }
        let started = Instant::now();
        let btf = read(BTF)?;
        let kallsyms = read(KALLSYMS)?;
        let read_files = started.elapsed();
        let btf = Btf::parse(&btf).map_err(KernelError::Btf)?;
        let symbols = match Symbols::parse(&kallsyms) {
            Err(kallsyms::SymbolsError::Restricted) => return Err(KernelError::Restricted),
            symbols => symbols.map_err(KernelError::Symbols)?,
        };
        let reading = Instant::now();
        let images = kcore::text(&symbols)?;
        let read_all = read_files + reading.elapsed();
        let text: Vec<Text<'_>> = images
            .iter()
            .map(|image| Text {
                address: image.address,
                bytes: &image.bytes,
                module: image.module.as_deref(),
            })
            .collect();
        let has_task_pt_regs = symbols.address_of("bpf_task_pt_regs").is_some();
        let mut plan = plan::plan(&symbols, &btf, &text)?;
        if let Some(landings) = kcore::landings(&kallsyms, &btf) {
            plan.optimize(&symbols, &text, &landings, has_task_pt_regs);
        }
        let member = |structure: &'static str, path: &'static str| {
            btf.offset_of(structure, path).ok_or(KernelError::NoMember { structure, path })
        };
        let iter = IterLayout {
            count: member("iov_iter", "count")?,
            nr_segs: member("iov_iter", "nr_segs")?,
            iov_offset: member("iov_iter", "iov_offset")?,
        };
        let farthest = iter.count.max(iter.nr_segs).max(iter.iov_offset);
        if farthest > ITER_READ - 8 || plan.iter.kind_offset >= ITER_READ {
            return Err(KernelError::Layout(farthest.max(plan.iter.kind_offset)));
        }
        Ok(Facts {
            plan,
            task: TaskLayout {
                pid: member("task_struct", "pid")?,
                tgid: member("task_struct", "tgid")?,
                stack: member("task_struct", "stack")?,
                status: member("task_struct", "thread_info.status")?,
                group_leader: member("task_struct", "group_leader")?,
                comm: member("task_struct", "comm")?,
            },
            has_task_pt_regs,
            cast: btf
                .function("bpf_rdonly_cast")
                .zip(btf.structure("iov_iter"))
                .map(|(call, iter)| Cast { call, iter }),
            has_cookies: symbols.address_of("bpf_get_attach_cookie_trace").is_some(),
            iter,
            ancestors: btf.offset_of("cgroup", "ancestor_ids").and_then(|ids| {
                Some(AncestorsLayout {
                    cgroups: btf.offset_of("task_struct", "cgroups")?,
                    cgroup: btf.offset_of("css_set", "dfl_cgrp")?,
                    level: btf.offset_of("cgroup", "level")?,
                    ids,
                })
            }),
            zerocopy: plan::zerocopy::find(&btf),
            cpus: possible_cpus(&String::from_utf8_lossy(&read(POSSIBLE)?)),
            read: read_all,
            planned: started.elapsed().saturating_sub(read_all),
        })
    }
}

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// CPUs that work now; 1 where the kernel does not tell.
pub fn online_cpus() -> u32 {
    count(&fs::read_to_string(ONLINE).unwrap_or_default()).max(1)
}

/// CPUs of a list such as `0-3,8`.
fn count(list: &str) -> u32 {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        Some(last.checked_sub(first)?.saturating_add(1))
    });
    ranges.fold(0, u32::saturating_add)
}

/// One more than the highest CPU in a list such as `0-3,8`.
fn possible_cpus(list: &str) -> u32 {
    let highest = list.trim().split([',', '-']).filter_map(|number| number.parse::<u32>().ok()).max();
    highest.unwrap_or(0).saturating_add(1)
}

fn read(path: &'static str) -> Result<Vec<u8>, KernelError> {
    fs::read(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &'static str, error: io::Error) -> KernelError {
    let remedy = match (path, error.kind()) {
        (BTF, io::ErrorKind::NotFound) => {
            "iotrace needs the kernel's own type information: a kernel with CONFIG_DEBUG_INFO_BTF".into()
        }
        (_, io::ErrorKind::PermissionDenied) => match lockdown() {
            Some(level) if level == "confidentiality" => {
                "lockdown=confidentiality forbids it: boot with lockdown=integrity or none".into()
            }
            _ => "run as root, or grant CAP_SYSLOG, CAP_SYS_RAWIO and CAP_DAC_READ_SEARCH".into(),
        },
        (KCORE, io::ErrorKind::NotFound) => {
            "iotrace needs a kernel with CONFIG_PROC_KCORE, and /proc mounted".into()
        }
        (KALLSYMS, io::ErrorKind::NotFound) => {
            "iotrace needs a kernel with CONFIG_KALLSYMS, and /proc mounted".into()
        }
        _ => "are /proc and /sys mounted?".into(),
    };
    KernelError::Read { path, error, remedy }
}

/// The modules whose text is in place, each with its address: two answers differ if one has come or gone. Empty
/// where there are none, or where they cannot be read.
pub fn modules() -> BTreeSet<String> {
    live_modules(&fs::read_to_string("/proc/modules").unwrap_or_default())
}

/// Of lines such as `tun 61440 2 vhost_net, Live 0xffffffffc0a00000`.
fn live_modules(list: &str) -> BTreeSet<String> {
    let live = list.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?;
        let (_, address) = line.split_once(" Live ")?;
        Some(format!("{name} {}", address.split_ascii_whitespace().next()?))
    });
    live.collect()
}

/// The lockdown level in force: `none`, `integrity` or `confidentiality`; `None` where the kernel has none.
pub fn lockdown() -> Option<String> {
    let levels = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = levels.split_once('[')?;
    rest.split_once(']').map(|(level, _)| level.to_owned())
}

/// Whether kprobes fire; `None` where debugfs cannot be read.
pub fn kprobes_enabled() -> Option<bool> {
    fs::read_to_string(KPROBES_ENABLED).ok().map(|enabled| enabled.trim() != "0")
}

/// The kprobes that the kernel has made jumps of, such as `vfs_readv+0xd4`; `None` where debugfs cannot be read.
pub fn optimized_kprobes() -> Option<BTreeSet<String>> {
    fs::read_to_string("/sys/kernel/debug/kprobes/list").ok().map(|list| optimized(&list))
}

/// Of lines such as `ffffffff8140d3e4  k  vfs_readv+0xd4    [OPTIMIZED]`; a module's name would follow the place.
fn optimized(list: &str) -> BTreeSet<String> {
    let lines = list.lines().filter(|line| line.ends_with("[OPTIMIZED]"));
    lines.filter_map(|line| line.split_ascii_whitespace().nth(2)).map(str::to_owned).collect()
}

/// `kernel.perf_event_paranoid`; `None` where it cannot be read.
pub fn perf_event_paranoid() -> Option<i32> {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// The number of a tracepoint, by which the kernel's own counters know it.
///
/// # Errors
/// Why it cannot be read.
pub fn tracepoint(group: &str, name: &str) -> Result<u64, String> {
    const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let read = |folder: &str| {
        let path = format!("{folder}/events/{group}/{name}/id");
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        text.trim().parse().map_err(|_| format!("{path} holds no number"))
    };
    let [first, second] = FOLDERS;
    read(first).or_else(|why| read(second).map_err(|_| why))
}

/// The kernel's release, as `uname -r`.
pub fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Whether the kernel offers its own type information.
pub fn has_btf() -> bool {
    Path::new(BTF).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::kcore::Segments;

    #[test]
    fn a_refusal_names_its_file_once() {
        let kcore = KernelError::Kcore(Segments::parse(b"").unwrap_err());
        let btf = KernelError::Btf(Btf::parse(b"").err().unwrap());
        let symbols = KernelError::Symbols(Symbols::parse(b"").err().unwrap());
        for (error, file, remedy) in [
            (kcore, "kcore", "CONFIG_PROC_KCORE"),
            (btf, "/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"),
            (symbols, "kallsyms", "CONFIG_KALLSYMS"),
        ] {
            let text = format!("{:#}", anyhow::Error::from(error));
            assert_eq!(text.matches(file).count(), 1, "{text}");
            assert!(text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_module_counts_while_it_is_live() {
        let list = "tun 61440 2 vhost_net, Live 0xffffffffc0a00000 (E)\n\
                    xfs 90000 0 - Loading 0xffffffffc0b00000\n\
                    nfs 90000 0 - Live 0x0\nodd\n";
        let live: Vec<String> = live_modules(list).into_iter().collect();
        assert_eq!(live, ["nfs 0x0", "tun 0xffffffffc0a00000"]);
    }

    #[test]
    fn a_kprobe_is_a_jump_or_a_trap() {
        let list = "ffffffff8140d3e4  k  vfs_readv+0xd4    [OPTIMIZED]\n\
                    ffffffff8140d3df  k  vfs_readv+0xcf    \n\
                    ffffffffc0a00000  k  tun_get_user+0x2d0  tun [OPTIMIZED]\nodd\n";
        let jumps: Vec<String> = optimized(list).into_iter().collect();
        assert_eq!(jumps, ["tun_get_user+0x2d0", "vfs_readv+0xd4"]);
    }

    #[test]
    fn the_highest_cpu_counts() {
        assert_eq!(["0", "0-3\n", "0-1,8", "", "x"].map(possible_cpus), [1, 4, 9, 1, 1]);
    }
}
