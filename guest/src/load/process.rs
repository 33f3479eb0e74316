//! Another process's memory; here our own.

use anyhow::{Result, ensure};

use super::{Options, Work};
use crate::{
    sys::{Vector, call},
    tally::Tally,
};

/// The local vector has the segments asked for, the remote one has one.
struct Readv {
    local: Vector,
    remote: Vector,
}

impl Work for Readv {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let own = std::process::id() as usize;
        let (array, segments) = (self.local.array(), self.local.segments());
        let arguments = [own, array, segments, self.remote.array(), 1, 0];
        // SAFETY: both vectors describe memory of their own.
        let bytes = unsafe { call(libc::SYS_process_vm_readv, arguments) }?;
        ensure!(bytes == self.local.length(), "{bytes} bytes instead of {}", self.local.length());
        tally.imported("process_vm", segments, bytes);
        Ok(())
    }
}

/// `process_vm_readv(2)`.
pub fn readv(options: &Options) -> Result<Box<dyn Work>> {
    let local = Vector::new(options.segments, options.bytes)?;
    let remote = Vector::new(1, local.length())?;
    Ok(Box::new(Readv { local, remote }))
}
