//! The workloads, by name.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{
    Misuse, abi::Abi, async_io, churn, exec, file, fork, key, memory::Vector, mix, options::Options, paused,
    process, socket, stream, swarm, tally::Tally, uring,
};

/// How one work is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Segments of a vector.
    pub segments: usize,
    /// Bytes of a segment, or of a plain call.
    pub bytes: usize,
    /// The array of a vector is not there.
    pub absent: bool,
    /// How vectored calls are made.
    pub abi: Abi,
    /// The file to work on.
    pub file: Option<PathBuf>,
    /// TCP, not unix sockets.
    pub tcp: bool,
}

impl Setup {
    /// The vector that is asked for.
    ///
    /// # Errors
    /// Too little memory.
    pub fn vector(&self) -> Result<Vector> {
        let (segments, bytes) = (self.segments, self.bytes);
        Vector::new(self.abi, segments, bytes, self.absent).context("cannot get memory")
    }

    /// Bytes of one call.
    pub fn length(&self) -> usize {
        self.segments.saturating_mul(self.bytes)
    }

    /// Refuses lengths that no call does at once (`MAX_RW_COUNT`, include/linux/fs.h).
    pub fn possible(&self) -> Result<()> {
        const MOST: usize = 0x7fff_f000;
        if self.length() <= MOST {
            return Ok(());
        }
        let Setup { segments, bytes, .. } = self;
        Err(Misuse(format!("{segments} segments of {bytes} bytes are too many for one call: at most {MOST}"))
            .into())
    }

    /// Refuses lengths that a socket or pipe does not take at once.
    pub fn at_most(&self, length: usize, most: usize) -> Result<()> {
        if length <= most {
            return Ok(());
        }
        Err(Misuse(format!("{length} bytes at once are too many for a socket or pipe: at most {most}"))
            .into())
    }

    /// Refuses 32-bit calls, for works that have none.
    pub fn native(&self) -> Result<()> {
        if self.abi == Abi::Native {
            return Ok(());
        }
        Err(Misuse("--abi 32: this one has no such calls".into()).into())
    }

    /// For works without a vector of their own.
    pub fn plain(&self) -> Setup {
        Setup { segments: 1, absent: false, ..self.clone() }
    }
}

/// Work that can be done any number of times.
pub trait Work {
    /// Does it once, and tells what it did.
    fn once(&mut self, tally: &mut Tally) -> Result<()>;
}

