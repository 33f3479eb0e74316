//! System calls, raw: the standard library is free to choose other ones than those to be counted.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{c_int, c_long};

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

/// Opens a file for reading and writing.
pub fn open(path: &str) -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from)
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
