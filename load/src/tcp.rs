//! Receiving over TCP with `TCP_ZEROCOPY_RECEIVE` or without: what `iotrace bench tcp-mmap` runs.

use std::{
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{
    Outcome, fork, report,
    sender::{self, Sent},
    spent::Spent,
    sys::{self, call, number, owned, pipe},
};

/// `TCP_ZEROCOPY_RECEIVE` (include/uapi/linux/tcp.h, 4.18).
const TCP_ZEROCOPY_RECEIVE: usize = 35;
/// A page, and the options of a segment beside it: each segment then carries one page.
pub const SEGMENT: i32 = 4096 + 12;
/// What is copied at the end of a message, where it is no whole page.
const COPY: usize = 4096;

/// How the bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sender {
    /// `write(2)` into a pipe and `splice(2)` from there: each page is the only reference to it
    Splice,
    /// `send(2)` with `MSG_ZEROCOPY`
    Zerocopy,
    /// `send(2)`: over loopback nothing of it can be mapped
    Send,
}

impl Sender {
    /// As in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Sender::Splice => "splice",
            Sender::Zerocopy => "zerocopy",
            Sender::Send => "send",
        }
    }
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Transfer {
    /// Connections, each with a thread that receives and one that sends.
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// Bytes of each connection.
    #[arg(long)]
    pub size: u64,
    /// Bytes of one receiving call.
    #[arg(long)]
    pub chunk: usize,
    /// Where mappings begin: at multiples of this.
    #[arg(long)]
    pub align: usize,
    /// Bytes a second of each connection; 0 for as many as can be.
    #[arg(long, default_value_t = 0)]
    pub pace: u64,
    /// Receive into mapped pages, not by read(2).
    #[arg(long)]
    pub map: bool,
    /// IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// How the bytes are sent.
    #[arg(long)]
    pub sender: Sender,
    /// The descriptor of the file that takes the outcome [default: print it as JSON]
    #[arg(long)]
    pub report: Option<i32>,
}

/// What was received, by all connections together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Calls of `getsockopt(TCP_ZEROCOPY_RECEIVE)` that returned 0.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Bytes of these that were mapped.
    pub mapped: u64,
    /// Bytes of these that were copied.
    pub copied: u64,
    /// Bytes that were read.
    pub read: u64,
}

impl Received {
    /// Adds another's.
    pub fn add(&mut self, other: &Received) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.mapped += other.mapped;
        self.copied += other.copied;
        self.read += other.read;
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.mapped + self.copied + self.read
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// What was received.
    pub received: Received,
    /// What the receiving process spent, from the first byte to the last.
    pub spent: Spent,
    /// What became of the sending calls.
    pub sent: Sent,
}

/// Takes a sample and hands its outcome over.
///
/// # Errors
/// The outcome that cannot be handed over.
pub fn sample(options: &Transfer) -> Result<()> {
    let Some(report) = options.report else {
        return sys::print(&format!("{}\n", serde_json::to_string_pretty(&run(options)?)?))
            .context("cannot print");
    };
    report::hand_over(report, &Outcome::of(run(options))).context("cannot report")
}

fn run(options: &Transfer) -> Result<Transferred> {
    ensure!(options.align.is_power_of_two(), "--align {}: not a power of two", options.align);
    let address: IpAddr = if options.ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let listener = TcpListener::bind(SocketAddr::new(address, 0)).context("cannot listen on loopback")?;
    if options.sender != Sender::Send {
        // Connections take it over.
        set_segment(listener.as_raw_fd())?;
    }
    let address = listener.local_addr().context("the listener has no address")?;
    let [from, to] = pipe().context("cannot make a pipe")?;
    let child = fork::start(|| sender::in_child(options, address, &to)).context("cannot fork")?;
    drop(to);
    let received = receive(&listener, options);
    if received.is_err() {
        // SAFETY: a child of this process that is not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    fork::wait(child).context("cannot wait for the sender")?;
    let mut text = Vec::new();
    std::fs::File::from(from).read_to_end(&mut text).context("cannot hear the sender")?;
    let (received, spent) = received?;
    let outcome: Outcome<Sent> = serde_json::from_slice(&text).context("the sender says nothing")?;
    Ok(Transferred { received, spent, sent: outcome.done().context("the sender")? })
}

/// Sets `TCP_MAXSEG`.
pub fn set_segment(socket: i32) -> Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, SEGMENT).context("cannot set TCP_MAXSEG")
}

/// Sets an option that is a number.
pub fn set(socket: i32, level: i32, option: i32, value: i32) -> io::Result<()> {
    let arguments =
        [socket as usize, level as usize, option as usize, &raw const value as usize, size_of::<i32>()];
    // SAFETY: the kernel reads one number.
    unsafe { call(libc::SYS_setsockopt, arguments) }.map(drop)
}

fn receive(listener: &TcpListener, options: &Transfer) -> Result<(Received, Spent)> {
    let accept = |_| -> Result<TcpStream> { Ok(listener.accept().context("cannot accept")?.0) };
    let streams = (0..options.clients).map(accept).collect::<Result<Vec<_>>>()?;
    let started = Spent::begin()?;
    let threads: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            let options = options.clone();
            thread::spawn(move || connection(stream.into(), &options))
        })
        .collect();
    let mut sum = Received::default();
    for thread in threads {
        sum.add(&thread.join().map_err(|_| anyhow!("a receiving thread panicked"))??);
    }
    let spent = started.end()?;
    let all = options.size * options.clients as u64;
    ensure!(sum.bytes() == all, "{} bytes instead of {all}", sum.bytes());
    Ok((sum, spent))
}

