//! What a guest tells the harness between the lines that are for people.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::vm::to_stdout;

/// What was found out about one kernel.
#[derive(Default)]
pub struct Findings {
    /// What `iotrace check -o json` says.
    pub check: Option<Value>,
    /// What tests saw: a word for what it is, and what they saw of it.
    pub seen: BTreeMap<String, BTreeSet<String>>,
}

impl Findings {
    /// What a guest's shell does first, and last, to tell them.
    pub const CHECK: &str = "echo \"== check $(iotrace check -o json 2>/dev/null | tr -d '\\n')\"";
    /// What tests noted.
    pub const SEEN: &str = "[ ! -e /tmp/findings ] || sort -u /tmp/findings | sed 's/^/== found /'";

    /// Takes a line that is for the harness; `false` if it is not.
    fn take(&mut self, line: &str) -> bool {
        if let Some(json) = line.strip_prefix("== check ") {
            self.check = serde_json::from_str(json).ok();
            return true;
        }
        let Some((what, text)) = line.strip_prefix("== found ").and_then(|found| found.split_once(' '))
        else {
            return false;
        };
        self.seen.entry(what.to_owned()).or_default().insert(text.to_owned());
        true
    }
}

/// A guest's output: what is for people goes to standard output as it comes, and is kept.
pub struct Output<'a> {
    findings: &'a mut Findings,
    line: Vec<u8>,
    /// All that was for people.
    pub text: String,
}

impl<'a> Output<'a> {
    /// Nothing yet; what is found will be added to `findings`.
    pub fn new(findings: &'a mut Findings) -> Self {
        Self { findings, line: Vec::new(), text: String::new() }
    }

    /// Takes more of it, in pieces of any size.
    pub fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// Takes what is left without an end of line.
    pub fn end(mut self) -> String {
        self.end_line();
        self.text
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if !self.findings.take(line.trim_end()) {
            to_stdout(&self.line);
            self.text += &line;
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_people_is_told_from_the_rest() {
        let mut findings = Findings::default();
        let mut output = Output::new(&mut findings);
        for piece in
            ["a\n== fou", "nd path readv\n== found kind ubuf copy_to_iter\n", "== check {\"x\":1}\n== it\nb"]
        {
            output.take(piece.as_bytes());
        }
        assert_eq!(output.end(), "a\n== it\nb");
        assert_eq!(findings.check.unwrap()["x"], 1);
        assert!(
            findings.seen["path"].contains("readv") && findings.seen["kind"].contains("ubuf copy_to_iter")
        );
    }
}
