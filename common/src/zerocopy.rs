//! What is counted of TCP without copies: `TCP_ZEROCOPY_RECEIVE` (tcp(7)) and `MSG_ZEROCOPY`
//! (Documentation/networking/msg_zerocopy.rst).

use crate::spread;

/// Places for receiving calls in flight, as a power of two.
pub const CALL_BITS: u32 = 10;
/// Places for sends that are not complete, as a power of two.
pub const SEND_BITS: u32 = 12;

/// Totals of one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZerocopyRecord {
    /// Calls of `tcp_zerocopy_receive` that returned.
    pub calls: u64,
    /// Calls of these that returned an error; they have no bytes.
    pub errors: u64,
    /// Bytes mapped: `length`, as user space gets it.
    pub mapped: u64,
    /// Bytes copied: `copybuf_len`, as user space gets it.
    pub copied: u64,
    /// Calls that were timed.
    pub timed: u64,
    /// Nanoseconds in them.
    pub nanos: u64,
    /// Calls of `vm_insert_pages` in them.
    pub inserts: u64,
    /// Nanoseconds in these.
    pub insert_nanos: u64,
    /// Calls of the function that takes pages out of the page table in them.
    pub zaps: u64,
    /// Nanoseconds in these.
    pub zap_nanos: u64,
    /// Waits for a spinlock in either.
    pub waits: u64,
    /// Nanoseconds of these.
    pub wait_nanos: u64,
    /// Calls with `MSG_ZEROCOPY` that the kernel began to send from the pages of the caller.
    pub sends: u64,
    /// Of these, those whose completion was seen.
    pub completed: u64,
    /// Of these, those that the kernel copied in the end (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub fell_back: u64,
    /// Fills the cache lines.
    pub pad: u64,
}

const _: () = assert!(size_of::<ZerocopyRecord>() == 128);

/// A call of `tcp_zerocopy_receive` in flight, of one thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The thread, see `bpf_get_current_pid_tgid`; 0 where none has been.
    pub thread: u64,
    /// Where on its stack the call began: what lies below, within a stack's size, is done in the call by the thread
    /// itself, and not by an interrupt, which has a stack of its own.
    pub stack: u64,
    /// When it began.
    pub start: u64,
    /// When the function that changes the page table began; 0 outside.
    pub inner: u64,
    /// The spinlock that the thread waits for; 0 if it does not.
    pub lock: u64,
    /// When that began.
    pub wait: u64,
    /// 1: the call has returned, and is counted.
    pub left: u64,
}

impl Call {
    /// No call.
    pub const NONE: Call = Call { thread: 0, stack: 0, start: 0, inner: 0, lock: 0, wait: 0, left: 0 };

    /// Where a thread's call is kept.
    #[inline(always)]
    pub const fn place(thread: u64) -> u32 {
        spread(thread, CALL_BITS) as u32
    }

    /// Whether what lies at this address of a stack is done within the call.
    #[inline(always)]
    pub const fn encloses(&self, stack: u64) -> bool {
        /// `THREAD_SIZE` of x86_64 with KASAN; without, it is half of it.
        const STACK: u64 = 32 << 10;
        stack < self.stack && self.stack - stack < STACK
    }
}

/// Sends that one `struct ubuf_info` stands for, while they are not complete.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// Its address; 0 where there is none.
    pub uarg: u64,
    /// How many of its sends are counted.
    pub counted: u64,
}

impl Sending {
    /// None.
    pub const NONE: Sending = Sending { uarg: 0, counted: 0 };
}

/// Where a send with this `struct ubuf_info` is kept.
#[inline(always)]
pub const fn send_place(uarg: u64) -> u32 {
    spread(uarg, SEND_BITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_on_another_stack() {
        let call = Call { stack: 0xffff_c900_0010_3e00, ..Call::NONE };
        assert!(call.encloses(0xffff_c900_0010_3d00));
        assert!(!call.encloses(0xffff_c900_0010_3e80), "a caller");
        assert!(!call.encloses(0xffff_c900_0000_4f00), "another stack");
        assert!(!Call::NONE.encloses(0xffff_c900_0000_4f00), "no call");
        assert!(Call::place(u64::MAX) < 1 << CALL_BITS && send_place(u64::MAX) < 1 << SEND_BITS);
    }
}
