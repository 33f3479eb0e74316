//! Processes that do random calls and are killed at random; what each began and ended is known all the same.

use std::{
    io,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Impossible, Misuse, fork,
    memory::{Mapping, memory_file},
    options::Options,
    sys,
    tally::Tally,
    work::{self, Name, Setup},
};

/// A work, and what it imports each time it is done.
type Row = (Name, &'static [(&'static str, u64)]);

#[rustfmt::skip]
const WORKS: &[Row] = &[
    (Name::Readv,     &[("readv", 1)]),
    (Name::Writev,    &[("writev", 1)]),
    (Name::Preadv,    &[("preadv", 1)]),
    (Name::Pwritev,   &[("pwritev", 1)]),
    (Name::Preadv2,   &[("preadv2", 1)]),
    (Name::Pwritev2,  &[("pwritev2", 1)]),
    (Name::Sendmsg,   &[("sendmsg", 1)]),
    (Name::Recvmsg,   &[("recvmsg", 1)]),
    (Name::Sendmmsg,  &[("sendmmsg", 4)]),
    (Name::Recvmmsg,  &[("recvmmsg", 4)]),
    (Name::Pipe,      &[("writev", 1), ("readv", 1)]),
    (Name::Vmsplice,  &[("vmsplice", 1)]),
    (Name::ProcessVm, &[("process_vm", 1), ("process_vm_remote", 1)]),
    (Name::Aio,       &[("aio", 1)]),
    (Name::Uring,     &[("io_uring", 1)]),
    (Name::Read,      &[]),
    (Name::Write,     &[]),
    (Name::Send,      &[]),
];

/// Paths of all these.
const PATHS: &[&str] = &[
    "readv",
    "writev",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "sendmsg",
    "recvmsg",
    "sendmmsg",
    "recvmmsg",
    "vmsplice",
    "process_vm",
    "process_vm_remote",
    "aio",
    "io_uring",
];

/// What is counted of a path.
#[derive(Clone, Copy)]
enum What {
    Begun,
    Ended,
    BegunSegments,
    EndedSegments,
}

const WHATS: usize = 4;

/// Counts in memory that all processes share: those of a killed one stay.
struct Counts(Mapping);

impl Counts {
    fn new() -> Result<Counts> {
        let length = (1 + PATHS.len() * WHATS) * 8;
        let file = memory_file(length).context("cannot make a file in memory")?;
        let counts = Counts(Mapping::new(Some(&file), 0, length).context("cannot map it")?);
        (0..=PATHS.len() * WHATS).for_each(|word| counts.word(word).store(0, SeqCst));
        Ok(counts)
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the place, which is aligned; whoever has it uses it as such a number alone.
        unsafe { AtomicU64::from_ptr(self.0.at(number * 8)) }
    }

