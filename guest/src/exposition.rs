//! The text that Prometheus scrapes, read back.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::{Imports, Walks, count};

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name, with `_bucket`, `_sum` or `_count` for a part of a histogram.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// All samples of a scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// In the order of the text.
    pub samples: Vec<Sample>,
}

impl Exposition {
    /// Reads the text format, version 0.0.4.
    ///
    /// # Errors
    /// The first line that is none, or a series that comes twice.
    pub fn parse(text: &str) -> Result<Exposition, String> {
        let mut samples: Vec<Sample> = Vec::new();
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let sample = sample(line).ok_or_else(|| format!("not a sample: {line}"))?;
            if !seen.insert(line.rsplit_once(' ').map(|(series, _)| series)) {
                return Err(format!("a series that comes twice: {line}"));
            }
            samples.push(sample);
        }
        Ok(Exposition { samples })
    }

    /// The samples with this name and at least these labels.
    pub fn with<'a>(&'a self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|is| is == value);
            sample.name == name && labels.iter().all(has)
        })
    }

    /// The sum of these samples; 0 if there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        count(self.with(name, labels).map(|sample| sample.value).sum())
    }

    /// The value of the only sample with this name and these labels.
    ///
    /// # Panics
    /// If there is none, or more than one.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let values: Vec<f64> = self.with(name, labels).map(|sample| sample.value).collect();
        let [value] = values[..] else { panic!("{name} {labels:?}: {values:?}") };
        value
    }

    /// The values of a label.
    pub fn values(&self, name: &str, label: &str) -> Vec<&str> {
        let values = self.with(name, &[]).filter_map(|sample| sample.labels.get(label));
        let mut values: Vec<&str> = values.map(String::as_str).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The imports, by path; without those that are zero.
    pub fn imports(&self) -> BTreeMap<String, Imports> {
        let paths = self.values("iotrace_import_segments_count", "path").into_iter();
        let rows = paths.map(|path| {
            let bucket = |le| self.sum("iotrace_import_segments_bucket", &[("path", path), ("le", le)]);
            let sum = |name: &str| self.sum(name, &[("path", path)]);
            let row = Imports {
                calls: sum("iotrace_import_segments_count"),
                single: bucket("1") - bucket("0"),
                segments: sum("iotrace_import_segments_sum"),
                allocated: Some(sum("iotrace_import_allocated_total")),
                bytes: sum("iotrace_import_bytes_total"),
                errors: sum("iotrace_import_errors_total"),
            };
            (path.to_owned(), row.known(path))
        });
        rows.filter(|(_, row)| row.calls > 0).collect()
    }

    /// The walks, by function and kind; without those that are zero.
    pub fn walks(&self) -> BTreeMap<(String, String), Walks> {
        let mut rows: BTreeMap<(String, String), Walks> = BTreeMap::new();
        for sample in &self.samples {
            let (Some(function), Some(kind)) = (sample.labels.get("function"), sample.labels.get("kind"))
            else {
                continue;
            };
            let row = rows.entry((function.clone(), kind.clone())).or_default();
            match sample.name.as_str() {
                "iotrace_iter_calls_total" => row.calls = count(sample.value),
                "iotrace_iter_bytes_total" => row.bytes = count(sample.value),
                "iotrace_iter_call_seconds_count" => row.timed = count(sample.value),
                _ => {}
            }
        }
        rows.retain(|_, row| row.calls > 0);
        rows
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    (!name.is_empty()).then(|| Sample { name: name.into(), labels, value })
}

/// What is between the braces, and what follows them.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    while !rest.starts_with('}') {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => value.push(match characters.next()? {
                    'n' => '\n',
                    other @ ('\\' | '"') => other,
                    _ => return None,
                }),
                other => value.push(other),
            }
        }
        if labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = characters.as_str();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some((labels, &rest[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP iotrace_import_segments Segments.
# TYPE iotrace_import_segments histogram
iotrace_import_segments_bucket{path="readv",le="0"} 1
iotrace_import_segments_bucket{path="readv",le="1"} 11
iotrace_import_segments_bucket{path="readv",le="+Inf"} 15
iotrace_import_segments_sum{path="readv"} 40
iotrace_import_segments_count{path="readv"} 15
iotrace_import_segments_count{path="writev"} 0
iotrace_import_bytes_total{path="readv"} 1e3
iotrace_iter_calls_total{function="copy_to_iter",kind="ubuf"} 3
iotrace_iter_bytes_total{function="copy_to_iter",kind="ubuf"} 4096
odd{text="a\"b\\c\nd,}="} 2.5
bare 7
"#;

    #[test]
    fn rows_are_put_together() {
        let scrape = Exposition::parse(TEXT).unwrap();
        let readv =
            Imports { calls: 15, single: 10, segments: 40, allocated: Some(0), bytes: 1000, errors: 0 };
        assert_eq!(scrape.imports(), BTreeMap::from([("readv".into(), readv)]));
        let walks = Walks { calls: 3, bytes: 4096, timed: 0 };
        assert_eq!(scrape.walks(), BTreeMap::from([(("copy_to_iter".into(), "ubuf".into()), walks)]));
    }

    #[test]
    fn escapes_are_undone() {
        let scrape = Exposition::parse(TEXT).unwrap();
        assert_eq!(scrape.values("odd", "text"), ["a\"b\\c\nd,}="]);
        assert_eq!(scrape.sum("bare", &[]), 7);
        assert_eq!(scrape.sum("absent", &[]), 0);
    }

    #[test]
    fn what_is_no_sample_is_an_error() {
        for line in
            ["x", "x{", "x{a=\"b} 1", "x{a=\"b\"}1", "x{a=\"\\q\"} 1", "x one", "x{a=\"1\",a=\"2\"} 1", " 1"]
        {
            assert!(Exposition::parse(line).is_err(), "{line}");
        }
        assert!(Exposition::parse("x{a=\"b\"} 1\nx{a=\"b\"} 2").is_err());
    }
}
