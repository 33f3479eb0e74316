//! The loads, and how many instructions one call of each takes.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

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
    /// `vmsplice(2)` of one empty segment: an import in a function of which only the whole can be probed.
    Splice,
    /// `recv(2)` of 64 bytes that stay in a socket: a walk from a function that is itself probed as a whole.
    Peek,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 5] = [Load::Import, Load::Both, Load::Walk, Load::Splice, Load::Peek];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Load::Import => "import",
            Load::Both => "both",
            Load::Walk => "walk",
            Load::Splice => "splice",
            Load::Peek => "peek",
        }
    }

    /// What it calls upon, and what must stay open as long.
    fn open(self) -> Result<[OwnedFd; 2]> {
        let device = |path| Ok::<OwnedFd, io::Error>(File::open(path)?.into());
        let files = match self {
            Load::Import => [device("/dev/null")?, device("/dev/null")?],
            Load::Both => [device("/dev/zero")?, device("/dev/null")?],
            Load::Walk => {
                let mut file = in_memory()?;
                file.write_all(&[1; 4096]).context("cannot write a file in memory")?;
                [file.into(), device("/dev/null")?]
            }
            Load::Splice => {
                let (reader, writer) = io::pipe()?;
                [writer.into(), reader.into()]
            }
            Load::Peek => {
                let (reader, mut writer) = UnixStream::pair()?;
                writer.write_all(&[1; BYTES])?;
                [reader.into(), writer.into()]
            }
        };
        Ok(files)
    }

    /// Nanoseconds for a call; instructions where guest time is that.
    ///
    /// # Errors
    /// If the calls do not do what they should.
    pub fn measure(self) -> Result<f64> {
        let files = self.open().context("cannot open what the load calls upon")?;
        let file = files[0].as_raw_fd();
        let mut buffer = [0u8; BYTES];
        let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BYTES };
        let empty = libc::iovec { iov_len: 0, ..vector };
        let expected = if matches!(self, Load::Import | Load::Splice) { 0 } else { BYTES as isize };
        let once = || {
            // SAFETY: the vector is one buffer of this length, which nothing else uses.
            unsafe {
                match self {
                    Load::Import | Load::Both => libc::readv(file, &raw const vector, 1),
                    Load::Walk => libc::pread(file, vector.iov_base, BYTES, 0),
                    Load::Splice => libc::vmsplice(file, &raw const empty, 1, 0),
                    Load::Peek => libc::recv(file, vector.iov_base, BYTES, libc::MSG_PEEK),
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
        Ok(best)
    }
}

/// A new file in the page cache alone: of a ramfs, which is read as those of disks are (`filemap_read`); without the
/// right to mount one, of a tmpfs, which has a function of its own.
fn in_memory() -> Result<File> {
    const FOLDER: &CStr = c"/ramfs";
    // SAFETY: the names end with a zero.
    let mounted = unsafe {
        libc::mkdir(FOLDER.as_ptr(), 0o700);
        libc::mount(c"none".as_ptr(), FOLDER.as_ptr(), c"ramfs".as_ptr(), 0, std::ptr::null()) == 0
    };
    if mounted {
        let mut options = File::options();
        return options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open("/ramfs/walk")
            .context("/ramfs/walk");
    }
    // SAFETY: the name ends with a zero.
    let file = unsafe { libc::memfd_create(c"walk".as_ptr(), 0) };
    if file < 0 {
        return Err(io::Error::last_os_error()).context("no file in memory");
    }
    // SAFETY: a new descriptor that nothing else has.
    Ok(unsafe { File::from_raw_fd(file) })
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
