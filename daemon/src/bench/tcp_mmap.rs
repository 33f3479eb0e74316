//! Receiving over TCP by mapping pages against reading them, as in Eric Dumazet's "tcp: mmap() sample" and his patch about
//! the contention on page tables (November 2019).

use std::fs;

use anyhow::{Context as _, Result, bail};
use iotrace_load::{
    Outcome, Sent,
    tcp::{Received, Transferred},
};
use serde::{Deserialize, Serialize};

mod show;

use super::{
    run::{self, ROUNDS, Samples, Task},
    stats::Stats,
};
use crate::{
    cli, kernel,
    measure::Measure,
    snapshot::{Probe, Zerocopy, ZerocopyCounted},
};

const PAGE: usize = 4096;

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpMmap {
    /// [`TcpMmap::NAME`].
    pub experiment: String,
    /// `uname -r`.
    pub kernel: String,
    /// Processors that may run it.
    pub cpus: usize,
    /// Bytes of each connection.
    pub size: u64,
    /// Bytes of one receiving call.
    pub chunk: usize,
    /// How the bytes were sent.
    pub sender: String,
    /// Samples of each row that were asked for, and with probes as many again.
    pub samples: u32,
    /// Whether a signal ended it before.
    pub interrupted: bool,
    /// In the order of the table.
    pub rows: Vec<Row>,
}

/// One way to receive, with one number of connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `read` or `mmap`.
    pub receiver: String,
    /// Where mappings begin; none without.
    pub align: Option<usize>,
    /// Connections.
    pub clients: usize,
    /// Without probes.
    pub plain: Option<Cost>,
    /// With probes.
    pub probed: Option<Cost>,
    /// What the load and the probes counted, of all samples with probes together.
    pub counted: Option<Counted>,
    /// Why there is nothing.
    pub impossible: Option<String>,
}

/// What one sample costs on the average, in the receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds of the wall clock.
    pub seconds: Stats,
    /// Microseconds of processor time for each MB (2²⁰ bytes) received.
    pub micros_per_mb: Stats,
    /// Seconds in user space.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// Context switches.
    pub switches: f64,
    /// Bytes received.
    pub bytes: f64,
    /// The share of these that was mapped, in percent.
    pub mapped_percent: f64,
}

/// What was counted twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// What the program got by getsockopt(2).
    pub received: Received,
    /// What the program learned from its error queue.
    pub sent: Sent,
    /// What the probes saw.
    pub seen: Zerocopy,
    /// Whether the probes see receiving here.
    pub sees_receive: bool,
    /// Whether they see sending.
    pub sees_send: bool,
    /// Whether they time the functions that change the page table: insert, and zap.
    pub sees_page_table: [bool; 2],
    /// Whether they see waits.
    pub sees_waits: bool,
}

impl Counted {
    fn of(all: &[(&Transferred, &Zerocopy)], probes: &[Probe]) -> Option<Counted> {
        let mut received = Received::default();
        let (mut sent, mut seen) = (Sent::default(), Zerocopy::default());
        for (done, zerocopy) in all {
            received.add(&done.received);
            sent.add(&done.sent);
            seen.add(zerocopy);
        }
        let counted = ZerocopyCounted::by(probes);
        (!all.is_empty()).then_some(Counted {
            received,
            sent,
            seen,
            sees_receive: counted.receive,
            sees_send: counted.sends && counted.completed,
            sees_page_table: [counted.inserts, counted.zaps],
            sees_waits: counted.waits,
        })
    }

    /// Whether all that is seen is as it was, to the byte.
    pub fn is_right(&self) -> bool {
        let Counted { received, sent, seen, .. } = self;
        let receive = (received.calls + received.errors, received.errors, received.mapped, received.copied)
            == (seen.calls, seen.errors, seen.mapped, seen.copied);
        let send =
            (sent.zerocopy, sent.completed, sent.fell_back) == (seen.sends, seen.completed, seen.fell_back);
        (receive || !self.sees_receive) && (send || !self.sees_send)
    }

    fn word(&self) -> &'static str {
        match (self.is_right(), self.sees_receive) {
            (false, _) => "WRONG",
            (true, true) => "exact",
            (true, false) => "unseen",
        }
    }
}

impl Cost {
    fn of(samples: &[&Transferred]) -> Option<Cost> {
        let each =
            |of: fn(&Transferred) -> f64| -> Vec<f64> { samples.iter().map(|done| of(done)).collect() };
        let mean = |of: fn(&Transferred) -> f64| Stats::of(&each(of)).map(|stats| stats.avg);
        let mb = |done: &Transferred| done.received.bytes() as f64 / f64::from(1 << 20);
        Some(Cost {
            seconds: Stats::of(&each(|done| done.spent.wall as f64 / 1e9))?,
            micros_per_mb: Stats::of(
                &samples
                    .iter()
                    .map(|done| (done.spent.user + done.spent.system) as f64 / 1e3 / mb(done))
                    .collect::<Vec<_>>(),
            )?,
            user: mean(|done| done.spent.user as f64 / 1e9)?,
            system: mean(|done| done.spent.system as f64 / 1e9)?,
            switches: mean(|done| done.spent.switches as f64)?,
            bytes: mean(|done| done.received.bytes() as f64)?,
            mapped_percent: mean(|done| {
                done.received.mapped as f64 * 100.0 / done.received.bytes().max(1) as f64
            })?,
        })
    }
}

