//! `import_iovec` and its kin: segments at the call, bytes and errors at the return.

use aya_ebpf::{
    macros::fexit,
    programs::{FExitContext, ProbeContext},
};
use iotrace_common::{
    flight::Flight,
    import::{ImportRecord, SEGMENT_BUCKETS},
    lost::Lost,
    site::{BY_SYSCALL, RETURNS_POINTER, Site},
    who::Slot,
};

use crate::{
    arch::{self, Regs},
    config::{self, NO_PATH},
    flight,
    maps::{Add, Alone, Shared, cpu, import_record, live, lose, site, syscall_site},
    traced::slot,
    who,
};

/// The largest error number that a pointer may stand for (`MAX_ERRNO`, include/linux/err.h).
const MAX_ERRNO: i64 = 4095;
/// `EBADF`: the file was no good, and nothing was imported.
const EBADF: i64 = 9;

#[inline(always)]
pub fn call(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = live(site(regs.address())) else { return };
    let cpu = cpu();
    let Some(slot) = who::counted().and_then(|tgid| who::mine(cpu, tgid)) else { return };
    let path = path(site);
    let Some(record) = import_record(cpu, path) else { return lose(Lost::Record) };
    let (segments, fast) = (regs.argument(site.count) as u32, regs.argument(site.iter) as u32);
    // SAFETY: both are map values of this CPU.
    unsafe { enter::<Alone>(record, slot, segments, fast) };
    let (key, record) = (regs.stack_pointer(), u64::from(path));
    flight::leave(Flight { key, record, ..Flight::NONE });
}

#[inline(always)]
pub fn returned(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = live(site(regs.address())) else { return };
    let Some(tgid) = who::counted() else { return };
    let Some(call) = flight::take(regs.stack_pointer()) else { return };
    let cpu = cpu();
    let Some(record) = import_record(cpu, call.record as u8) else { return lose(Lost::Record) };
    let result = regs.result() as i64;
    let result = match site.returns {
        RETURNS_POINTER if !(-MAX_ERRNO..0).contains(&result) => 0,
        _ => result,
    };
    let Some(slot) = who::still_mine(cpu, tgid) else { return };
    // SAFETY: both are map values of this CPU.
    unsafe { leave::<Alone>(record, slot, result) };
}

/// Counts a call by its segments.
///
/// # Safety
/// Both must point to map values.
#[inline(always)]
unsafe fn enter<A: Add>(record: *mut ImportRecord, slot: *mut Slot, segments: u32, fast: u32) {
    // SAFETY: by contract.
    unsafe {
        A::add(&raw mut (*slot).counts.imports, 1);
        match config::segment_bucket(segments) {
            Some(bucket) if bucket < SEGMENT_BUCKETS => {
                A::add(&raw mut (*record).buckets[bucket], 1);
                A::add(&raw mut (*record).segments, u64::from(segments));
                A::add(&raw mut (*slot).counts.segments, u64::from(segments));
                if segments > fast {
                    A::add(&raw mut (*record).allocated, 1);
                }
                if segments == 1 {
                    A::add(&raw mut (*slot).counts.single, 1);
                }
            }
            // The kernel refuses it: an error that has no segments.
            _ => A::add(&raw mut (*record).buckets[SEGMENT_BUCKETS - 1], 1),
        }
    }
}

/// Adds what a call brought.
///
/// # Safety
/// Both must point to map values.
#[inline(always)]
unsafe fn leave<A: Add>(record: *mut ImportRecord, slot: *mut Slot, result: i64) {
    // SAFETY: by contract.
    unsafe {
        if result < 0 {
            A::add(&raw mut (*record).errors, 1);
            A::add(&raw mut (*slot).counts.errors, 1);
        } else {
            A::add(&raw mut (*record).bytes, result as u64);
            A::add(&raw mut (*slot).counts.bytes, result as u64);
        }
    }
}

/// The number of the path: the system call in progress tells `readv` from `preadv`, which share their site.
#[inline(always)]
fn path(site: &Site) -> u8 {
    if site.flags & BY_SYSCALL != 0 {
        let (number, compat) = arch::syscall();
        let path = config::syscall_path(number, compat);
        if path != NO_PATH {
            return path;
        }
    }
    site.target
}

/// A system call that imports where nothing can be probed: its registers tell the segments, its result the bytes
/// that it did.
#[inline(always)]
fn syscall(ctx: &FExitContext, number: u32) {
    let Some(site) = live(syscall_site(number)) else { return };
    // A system call's function has one argument: where the registers are saved.
    let (saved, result) = (slot(ctx, 0), slot(ctx, 1) as i64);
    if result == -EBADF {
        return;
    }
    let cpu = cpu();
    let Some(slot) = who::counted().and_then(|tgid| who::mine(cpu, tgid)) else { return };
    let Some(record) = import_record(cpu, site.target) else { return lose(Lost::Record) };
    let Some(segments) = arch::syscall_argument(saved, site.count) else { return lose(Lost::Site) };
    // SAFETY: both are map values of this CPU.
    unsafe {
        enter::<Shared>(record, slot, u32::try_from(segments).unwrap_or(u32::MAX), u32::MAX);
        leave::<Shared>(record, slot, result);
    }
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
