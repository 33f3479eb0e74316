//! TCP without copies.

use serde::{Deserialize, Serialize};

use super::{Probe, State};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// What `TCP_ZEROCOPY_RECEIVE` and `MSG_ZEROCOPY` did, and what the page table cost.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Zerocopy {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Zerocopy {
            /// Adds another's numbers.
            pub fn add(&mut self, other: &Zerocopy) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// Takes another's numbers away.
            pub fn subtract(&mut self, other: &Zerocopy) {
                $(self.$name = self.$name.saturating_sub(other.$name);)*
            }
        }
    };
}

numbers! {
    /// Calls of `tcp_zerocopy_receive` that returned.
    calls
    /// Of these, those that returned an error; they have no bytes.
    errors
    /// Bytes mapped, as user space got them in `length`.
    mapped
    /// Bytes copied, as user space got them in `copybuf_len`.
    copied
    /// Calls that were timed.
    timed
    /// Nanoseconds in them.
    nanos
    /// Calls of `vm_insert_pages` in them.
    inserts
    /// Nanoseconds in these.
    insert_nanos
    /// Calls in them of the function that takes pages out of the page table.
    zaps
    /// Nanoseconds in these.
    zap_nanos
    /// Waits for a spinlock in either, as far as the kernel tells (≥ 5.19; never of the first waiter, or in guests without
    /// paravirtual spinlocks).
    waits
    /// Nanoseconds of these.
    wait_nanos
    /// Calls with `MSG_ZEROCOPY` that the kernel began to send from the caller's pages.
    sends
    /// Of these, those whose completion was seen.
    completed
    /// Of these, those that the kernel copied in the end.
    fell_back
}

impl Zerocopy {
    /// Whether nothing happened.
    pub fn is_idle(&self) -> bool {
        *self == Zerocopy::default()
    }

    /// Pages mapped. The kernel maps only whole ones.
    pub fn pages(&self) -> u64 {
        /// Of x86_64.
        const PAGE: u64 = 4096;
        self.mapped / PAGE
    }
}

/// Which of these numbers are counted on this kernel: where the probe is not attached, 0 says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What `tcp_zerocopy_receive` does.
    pub receive: bool,
    /// `vm_insert_pages`.
    pub inserts: bool,
    /// What takes pages out of the page table.
    pub zaps: bool,
    /// Waits for a lock.
    pub waits: bool,
    /// Sends.
    pub sends: bool,
    /// What became of them.
    pub completed: bool,
}

impl Counted {
    /// By the state of the probes.
    pub fn by(probes: &[Probe]) -> Counted {
        let any = |is: fn(&str) -> bool| {
            probes.iter().any(|probe| probe.state == State::Attached && is(&probe.target))
        };
        let receive = any(|target| target == "tcp_zerocopy_receive");
        Counted {
            receive,
            inserts: receive && any(|target| target == "vm_insert_pages"),
            zaps: receive && any(|target| target.starts_with("zap_")),
            waits: receive && any(|target| target == "contention_begin"),
            sends: any(|target| target.ends_with("_zerocopy_realloc")),
            completed: any(|target| {
                target.ends_with("_zerocopy_callback") || target.ends_with("_zerocopy_complete")
            }),
        }
    }
}
