//! Calls in flight: what a call leaves behind for its return, keyed by the stack pointer.
//!
//! The stack pointer is the same at the call instruction and at the one after it, and no two calls in flight
//! share one. Flights live in a plain array, indexed by a hash of it: of two calls that meet in one place the later one
//! takes the place beside it; a third writes over the first, and notices. Nothing can leak: a place is simply written over.

use crate::{SPREAD, spread};

/// Places for calls in flight, as a power of two.
pub const FLIGHT_BITS: u32 = 13;

/// One call in flight.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// The stack pointer at the call; 0 where no call is in flight.
    pub key: u64,
    /// When it was entered, in nanoseconds of the monotonic clock; 0 if it is not timed.
    pub start: u64,
    /// For a walker the address of its `struct iov_iter`; else 0.
    pub iter: u64,
    /// For a walker the bytes asked for; for an import its `nr_segs`.
    pub asked: u64,
    /// For a walker `nr_segs` at the call; for an import its path, and above eight bits its `fast_segs`.
    pub more: u64,
    /// Binds them together, see [`Flight::sealed`].
    pub seal: u64,
    /// Fills the cache line.
    pub pad: [u64; 2],
}

const _: () = assert!(size_of::<Flight>() == 64);

impl Flight {
    /// No call.
    pub const NONE: Flight = Flight { key: 0, start: 0, iter: 0, asked: 0, more: 0, seal: 0, pad: [0; 2] };

    /// Where a call with this stack pointer is kept.
    #[inline(always)]
    pub const fn place(key: u64) -> u32 {
        spread(key, FLIGHT_BITS) as u32
    }

    /// What `seal` must be. Two CPUs may write one place at once; a mixture of both does not carry a valid
    /// seal, so it is lost instead of giving a wrong time.
    #[inline(always)]
    pub const fn sealed(&self) -> u64 {
        let first = self.key.wrapping_mul(SPREAD).wrapping_add(self.start);
        let second = first.wrapping_mul(SPREAD).wrapping_add(self.iter);
        second.wrapping_mul(SPREAD).wrapping_add(self.asked).wrapping_mul(SPREAD).wrapping_add(self.more)
    }

    /// Whether this is, whole, the call with the stack pointer `key`.
    #[inline(always)]
    pub const fn is(&self, key: u64) -> bool {
        self.key == key && self.seal == self.sealed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flight(key: u64, start: u64, iter: u64, asked: u64) -> Flight {
        let mut flight = Flight { key, start, iter, asked, more: asked / 512, ..Flight::default() };
        flight.seal = flight.sealed();
        flight
    }

    proptest! {
        #[test]
        fn a_mixture_of_two_calls_is_neither(
            a in 1u64..1 << 63, b in 1u64..1 << 63, starts in any::<[u64; 2]>(), frame in 8u64..4096, taken in 1u8..63,
        ) {
            prop_assume!(starts[0] != starts[1] && a != b);
            // The same frame of two stacks.
            let first = flight(a, starts[0], a.wrapping_add(frame), 512);
            let second = flight(b, starts[1], b.wrapping_add(frame), 4096);
            let pick = |bit: u8, x: u64, y: u64| if taken & (1 << bit) != 0 { x } else { y };
            for seal in [first.seal, second.seal] {
                let mixed = Flight {
                    key: pick(0, first.key, second.key),
                    start: pick(1, first.start, second.start),
                    iter: pick(2, first.iter, second.iter),
                    asked: pick(3, first.asked, second.asked),
                    more: pick(4, first.more, second.more),
                    seal,
                    ..Flight::default()
                };
                prop_assert!(!mixed.is(a) || mixed == first);
            }
        }

        #[test]
        fn a_place_is_within_the_array(key: u64) {
            prop_assert!(Flight::place(key) < 1 << FLIGHT_BITS);
        }
    }

    #[test]
    fn an_empty_place_is_no_call() {
        assert!(!Flight::default().is(1));
    }
}
