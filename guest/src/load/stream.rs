//! Pipes, and what is spliced.

use std::os::fd::OwnedFd;

use anyhow::{Result, ensure};
use libc::c_long;

use super::{Options, Work, file, socket};
use crate::{
    sys::{Vector, call, number, pipe as pipe_pair},
    tally::Tally,
};

/// A pipe holds 16 pages.
const MOST: usize = 32 * 1024;

/// Four calls: plain in, plain out, vectored in, vectored out.
struct Pipe {
    ends: [OwnedFd; 2],
    vector: Vector,
}

impl Work for Pipe {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let [from, to] = &self.ends;
        let (data, length) = (self.vector.data(), self.vector.length());
        for (name, number_of, end) in [("write", libc::SYS_write, to), ("read", libc::SYS_read, from)] {
            transfer(number_of, end, data, length, length)?;
            tally.plain(name, length);
        }
        let (array, segments) = (self.vector.array(), self.vector.segments());
        for (path, number_of, end) in [("writev", libc::SYS_writev, to), ("readv", libc::SYS_readv, from)] {
            transfer(number_of, end, array, segments, length)?;
            tally.imported(path, segments, length);
        }
        Ok(())
    }
}

/// A call with a buffer or an array, that must do everything.
fn transfer(number_of: c_long, end: &OwnedFd, memory: usize, how_many: usize, length: usize) -> Result<()> {
    // SAFETY: both callers describe memory of a vector of theirs.
    let bytes = unsafe { call(number_of, [number(end), memory, how_many, 0]) }?;
    ensure!(bytes == length, "{bytes} bytes instead of {length}");
    Ok(())
}

/// `write`, `read`, `writev` and `readv` through a pipe.
pub fn pipe(options: &Options) -> Result<Box<dyn Work>> {
    let vector = Vector::new(options.segments, options.bytes)?;
    ensure!(vector.length() <= MOST, "{} bytes are too many for a pipe: at most {MOST}", vector.length());
    Ok(Box::new(Pipe { ends: pipe_pair()?, vector }))
}

/// `vmsplice(2)` of memory into a pipe, and a plain read.
struct Vmsplice {
    ends: [OwnedFd; 2],
    vector: Vector,
}

impl Work for Vmsplice {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let (segments, length) = (self.vector.segments(), self.vector.length());
        transfer(libc::SYS_vmsplice, &self.ends[1], self.vector.array(), segments, length)?;
        tally.imported("vmsplice", segments, length);
        transfer(libc::SYS_read, &self.ends[0], self.vector.data(), length, length)?;
        tally.plain("read", length);
        Ok(())
    }
}

/// `vmsplice(2)`.
pub fn vmsplice(options: &Options) -> Result<Box<dyn Work>> {
    let vector = Vector::new(options.segments, options.bytes)?;
    let pages = options.segments * (1 + options.bytes.div_ceil(4096));
    ensure!(pages <= 16, "a pipe has 16 pages, these segments may need {pages}");
    Ok(Box::new(Vmsplice { ends: pipe_pair()?, vector }))
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
pub fn sendfile(options: &Options) -> Result<Box<dyn Work>> {
    let options = Options { segments: 1, ..options.clone() };
    ensure!(options.bytes <= MOST, "{} bytes are too many for a socket: at most {MOST}", options.bytes);
    let ends = socket::pair(options.tcp)?;
    Ok(Box::new(Sendfile { file: file::open(&options)?, ends, buffer: Vector::new(1, options.bytes)? }))
}
