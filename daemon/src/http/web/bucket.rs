//! Whether a request is within the rate.

use std::time::{Duration, Instant};

use super::config::Rate;

/// Requests that may still come at once.
pub struct Bucket {
    rate: Rate,
    /// When it was, or will be, full.
    full: Instant,
}

impl Bucket {
    /// A full one.
    pub fn full(rate: Rate) -> Bucket {
        Bucket { rate, full: Instant::now() }
    }

    /// Takes one out, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let (interval, room) = (self.rate.interval, self.rate.burst);
        let missing = self.full.saturating_duration_since(now);
        let most: Duration = interval.saturating_mul(room);
        // One more must fit in.
        let Some(full) = now.max(self.full).checked_add(interval) else { return false };
        let fits = missing.saturating_add(interval) <= most;
        if fits {
            self.full = full;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let second = Duration::from_secs(1);
        let rate = Rate { interval: second, burst: 3 };
        let mut bucket = Bucket::full(rate);
        let start = bucket.full;
        let taken = |bucket: &mut Bucket, at: Duration| (0..5).filter(|_| bucket.take(start + at)).count();
        assert_eq!(taken(&mut bucket, Duration::ZERO), 3);
        assert_eq!(taken(&mut bucket, second / 2), 0);
        assert_eq!(taken(&mut bucket, second * 2), 2);
        assert_eq!(taken(&mut bucket, second * 100), 3);
        let mut never = Bucket::full(Rate { burst: 0, ..rate });
        assert!(!never.take(Instant::now()));
        let mut long = Bucket::full(Rate { interval: Duration::MAX, burst: u32::MAX });
        assert!(!long.take(Instant::now()));
    }
}
