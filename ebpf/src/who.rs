//! Whose an event is: the slot of the current process on this CPU, see `iotrace_common::who`.

use core::{mem::offset_of, ptr::read_volatile, ptr::write_volatile};

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_pid_tgid, bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_probe_read_kernel_str},
    },
    macros::map,
    maps::RingBuf,
    programs::RawTracePointContext,
};
use iotrace_common::{
    block::Block,
    lost::Lost,
    who::{Counts, GENERATION_BITS, Handover, NOBODY, Slot, Who},
};

use crate::{
    arch,
    config::{self, TASK_PID, TASK_TGID},
    filter,
    maps::{Add as _, Own, Shared, block, cpu, lose},
    tree,
};

/// Offset of `group_leader` in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_LEADER: Global<u32> = Global::new(0);
/// Offset of `comm` in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_COMM: Global<u32> = Global::new(0);

/// How often a thread group id with these low bits was given, changed its program or its cgroup.
static GENERATIONS: Own<u32, { 1 << GENERATION_BITS }> = Own::new([0; 1 << GENERATION_BITS]);
/// What slots held when another process took them.
#[map]
static HANDOVERS: RingBuf = RingBuf::with_byte_size(1 << 19, 0);

/// Words of [`Counts`].
const WORDS: usize = size_of::<Counts>() / 8;
/// In the slot of [`NOBODY`], how many programs are about to claim a slot of this CPU.
const CLAIMS: usize = offset_of!(Slot, pad) / 8;

/// Whether what the current thread group does counts, as far as its name is not asked for.
#[inline(always)]
pub fn counted() -> bool {
    let tgid = arch::tgid();
    tgid != config::own() && (!filter::is_on() || filter::passes(tgid))
}

/// Where what the current thread group does on this CPU is counted; `None` if it does not count.
///
/// # Safety
/// `block` must be a value of the map.
#[inline(always)]
pub unsafe fn mine(block: *mut Block) -> Option<*mut Slot> {
    let tgid = arch::tgid();
    if tgid == config::own() {
        return None;
    }
    let filtered = filter::is_on();
    if filtered && !filter::passes(tgid) {
        return None;
    }
    // SAFETY: a value of the array, read whole.
    let generation = unsafe { read_volatile(GENERATIONS.at(Who::generation_place(tgid))) };
    // SAFETY: the number keeps within the array.
    let mut slot = unsafe { slot(block, Who::slot(tgid)) };
    // SAFETY: the slot is part of a map value.
    let who = unsafe { &(*slot).who };
    if who.tgid != tgid || who.generation != generation {
        slot = claim(tgid, generation);
        if slot.is_null() {
            return None;
        }
    }
    if filtered && filter::by_comm() {
        // SAFETY: the slot is part of a map value.
        let who = unsafe { &(*slot).who };
        // SAFETY: sixteen bytes, aligned to eight.
        let comm = unsafe { *(&raw const who.comm).cast::<[u64; 2]>() };
        if who.tgid != tgid {
            lose(Lost::Process);
            return None;
        }
        if !filter::passes_comm(comm) {
            return None;
        }
    }
    Some(slot)
}

/// The slot with this number, at most [`NOBODY`].
///
/// # Safety
/// `block` must be a value of the map.
#[inline(always)]
unsafe fn slot(block: *mut Block, number: u32) -> *mut Slot {
    // SAFETY: by contract.
    unsafe { (&raw mut (*block).slots).cast::<Slot>().add(number as usize) }
}

/// Takes the slot over for the current process, and hands over what it holds. Nobody's slot while another program
/// does the same: fentry programs may be preempted here.
#[inline(never)]
fn claim(tgid: u32, generation: u32) -> *mut Slot {
    let Some(block) = block() else { return core::ptr::null_mut() };
    let number = Who::slot(tgid);
    // SAFETY: both are parts of a map value; the words are aligned members of theirs.
    unsafe {
        let (nobody, slot) = (slot(block, NOBODY), slot(block, number));
        let claims = nobody.cast::<u64>().add(CLAIMS);
        Shared::add(claims, 1);
        // Of two that meet here at most one reads 1: each has added before it reads.
        if read_volatile(claims) != 1 {
            Shared::add(claims, 1u64.wrapping_neg());
            return nobody;
        }
        let turn = &raw mut (*slot).turn;
        let ends = read_volatile(turn);
        write_volatile(turn, ends + 1);
        hand_over(slot, nobody, number, ends);
        (*slot).who.tgid = tgid;
        (*slot).who.generation = generation;
        (*slot).who.cgroup = filter::cgroup();
        (*slot).who.comm = comm();
        write_volatile(turn, ends + 2);
        Shared::add(claims, 1u64.wrapping_neg());
        slot
    }
}

