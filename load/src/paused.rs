//! Calls that stop in the middle, at a page that is not there until something else has happened.

mod page;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        atomic::{AtomicI32, AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Impossible,
    abi::{Abi, PREADV},
    fork,
    memory::{Mapping, memory_file},
    sys::{call, number, pipe},
    tally::Tally,
    work::{Setup, Work},
};

use page::{HALF, Missing};

/// How long a call stands still.
const PAUSE: Duration = Duration::from_millis(300);

/// What happens while it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// A signal with a handler comes.
    Signal,
    /// The thread is moved to another processor.
    Migrate,
    /// The process is killed.
    Kill,
    /// Another thread ends the process.
    Exit,
}

/// What stops: half of the buffer is there and half is not.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// `preadv(2)` of two segments, the second is missing.
    Vectored,
    /// `pread64(2)`.
    Plain,
    /// `write(2)` into a pipe.
    Pipe,
}

struct Paused {
    meanwhile: Meanwhile,
    file: OwnedFd,
}

impl Work for Paused {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        for shape in [Shape::Vectored, Shape::Plain, Shape::Pipe] {
            match self.meanwhile {
                Meanwhile::Kill | Meanwhile::Exit => self.dies(shape)?,
                _ => self.goes_on(shape)?,
            }
            match shape {
                Shape::Vectored => {
                    tally.made(Abi::Native, PREADV.name);
                    tally.imported(PREADV.name, 2, 2 * HALF);
                }
                Shape::Plain => tally.plain("pread64", 2 * HALF),
                Shape::Pipe => tally.plain("write", 2 * HALF),
            }
        }
        Ok(())
    }
}

impl Paused {
    fn goes_on(&self, shape: Shape) -> Result<()> {
        let page = Missing::new()?;
        let done = self.stop_in(shape, &page)?;
        ensure!(done == 2 * HALF, "{done} bytes instead of {}", 2 * HALF);
        Ok(())
    }

    /// The same in a child, of which nothing is left.
    fn dies(&self, shape: Shape) -> Result<()> {
        let child = fork::start(|| {
            let page = Missing::new().ok();
            i32::from(page.is_none_or(|page| self.stop_in(shape, &page).is_err()))
        });
        let status = child.and_then(fork::wait).context("cannot have a child")?;
        let expected = match self.meanwhile {
            Meanwhile::Kill => libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL,
            _ => libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == ENDED,
        };
        ensure!(expected, "the child ended with status {status:#x}");
        Ok(())
    }

