//! The options of `iotrace bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, builder::RangedU64ValueParser};

use super::TopOutput;

/// Options of `iotrace bench`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit codes: 0 done, 1 a failure, or a count that is not the load's, 2 usage error, or nothing can be probed here, 130 stopped by a signal."
)]
pub struct Bench {
    /// Set two results of the same experiment (-o json) side by side.
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], required = true)]
    pub compare: Vec<PathBuf>,
    /// Which experiment.
    #[command(subcommand)]
    pub experiment: Option<Experiment>,
}

/// An experiment.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Experiment {
    /// Calls with one segment against calls with none: read and readv, send and sendmsg, …
    ///
    /// The vectored call does the same work; what it takes longer is the surplus of its vector. How much of that is the
    /// import is told by two calls that do nothing else: readv of one empty segment, and of no segment.
    SingleSegment(SingleSegment),
    /// Receiving over TCP into mapped pages (TCP_ZEROCOPY_RECEIVE) against reading.
    ///
    /// All connections are over loopback and of one receiving process, with a thread for each. Where the pages are mapped
    /// at multiples of the size of a huge page, no two connections share a page table, and they do not wait for each other.
    TcpMmap(TcpMmap),
}

/// Options that all experiments have.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Common {
    /// Samples of each round; there are three rounds, in each of which every row has its turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    pub samples: u32,
    /// Time only, without root: what the probes see and cost is left out.
    #[arg(long)]
    pub no_probes: bool,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: TopOutput,
}

/// Options of `iotrace bench tcp-mmap`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct TcpMmap {
    /// Bytes of each connection.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 50))]
    pub size: u64,
    /// How many connections; of several numbers, rows with each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub clients: Vec<usize>,
    /// Bytes of one receiving call.
    #[arg(short = 'C', long, value_name = "BYTES", default_value_t = 512 << 10, value_parser = RangedU64ValueParser::<usize>::new().range(4096..=1 << 30))]
    pub chunk: usize,
    /// Where mappings begin [default: rows with the size of a huge page, and rows with 4096].
    #[arg(short, long, value_name = "BYTES")]
    pub align: Option<usize>,
    /// Bytes a second of each connection; 0 for as many as can be.
    #[arg(short = 'P', long, value_name = "BYTES", default_value_t = 0, value_parser = RangedU64ValueParser::<u64>::new().range(0..=u64::from(u32::MAX)))]
    pub pace: u64,
    /// Only rows that map.
    #[arg(short, long)]
    pub zerocopy: bool,
    /// Over IPv6.
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// How the bytes are sent.
    #[arg(long, value_name = "HOW", default_value = "splice")]
    pub sender: iotrace_load::tcp::Sender,
    /// What all have.
    #[command(flatten)]
    pub common: Common,
}

/// Options of `iotrace bench single-segment`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct SingleSegment {
    /// Calls of each sample.
    #[arg(long, value_name = "CALLS", default_value_t = 10_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000_000))]
    pub count: u64,
    /// Bytes of each call.
    #[arg(long, default_value_t = 4096, value_parser = RangedU64ValueParser::<usize>::new().range(1..=32_768))]
    pub bytes: usize,
    /// Only rows whose place or calls contain this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// What all have.
    #[command(flatten)]
    pub common: Common,
}
