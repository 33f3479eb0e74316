//! x86-64: System V calling convention, `struct pt_regs` of arch/x86/include/asm/ptrace.h.

use core::{arch::asm, mem::offset_of};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs},
    },
    programs::ProbeContext,
};

use crate::config::{self, SYSCALL_FROM, TASK_STACK, TASK_STATUS};

/// [`SYSCALL_FROM`]: `bpf_task_pt_regs` (≥ 5.15).
const HELPER: u32 = 1;
/// [`SYSCALL_FROM`]: the place on the task's stack that [`measure`] found.
const STACK: u32 = 2;

/// `TS_COMPAT` (arch/x86/include/asm/thread_info.h): a 32-bit system call is in progress.
const TS_COMPAT: u32 = 2;

/// Loads a register by an instruction of its own: the compiler would merge the arms of a `match` into one load
/// at a computed offset, and the verifier wants constant offsets into a context.
macro_rules! load {
    ($regs:expr, $register:ident) => {{
        let value: u64;
        // SAFETY: the context of a kprobe is a whole `struct pt_regs`.
        unsafe {
            asm!(
                "{0} = *(u64 *)({1} + {offset})",
                out(reg) value,
                in(reg) $regs,
                offset = const offset_of!(pt_regs, $register),
                options(nostack, readonly, pure),
            )
        };
        value
    }};
}

/// The registers at a probed instruction.
#[derive(Clone, Copy)]
pub struct Regs(*const pt_regs);

impl Regs {
    #[inline(always)]
    pub fn of(ctx: &ProbeContext) -> Regs {
        Regs(ctx.regs)
    }

    /// Address of the probed instruction: a kprobe of any sort reports the one after its `int3`.
    #[inline(always)]
    pub fn address(self) -> u64 {
        // SAFETY: the context of a kprobe is a whole `struct pt_regs`.
        unsafe { (*self.0).rip }.wrapping_sub(1)
    }

    #[inline(always)]
    pub fn stack_pointer(self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.0).rsp }
    }

    #[inline(always)]
    pub fn result(self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.0).rax }
    }

    /// The argument at this position, 0 to 5.
    #[inline(always)]
    pub fn argument(self, position: u8) -> u64 {
        match position {
            0 => load!(self.0, rdi),
            1 => load!(self.0, rsi),
            2 => load!(self.0, rdx),
            3 => load!(self.0, rcx),
            4 => load!(self.0, r8),
            _ => load!(self.0, r9),
        }
    }
}

/// The number of the system call in progress, and whether it is a 32-bit one. For a kernel thread, and where
/// it cannot be told, a number that no system call has.
#[inline(always)]
pub fn syscall() -> (u64, bool) {
    match SYSCALL_FROM.load() {
        HELPER => {
            // SAFETY: returns the current task, which lives as long as we do.
            let task = unsafe { bpf_get_current_task_btf() };
            // SAFETY: the verifier knows the task's type.
            let saved = unsafe { bpf_task_pt_regs(task) } as *const pt_regs;
            // SAFETY: the verifier knows the type of what the helper returned, and guards the read.
            let number = unsafe { (*saved).orig_rax };
            let status = task.cast::<u8>().wrapping_add(TASK_STATUS.load() as usize).cast::<u32>();
            // SAFETY: the offset is that of the member in this kernel's BTF; the verifier checks it.
            let status = unsafe { *status };
            (number, status & TS_COMPAT != 0)
        }
        STACK => {
            // SAFETY: returns the current task's address.
            let task = unsafe { bpf_get_current_task() };
            let status = task.wrapping_add(u64::from(TASK_STATUS.load())) as *const u32;
            let saved = stack(task).wrapping_add(config::saved()) as *const pt_regs;
            // SAFETY: the helper checks the address.
            let number = unsafe { bpf_probe_read_kernel(&raw const (*saved).orig_rax) };
            // SAFETY: as above.
            let status = unsafe { bpf_probe_read_kernel(status) };
            match (config::saved(), number, status) {
                (1.., Ok(number), Ok(status)) => (number, status & TS_COMPAT != 0),
                _ => (u64::MAX, false),
            }
        }
        _ => (u64::MAX, false),
    }
}

/// The argument at this position of the system call whose registers are saved there. Only the third is asked for:
/// it is in the same register in 64-bit and in 32-bit calls.
#[inline(always)]
pub fn syscall_argument(saved: u64, position: u8) -> Option<u64> {
    let saved = saved as *const pt_regs;
    if position != 2 {
        return None;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(&raw const (*saved).rdx) }.ok()
}

/// At `sys_enter(regs, number)`: measures how far above the stack the user registers are saved. Neither
/// `THREAD_SIZE` nor the gap at its end is in BTF.
#[inline(always)]
pub fn measure(regs: u64) -> u64 {
    // SAFETY: returns the current task's address.
    regs.wrapping_sub(stack(unsafe { bpf_get_current_task() }))
}

#[inline(always)]
fn stack(task: u64) -> u64 {
    let member = task.wrapping_add(u64::from(TASK_STACK.load())) as *const u64;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(member) }.unwrap_or(0)
}
