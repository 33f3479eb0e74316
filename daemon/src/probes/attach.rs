//! A kprobe that carries a word of its own: what its program must know of the place, without a look-up.
//!
//! aya offers attach cookies for uprobes only.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use iotrace_common::site::Packed;

const TYPE: &str = "/sys/bus/event_source/devices/kprobe/type";
/// `PERF_FLAG_FD_CLOEXEC` (include/uapi/linux/perf_event.h).
const CLOSE_ON_EXEC: libc::c_ulong = 8;
/// `BPF_LINK_CREATE` and `BPF_PERF_EVENT` (include/uapi/linux/bpf.h).
const LINK_CREATE: libc::c_int = 28;
const PERF_EVENT: u32 = 41;

/// `struct perf_event_attr` as of its second version (72 bytes, Linux 2.6.33): nine words.
type Attributes = [u64; 9];

/// What `BPF_LINK_CREATE` is told (5.15): `union bpf_attr` up to `link_create.perf_event.bpf_cookie`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

/// The kernel's number for kprobes among the sources of events.
///
/// # Errors
/// The file that does not hold it.
pub(super) fn kprobe_type() -> Result<u32, String> {
    let text = fs::read_to_string(TYPE).map_err(|error| format!("{TYPE}: {error}"))?;
    text.trim().parse().map_err(|_| format!("{TYPE} holds no number"))
}

/// Runs a program at this address from now on, until what is returned is dropped.
///
/// # Errors
/// What the kernel says.
pub(super) fn kprobe(
    program: BorrowedFd<'_>,
    kprobe_type: u32,
    address: u64,
    cookie: Packed,
) -> io::Result<OwnedFd> {
    let mut attributes: Attributes = [0; 9];
    // type and size; config1 (`kprobe_func`) stays 0, so config2 is the address (kernel/trace/trace_event_perf.c): it
    // works for symbols that occur twice and for modules, too.
    attributes[0] = u64::from(kprobe_type) | (size_of::<Attributes>() as u64) << 32;
    attributes[8] = address;
    // SAFETY: the attributes are as long as they say.
    let event =
        unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), -1, 0, -1, CLOSE_ON_EXEC) };
    let event = owned(event)?;
    let create = LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        target: event.as_raw_fd().cast_unsigned(),
        attach_type: PERF_EVENT,
        flags: 0,
        cookie: cookie.0,
    };
    // SAFETY: the kernel reads as many bytes as it is told, and takes the rest for 0.
    let link =
        unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &raw const create, size_of::<LinkCreate>()) };
    // The link keeps the event.
    owned(link)
}

fn owned(file: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(file) {
        // SAFETY: the kernel has just opened it for us.
        Ok(file @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(io::Error::last_os_error()),
    }
}
