//! The kernel side of iotrace.
//!
//! Constant work per event: no loop over segments, no string, no hash map on the always-on path. What cannot
//! be counted is counted as lost.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(missing_docs, reason = "the program macros drop the comments of what they expand")]

mod arch;
mod config;
mod filter;
mod flight;
mod import;
mod iov_iter;
mod iter;
mod maps;
mod traced;
mod tree;
mod who;
mod zerocopy;

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{kprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext},
};
use aya_log_ebpf::info;

/// The call instruction of an import, or some instruction before it.
#[kprobe]
pub fn import_call(ctx: ProbeContext) -> u32 {
    import::call(&ctx);
    0
}

/// The instruction after the call of an import.
#[kprobe]
pub fn import_return(ctx: ProbeContext) -> u32 {
    import::returned(&ctx);
    0
}

/// The instruction after the call of an import whose arguments can still be told there.
#[kprobe]
pub fn import_done(ctx: ProbeContext) -> u32 {
    import::done(&ctx);
    0
}

/// The instruction after the call of an import by a system call whose third argument is the number of segments.
#[kprobe]
pub fn import_vector(ctx: ProbeContext) -> u32 {
    import::vector(&ctx);
    0
}

/// The call instruction of a walker, or some instruction before it.
#[kprobe]
pub fn iter_call(ctx: ProbeContext) -> u32 {
    iter::call(&ctx);
    0
}

/// The instruction after the call of a walker.
#[kprobe]
pub fn iter_return(ctx: ProbeContext) -> u32 {
    iter::returned(&ctx);
    0
}

/// Run once by the daemon through `BPF_PROG_TEST_RUN` (≥ 5.10): learns the daemon's thread group id as the
/// kernel knows it, which a process in a pid namespace cannot tell.
#[raw_tracepoint]
pub fn whoami(ctx: RawTracePointContext) -> i32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    config::set_own(tgid);
    if config::DIAGNOSE.load() != 0 {
        info!(&ctx, "thread group {} is left out: the daemon's own", tgid);
    }
    tgid as i32
}

/// `sys_enter(regs, number)`, attached for a moment before 5.15: a system call of the daemon's own shows where
/// the registers of one are saved.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn whereis(ctx: RawTracePointContext) -> i32 {
    if (bpf_get_current_pid_tgid() >> 32) as u32 == config::own() {
        config::set_saved(arch::measure(ctx.arg(0)));
    }
    0
}

/// `sched_process_fork(parent, child)`: the followed tree grows.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn tree_fork(ctx: RawTracePointContext) -> i32 {
    tree::fork(&ctx);
    0
}

/// `sched_process_fork(parent, child)`: an id may have been given again.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn who_fork(ctx: RawTracePointContext) -> i32 {
    who::fork(&ctx);
    0
}

/// `sched_process_exec(task, old_pid, bprm)`: a process has another name.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn who_exec(_ctx: RawTracePointContext) -> i32 {
    who::exec();
    0
}

/// `cgroup_attach_task(cgroup, path, task, threadgroup)`: a process is in another cgroup.
#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
pub fn who_moved(ctx: RawTracePointContext) -> i32 {
    who::moved(&ctx);
    0
}

/// `sched_process_free(task)`: nobody can use this id any more, until it is given again.
#[raw_tracepoint(tracepoint = "sched_process_free")]
pub fn tree_free(ctx: RawTracePointContext) -> i32 {
    tree::free(&ctx);
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
