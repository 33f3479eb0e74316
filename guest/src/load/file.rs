//! Reading and writing files at one place again and again.

use std::{fs::OpenOptions, os::fd::OwnedFd};

use anyhow::{Context as _, Result, ensure};
use libc::c_long;

use super::{Options, Work};
use crate::{
    sys::{Vector, call, memory_file, number},
    tally::Tally,
};

/// Opens what the options name, or makes a file in memory; at least as long as one call needs.
pub fn open(options: &Options) -> Result<OwnedFd> {
    let length = options.segments.saturating_mul(options.bytes);
    let Some(path) = &options.file else {
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
    path: &'static str,
    call: c_long,
    file: OwnedFd,
    vector: Vector,
}

impl Work for Vectored {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let arguments = [number(&self.file), self.vector.array(), self.vector.segments(), 0, 0, 0];
        // SAFETY: the vector describes memory of its own.
        let bytes = unsafe { call(self.call, arguments) }?;
        ensure!(bytes == self.vector.length(), "{bytes} bytes instead of {}", self.vector.length());
        tally.imported(self.path, self.vector.segments(), bytes);
        rewind(&self.file, self.call)
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
        rewind(&self.file, self.call)
    }
}

/// Back to the start after a call that moves the position.
fn rewind(file: &OwnedFd, moved_by: c_long) -> Result<()> {
    if [libc::SYS_readv, libc::SYS_writev, libc::SYS_read, libc::SYS_write].contains(&moved_by) {
        // SAFETY: no memory is involved.
        unsafe { call(libc::SYS_lseek, [number(file), 0, libc::SEEK_SET as usize]) }?;
    }
    Ok(())
}

/// A call that the import refuses.
struct Refused {
    file: OwnedFd,
    array: usize,
    segments: usize,
    error: i32,
    _vector: Option<Vector>,
}

impl Work for Refused {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let arguments = [number(&self.file), self.array, self.segments];
        // SAFETY: the array is either valid or at an address that no process has memory at.
        let error = unsafe { call(libc::SYS_readv, arguments) }.err().and_then(|error| error.raw_os_error());
        ensure!(error == Some(self.error), "error {error:?} instead of {}", self.error);
        tally.refused("readv", self.segments);
        Ok(())
    }
}

fn vectored(path: &'static str, call: c_long, options: &Options) -> Result<Box<dyn Work>> {
    let vector = Vector::new(options.segments, options.bytes)?;
    Ok(Box::new(Vectored { path, call, file: open(options)?, vector }))
}

fn plain(name: &'static str, call: c_long, options: &Options) -> Result<Box<dyn Work>> {
    let buffer = Vector::new(1, options.bytes)?;
    Ok(Box::new(Plain { name, call, file: open(options)?, buffer }))
}

/// `readv(2)`.
pub fn readv(options: &Options) -> Result<Box<dyn Work>> {
    vectored("readv", libc::SYS_readv, options)
}

/// `writev(2)`.
pub fn writev(options: &Options) -> Result<Box<dyn Work>> {
    vectored("writev", libc::SYS_writev, options)
}

/// `preadv(2)`.
pub fn preadv(options: &Options) -> Result<Box<dyn Work>> {
    vectored("preadv", libc::SYS_preadv, options)
}

/// `pwritev(2)`.
pub fn pwritev(options: &Options) -> Result<Box<dyn Work>> {
    vectored("pwritev", libc::SYS_pwritev, options)
}

/// `preadv2(2)`.
pub fn preadv2(options: &Options) -> Result<Box<dyn Work>> {
    vectored("preadv2", libc::SYS_preadv2, options)
}

/// `pwritev2(2)`.
pub fn pwritev2(options: &Options) -> Result<Box<dyn Work>> {
    vectored("pwritev2", libc::SYS_pwritev2, options)
}

/// `read(2)`.
pub fn read(options: &Options) -> Result<Box<dyn Work>> {
    plain("read", libc::SYS_read, options)
}

/// `write(2)`.
pub fn write(options: &Options) -> Result<Box<dyn Work>> {
    plain("write", libc::SYS_write, options)
}

/// `pread64(2)`.
pub fn pread(options: &Options) -> Result<Box<dyn Work>> {
    plain("pread", libc::SYS_pread64, options)
}

/// `pwrite64(2)`.
pub fn pwrite(options: &Options) -> Result<Box<dyn Work>> {
    plain("pwrite", libc::SYS_pwrite64, options)
}

/// `readv(2)` of an array in the first page, where no process has memory.
pub fn efault(options: &Options) -> Result<Box<dyn Work>> {
    let file = open(options)?;
    let segments = options.segments;
    Ok(Box::new(Refused { file, array: 64, segments, error: libc::EFAULT, _vector: None }))
}

/// `readv(2)` of more segments than the kernel allows.
pub fn einval(options: &Options) -> Result<Box<dyn Work>> {
    let vector = Vector::new(2000, 1)?;
    let (array, segments) = (vector.array(), vector.segments());
    let file = open(options)?;
    Ok(Box::new(Refused { file, array, segments, error: libc::EINVAL, _vector: Some(vector) }))
}