    /// Not zero once the workers are to come to an end.
    fn over(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn of(&self, path: usize, what: What) -> &AtomicU64 {
        self.word(1 + path * WHATS + what as usize)
    }

    fn add(&self, imports: &[(&str, u64)], segments: usize, what: [What; 2]) {
        for (path, calls) in imports {
            let Some(path) = PATHS.iter().position(|name| name == path) else { continue };
            self.of(path, what[0]).fetch_add(*calls, SeqCst);
            self.of(path, what[1]).fetch_add(calls * segments as u64, SeqCst);
        }
    }

    fn json(&self, path: usize) -> Value {
        let number = |what| self.of(path, what).load(SeqCst);
        json!({
            "path": PATHS[path],
            "begun": number(What::Begun),
            "ended": number(What::Ended),
            "begun_segments": number(What::BegunSegments),
            "ended_segments": number(What::EndedSegments),
        })
    }
}

/// Numbers that look random (xorshift64*), the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// Of a seed and a number: neighbours are far apart.
fn random(seed: u64, number: u64) -> Random {
    Random((seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1))
}

/// A worker for each processor, one of which is killed and replaced now and then; says what was begun and ended.
pub fn run(options: &Options) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = options.seed.unwrap_or(now.as_nanos() as u64);
    let setup =
        Setup { segments: 1, bytes: 1, absent: false, abi: options.abi, file: None, tcp: options.tcp };
    let counts = Counts::new()?;
    let mut choices = random(seed, 0);
    let mut started = 0;
    let mut start = || {
        started += 1;
        let choices = random(seed, started);
        fork::start(|| worker(choices, &setup, &counts)).context("cannot start a worker")
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut workers = Vec::new();
    for _ in 0..processors {
        workers.push(start()?);
    }
    let (begin, mut kills) = (Instant::now(), 0u64);
    while begin.elapsed() < options.seconds {
        thread::sleep(Duration::from_millis(5 + choices.below(75) as u64));
        let victim = &mut workers[choices.below(processors)];
        // SAFETY: sends a signal to a child that nobody has waited for.
        unsafe { libc::kill(*victim, libc::SIGKILL) };
        let status = fork::wait(*victim).context("cannot wait for a worker")?;
        ensure!(libc::WIFSIGNALED(status), "a worker ended with status {status:#x}");
        kills += 1;
        *victim = start()?;
    }
    counts.over().store(1, SeqCst);
    for worker in workers {
        let status = fork::wait(worker).context("cannot wait for a worker")?;
        ensure!(status == 0, "a worker ended with status {status:#x}");
    }
    let paths: Vec<Value> = (0..PATHS.len()).map(|path| counts.json(path)).collect();
    let done = json!({ "seed": seed, "kills": kills, "workers": processors, "paths": paths });
    let told: io::Result<()> = match &options.file {
        Some(file) => std::fs::write(file, format!("{done:#}\n")),
        None => sys::print(&format!("{done:#}\n")),
    };
    told.context("cannot tell what was done")
}

/// Works until all is over; the exit code.
fn worker(mut choices: Random, setup: &Setup, counts: &Counts) -> i32 {
    while counts.over().load(Relaxed) == 0 {
        if let Err(error) = some_calls(&mut choices, setup, counts) {
            eprintln!("iotrace-load: churn: {error:#}");
            return 1;
        }
    }
    0
}

/// A work of random shape, some times.
fn some_calls(choices: &mut Random, setup: &Setup, counts: &Counts) -> Result<()> {
    let (name, imports) = WORKS[choices.below(WORKS.len())];
    // Of several messages the first is refused and the others are not looked at.
    let absent = imports.len() == 1 && choices.below(16) == 0;
    let imports = if absent { &[(imports[0].0, 1)] } else { imports };
    let segments = if choices.below(2) == 0 { 1 } else { 1 + choices.below(16) };
    let setup = Setup { segments, bytes: 1 + choices.below(500), absent, ..setup.clone() };
    let mut work = match work::make(name, &setup) {
        Err(error) if error.is::<Impossible>() || error.is::<Misuse>() => return Ok(()),
        made => made?,
    };
    let mut tally = Tally::default();
    for _ in 0..=choices.below(20) {
        counts.add(imports, segments, [What::Begun, What::BegunSegments]);
        work.once(&mut tally).with_context(|| name.name())?;
        counts.add(imports, segments, [What::Ended, What::EndedSegments]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_count() {
        for (path, _) in WORKS.iter().flat_map(|(_, imports)| *imports) {
            assert!(PATHS.contains(path), "{path}");
        }
    }

    #[test]
    fn what_is_begun_is_what_a_work_imports() {
        let counts = Counts::new().unwrap();
        let setup =
            Setup { segments: 2, bytes: 8, absent: false, abi: crate::Abi::Native, file: None, tcp: false };
        for (name, imports) in WORKS {
            let mut work = match work::make(*name, &setup) {
                Err(error) if error.is::<Impossible>() => continue,
                made => made.unwrap(),
            };
            let mut tally = Tally::default();
            work.once(&mut tally).unwrap();
            let did: Vec<_> =
                tally.paths().map(|path| (path.to_owned(), tally.imports(path).calls)).collect();
            let mut expected: Vec<_> =
                imports.iter().map(|(path, calls)| ((*path).to_owned(), *calls)).collect();
            expected.sort();
            assert_eq!(did, expected, "{}", name.name());
        }
        let mut choices = random(1, 1);
        for _ in 0..50 {
            some_calls(&mut choices, &setup, &counts).unwrap();
        }
        let rows: Vec<Value> = (0..PATHS.len()).map(|path| counts.json(path)).collect();
        assert!(rows.iter().all(|row| row["begun"] == row["ended"]));
        assert!(rows.iter().any(|row| row["ended_segments"].as_u64() > row["ended"].as_u64()));
    }
}
