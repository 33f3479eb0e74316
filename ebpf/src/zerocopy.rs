//! TCP without copies: what `TCP_ZEROCOPY_RECEIVE` maps and copies, the time that changing the page table takes in it
//! and the waiting for its lock, and what became of `MSG_ZEROCOPY`.
//!
//! A program that is preempted is not run for another thread on the same CPU (`prog->active`, ≥ 5.12). What must be exact
//! has therefore a second program of the same code: whichever comes first counts, and the other finds it counted.

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    EbpfContext, Global,
    helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel},
    macros::{fentry, fexit, map, raw_tracepoint},
    maps::Array,
    programs::{FEntryContext, FExitContext, RawTracePointContext},
};
use iotrace_common::{
    lost::Lost,
    zerocopy::{CALL_BITS, Call, SEND_BITS, Sending, ZerocopyRecord, send_place},
};

use crate::{
    flight::now,
    maps::{Add as _, MMAPABLE, Own, Shared, block, cpu, lose},
    traced::Traced,
    who::{counted, mine},
};

/// Position of `zc` among the arguments of `tcp_zerocopy_receive`.
#[unsafe(no_mangle)]
static RECEIVE_ZC: Global<u32> = Global::new(0);
/// How many arguments that has.
#[unsafe(no_mangle)]
static RECEIVE_ARGUMENTS: Global<u32> = Global::new(0);
/// Offset of `length` in `struct tcp_zerocopy_receive`.
#[unsafe(no_mangle)]
static ZC_LENGTH: Global<u32> = Global::new(0);
/// Offset of `copybuf_len` there.
#[unsafe(no_mangle)]
static ZC_COPIED: Global<u32> = Global::new(0);
/// How many arguments the function has that begins a send.
#[unsafe(no_mangle)]
static SEND_ARGUMENTS: Global<u32> = Global::new(0);
/// Position of `uarg` among the arguments of the function that completes a send.
#[unsafe(no_mangle)]
static SENT_UARG: Global<u32> = Global::new(0);
/// Position of `success` there.
#[unsafe(no_mangle)]
static SENT_SUCCESS: Global<u32> = Global::new(0);
/// 1: that function is called for the last part of a send only (before 5.12).
#[unsafe(no_mangle)]
static SENT_LAST: Global<u32> = Global::new(0);
/// Offset of `refcnt` in `struct ubuf_info`.
#[unsafe(no_mangle)]
static UARG_REFS: Global<u32> = Global::new(0);
/// Offset of `len` in the structure that begins with it.
#[unsafe(no_mangle)]
static UARG_LEN: Global<u32> = Global::new(0);
/// Offset of the byte whose lowest bit is `zerocopy` there.
#[unsafe(no_mangle)]
static UARG_ZEROCOPY: Global<u32> = Global::new(0);

/// Totals: CPU.
#[map]
static ZEROCOPY: Array<ZerocopyRecord> = Array::with_max_entries(1, MMAPABLE);
/// Receiving calls in flight.
static CALLS: Own<Call, { 1 << CALL_BITS }> = Own::new([Call::NONE; 1 << CALL_BITS]);
/// Sends that were counted and are not complete, by their `struct ubuf_info`.
static SENDS: Own<Sending, { 1 << SEND_BITS }> = Own::new([Sending::NONE; 1 << SEND_BITS]);

/// `LCB_F_SPIN` (include/trace/events/lock.h), alone: a spinlock. Unchanged from 5.19 to 7.3.
const SPIN: u64 = 1;

#[inline(always)]
fn record() -> Option<*mut ZerocopyRecord> {
    let record = ZEROCOPY.get_ptr_mut(cpu());
    if record.is_none() {
        lose(Lost::Record);
    }
    record
}

/// Adds to members of this CPU's record: programs of these kinds may be preempted.
macro_rules! add {
    ($record:expr, $($member:ident: $n:expr),*) => {
        // SAFETY: a map value; its members are aligned words.
        unsafe { $(Shared::add(&raw mut (*$record).$member, $n);)* }
    };
}

/// The current thread's place if it is in a call. Only that thread uses a place which it holds.
#[inline(always)]
fn held() -> Option<*mut Call> {
    let thread = bpf_get_current_pid_tgid();
    let call = CALLS.at(Call::place(thread));
    // SAFETY: a value of the array.
    let (owner, left) = unsafe { (read_volatile(&raw const (*call).thread), (*call).left) };
    (owner == thread && left == 0).then_some(call)
}

