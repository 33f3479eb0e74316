//! io_uring without a library: one request at a time.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, ensure};

use super::{Options, Work, file};
use crate::{
    sys::{Mapping, Vector, call, number, owned},
    tally::Tally,
};

const OFFSET_SUBMISSIONS: usize = 0;
const OFFSET_COMPLETIONS: usize = 0x800_0000;
const OFFSET_ENTRIES: usize = 0x1000_0000;
const ENTER_GETEVENTS: usize = 1;
const OP_READV: u8 = 1;

/// `struct io_uring_params` (include/uapi/linux/io_uring.h).
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    other: [u32; 8],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, reserved, and an address
    submission_offsets: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved, and an address
    completion_offsets: [u32; 10],
}

const _: () = assert!(size_of::<Parameters>() == 120);

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    file: i32,
    offset: u64,
    address: u64,
    length: u32,
    rest: [u32; 9],
}

const _: () = assert!(size_of::<Submission>() == 64);

struct Readv {
    ring: OwnedFd,
    submissions: Mapping,
    completions: Mapping,
    entries: Mapping,
    parameters: Parameters,
    file: OwnedFd,
    vector: Vector,
}

/// A word that the kernel shares.
fn word(ring: &Mapping, offset: u32) -> &AtomicU32 {
    // SAFETY: the kernel gave the offset, `at` checks it, and the word is only used as an atomic.
    unsafe { AtomicU32::from_ptr(ring.at(offset as usize)) }
}

impl Work for Readv {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let [_, tail, mask, _, _, _, array, ..] = self.parameters.submission_offsets;
        let tail = word(&self.submissions, tail);
        let mask = word(&self.submissions, mask).load(Ordering::Relaxed);
        let next = tail.load(Ordering::Relaxed);
        let slot = next & mask;
        let request = Submission {
            opcode: OP_READV,
            file: self.file.as_raw_fd(),
            address: self.vector.array() as u64,
            length: self.vector.segments() as u32,
            ..Submission::default()
        };
        let entry = self.entries.at::<Submission>(slot as usize * size_of::<Submission>());
        // SAFETY: `at` checks that the entry lies within the mapping; the kernel reads it after the tail moved.
        unsafe { entry.write_volatile(request) };
        word(&self.submissions, array + 4 * slot).store(slot, Ordering::Relaxed);
        tail.store(next.wrapping_add(1), Ordering::Release);
        // SAFETY: the vector outlives the operation, which is waited for.
        let taken =
            unsafe { call(libc::SYS_io_uring_enter, [number(&self.ring), 1, 1, ENTER_GETEVENTS, 0, 0]) }?;
        ensure!(taken == 1, "io_uring_enter took {taken} requests");
        let (result, length) = (self.result()?, self.vector.length());
        ensure!(result == length as i32, "{result} instead of {length} bytes");
        tally.imported("io_uring", self.vector.segments(), length);
        Ok(())
    }
}

impl Readv {
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

/// `IORING_OP_READV`.
pub fn readv(options: &Options) -> Result<Box<dyn Work>> {
    let mut parameters = Parameters::default();
    // SAFETY: the kernel reads and writes the parameters.
    let ring = unsafe { call(libc::SYS_io_uring_setup, [4, &raw mut parameters as usize]) };
    let ring = owned(ring.context("io_uring_setup")?);
    let array = parameters.submission_offsets[6] as usize;
    let cqes = parameters.completion_offsets[5] as usize;
    let submissions =
        Mapping::new(Some(&ring), OFFSET_SUBMISSIONS, array + 4 * parameters.submissions as usize)?;
    let completions =
        Mapping::new(Some(&ring), OFFSET_COMPLETIONS, cqes + 16 * parameters.completions as usize)?;
    let entries =
        Mapping::new(Some(&ring), OFFSET_ENTRIES, size_of::<Submission>() * parameters.submissions as usize)?;
    let vector = Vector::new(options.segments, options.bytes)?;
    let file = file::open(options)?;
    Ok(Box::new(Readv { ring, submissions, completions, entries, parameters, file, vector }))
}
