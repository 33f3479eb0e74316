//! Messages over a pair of stream sockets, unix or TCP.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use anyhow::{Context as _, Result, ensure};
use libc::{c_long, mmsghdr, msghdr};

use super::{Options, Work};
use crate::{
    sys::{Vector, call, number, unix_pair},
    tally::Tally,
};

/// Messages of one `sendmmsg` or `recvmmsg`.
const BATCH: usize = 4;
/// What one call may send, so that sender and receiver can be one thread.
const MOST: usize = 32 * 1024;

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

/// A vectored call on one end, and a plain one on the other.
struct Messages {
    path: &'static str,
    call: c_long,
    /// `sendmmsg` or `recvmmsg`.
    several: bool,
    direction: Direction,
    ends: [OwnedFd; 2],
    vector: Vector,
    other_side: Vector,
}

impl Messages {
    fn header(&self) -> msghdr {
        // SAFETY: null pointers and zero lengths are a valid header.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.vector.array() as *mut libc::iovec;
        header.msg_iovlen = self.vector.segments();
        header
    }

    fn vectored(&mut self, tally: &mut Tally) -> Result<()> {
        let flags = match self.direction {
            Direction::Send => 0,
            Direction::Receive => libc::MSG_WAITALL as usize,
        };
        let end = number(&self.ends[usize::from(self.direction == Direction::Receive)]);
        let mut lengths = [0; BATCH];
        let messages = if self.several {
            let mut batch = [mmsghdr { msg_hdr: self.header(), msg_len: 0 }; BATCH];
            // SAFETY: the headers and the vector they describe outlive the call.
            let done = unsafe { call(self.call, [end, batch.as_mut_ptr() as usize, BATCH, flags, 0]) }?;
            lengths = batch.map(|message| message.msg_len as usize);
            done
        } else {
            let mut header = self.header();
            // SAFETY: the header and the vector it describes outlive the call.
            lengths[0] = unsafe { call(self.call, [end, &raw mut header as usize, flags]) }?;
            1
        };
        ensure!(messages == self.messages(), "{messages} messages instead of {}", self.messages());
        for bytes in &lengths[..messages] {
            ensure!(*bytes == self.vector.length(), "{bytes} bytes instead of {}", self.vector.length());
            tally.imported(self.path, self.vector.segments(), *bytes);
        }
        Ok(())
    }

    fn messages(&self) -> usize {
        if self.several { BATCH } else { 1 }
    }
}

impl Work for Messages {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        match self.direction {
            Direction::Send => {
                self.vectored(tally)?;
                receive_all(&self.ends[1], &self.other_side, tally)
            }
            Direction::Receive => {
                send_all(&self.ends[0], &self.other_side, tally)?;
                self.vectored(tally)
            }
        }
    }
}

fn messages(
    path: &'static str,
    call: c_long,
    several: bool,
    direction: Direction,
    options: &Options,
) -> Result<Box<dyn Work>> {
    let vector = Vector::new(options.segments, options.bytes)?;
    let all = vector.length() * if several { BATCH } else { 1 };
    ensure!(all <= MOST, "{all} bytes at once are too many for a socket: at most {MOST}");
    let (ends, other_side) = (pair(options.tcp)?, Vector::new(1, all)?);
    Ok(Box::new(Messages { path, call, several, direction, ends, vector, other_side }))
}

/// `sendmsg(2)`.
pub fn sendmsg(options: &Options) -> Result<Box<dyn Work>> {
    messages("sendmsg", libc::SYS_sendmsg, false, Direction::Send, options)
}

/// `recvmsg(2)`.
pub fn recvmsg(options: &Options) -> Result<Box<dyn Work>> {
    messages("recvmsg", libc::SYS_recvmsg, false, Direction::Receive, options)
}

/// `sendmmsg(2)`.
pub fn sendmmsg(options: &Options) -> Result<Box<dyn Work>> {
    messages("sendmmsg", libc::SYS_sendmmsg, true, Direction::Send, options)
}

/// `recvmmsg(2)`.
pub fn recvmmsg(options: &Options) -> Result<Box<dyn Work>> {
    messages("recvmmsg", libc::SYS_recvmmsg, true, Direction::Receive, options)
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
pub fn send(options: &Options) -> Result<Box<dyn Work>> {
    ensure!(
        options.bytes <= MOST,
        "{} bytes at once are too many for a socket: at most {MOST}",
        options.bytes
    );
    Ok(Box::new(Send { ends: pair(options.tcp)?, buffer: Vector::new(1, options.bytes)? }))
}
