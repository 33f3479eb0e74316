//! Which processes count: the daemon itself never, and of the others those that the user asked for.

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_uid_gid, bpf_probe_read_kernel,
        generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_get_current_task},
    },
};

use crate::tree;

/// 1: not all processes count.
#[unsafe(no_mangle)]
static FILTERED: Global<u32> = Global::new(0);
/// 1: only the processes of the followed tree count.
#[unsafe(no_mangle)]
pub static FOLLOW: Global<u32> = Global::new(0);
/// 1: only these thread groups count.
#[unsafe(no_mangle)]
static FILTER_BY_PID: Global<u32> = Global::new(0);
/// Thread groups that count; unused places repeat the first.
#[unsafe(no_mangle)]
static FILTER_PIDS: Global<[u32; 8]> = Global::new([0; 8]);
/// The cgroup that counts with all below it; any if it is 0.
#[unsafe(no_mangle)]
static FILTER_CGROUP: Global<u64> = Global::new(0);
/// How deep below the root that cgroup lies.
#[unsafe(no_mangle)]
static FILTER_CGROUP_LEVEL: Global<u32> = Global::new(0);
/// Offset of `ancestor_ids` in `struct cgroup`; 0 where it has none, and there is a helper.
#[unsafe(no_mangle)]
static CGROUP_ANCESTORS: Global<u32> = Global::new(0);
/// Offset of `level` in `struct cgroup`.
#[unsafe(no_mangle)]
static CGROUP_LEVEL: Global<u32> = Global::new(0);
/// Offset of `dfl_cgrp` in `struct css_set`.
#[unsafe(no_mangle)]
static CSS_SET_CGROUP: Global<u32> = Global::new(0);
/// Offset of `cgroups` in `struct task_struct`.
#[unsafe(no_mangle)]
static TASK_CGROUPS: Global<u32> = Global::new(0);
/// 1 more than the user that counts; any if it is 0.
#[unsafe(no_mangle)]
static FILTER_USER: Global<u64> = Global::new(0);
/// 1: only processes of this name count.
#[unsafe(no_mangle)]
static FILTER_BY_COMM: Global<u32> = Global::new(0);
/// The name of processes that count, as two words.
#[unsafe(no_mangle)]
static FILTER_COMM: Global<[u64; 2]> = Global::new([0; 2]);

/// Whether not all processes count.
#[inline(always)]
pub fn is_on() -> bool {
    FILTERED.load() != 0
}

/// Whether what this thread group does now counts, as far as its name is not asked for.
#[inline(always)]
pub fn passes(tgid: u32) -> bool {
    (FOLLOW.load() == 0 || tree::holds(tgid)) && passes_pids(tgid) && passes_user() && passes_cgroup()
}

#[inline(always)]
fn passes_pids(tgid: u32) -> bool {
    FILTER_BY_PID.load() == 0 || FILTER_PIDS.load().contains(&tgid)
}

#[inline(always)]
fn passes_user() -> bool {
    let user = FILTER_USER.load();
    user == 0 || user - 1 == bpf_get_current_uid_gid() & 0xffff_ffff
}

#[inline(always)]
fn passes_cgroup() -> bool {
    let cgroup = FILTER_CGROUP.load();
    if cgroup == 0 {
        return true;
    }
    let level = FILTER_CGROUP_LEVEL.load();
    if CGROUP_ANCESTORS.load() != 0 {
        return cgroup == ancestor(level);
    }
    // SAFETY: takes numbers and cannot fail; 0 where the task is not that deep.
    cgroup == unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) }
}

/// What that helper does, for kernels that do not offer it to tracing programs (5.10): 0 where the task is not that
/// deep, since the array has no more members than the cgroup has ancestors and itself.
#[inline(always)]
fn ancestor(level: u32) -> u64 {
    // SAFETY: returns the current task's address.
    let task = unsafe { bpf_get_current_task() };
    let set: Option<u64> = member(task, TASK_CGROUPS.load());
    let cgroup: Option<u64> = set.and_then(|set| member(set, CSS_SET_CGROUP.load()));
    let Some(cgroup) = cgroup else { return 0 };
    match member::<u32>(cgroup, CGROUP_LEVEL.load()) {
        Some(own) if own >= level => member(cgroup, CGROUP_ANCESTORS.load() + 8 * level).unwrap_or(0),
        _ => 0,
    }
}

#[inline(always)]
fn member<T>(address: u64, offset: u32) -> Option<T> {
    let place = address.wrapping_add(u64::from(offset)) as *const T;
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(place) }.ok()
}

/// The current task's cgroup.
#[inline(always)]
pub fn cgroup() -> u64 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { bpf_get_current_cgroup_id() }
}

/// Whether a process' name is asked for.
#[inline(always)]
pub fn by_comm() -> bool {
    FILTER_BY_COMM.load() != 0
}

/// Whether a process of this name counts.
#[inline(always)]
pub fn passes_comm(comm: [u64; 2]) -> bool {
    comm == FILTER_COMM.load()
}
