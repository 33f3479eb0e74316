//! What the kernel refuses, in the reader's words.

use std::{error::Error as StdError, io};

use aya::programs::ProgramError;
use thiserror::Error;

use crate::kernel;

/// Why nothing can be probed; each with what to do.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ProbesError {
    #[error("the kernel side cannot be loaded: {reason}; {remedy}")]
    Load { reason: String, remedy: &'static str },
    #[error("the kernel side has no {0}: this binary is broken, build it anew")]
    Missing(&'static str),
    #[error("map {name} cannot be mapped into memory: {error}")]
    Share { name: &'static str, error: io::Error },
    #[error(
        "{functions} functions with {kinds} kinds of iterator are more than this version of iotrace has room for"
    )]
    Pairs { functions: usize, kinds: usize },
    #[error("{0}; iotrace needs a kernel with CONFIG_KPROBE_EVENTS, and its own /sys")]
    KprobeType(String),
}

/// The verifier's last complaint, if it was the verifier that refused.
fn verdict(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ProgramError::LoadError { verifier_log, .. }) = error.downcast_ref() {
            let log = verifier_log.to_string();
            log::debug!("{log}");
            return complaint(&log).map(str::to_owned);
        }
        next = error.source();
    }
    None
}

/// The last error of the chain: the kernel's.
fn root(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The line that matters of a verifier log: the last before its statistics.
fn complaint(log: &str) -> Option<&str> {
    let statistics = ["verification time", "stack depth", "processed "];
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.rev().find(|line| !statistics.iter().any(|start| line.starts_with(start)))
}

fn system_error(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// What a raw tracepoint that the kernel does not have is refused with.
pub(super) const NO_TRACEPOINT: &str = "this kernel has no such tracepoint";

/// Why a site cannot be probed, in a line.
pub(super) fn explain(error: &(dyn StdError + 'static)) -> String {
    if let Some(complaint) = verdict(error) {
        return format!("the verifier says: {complaint}");
    }
    match system_error(error) {
        Some(libc::EINVAL) => "the kernel refuses a probe there: its function is notrace".into(),
        Some(libc::EBUSY) => "the function has no place for fentry (it is notrace)".into(),
        Some(libc::EILSEQ) => "not an instruction's first byte (the text changed since it was read)".into(),
        Some(libc::EPERM | libc::EACCES) => match kernel::perf_event_paranoid() {
            // Debian's and Ubuntu's own level: it asks for more than CAP_PERFMON.
            Some(level @ 3..) => format!(
                "not permitted: kernel.perf_event_paranoid is {level}; grant CAP_SYS_ADMIN, or set it to 2"
            ),
            _ => "not permitted: grant CAP_PERFMON".into(),
        },
        Some(libc::ENOENT) => NO_TRACEPOINT.into(),
        Some(libc::EMFILE) => "too many open files: raise the limit (ulimit -n)".into(),
        _ => root(error),
    }
}

/// Why nothing can be loaded, and what to do.
pub(super) fn refused(error: &(dyn StdError + 'static)) -> ProbesError {
    const REPORT: &str = "please report it with the output of `iotrace check`";
    if let Some(complaint) = verdict(error) {
        return ProbesError::Load { reason: format!("the verifier says: {complaint}"), remedy: REPORT };
    }
    let remedy = match system_error(error) {
        Some(libc::EPERM | libc::EACCES) => match kernel::lockdown().as_deref() {
            Some("confidentiality") => {
                "lockdown=confidentiality forbids it: boot with lockdown=integrity or none"
            }
            _ => {
                "run as root, or grant CAP_BPF and CAP_PERFMON (before 5.11 also `ulimit -l unlimited`); if you have them, a policy of this host forbids tracing programs"
            }
        },
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n, LimitNOFILE=)",
        Some(libc::ENOMEM) => "there is not enough memory for the maps",
        Some(libc::ENOSYS) => "this kernel is built without CONFIG_BPF_SYSCALL",
        _ => REPORT,
    };
    ProbesError::Load { reason: root(error), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_is_quoted_without_its_statistics() {
        let log = "175: (0f) r3 += r1\n177: (79) r1 = *(u64 *)(r3 +0)\ndereference of modified ctx ptr R3 off=104 disallowed\n\
                   verification time 7563 usec\nstack depth 8\nprocessed 85 insns (limit 1000000)\n\n";
        assert_eq!(complaint(log), Some("dereference of modified ctx ptr R3 off=104 disallowed"));
        assert_eq!(complaint("processed 0 insns"), None);
    }

    #[test]
    fn a_refusal_names_what_to_grant() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let text = refused(&error).to_string();
        assert!(text.contains("Operation not permitted") && text.contains("CAP_BPF"), "{text}");
        let text = refused(&io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(text.contains("ulimit -n"), "{text}");
    }
}
