//! x86-64: System V calling convention, `struct pt_regs` of arch/x86/include/asm/ptrace.h.

use core::{arch::asm, mem::offset_of};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_pid_tgid, bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs},
    },
    programs::ProbeContext,
};

use iotrace_common::site::{CONSTANT, MEMORY, Value};

use crate::config::{self, SYSCALL_FROM, TASK_STACK, TASK_STATUS, TASK_TGID};
use crate::iov_iter;

/// [`SYSCALL_FROM`]: `bpf_task_pt_regs` (≥ 5.15).
const HELPER: u32 = 1;
/// [`SYSCALL_FROM`]: the place on the task's stack that [`measure`] found.
const STACK: u32 = 2;

/// `TS_COMPAT` (arch/x86/include/asm/thread_info.h): a 32-bit system call is in progress.
const TS_COMPAT: u32 = 2;

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

    /// A number that is here. What cannot be read, and the system call's, is 0.
    #[inline(always)]
    pub fn value(self, value: Value) -> u64 {
        if value.mode == CONSTANT {
            return value.add as u64;
        }
        let found = self.register(value.base).wrapping_add_signed(i64::from(value.add));
        let found = if value.mode == MEMORY { iov_iter::word(found) } else { found };
        if value.narrow { u64::from(found as u32) } else { found }
    }

    /// The register with this number, see [`Value::base`].
    ///
    /// In one piece, since the compiler makes one load at a computed offset of the arms of a `match`, and the verifier
    /// wants constant offsets into a context.
    #[inline(always)]
    fn register(self, number: u8) -> u64 {
        let value: u64;
        // SAFETY: the context of a kprobe is a whole `struct pt_regs`. Whatever the number, it is read within.
        unsafe {
            asm!(
                "if {2} > 7 goto 28f",
                "if {2} > 3 goto 24f",
                "if {2} > 1 goto 22f",
                "if {2} > 0 goto 21f",
                "{0} = *(u64 *)({1} + {rax})",
                "goto 90f",
                "21:",
                "{0} = *(u64 *)({1} + {rcx})",
                "goto 90f",
                "22:",
                "if {2} > 2 goto 23f",
                "{0} = *(u64 *)({1} + {rdx})",
                "goto 90f",
                "23:",
                "{0} = *(u64 *)({1} + {rbx})",
                "goto 90f",
                "24:",
                "if {2} > 5 goto 26f",
                "if {2} > 4 goto 25f",
                "{0} = *(u64 *)({1} + {rsp})",
                "goto 90f",
                "25:",
                "{0} = *(u64 *)({1} + {rbp})",
                "goto 90f",
                "26:",
                "if {2} > 6 goto 27f",
                "{0} = *(u64 *)({1} + {rsi})",
                "goto 90f",
                "27:",
                "{0} = *(u64 *)({1} + {rdi})",
                "goto 90f",
                "28:",
                "if {2} > 11 goto 32f",
                "if {2} > 9 goto 30f",
                "if {2} > 8 goto 29f",
                "{0} = *(u64 *)({1} + {r8})",
                "goto 90f",
                "29:",
                "{0} = *(u64 *)({1} + {r9})",
                "goto 90f",
                "30:",
                "if {2} > 10 goto 31f",
                "{0} = *(u64 *)({1} + {r10})",
                "goto 90f",
                "31:",
                "{0} = *(u64 *)({1} + {r11})",
                "goto 90f",
                "32:",
                "if {2} > 13 goto 34f",
                "if {2} > 12 goto 33f",
                "{0} = *(u64 *)({1} + {r12})",
                "goto 90f",
                "33:",
                "{0} = *(u64 *)({1} + {r13})",
                "goto 90f",
                "34:",
                "if {2} > 14 goto 35f",
                "{0} = *(u64 *)({1} + {r14})",
                "goto 90f",
                "35:",
                "{0} = *(u64 *)({1} + {r15})",
                "90:",
                out(reg) value,
                in(reg) self.0,
                in(reg) u64::from(number),
                rax = const offset_of!(pt_regs, rax),
                rcx = const offset_of!(pt_regs, rcx),
                rdx = const offset_of!(pt_regs, rdx),
                rbx = const offset_of!(pt_regs, rbx),
                rsp = const offset_of!(pt_regs, rsp),
                rbp = const offset_of!(pt_regs, rbp),
                rsi = const offset_of!(pt_regs, rsi),
                rdi = const offset_of!(pt_regs, rdi),
                r8 = const offset_of!(pt_regs, r8),
                r9 = const offset_of!(pt_regs, r9),
                r10 = const offset_of!(pt_regs, r10),
                r11 = const offset_of!(pt_regs, r11),
                r12 = const offset_of!(pt_regs, r12),
                r13 = const offset_of!(pt_regs, r13),
                r14 = const offset_of!(pt_regs, r14),
                r15 = const offset_of!(pt_regs, r15),
                options(nostack, readonly),
            );
        }
        value
    }
}

/// The system call in progress, as its saved registers tell it.
pub struct Syscall {
    /// Its number. For a kernel thread, and where it cannot be told, one that no system call has.
    pub number: u64,
    /// Whether it is a 32-bit one.
    pub compat: bool,
}

impl Syscall {
    /// None.
    pub const NONE: Syscall = Syscall { number: u64::MAX, compat: false };
}

/// The current thread group.
#[inline(always)]
pub fn tgid() -> u32 {
    if SYSCALL_FROM.load() != HELPER {
        return (bpf_get_current_pid_tgid() >> 32) as u32;
    }
    // SAFETY: returns the current task, which lives as long as we do.
    let task = unsafe { bpf_get_current_task_btf() };
    // SAFETY: the offset is that of the member in this kernel's BTF; the verifier checks it.
    unsafe { *task.cast::<u8>().wrapping_add(TASK_TGID.load() as usize).cast::<u32>() }
}

/// Number and third argument of the system call in progress (≥ 5.15).
#[inline(always)]
pub fn syscall_vector() -> (u64, u64) {
    // SAFETY: returns the current task, which lives as long as we do; the verifier knows the types, and guards the reads.
    unsafe {
        let saved = bpf_task_pt_regs(bpf_get_current_task_btf()) as *const pt_regs;
        ((*saved).orig_rax, (*saved).rdx)
    }
}

/// The system call in progress.
#[inline(always)]
pub fn syscall() -> Syscall {
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
            Syscall { number, compat: status & TS_COMPAT != 0 }
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
                (1.., Ok(number), Ok(status)) => Syscall { number, compat: status & TS_COMPAT != 0 },
                _ => Syscall::NONE,
            }
        }
        _ => Syscall::NONE,
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
