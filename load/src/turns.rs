//! Calls in a tight loop, timed: what `iotrace bench single-segment` compares. Nothing but the calls is in the loop.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use libc::c_long;
use serde::{Deserialize, Serialize};

use crate::{
    Outcome,
    abi::Abi,
    memory::{Vector, memory_file},
    report,
    ring::{Ring, Submission},
    socket::{self, Headers},
    spent::Spent,
    sys::{call, number, open, pipe},
    tally::Tally,
};

const OP_READV: u8 = 1;
const OP_WRITEV: u8 = 2;
/// 5.6.
const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;

/// What the calls work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// `/dev/zero`.
    Zero,
    /// `/dev/null`.
    Null,
    /// A file in memory.
    Tmpfs,
    /// A pipe.
    Pipe,
    /// A pair of unix stream sockets.
    Unix,
    /// A TCP connection over loopback.
    Tcp,
}

impl Place {
    /// As in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Place::Zero => "zero",
            Place::Null => "null",
            Place::Tmpfs => "tmpfs",
            Place::Pipe => "pipe",
            Place::Unix => "unix",
            Place::Tcp => "tcp",
        }
    }
}

macro_rules! turns {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// The calls of one turn: one, or two of which the second undoes the first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub enum Turn {
            $(#[doc = $doc] #[value(name = $name)] $variant,)*
        }

        impl Turn {
            /// As in tables and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Turn::$variant => $name),* }
            }
        }
    };
}