/// Sends what the slot holds to the daemon, or adds it to nobody's, and takes it out. Events that a preempted
/// program still adds stay in the slot: the sum is exact, only they go to the next process.
///
/// # Safety
/// Both must point to map values.
#[inline(always)]
unsafe fn hand_over(slot: *mut Slot, nobody: *mut Slot, number: u32, turn: u64) {
    // SAFETY: by contract; the words lie within the slots and the entry.
    unsafe {
        let counts = (&raw mut (*slot).counts).cast::<u64>();
        let mut any = 0;
        for word in 0..WORDS {
            any |= read_volatile(counts.add(word));
        }
        if any == 0 {
            return;
        }
        match HANDOVERS.reserve::<Handover>(0) {
            Some(mut entry) => {
                let sent = entry.as_mut_ptr();
                (*sent).cpu = cpu();
                (*sent).slot = number;
                (*sent).content.who = (*slot).who;
                (*sent).content.turn = turn;
                (*sent).content.pad = [0; 1];
                let sent = (&raw mut (*sent).content.counts).cast::<u64>();
                for word in 0..WORDS {
                    let count = read_volatile(counts.add(word));
                    write_volatile(sent.add(word), count);
                    Shared::add(counts.add(word), count.wrapping_neg());
                }
                entry.submit(0);
            }
            None => {
                let left = &raw mut (*nobody).turn;
                write_volatile(left, read_volatile(left) + 1);
                let rest = (&raw mut (*nobody).counts).cast::<u64>();
                for word in 0..WORDS {
                    let count = read_volatile(counts.add(word));
                    Shared::add(rest.add(word), count);
                    Shared::add(counts.add(word), count.wrapping_neg());
                }
                write_volatile(left, read_volatile(left) + 1);
            }
        }
    }
}

/// The name of the current thread group's leader.
#[inline(always)]
fn comm() -> [u8; 16] {
    // SAFETY: returns the current task's address.
    let task = unsafe { bpf_get_current_task() };
    let leader = task.wrapping_add(u64::from(TASK_LEADER.load())) as *const u64;
    // SAFETY: the helper checks the address.
    let leader = unsafe { bpf_probe_read_kernel(leader) }.unwrap_or(task);
    let source = leader.wrapping_add(u64::from(TASK_COMM.load()));
    // As text: behind its end the kernel leaves what an earlier, longer name had there.
    let mut comm = [0; 16];
    // SAFETY: the helper writes at most as many bytes as there are, and checks the address that it reads.
    let _unreadable =
        unsafe { bpf_probe_read_kernel_str((&raw mut comm).cast(), comm.len() as u32, source as *const _) };
    comm
}

/// A new thread group has an id that another may have had.
#[inline(always)]
pub fn fork(ctx: &RawTracePointContext) {
    let child: *const u8 = ctx.arg(1);
    let (Some(pid), Some(tgid)) =
        (tree::member(child, TASK_PID.load()), tree::member(child, TASK_TGID.load()))
    else {
        return;
    };
    if pid == tgid {
        renew(tgid);
    }
}

/// The current thread group runs another program.
#[inline(always)]
pub fn exec() {
    renew((bpf_get_current_pid_tgid() >> 32) as u32);
}

/// A thread group, or a thread of it, is in another cgroup.
#[inline(always)]
pub fn moved(ctx: &RawTracePointContext) {
    if let Some(tgid) = tree::member(ctx.arg(2), TASK_TGID.load()) {
        renew(tgid);
    }
}

#[inline(always)]
fn renew(tgid: u32) {
    // SAFETY: a value of the array.
    unsafe { Shared::add_word(GENERATIONS.at(Who::generation_place(tgid)), 1) };
}
