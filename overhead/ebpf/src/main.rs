//! Programs that do nothing, or only what no timing can do without: what a probe itself costs.
#![no_std]
#![no_main]
#![expect(missing_docs, reason = "the program macros drop the comments of what they expand")]

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{fentry, fexit, kprobe},
    programs::{FEntryContext, FExitContext, ProbeContext},
};

#[kprobe]
pub fn empty_kprobe(_ctx: ProbeContext) -> u32 {
    0
}

/// Reads the clock: half of what any timing costs at least.
#[kprobe]
pub fn clock_kprobe(_ctx: ProbeContext) -> u32 {
    // SAFETY: the helper has no preconditions.
    (unsafe { bpf_ktime_get_ns() }) as u32 & 1
}

#[fentry(function = "vfs_readv")]
pub fn empty_fentry(_ctx: FEntryContext) -> i32 {
    0
}

#[fexit(function = "vfs_readv")]
pub fn empty_fexit(_ctx: FExitContext) -> i32 {
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The helpers used here are offered to GPL programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
