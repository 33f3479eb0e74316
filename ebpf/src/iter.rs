//! Functions that walk an iterator: counted and timed when they return, by kind and by what they were asked for.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext, ProbeContext},
};
use iotrace_common::{
    block::{Block, NUMBERS},
    flight::Flight,
    iter::{COUNTED, NANOS_BUCKETS, ONE, nanos_bucket, walked},
    lost::Lost,
    site::{KEEPS, Packed, RETURNS_ALL, RETURNS_BYTES, RETURNS_ZERO},
    who,
};

use crate::{
    arch::Regs,
    config::KINDS,
    flight,
    iov_iter::Iter,
    maps::{Add, Alone, Shared, block, fentry_site, iter_record, lose, site},
    traced::Traced,
    who::mine,
};

#[inline(always)]
pub fn call(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = site(ctx) else { return };
    let (iter, bytes) = (regs.value(site.iter()), regs.value(site.count()));
    enter(regs.stack_pointer(), iter, bytes);
}

#[inline(always)]
pub fn returned(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let call = flight::take(regs.stack_pointer());
    if call.key == 0 {
        return;
    }
    let now = now(&call);
    let Some(site) = site(ctx) else { return };
    let Some(block) = block() else { return };
    // SAFETY: a map value of this CPU; nothing on it can interrupt this program to pass here.
    unsafe { *passes(block, site.count().add as u16) += 1 };
    leave::<Alone>(block, site, call, regs.result(), now);
}

/// How often a site was passed.
///
/// # Safety
/// `block` must be a value of the map.
#[inline(always)]
unsafe fn passes(block: *mut Block, number: u16) -> *mut u32 {
    // SAFETY: the mask keeps the number within the array.
    unsafe { (&raw mut (*block).passes).cast::<u32>().add(usize::from(number) & (NUMBERS - 1)) }
}

/// Now, if the call is timed.
#[inline(always)]
fn now(call: &Flight) -> u64 {
    if call.start == 0 { 0 } else { flight::now() }
}

/// Leaves the call for its return.
#[inline(always)]
fn enter(key: u64, iter: u64, bytes: u64) {
    let (asked, before) = match Iter::read(iter) {
        // Every walker stops at the end of the iterator, and many callers rely on it.
        Ok(iter) => (bytes.min(iter.count()), iter.segments()),
        // Its return cannot read it either, and says so.
        Err(_) => (bytes, 0),
    };
    flight::leave(Flight { key, start: flight::now(), iter, asked, more: before, ..Flight::NONE });
}

/// Counts a call that has returned: what it was, what it did and how long it took.
#[inline(always)]
fn leave<A: Add>(block: *mut Block, site: Packed, call: Flight, result: u64, now: u64) {
    // SAFETY: a map value of this CPU.
    let Some(slot) = (unsafe { mine(block) }) else { return };
    let asked = call.asked;
    let (kind, segments) = match Iter::read(call.iter) {
        Ok(iter) => {
            let (kind, segments) = iter.kind();
            let segments = match segments {
                _ if site.has(KEEPS) => 0,
                ONE => 1,
                COUNTED => walked(call.more, iter.segments(), iter.offset()),
                _ => 0,
            };
            (kind, segments)
        }
        Err(_) => {
            lose(Lost::Iterator);
            (KINDS.load() - 1, 0)
        }
    };
    // SAFETY: as above.
    let record = unsafe { iter_record(block, site.target(), kind) };
    if record.is_null() {
        return lose(Lost::Record);
    }
    let done = match site.returns() {
        RETURNS_BYTES if (result as i64) < 0 => 0,
        RETURNS_BYTES => result,
        RETURNS_ALL => u64::from(result & 0xff != 0) * asked,
        RETURNS_ZERO => u64::from(result as u32 == 0) * asked,
        _ => asked,
    };
    let place = place(kind);
    // SAFETY: both are parts of that value.
    unsafe {
        A::add(&raw mut (*record).calls, 1);
        A::add(&raw mut (*record).asked, asked);
        A::add(&raw mut (*record).done, done);
        if done < asked {
            A::add(&raw mut (*record).short, 1);
        }
        if done != 0 {
            A::add(&raw mut (*record).segments, segments);
        }
        A::add(&raw mut (*slot).counts.iter_calls[place], 1);
        A::add(&raw mut (*slot).counts.iter_bytes[place], done);
        if call.start != 0 {
            let nanos = now.wrapping_sub(call.start);
            A::add(&raw mut (*record).nanos, nanos);
            let bucket = nanos_bucket(nanos);
            if bucket < NANOS_BUCKETS {
                A::add(&raw mut (*record).buckets[bucket], 1);
            }
        }
    }
}

/// The place of a kind among a process' counts.
#[inline(always)]
fn place(kind: u32) -> usize {
    (kind as usize).min(who::KINDS - 1)
}

#[inline(always)]
fn entry(ctx: &FEntryContext, number: u32) {
    let Some(site) = fentry_site(number) else { return };
    let traced = Traced::of(ctx);
    enter(traced.key(), traced.slot(site.iter().base), traced.slot(site.count().base));
}

#[inline(always)]
fn exit(ctx: &FExitContext, number: u32) {
    let traced = Traced::of(ctx);
    let call = flight::take(traced.key());
    if call.key == 0 {
        return;
    }
    let now = now(&call);
    let Some(site) = fentry_site(number) else { return };
    let Some(block) = block() else { return };
    // SAFETY: a map value of this CPU.
    unsafe { Shared::add_word(passes(block, number as u16), 1) };
    leave::<Shared>(block, site, call, traced.slot(site.arguments()), now);
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
