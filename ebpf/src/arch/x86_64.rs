//! x86-64: System V calling convention, `struct pt_regs` of arch/x86/include/asm/ptrace.h.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs},
    },
    programs::ProbeContext,
};

use crate::config::{SYSCALL_FROM, TASK_STATUS, THREAD_SIZE};

/// [`SYSCALL_FROM`]: `bpf_task_pt_regs` (≥ 5.15).
const HELPER: u32 = 1;
/// [`SYSCALL_FROM`]: the top of the kernel stack, where the entry code puts `struct pt_regs`. Only for
/// kernels before 5.15, none of which leaves a gap there (`TOP_OF_KERNEL_STACK_PADDING` is 0).
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

    /// The argument at this position, 0 to 5.
    #[inline(always)]
    pub fn argument(self, position: u8) -> u64 {
        // SAFETY: as above, in every arm.
        unsafe {
            match position {
                0 => (*self.0).rdi,
                1 => (*self.0).rsi,
                2 => (*self.0).rdx,
                3 => (*self.0).rcx,
                4 => (*self.0).r8,
                _ => (*self.0).r9,
            }
        }
    }
}

/// The number of the system call in progress, and whether it is a 32-bit one. For a kernel thread, and where
/// it cannot be told, a number that no system call has.
#[inline(always)]
pub fn syscall(regs: Regs) -> (u64, bool) {
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
            let top = (regs.stack_pointer() | THREAD_SIZE.load().wrapping_sub(1)).wrapping_add(1);
            let saved = top.wrapping_sub(size_of::<pt_regs>() as u64) as *const pt_regs;
            // SAFETY: the helper checks the address.
            let number = unsafe { bpf_probe_read_kernel(&raw const (*saved).orig_rax) };
            // SAFETY: as above.
            let status = unsafe { bpf_probe_read_kernel(status) };
            (number.unwrap_or(u64::MAX), status.unwrap_or(0) & TS_COMPAT != 0)
        }
        _ => (u64::MAX, false),
    }
}
