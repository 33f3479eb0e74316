//! Memory, files in memory, and vectors.

use std::{io, os::fd::OwnedFd};

use anyhow::{Result, ensure};

use crate::{
    abi::{Abi, Call},
    sys::{call, number, owned},
    tally::Tally,
};

/// An address at which no process has memory.
const NOWHERE: usize = 64;

/// A file that exists in memory only (shmem, the file system of tmpfs), `length` bytes long, every page present.
pub fn memory_file(length: usize) -> io::Result<OwnedFd> {
    let name = c"iotrace-load";
    // SAFETY: the name is a C string.
    let file = owned(unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as usize, 0]) }?);
    // SAFETY: no memory is involved.
    unsafe { call(libc::SYS_ftruncate, [number(&file), length]) }?;
    // Stores, not writes: a write would be counted, and a hole is read by another function.
    Mapping::new(Some(&file), 0, length)?.touch();
    Ok(file)
}

/// Memory mapped read-write until dropped.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a file, or anonymous memory, on a page boundary.
    pub fn new(file: Option<&OwnedFd>, offset: usize, length: usize) -> io::Result<Mapping> {
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, number(file)),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, usize::MAX),
        };
        Mapping::map(length, flags, fd, offset)
    }

    /// Zeros, where calls of this kind reach them.
    pub fn zeros(abi: Abi, length: usize) -> io::Result<Mapping> {
        let low = match abi {
            Abi::Native => 0,
            #[cfg(target_arch = "x86_64")]
            Abi::Compat => libc::MAP_32BIT,
            #[cfg(not(target_arch = "x86_64"))]
            Abi::Compat => return Err(io::ErrorKind::Unsupported.into()),
        };
        Mapping::map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | low, usize::MAX, 0)
    }

    fn map(length: usize, flags: i32, fd: usize, offset: usize) -> io::Result<Mapping> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let length = length.max(1);
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let address = unsafe { call(libc::SYS_mmap, [0, length, access, flags as usize, fd, offset]) }?;
        Ok(Mapping { address, length })
    }

    /// The address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The address of the byte at `offset`.
    pub fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.length, "{offset} lies outside");
        (self.address + offset) as *mut T
    }

    /// Makes every page present.
    fn touch(&self) {
        for offset in (0..self.length).step_by(4096) {
            // SAFETY: `at` checks the place; nobody else uses the memory yet, and a file is as long as its mapping.
            unsafe { self.at::<u8>(offset).write_volatile(1) };
        }
    }

    /// Writes a word of the kind's size.
    pub fn put(&self, abi: Abi, offset: usize, word: usize) {
        match abi {
            // SAFETY: `at` checks the place.
            Abi::Native => unsafe { self.at::<usize>(offset).write_unaligned(word) },
            // SAFETY: `at` checks the place; what calls of this kind are told lies below 4 GiB.
            Abi::Compat => unsafe { self.at::<u32>(offset).write_unaligned(word as u32) },
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and pointers from `at` are not kept beyond the owner.
        let _cannot_fail = unsafe { call(libc::SYS_munmap, [self.address, self.length]) };
    }
}

/// Segments of equal length that lie one behind the other, starting on a page boundary.
#[derive(Debug)]
pub struct Vector {
    array: Mapping,
    memory: Mapping,
    segments: usize,
    bytes: usize,
    absent: bool,
}

impl Vector {
    /// `segments` segments of `bytes` bytes, in an array as calls of this kind expect it; if it is `absent`, only
    /// the memory that it would describe is there.
    pub fn new(abi: Abi, segments: usize, bytes: usize, absent: bool) -> io::Result<Vector> {
        let length = segments.checked_mul(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::zeros(abi, length)?;
        // A page that is not there is one that the kernel may walk twice.
        memory.touch();
        let word = match abi {
            Abi::Native => 8,
            Abi::Compat => 4,
        };
        let array = Mapping::zeros(abi, segments * 2 * word)?;
        for segment in 0..segments {
            array.put(abi, 2 * word * segment, memory.address + segment * bytes);
            array.put(abi, 2 * word * segment + word, bytes);
        }
        Ok(Vector { array, memory, segments, bytes, absent })
    }

    /// The address of the array.
    pub fn array(&self) -> usize {
        if self.absent { NOWHERE } else { self.array.address }
    }

    /// Whether there is no array, so that a call moves nothing.
    pub fn is_absent(&self) -> bool {
        self.absent
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// The address of the bytes.
    pub fn data(&self) -> usize {
        self.memory.address
    }

    /// How many bytes all segments have together.
    pub fn length(&self) -> usize {
        self.segments * self.bytes
    }

    /// Notes what a call with this vector did, which must be everything, or to refuse an array that is not there.
    ///
    /// # Errors
    /// It was something else.
    pub fn settle(&self, path: &str, result: io::Result<usize>, tally: &mut Tally) -> Result<()> {
        if self.absent {
            let error = result.as_ref().err().and_then(io::Error::raw_os_error);
            ensure!(error == Some(libc::EFAULT), "{result:?} instead of EFAULT");
            tally.refused(path, self.segments);
        } else {
            let bytes = result?;
            ensure!(bytes == self.length(), "{bytes} bytes instead of {}", self.length());
            tally.imported(path, self.segments, bytes);
        }
        Ok(())
    }

    /// Makes a call that imports this vector, and notes what it did.
    ///
    /// # Safety
    /// As for [`Abi::call`].
    pub unsafe fn import<const N: usize>(
        &self,
        abi: Abi,
        call: Call,
        arguments: [usize; N],
        tally: &mut Tally,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let result = unsafe { abi.call(call, arguments) };
        tally.made(abi, call.name);
        self.settle(call.name, result, tally)
    }
}
