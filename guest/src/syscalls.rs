//! System calls of one process and its children, counted by the kernel's own tracepoints.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A ring of its own for each count, large enough that nothing is overwritten.
const BUFFER_KB: &str = "8192";

/// Counts the system calls of a process, and of its children from their start on, until dropped.
#[derive(Debug)]
pub struct Syscalls(PathBuf);

impl Syscalls {
    /// Counts these calls, of nobody yet.
    ///
    /// # Panics
    /// If the kernel cannot.
    pub fn of(calls: &[&str]) -> Syscalls {
        let this = Syscalls(Path::new("/sys/kernel/tracing/instances/syscalls").into());
        fs::create_dir(&this.0).unwrap_or_else(|error| panic!("{}: {error}", this.0.display()));
        this.write("buffer_size_kb", BUFFER_KB);
        this.write("options/event-fork", "1");
        // Nobody until a process writes its own number.
        this.write("set_event_pid", &std::process::id().to_string());
        for call in calls {
            this.write(&format!("events/syscalls/sys_enter_{call}/enable"), "1");
        }
        this
    }

    /// What a shell runs to be counted from then on.
    pub fn enter(&self) -> String {
        format!("echo $$ >{}/set_event_pid", self.0.display())
    }

    /// How often each call was made; without those that were not.
    ///
    /// # Panics
    /// If the kernel does not tell, or has lost some.
    pub fn counted(&self) -> BTreeMap<String, u64> {
        for stats in fs::read_dir(self.0.join("per_cpu")).expect("every processor has a ring").flatten() {
            let stats = self.read(&stats.path().join("stats"));
            for lost in ["overrun", "dropped events"] {
                assert!(stats.lines().any(|line| line == format!("{lost}: 0")), "{lost} in {stats}");
            }
        }
        let mut counted = BTreeMap::new();
        let trace = self.read(&self.0.join("trace"));
        for line in trace.lines().filter(|line| !line.starts_with('#')) {
            let call = line.split_once(": sys_").and_then(|(_, rest)| Some(rest.split_once('(')?.0));
            let call = call.unwrap_or_else(|| panic!("no system call: {line}"));
            *counted.entry(call.to_owned()).or_default() += 1;
        }
        counted
    }

    fn read(&self, path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn write(&self, file: &str, value: &str) {
        let path = self.0.join(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Syscalls {
    fn drop(&mut self) {
        let _in_use = fs::remove_dir(&self.0);
    }
}
