//! Whose an event is: the slot of the current process on this CPU, see `iotrace_common::who`.

use core::{mem::offset_of, ptr::read_volatile, ptr::write_volatile};

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_pid_tgid, bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_probe_read_kernel_str},
    },
    macros::map,
    maps::{Array, RingBuf},
    programs::RawTracePointContext,
};
use iotrace_common::{
    lost::Lost,
    who::{Counts, GENERATION_BITS, Handover, NOBODY, SLOTS, Slot, Who},
};

use crate::{
    config::{TASK_PID, TASK_TGID},
    filter,
    maps::{Add as _, MMAPABLE, Own, Shared, lose},
    tree,
};

/// Offset of `group_leader` in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_LEADER: Global<u32> = Global::new(0);
/// Offset of `comm` in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_COMM: Global<u32> = Global::new(0);

/// What processes did: CPU × slot.
#[map]
static PROCESSES: Array<Slot> = Array::with_max_entries(SLOTS, MMAPABLE);
/// How often a thread group id with these low bits was given or changed its program.
static GENERATIONS: Own<u64, { 1 << GENERATION_BITS }> = Own::new([0; 1 << GENERATION_BITS]);
/// What slots held when another process took them.
#[map]
static HANDOVERS: RingBuf = RingBuf::with_byte_size(1 << 19, 0);

/// Words of [`Counts`].
const WORDS: usize = size_of::<Counts>() / 8;
/// In the slot of [`NOBODY`], how many programs are about to claim a slot of this CPU.
const CLAIMS: usize = offset_of!(Slot, pad) / 8;

/// The current thread group, if what it does counts, as far as its name is not asked for.
#[inline(always)]
pub fn counted() -> Option<u32> {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    filter::passes(tgid).then_some(tgid)
}

/// The slot of the current thread group at the return of a call that was counted for it. In the middle of a call it cannot
/// have become another one, so its id is enough.
#[inline(always)]
pub fn still_mine(cpu: u32, tgid: u32) -> Option<*mut Slot> {
    let slot = PROCESSES.get_ptr_mut(cpu * SLOTS + Who::slot(tgid))?;
    // SAFETY: the slot is a map value.
    if unsafe { (*slot).who.tgid } == tgid { Some(slot) } else { mine(cpu, tgid) }
}

/// The slot of the current thread group on this CPU; `None` if it does not count.
#[inline(always)]
pub fn mine(cpu: u32, tgid: u32) -> Option<*mut Slot> {
    // SAFETY: a value of the array, read whole.
    let generation = unsafe { read_volatile(GENERATIONS.at(Who::generation_place(tgid))) } as u32;
    let cgroup = filter::cgroup();
    let mut slot = PROCESSES.get_ptr_mut(cpu * SLOTS + Who::slot(tgid))?;
    // SAFETY: the slot is a map value.
    let who = unsafe { &(*slot).who };
    if who.tgid != tgid || who.generation != generation || who.cgroup != cgroup {
        slot = claim(cpu, tgid, generation, cgroup);
        if slot.is_null() {
            return None;
        }
    }
    if filter::by_comm() {
        // SAFETY: the slot is a map value.
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

/// Takes the slot over for the current process, and hands over what it holds. Nobody's slot while another program
/// does the same: fentry programs may be preempted here.
#[inline(never)]
fn claim(cpu: u32, tgid: u32, generation: u32, cgroup: u64) -> *mut Slot {
    let number = Who::slot(tgid);
    let (Some(nobody), Some(slot)) =
        (PROCESSES.get_ptr_mut(cpu * SLOTS + NOBODY), PROCESSES.get_ptr_mut(cpu * SLOTS + number))
    else {
        return core::ptr::null_mut();
    };
    // SAFETY: both are map values; the words are aligned members of theirs.
    unsafe {
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
        hand_over(slot, nobody, cpu, number, ends);
        (*slot).who.tgid = tgid;
        (*slot).who.generation = generation;
        (*slot).who.cgroup = cgroup;
        (*slot).who.comm = comm();
        write_volatile(turn, ends + 2);
        Shared::add(claims, 1u64.wrapping_neg());
    }
    slot
}

/// Sends what the slot holds to the daemon, or adds it to nobody's, and takes it out. Events that a preempted
/// program still adds stay in the slot: the sum is exact, only they go to the next process.
///
/// # Safety
/// Both must point to map values.
#[inline(always)]
unsafe fn hand_over(slot: *mut Slot, nobody: *mut Slot, cpu: u32, number: u32, turn: u64) {
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
                (*sent).cpu = cpu;
                (*sent).slot = number;
                (*sent).content.who = (*slot).who;
                (*sent).content.turn = turn;
                (*sent).content.pad = [0; 2];
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

#[inline(always)]
fn renew(tgid: u32) {
    // SAFETY: a value of the array.
    unsafe { Shared::add(GENERATIONS.at(Who::generation_place(tgid)), 1) };
}
