//! Functions that walk an iterator: kind and bytes asked at the call, bytes done and time at the return.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_probe_read_kernel,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext, ProbeContext},
};
use aya_log_ebpf::warn;
use iotrace_common::{
    flight::Flight,
    iter::{COUNTED, NANOS_BUCKETS, ONE, nanos_bucket, walked},
    lost::Lost,
    site::{KEEPS, RETURNS_ALL, RETURNS_BYTES, RETURNS_ZERO, Site},
    who,
};

use crate::{
    arch::Regs,
    config::{self, DIAGNOSE, ITER_COUNT, ITER_KIND, ITER_OFFSET, ITER_SEGMENTS, KINDS},
    flight,
    maps::{Add, Alone, Shared, cpu, fentry_site, iter_index, iter_record, live, lose, site},
    traced::{key, slot},
    who::{counted, mine, still_mine},
};

#[inline(always)]
pub fn call(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = live(site(regs.address())) else { return };
    let (iter, bytes) = (regs.argument(site.iter), regs.argument(site.count));
    enter::<Alone>(ctx, site, regs.stack_pointer(), iter, bytes);
}

#[inline(always)]
pub fn returned(ctx: &ProbeContext) {
    let now = flight::now();
    let regs = Regs::of(ctx);
    let Some(site) = live(site(regs.address())) else { return };
    leave::<Alone>(site, regs.stack_pointer(), regs.result(), now);
}

/// What matters of a `struct iov_iter` (include/linux/uio.h) lies in the first five words on every kernel from
/// 5.10 to 7.3; the daemon checks.
struct Iter([u64; WORDS]);

const WORDS: usize = 5;

impl Iter {
    #[inline(always)]
    fn read(address: u64) -> Result<Iter, i64> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(address as *const [u64; WORDS]) }.map(Iter).map_err(i64::from)
    }

    #[inline(always)]
    fn word(&self, offset: u32) -> u64 {
        match offset / 8 {
            0 => self.0[0],
            1 => self.0[1],
            2 => self.0[2],
            3 => self.0[3],
            _ => self.0[4],
        }
    }

    #[inline(always)]
    fn kind(&self) -> (u32, u8) {
        let offset = ITER_KIND.load();
        config::kind((self.word(offset) >> (offset % 8 * 8)) as u8)
    }

    #[inline(always)]
    fn segments(&self) -> u64 {
        self.word(ITER_SEGMENTS.load())
    }

    #[inline(always)]
    fn offset(&self) -> u64 {
        self.word(ITER_OFFSET.load())
    }

    #[inline(always)]
    fn count(&self) -> u64 {
        self.word(ITER_COUNT.load())
    }
}

/// Counts the call and leaves it for its return.
#[inline(always)]
fn enter<A: Add>(ctx: &impl EbpfContext, site: &Site, key: u64, iter: u64, bytes: u64) {
    let cpu = cpu();
    let Some(slot) = counted().and_then(|tgid| mine(cpu, tgid)) else { return };
    let (kind, segments, asked, before) = match Iter::read(iter) {
        Ok(iter) => {
            let (kind, segments) = iter.kind();
            // Every walker stops at the end of the iterator, and many callers rely on it.
            (kind, segments, bytes.min(iter.count()), iter.segments())
        }
        Err(error) => {
            lose(Lost::Iterator);
            if DIAGNOSE.load() != 0 {
                warn!(ctx, "iterator {:x} not readable: {}", iter, error);
            }
            (KINDS.load() - 1, 0, bytes, 0)
        }
    };
    let index = iter_index(site.target, kind);
    let Some(record) = iter_record(cpu, index) else { return lose(Lost::Record) };
    // SAFETY: both are map values of this CPU.
    unsafe {
        A::add(&raw mut (*record).calls, 1);
        A::add(&raw mut (*record).asked, asked);
        A::add(&raw mut (*slot).counts.iter_calls[place(kind)], 1);
    }
    let mut call = Flight { key, asked, record: record_of(index, kind), ..Flight::NONE };
    match segments {
        _ if site.flags & KEEPS != 0 => {}
        ONE => call.segments = 1,
        COUNTED => (call.iter, call.segments) = (iter, before),
        _ => {}
    }
    call.start = flight::now();
    flight::leave(call);
}

