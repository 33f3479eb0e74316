//! What the daemon knows of this kernel, in read-only data: the verifier sees constants and drops dead code.

use core::cell::UnsafeCell;

use aya_ebpf::Global;
use iotrace_common::{
    import::{MAX_SEGMENTS, SEGMENT_BUCKET},
    iter::KIND_BITS,
};

/// How the number of the current system call is found, see [`crate::arch::syscall`].
#[unsafe(no_mangle)]
pub static SYSCALL_FROM: Global<u32> = Global::new(0);
/// Offset of `stack` in `struct task_struct`.
#[unsafe(no_mangle)]
pub static TASK_STACK: Global<u32> = Global::new(0);
/// Offset of `thread_info.status` in `struct task_struct`.
#[unsafe(no_mangle)]
pub static TASK_STATUS: Global<u32> = Global::new(0);
/// Offset of `tgid` in `struct task_struct`.
#[unsafe(no_mangle)]
pub static TASK_TGID: Global<u32> = Global::new(0);
/// Offset of `pid` in `struct task_struct`.
#[unsafe(no_mangle)]
pub static TASK_PID: Global<u32> = Global::new(0);
/// Offset of the kind in `struct iov_iter`.
#[unsafe(no_mangle)]
pub static ITER_KIND: Global<u32> = Global::new(0);
/// Offset of `count` in `struct iov_iter`.
#[unsafe(no_mangle)]
pub static ITER_COUNT: Global<u32> = Global::new(0);
/// Offset of `nr_segs` in `struct iov_iter`.
#[unsafe(no_mangle)]
pub static ITER_SEGMENTS: Global<u32> = Global::new(0);
/// Offset of `iov_offset` in `struct iov_iter`.
#[unsafe(no_mangle)]
pub static ITER_OFFSET: Global<u32> = Global::new(0);
/// Kinds of iterator, the one for `other` (the last) included.
#[unsafe(no_mangle)]
pub static KINDS: Global<u32> = Global::new(0);
/// 1: a kprobe carries what its program must know (≥ 5.15); else it is in the site table.
#[unsafe(no_mangle)]
pub static COOKIES: Global<u32> = Global::new(0);
/// The site table has `1 << SITE_BITS` sets.
#[unsafe(no_mangle)]
pub static SITE_BITS: Global<u32> = Global::new(0);
/// 1: rare events are logged.
#[unsafe(no_mangle)]
pub static DIAGNOSE: Global<u32> = Global::new(0);

/// From the kind byte of an iterator to the index of its kind and how its segments are counted; unknown ones to
/// the index of `other`.
#[unsafe(no_mangle)]
static KIND_INDEX: Table<256> = Table([0; 256]);
/// From `compat << 9 | number` of a system call to the number of its path, [`NO_PATH`] where it has none.
#[unsafe(no_mangle)]
static SYSCALL_PATH: Table<1024> = Table([0; 1024]);
/// From the low bits of the number of a system call to that of its path, see [`vector_path`].
#[unsafe(no_mangle)]
static VECTOR_PATH: Table<512> = Table([0; 512]);
/// From a segment count to its bucket.
#[unsafe(no_mangle)]
static BUCKETS: Table<{ MAX_SEGMENTS as usize + 1 }> = Table(SEGMENT_BUCKET);

/// [`SYSCALL_PATH`]: this system call imports nothing.
pub const NO_PATH: u8 = 0xff;

/// Read-only bytes that the daemon may write before the programs are loaded: the compiler must not take
/// their initial values for their values.
#[repr(transparent)]
struct Table<const N: usize>([u8; N]);

impl<const N: usize> Table<N> {
    #[inline(always)]
    fn at(&self, index: usize) -> u8 {
        // SAFETY: the masks and comparisons of the callers keep the index within the array.
        unsafe { core::ptr::read_volatile(self.0.as_ptr().add(index)) }
    }
}

/// The index of the kind that this kind byte names, and how its segments are counted.
#[inline(always)]
pub fn kind(byte: u8) -> (u32, u8) {
    let entry = KIND_INDEX.at(usize::from(byte));
    (u32::from(entry & KIND_BITS), entry & !KIND_BITS)
}

/// The path of a system call whose third argument is the number of segments, on its way through its importer: the
/// numbers that the three calling conventions have for these calls are different ones, but for the bits above.
#[inline(always)]
pub fn vector_path(number: u64) -> u8 {
    VECTOR_PATH.at(number as usize & 511)
}

/// The number of the path of a system call.
#[inline(always)]
pub fn syscall_path(number: u64, compat: bool) -> u8 {
    if number >= 512 {
        return NO_PATH;
    }
    SYSCALL_PATH.at((number as usize & 511) | (usize::from(compat) << 9))
}

/// The bucket of a segment count; `None` above the legal maximum.
#[inline(always)]
pub fn segment_bucket(segments: u64) -> Option<usize> {
    (segments <= u64::from(MAX_SEGMENTS)).then(|| usize::from(BUCKETS.at(segments as usize)))
}

/// A word that the kernel side writes once, before any probe is attached.
#[repr(transparent)]
struct Once<T>(UnsafeCell<T>);

// SAFETY: one aligned word, read and written whole; this target has no atomic load.
unsafe impl<T> Sync for Once<T> {}

impl<T: Copy> Once<T> {
    #[inline(always)]
    fn set(&self, value: T) {
        // SAFETY: see `Sync`.
        unsafe { core::ptr::write_volatile(self.0.get(), value) };
    }

    #[inline(always)]
    fn get(&self) -> T {
        // SAFETY: see `Sync`.
        unsafe { core::ptr::read_volatile(self.0.get()) }
    }
}

static OWN: Once<u32> = Once(UnsafeCell::new(0));
static SAVED: Once<u64> = Once(UnsafeCell::new(0));

/// Remembers the daemon's own thread group.
pub fn set_own(tgid: u32) {
    OWN.set(tgid);
}

/// The daemon's own thread group.
#[inline(always)]
pub fn own() -> u32 {
    OWN.get()
}

/// Remembers how far above a task's stack its user registers are saved.
pub fn set_saved(distance: u64) {
    SAVED.set(distance);
}

/// How far above a task's stack its user registers are saved; 0 if it is not known.
#[inline(always)]
pub fn saved() -> u64 {
    SAVED.get()
}
