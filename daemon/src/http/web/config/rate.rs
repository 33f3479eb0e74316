//! A rate: how much time a request takes, and how many may come at once.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A bucket that holds `burst` requests, and gains one each `interval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rate {
    /// The time between two requests; 0 for no limit.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// How many may come at once.
    pub burst: u32,
}

/// A span of time, written as Go does: `1.5s`, `1m30s`; a plain number is nanoseconds.
fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Duration;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("a duration such as 1s, 1m30s or 200ms")
        }

        fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<Duration, E> {
            Ok(Duration::from_nanos(nanos))
        }

        fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<Duration, E> {
            let negative = |_| E::invalid_value(de::Unexpected::Signed(nanos), &self);
            u64::try_from(nanos).map(Duration::from_nanos).map_err(negative)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }
    deserializer.deserialize_any(Visitor)
}

/// Numbers with units, one after the other, without a sign.
fn parse(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("μs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !(it.is_ascii_digit() || it == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let length = rest.find(|it: char| it.is_ascii_digit() || it == '.').unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..length])?;
        rest = &rest[length..];
        sum = sum.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, millis) in [("0", 0), ("1s", 1000), ("1.5s", 1500), ("1m30s", 90_000), ("2h", 7_200_000)] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "s", "1 s", "-1s", "1d", "1s2", ".", "1e9s", "99999999999999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