/// Runs it.
///
/// # Errors
/// A load that cannot be run.
pub fn run(options: &cli::TcpMmap, measure: Option<Measure>) -> Result<TcpMmap> {
    let aligns = match options.align {
        Some(align) if !align.is_power_of_two() || align < PAGE => {
            bail!("-a {align}: expected a power of two of at least {PAGE}")
        }
        Some(align) => vec![align],
        None => vec![huge_page()?, PAGE],
    };
    let mut lines: Vec<(Option<usize>, usize)> = Vec::new();
    for &clients in &options.clients {
        if !options.zerocopy {
            lines.push((None, clients));
        }
        lines.extend(aligns.iter().map(|&align| (Some(align), clients)));
    }
    let tasks: Vec<Task> = lines.iter().map(|line| task(*line, options)).collect();
    let all: Samples<Transferred> = run::samples(&tasks, options.common.samples, measure)?;
    let rows = lines.iter().enumerate().map(|(number, line)| row(number, *line, &all));
    Ok(TcpMmap {
        experiment: TcpMmap::NAME.into(),
        kernel: kernel::release(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        size: options.size,
        chunk: options.chunk,
        sender: options.sender.name().into(),
        samples: ROUNDS * options.common.samples,
        interrupted: all.interrupted,
        rows: rows.collect(),
    })
}

/// The size of a huge page: mappings that begin there share no page table of the lowest level.
fn huge_page() -> Result<usize> {
    const FILE: &str = "/proc/meminfo";
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let size = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    size.map(|size| size * 1024)
        .with_context(|| format!("{FILE} has no Hugepagesize; -a gives the alignment"))
}

fn task((align, clients): (Option<usize>, usize), options: &cli::TcpMmap) -> Task {
    let mut words: Vec<String> =
        ["sample", "tcp", "--sender", options.sender.name()].map(String::from).into();
    for (name, value) in [
        ("--clients", clients.to_string()),
        ("--size", options.size.to_string()),
        ("--chunk", options.chunk.to_string()),
        ("--align", align.unwrap_or(PAGE).to_string()),
        ("--pace", options.pace.to_string()),
    ] {
        words.extend([name.to_owned(), value]);
    }
    words.extend(align.map(|_| "--map".to_owned()));
    words.extend(options.ipv6.then(|| "--ipv6".to_owned()));
    Task { name: format!("{} with {clients} clients", receiver(align)), arguments: words }
}

fn receiver(align: Option<usize>) -> &'static str {
    if align.is_some() { "mmap" } else { "read" }
}

fn row(number: usize, (align, clients): (Option<usize>, usize), all: &Samples<Transferred>) -> Row {
    let taken = || all.taken.iter().filter(|taken| taken.task == number);
    let (mut plain, mut probed, mut impossible) = (Vec::new(), Vec::new(), None);
    for taken in taken() {
        match (&taken.outcome, &taken.seen) {
            (Outcome::Done(done), None) => plain.push(done),
            (Outcome::Done(done), Some(delta)) => probed.push((done, &delta.0.zerocopy)),
            (Outcome::Impossible(why) | Outcome::Failed(why), _) => impossible = Some(why.clone()),
        }
    }
    let with_probes: Vec<&Transferred> = probed.iter().map(|(done, _)| *done).collect();
    Row {
        receiver: receiver(align).into(),
        align,
        clients,
        plain: Cost::of(&plain),
        probed: Cost::of(&with_probes),
        counted: all.probes.as_deref().and_then(|probes| Counted::of(&probed, probes)),
        impossible,
    }
}

impl TcpMmap {
    /// On the command line and in the result.
    pub const NAME: &'static str = "tcp-mmap";

    /// Whether all counts are those of the loads.
    pub fn agrees(&self) -> bool {
        self.rows.iter().filter_map(|row| row.counted.as_ref()).all(Counted::is_right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_off_is_wrong_where_it_is_seen() {
        let counted = Counted {
            received: Received { calls: 3, errors: 1, mapped: 8192, copied: 5, read: 7 },
            sent: Sent { zerocopy: 4, completed: 4, fell_back: 4 },
            seen: Zerocopy {
                calls: 4,
                errors: 1,
                mapped: 8192,
                copied: 5,
                sends: 4,
                completed: 4,
                fell_back: 4,
                ..Zerocopy::default()
            },
            sees_receive: true,
            sees_send: true,
            sees_page_table: [true, true],
            sees_waits: false,
        };
        assert_eq!(counted.word(), "exact");
        let mut off = counted;
        off.seen.copied = 6;
        assert_eq!(off.word(), "WRONG");
        off.sees_receive = false;
        assert_eq!(off.word(), "unseen");
    }
}
