//! What the kernel holds, and what can be hidden of it.

use std::{
    ffi::CString,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use crate::process::{content, eventually};

/// The running kernel's version, such as (6, 12).
///
/// # Panics
/// If it has none.
pub fn version() -> (u32, u32) {
    let release = content("/proc/sys/kernel/osrelease");
    let mut numbers = release.split('.').map(|number| number.trim().parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => panic!("a kernel without a version: {release}"),
    }
}

/// What a tracer may leave behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Loaded programs.
    pub programs: usize,
    /// Maps.
    pub maps: usize,
    /// Links.
    pub links: usize,
    /// Types loaded with programs and maps.
    pub types: usize,
    /// Lines of the list of kprobes.
    pub kprobes: Vec<String>,
    /// Lines of the list of kprobe events.
    pub events: Vec<String>,
    /// Descriptors of this process.
    pub own_files: usize,
}

impl Held {
    /// What the kernel holds now.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn now() -> Held {
        mount_once("debugfs", "/sys/kernel/debug", "/sys/kernel/debug/kprobes");
        mount_once("tracefs", "/sys/kernel/tracing", "/sys/kernel/tracing/kprobe_events");
        // BPF_PROG_GET_NEXT_ID, BPF_MAP_GET_NEXT_ID, BPF_LINK_GET_NEXT_ID, BPF_BTF_GET_NEXT_ID.
        let [programs, maps, links, types] = [11, 12, 31, 23].map(objects);
        let lines = |path| {
            let mut lines: Vec<String> = content(path).lines().map(String::from).collect();
            lines.sort_unstable();
            lines
        };
        Held {
            programs,
            maps,
            links,
            types,
            kprobes: lines("/sys/kernel/debug/kprobes/list"),
            events: lines("/sys/kernel/tracing/kprobe_events"),
            own_files: files(std::process::id()),
        }
    }
}

impl Held {
    /// What the kernel holds when what ended before this has been freed.
    pub fn settled() -> Held {
        let mut held = Held::now();
        let mut since = Instant::now();
        eventually(Duration::from_secs(20), || {
            let now = Held::now();
            if now != held {
                (held, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_secs(3)
        });
        held
    }

    /// What is held now and was not before, in words.
    pub fn beyond(&self, before: &Held) -> Vec<String> {
        let numbers = |held: &Held| {
            [
                ("programs", held.programs),
                ("maps", held.maps),
                ("links", held.links),
                ("types", held.types),
                ("descriptors of our own", held.own_files),
            ]
        };
        let more =
            numbers(self).into_iter().zip(numbers(before)).filter(|((_, now), (_, before))| now > before);
        let more = more.map(|((what, now), (_, before))| format!("{} {what}", now - before));
        let new = |now: &[String], before: &[String]| -> Vec<String> {
            now.iter().filter(|line| !before.contains(line)).cloned().collect()
        };
        more.chain(new(&self.kprobes, &before.kprobes)).chain(new(&self.events, &before.events)).collect()
    }
}

/// Descriptors that a process has open, the one that this needs included for this process.
///
/// # Panics
/// If there is no such process.
pub fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("a process that runs").count()
}

/// The number of objects of a kind that the kernel holds.
fn objects(next_id: usize) -> usize {
    let mut number = 0;
    // `start_id`, `next_id`, `open_flags` of `union bpf_attr`.
    let mut attributes = [0u32; 4];
    loop {
        // SAFETY: the kernel reads and writes the attributes, no more than it is told they have.
        let failed = unsafe {
            libc::syscall(libc::SYS_bpf, next_id, attributes.as_mut_ptr(), size_of_val(&attributes))
        } != 0;
        if failed {
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "bpf({next_id}): {error}");
            return number;
        }
        number += 1;
        attributes[0] = attributes[1];
    }
}

fn mount_once(file_system: &str, at: &str, sign: &str) {
    if !Path::new(sign).exists() {
        mount(file_system, at, file_system, 0).unwrap_or_else(|error| panic!("cannot mount {at}: {error}"));
    }
}

fn mount(source: &str, target: &str, file_system: &str, flags: libc::c_ulong) -> io::Result<()> {
    let [source, target, file_system] = [source, target, file_system].map(c_string);
    let (source, target, file_system) = (source.as_ptr(), target.as_ptr(), file_system.as_ptr());
    // SAFETY: three C strings, and no data.
    match unsafe { libc::mount(source, target, file_system, flags, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("a path without a zero byte")
}

/// Something of the kernel that is hidden until this is dropped.
#[derive(Debug)]
pub struct Hidden(CString);

impl Hidden {
    /// Puts an empty folder over this one.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn folder(path: &str) -> Hidden {
        mount("none", path, "tmpfs", 0).unwrap_or_else(|error| panic!("cannot hide {path}: {error}"));
        Hidden(c_string(path))
    }

    /// Puts this file over that one.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn file(path: &str, by: &str) -> Hidden {
        mount(by, path, "none", libc::MS_BIND).unwrap_or_else(|error| panic!("cannot hide {path}: {error}"));
        Hidden(c_string(path))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // SAFETY: a C string.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

/// A setting of the kernel, in a file, that is put back when dropped.
#[derive(Debug)]
pub struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    /// Sets it.
    ///
    /// # Panics
    /// If it cannot be set.
    pub fn set(path: &'static str, value: &str) -> Setting {
        let before = content(path);
        fs::write(path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
        Setting { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _nothing_to_do_about_it = fs::write(self.path, self.before.trim());
    }
}
