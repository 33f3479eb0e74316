//! Reading a `struct iov_iter`.

use core::{arch::asm, ptr::null};

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};
use iotrace_common::CAST_CALL;

use crate::config::{self, ITER_COUNT, ITER_KIND, ITER_OFFSET, ITER_SEGMENTS};

/// The number of `struct iov_iter` among the kernel's types, if `bpf_rdonly_cast` can be called (6.2); else 0.
#[unsafe(no_mangle)]
static ITER_TYPE: Global<u32> = Global::new(0);

/// What matters of a `struct iov_iter` (include/linux/uio.h). It lies in the first five words on every kernel from
/// 5.10 to 7.3; the daemon checks.
#[derive(Clone, Copy)]
pub struct Iter {
    /// What the verifier takes for a pointer to it, if it is read only as it is asked for; else null.
    cast: *const u8,
    words: [u64; WORDS],
}

const WORDS: usize = 5;

impl Iter {
    /// Reads the one at this address.
    ///
    /// # Errors
    /// What the helper says. Through a cast pointer, what cannot be read is 0.
    #[inline(always)]
    pub fn read(address: u64) -> Result<Iter, i64> {
        let number = ITER_TYPE.load();
        if number != 0 {
            return Ok(Iter { cast: cast(address, number), words: [0; WORDS] });
        }
        // SAFETY: the helper checks the address.
        let words = unsafe { bpf_probe_read_kernel(address as *const [u64; WORDS]) }.map_err(i64::from)?;
        Ok(Iter { cast: null(), words })
    }

    /// `count`.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.word(ITER_COUNT.load())
    }

    /// `nr_segs`.
    #[inline(always)]
    pub fn segments(&self) -> u64 {
        self.word(ITER_SEGMENTS.load())
    }

    /// `iov_offset`.
    #[inline(always)]
    pub fn offset(&self) -> u64 {
        self.word(ITER_OFFSET.load())
    }

    /// The number of its kind, and how its segments are counted.
    #[inline(always)]
    pub fn kind(&self) -> (u32, u8) {
        let offset = ITER_KIND.load();
        config::kind(if ITER_TYPE.load() != 0 {
            // SAFETY: as in `word`.
            unsafe { *self.cast.wrapping_add(offset as usize) }
        } else {
            (self.known(offset) >> (offset % 8 * 8)) as u8
        })
    }

    #[inline(always)]
    fn word(&self, offset: u32) -> u64 {
        if ITER_TYPE.load() != 0 {
            // SAFETY: the kernel guards the load; the offset is that of the member in its BTF, and the verifier checks it.
            unsafe { *self.cast.wrapping_add(offset as usize).cast::<u64>() }
        } else {
            self.known(offset)
        }
    }

    #[inline(always)]
    fn known(&self, offset: u32) -> u64 {
        match offset / 8 {
            0 => self.words[0],
            1 => self.words[1],
            2 => self.words[2],
            3 => self.words[3],
            _ => self.words[4],
        }
    }
}

/// A word of the kernel's memory; 0 where it cannot be read.
#[inline(always)]
pub fn word(address: u64) -> u64 {
    let number = ITER_TYPE.load();
    if number == 0 {
        // SAFETY: the helper checks the address.
        return unsafe { bpf_probe_read_kernel(address as *const u64) }.unwrap_or(0);
    }
    // As the word of an iterator that would lie around it.
    let offset = ITER_COUNT.load();
    let iter = cast(address.wrapping_sub(u64::from(offset)), number);
    // SAFETY: the kernel guards the load; the offset is that of the member in its BTF, and the verifier checks it.
    unsafe { *iter.wrapping_add(offset as usize).cast::<u64>() }
}

/// A pointer that the verifier takes for one to this type: each load through it is guarded, and costs a fifth of the
/// helper.
#[inline(always)]
fn cast(address: u64, number: u32) -> *const u8 {
    let iter;
    // SAFETY: a call as the verifier wants it. The daemon puts the number of `bpf_rdonly_cast` in, which is known only on the
    // running kernel.
    unsafe {
        asm!(
            "call {call}",
            call = const CAST_CALL,
            inlateout("r1") address => _,
            inlateout("r2") u64::from(number) => _,
            lateout("r3") _,
            lateout("r4") _,
            lateout("r5") _,
            lateout("r0") iter,
            options(nostack),
        );
    }
    iter
}
