//! What depends on the architecture outside the planner: the numbers of system calls.

use iotrace_common::import::Path;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "iotrace runs on x86_64 only so far: arch.rs, plan/arch_x86_64.rs and ebpf/src/arch/ need a sibling"
);

/// The path of each system call that imports iovecs: number, whether it is a 32-bit one, path.
///
/// arch/x86/entry/syscalls/syscall_64.tbl and syscall_32.tbl: these numbers are ABI and never change.
pub const SYSCALLS: &[(u32, bool, Path)] = &[
    (libc::SYS_readv as u32, false, Path::Readv),
    (libc::SYS_writev as u32, false, Path::Writev),
    (libc::SYS_preadv as u32, false, Path::Preadv),
    (libc::SYS_pwritev as u32, false, Path::Pwritev),
    (libc::SYS_preadv2 as u32, false, Path::Preadv2),
    (libc::SYS_pwritev2 as u32, false, Path::Pwritev2),
    (libc::SYS_sendmsg as u32, false, Path::Sendmsg),
    (libc::SYS_recvmsg as u32, false, Path::Recvmsg),
    (libc::SYS_sendmmsg as u32, false, Path::Sendmmsg),
    (libc::SYS_recvmmsg as u32, false, Path::Recvmmsg),
    (libc::SYS_io_uring_setup as u32, false, Path::IoUring),
    (libc::SYS_io_uring_enter as u32, false, Path::IoUring),
    // What a kernel thread has in place of a number (`copy_thread`), and read(2) imports nothing: before 5.12
    // io_uring's workers are kernel threads, since then they have that of the system call that made them.
    (libc::SYS_read as u32, false, Path::IoUring),
    (libc::SYS_io_submit as u32, false, Path::Aio),
    (145, true, Path::Readv),
    (146, true, Path::Writev),
    (333, true, Path::Preadv),
    (334, true, Path::Pwritev),
    (378, true, Path::Preadv2),
    (379, true, Path::Pwritev2),
    (370, true, Path::Sendmsg),
    (372, true, Path::Recvmsg),
    (345, true, Path::Sendmmsg),
    (337, true, Path::Recvmmsg),
    (417, true, Path::Recvmmsg),
    (425, true, Path::IoUring),
    (426, true, Path::IoUring),
    (248, true, Path::Aio),
];

/// [`SYSCALLS`] as the kernel side looks them up: `compat << 9 | number`; 255 where there is no path.
pub fn syscall_paths() -> [u8; 1024] {
    let mut table = [0xff; 1024];
    for &(number, compat, path) in SYSCALLS {
        table[number as usize & 511 | usize::from(compat) << 9] = path as u8;
    }
    table
}

/// The numbers of the same calls in the third calling convention, x32 (arch/x86/entry/syscalls/syscall_64.tbl), without
/// the bit that marks it.
const X32: [(u32, Path); 6] = [
    (515, Path::Readv),
    (516, Path::Writev),
    (534, Path::Preadv),
    (535, Path::Pwritev),
    (546, Path::Preadv2),
    (547, Path::Pwritev2),
];

/// The paths of the system calls whose third argument is the number of segments, as the kernel side looks them up on
/// their way through their own importer: by the lower nine bits of the number, in which they all differ; 255 elsewhere.
pub fn vector_paths() -> [u8; 512] {
    use Path::{Preadv, Preadv2, Pwritev, Pwritev2, Readv, Writev};
    let mut table = [0xff; 512];
    let vectors = SYSCALLS.iter().map(|&(number, _, path)| (number, path));
    let vectors =
        vectors.filter(|(_, path)| matches!(path, Readv | Writev | Preadv | Pwritev | Preadv2 | Pwritev2));
    for (number, path) in vectors.chain(X32) {
        table[number as usize & 511] = path as u8;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_with_vectors_are_told_apart_by_nine_bits() {
        let table = vector_paths();
        assert_eq!(table.iter().filter(|&&path| path != 0xff).count(), 18);
        assert_eq!(
            [19, 146, 515 & 511].map(|number: usize| table[number]),
            [Path::Readv as u8, Path::Writev as u8, Path::Readv as u8]
        );
    }
}
