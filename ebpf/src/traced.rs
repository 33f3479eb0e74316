//! What a fentry or fexit program is told: the traced function's arguments and result, as numbers.

use aya_ebpf::{EbpfContext, helpers::bpf_probe_read_kernel};

/// Where a program is told it. The verifier forbids arithmetic on typed pointers, so all is read as numbers.
#[derive(Clone, Copy)]
pub struct Traced(u64);

impl Traced {
    /// What this context holds.
    #[inline(always)]
    pub fn of(ctx: &impl EbpfContext) -> Traced {
        let pointer = ctx.as_ptr();
        // SAFETY: reads the pointer back from this program's own stack: the verifier wants no arithmetic on itself.
        Traced(unsafe { bpf_probe_read_kernel((&raw const pointer).cast::<u64>()) }.unwrap_or(0))
    }

    /// An address on the task's kernel stack, the same at entry and exit, so it tells calls in flight apart as the stack
    /// pointer does.
    #[inline(always)]
    pub fn key(self) -> u64 {
        self.0
    }

    /// The function's argument at `position`, or its result at the position behind the last.
    #[inline(always)]
    pub fn slot(self, position: u8) -> u64 {
        let slot = self.0.wrapping_add(u64::from(position) * 8) as *const u64;
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(slot) }.unwrap_or(0)
    }
}
