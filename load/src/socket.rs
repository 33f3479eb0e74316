//! Messages over a pair of stream sockets, unix or TCP.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    abi::{Abi, Call, RECVMMSG, RECVMSG, SENDMMSG, SENDMSG},
    memory::{Mapping, Vector},
    sys::{call, number, unix_pair},
    tally::Tally,
    work::{Setup, Work},
};

/// Messages of one `sendmmsg` or `recvmmsg`.
const BATCH: usize = 4;
/// What one call may send, so that sender and receiver can be one thread.
pub const MOST: usize = 32 * 1024;

/// A connected pair.
pub fn pair(tcp: bool) -> Result<[OwnedFd; 2]> {
    if !tcp {
        return unix_pair().context("cannot make a pair of unix sockets");
    }
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    let address = listener.local_addr().context("the listener has no address")?;
    let near = TcpStream::connect(address).context("cannot connect over loopback")?;
    let (far, _) = listener.accept().context("cannot accept")?;
    near.set_nodelay(true).context("cannot set TCP_NODELAY")?;
    Ok([near.into(), far.into()])
}

/// `sendto(2)` without an address.
pub fn send_all(socket: &OwnedFd, buffer: &Vector, tally: &mut Tally) -> Result<()> {
    let arguments = [number(socket), buffer.data(), buffer.length(), 0, 0, 0];
    // SAFETY: the buffer is as long as is said.
    let bytes = unsafe { call(libc::SYS_sendto, arguments) }?;
    ensure!(bytes == buffer.length(), "{bytes} bytes sent instead of {}", buffer.length());
    tally.plain("sendto", bytes);
    Ok(())
}

/// `recvfrom(2)` without an address, until the buffer is full.
pub fn receive_all(socket: &OwnedFd, buffer: &Vector, tally: &mut Tally) -> Result<()> {
    let flags = libc::MSG_WAITALL as usize;
    let arguments = [number(socket), buffer.data(), buffer.length(), flags, 0, 0];
    // SAFETY: the buffer is as long as is said.
    let bytes = unsafe { call(libc::SYS_recvfrom, arguments) }?;
    ensure!(bytes == buffer.length(), "{bytes} bytes received instead of {}", buffer.length());
    tally.plain("recvfrom", bytes);
    Ok(())
}

/// Headers of messages, as calls of this kind expect them: `struct msghdr`, in `struct mmsghdr`.
pub struct Headers {
    abi: Abi,
    memory: Mapping,
}

impl Headers {
    /// So many, all with this vector.
    pub fn new(abi: Abi, headers: usize, vector: &Vector) -> Result<Headers> {
        let (size, word) = (Headers::size(abi), Headers::word(abi));
        let memory = Mapping::zeros(abi, headers * size).context("cannot get memory")?;
        for header in 0..headers {
            // After a pointer and a number that is as long as one, with what fills it up.
            memory.put(abi, header * size + 2 * word, vector.array());
            memory.put(abi, header * size + 3 * word, vector.segments());
        }
        Ok(Headers { abi, memory })
    }

    /// The address of the first.
    pub fn address(&self) -> usize {
        self.memory.address()
    }

    /// How many bytes the message of a header had, by `mmsghdr.msg_len`.
    fn length(&self, header: usize) -> usize {
        let offset = header * Headers::size(self.abi) + 7 * Headers::word(self.abi);
        // SAFETY: `at` checks the place, which the kernel has written.
        unsafe { self.memory.at::<u32>(offset).read_volatile() as usize }
    }

    /// Of `struct mmsghdr`: seven words, the length and what fills it up.
    fn size(abi: Abi) -> usize {
        8 * Headers::word(abi)
    }

    fn word(abi: Abi) -> usize {
        match abi {
            Abi::Native => 8,
            Abi::Compat => 4,
        }
    }
}

const _: () = assert!(size_of::<libc::mmsghdr>() == 64);
const _: () = assert!(std::mem::offset_of!(libc::msghdr, msg_iovlen) == 24);
const _: () = assert!(std::mem::offset_of!(libc::mmsghdr, msg_len) == 56);

/// A vectored call on one end, and a plain one on the other.
struct Messages {
    abi: Abi,
    call: Call,
    ends: [OwnedFd; 2],
    vector: Vector,
    headers: Headers,
    other_side: Vector,
}

impl Messages {
    fn sends(&self) -> bool {
        self.call == SENDMSG || self.call == SENDMMSG
    }

    fn several(&self) -> bool {
        self.call == SENDMMSG || self.call == RECVMMSG
    }

    fn vectored(&mut self, tally: &mut Tally) -> Result<()> {
        let flags = if self.sends() { 0 } else { libc::MSG_WAITALL as usize };
        let end = number(&self.ends[usize::from(!self.sends())]);
        let headers = self.headers.address();
        if !self.several() {
            // SAFETY: the header and the vector it describes outlive the call.
            return unsafe { self.vector.import(self.abi, self.call, [end, headers, flags], tally) };
        }
        // SAFETY: the headers and the vector they describe outlive the call.
        let messages = unsafe { self.abi.call(self.call, [end, headers, BATCH, flags, 0]) };
        tally.made(self.abi, self.call.name);
        if self.vector.is_absent() {
            // The first message is refused, and the others are not looked at.
            return self.vector.settle(self.call.name, messages, tally);
        }
        let messages = messages?;
        ensure!(messages == BATCH, "{messages} messages instead of {BATCH}");
        for header in 0..BATCH {
            self.vector.settle(self.call.name, Ok(self.headers.length(header)), tally)?;
        }
        Ok(())
    }
}

impl Work for Messages {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        if self.vector.is_absent() {
            return self.vectored(tally);
        }
        if self.sends() {
            self.vectored(tally)?;
            return receive_all(&self.ends[1], &self.other_side, tally);
        }
        send_all(&self.ends[0], &self.other_side, tally)?;
        self.vectored(tally)
    }
}

fn messages(call: Call, setup: &Setup) -> Result<Box<dyn Work>> {
    let batch = if call == SENDMMSG || call == RECVMMSG { BATCH } else { 1 };
    let all = setup.length().saturating_mul(batch);
    setup.at_most(all, MOST)?;
    let vector = setup.vector()?;
    let headers = Headers::new(setup.abi, batch, &vector)?;
    let other_side = Setup { bytes: all, ..setup.plain() }.vector()?;
    Ok(Box::new(Messages { abi: setup.abi, call, ends: pair(setup.tcp)?, vector, headers, other_side }))
}

/// `sendmsg(2)`.
pub fn sendmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    messages(SENDMSG, setup)
}

/// `recvmsg(2)`.
pub fn recvmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    messages(RECVMSG, setup)
}

/// `sendmmsg(2)`.
pub fn sendmmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    messages(SENDMMSG, setup)
}

/// `recvmmsg(2)`.
pub fn recvmmsg(setup: &Setup) -> Result<Box<dyn Work>> {
    messages(RECVMMSG, setup)
}

/// One buffer there, and received again.
struct Send {
    ends: [OwnedFd; 2],
    buffer: Vector,
}

impl Work for Send {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        send_all(&self.ends[0], &self.buffer, tally)?;
        receive_all(&self.ends[1], &self.buffer, tally)
    }
}

/// `sendto(2)` and `recvfrom(2)`.
pub fn send(setup: &Setup) -> Result<Box<dyn Work>> {
    let setup = setup.plain();
    setup.at_most(setup.bytes, MOST)?;
    Ok(Box::new(Send { ends: pair(setup.tcp)?, buffer: setup.vector()? }))
}
