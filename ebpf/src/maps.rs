//! The maps, each beside its value type, and the way to a CPU's own block.
//!
//! Totals lie in plain arrays that the daemon maps into its memory: a block per CPU, so no CPU writes where
//! another does. kprobe programs never nest on a CPU (`bpf_prog_active`), so they add without a lock; fentry
//! programs may be preempted, so theirs is an atomic instruction (see [`Add`]).

use core::{
    arch::asm,
    cell::UnsafeCell,
    ptr::{null_mut, read_volatile, write_volatile},
};

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::{bpf_get_attach_cookie, bpf_get_smp_processor_id},
    macros::map,
    maps::{Array, HashMap},
    programs::ProbeContext,
};
use iotrace_common::{
    block::{Block, PAIRS, ROWS},
    import::{ImportRecord, Path},
    iter::IterRecord,
    lost::Lost,
    site::{FENTRIES, Packed, SYSCALLS, Site, SiteSet},
};

use crate::{
    arch::Regs,
    config::{COOKIES, KINDS, SITE_BITS},
};

/// `BPF_F_MMAPABLE` (include/uapi/linux/bpf.h, 5.5).
pub const MMAPABLE: u32 = 1 << 10;

/// What each CPU counts.
#[map]
static BLOCKS: Array<Block> = Array::with_max_entries(1, MMAPABLE);
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

impl Shared {
    /// Adds `n` to a total of 32 bits.
    ///
    /// # Safety
    /// As of [`Add::add`].
    #[inline(always)]
    pub unsafe fn add_word(total: *mut u32, n: u32) {
        // SAFETY: as in [`Add::add`].
        unsafe {
            asm!("lock *(u32 *)({0} + 0) += {1}", in(reg) total, in(reg) u64::from(n), options(nostack));
        }
    }
}

#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { bpf_get_smp_processor_id() }
}

/// What this CPU counts.
#[inline(always)]
pub fn block() -> Option<*mut Block> {
    BLOCKS.get_ptr_mut(cpu())
}

/// The totals of a path.
///
/// # Safety
/// `block` must be a value of the map.
#[inline(always)]
pub unsafe fn import_record(block: *mut Block, path: u8) -> Option<*mut ImportRecord> {
    // SAFETY: within the array.
    (usize::from(path) < Path::COUNT)
        .then(|| unsafe { (&raw mut (*block).imports).cast::<ImportRecord>().add(usize::from(path)) })
}

/// The totals of a function and a kind; null if there is no room for another pair.
///
/// # Safety
/// `block` must be a value of the map.
#[inline(always)]
pub unsafe fn iter_record(block: *mut Block, function: u8, kind: u32) -> *mut IterRecord {
    let pair = (u32::from(function) * KINDS.load() + kind) as usize & (PAIRS - 1);
    // SAFETY: the mask keeps the row within the arrays.
    unsafe {
        let mut row = read_volatile((&raw const (*block).rows).cast::<u8>().add(pair));
        if row == 0 {
            row = take_row(pair as u32);
            if row == 0 {
                return null_mut();
            }
        }
        (&raw mut (*block).iters).cast::<IterRecord>().add(usize::from(row) & (ROWS - 1))
    }
}

/// Takes a row for a pair; 0 if there is none, or while another program takes one: fentry programs may be preempted here.
#[inline(never)]
fn take_row(pair: u32) -> u8 {
    let Some(block) = block() else { return 0 };
    // SAFETY: a value of the map; the masks keep the numbers within its arrays.
    unsafe {
        let takers = &raw mut (*block).takers;
        Shared::add(takers, 1);
        let mut row = 0;
        if read_volatile(takers) == 1 {
            let taken = read_volatile(&raw const (*block).taken);
            if taken < ROWS as u64 - 1 {
                row = taken as usize + 1;
                write_volatile(
                    (&raw mut (*block).pairs).cast::<u16>().add(row & (ROWS - 1)),
                    pair as u16 + 1,
                );
                write_volatile(&raw mut (*block).taken, row as u64);
                write_volatile(
                    (&raw mut (*block).rows).cast::<u8>().add(pair as usize & (PAIRS - 1)),
                    row as u8,
                );
            }
        }
        Shared::add(takers, 1u64.wrapping_neg());
        row as u8
    }
}

/// What is known at a kprobe.
#[inline(always)]
pub fn site(ctx: &ProbeContext) -> Option<Packed> {
    if COOKIES.load() != 0 {
        // SAFETY: the context is this program's own.
        return Some(Packed(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) }));
    }
    let address = Regs::of(ctx).address();
    known(SITES.get(SiteSet::of(address, SITE_BITS.load())).and_then(|set| set.find(address)))
}

/// What the fentry program with this number must know.
#[inline(always)]
pub fn fentry_site(number: u32) -> Option<Packed> {
    known(FENTRY_SITES.get(number).map(|site| site.what))
}

/// What the system call's program with this number must know.
#[inline(always)]
pub fn syscall_site(number: u32) -> Option<Packed> {
    known(SYSCALL_SITES.get(number).map(|site| site.what))
}

#[inline(always)]
fn known(found: Option<Packed>) -> Option<Packed> {
    if found.is_none() {
        lose(Lost::Site);
    }
    found
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
    if let Some(block) = block() {
        // SAFETY: a map value; rare, so the atomic form serves both kinds of program.
        unsafe { Shared::add(&raw mut (*block).lost.events[reason as usize], 1) };
    }
}
