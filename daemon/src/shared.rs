//! A map's values in this process's memory (`BPF_F_MMAPABLE`, 5.5): read without a system call, and without
//! an interrupt on any other CPU. The only file that knows `mmap`.

use std::{io, marker::PhantomData, os::fd::AsFd, os::fd::AsRawFd as _, ptr::NonNull, sync::atomic};

/// The values of an array map, of type `T`: plain integers, shared with the kernel side.
#[derive(Debug)]
pub struct Shared<T> {
    base: NonNull<T>,
    length: usize,
    bytes: usize,
    values: PhantomData<T>,
}

// SAFETY: the mapping belongs to the whole process, and every access goes through `get` and `set`, which
// suppose that others write at the same time.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// Maps `length` values of the array map behind `map`.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    ///
    /// # Safety
    /// The map must be an mmapable array of at least `length` values of exactly `T`, made of integers only
    /// and of a size that is a multiple of 8 (the kernel rounds values up to that).
    pub unsafe fn map(map: impl AsFd, length: usize, writable: bool) -> io::Result<Shared<T>> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let bytes = length * size_of::<T>();
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let descriptor = map.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Shared { base, length, bytes, values: PhantomData })
    }

    /// The value at `index`, member by member: each aligned integer whole, all of them not of one instant.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: in bounds, mapped and aligned; volatile, because the kernel side writes meanwhile.
        (index < self.length).then(|| unsafe { self.base.add(index).read_volatile() })
    }

    /// The part of the value at `index` that starts `offset` bytes into it, as [`Shared::get`]. `P` must be made of integers
    /// only, as `T` is.
    pub fn part<P: Copy>(&self, index: usize, offset: usize) -> Option<P> {
        let end = offset.checked_add(size_of::<P>())?;
        if index >= self.length || end > size_of::<T>() || !offset.is_multiple_of(align_of::<P>()) {
            return None;
        }
        // SAFETY: in bounds of that value, mapped and aligned.
        Some(unsafe { self.base.add(index).cast::<u8>().add(offset).cast::<P>().read_volatile() })
    }

    /// Writes the value at `index` of a writable mapping; `false` out of bounds.
    pub fn set(&self, index: usize, value: T) -> bool {
        if index < self.length {
            // SAFETY: as in `get`.
            unsafe { self.base.add(index).write_volatile(value) };
            // What is attached next must see it.
            atomic::fence(atomic::Ordering::SeqCst);
        }
        index < self.length
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` made; nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
