//! What tests see of a kernel, for the page that tells it of every kernel: docs/kernels.md.

use std::{fs::OpenOptions, io::Write as _};

/// One line for each finding; the harness reads it when all tests of a guest are done.
const FILE: &str = "/tmp/findings";

/// Notes something that was seen, once or again.
///
/// # Panics
/// If the guest's /tmp cannot be written.
pub fn note(what: &str, text: &str) {
    let file = OpenOptions::new().append(true).create(true).open(FILE);
    let written = file.and_then(|mut file| writeln!(file, "{what} {}", text.replace('\n', " ")));
    written.unwrap_or_else(|error| panic!("{FILE}: {error}"));
}
