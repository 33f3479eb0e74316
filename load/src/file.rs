//! Reading and writing files at one place again and again.

use std::{fs::OpenOptions, os::fd::OwnedFd};

use anyhow::{Context as _, Result, ensure};
use libc::c_long;

use crate::{
    abi::{Abi, Call, PREADV, PREADV2, PWRITEV, PWRITEV2, READV, WRITEV},
    memory::{Vector, memory_file},
    sys::{call, number},
    tally::Tally,
    work::{Setup, Work},
};

/// Opens what the options name, or makes a file in memory; at least as long as one call needs.
pub fn open(setup: &Setup) -> Result<OwnedFd> {
    let length = setup.length();
    let Some(path) = &setup.file else {
        return memory_file(length).context("cannot make a file in memory");
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let known = file.metadata().context("cannot tell what the file is")?;
    if known.is_file() && known.len() < length as u64 {
        file.set_len(length as u64).context("cannot make the file long enough")?;
    }
    Ok(file.into())
}

/// A vectored call. All six have the same arguments, of which the kernel takes as many as it needs:
/// descriptor, array, segments, position (low, high), flags.
struct Vectored {
    abi: Abi,
    call: Call,
    file: OwnedFd,
    vector: Vector,
}

impl Work for Vectored {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let arguments = [number(&self.file), self.vector.array(), self.vector.segments(), 0, 0, 0];
        // SAFETY: the vector describes memory of its own.
        unsafe { self.vector.import(self.abi, self.call, arguments, tally) }?;
        if self.call == READV || self.call == WRITEV { rewind(&self.file) } else { Ok(()) }
    }
}

/// A call with one buffer: descriptor, buffer, length, position.
struct Plain {
    name: &'static str,
    call: c_long,
    file: OwnedFd,
    buffer: Vector,
}

impl Work for Plain {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let arguments = [number(&self.file), self.buffer.data(), self.buffer.length(), 0];
        // SAFETY: the buffer is as long as is said.
        let bytes = unsafe { call(self.call, arguments) }?;
        ensure!(bytes == self.buffer.length(), "{bytes} bytes instead of {}", self.buffer.length());
        tally.plain(self.name, bytes);
        if [libc::SYS_read, libc::SYS_write].contains(&self.call) { rewind(&self.file) } else { Ok(()) }
    }
}

/// Back to the start after a call that moves the position.
fn rewind(file: &OwnedFd) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { call(libc::SYS_lseek, [number(file), 0, libc::SEEK_SET as usize]) }?;
    Ok(())
}

/// More segments than the import allows.
struct TooMany {
    abi: Abi,
    file: OwnedFd,
    vector: Vector,
}

impl Work for TooMany {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let arguments = [number(&self.file), self.vector.array(), self.vector.segments()];
        // SAFETY: the vector describes memory of its own.
        let result = unsafe { self.abi.call(READV, arguments) };
        let error = result.as_ref().err().and_then(std::io::Error::raw_os_error);
        ensure!(error == Some(libc::EINVAL), "{result:?} instead of EINVAL");
        tally.made(self.abi, READV.name);
        tally.refused(READV.name, self.vector.segments());
        Ok(())
    }
}

fn vectored(call: Call, setup: &Setup) -> Result<Box<dyn Work>> {
    Ok(Box::new(Vectored { abi: setup.abi, call, file: open(setup)?, vector: setup.vector()? }))
}

fn plain(name: &'static str, call: c_long, setup: &Setup) -> Result<Box<dyn Work>> {
    let setup = setup.plain();
    Ok(Box::new(Plain { name, call, file: open(&setup)?, buffer: setup.vector()? }))
}

/// `readv(2)`.
pub fn readv(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(READV, setup)
}

/// `writev(2)`.
pub fn writev(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(WRITEV, setup)
}

/// `preadv(2)`.
pub fn preadv(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(PREADV, setup)
}

/// `pwritev(2)`.
pub fn pwritev(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(PWRITEV, setup)
}

/// `preadv2(2)`.
pub fn preadv2(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(PREADV2, setup)
}

/// `pwritev2(2)`.
pub fn pwritev2(setup: &Setup) -> Result<Box<dyn Work>> {
    vectored(PWRITEV2, setup)
}

/// `read(2)`.
pub fn read(setup: &Setup) -> Result<Box<dyn Work>> {
    plain("read", libc::SYS_read, setup)
}

/// `write(2)`.
pub fn write(setup: &Setup) -> Result<Box<dyn Work>> {
    plain("write", libc::SYS_write, setup)
}

/// `pread64(2)`.
pub fn pread(setup: &Setup) -> Result<Box<dyn Work>> {
    plain("pread", libc::SYS_pread64, setup)
}

/// `pwrite64(2)`.
pub fn pwrite(setup: &Setup) -> Result<Box<dyn Work>> {
    plain("pwrite", libc::SYS_pwrite64, setup)
}

/// `readv(2)` of an array in the first page, where no process has memory.
pub fn efault(setup: &Setup) -> Result<Box<dyn Work>> {
    readv(&Setup { absent: true, ..setup.clone() })
}

/// `readv(2)` of more segments than the kernel allows.
pub fn einval(setup: &Setup) -> Result<Box<dyn Work>> {
    let setup = Setup { segments: 2000, bytes: 1, absent: false, ..setup.clone() };
    Ok(Box::new(TooMany { abi: setup.abi, file: open(&setup)?, vector: setup.vector()? }))
}
