//! Linux AIO: `io_submit(2)`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Impossible,
    abi::Abi,
    file,
    memory::Vector,
    sys::call,
    tally::Tally,
    work::{Setup, Work},
};

const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;

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

struct Submit {
    opcode: u16,
    context: usize,
    file: OwnedFd,
    vector: Vector,
}

impl Work for Submit {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let request = Iocb {
            opcode: self.opcode,
            file: self.file.as_raw_fd() as u32,
            buffer: self.vector.array() as u64,
            count: self.vector.segments() as u64,
            ..Iocb::default()
        };
        let requests = [&raw const request];
        // SAFETY: request and vector outlive the operation, which is waited for below.
        let taken = unsafe { call(libc::SYS_io_submit, [self.context, 1, requests.as_ptr() as usize]) };
        tally.made(Abi::Native, "io_submit");
        if self.vector.is_absent() {
            return self.vector.settle("aio", taken, tally);
        }
        let taken = taken?;
        ensure!(taken == 1, "io_submit took {taken} requests");
        let mut event = Event::default();
        let arguments = [self.context, 1, 1, &raw mut event as usize, 0];
        // SAFETY: there is room for one event.
        let done = unsafe { call(libc::SYS_io_getevents, arguments) }?;
        ensure!(done == 1, "io_getevents gave {done} events");
        self.vector.settle("aio", result(event.result), tally)
    }
}

impl Drop for Submit {
    fn drop(&mut self) {
        // SAFETY: nothing is in flight.
        let _nothing_to_do_about_it = unsafe { call(libc::SYS_io_destroy, [self.context]) };
    }
}

/// What an operation returned.
fn result(value: i64) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(-value as i32))
}

fn submit(opcode: u16, setup: &Setup) -> Result<Box<dyn Work>> {
    setup.native()?;
    let (vector, file) = (setup.vector()?, file::open(setup)?);
    let mut context = 0usize;
    // SAFETY: the kernel writes one word.
    let made = unsafe { call(libc::SYS_io_setup, [8, &raw mut context as usize]) };
    if made.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS)) {
        return Err(Impossible("the kernel has no io_submit(2) (CONFIG_AIO)".into()).into());
    }
    made.context("io_setup")?;
    Ok(Box::new(Submit { opcode, context, file, vector }))
}

/// `io_submit(2)` of `IOCB_CMD_PREADV`.
pub fn preadv(setup: &Setup) -> Result<Box<dyn Work>> {
    submit(IOCB_CMD_PREADV, setup)
}

/// `io_submit(2)` of `IOCB_CMD_PWRITEV`.
pub fn pwritev(setup: &Setup) -> Result<Box<dyn Work>> {
    submit(IOCB_CMD_PWRITEV, setup)
}
