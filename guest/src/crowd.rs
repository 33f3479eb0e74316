//! Many processes that live at the same time, and all do something when they are told to.

use std::{
    io, mem,
    os::fd::{AsRawFd as _, OwnedFd},
    ptr,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use crate::process::eventually;

/// How long one of them may take in an emulated guest.
const PATIENCE: Duration = Duration::from_millis(20);

/// Processes that wait for their turn, killed when dropped.
#[derive(Debug)]
pub struct Crowd {
    members: Vec<libc::pid_t>,
    /// Calls that were made, in memory that all share.
    calls: *mut AtomicU64,
}

impl Crowd {
    /// Starts so many.
    ///
    /// # Panics
    /// If the kernel allows no more.
    pub fn start(members: usize) -> Crowd {
        let file: OwnedFd = std::fs::File::open("/dev/zero").expect("a device that every guest has").into();
        // SAFETY: new memory of the kernel's choice, shared with children; zero is a valid number.
        let calls = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), size_of::<AtomicU64>(), protection, flags, -1, 0)
        };
        assert_ne!(calls, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let mut crowd = Crowd { members: Vec::with_capacity(members), calls: calls.cast() };
        // Blocked before there are children, so that none misses its turn.
        let turn = turn();
        // SAFETY: a set of signals of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const turn, ptr::null_mut()) };
        for _ in 0..members {
            // SAFETY: the child only makes system calls, with memory that it has from here.
            match unsafe { libc::fork() } {
                0 => live(&turn, file.as_raw_fd(), crowd.calls()),
                -1 => {
                    panic!("no more than {} processes: {}", crowd.members.len(), io::Error::last_os_error())
                }
                child => crowd.members.push(child),
            }
        }
        crowd
    }

    fn calls(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this lives, and used as such a number alone.
        unsafe { &*self.calls }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Lets each make one `readv(2)` of 64 bytes of /dev/zero, with one segment, and waits until all have.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn call(&self) {
        let before = self.calls().load(SeqCst);
        for member in &self.members {
            // SAFETY: sends a signal to a child of ours that is not reaped.
            unsafe { libc::kill(*member, libc::SIGUSR1) };
        }
        let all = before + self.members.len() as u64;
        let patience = Duration::from_secs(30) + PATIENCE * self.members.len() as u32;
        let done = eventually(patience, || self.calls().load(SeqCst) >= all);
        assert!(done, "{} of {all} calls were made", self.calls().load(SeqCst));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for member in &self.members {
            // SAFETY: as above.
            unsafe { libc::kill(*member, libc::SIGKILL) };
        }
        for member in &self.members {
            // SAFETY: a child of ours; how it ended does not matter.
            unsafe { libc::waitpid(*member, ptr::null_mut(), 0) };
        }
        // SAFETY: what `start` mapped; nobody uses it any more.
        unsafe { libc::munmap(self.calls.cast(), size_of::<AtomicU64>()) };
    }
}

/// The signal that tells a member that it is its turn.
fn turn() -> libc::sigset_t {
    // SAFETY: a set of integers, which the calls fill.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGUSR1);
        set
    }
}

/// What a member does until it is killed.
fn live(turn: &libc::sigset_t, file: i32, calls: &AtomicU64) -> ! {
    let mut buffer = [0u8; 64];
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: only system calls, with memory of this frame.
    unsafe {
        // Whoever started it may be killed.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut signal = 0;
        while libc::sigwait(turn, &raw mut signal) == 0 {
            if libc::readv(file, &raw const vector, 1) == buffer.len() as isize {
                calls.fetch_add(1, SeqCst);
            }
        }
        libc::_exit(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_calls_when_it_is_told() {
        let crowd = Crowd::start(5);
        crowd.call();
        crowd.call();
        assert_eq!((crowd.calls().load(SeqCst), crowd.len()), (10, 5));
    }
}
