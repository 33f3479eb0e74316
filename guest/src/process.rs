//! Running programs that must come to an end.

use std::{
    fs::File,
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{findings, report::Report};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How a program ended, and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code; 128 and the signal's number if a signal killed it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Ended {
    /// The one line on standard error.
    ///
    /// # Panics
    /// If there is none or more, or if it is a panic.
    pub fn line(&self) -> &str {
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(lines.len() == 1 && !lines[0].contains("panicked"), "not one line on stderr: {self:?}");
        lines[0]
    }
}

/// The code as a shell tells it.
pub fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// Runs a program to its end.
///
/// # Panics
/// If it cannot be started, or does not end in time; it is killed then.
pub fn run(command: &mut Command, limit: Duration) -> Ended {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child, limit);
    if status.is_none() {
        let _gone = child.kill();
        let _status = child.wait();
    }
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("the reader does not panic"));
    let Some(status) = status else {
        panic!("{command:?} did not end within {limit:?}; stdout: {stdout}; stderr: {stderr}");
    };
    Ended { code: code(status), stdout, stderr, took: started.elapsed() }
}

/// Waits for the end of a child.
///
/// # Panics
/// If it is no child.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut status = None;
    eventually(limit, || {
        status = child.try_wait().expect("a child of ours");
        status.is_some()
    });
    status
}

/// Looks again and again; `false` if the condition does not come true in time.
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

fn drain<R: std::io::Read + Send + 'static>(stream: Option<R>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _as_far_as_it_goes = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// `iotrace` with these arguments.
pub fn iotrace(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::IOTRACE);
    command.args(arguments);
    command
}

/// `iotrace top -o json -- COMMAND`; the command must print nothing.
///
/// # Panics
/// If it does not end, complains, or prints something else than a report.
pub fn top(command: &[&str]) -> (i32, Report) {
    let arguments: Vec<&str> = ["top", "-o", "json", "--"].iter().chain(command).copied().collect();
    let ended = run(&mut iotrace(&arguments), Duration::from_secs(120));
    assert_eq!(ended.stderr, "", "{command:?}");
    println!("top took {:?}", ended.took);
    let report = Report::parse(&ended.stdout);
    for path in report.imports().keys() {
        findings::note("path", path);
    }
    for (function, kind) in report.walks().keys() {
        findings::note("kind", &format!("{kind} {function}"));
    }
    (ended.code, report)
}

/// A program in the background, killed when dropped.
#[derive(Debug)]
pub struct Background(Child);

impl Background {
    /// Starts it; it is not heard.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Background {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Background(child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// What a file of the kernel holds; empty if it cannot be read.
pub fn content(path: &str) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        let _as_far_as_it_goes = file.read_to_string(&mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_kept_apart() {
        let ended =
            run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), Duration::from_secs(10));
        assert_eq!((ended.code, ended.stdout.as_str(), ended.line()), (3, "out\n", "err"));
    }

    #[test]
    fn a_signal_is_a_code() {
        let ended = run(Command::new("sh").args(["-c", "kill -9 $$"]), Duration::from_secs(10));
        assert_eq!(ended.code, 137);
    }

    #[test]
    #[should_panic(expected = "did not end within")]
    fn a_program_that_hangs_is_killed() {
        run(Command::new("sleep").arg("1000"), Duration::from_millis(100));
    }

    #[test]
    #[should_panic(expected = "not one line")]
    fn two_lines_are_not_one() {
        run(Command::new("sh").args(["-c", "echo a >&2; echo b >&2"]), Duration::from_secs(10)).line();
    }
}