/// Finds the call and adds what it did and how long it took.
#[inline(always)]
fn leave<A: Add>(site: &Site, key: u64, result: u64, now: u64) {
    let Some(tgid) = counted() else { return };
    let Some(call) = flight::take(key) else { return };
    let cpu = cpu();
    let Some(record) = iter_record(cpu, call.record as u32) else { return lose(Lost::Record) };
    let done = match site.returns {
        RETURNS_BYTES if (result as i64) < 0 => 0,
        RETURNS_BYTES => result,
        RETURNS_ALL => u64::from(result & 0xff != 0) * call.asked,
        RETURNS_ZERO => u64::from(result as u32 == 0) * call.asked,
        _ => call.asked,
    };
    let nanos = now.wrapping_sub(call.start);
    let bucket = nanos_bucket(nanos);
    // SAFETY: the record is a value of the map, this CPU's own.
    unsafe {
        A::add(&raw mut (*record).done, done);
        A::add(&raw mut (*record).nanos, nanos);
        if done < call.asked {
            A::add(&raw mut (*record).short, 1);
        }
        if bucket < NANOS_BUCKETS {
            A::add(&raw mut (*record).buckets[bucket], 1);
        }
        if done != 0 {
            A::add(&raw mut (*record).segments, segments(&call));
        }
    }
    let Some(slot) = still_mine(cpu, tgid) else { return };
    // SAFETY: a map value of this CPU.
    unsafe { A::add(&raw mut (*slot).counts.iter_bytes[place((call.record >> 32) as u32)], done) };
}

/// The segments that a call walked which did something.
#[inline(always)]
fn segments(call: &Flight) -> u64 {
    if call.iter == 0 {
        return call.segments;
    }
    match Iter::read(call.iter) {
        Ok(iter) => walked(call.segments, iter.segments(), iter.offset()),
        Err(_) => {
            lose(Lost::Iterator);
            0
        }
    }
}

/// What a flight keeps of its record: the index, and above it the kind.
#[inline(always)]
fn record_of(index: u32, kind: u32) -> u64 {
    u64::from(kind) << 32 | u64::from(index)
}

/// The place of a kind among a process' counts.
#[inline(always)]
fn place(kind: u32) -> usize {
    (kind as usize).min(who::KINDS - 1)
}

#[inline(always)]
fn entry(ctx: &FEntryContext, number: u32) {
    let Some(site) = live(fentry_site(number)) else { return };
    enter::<Shared>(ctx, site, key(ctx), slot(ctx, site.iter), slot(ctx, site.count));
}

#[inline(always)]
fn exit(ctx: &FExitContext, number: u32) {
    let now = flight::now();
    let Some(site) = live(fentry_site(number)) else { return };
    leave::<Shared>(site, key(ctx), slot(ctx, site.arguments), now);
}

/// A pair of programs for each function probed by fentry: such a program knows its function only when it is
/// loaded, and before 5.15 cannot ask which one called it.
macro_rules! fentries {
    ($($number:literal $entry:ident $exit:ident)*) => {
        $(
            #[fentry]
            pub fn $entry(ctx: FEntryContext) -> i32 {
                entry(&ctx, $number);
                0
            }

            #[fexit]
            pub fn $exit(ctx: FExitContext) -> i32 {
                exit(&ctx, $number);
                0
            }
        )*
        const _: () = assert!([$($number),*].len() == iotrace_common::site::FENTRIES);
    };
}

fentries! {
    0 iter_entry_0 iter_exit_0
    1 iter_entry_1 iter_exit_1
    2 iter_entry_2 iter_exit_2
    3 iter_entry_3 iter_exit_3
    4 iter_entry_4 iter_exit_4
    5 iter_entry_5 iter_exit_5
    6 iter_entry_6 iter_exit_6
    7 iter_entry_7 iter_exit_7
}