/// `struct tcp_zerocopy_receive` as of 5.10 (include/uapi/linux/tcp.h); later ones take it as well.
#[repr(C)]
#[derive(Default)]
struct Zerocopy {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Zerocopy>() == 40);

fn connection(socket: OwnedFd, options: &Transfer) -> Result<Received> {
    let mut sum = Received::default();
    let mut buffer = vec![0u8; options.chunk.max(COPY)];
    if !options.map {
        while sum.read < options.size {
            sum.read += read(&socket, &mut buffer)?;
        }
        return Ok(sum);
    }
    let window = Window::new(&socket, options.chunk, options.align)?;
    while sum.bytes() < options.size {
        wait(&socket)?;
        let mut zerocopy = Zerocopy {
            address: window.address as u64,
            length: options.chunk as u32,
            copybuf_address: buffer.as_mut_ptr() as u64,
            copybuf_len: COPY as i32,
            ..Zerocopy::default()
        };
        let mut length = size_of::<Zerocopy>() as u32;
        let arguments = [
            number(&socket),
            libc::IPPROTO_TCP as usize,
            TCP_ZEROCOPY_RECEIVE,
            &raw mut zerocopy as usize,
            &raw mut length as usize,
        ];
        // SAFETY: the kernel maps into the window, and writes into the buffer and the structure.
        match unsafe { call(libc::SYS_getsockopt, arguments) } {
            Ok(_) => sum.calls += 1,
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                // Nothing can be mapped here at all; the hint says what is to be read.
                sum.errors += 1;
                sum.read += read(&socket, &mut buffer)?;
                continue;
            }
            Err(error) => return Err(error).context("TCP_ZEROCOPY_RECEIVE"),
        }
        ensure!(zerocopy.copybuf_len >= 0, "TCP_ZEROCOPY_RECEIVE cannot copy: {}", zerocopy.copybuf_len);
        sum.mapped += u64::from(zerocopy.length);
        sum.copied += zerocopy.copybuf_len as u64;
        let mut rest = zerocopy.recv_skip_hint as usize;
        while rest > 0 && sum.bytes() < options.size {
            let most = rest.min(buffer.len());
            let done = read(&socket, &mut buffer[..most])?;
            sum.read += done;
            rest -= done as usize;
        }
    }
    Ok(sum)
}

fn read(socket: &OwnedFd, buffer: &mut [u8]) -> Result<u64> {
    let arguments = [number(socket), buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
    // SAFETY: the buffer is as long as is said.
    match unsafe { call(libc::SYS_recvfrom, arguments) }? {
        0 => bail!("the sender has gone before it sent everything"),
        bytes => Ok(bytes as u64),
    }
}

fn wait(socket: &OwnedFd) -> Result<()> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { call(libc::SYS_poll, [&raw mut poll as usize, 1, usize::MAX]) }.context("cannot poll")?;
    Ok(())
}

/// Addresses at which the socket's pages are mapped, aligned; unmapped when dropped.
struct Window {
    whole: (usize, usize),
    address: usize,
}

impl Window {
    fn new(socket: &OwnedFd, chunk: usize, align: usize) -> Result<Window> {
        let length = chunk.checked_add(align).context("too long to be mapped")?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let arguments = [0, length, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
        // SAFETY: no address is asked for, so that no existing mapping is touched.
        let start = unsafe { call(libc::SYS_mmap, arguments) }.context("cannot get addresses")?;
        let window = Window { whole: (start, length), address: start.next_multiple_of(align) };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let arguments = [window.address, chunk, libc::PROT_READ as usize, flags as usize, number(socket), 0];
        // SAFETY: lies within what was just reserved.
        unsafe { call(libc::SYS_mmap, arguments) }.context("cannot map the socket")?;
        Ok(window)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; nobody keeps a pointer into it.
        let _cannot_fail = unsafe { call(libc::SYS_munmap, [self.whole.0, self.whole.1]) };
    }
}

/// A TCP socket of the address' family that is not connected.
pub fn socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    unsafe { call(libc::SYS_socket, [family as usize, kind as usize, 0]) }.map(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whichever_way_it_takes() {
        for (sender, map, ipv6) in [
            (Sender::Splice, true, false),
            (Sender::Zerocopy, true, true),
            (Sender::Send, true, false),
            (Sender::Send, false, false),
        ] {
            let options = Transfer {
                clients: 2,
                size: 1_000_003,
                chunk: 256 << 10,
                align: 2 << 20,
                pace: 0,
                map,
                ipv6,
                sender,
                report: None,
            };
            let done = match run(&options) {
                Ok(done) => done,
                Err(error) if error.is::<crate::Impossible>() => continue,
                Err(error) => panic!("{} {map}: {error:#}", sender.name()),
            };
            println!("{} {map}: {done:?}", sender.name());
            assert_eq!(done.received.bytes(), 2 * 1_000_003);
            assert_eq!(map, done.received.calls > 0);
            assert_eq!(sender == Sender::Zerocopy, done.sent.zerocopy > 0);
            assert_eq!(done.sent.completed, done.sent.zerocopy);
        }
    }
}
