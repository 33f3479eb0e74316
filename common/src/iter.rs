//! What is counted and timed at a call of a function that walks an iterator.

/// Sub-buckets per power of two.
const STEPS: u32 = 4;
/// Everything up to `1 << FLOOR` ns falls into the first bucket.
const FLOOR: u32 = 6;
/// Everything above `1 << CEILING` ns (16.8 ms) falls into the last bucket.
const CEILING: u32 = 24;

/// Buckets of the time histogram: one up to 64 ns, four per power of two to 16.8 ms, one above.
pub const NANOS_BUCKETS: usize = 1 + ((CEILING - FLOOR) * STEPS) as usize + 1;

/// The largest power of two not above `value`, as its exponent. `value` must be neither 0 nor of more than 32 bits.
///
/// The bpf target has no instruction for it; five steps are the shortest way, and 64 bits spare it the care for 32.
#[inline(always)]
pub const fn ilog2(mut value: u64) -> u64 {
    let mut log = 0;
    if value >= 1 << 16 {
        value >>= 16;
        log += 16;
    }
    if value >= 1 << 8 {
        value >>= 8;
        log += 8;
    }
    if value >= 1 << 4 {
        value >>= 4;
        log += 4;
    }
    if value >= 1 << 2 {
        value >>= 2;
        log += 2;
    }
    if value >= 1 << 1 {
        log += 1;
    }
    log
}

/// The bucket of a call that took `nanos` nanoseconds. Bounds are inclusive, see [`nanos_bound`].
#[inline(always)]
pub const fn nanos_bucket(nanos: u64) -> usize {
    if nanos <= 1 << FLOOR {
        return 0;
    }
    if nanos > 1 << CEILING {
        return NANOS_BUCKETS - 1;
    }
    let below = nanos - 1;
    let log = ilog2(below);
    let step = (below >> (log - STEPS.trailing_zeros() as u64)) & (STEPS as u64 - 1);
    (1 + (log - FLOOR as u64) * STEPS as u64 + step) as usize
}

/// The inclusive upper bound of a bucket in nanoseconds; `None` for the last, which has none.
pub const fn nanos_bound(bucket: usize) -> Option<u64> {
    if bucket == 0 {
        return Some(1 << FLOOR);
    }
    if bucket >= NANOS_BUCKETS - 1 {
        return None;
    }
    let position = bucket as u32 - 1;
    let (log, step) = (FLOOR + position / STEPS, position % STEPS);
    Some(((STEPS + step + 1) as u64) << (log - STEPS.trailing_zeros()))
}

/// What a kind byte of an iterator leads to: the low bits are the number of the kind, the high ones its segments.
pub const KIND_BITS: u8 = 0x3f;
/// Kinds whose `nr_segs` and `iov_offset` move as segments are walked: iovec, kvec, bvec.
pub const COUNTED: u8 = 0x40;
/// A kind that is one segment: ubuf. Its `nr_segs` is 0 in 6.0 to 6.3, and 1 since.
pub const ONE: u8 = 0x80;

/// Segments walked by a call that did something: those that it left behind, and the one in which it stopped.
/// A segment in which the call before stopped is counted again, since it is walked again.
#[inline(always)]
pub const fn walked(before: u64, after: u64, offset_after: u64) -> u64 {
    before.saturating_sub(after) + (offset_after != 0) as u64
}

/// Totals of one function and one iterator kind on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterRecord {
    /// Calls entered.
    pub calls: u64,
    /// Bytes asked for, by the calls entered.
    pub asked: u64,
    /// Bytes walked, by the calls that returned and were matched.
    pub done: u64,
    /// Calls that did less than they were asked for.
    pub short: u64,
    /// Nanoseconds spent in calls that returned and were matched, preemption and page faults included.
    pub nanos: u64,
    /// Calls by duration, see [`nanos_bound`]. Their sum is the number of calls timed.
    pub buckets: [u64; NANOS_BUCKETS],
    /// Segments walked, by the calls that returned and were matched; 0 for kinds that have none.
    pub segments: u64,
}

const _: () = assert!(size_of::<IterRecord>() == 640);

impl IterRecord {
    /// A record that has seen nothing.
    pub const ZERO: IterRecord = IterRecord {
        calls: 0,
        asked: 0,
        done: 0,
        short: 0,
        nanos: 0,
        buckets: [0; NANOS_BUCKETS],
        segments: 0,
    };
}

impl Default for IterRecord {
    fn default() -> Self {
        IterRecord::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_edge_falls_on_its_own_side() {
        for bucket in 0..NANOS_BUCKETS - 1 {
            let bound = nanos_bound(bucket).unwrap();
            assert_eq!(nanos_bucket(bound), bucket, "{bound} ns");
            assert_eq!(nanos_bucket(bound + 1), bucket + 1, "{bound} + 1 ns");
        }
        assert_eq!(nanos_bound(NANOS_BUCKETS - 2), Some(1 << CEILING));
        assert_eq!(nanos_bound(NANOS_BUCKETS - 1), None);
    }

    #[test]
    fn segments_left_behind_and_the_one_stopped_in_are_walked() {
        // Whole: 3 of 3. Within the first; from there to its end; then one and a half more.
        assert_eq!([walked(3, 0, 0), walked(3, 3, 7), walked(3, 2, 0), walked(2, 1, 4)], [3, 1, 1, 2]);
    }

    #[test]
    fn powers_of_two_are_bounds() {
        for log in FLOOR..=CEILING {
            assert!((0..NANOS_BUCKETS).any(|bucket| nanos_bound(bucket) == Some(1 << log)), "2^{log}");
        }
    }

    proptest! {
        #[test]
        fn ilog2_agrees_with_core(value in 1u32..) {
            prop_assert_eq!(ilog2(u64::from(value)), u64::from(value.ilog2()));
        }

        #[test]
        fn a_time_lies_between_its_bounds(nanos: u64) {
            let bucket = nanos_bucket(nanos);
            if let Some(bound) = nanos_bound(bucket) {
                prop_assert!(nanos <= bound);
            }
            if bucket > 0 {
                prop_assert!(nanos > nanos_bound(bucket - 1).unwrap());
            }
        }
    }
}
