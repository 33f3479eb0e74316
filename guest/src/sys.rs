//! System calls, raw: the standard library is free to choose other ones than those to be counted.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{c_int, c_long, iovec};

/// A system call with up to six arguments.
///
/// # Safety
/// What the system call is told to read or write must be there, for as long as the kernel uses it.
pub unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> io::Result<usize> {
    const { assert!(N <= 6) };
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes over a file descriptor that a system call has just returned.
pub fn owned(fd: usize) -> OwnedFd {
    // SAFETY: the callers pass on what the kernel gave them; nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// The descriptor as the argument of a system call.
pub fn number(fd: &impl AsRawFd) -> usize {
    fd.as_raw_fd() as usize
}

/// Writes everything to standard output by `write(2)`.
pub fn print(text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: `rest` outlives the call.
        let written = unsafe { call(libc::SYS_write, [1, rest.as_ptr() as usize, rest.len()]) }?;
        rest = &rest[written..];
    }
    Ok(())
}

/// A pair of pipe ends, the one to read from first.
pub fn pipe() -> io::Result<[OwnedFd; 2]> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: the kernel writes two numbers.
    unsafe { call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, libc::O_CLOEXEC as usize]) }?;
    Ok(ends.map(|end| owned(end as usize)))
}

/// A connected pair of unix stream sockets.
pub fn unix_pair() -> io::Result<[OwnedFd; 2]> {
    let mut ends: [c_int; 2] = [0; 2];
    let arguments = [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0, ends.as_mut_ptr() as usize];
    // SAFETY: the kernel writes two numbers.
    unsafe { call(libc::SYS_socketpair, arguments) }?;
    Ok(ends.map(|end| owned(end as usize)))
}

/// A file that exists in memory only (shmem, the file system of tmpfs), `length` bytes long, every page present.
pub fn memory_file(length: usize) -> io::Result<OwnedFd> {
    let name = c"iotrace-load";
    // SAFETY: the name is a C string.
    let file = owned(unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as usize, 0]) }?);
    // SAFETY: no memory is involved.
    unsafe { call(libc::SYS_ftruncate, [number(&file), length]) }?;
    // Stores, not writes: a write would be counted, and a hole is read by another function.
    let pages = Mapping::new(Some(&file), 0, length)?;
    for offset in (0..length).step_by(4096) {
        // SAFETY: within the mapping, which is as long as the file.
        unsafe { pages.at::<u8>(offset).write_volatile(1) };
    }
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
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, number(file)),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, usize::MAX),
        };
        let length = length.max(1);
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let address = unsafe { call(libc::SYS_mmap, [0, length, access, flags as usize, fd, offset]) }?;
        Ok(Mapping { address, length })
    }

    /// The address of the byte at `offset`.
    pub fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.length, "{offset} lies outside");
        (self.address + offset) as *mut T
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and pointers from `at` are not kept beyond the owner.
        let _cannot_fail = unsafe { call(libc::SYS_munmap, [self.address, self.length]) };
    }
}

/// Segments of equal length that lie one behind the other, starting on a page boundary.
#[derive(Debug)]
pub struct Vector {
    segments: Vec<iovec>,
    bytes: usize,
    memory: Mapping,
}

impl Vector {
    /// `segments` segments of `bytes` bytes.
    pub fn new(segments: usize, bytes: usize) -> io::Result<Vector> {
        let memory = Mapping::new(None, 0, segments * bytes)?;
        let base = memory.at::<u8>(0);
        let segments = (0..segments)
            .map(|index| iovec { iov_base: base.wrapping_add(index * bytes).cast(), iov_len: bytes })
            .collect();
        Ok(Vector { segments, bytes, memory })
    }

    /// The address of the array.
    pub fn array(&self) -> usize {
        self.segments.as_ptr() as usize
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The address of the bytes.
    pub fn data(&self) -> usize {
        self.memory.address
    }

    /// How many bytes all segments have together.
    pub fn length(&self) -> usize {
        self.segments.len() * self.bytes
    }
}
