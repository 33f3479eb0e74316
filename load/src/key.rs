//! Keys.

use std::{fs, io};

use anyhow::{Result, bail};

use crate::{
    Impossible,
    abi::{Abi, KEYCTL},
    memory::Vector,
    tally::Tally,
    work::{Setup, Work},
};

const KEYCTL_INSTANTIATE_IOV: usize = 20;

/// Only who was asked for a key may fill it, which the kernel finds out after the import.
struct Instantiate {
    abi: Abi,
    vector: Vector,
    /// Whether a refusal may be that of a filter, before the import.
    filtered: bool,
}

impl Work for Instantiate {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let (array, segments) = (self.vector.array(), self.vector.segments());
        // SAFETY: the vector describes memory of its own.
        let result = unsafe { self.abi.call(KEYCTL, [KEYCTL_INSTANTIATE_IOV, 1, array, segments, 0]) };
        tally.made(self.abi, KEYCTL.name);
        let error = result.as_ref().err().and_then(io::Error::raw_os_error);
        let result = match error {
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => {
                return Err(Impossible("the kernel has no keys (CONFIG_KEYS)".into()).into());
            }
            Some(libc::EPERM) if self.filtered => {
                return Err(Impossible("a seccomp filter may refuse it as the kernel does".into()).into());
            }
            Some(libc::EPERM) if !self.vector.is_absent() => Ok(self.vector.length()),
            Some(_) => result,
            None => bail!("it was allowed to fill a key"),
        };
        self.vector.settle(KEYCTL.name, result, tally)
    }
}

/// `keyctl(KEYCTL_INSTANTIATE_IOV)`.
pub fn instantiate(setup: &Setup) -> Result<Box<dyn Work>> {
    // SECCOMP_MODE_FILTER, as of systemd's SystemCallFilter= or a container.
    let filtered = fs::read_to_string("/proc/self/status")?.lines().any(|line| line == "Seccomp:\t2");
    Ok(Box::new(Instantiate { abi: setup.abi, vector: setup.vector()?, filtered }))
}