/// Whether what a program is called for is done within the call by the thread itself.
#[inline(always)]
fn within(call: *const Call, ctx: &impl EbpfContext) -> bool {
    // SAFETY: a value of the array.
    let stack = unsafe { read_volatile(&raw const (*call).stack) };
    Call { stack, ..Call::NONE }.encloses(Traced::of(ctx).key())
}

#[inline(always)]
fn enter(ctx: &FEntryContext) {
    if !counted() {
        return;
    }
    let (thread, stack) = (bpf_get_current_pid_tgid(), Traced::of(ctx).key());
    let call = CALLS.at(Call::place(thread));
    // SAFETY: a value of the array.
    unsafe {
        let (owner, left) = (read_volatile(&raw const (*call).thread), (*call).left);
        if owner == thread && left == 0 && (*call).stack == stack {
            return;
        }
        if owner != 0 && owner != thread && left == 0 {
            lose(Lost::Flight);
        }
        write_volatile(&raw mut (*call).thread, thread);
        (*call).stack = stack;
        (*call).inner = 0;
        (*call).lock = 0;
        (*call).left = 0;
        (*call).start = now();
    }
}

#[inline(always)]
fn leave(ctx: &FExitContext) {
    let now = now();
    let Some(block) = block() else { return };
    if !counted() {
        return;
    }
    let thread = bpf_get_current_pid_tgid();
    let call = CALLS.at(Call::place(thread));
    // SAFETY: a value of the array.
    let (owner, left, start) =
        unsafe { (read_volatile(&raw const (*call).thread), (*call).left, (*call).start) };
    if owner == thread && left == 1 {
        return;
    }
    // Also where the entry was not seen, or another thread has taken the place: then there is no time.
    // SAFETY: as above.
    unsafe {
        write_volatile(&raw mut (*call).thread, thread);
        (*call).left = 1;
    }
    // SAFETY: a map value of this CPU.
    let Some(process) = (unsafe { mine(block) }) else { return };
    let Some(record) = record() else { return };
    if owner == thread {
        add!(record, timed: 1, nanos: now.wrapping_sub(start));
    }
    let traced = Traced::of(ctx);
    let zc = traced.slot(RECEIVE_ZC.load() as u8);
    let result = traced.slot(RECEIVE_ARGUMENTS.load() as u8) as i32;
    let (mut mapped, mut copied) = (0, 0);
    if result == 0 {
        // User space gets these two when there is no error; a negative number of bytes is one of copying.
        let length: Option<u32> = member(zc, ZC_LENGTH.load());
        let copybuf: Option<i32> = member(zc, ZC_COPIED.load());
        (mapped, copied) = (u64::from(length.unwrap_or(0)), copybuf.unwrap_or(0).max(0) as u64);
    }
    add!(record, calls: 1, errors: u64::from(result != 0), mapped: mapped, copied: copied);
    // SAFETY: a map value; its members are aligned words.
    unsafe {
        Shared::add(&raw mut (*process).counts.zerocopy_calls, 1);
        Shared::add(&raw mut (*process).counts.zerocopy_mapped, mapped);
        Shared::add(&raw mut (*process).counts.zerocopy_copied, copied);
    }
}

#[fentry]
pub fn receive_entry(ctx: FEntryContext) -> i32 {
    enter(&ctx);
    0
}

#[fentry]
pub fn receive_entry_again(ctx: FEntryContext) -> i32 {
    enter(&ctx);
    0
}

#[fexit]
pub fn receive_exit(ctx: FExitContext) -> i32 {
    leave(&ctx);
    0
}

#[fexit]
pub fn receive_exit_again(ctx: FExitContext) -> i32 {
    leave(&ctx);
    0
}

#[inline(always)]
fn begin(ctx: &FEntryContext) {
    let Some(call) = held() else { return };
    if within(call, ctx) {
        // SAFETY: a value of the array, this thread's.
        unsafe { (*call).inner = now() };
    }
}

/// How long the function took that ends.
#[inline(always)]
fn end(ctx: &FExitContext, now: u64) -> Option<u64> {
    let call = held()?;
    // SAFETY: a value of the array, this thread's.
    let inner = unsafe { (*call).inner };
    if inner == 0 || !within(call, ctx) {
        return None;
    }
    // SAFETY: as above.
    unsafe {
        (*call).inner = 0;
        (*call).lock = 0;
    }
    Some(now.wrapping_sub(inner))
}

#[fentry]
pub fn insert_entry(ctx: FEntryContext) -> i32 {
    begin(&ctx);
    0
}

#[fexit]
pub fn insert_exit(ctx: FExitContext) -> i32 {
    if let (Some(nanos), Some(record)) = (end(&ctx, now()), record()) {
        add!(record, inserts: 1, insert_nanos: nanos);
    }
    0
}

