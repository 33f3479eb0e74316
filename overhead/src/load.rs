//! The loads, and how many instructions one call of each takes.

use std::{ffi::CStr, io, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

/// Calls in a batch: long enough for the few interrupts in it not to matter.
const CALLS: u32 = 20_000;
/// The best of these counts: what else the guest does only ever adds.
const BATCHES: u32 = 4;
/// What each call reads.
const BYTES: usize = 64;

/// A system call that is made again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// `readv(2)` of /dev/null: an import, and nothing that walks.
    Import,
    /// `readv(2)` of 64 bytes of /dev/zero: an import and a walk.
    Both,
    /// `pread(2)` of 64 bytes of a file in memory: a walk, and no import.
    Walk,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 3] = [Load::Import, Load::Both, Load::Walk];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Load::Import => "import",
            Load::Both => "both",
            Load::Walk => "walk",
        }
    }

    fn open(self) -> Result<i32> {
        let open = |path: &CStr| {
            // SAFETY: the path ends with a zero.
            unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) }
        };
        let file = match self {
            Load::Import => open(c"/dev/null"),
            Load::Both => open(c"/dev/zero"),
            Load::Walk => {
                let file = in_memory();
                let content = [1u8; 4096];
                // SAFETY: the buffer is as long as is said.
                if file >= 0 && unsafe { libc::write(file, content.as_ptr().cast(), content.len()) } != 4096 {
                    bail!("cannot write a file in memory: {}", io::Error::last_os_error());
                }
                file
            }
        };
        if file < 0 {
            return Err(io::Error::last_os_error()).context("cannot open what the load reads");
        }
        Ok(file)
    }

    /// Nanoseconds for a call; instructions where guest time is that.
    ///
    /// # Errors
    /// If the calls do not do what they should.
    pub fn measure(self) -> Result<f64> {
        let file = self.open()?;
        let mut buffer = [0u8; BYTES];
        let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BYTES };
        let expected = if self == Load::Import { 0 } else { BYTES as isize };
        let once = || {
            // SAFETY: the vector is one buffer of this length, which nothing else uses.
            unsafe {
                match self {
                    Load::Import | Load::Both => libc::readv(file, &raw const vector, 1),
                    Load::Walk => libc::pread(file, vector.iov_base, BYTES, 0),
                }
            }
        };
        let mut best = f64::MAX;
        for _ in 0..BATCHES {
            let started = now();
            for _ in 0..CALLS {
                if once() != expected {
                    bail!("{self:?}: a call failed: {}", io::Error::last_os_error());
                }
            }
            best = best.min((now() - started).as_nanos() as f64 / f64::from(CALLS));
        }
        // SAFETY: our own descriptor, used no more.
        unsafe { libc::close(file) };
        Ok(best)
    }
}

/// A new file in the page cache alone: of a ramfs, which is read as those of disks are (`filemap_read`); without the
/// right to mount one, of a tmpfs, which has a function of its own.
fn in_memory() -> i32 {
    // SAFETY: the names end with a zero.
    unsafe {
        libc::mkdir(c"/ramfs".as_ptr(), 0o700);
        let mounted =
            libc::mount(c"none".as_ptr(), c"/ramfs".as_ptr(), c"ramfs".as_ptr(), 0, std::ptr::null()) == 0;
        if mounted {
            libc::open(c"/ramfs/walk".as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600)
        } else {
            libc::memfd_create(c"walk".as_ptr(), 0)
        }
    }
}

/// `CLOCK_MONOTONIC`, of which an `Instant` is made, too.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes where it is told, and exists everywhere.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_works_here() {
        for load in Load::ALL {
            assert!(load.measure().unwrap() > 0.0);
        }
    }
}
