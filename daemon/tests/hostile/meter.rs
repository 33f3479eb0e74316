//! What a piece of work costs its thread: memory and processor time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// The system's allocator, with a count for each thread. That a buffer grows counts as the old one and the new one
/// at once.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not given back; below 0 if it gave back those of others.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The most that [`LIVE`] was.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that ends may allocate when its counters are gone.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every block is the system allocator's own, for the layout that was asked for. Counting neither allocates,
// as the counters are constants at first and have no destructors, nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps to the contract of `alloc`, which is this one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the block is from `alloc` or `alloc_zeroed` with this layout, so from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

/// What something cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The most bytes that were allocated at one time.
    pub bytes: usize,
    /// Processor time of this thread.
    pub time: Duration,
}

/// Does something and tells what it cost.
pub fn cost<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let before = LIVE.get();
    PEAK.set(before);
    let start = processor_time();
    let result = work();
    let time = processor_time() - start;
    (result, Cost { bytes: (PEAK.get() - before) as usize, time })
}

/// Does something with no more than so many bytes, in less time than anybody would call a hang.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let (result, cost) = cost(work);
    assert!(cost.bytes <= bytes, "{} bytes of {bytes}", cost.bytes);
    assert!(cost.time < Duration::from_secs(5), "{:?}", cost.time);
    result
}

/// Unlike the clock on the wall, it does not see that the machine is busy with other things.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` to where it is told, which is ours.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn what_is_allocated_is_counted() {
    let (_, growing) = cost(|| (0..1000u64).collect::<std::collections::VecDeque<_>>());
    assert!(growing.bytes >= 8000, "{growing:?}");
    let (_, zeroed) = cost(|| vec![0u8; 1 << 20]);
    assert_eq!(zeroed.bytes, 1 << 20);
    let (_, nothing) = cost(|| 1 + 1);
    assert_eq!(nothing.bytes, 0);
}