#[fentry]
pub fn zap_entry(ctx: FEntryContext) -> i32 {
    begin(&ctx);
    0
}

#[fexit]
pub fn zap_exit(ctx: FExitContext) -> i32 {
    if let (Some(nanos), Some(record)) = (end(&ctx, now()), record()) {
        add!(record, zaps: 1, zap_nanos: nanos);
    }
    0
}

/// `contention_begin(lock, flags)` (≥ 5.19).
#[raw_tracepoint(tracepoint = "contention_begin")]
pub fn wait_begin(ctx: RawTracePointContext) -> i32 {
    let Some(call) = held() else { return 0 };
    let (lock, flags): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    // SAFETY: a value of the array, this thread's.
    unsafe {
        if (*call).inner != 0 && flags & 0xffff_ffff == SPIN && within(call, &ctx) {
            (*call).lock = lock;
            (*call).wait = now();
        }
    }
    0
}

/// `contention_end(lock, result)`.
#[raw_tracepoint(tracepoint = "contention_end")]
pub fn wait_end(ctx: RawTracePointContext) -> i32 {
    let Some(call) = held() else { return 0 };
    let lock: u64 = ctx.arg(0);
    // SAFETY: a value of the array, this thread's.
    let (held, wait) = unsafe { ((*call).lock, (*call).wait) };
    if held == 0 || held != lock || !within(call, &ctx) {
        return 0;
    }
    // SAFETY: as above.
    unsafe { (*call).lock = 0 };
    if let Some(record) = record() {
        add!(record, waits: 1, wait_nanos: now().wrapping_sub(wait));
    }
    0
}

/// The function that begins a send returns its `struct ubuf_info`, or 0. One may stand for several sends: how many, it
/// says itself, so that one that was missed is made up for by the next.
#[inline(always)]
fn sending(ctx: &FExitContext) {
    let uarg = Traced::of(ctx).slot(SEND_ARGUMENTS.load() as u8);
    if uarg == 0 {
        return;
    }
    let place = SENDS.at(send_place(uarg));
    // SAFETY: a value of the array.
    let held = unsafe { read_volatile(place) };
    if !counted() {
        // The address may have been that of a send that was counted.
        if held.uarg == uarg {
            // SAFETY: as above.
            unsafe { write_volatile(place, Sending::NONE) };
        }
        return;
    }
    if held.uarg != 0 && held.uarg != uarg {
        lose(Lost::Flight);
    }
    let before = if held.uarg == uarg { held.counted } else { 0 };
    let sends = u64::from(member::<u16>(uarg, UARG_LEN.load()).unwrap_or(0));
    // SAFETY: as above.
    unsafe { write_volatile(place, Sending { uarg, counted: sends }) };
    if let Some(record) = record() {
        add!(record, sends: sends.saturating_sub(before));
    }
}

#[fexit]
pub fn send_exit(ctx: FExitContext) -> i32 {
    sending(&ctx);
    0
}

#[fexit]
pub fn send_exit_again(ctx: FExitContext) -> i32 {
    sending(&ctx);
    0
}

/// A part of one or more sends is done with, in any context: with the last one they are complete.
#[fentry]
pub fn sent_entry(ctx: FEntryContext) -> i32 {
    let uarg = Traced::of(&ctx).slot(SENT_UARG.load() as u8);
    let place = SENDS.at(send_place(uarg));
    // SAFETY: a value of the array.
    let held = unsafe { read_volatile(place) };
    if uarg == 0 || held.uarg != uarg {
        return 0;
    }
    let refs: u32 = member(uarg, UARG_REFS.load()).unwrap_or(0);
    if SENT_LAST.load() == 0 && refs != 1 {
        return 0;
    }
    // SAFETY: as above.
    unsafe { write_volatile(place, Sending::NONE) };
    let sends = u64::from(member::<u16>(uarg, UARG_LEN.load()).unwrap_or(0));
    let whole = member::<u8>(uarg, UARG_ZEROCOPY.load()).unwrap_or(0) & 1;
    let success = Traced::of(&ctx).slot(SENT_SUCCESS.load() as u8) & 0xff != 0;
    let fell_back = if success && whole != 0 { 0 } else { sends };
    if let Some(record) = record() {
        add!(record, sends: sends.saturating_sub(held.counted), completed: sends, fell_back: fell_back);
    }
    0
}

#[inline(always)]
fn member<T>(address: u64, offset: u32) -> Option<T> {
    let place = address.wrapping_add(u64::from(offset)) as *const T;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(place) }.ok()
}
