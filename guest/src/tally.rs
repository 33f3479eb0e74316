//! What a workload did, in the terms of `iotrace top -o json`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// `UIO_FASTIOV`: a longer array is allocated by all importers but those of io_uring.
const FAST_SEGMENTS: usize = 8;
/// `UIO_MAXIOV`: a longer array is refused before it is looked at.
const MAX_SEGMENTS: usize = 1024;

/// Imports on one path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Imports {
    calls: u64,
    single: u64,
    segments: u64,
    allocated: u64,
    bytes: u64,
    errors: u64,
}

/// System calls that import no vector.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plain {
    calls: u64,
    bytes: u64,
}

/// Everything a workload did.
#[derive(Debug, Default)]
pub struct Tally {
    imports: BTreeMap<&'static str, Imports>,
    plain: BTreeMap<&'static str, Plain>,
}

impl Tally {
    /// A vector was imported.
    pub fn imported(&mut self, path: &'static str, segments: usize, bytes: usize) {
        self.asked(path, segments).bytes += bytes as u64;
    }

    /// A vector was refused by the import itself.
    pub fn refused(&mut self, path: &'static str, segments: usize) {
        self.asked(path, segments).errors += 1;
    }

    /// A system call without a vector was made.
    pub fn plain(&mut self, call: &'static str, bytes: usize) {
        let row = self.plain.entry(call).or_default();
        row.calls += 1;
        row.bytes += bytes as u64;
    }

    fn asked(&mut self, path: &'static str, segments: usize) -> &mut Imports {
        let row = self.imports.entry(path).or_default();
        row.calls += 1;
        if segments <= MAX_SEGMENTS {
            row.single += u64::from(segments == 1);
            row.segments += segments as u64;
            row.allocated += u64::from(segments > FAST_SEGMENTS);
        }
        row
    }

    /// `imports[]` with the keys of `iotrace top -o json`, and `plain[]` for the rest. `allocated` is null for
    /// io_uring, whose importers keep a vector of a length that depends on the kernel.
    pub fn json(&self) -> Value {
        let imports = self.imports.iter().map(|(path, row)| {
            json!({
                "path": path,
                "calls": row.calls,
                "single": row.single,
                "segments": row.segments,
                "allocated": (*path != "io_uring").then_some(row.allocated),
                "bytes": row.bytes,
                "errors": row.errors,
            })
        });
        let plain = self
            .plain
            .iter()
            .map(|(call, row)| json!({ "call": call, "calls": row.calls, "bytes": row.bytes }));
        json!({ "imports": imports.collect::<Vec<_>>(), "plain": plain.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_adds_up() {
        let mut tally = Tally::default();
        tally.imported("readv", 1, 10);
        tally.imported("readv", 9, 90);
        tally.refused("readv", 2000);
        tally.plain("read", 7);
        assert_eq!(
            tally.json(),
            json!({
                "imports": [{
                    "path": "readv", "calls": 3, "single": 1, "segments": 10, "allocated": 1, "bytes": 100,
                    "errors": 1,
                }],
                "plain": [{ "call": "read", "calls": 1, "bytes": 7 }],
            })
        );
    }

    #[test]
    fn io_uring_does_not_claim_to_know_what_is_allocated() {
        let mut tally = Tally::default();
        tally.imported("io_uring", 9, 9);
        assert_eq!(tally.json()["imports"][0]["allocated"], Value::Null);
    }
}
