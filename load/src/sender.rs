//! Sending over TCP, in a process of its own.

use std::{
    io::{self, Write as _},
    mem::ManuallyDrop,
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    Impossible, Outcome,
    abi::Abi,
    memory::Mapping,
    sys::{call, number, pipe},
    tcp::{Sender, Transfer, set, set_segment, socket},
};

/// Bytes of one call: what a pipe holds.
const PIECE: usize = 64 << 10;
/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` (include/uapi/linux/errqueue.h).
const ORIGIN_ZEROCOPY: u8 = 5;
const COPIED: u8 = 1;

/// What became of the sending calls of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Calls with `MSG_ZEROCOPY` that took bytes.
    pub zerocopy: u64,
    /// Of these, those whose completion was told.
    pub completed: u64,
    /// Of these, those that the kernel copied.
    pub fell_back: u64,
}

impl Sent {
    /// Adds another's.
    pub fn add(&mut self, other: &Sent) {
        self.zerocopy += other.zerocopy;
        self.completed += other.completed;
        self.fell_back += other.fell_back;
    }
}

/// Sends everything; tells on the pipe what it did. Gives the exit code.
pub fn in_child(options: &Transfer, address: SocketAddr, to: &OwnedFd) -> i32 {
    let outcome = Outcome::of(all(options, address));
    let Ok(text) = serde_json::to_vec(&outcome) else { return 1 };
    // SAFETY: only lent, and left open.
    let mut to =
        ManuallyDrop::new(unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(to.as_raw_fd()) });
    i32::from(to.write_all(&text).is_err())
}

fn all(options: &Transfer, address: SocketAddr) -> Result<Sent> {
    let threads: Vec<_> = (0..options.clients)
        .map(|_| {
            let options = options.clone();
            thread::spawn(move || connection(&options, address))
        })
        .collect();
    let mut sum = Sent::default();
    for thread in threads {
        sum.add(&thread.join().map_err(|_| anyhow!("a sending thread panicked"))??);
    }
    Ok(sum)
}

fn connection(options: &Transfer, address: SocketAddr) -> Result<Sent> {
    let socket = socket(&address).context("cannot make a socket")?;
    if options.sender != Sender::Send {
        set_segment(socket.as_raw_fd())?;
    }
    if let (Ok(pace), true) = (u32::try_from(options.pace), options.pace > 0) {
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, pace.cast_signed())
            .context("cannot set SO_MAX_PACING_RATE")?;
    }
    let socket = connect(socket, &address)?;
    let memory = Mapping::zeros(Abi::Native, PIECE).context("cannot get memory")?;
    let mut sent = Sent::default();
    match options.sender {
        Sender::Splice => {
            let [from, to] = pipe().context("cannot make a pipe")?;
            pieces(options.size, |length| {
                // SAFETY: the memory is as long as a piece.
                let bytes = unsafe { call(libc::SYS_write, [number(&to), memory.address(), length]) }?;
                ensure!(bytes == length, "{bytes} bytes into the pipe instead of {length}");
                let mut rest = length;
                while rest > 0 {
                    let arguments = [number(&from), 0, number(&socket), 0, rest, 0];
                    // SAFETY: no memory is involved.
                    rest -= unsafe { call(libc::SYS_splice, arguments) }.context("splice")?;
                }
                Ok(length)
            })?;
        }
        Sender::Send => pieces(options.size, |length| send(&socket, &memory, length, 0).context("send"))?,
        Sender::Zerocopy => {
            set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
                .map_err(|error| Impossible(format!("SO_ZEROCOPY: {error}")))?;
            pieces(options.size, |length| {
                loop {
                    match send(&socket, &memory, length, libc::MSG_ZEROCOPY as usize) {
                        Ok(bytes) => {
                            sent.zerocopy += 1;
                            return Ok(bytes);
                        }
                        // Too many that are not complete: whoever has been told makes room.
                        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                            completions(&socket, &mut sent, true)?;
                        }
                        Err(error) => return Err(error).context("send with MSG_ZEROCOPY"),
                    }
                    completions(&socket, &mut sent, false)?;
                }
            })?;
            while sent.completed < sent.zerocopy {
                completions(&socket, &mut sent, true)?;
            }
        }
    }
    Ok(sent)
}

fn connect(socket: OwnedFd, address: &SocketAddr) -> Result<OwnedFd> {
    let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6);
    let (pointer, length) = match address {
        SocketAddr::V4(address) => {
            v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            (&raw mut v4 as usize, size_of_val(&v4))
        }
        SocketAddr::V6(address) => {
            v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: 0,
            };
            (&raw mut v6 as usize, size_of_val(&v6))
        }
    };
    // SAFETY: the kernel reads the address, whose length is given.
    unsafe { call(libc::SYS_connect, [number(&socket), pointer, length]) }.context("cannot connect")?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
    Ok(stream.into())
}

fn pieces(size: u64, mut send: impl FnMut(usize) -> Result<usize>) -> Result<()> {
    let mut rest = size;
    while rest > 0 {
        rest -= send(PIECE.min(usize::try_from(rest).unwrap_or(PIECE)))? as u64;
    }
    Ok(())
}

fn send(socket: &OwnedFd, memory: &Mapping, length: usize, flags: usize) -> io::Result<usize> {
    // SAFETY: the memory is as long as a piece.
    unsafe { call(libc::SYS_sendto, [number(socket), memory.address(), length, flags, 0, 0]) }
}

/// Reads what the kernel has to tell of sends; with `wait` at least something.
fn completions(socket: &OwnedFd, sent: &mut Sent, wait: bool) -> Result<()> {
    loop {
        let mut control = [0u64; 32];
        let mut header = libc::msghdr {
            msg_name: std::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: std::ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: control.as_mut_ptr().cast(),
            msg_controllen: size_of_val(&control),
            msg_flags: 0,
        };
        let arguments = [number(socket), &raw mut header as usize, libc::MSG_ERRQUEUE as usize];
        // SAFETY: the header describes the control buffer, and nothing else.
        match unsafe { call(libc::SYS_recvmsg, arguments) } {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !wait => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
                // SAFETY: one structure. A completion comes as POLLERR.
                unsafe { call(libc::SYS_poll, [&raw mut poll as usize, 1, 1000]) }?;
                if poll.revents & libc::POLLERR == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                continue;
            }
            Err(error) => return Err(error).context("cannot read the error queue"),
        }
        // SAFETY: the kernel has filled the header.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        ensure!(!first.is_null(), "the error queue tells nothing");
        // SAFETY: the message is a `struct sock_extended_err`, which has any bytes.
        let error: libc::sock_extended_err =
            unsafe { libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned() };
        ensure!(error.ee_origin == ORIGIN_ZEROCOPY, "the error queue tells of something else");
        let sends = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
        sent.completed += sends;
        if error.ee_code & COPIED != 0 {
            sent.fell_back += sends;
        }
        if wait {
            return Ok(());
        }
    }
}
