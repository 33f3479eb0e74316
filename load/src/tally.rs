//! What a workload did, in the terms of `iotrace top -o json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::abi::Abi;

/// `UIO_FASTIOV`: a longer array is allocated by all importers but those of io_uring.
const FAST_SEGMENTS: usize = 8;
/// `UIO_MAXIOV`: a longer array is refused before it is looked at.
const MAX_SEGMENTS: usize = 1024;

/// Imports on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imports {
    /// Calls, those refused included.
    pub calls: u64,
    /// Calls with one segment.
    pub single: u64,
    /// Segments asked for.
    pub segments: u64,
    /// Calls whose array does not fit the importer's own.
    pub allocated: u64,
    /// Bytes described.
    pub bytes: u64,
    /// Calls refused.
    pub errors: u64,
}

/// System calls that import no vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Plain {
    calls: u64,
    bytes: u64,
}

/// Everything a workload did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    imports: BTreeMap<String, Imports>,
    plain: BTreeMap<String, Plain>,
    /// By name, as the kernel counts them at `sys_enter_NAME`: it leaves out those of 32 bits.
    syscalls: BTreeMap<String, u64>,
}

impl Tally {
    /// A vector was imported.
    pub fn imported(&mut self, path: &str, segments: usize, bytes: usize) {
        self.asked(path, segments).bytes += bytes as u64;
    }

    /// The same vector was imported so many times.
    pub fn imported_times(&mut self, path: &str, segments: usize, bytes: usize, times: u64) {
        let mut one = Tally::default();
        one.imported(path, segments, bytes);
        let one = one.imports(path);
        let row = self.imports.entry(path.to_owned()).or_default();
        row.calls += one.calls * times;
        row.single += one.single * times;
        row.segments += one.segments * times;
        row.allocated += one.allocated * times;
        row.bytes += one.bytes * times;
    }

    /// A vector was refused by the import itself.
    pub fn refused(&mut self, path: &str, segments: usize) {
        self.asked(path, segments).errors += 1;
    }

    /// A system call with a vector was made.
    pub fn made(&mut self, abi: Abi, call: &str) {
        if abi == Abi::Native {
            *self.syscalls.entry(call.to_owned()).or_default() += 1;
        }
    }

    /// A system call without a vector was made.
    pub fn plain(&mut self, call: &str, bytes: usize) {
        let row = self.plain.entry(call.to_owned()).or_default();
        row.calls += 1;
        row.bytes += bytes as u64;
    }

    /// What another did, too.
    pub fn add(&mut self, other: Tally) {
        for (path, more) in other.imports {
            let row = self.imports.entry(path).or_default();
            row.calls += more.calls;
            row.single += more.single;
            row.segments += more.segments;
            row.allocated += more.allocated;
            row.bytes += more.bytes;
            row.errors += more.errors;
        }
        for (call, more) in other.plain {
            let row = self.plain.entry(call).or_default();
            row.calls += more.calls;
            row.bytes += more.bytes;
        }
        for (call, more) in other.syscalls {
            *self.syscalls.entry(call).or_default() += more;
        }
    }

    /// What was imported on a path.
    pub fn imports(&self, path: &str) -> Imports {
        self.imports.get(path).copied().unwrap_or_default()
    }

    /// The paths on which something was imported.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.imports.keys().map(String::as_str)
    }

    /// Vectored system calls of 64 bits, by name.
    pub fn syscalls(&self) -> BTreeMap<String, u64> {
        self.syscalls.clone()
    }

    fn asked(&mut self, path: &str, segments: usize) -> &mut Imports {
        let row = self.imports.entry(path.to_owned()).or_default();
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
                "allocated": (path != "io_uring").then_some(row.allocated),
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
