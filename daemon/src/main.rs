//! The `iotrace` binary.
fn main() {}
