//! What a workload is asked to do.

use std::{path::PathBuf, time::Duration};

use clap::{Args, builder::RangedU64ValueParser};

use crate::{abi::Abi, work::Name};

/// The options of a load.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Options {
    /// What to do
    pub work: Name,
    /// How many times
    #[arg(long, default_value_t = 1000)]
    pub count: u64,
    /// Segments of each vectored call; of several numbers, COUNT calls with each
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = positive(65_536))]
    pub segments: Vec<usize>,
    /// Bytes of each segment, or of each plain call
    #[arg(long, default_value_t = 64, value_parser = positive(1 << 30))]
    pub bytes: usize,
    /// How many calls more, with an array that is not there, which the import refuses
    #[arg(long, default_value_t = 0)]
    pub absent: u64,
    /// How to call the kernel: as this program does, or as a program of 32 bits would
    #[arg(long, default_value = "64")]
    pub abi: Abi,
    /// Leave half of the calls to a child made by fork
    #[arg(long)]
    pub fork: bool,
    /// The file to read or write, made and lengthened if need be, or the program to run [default: a file in memory, or /bin/true]
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// TCP over loopback instead of unix sockets
    #[arg(long)]
    pub tcp: bool,
    /// How long to do `mix` or `churn`
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub seconds: Duration,
    /// What the random choices of `churn` begin with [default: the time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Store the outcome in the file of this descriptor, and print nothing
    #[arg(long, value_name = "FD", hide = true)]
    pub report: Option<i32>,
}

impl Options {
    /// The defaults.
    pub fn of(work: Name) -> Options {
        Options {
            work,
            count: 1000,
            segments: vec![1],
            bytes: 64,
            absent: 0,
            abi: Abi::Native,
            fork: false,
            file: None,
            tcp: false,
            seconds: Duration::from_secs(10),
            seed: None,
            json: false,
            report: None,
        }
    }
}

fn positive(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "expected seconds, at least 0";
    let seconds: f64 = text.parse().map_err(|_| EXPECTED)?;
    Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn read(arguments: &str) -> Result<Options, clap::Error> {
        let words = ["load"].into_iter().chain(arguments.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| arguments.options)
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        assert_eq!(read("readv").unwrap(), Options::of(Name::Readv));
        let options = read("pwritev2 --segments 1,3,9 --abi 32 --seconds 0.5").unwrap();
        assert_eq!((options.segments, options.abi), (vec![1, 3, 9], Abi::Compat));
        assert_eq!(options.seconds, Duration::from_millis(500));
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in
            ["", "chew", "readv --segments 0", "readv --bytes 0", "readv --abi 16", "mix --seconds -1"]
        {
            assert!(read(arguments).is_err(), "{arguments}");
        }
    }
}
