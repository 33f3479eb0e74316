//! Processes by their ids. The only file that reads what /proc says of a process.

use std::fs;

/// Whether a thread group of this id runs, or ended and was not waited for yet.
pub fn runs(tgid: u32) -> bool {
    fs::exists(format!("/proc/{tgid}")).unwrap_or(true)
}

/// The thread group that a thread belongs to: its own id for a process, `None` if there is no such thread.
pub fn thread_group(id: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs() {
        let own = std::process::id();
        assert!(runs(own) && !runs(u32::MAX));
        assert_eq!((thread_group(own), thread_group(u32::MAX)), (Some(own), None));
    }
}
