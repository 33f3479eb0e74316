//! Memory that this process asks the system for, and gives back. The only file that knows the allocator.
//!
//! Reading the kernel's symbols, types and text takes tens of megabytes for a moment. An allocator keeps what was freed
//! for the next time; a daemon has no next time.

/// Gives back what is freed as soon as it is large. To be called before threads are started.
///
/// glibc raises this threshold by itself whenever something larger is freed, and from then on keeps all that is smaller.
pub fn frugal() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only sets numbers of the allocator; nothing else runs yet. Should it refuse, more memory is kept.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

/// What is mapped on its own: glibc's first threshold.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Gives back all that is free. Takes milliseconds: for the end of a work that took much.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator locks what it touches.
    unsafe {
        libc::malloc_trim(0);
    }
}
