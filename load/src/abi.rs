//! How system calls are made: as this program does, or as one of 32 bits would.

use std::io;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use libc::c_long;

use crate::{Impossible, fork, sys};

/// How to call the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Abi {
    /// As a program of 64 bits
    #[value(name = "64")]
    Native,
    /// As a program of 32 bits, by int 0x80
    #[value(name = "32")]
    Compat,
}

/// A vectored system call: its name, its number for this program, and that for a program of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// As in `sys_enter_NAME`.
    pub name: &'static str,
    native: c_long,
    compat: u32,
}

macro_rules! calls {
    ($($constant:ident $name:literal $native:ident $compat:literal)*) => {
        $(#[doc = concat!("`", $name, "(2)`.")] pub const $constant: Call =
            Call { name: $name, native: libc::$native, compat: $compat };)*
    };
}

// The numbers of 32 bits: arch/x86/entry/syscalls/syscall_32.tbl.
calls! {
    READV "readv" SYS_readv 145
    WRITEV "writev" SYS_writev 146
    PREADV "preadv" SYS_preadv 333
    PWRITEV "pwritev" SYS_pwritev 334
    PREADV2 "preadv2" SYS_preadv2 378
    PWRITEV2 "pwritev2" SYS_pwritev2 379
    SENDMSG "sendmsg" SYS_sendmsg 370
    RECVMSG "recvmsg" SYS_recvmsg 372
    SENDMMSG "sendmmsg" SYS_sendmmsg 345
    RECVMMSG "recvmmsg" SYS_recvmmsg 337
    VMSPLICE "vmsplice" SYS_vmsplice 316
    PROCESS_VM_READV "process_vm_readv" SYS_process_vm_readv 347
    PROCESS_VM_WRITEV "process_vm_writev" SYS_process_vm_writev 348
    PROCESS_MADVISE "process_madvise" SYS_process_madvise 440
    KEYCTL "keyctl" SYS_keyctl 288
}

/// `getpid(2)` of 32 bits.
const GETPID: u32 = 20;

impl Abi {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Abi::Native => "64",
            Abi::Compat => "32",
        }
    }

    /// Whether this kernel takes such calls. One that does not may answer with a signal, so that a child asks.
    ///
    /// # Errors
    /// That it does not.
    pub fn possible(self) -> Result<()> {
        let answers = || {
            // SAFETY: the handler does nothing but end the process; getpid takes nothing.
            unsafe {
                libc::signal(libc::SIGSEGV, end as extern "C" fn(libc::c_int) as libc::sighandler_t);
                compat(GETPID, [0; 6]) == libc::getpid()
            }
        };
        if self == Abi::Native || fork::answers(answers).context("cannot start a child")? {
            return Ok(());
        }
        Err(Impossible("32-bit system calls are off".into()).into())
    }

    /// Makes the call.
    ///
    /// # Safety
    /// What it is told to read or write must be there, for as long as the kernel uses it.
    pub unsafe fn call<const N: usize>(self, call: Call, arguments: [usize; N]) -> io::Result<usize> {
        match self {
            // SAFETY: the caller's promise.
            Abi::Native => unsafe { sys::call(call.native, arguments) },
            Abi::Compat => {
                let mut all = [0; 6];
                for (short, long) in all.iter_mut().zip(arguments) {
                    *short = u32::try_from(long).map_err(|_| io::ErrorKind::InvalidInput)?;
                }
                // SAFETY: the caller's promise.
                let result = unsafe { compat(call.compat, all) };
                usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
            }
        }
    }
}

extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: ends the process and may be called in a handler.
    unsafe { libc::_exit(1) };
}

/// A system call as a program of 32 bits makes it.
///
/// # Safety
/// As for any system call; all memory that it concerns lies below 4 GiB.
#[cfg(target_arch = "x86_64")]
unsafe fn compat(number: u32, arguments: [u32; 6]) -> i32 {
    let result: u64;
    // SAFETY: rbx and rbp, which the compiler keeps for itself, are put back; older kernels change r8 to r11.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "push rbp",
            "mov ebx, [r8]",
            "mov ecx, [r8 + 4]",
            "mov edx, [r8 + 8]",
            "mov esi, [r8 + 12]",
            "mov edi, [r8 + 16]",
            "mov ebp, [r8 + 20]",
            "int 0x80",
            "pop rbp",
            "pop rbx",
            inlateout("rax") u64::from(number) => result,
            inlateout("r8") arguments.as_ptr() => _,
            lateout("rcx") _, lateout("rdx") _, lateout("rsi") _, lateout("rdi") _,
            lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result as i32
}

/// Elsewhere there are none.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn compat(_number: u32, _arguments: [u32; 6]) -> i32 {
    -libc::ENOSYS
}