turns! {
    Read "read" "`read(2)`."
    Readv "readv" "`readv(2)` of one segment."
    Write "write" "`write(2)`."
    Writev "writev" "`writev(2)` of one segment."
    Pread "pread" "`pread64(2)`."
    Preadv "preadv" "`preadv(2)` of one segment."
    Pwrite "pwrite" "`pwrite64(2)`."
    Pwritev "pwritev" "`pwritev(2)` of one segment."
    WriteRead "write+read" "Into a pipe and out of it."
    WritevRead "writev+read" "The same, in by a vector."
    WriteReadv "write+readv" "The same, out by a vector."
    SendRecv "send+recv" "Into a socket and out of the other."
    SendmsgRecv "sendmsg+recv" "The same, in by a vector."
    SendRecvmsg "send+recvmsg" "The same, out by a vector."
    UringRead "io_uring read" "`IORING_OP_READ`."
    UringReadv "io_uring readv" "`IORING_OP_READV` of one segment."
    UringWrite "io_uring write" "`IORING_OP_WRITE`."
    UringWritev "io_uring writev" "`IORING_OP_WRITEV` of one segment."
    NoSegment "readv of 0 segments" "`readv(2)` of no segment: nothing to import."
    EmptySegment "readv of 0 bytes" "`readv(2)` of one empty segment: it is imported, and then there is nothing to do."
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Sampling {
    /// What the calls work on.
    pub place: Place,
    /// The calls of a turn.
    pub turn: Turn,
    /// How many turns.
    #[arg(long)]
    pub count: u64,
    /// Bytes of each call.
    #[arg(long)]
    pub bytes: usize,
    /// The descriptor of the file that takes the outcome.
    #[arg(long)]
    pub report: i32,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Time.
    pub spent: Spent,
    /// What was done.
    pub tally: Tally,
}

/// Takes a sample and hands its outcome over.
///
/// # Errors
/// The outcome that cannot be handed over.
pub fn sample(options: &Sampling) -> Result<()> {
    let outcome = Outcome::of(run(options));
    report::hand_over(options.report, &outcome).context("cannot report")
}

fn run(options: &Sampling) -> Result<Sample> {
    let mut tally = Tally::default();
    let spent = match Kit::new(options)?.steps(options.turn) {
        Steps::Calls(steps) => calls(&steps, options.count, &mut tally)?,
        Steps::Ring(ring, request, bytes) => requests(&ring, request, bytes, options.count, &mut tally)?,
    };
    Ok(Sample { spent, tally })
}

/// A system call, what it must return, and what it imports: the path and the segments.
#[derive(Clone, Copy)]
struct Step {
    call: c_long,
    arguments: [usize; 6],
    bytes: usize,
    imports: Option<(&'static str, usize)>,
}

enum Steps {
    Calls(Vec<Step>),
    Ring(Box<Ring>, Submission, usize),
}

fn calls(steps: &[Step], count: u64, tally: &mut Tally) -> Result<Spent> {
    let started = Spent::begin()?;
    for _ in 0..count {
        for step in steps {
            // SAFETY: the steps name memory and descriptors of the kit that they are from.
            let bytes = unsafe { call(step.call, step.arguments) }?;
            ensure!(bytes == step.bytes, "{bytes} bytes instead of {}", step.bytes);
        }
    }
    let spent = started.end()?;
    for step in steps {
        if let Some((path, segments)) = step.imports {
            tally.imported_times(path, segments, step.bytes, count);
        }
    }
    Ok(spent)
}

fn requests(ring: &Ring, request: Submission, bytes: usize, count: u64, tally: &mut Tally) -> Result<Spent> {
    let started = Spent::begin()?;
    for _ in 0..count {
        // SAFETY: the request names memory and a descriptor of the kit that it is from.
        let done = unsafe { ring.submit(request) }??;
        ensure!(done == bytes, "{done} bytes instead of {bytes}");
    }
    let spent = started.end()?;
    if matches!(request.opcode, OP_READV | OP_WRITEV) {
        tally.imported_times("io_uring", 1, bytes, count);
    }
    Ok(spent)
}

/// Descriptors and memory that the calls need. It lives until the process ends.
struct Kit {
    from: usize,
    to: usize,
    bytes: usize,
    vector: &'static Vector,
    empty: &'static Vector,
    header: usize,
    ring: Option<Box<Ring>>,
}

impl Kit {
    fn new(options: &Sampling) -> Result<Kit> {
        let Sampling { place, turn, bytes, .. } = *options;
        let device = |path: &str| open(path).with_context(|| format!("cannot open {path}"));
        let [from, to]: [usize; 2] = match place {
            Place::Zero => [keep(device("/dev/zero")?); 2],
            Place::Null => [keep(device("/dev/null")?); 2],
            Place::Tmpfs => [keep(memory_file(bytes).context("cannot make a file in memory")?); 2],
            Place::Pipe => pipe().context("cannot make a pipe")?.map(keep),
            Place::Unix | Place::Tcp => socket::pair(place == Place::Tcp)?.map(keep),
        };
        let vector = |bytes| -> Result<&'static Vector> {
            Ok(Box::leak(Box::new(Vector::new(Abi::Native, 1, bytes, false).context("cannot get memory")?)))
        };
        let (vector, empty) = (vector(bytes)?, vector(0)?);
        let header = Box::leak(Box::new(Headers::new(Abi::Native, 1, vector)?)).address();
        let ring = match turn {
            Turn::UringRead | Turn::UringReadv | Turn::UringWrite | Turn::UringWritev => {
                Some(Box::new(Ring::new(false)?))
            }
            _ => None,
        };
        Ok(Kit { from, to, bytes, vector, empty, header, ring })
    }

    fn steps(self, turn: Turn) -> Steps {
        let Kit { from, to, bytes, vector, empty, header, .. } = self;
        let plain = |call, file| Step {
            call,
            arguments: [file, vector.data(), bytes, 0, 0, 0],
            bytes,
            imports: None,
        };
        let vectored = |call, file, path| Step {
            call,
            arguments: [file, vector.array(), 1, 0, 0, 0],
            bytes,
            imports: Some((path, 1)),
        };
        let message = |call, file, path, flags| Step {
            call,
            arguments: [file, header, flags, 0, 0, 0],
            bytes,
            imports: Some((path, 1)),
        };
        let nothing = |segments| Step {
            call: libc::SYS_readv,
            arguments: [from, empty.array(), segments, 0, 0, 0],
            bytes: 0,
            imports: Some(("readv", segments)),
        };
        let all = libc::MSG_WAITALL as usize;
        let (write, read) = (plain(libc::SYS_write, to), plain(libc::SYS_read, from));
        // Of a pair of sockets the first sends.
        let send = plain(libc::SYS_sendto, from);
        let mut recv = plain(libc::SYS_recvfrom, to);
        recv.arguments[3] = all;
        let ring = |opcode| Submission {
            opcode,
            file: from as i32,
            address: if matches!(opcode, OP_READV | OP_WRITEV) { vector.array() } else { vector.data() }
                as u64,
            length: if matches!(opcode, OP_READV | OP_WRITEV) { 1 } else { bytes as u32 },
            ..Submission::default()
        };
        let opcode = match turn {
            Turn::UringRead => OP_READ,
            Turn::UringReadv => OP_READV,
            Turn::UringWrite => OP_WRITE,
            _ => OP_WRITEV,
        };
        if let Some(own) = self.ring {
            return Steps::Ring(own, ring(opcode), bytes);
        }
        Steps::Calls(match turn {
            Turn::Read => vec![read],
            Turn::Readv => vec![vectored(libc::SYS_readv, from, "readv")],
            Turn::Write => vec![write],
            Turn::Writev => vec![vectored(libc::SYS_writev, to, "writev")],
            Turn::Pread => vec![plain(libc::SYS_pread64, from)],
            Turn::Preadv => vec![vectored(libc::SYS_preadv, from, "preadv")],
            Turn::Pwrite => vec![plain(libc::SYS_pwrite64, to)],
            Turn::Pwritev => vec![vectored(libc::SYS_pwritev, to, "pwritev")],
            Turn::WriteRead => vec![write, read],
            Turn::WritevRead => vec![vectored(libc::SYS_writev, to, "writev"), read],
            Turn::WriteReadv => vec![write, vectored(libc::SYS_readv, from, "readv")],
            Turn::SendRecv => vec![send, recv],
            Turn::SendmsgRecv => vec![message(libc::SYS_sendmsg, from, "sendmsg", 0), recv],
            Turn::SendRecvmsg => vec![send, message(libc::SYS_recvmsg, to, "recvmsg", all)],
            Turn::EmptySegment => vec![nothing(1)],
            // The ring's turns were answered above.
            _ => vec![nothing(0)],
        })
    }
}

/// The number of a descriptor that stays open.
fn keep(file: OwnedFd) -> usize {
    number(Box::leak(Box::new(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_says_what_it_did() {
        for (place, turn) in [
            (Place::Zero, Turn::Read),
            (Place::Zero, Turn::Readv),
            (Place::Null, Turn::Writev),
            (Place::Null, Turn::NoSegment),
            (Place::Null, Turn::EmptySegment),
            (Place::Tmpfs, Turn::Preadv),
            (Place::Tmpfs, Turn::Pwrite),
            (Place::Pipe, Turn::WriteReadv),
            (Place::Unix, Turn::SendmsgRecv),
            (Place::Tcp, Turn::SendRecvmsg),
            (Place::Zero, Turn::UringRead),
            (Place::Zero, Turn::UringReadv),
        ] {
            let options = Sampling { place, turn, count: 3, bytes: 4096, report: -1 };
            let sample = match run(&options) {
                Ok(sample) => sample,
                Err(error) if error.is::<crate::Impossible>() => continue,
                Err(error) => panic!("{} {}: {error:#}", place.name(), turn.name()),
            };
            let calls: u64 = sample.tally.paths().map(|path| sample.tally.imports(path).calls).sum();
            let imports = !matches!(turn, Turn::Read | Turn::Pwrite | Turn::UringRead);
            assert_eq!(calls, if imports { 3 } else { 0 }, "{} {}", place.name(), turn.name());
        }
    }
}
