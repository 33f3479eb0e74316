//! Several samples of one number.

use serde::{Deserialize, Serialize};

/// What several samples have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// How many there are.
    pub samples: usize,
    /// Their mean.
    pub avg: f64,
    /// The standard deviation of the sample (n − 1); 0 of a single one.
    pub stddev: f64,
    /// The least.
    pub min: f64,
    /// The one in the middle; of an even number the mean of the two.
    pub median: f64,
}

impl Stats {
    /// Of these samples; `None` if there is none.
    pub fn of(samples: &[f64]) -> Option<Stats> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (number, middle) = (sorted.len(), sorted.len() / 2);
        let (min, upper) = (*sorted.first()?, *sorted.get(middle)?);
        let avg = sorted.iter().sum::<f64>() / number as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - avg).powi(2)).sum();
        let stddev = if number > 1 { (squares / (number - 1) as f64).sqrt() } else { 0.0 };
        let median = if number % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) };
        Some(Stats { samples: number, avg, stddev, min, median })
    }
}

impl Stats {
    /// The standard error of the difference of two means: of independent samples.
    pub fn error_of_difference(&self, other: &Stats) -> f64 {
        let variance = |stats: &Stats| stats.stddev.powi(2) / stats.samples as f64;
        (variance(self) + variance(other)).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sample_has_its_known_numbers() {
        let stats = Stats::of(&[9.0, 2.0, 4.0, 4.0, 5.0, 4.0, 7.0, 5.0]).unwrap();
        assert_eq!((stats.samples, stats.avg, stats.min, stats.median), (8, 5.0, 2.0, 4.5));
        assert!((stats.stddev - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!((stats.error_of_difference(&stats) - (8.0f64 / 7.0).sqrt()).abs() < 1e-12);
        let one = Stats::of(&[3.0]).unwrap();
        assert_eq!((one.stddev, one.median, Stats::of(&[])), (0.0, 3.0, None));
    }
}
