//! A mixed load: files, sockets and pipes, vectored and plain, about 60 % of the vectors with one segment.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    tally::Tally,
    work::{Name, Setup, Work, make},
};

/// What, times in a round, segments, bytes of each, over TCP. Of 100 vectors in a round, 60 have one segment.
#[rustfmt::skip]
const ROUND: &[(Name, u32, usize, usize, bool)] = &[
    (Name::Readv,    16, 1, 4096, false),
    (Name::Readv,     6, 3, 1024, false),
    (Name::Readv,     2, 16, 512, false),
    (Name::Writev,   12, 1, 2048, false),
    (Name::Writev,    6, 4,  512, false),
    (Name::Writev,    2, 9,  256, false),
    (Name::Preadv,    8, 1, 8192, false),
    (Name::Preadv,    4, 2, 4096, false),
    (Name::Pwritev,   4, 2, 1024, false),
    (Name::Sendmsg,  10, 1,  512, false),
    (Name::Sendmsg,   4, 2,  300, true),
    (Name::Sendmsg,   4, 5, 1024, true),
    (Name::Recvmsg,  10, 1, 1024, true),
    (Name::Recvmsg,   4, 3,  256, false),
    // Two vectors each, one in and one out.
    (Name::Pipe,      2, 1, 1024, false),
    (Name::Pipe,      2, 6,  128, false),
    (Name::Read,     30, 1, 4096, false),
    (Name::Write,    20, 1, 4096, false),
    (Name::Pread,    20, 1,  512, false),
    (Name::Pwrite,   10, 1, 1024, false),
    (Name::Send,     10, 1, 2048, true),
    (Name::Send,     10, 1,  128, false),
];

/// Rounds, with a breath between two, until the time is over.
pub fn run(setup: &Setup, duration: Duration, tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    let mut works: Vec<(u32, Box<dyn Work>)> = Vec::new();
    for &(name, times, segments, bytes, tcp) in ROUND {
        let setup = Setup { segments, bytes, tcp, file: None, ..setup.clone() };
        works.push((times, make(name, &setup)?));
    }
    while start.elapsed() < duration {
        for (times, work) in &mut works {
            for _ in 0..*times {
                work.once(tally)?;
            }
        }
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Abi;

    #[test]
    fn six_vectors_of_ten_have_one_segment() {
        let mut tally = Tally::default();
        let setup = Setup { segments: 1, bytes: 1, absent: false, abi: Abi::Native, file: None, tcp: false };
        run(&setup, Duration::from_millis(10), &mut tally).unwrap();
        let rows = tally.json();
        let sum = |key: &str| -> u64 {
            rows["imports"].as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum()
        };
        assert!(sum("calls") >= 100);
        assert_eq!(sum("single") * 100, sum("calls") * 60);
    }
}
