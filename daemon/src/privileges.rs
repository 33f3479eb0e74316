//! What the process may do: limits raised before the probes are loaded, capabilities given up when they are
//! attached.

use caps::{CapSet, Capability};

/// Raises the soft limit of open files, if it is below `files` and as far as the hard one allows.
pub fn allow_files(files: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to `limit`, which outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known && limit.rlim_cur < files {
        limit.rlim_cur = files.min(limit.rlim_max);
        // SAFETY: reads `limit`, which outlives the call. Where it is not enough, attaching says so.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Lifts the limit of locked memory: kernels before 5.11 account maps to it.
pub fn allow_locked_memory() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads `limit`, which outlives the call. Where it may not be lifted, loading says so.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
}

/// What reading the kernel's symbols and text and setting probes takes, see packaging/iotrace.service.
const NEEDED: [Capability; 6] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYSLOG,
    Capability::CAP_SYS_RAWIO,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_SYS_ADMIN,
];

/// Gives up every capability of the calling thread but those that setting more probes takes.
pub fn keep() {
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        if let Err(error) = caps::clear(None, set) {
            log::debug!("capabilities stay in the {set:?} set: {error}");
        }
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        let kept =
            caps::read(None, set).map(|held| NEEDED.into_iter().filter(|one| held.contains(one)).collect());
        if let Err(error) = kept.and_then(|kept| caps::set(None, set, &kept)) {
            log::debug!("capabilities stay in the {set:?} set: {error}");
        }
    }
}

/// Gives up every capability of the calling thread, for good. What cannot be given up is logged.
pub fn drop_all() {
    // Inheritable before permitted: it may not hold what permitted has not.
    for set in [CapSet::Ambient, CapSet::Bounding, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted]
    {
        if let Err(error) = caps::clear(None, set) {
            log::debug!("capabilities stay in the {set:?} set: {error}");
        }
    }
}
