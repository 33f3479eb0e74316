//! The workloads, by name.

mod async_io;
mod exec;
mod file;
mod mix;
mod process;
mod socket;
mod stream;
mod uring;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::tally::Tally;

/// Does I/O in exactly known numbers, and reports them.
#[derive(Clone, Debug, Parser)]
#[command(name = "iotrace-load", version)]
pub struct Options {
    /// What to do
    pub work: Name,
    /// How many times
    #[arg(long, default_value_t = 1000)]
    pub count: u64,
    /// Segments of each vectored call
    #[arg(long, default_value_t = 1)]
    pub segments: usize,
    /// Bytes of each segment, or of each plain call
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// The file to read or write, or the program to run [default: a file in memory, or /bin/true]
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// TCP over loopback instead of unix sockets
    #[arg(long)]
    pub tcp: bool,
    /// How long to do `mix`
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// Work that can be done any number of times.
pub trait Work {
    /// Does it once, and tells what it did.
    fn once(&mut self, tally: &mut Tally) -> Result<()>;
}

type Make = fn(&Options) -> Result<Box<dyn Work>>;

macro_rules! works {
    ($($variant:ident $name:literal $doc:literal $make:expr;)*) => {
        /// What to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub enum Name {
            $(#[doc = $doc] #[value(name = $name)] $variant,)*
            /// 10,000 readv of 1 segment, 5,000 readv of 3, 2,000 writev of 9
            Exact,
            /// COUNT pread of 512 bytes of one page, and COUNT preadv of twice 256 of it
            Kinds,
            /// A bit of everything, for SECONDS
            Mix,
        }

        impl Name {
            /// How to prepare it, unless it is put together from others.
            fn make(self) -> Option<Make> {
                match self {
                    $(Name::$variant => Some($make),)*
                    Name::Exact | Name::Kinds | Name::Mix => None,
                }
            }
        }
    };
}

works! {
    Readv "readv" "readv(2)" file::readv;
    Writev "writev" "writev(2)" file::writev;
    Preadv "preadv" "preadv(2)" file::preadv;
    Pwritev "pwritev" "pwritev(2)" file::pwritev;
    Preadv2 "preadv2" "preadv2(2)" file::preadv2;
    Pwritev2 "pwritev2" "pwritev2(2)" file::pwritev2;
    Read "read" "read(2)" file::read;
    Write "write" "write(2)" file::write;
    Pread "pread" "pread64(2)" file::pread;
    Pwrite "pwrite" "pwrite64(2)" file::pwrite;
    Efault "efault" "readv(2) of an array that is not there" file::efault;
    Einval "einval" "readv(2) of 2000 segments" file::einval;
    Sendmsg "sendmsg" "sendmsg(2), received by recvfrom(2)" socket::sendmsg;
    Recvmsg "recvmsg" "recvmsg(2) of what sendto(2) sent" socket::recvmsg;
    Sendmmsg "sendmmsg" "sendmmsg(2) of 4 messages" socket::sendmmsg;
    Recvmmsg "recvmmsg" "recvmmsg(2) of 4 messages" socket::recvmmsg;
    Send "send" "sendto(2) and recvfrom(2)" socket::send;
    Pipe "pipe" "write and read, then writev and readv through a pipe" stream::pipe;
    Vmsplice "vmsplice" "vmsplice(2) into a pipe" stream::vmsplice;
    Sendfile "sendfile" "sendfile(2) from a file into a socket" stream::sendfile;
    ProcessVm "process-vm" "process_vm_readv(2) of this process" process::readv;
    Aio "aio" "io_submit(2) of IOCB_CMD_PREADV" async_io::preadv;
    Uring "uring" "IORING_OP_READV" uring::readv;
    Exec "exec" "fork, exec and wait for a program" exec::exec;
}

/// Does what the options say.
///
/// # Errors
/// What could not be done; the numbers would not be exact then.
pub fn run(options: &Options) -> Result<Tally> {
    let mut tally = Tally::default();
    match options.work {
        Name::Exact => exact(options, &mut tally)?,
        Name::Kinds => kinds(options, &mut tally)?,
        Name::Mix => mix::run(options, &mut tally)?,
        name => repeat(name, options, options.count, &mut tally)?,
    }
    Ok(tally)
}

/// Prepares a work of the table.
fn make(name: Name, options: &Options) -> Result<Box<dyn Work>> {
    ensure!(options.segments > 0, "--segments 0: nothing to do");
    ensure!(options.bytes > 0, "--bytes 0: nothing to do");
    name.make().context("this one is put together from others")?(options)
}

fn repeat(name: Name, options: &Options, count: u64, tally: &mut Tally) -> Result<()> {
    let mut work = make(name, options)?;
    for _ in 0..count {
        work.once(tally).with_context(|| format!("{name:?}"))?;
    }
    Ok(())
}

fn exact(options: &Options, tally: &mut Tally) -> Result<()> {
    for (name, count, segments) in
        [(Name::Readv, 10_000, 1), (Name::Readv, 5_000, 3), (Name::Writev, 2_000, 9)]
    {
        repeat(name, &Options { segments, ..options.clone() }, count, tally)?;
    }
    Ok(())
}

fn kinds(options: &Options, tally: &mut Tally) -> Result<()> {
    for (name, segments, bytes) in [(Name::Pread, 1, 512), (Name::Preadv, 2, 256)] {
        repeat(name, &Options { segments, bytes, ..options.clone() }, options.count, tally)?;
    }
    Ok(())
}
