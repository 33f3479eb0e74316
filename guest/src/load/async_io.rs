//! Linux AIO: `io_submit(2)`.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, ensure};

use super::{Options, Work, file};
use crate::{
    sys::{Vector, call},
    tally::Tally,
};

const IOCB_CMD_PREADV: u16 = 7;

/// `struct iocb` (include/uapi/linux/aio_abi.h), little endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

struct Preadv {
    context: usize,
    file: OwnedFd,
    vector: Vector,
}

impl Work for Preadv {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let request = Iocb {
            opcode: IOCB_CMD_PREADV,
            file: self.file.as_raw_fd() as u32,
            buffer: self.vector.array() as u64,
            count: self.vector.segments() as u64,
            ..Iocb::default()
        };
        let requests = [&raw const request];
        // SAFETY: request and vector outlive the operation, which is waited for below.
        let taken = unsafe { call(libc::SYS_io_submit, [self.context, 1, requests.as_ptr() as usize]) }?;
        ensure!(taken == 1, "io_submit took {taken} requests");
        let mut event = Event::default();
        let arguments = [self.context, 1, 1, &raw mut event as usize, 0];
        // SAFETY: there is room for one event.
        let done = unsafe { call(libc::SYS_io_getevents, arguments) }?;
        ensure!(done == 1, "io_getevents gave {done} events");
        let length = self.vector.length();
        ensure!(event.result == length as i64, "{} bytes instead of {length}", event.result);
        tally.imported("aio", self.vector.segments(), length);
        Ok(())
    }
}

impl Drop for Preadv {
    fn drop(&mut self) {
        // SAFETY: nothing is in flight.
        let _nothing_to_do_about_it = unsafe { call(libc::SYS_io_destroy, [self.context]) };
    }
}

/// `io_submit(2)` of `IOCB_CMD_PREADV`.
pub fn preadv(options: &Options) -> Result<Box<dyn Work>> {
    let mut context = 0usize;
    // SAFETY: the kernel writes one word.
    unsafe { call(libc::SYS_io_setup, [8, &raw mut context as usize]) }.context("io_setup")?;
    let vector = Vector::new(options.segments, options.bytes)?;
    Ok(Box::new(Preadv { context, file: file::open(options)?, vector }))
}
