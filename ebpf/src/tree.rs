//! The process tree of `iotrace top -- CMD`: CMD and all its descendants, by thread group.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel},
    programs::RawTracePointContext,
};

use crate::{
    config::{self, TASK_PID, TASK_TGID},
    maps::TREE,
};

/// Whether this thread group is followed.
#[inline(always)]
pub fn holds(tgid: u32) -> bool {
    TREE.get_ptr(tgid).is_some()
}

/// A child of the daemon itself, or of a followed group, is followed.
#[inline(always)]
pub fn fork(ctx: &RawTracePointContext) {
    let parent = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(child) = member(ctx.arg(1), TASK_TGID.load()) else { return };
    if child != parent && (parent == config::own() || holds(parent)) {
        let _full = TREE.insert(child, 1, 0);
    }
}

/// The leader is freed last of its group, so then the group is gone.
#[inline(always)]
pub fn free(ctx: &RawTracePointContext) {
    let task: *const u8 = ctx.arg(0);
    let (Some(pid), Some(tgid)) = (member(task, TASK_PID.load()), member(task, TASK_TGID.load())) else {
        return;
    };
    if pid == tgid {
        let _absent = TREE.remove(tgid);
    }
}

#[inline(always)]
pub fn member(task: *const u8, offset: u32) -> Option<u32> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(task.wrapping_add(offset as usize).cast::<u32>()) }.ok()
}
