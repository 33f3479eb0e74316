//! io_uring requests with a vector.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::Result;

use crate::{
    file,
    memory::Vector,
    ring::{Ring, Submission},
    socket::{self, Headers, receive_all, send_all},
    tally::Tally,
    work::{Setup, Work},
};

const PATH: &str = "io_uring";
const OP_READV: u8 = 1;
const OP_WRITEV: u8 = 2;
const OP_SENDMSG: u8 = 9;
const OP_RECVMSG: u8 = 10;
const OP_READV_FIXED: u8 = 60;
const OP_WRITEV_FIXED: u8 = 61;
/// `IOSQE_ASYNC`: not by the thread that submits.
const ASYNC: u8 = 1 << 4;

/// Reads or writes a file.
struct File {
    ring: Ring,
    request: Submission,
    _file: OwnedFd,
    vector: Vector,
    fixed: Fixed,
}

/// How far a registered buffer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fixed {
    No,
    ToRegister,
    Registered,
}

impl Work for File {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        if self.fixed == Fixed::ToRegister {
            self.ring.register(&self.vector)?;
            // The kernel reads the description of the buffer as a vector of one segment.
            tally.imported(PATH, 1, 0);
            self.fixed = Fixed::Registered;
        }
        // SAFETY: the vector describes memory of its own.
        let result = unsafe { self.ring.request(self.request, tally) }?;
        if self.fixed == Fixed::No || self.vector.is_absent() {
            return self.vector.settle(PATH, result, tally);
        }
        // Only the array is read, and its bytes are not looked at.
        self.vector.settle(PATH, result, &mut Tally::default())?;
        tally.imported(PATH, self.vector.segments(), 0);
        Ok(())
    }
}

fn on_file(opcode: u8, flags: u8, polled: bool, setup: &Setup) -> Result<Box<dyn Work>> {
    setup.native()?;
    let ring = Ring::new(polled)?;
    let fixed = match opcode {
        OP_READV_FIXED | OP_WRITEV_FIXED => Fixed::ToRegister,
        _ => Fixed::No,
    };
    if fixed != Fixed::No {
        let name = if opcode == OP_READV_FIXED { "IORING_OP_READV_FIXED" } else { "IORING_OP_WRITEV_FIXED" };
        ring.ensure_has(opcode, name)?;
    }
    let (file, vector) = (file::open(setup)?, setup.vector()?);
    let request = Submission {
        opcode,
        flags,
        file: file.as_raw_fd(),
        address: vector.array() as u64,
        length: vector.segments() as u32,
        ..Submission::default()
    };
    Ok(Box::new(File { ring, request, _file: file, vector, fixed }))
}

/// A message on one end, and a plain call on the other.
struct Message {
    ring: Ring,
    request: Submission,
    ends: [OwnedFd; 2],
    vector: Vector,
    _headers: Headers,
    other_side: Vector,
}

impl Work for Message {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let (moves, sends) = (!self.vector.is_absent(), self.request.opcode == OP_SENDMSG);
        if moves && !sends {
            send_all(&self.ends[0], &self.other_side, tally)?;
        }
        // SAFETY: the header and the vector that it describes outlive the operation.
        let result = unsafe { self.ring.request(self.request, tally) }?;
        self.vector.settle(PATH, result, tally)?;
        if moves && sends { receive_all(&self.ends[1], &self.other_side, tally) } else { Ok(()) }
    }
}

fn message(opcode: u8, setup: &Setup) -> Result<Box<dyn Work>> {
    setup.native()?;
    setup.at_most(setup.length(), socket::MOST)?;
    let (ring, ends, vector) = (Ring::new(false)?, socket::pair(setup.tcp)?, setup.vector()?);
    let headers = Headers::new(setup.abi, 1, &vector)?;
    let request = Submission {
        opcode,
        file: ends[usize::from(opcode == OP_RECVMSG)].as_raw_fd(),
        address: headers.address() as u64,
        length: 1,
        ..Submission::default()
    };
    let other_side = Setup { bytes: setup.length(), ..setup.plain() }.vector()?;
    Ok(Box::new(Message { ring, request, ends, vector, _headers: headers, other_side }))
}

/// `IORING_OP_READV`.
pub fn readv(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_READV, 0, false, setup)
}

/// `IORING_OP_WRITEV`.
pub fn writev(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_WRITEV, 0, false, setup)
}

/// `IORING_OP_SENDMSG`.
pub fn sendmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    message(OP_SENDMSG, setup)
}

/// `IORING_OP_RECVMSG`.
pub fn recvmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    message(OP_RECVMSG, setup)
}

/// `IORING_OP_READV`, always by a worker.
pub fn readv_async(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_READV, ASYNC, false, setup)
}

/// `IORING_OP_READV`, taken by a polling thread.
pub fn readv_polled(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_READV, 0, true, setup)
}

/// `IORING_OP_READV_FIXED`.
pub fn readv_fixed(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_READV_FIXED, 0, false, setup)
}

/// `IORING_OP_WRITEV_FIXED`.
pub fn writev_fixed(setup: &Setup) -> Result<Box<dyn Work>> {
    on_file(OP_WRITEV_FIXED, 0, false, setup)
}
