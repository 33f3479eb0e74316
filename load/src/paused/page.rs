//! Memory of which the second page is not there until it is supplied, by userfaultfd.

use std::{io, os::fd::OwnedFd, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    Impossible,
    memory::Mapping,
    sys::{call, number, owned},
};

/// Bytes of the buffer that are there, and as many that are not.
pub const HALF: usize = 2048;

const PAGE: usize = 4096;
/// The longest that a call may take to come to the page.
const PATIENCE: Duration = Duration::from_secs(20);

// include/uapi/linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: usize = 0xc018_aa3f;
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const UFFDIO_ZEROPAGE: usize = 0xc020_aa04;
const REGISTER_MISSING: u64 = 1;

/// Two pages, the second missing.
pub struct Missing {
    // Closed first: whoever still waits for the page gets one.
    faults: OwnedFd,
    pages: Mapping,
}

impl Missing {
    /// Such memory.
    ///
    /// # Errors
    /// That this kernel has none, or not for this process.
    pub fn new() -> Result<Missing> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: no memory is involved.
        let faults = unsafe { call(libc::SYS_userfaultfd, [flags]) };
        let faults = match faults.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSYS) => return Err(Impossible("the kernel has no userfaultfd(2)".into()).into()),
            Some(libc::EPERM) => return Err(Impossible("userfaultfd(2) is not permitted".into()).into()),
            _ => owned(faults.context("userfaultfd")?),
        };
        let pages = Mapping::new(None, 0, 2 * PAGE).context("cannot get memory")?;
        // SAFETY: within the mapping.
        unsafe { pages.at::<u8>(0).write_volatile(1) };
        let missing = Missing { faults, pages };
        missing.ask(UFFDIO_API, [UFFD_API, 0, 0]).context("UFFDIO_API")?;
        let (start, length) = missing.range();
        missing.ask(UFFDIO_REGISTER, [start, length, REGISTER_MISSING, 0]).context("UFFDIO_REGISTER")?;
        Ok(missing)
    }

    /// The address of the buffer: [`HALF`] before the missing page and as much of it.
    pub fn buffer(&self) -> usize {
        self.pages.address() + PAGE - HALF
    }

    /// Waits until somebody needs the page.
    pub fn touched(&self) -> io::Result<()> {
        let mut wait = libc::pollfd { fd: number(&self.faults) as i32, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel writes into the one entry.
        match unsafe { libc::poll(&raw mut wait, 1, PATIENCE.as_millis() as i32) } {
            1 if wait.revents == libc::POLLIN => Ok(()),
            1 => Err(io::ErrorKind::Other.into()),
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Supplies the page, and wakes who waits for it.
    pub fn supply(&self) -> io::Result<()> {
        let (start, length) = self.range();
        self.ask(UFFDIO_ZEROPAGE, [start, length, 0, 0])
    }

    fn range(&self) -> (u64, u64) {
        ((self.pages.address() + PAGE) as u64, PAGE as u64)
    }

    fn ask<const N: usize>(&self, what: usize, mut words: [u64; N]) -> io::Result<()> {
        // SAFETY: each of the structures has as many words as its request's number tells.
        unsafe { call(libc::SYS_ioctl, [number(&self.faults), what, words.as_mut_ptr() as usize]) }.map(drop)
    }
}
