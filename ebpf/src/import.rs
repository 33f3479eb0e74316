//! `import_iovec` and its kin: counted when they return, by the segments that they were called with.

use aya_ebpf::{
    macros::fexit,
    programs::{FExitContext, ProbeContext},
};
use iotrace_common::{
    flight::Flight,
    import::{ImportRecord, SEGMENT_BUCKETS},
    lost::Lost,
    site::{BY_SYSCALL, Packed, RETURNS_POINTER},
    who::Slot,
};

use crate::{
    arch::{self, Regs, Syscall},
    config::{self, NO_PATH},
    flight,
    maps::{Add, Alone, Shared, block, import_record, lose, site, syscall_site},
    traced::Traced,
    who,
};

/// The largest error number that a pointer may stand for (`MAX_ERRNO`, include/linux/err.h).
const MAX_ERRNO: i64 = 4095;
/// `EBADF`: the file was no good, and nothing was imported.
const EBADF: i64 = 9;

/// An import that has returned.
#[derive(Clone, Copy)]
struct Import {
    /// `nr_segs`.
    segments: u64,
    /// `fast_segs`.
    fast: u32,
    /// The number of its path.
    path: u8,
}

#[inline(always)]
pub fn call(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = site(ctx) else { return };
    let call = progress(site);
    let (segments, fast) = (regs.value(site.count()), regs.value(site.iter()));
    let path = u64::from(path(site, &call));
    flight::leave(Flight {
        key: regs.stack_pointer(),
        asked: segments,
        more: fast << 8 | path,
        ..Flight::NONE
    });
}

#[inline(always)]
pub fn returned(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = site(ctx) else { return };
    let flight = flight::take(regs.stack_pointer());
    if flight.key == 0 {
        return;
    }
    let call = Import {
        segments: u64::from(flight.asked as u32),
        fast: (flight.more >> 8) as u32,
        path: flight.more as u8,
    };
    count::<Alone>(call, result(site, regs.result() as i64));
}

/// Behind a call whose arguments can still be told there: one probe counts it.
#[inline(always)]
pub fn done(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = site(ctx) else { return };
    let path = path(site, &progress(site));
    let call = Import {
        segments: u64::from(regs.value(site.count()) as u32),
        fast: regs.value(site.iter()) as u32,
        path,
    };
    count::<Alone>(call, result(site, regs.result() as i64));
}

/// Behind a call that imports what the system call in progress names (≥ 5.15).
#[inline(always)]
pub fn vector(ctx: &ProbeContext) {
    let (number, third) = arch::syscall_vector();
    let path = config::vector_path(number);
    let Some(block) = block() else { return };
    // SAFETY: a map value of this CPU.
    let Some(slot) = (unsafe { who::mine(block) }) else { return };
    // SAFETY: as above.
    let Some(record) = (unsafe { import_record(block, path) }) else { return lose(Lost::Site) };
    let result = Regs::of(ctx).result() as i64;
    // SAFETY: both are parts of it.
    unsafe {
        // The shortest way for the most frequent sort: such calls have room for one segment.
        if third as u32 == 1 && result >= 0 {
            Alone::add(&raw mut (*record).buckets[1], 1);
            Alone::add(&raw mut (*record).bytes, result as u64);
            Alone::add(&raw mut (*slot).counts.single, 1);
            Alone::add(&raw mut (*slot).counts.bytes, result as u64);
            return;
        }
    }
    let fast = site(ctx).map_or(0, |site| site.iter().add as u32);
    // SAFETY: as above.
    unsafe { add::<Alone>(record, slot, Import { segments: u64::from(third as u32), fast, path }, result) };
}

/// The bytes imported, or a negative error.
#[inline(always)]
fn result(site: Packed, result: i64) -> i64 {
    match site.returns() {
        RETURNS_POINTER if !(-MAX_ERRNO..0).contains(&result) => 0,
        _ => result,
    }
}

/// Counts a call that has returned.
#[inline(always)]
fn count<A: Add>(call: Import, result: i64) {
    let Some(block) = block() else { return };
    // SAFETY: a map value of this CPU.
    let Some(slot) = (unsafe { who::mine(block) }) else { return };
    // SAFETY: as above.
    let Some(record) = (unsafe { import_record(block, call.path) }) else { return lose(Lost::Record) };
    // SAFETY: both are parts of it.
    unsafe { add::<A>(record, slot, call, result) };
}

/// Adds a call.
///
/// # Safety
/// Both must point into map values.
#[inline(always)]
unsafe fn add<A: Add>(record: *mut ImportRecord, slot: *mut Slot, call: Import, result: i64) {
    // SAFETY: by contract.
    unsafe {
        match config::segment_bucket(call.segments) {
            Some(bucket) if bucket < SEGMENT_BUCKETS => {
                A::add(&raw mut (*record).buckets[bucket], 1);
                if call.segments > u64::from(call.fast) {
                    A::add(&raw mut (*record).allocated, 1);
                }
                if call.segments == 1 {
                    A::add(&raw mut (*slot).counts.single, 1);
                } else {
                    A::add(&raw mut (*record).segments, call.segments);
                    A::add(&raw mut (*slot).counts.others, 1);
                    A::add(&raw mut (*slot).counts.segments, call.segments);
                }
            }
            // The kernel refuses it: an error that has no segments.
            _ => {
                A::add(&raw mut (*record).buckets[SEGMENT_BUCKETS - 1], 1);
                A::add(&raw mut (*slot).counts.others, 1);
            }
        }
        if result < 0 {
            A::add(&raw mut (*record).errors, 1);
            A::add(&raw mut (*slot).counts.errors, 1);
        } else {
            A::add(&raw mut (*record).bytes, result as u64);
            A::add(&raw mut (*slot).counts.bytes, result as u64);
        }
    }
}

/// The system call in progress, if it matters.
#[inline(always)]
fn progress(site: Packed) -> Syscall {
    if site.has(BY_SYSCALL) { arch::syscall() } else { Syscall::NONE }
}

/// The number of the path: the system call in progress tells `readv` from `preadv`, which share their site.
#[inline(always)]
fn path(site: Packed, call: &Syscall) -> u8 {
    if site.has(BY_SYSCALL) {
        let path = config::syscall_path(call.number, call.compat);
        if path != NO_PATH {
            return path;
        }
    }
    site.target()
}

/// A system call that imports where nothing can be probed: its registers tell the segments, its result the bytes
/// that it did.
#[inline(always)]
fn syscall(ctx: &FExitContext, number: u32) {
    let Some(site) = syscall_site(number) else { return };
    // A system call's function has one argument, where the registers are saved. That is read as a number: where the
    // function is one that kernel/sys_ni.c stands in for, 5.10 knows no type for it.
    let result = ctx.arg::<i64>(1);
    if result == -EBADF {
        return;
    }
    let saved = Traced::of(ctx).slot(0);
    let Some(segments) = arch::syscall_argument(saved, site.count().base) else { return lose(Lost::Site) };
    count::<Shared>(Import { segments, fast: u32::MAX, path: site.target() }, result);
}

/// A program for each such system call, as for fentry.
macro_rules! syscalls {
    ($($number:literal $exit:ident)*) => {
        $(
            #[fexit]
            pub fn $exit(ctx: FExitContext) -> i32 {
                syscall(&ctx, $number);
                0
            }
        )*
        const _: () = assert!([$($number),*].len() == iotrace_common::site::SYSCALLS);
    };
}

syscalls! {
    0 syscall_exit_0
    1 syscall_exit_1
    2 syscall_exit_2
    3 syscall_exit_3
}
