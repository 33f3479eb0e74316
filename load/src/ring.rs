//! io_uring without a library: one request at a time.

use std::{
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Impossible,
    abi::Abi,
    memory::{Mapping, Vector},
    sys::{call, number, owned},
    tally::Tally,
};

const OFFSET_SUBMISSIONS: usize = 0;
const OFFSET_COMPLETIONS: usize = 0x800_0000;
const OFFSET_ENTRIES: usize = 0x1000_0000;
const SETUP_SQPOLL: u32 = 2;
const ENTER_GETEVENTS: usize = 1;
const ENTER_SQ_WAKEUP: usize = 2;
const REGISTER_BUFFERS: usize = 0;
const REGISTER_PROBE: usize = 8;
/// `IORING_FEAT_NATIVE_WORKERS`: the kernel's threads belong to the process that they work for (5.12).
const NATIVE_WORKERS: u32 = 1 << 9;

/// `struct io_uring_params` (include/uapi/linux/io_uring.h).
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    other: [u32; 4],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, reserved, and an address
    submission_offsets: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved, and an address
    completion_offsets: [u32; 10],
}

const _: () = assert!(size_of::<Parameters>() == 120);

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Submission {
    /// `IORING_OP_…`.
    pub opcode: u8,
    /// `IOSQE_…`.
    pub flags: u8,
    /// Of the request.
    pub priority: u16,
    /// A file descriptor.
    pub file: i32,
    /// In the file.
    pub offset: u64,
    /// Of an array, or a header.
    pub address: u64,
    /// How many of it.
    pub length: u32,
    /// Flags, the index of a registered buffer, and more.
    pub rest: [u32; 9],
}

const _: () = assert!(size_of::<Submission>() == 64);

/// A ring.
pub struct Ring {
    ring: OwnedFd,
    submissions: Mapping,
    completions: Mapping,
    entries: Mapping,
    parameters: Parameters,
}

/// A word that the kernel shares.
fn word(ring: &Mapping, offset: u32) -> &AtomicU32 {
    // SAFETY: the kernel gave the offset, `at` checks it, and the word is only used as an atomic.
    unsafe { AtomicU32::from_ptr(ring.at(offset as usize)) }
}

impl Ring {
    /// A ring; one that is `polled` has a thread of the kernel that takes what is submitted.
    ///
    /// # Errors
    /// The kernel has or allows none.
    pub fn new(polled: bool) -> Result<Ring> {
        let flags = if polled { SETUP_SQPOLL } else { 0 };
        let mut parameters = Parameters { flags, thread_idle: 1000, ..Parameters::default() };
        // SAFETY: the kernel reads and writes the parameters.
        let ring = unsafe { call(libc::SYS_io_uring_setup, [4, &raw mut parameters as usize]) };
        let ring = match ring.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSYS) => Err(Impossible("the kernel has no io_uring".into()))?,
            Some(libc::EPERM) => {
                Err(Impossible("io_uring is not permitted (kernel.io_uring_disabled)".into()))?
            }
            _ => owned(ring.context("io_uring_setup")?),
        };
        if polled && parameters.features & NATIVE_WORKERS == 0 {
            Err(Impossible("the polling thread is one of the kernel, and of no process".into()))?;
        }
        let array = parameters.submission_offsets[6] as usize;
        let cqes = parameters.completion_offsets[5] as usize;
        let count = parameters.submissions as usize;
        let map = |offset, length| Mapping::new(Some(&ring), offset, length).context("cannot map the ring");
        let submissions = map(OFFSET_SUBMISSIONS, array + 4 * count)?;
        let completions = map(OFFSET_COMPLETIONS, cqes + 16 * parameters.completions as usize)?;
        let entries = map(OFFSET_ENTRIES, size_of::<Submission>() * count)?;
        Ok(Ring { ring, submissions, completions, entries, parameters })
    }

    /// Whether the kernel has this operation.
    ///
    /// # Errors
    /// It has not.
    pub fn ensure_has(&self, opcode: u8, name: &str) -> Result<()> {
        // `struct io_uring_probe`, whose first byte is the last operation.
        let mut probe = [0u8; 16];
        let arguments = [number(&self.ring), REGISTER_PROBE, probe.as_mut_ptr() as usize, 0];
        // SAFETY: no operations are asked for, so that the head is all that is written.
        unsafe { call(libc::SYS_io_uring_register, arguments) }.context("io_uring_register")?;
        if probe[0] < opcode {
            Err(Impossible(format!("the kernel has no {name}")))?;
        }
        Ok(())
    }

    /// Registers the vector's memory as the one buffer.
    ///
    /// # Errors
    /// The kernel did not want it.
    pub fn register(&self, vector: &Vector) -> Result<()> {
        let buffer = libc::iovec { iov_base: vector.data() as *mut _, iov_len: vector.length() };
        let arguments = [number(&self.ring), REGISTER_BUFFERS, &raw const buffer as usize, 1];
        // SAFETY: the caller keeps the vector as long as the ring.
        unsafe { call(libc::SYS_io_uring_register, arguments) }.context("cannot register a buffer")?;
        Ok(())
    }

    /// Submits a request and waits for its result.
    ///
    /// # Safety
    /// What the request describes must be there.
    pub unsafe fn request(&self, request: Submission, tally: &mut Tally) -> Result<io::Result<usize>> {
        // SAFETY: by contract.
        let result = unsafe { self.submit(request) };
        tally.made(Abi::Native, "io_uring_enter");
        result
    }

    /// The same, told to nobody.
    ///
    /// # Safety
    /// What the request describes must be there.
    pub unsafe fn submit(&self, request: Submission) -> Result<io::Result<usize>> {
        let [_, tail, mask, _, _, _, array, ..] = self.parameters.submission_offsets;
        let tail = word(&self.submissions, tail);
        let mask = word(&self.submissions, mask).load(Ordering::Relaxed);
        let next = tail.load(Ordering::Relaxed);
        let slot = next & mask;
        let entry = self.entries.at::<Submission>(slot as usize * size_of::<Submission>());
        // SAFETY: `at` checks that the entry lies within the mapping; the kernel reads it after the tail moved.
        unsafe { entry.write_volatile(request) };
        word(&self.submissions, array + 4 * slot).store(slot, Ordering::Relaxed);
        tail.store(next.wrapping_add(1), Ordering::Release);
        let flags = match self.parameters.flags & SETUP_SQPOLL {
            0 => ENTER_GETEVENTS,
            _ => ENTER_GETEVENTS | ENTER_SQ_WAKEUP,
        };
        // SAFETY: by contract; the operation is waited for.
        let taken = unsafe { call(libc::SYS_io_uring_enter, [number(&self.ring), 1, 1, flags, 0, 0]) }?;
        ensure!(taken == 1, "io_uring_enter took {taken} requests");
        let result = self.result()?;
        Ok(usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
    }

    /// Takes the one completion there must be.
    fn result(&self) -> Result<i32> {
        let [head, tail, mask, _, _, cqes, ..] = self.parameters.completion_offsets;
        let head = word(&self.completions, head);
        let mask = word(&self.completions, mask).load(Ordering::Relaxed);
        let next = head.load(Ordering::Relaxed);
        ensure!(word(&self.completions, tail).load(Ordering::Acquire) != next, "no completion");
        // A completion: user_data (8 bytes), result, flags.
        let result = word(&self.completions, cqes + 16 * (next & mask) + 8).load(Ordering::Relaxed);
        head.store(next.wrapping_add(1), Ordering::Release);
        Ok(result.cast_signed())
    }
}
