//! The maps, each beside its value type, and the way to a CPU's own block.
//!
//! Totals lie in plain arrays that the daemon maps into its memory: a block per CPU, so no CPU writes where
//! another does. kprobe programs never nest on a CPU (`bpf_prog_active`), so they add without a lock; fentry
//! programs may be preempted, so theirs is an atomic instruction (see [`Add`]).

use core::{arch::asm, cell::UnsafeCell};

use aya_ebpf::{
    helpers::generated::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, HashMap},
};
use iotrace_common::{
    import::{ImportRecord, Path},
    iter::IterRecord,
    lost::{Lost, LostRecord},
    site::{FENTRIES, OFF, SYSCALLS, Site, SiteSet},
};

use crate::config::{FUNCTIONS, KINDS, SITE_BITS};

/// `BPF_F_MMAPABLE` (include/uapi/linux/bpf.h, 5.5).
pub const MMAPABLE: u32 = 1 << 10;

/// Totals of imports: CPU × path.
#[map]
static IMPORTS: Array<ImportRecord> = Array::with_max_entries(1, MMAPABLE);
/// Totals of walkers: CPU × function × kind.
#[map]
static ITERS: Array<IterRecord> = Array::with_max_entries(1, MMAPABLE);
/// Losses: CPU.
#[map]
static LOST: Array<LostRecord> = Array::with_max_entries(1, MMAPABLE);
/// Sites by address.
#[map]
static SITES: Array<SiteSet> = Array::with_max_entries(1, MMAPABLE);
/// Sites probed by fentry and fexit, by the number of the program.
#[map]
static FENTRY_SITES: Array<Site> = Array::with_max_entries(FENTRIES as u32, MMAPABLE);
/// System calls probed by fexit, by the number of the program.
#[map]
static SYSCALL_SITES: Array<Site> = Array::with_max_entries(SYSCALLS as u32, MMAPABLE);
/// Thread groups of the followed tree; empty unless one is followed.
#[map]
pub static TREE: HashMap<u32, u8> = HashMap::with_max_entries(1 << 15, 1 /* BPF_F_NO_PREALLOC */);

/// How a total is added to.
pub trait Add {
    /// Adds `n` to the total at `total`.
    ///
    /// # Safety
    /// `total` must point into a map value.
    unsafe fn add(total: *mut u64, n: u64);
}

/// From a program that nothing on this CPU can interrupt to write the same total.
pub struct Alone;
/// From a program that may be preempted or interrupted.
pub struct Shared;

impl Add for Alone {
    #[inline(always)]
    unsafe fn add(total: *mut u64, n: u64) {
        // SAFETY: by contract it points into a map value; only this CPU writes it.
        unsafe { *total += n };
    }
}

impl Add for Shared {
    #[inline(always)]
    unsafe fn add(total: *mut u64, n: u64) {
        // SAFETY: by contract it points into a map value, and totals are aligned. Every kernel since 3.19 has
        // this form of the instruction; core offers no `fetch_add` on this target.
        unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) total, in(reg) n, options(nostack)) };
    }
}

#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { bpf_get_smp_processor_id() }
}

/// The totals of a path on a CPU.
#[inline(always)]
pub fn import_record(cpu: u32, path: u8) -> Option<*mut ImportRecord> {
    IMPORTS.get_ptr_mut(cpu * Path::COUNT as u32 + u32::from(path))
}

/// The number of a function's and kind's record within a CPU's block.
#[inline(always)]
pub fn iter_index(function: u8, kind: u32) -> u32 {
    u32::from(function) * KINDS.load() + kind
}

/// The totals with that number on a CPU.
#[inline(always)]
pub fn iter_record(cpu: u32, index: u32) -> Option<*mut IterRecord> {
    ITERS.get_ptr_mut(cpu * (FUNCTIONS.load() * KINDS.load()) + index)
}

/// The site at this address.
#[inline(always)]
pub fn site(address: u64) -> Option<&'static Site> {
    SITES.get(SiteSet::of(address, SITE_BITS.load()))?.find(address)
}

/// The site of the fentry program with this number.
#[inline(always)]
pub fn fentry_site(number: u32) -> Option<&'static Site> {
    FENTRY_SITES.get(number)
}

/// The site of the system call's program with this number.
#[inline(always)]
pub fn syscall_site(number: u32) -> Option<&'static Site> {
    SYSCALL_SITES.get(number)
}

/// The site that was found, if anything is counted there.
#[inline(always)]
pub fn live(found: Option<&'static Site>) -> Option<&'static Site> {
    let Some(site) = found else {
        lose(Lost::Site);
        return None;
    };
    (site.state != OFF).then_some(site)
}

/// Values that only the kernel side reads and writes: in its own data, which it reaches without a look-up. As many as
/// a power of two.
#[repr(transparent)]
pub struct Own<T, const N: usize>(UnsafeCell<[T; N]>);

// SAFETY: whoever reads or writes through the pointers sees to it that others may do so, too.
unsafe impl<T, const N: usize> Sync for Own<T, N> {}

impl<T, const N: usize> Own<T, N> {
    /// All zero.
    pub const fn new(zero: [T; N]) -> Self {
        const { assert!(N.is_power_of_two()) };
        Own(UnsafeCell::new(zero))
    }

    /// The value with this number; numbers start again behind the last.
    #[inline(always)]
    pub fn at(&self, number: u32) -> *mut T {
        // SAFETY: the mask keeps the number within the array.
        unsafe { self.0.get().cast::<T>().add(number as usize & (N - 1)) }
    }
}

/// Counts an event that could not be counted.
#[inline(always)]
pub fn lose(reason: Lost) {
    if let Some(record) = LOST.get_ptr_mut(cpu()) {
        // SAFETY: the record is a map value; rare, so the atomic form serves both kinds of program.
        unsafe { Shared::add(&raw mut (*record).events[reason as usize], 1) };
    }
}
