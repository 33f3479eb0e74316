//! How long something took, and on whose account.

use std::{io, mem::MaybeUninit, time::Instant};

use serde::{Deserialize, Serialize};

/// Time of this process, all its threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Nanoseconds of the monotonic clock.
    pub wall: u64,
    /// Nanoseconds in user space, as getrusage(2) tells: where the kernel accounts by ticks, no finer than they are.
    pub user: u64,
    /// Nanoseconds in the kernel.
    pub system: u64,
    /// Voluntary and involuntary context switches.
    pub switches: u64,
}

/// When it began.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Instant, Spent);

impl Spent {
    /// Now.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn begin() -> io::Result<Begun> {
        Ok(Begun(Instant::now(), used()?))
    }
}

impl Begun {
    /// What was spent since.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end(self) -> io::Result<Spent> {
        let Begun(started, before) = self;
        let wall = started.elapsed().as_nanos() as u64;
        let after = used()?;
        Ok(Spent {
            wall,
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            switches: after.switches.saturating_sub(before.switches),
        })
    }
}

fn used() -> io::Result<Spent> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `struct rusage`.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, and any bytes are a `struct rusage`.
    let usage = unsafe { usage.assume_init() };
    let nanos = |time: libc::timeval| (time.tv_sec as u64) * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(Spent {
        wall: 0,
        user: nanos(usage.ru_utime),
        system: nanos(usage.ru_stime),
        switches: usage.ru_nvcsw as u64 + usage.ru_nivcsw as u64,
    })
}
