//! Builds the kernel side.
fn main() {}
