//! Pipes, and what is spliced.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use libc::c_long;

use crate::{
    Misuse,
    abi::{Abi, READV, VMSPLICE, WRITEV},
    file,
    memory::{Vector, memory_file},
    socket,
    sys::{call, number, pipe as pipe_pair},
    tally::Tally,
    work::{Setup, Work},
};

/// A pipe holds 16 pages.
const MOST: usize = 32 * 1024;
const PAGES: usize = 16;
const PAGE: usize = 4096;

/// Four calls: plain in, plain out, vectored in, vectored out.
struct Pipe {
    abi: Abi,
    ends: [OwnedFd; 2],
    vector: Vector,
}

impl Work for Pipe {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let [from, to] = &self.ends;
        let (data, length) = (self.vector.data(), self.vector.length());
        for (name, number_of, end) in [("write", libc::SYS_write, to), ("read", libc::SYS_read, from)] {
            transfer(number_of, end, data, length)?;
            tally.plain(name, length);
        }
        let (array, segments) = (self.vector.array(), self.vector.segments());
        for (vectored, end) in [(WRITEV, to), (READV, from)] {
            // SAFETY: the vector describes memory of its own.
            unsafe { self.vector.import(self.abi, vectored, [number(end), array, segments], tally) }?;
        }
        Ok(())
    }
}

/// A call with a buffer, that must do everything.
fn transfer(number_of: c_long, end: &OwnedFd, memory: usize, length: usize) -> Result<()> {
    // SAFETY: all callers describe memory of a vector of theirs.
    let bytes = unsafe { call(number_of, [number(end), memory, length]) }?;
    ensure!(bytes == length, "{bytes} bytes instead of {length}");
    Ok(())
}

/// `write`, `read`, `writev` and `readv` through a pipe.
pub fn pipe(setup: &Setup) -> Result<Box<dyn Work>> {
    setup.at_most(setup.length(), MOST)?;
    Ok(Box::new(Pipe { abi: setup.abi, ends: pipe_pair()?, vector: setup.vector()? }))
}

/// `vmsplice(2)` of memory into a pipe, and a plain read.
struct Vmsplice {
    abi: Abi,
    ends: [OwnedFd; 2],
    vector: Vector,
}

impl Work for Vmsplice {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let [from, to] = &self.ends;
        let arguments = [number(to), self.vector.array(), self.vector.segments(), 0];
        // SAFETY: the vector describes memory of its own.
        unsafe { self.vector.import(self.abi, VMSPLICE, arguments, tally) }?;
        if !self.vector.is_absent() {
            transfer(libc::SYS_read, from, self.vector.data(), self.vector.length())?;
            tally.plain("read", self.vector.length());
        }
        Ok(())
    }
}

/// `vmsplice(2)`.
pub fn vmsplice(setup: &Setup) -> Result<Box<dyn Work>> {
    // Each segment takes a page of the pipe for itself, and another where it crosses into one.
    let pages: usize = (0..setup.segments)
        .map(|segment| {
            let start = segment * setup.bytes;
            (start + setup.bytes).div_ceil(PAGE) - start / PAGE
        })
        .sum();
    if pages > PAGES {
        return Err(Misuse(format!("a pipe has {PAGES} pages, these segments need {pages}")).into());
    }
    Ok(Box::new(Vmsplice { abi: setup.abi, ends: pipe_pair()?, vector: setup.vector()? }))
}

/// `sendfile(2)`: no vector, and from 6.5 on no iterator on the side of the file either.
struct Sendfile {
    file: OwnedFd,
    ends: [OwnedFd; 2],
    buffer: Vector,
}

impl Work for Sendfile {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let mut offset: libc::off_t = 0;
        let at = &raw mut offset as usize;
        let arguments = [number(&self.ends[0]), number(&self.file), at, self.buffer.length()];
        // SAFETY: the offset outlives the call.
        let bytes = unsafe { call(libc::SYS_sendfile, arguments) }?;
        ensure!(bytes == self.buffer.length(), "{bytes} bytes instead of {}", self.buffer.length());
        tally.plain("sendfile", bytes);
        socket::receive_all(&self.ends[1], &self.buffer, tally)
    }
}

/// `sendfile(2)`.
pub fn sendfile(setup: &Setup) -> Result<Box<dyn Work>> {
    let setup = setup.plain();
    setup.at_most(setup.bytes, MOST)?;
    let ends = socket::pair(setup.tcp)?;
    Ok(Box::new(Sendfile { file: file::open(&setup)?, ends, buffer: setup.vector()? }))
}

/// What was written to a pipe goes into a file, whose write gets the pipe's pages as its vector.
struct Splice {
    ends: [OwnedFd; 2],
    file: OwnedFd,
    buffer: Vector,
}

impl Work for Splice {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let ([from, to], length) = (&self.ends, self.buffer.length());
        transfer(libc::SYS_write, to, self.buffer.data(), length)?;
        tally.plain("write", length);
        let mut offset: libc::loff_t = 0;
        let arguments = [number(from), 0, number(&self.file), &raw mut offset as usize, length, 0];
        // SAFETY: the offset outlives the call.
        let bytes = unsafe { call(libc::SYS_splice, arguments) }?;
        ensure!(bytes == length, "{bytes} bytes instead of {length}");
        tally.plain("splice", bytes);
        Ok(())
    }
}

/// `splice(2)` from a pipe into a file.
pub fn splice(setup: &Setup) -> Result<Box<dyn Work>> {
    let setup = setup.plain();
    setup.at_most(setup.bytes, MOST)?;
    let file = memory_file(setup.bytes).context("cannot make a file in memory")?;
    Ok(Box::new(Splice { ends: pipe_pair()?, file, buffer: setup.vector()? }))
}