    /// Makes the call in a thread of its own, and does to it what is to be done while it stands still.
    fn stop_in(&self, shape: Shape, page: &Missing) -> Result<usize> {
        let ends = pipe().context("cannot make a pipe")?;
        let vector = Mapping::new(None, 0, 32).context("cannot get memory")?;
        for (place, word) in [page.buffer(), HALF, page.buffer() + HALF, HALF].into_iter().enumerate() {
            vector.put(Abi::Native, place * 8, word);
        }
        let (file, buffer) = (number(&self.file), page.buffer());
        let (number_of, arguments) = match shape {
            Shape::Vectored => (libc::SYS_preadv, [file, vector.address(), 2, 0, 0]),
            Shape::Plain => (libc::SYS_pread64, [file, buffer, 2 * HALF, 0, 0]),
            Shape::Pipe => (libc::SYS_write, [number(&ends[1]), buffer, 2 * HALF, 0, 0]),
        };
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let caller = scope.spawn(move || -> Result<usize> {
                let before = self.begin()?;
                // SAFETY: takes nothing.
                let thread = unsafe { call(libc::SYS_gettid, []) }?;
                let _nobody_waits = tell.send(thread as i32);
                // SAFETY: the buffer and the vector that describes it outlive the call.
                let done = unsafe { call(number_of, arguments) };
                self.end(before)?;
                Ok(done?)
            });
            let happened = told.recv().map_err(|_| io::ErrorKind::BrokenPipe.into()).and_then(|thread| {
                page.touched()?;
                self.happen(thread)
            });
            // Also after a failure: the caller must come back.
            let supplied = page.supply();
            let done = caller.join().expect("the caller does not panic")?;
            happened.context("while the call stood still")?;
            supplied.context("cannot supply the page")?;
            Ok(done)
        })
    }

    /// In the calling thread, before the call: where it runs, and how many signals it had.
    fn begin(&self) -> Result<i32> {
        match self.meanwhile {
            Meanwhile::Migrate => {
                let first = processors().context("cannot ask for the processors")?.first().copied();
                let first = first.context("no processor to run on")?;
                pin(0, first).context("cannot stay on a processor")?;
                Ok(first)
            }
            _ => Ok(i32::try_from(HANDLED.load(SeqCst))?),
        }
    }

    /// In the calling thread, after the call.
    fn end(&self, before: i32) -> Result<()> {
        match self.meanwhile {
            Meanwhile::Migrate => {
                // SAFETY: takes nothing.
                let now = unsafe { libc::sched_getcpu() };
                ensure!(
                    now == MOVED_TO.load(SeqCst) && now != before,
                    "not moved: on {now}, was on {before}"
                );
            }
            Meanwhile::Signal => {
                let handled = HANDLED.load(SeqCst);
                ensure!(handled == before as u32 + 1, "{handled} signals handled, {before} before");
            }
            _ => {}
        }
        Ok(())
    }

    /// To the calling thread, while it stands still.
    fn happen(&self, thread: i32) -> io::Result<()> {
        let own = std::process::id() as usize;
        match self.meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Signal => {
                thread::sleep(PAUSE / 2);
                // SAFETY: no memory is involved.
                unsafe { call(libc::SYS_tgkill, [own, thread as usize, libc::SIGUSR1 as usize]) }?;
            }
            Meanwhile::Migrate => {
                thread::sleep(PAUSE / 2);
                let last = processors()?.last().copied().unwrap_or_default();
                MOVED_TO.store(last, SeqCst);
                pin(thread, last)?;
            }
            Meanwhile::Kill => {
                thread::sleep(PAUSE);
                // SAFETY: no memory is involved.
                unsafe { call(libc::SYS_kill, [own, libc::SIGKILL as usize]) }?;
            }
            Meanwhile::Exit => {
                thread::sleep(PAUSE);
                // SAFETY: ends the process, without what the parent wants done at its own end.
                unsafe { libc::_exit(ENDED) };
            }
        }
        thread::sleep(PAUSE);
        Ok(())
    }
}

/// The exit code of a child that another of its threads has ended.
const ENDED: i32 = 7;
/// Signals that were handled.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// The processor that a caller was moved to.
static MOVED_TO: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handle(_signal: libc::c_int) {
    HANDLED.fetch_add(1, SeqCst);
}

/// The processors that this thread may run on.
fn processors() -> io::Result<Vec<i32>> {
    // SAFETY: plain numbers, of which all zero is a set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the set.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the numbers lie within the set.
    Ok((0..libc::CPU_SETSIZE)
        .filter(|&processor| unsafe { libc::CPU_ISSET(processor as usize, &set) })
        .collect())
}

/// Lets a thread, 0 for this one, run on one processor alone.
fn pin(thread: i32, processor: i32) -> io::Result<()> {
    // SAFETY: plain numbers, of which all zero is a set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is that of a processor.
    unsafe { libc::CPU_SET(processor as usize, &mut set) };
    // SAFETY: the kernel reads the set.
    match unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn paused(meanwhile: Meanwhile) -> Result<Box<dyn Work>> {
    // Whether there are such pages is known before anything is done.
    drop(Missing::new()?);
    if meanwhile == Meanwhile::Migrate && processors()?.len() < 2 {
        return Err(Impossible("there is one processor".into()).into());
    }
    if meanwhile == Meanwhile::Signal {
        // SAFETY: the handler adds to a number.
        unsafe { libc::signal(libc::SIGUSR1, handle as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    let file = memory_file(2 * HALF).context("cannot make a file in memory")?;
    Ok(Box::new(Paused { meanwhile, file }))
}

/// The page comes.
pub fn resolve(_: &Setup) -> Result<Box<dyn Work>> {
    paused(Meanwhile::Nothing)
}

/// A signal is handled, then the page comes.
pub fn signal(_: &Setup) -> Result<Box<dyn Work>> {
    paused(Meanwhile::Signal)
}

/// The thread moves to another processor, then the page comes.
pub fn migrate(_: &Setup) -> Result<Box<dyn Work>> {
    paused(Meanwhile::Migrate)
}

/// The process is killed; the page does not come.
pub fn kill(_: &Setup) -> Result<Box<dyn Work>> {
    paused(Meanwhile::Kill)
}

/// Another thread ends the process; the page does not come.
pub fn exit(_: &Setup) -> Result<Box<dyn Work>> {
    paused(Meanwhile::Exit)
}
