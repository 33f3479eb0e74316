//! Another process's memory; here our own.

use std::{io, os::fd::OwnedFd};

use anyhow::{Context as _, Result};

use crate::{
    Impossible,
    abi::{Abi, Call, PROCESS_MADVISE, PROCESS_VM_READV, PROCESS_VM_WRITEV},
    memory::Vector,
    sys::{call, number, owned},
    tally::Tally,
    work::{Setup, Work},
};

const MADV_COLD: usize = 20;
const PAGE: usize = 4096;

/// The remote vector has as many segments as the local one. The kernel reads it once the local one is imported.
struct Copy {
    abi: Abi,
    call: Call,
    local: Vector,
    remote: Vector,
}

impl Work for Copy {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let own = std::process::id() as usize;
        let (local, remote) = (&self.local, &self.remote);
        let arguments = [own, local.array(), local.segments(), remote.array(), remote.segments(), 0];
        // SAFETY: both vectors describe memory of their own.
        let result = unsafe { self.abi.call(self.call, arguments) };
        tally.made(self.abi, self.call.name);
        local.settle("process_vm", result, tally)?;
        if !local.is_absent() {
            tally.imported("process_vm_remote", remote.segments(), 0);
        }
        Ok(())
    }
}

fn copy(call: Call, setup: &Setup) -> Result<Box<dyn Work>> {
    let remote = Setup { absent: false, ..setup.clone() }.vector()?;
    Ok(Box::new(Copy { abi: setup.abi, call, local: setup.vector()?, remote }))
}

/// `process_vm_readv(2)`.
pub fn readv(setup: &Setup) -> Result<Box<dyn Work>> {
    copy(PROCESS_VM_READV, setup)
}

/// `process_vm_writev(2)`.
pub fn writev(setup: &Setup) -> Result<Box<dyn Work>> {
    copy(PROCESS_VM_WRITEV, setup)
}

/// Advice about whole pages.
struct Madvise {
    abi: Abi,
    process: OwnedFd,
    vector: Vector,
}

impl Work for Madvise {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let (array, segments) = (self.vector.array(), self.vector.segments());
        let arguments = [number(&self.process), array, segments, MADV_COLD, 0];
        // SAFETY: the advice leaves what is in the pages.
        let result = unsafe { self.abi.call(PROCESS_MADVISE, arguments) };
        tally.made(self.abi, PROCESS_MADVISE.name);
        match result.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSYS) => Err(Impossible("the kernel has no process_madvise(2)".into()).into()),
            Some(libc::EPERM) => Err(Impossible("process_madvise(2) is not permitted".into()).into()),
            _ => self.vector.settle("madvise", result, tally),
        }
    }
}

/// `process_madvise(2)`.
pub fn madvise(setup: &Setup) -> Result<Box<dyn Work>> {
    let own = std::process::id() as usize;
    // SAFETY: no memory is involved.
    let process = owned(unsafe { call(libc::SYS_pidfd_open, [own, 0]) }.context("pidfd_open")?);
    let setup = Setup { bytes: setup.bytes.next_multiple_of(PAGE), ..setup.clone() };
    Ok(Box::new(Madvise { abi: setup.abi, process, vector: setup.vector()? }))
}
