//! What a fentry or fexit program is told: the traced function's arguments and result, as numbers.

use aya_ebpf::{EbpfContext, helpers::bpf_probe_read_kernel};

/// The context as a number. Its address lies on the task's kernel stack, the same at entry and exit, so it
/// tells calls in flight apart as the stack pointer does; the verifier wants no arithmetic on the pointer itself.
#[inline(always)]
pub fn key(ctx: &impl EbpfContext) -> u64 {
    let pointer = ctx.as_ptr();
    // SAFETY: reads the pointer back from this program's own stack.
    unsafe { bpf_probe_read_kernel((&raw const pointer).cast::<u64>()) }.unwrap_or(0)
}

/// The traced function's argument at `position`, or its result at the position behind the last. Read as a
/// number, whatever its type: the verifier forbids arithmetic on typed pointers.
#[inline(always)]
pub fn slot(ctx: &impl EbpfContext, position: u8) -> u64 {
    let slot = key(ctx).wrapping_add(u64::from(position) * 8) as *const u64;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(slot) }.unwrap_or(0)
}