type Make = fn(&Setup) -> Result<Box<dyn Work>>;

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
            /// Random calls of processes that are killed at random, for SECONDS; FILE gets what was begun and ended
            Churn,
        }

        impl Name {
            /// The word on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Name::$variant => $name,)*
                    Name::Exact => "exact",
                    Name::Kinds => "kinds",
                    Name::Mix => "mix",
                    Name::Churn => "churn",
                }
            }

            /// How to prepare it, unless it is put together from others.
            fn make(self) -> Option<Make> {
                match self {
                    $(Name::$variant => Some($make),)*
                    Name::Exact | Name::Kinds | Name::Mix | Name::Churn => None,
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
    Splice "splice" "splice(2) from a pipe into a file: vectors of pages" stream::splice;
    ProcessVm "process-vm" "process_vm_readv(2) of this process" process::readv;
    ProcessVmWrite "process-vm-write" "process_vm_writev(2) of this process" process::writev;
    Madvise "madvise" "process_madvise(2) of MADV_COLD, whole pages of this process" process::madvise;
    Keyctl "keyctl" "keyctl(2) of KEYCTL_INSTANTIATE_IOV without the right to, after the import" key::instantiate;
    Aio "aio" "io_submit(2) of IOCB_CMD_PREADV" async_io::preadv;
    AioWrite "aio-write" "io_submit(2) of IOCB_CMD_PWRITEV" async_io::pwritev;
    Uring "uring" "IORING_OP_READV" uring::readv;
    UringWrite "uring-write" "IORING_OP_WRITEV" uring::writev;
    UringSend "uring-send" "IORING_OP_SENDMSG" uring::sendmsg;
    UringReceive "uring-receive" "IORING_OP_RECVMSG" uring::recvmsg;
    UringAsync "uring-async" "IORING_OP_READV by a worker of the kernel" uring::readv_async;
    UringPolled "uring-polled" "IORING_OP_READV by a polling thread of the kernel" uring::readv_polled;
    UringFixed "uring-fixed" "IORING_OP_READV_FIXED into a registered buffer" uring::readv_fixed;
    UringWriteFixed "uring-write-fixed" "IORING_OP_WRITEV_FIXED from a registered buffer" uring::writev_fixed;
    Exec "exec" "fork, exec and wait for a program" exec::exec;
    NoProgram "no-program" "execveat(2) of a file that is no program: kernel vectors" exec::no_program;
    Swarm "swarm" "readv(2) by a child that lives for nothing else" swarm::swarm;
    PausedResolve "paused-resolve" "preadv, pread64 and write that wait for a page" paused::resolve;
    PausedSignal "paused-signal" "The same, and a signal comes meanwhile" paused::signal;
    PausedMigrate "paused-migrate" "The same, and the thread changes its processor meanwhile" paused::migrate;
    PausedKill "paused-kill" "The same, of processes that are killed meanwhile" paused::kill;
    PausedExit "paused-exit" "The same, of processes whose other thread ends them meanwhile" paused::exit;
}

/// Does what the options say.
///
/// # Errors
/// What could not be done; the numbers would not be exact then.
pub fn run(options: &Options) -> Result<Tally> {
    if !options.fork {
        return alone(options);
    }
    if matches!(options.work, Name::Exact | Name::Mix | Name::Churn) {
        return Err(Misuse("--fork: this one cannot be halved".into()).into());
    }
    let child = Options { count: options.count / 2, absent: options.absent / 2, ..options.clone() };
    let own = Options {
        count: options.count - child.count,
        absent: options.absent - child.absent,
        ..child.clone()
    };
    let mut tally = alone(&own)?;
    tally.add(fork::in_child(|| alone(&child))?);
    Ok(tally)
}

fn alone(options: &Options) -> Result<Tally> {
    options.abi.possible()?;
    let mut tally = Tally::default();
    let setup = |segments, bytes| Setup {
        segments,
        bytes,
        absent: false,
        abi: options.abi,
        file: options.file.clone(),
        tcp: options.tcp,
    };
    let bytes = options.bytes;
    match options.work {
        Name::Exact => {
            let parts = [(Name::Readv, 10_000, 1), (Name::Readv, 5_000, 3), (Name::Writev, 2_000, 9)];
            for (name, count, segments) in parts {
                repeat(name, &setup(segments, bytes), count, &mut tally)?;
            }
        }
        Name::Kinds => {
            for (name, segments, bytes) in [(Name::Pread, 1, 512), (Name::Preadv, 2, 256)] {
                repeat(name, &setup(segments, bytes), options.count, &mut tally)?;
            }
        }
        Name::Mix => mix::run(&setup(1, 1), options.seconds, &mut tally)?,
        Name::Churn => churn::run(options)?,
        name => {
            for &segments in &options.segments {
                repeat(name, &setup(segments, bytes), options.count, &mut tally)?;
            }
            if options.absent > 0 {
                let segments = options.segments.first().copied().unwrap_or(1);
                let setup = Setup { absent: true, ..setup(segments, bytes) };
                repeat(name, &setup, options.absent, &mut tally)?;
            }
        }
    }
    Ok(tally)
}

/// Prepares a work of the table.
///
/// # Errors
/// Options that it cannot have, or what this kernel does not offer.
pub fn make(name: Name, setup: &Setup) -> Result<Box<dyn Work>> {
    name.make().context("this one is put together from others")?(setup)
}

fn repeat(name: Name, setup: &Setup, count: u64, tally: &mut Tally) -> Result<()> {
    setup.possible()?;
    let mut work = make(name, setup)?;
    for _ in 0..count {
        work.once(tally).with_context(|| name.name())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tally: &Tally, path: &str) -> [u64; 5] {
        let row = tally.imports(path);
        [row.calls, row.single, row.segments, row.bytes, row.errors]
    }

    #[test]
    fn a_list_of_segments_and_absent_arrays_add_up() {
        let options = Options { count: 4, segments: vec![1, 3, 9], absent: 2, ..Options::of(Name::Preadv) };
        let tally = run(&options).unwrap();
        assert_eq!(row(&tally, "preadv"), [14, 6, 54, 52 * 64, 2]);
        assert_eq!(tally.syscalls(), [("preadv".to_owned(), 14)].into());
        // A forked child does half, and nothing changes in sum.
        let forked = run(&Options { fork: true, ..options }).unwrap();
        assert_eq!(forked.json(), tally.json());
    }

    #[test]
    fn every_work_that_this_machine_can_do_says_what_it_did() {
        for name in Name::value_variants() {
            let (count, seconds) = (2, std::time::Duration::ZERO);
            let options = Options { count, seconds, segments: vec![2], absent: 1, ..Options::of(*name) };
            match run(&options) {
                Ok(_) => {}
                Err(error) if error.is::<crate::Impossible>() => println!("{}: {error:#}", name.name()),
                Err(error) => panic!("{}: {error:#}", name.name()),
            }
        }
    }
}
