//! Which processes count: the daemon itself never, and of the others those that the user asked for.

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_uid_gid,
        generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id},
    },
};

use crate::{config, tree};

/// 1: only the processes of the followed tree count.
#[unsafe(no_mangle)]
pub static FOLLOW: Global<u32> = Global::new(0);
/// Thread groups that count, any if the first is 0; unused places repeat the first.
#[unsafe(no_mangle)]
static FILTER_PIDS: Global<[u32; 8]> = Global::new([0; 8]);
/// The cgroup that counts with all below it; any if it is 0.
#[unsafe(no_mangle)]
static FILTER_CGROUP: Global<u64> = Global::new(0);
/// How deep below the root that cgroup lies.
#[unsafe(no_mangle)]
static FILTER_CGROUP_LEVEL: Global<u32> = Global::new(0);
/// 1 more than the user that counts; any if it is 0.
#[unsafe(no_mangle)]
static FILTER_USER: Global<u64> = Global::new(0);
/// The name of processes that count, as two words; any if the first is 0.
#[unsafe(no_mangle)]
static FILTER_COMM: Global<[u64; 2]> = Global::new([0; 2]);

/// Whether what this thread group does now counts, as far as its name is not asked for.
#[inline(always)]
pub fn passes(tgid: u32) -> bool {
    tgid != config::own()
        && (FOLLOW.load() == 0 || tree::holds(tgid))
        && passes_pids(tgid)
        && passes_user()
        && passes_cgroup()
}

#[inline(always)]
fn passes_pids(tgid: u32) -> bool {
    let [a, b, c, d, e, f, g, h] = FILTER_PIDS.load();
    a == 0 || [a, b, c, d, e, f, g, h].contains(&tgid)
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
    // SAFETY: takes numbers and cannot fail; 0 where the task is not that deep.
    cgroup == unsafe { bpf_get_current_ancestor_cgroup_id(FILTER_CGROUP_LEVEL.load() as i32) }
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
    FILTER_COMM.load()[0] != 0
}

/// Whether a process of this name counts.
#[inline(always)]
pub fn passes_comm(comm: [u64; 2]) -> bool {
    comm == FILTER_COMM.load()
}
