//! A second source: the kernel's own count of system calls, by its tracepoints `syscalls:sys_enter_*`, without a
//! program of ours.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    os::fd::FromRawFd as _,
};

use crate::kernel;

/// The system calls that import.
const CALLS: &[&str] = &[
    "readv",
    "writev",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "sendmsg",
    "recvmsg",
    "sendmmsg",
    "recvmmsg",
    "vmsplice",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "keyctl",
    "io_submit",
    "io_uring_enter",
];

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// `perf_event_attr.inherit`: children count, too.
const INHERIT: u64 = 1 << 1;

/// The first version of `struct perf_event_attr` (include/uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Counters of this thread and of the children that it starts.
pub struct Counters(Result<BTreeMap<&'static str, File>, String>);

/// Whether the kernel's count is that of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// There is nothing to compare: the kernel leaves out calls of 32 bits.
    Unknown,
    /// There is no second source, and why.
    Absent(String),
    /// It is.
    Agrees(String),
    /// It is not.
    Disagrees(String),
}

impl Agreement {
    /// In JSON.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Agreement::Unknown | Agreement::Absent(_) => None,
            Agreement::Agrees(_) => Some("agree"),
            Agreement::Disagrees(_) => Some("disagree"),
        }
    }

    /// Why there is no second source.
    pub fn absent(&self) -> Option<&str> {
        if let Agreement::Absent(why) = self { Some(why) } else { None }
    }
}

impl Counters {
    /// Counts from now on.
    pub fn open() -> Counters {
        let opened: Vec<_> = CALLS.iter().map(|&call| open(call).map(|counter| (call, counter))).collect();
        // A kernel may lack one or another; if it lacks all, there is one reason.
        match opened.first() {
            Some(Err(why)) if opened.iter().all(Result::is_err) => Counters(Err(why.clone())),
            _ => Counters(Ok(opened.into_iter().flatten().collect())),
        }
    }

    /// What has been counted.
    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        let Ok(counters) = &self.0 else { return BTreeMap::new() };
        let values = counters.iter().filter_map(|(&call, mut counter)| {
            let mut value = [0; 8];
            counter.read_exact(&mut value).ok()?;
            Some((call, u64::from_ne_bytes(value)))
        });
        values.collect()
    }

    /// Whether since `before` there were so many calls.
    pub fn compare(&self, before: &BTreeMap<&'static str, u64>, made: &BTreeMap<String, u64>) -> Agreement {
        match &self.0 {
            Err(why) => Agreement::Absent(why.clone()),
            Ok(_) => agreement(before, &self.read(), made),
        }
    }
}

fn agreement(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
    made: &BTreeMap<String, u64>,
) -> Agreement {
    let counted = |call: &str| {
        let [before, after] = [before, after].map(|counts| counts.get(call).copied().unwrap_or(0));
        after.saturating_sub(before)
    };
    let wrong = made.iter().find(|(call, calls)| counted(call) != **calls);
    match (wrong, made.is_empty()) {
        (Some((call, calls)), _) => Agreement::Disagrees(format!(
            "sys_enter_{call} {} disagrees, the load made {calls}",
            counted(call)
        )),
        (None, true) => Agreement::Unknown,
        (None, false) => {
            let all: Vec<_> = made.iter().map(|(call, calls)| format!("sys_enter_{call} {calls}")).collect();
            Agreement::Agrees(format!("{} agrees", all.join(" and ")))
        }
    }
}

fn open(call: &str) -> Result<File, String> {
    let name = format!("sys_enter_{call}");
    let config = kernel::tracepoint("syscalls", &name)?;
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config,
        flags: INHERIT,
        ..Attributes::default()
    };
    let attributes = &raw const attributes;
    // SAFETY: the kernel reads as many bytes as `size` says, and returns a descriptor that is ours.
    unsafe {
        let counter =
            libc::syscall(libc::SYS_perf_event_open, attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC) as i32;
        if counter < 0 {
            return Err(format!("perf_event_open of {name}: {}", io::Error::last_os_error()));
        }
        Ok(File::from_raw_fd(counter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_agrees_if_each_call_has_its_number() {
        let before = BTreeMap::from([("readv", 5), ("writev", 1)]);
        let after = BTreeMap::from([("readv", 8), ("writev", 3)]);
        let compare = |made: &[(&str, u64)]| {
            let made = made.iter().map(|&(call, calls)| (call.to_owned(), calls)).collect();
            agreement(&before, &after, &made)
        };
        assert_eq!(compare(&[]), Agreement::Unknown);
        let text = "sys_enter_readv 3 and sys_enter_writev 2 agrees";
        assert_eq!(compare(&[("readv", 3), ("writev", 2)]), Agreement::Agrees(text.into()));
        let text = "sys_enter_writev 2 disagrees, the load made 9";
        assert_eq!(compare(&[("readv", 3), ("writev", 9)]), Agreement::Disagrees(text.into()));
    }
}
