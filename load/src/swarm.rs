//! A child for every call: as many processes as calls.

use std::{os::fd::OwnedFd, ptr};

use anyhow::{Context as _, Result};
use libc::{c_int, c_void};

use crate::{
    abi::{Abi, READV},
    file, fork,
    memory::{Mapping, Vector},
    sys::{call, number},
    tally::Tally,
    work::{Setup, Work},
};

/// For a child that makes one system call.
const STACK: usize = 64 << 10;

struct Swarm {
    abi: Abi,
    file: OwnedFd,
    vector: Vector,
    stack: Mapping,
}

/// What the child reads, and what came of it.
struct Order<'a> {
    swarm: &'a Swarm,
    done: Result<()>,
    tally: &'a mut Tally,
}

extern "C" fn child(order: *mut c_void) -> c_int {
    // SAFETY: `once` passes its own, and waits meanwhile.
    let order = unsafe { &mut *order.cast::<Order<'_>>() };
    let Swarm { abi, file, vector, .. } = order.swarm;
    let arguments = [number(file), vector.array(), vector.segments()];
    // SAFETY: the vector describes memory of its own.
    order.done = unsafe { vector.import(*abi, READV, arguments, order.tally) };
    0
}

impl Work for Swarm {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        // SAFETY: no memory is involved.
        unsafe { call(libc::SYS_lseek, [number(&self.file), 0, libc::SEEK_SET as usize]) }?;
        let mut order = Order { swarm: self, done: Ok(()), tally };
        // SAFETY: the memory is shared, and this thread sleeps until the child has ended: to the memory it is as if
        // the child's function had been called, on a stack of its own. The stack grows down from the end.
        let child = unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let end = self.stack.at::<u8>(STACK - 16).cast::<c_void>();
            libc::clone(child, end, flags, ptr::from_mut(&mut order).cast())
        };
        if child == -1 {
            return Err(std::io::Error::last_os_error()).context("cannot start a child");
        }
        fork::wait(child).context("cannot wait for the child")?;
        order.done
    }
}

/// `readv(2)` by a child that lives for nothing else.
pub fn swarm(setup: &Setup) -> Result<Box<dyn Work>> {
    let stack = Mapping::new(None, 0, STACK).context("cannot get memory")?;
    Ok(Box::new(Swarm { abi: setup.abi, file: file::open(setup)?, vector: setup.vector()?, stack }))
}
