//! From the plan to what the kernel side needs to know: sites in attach order, and its tables.

use iotrace_common::{
    block::UNNUMBERED,
    iter::{COUNTED, ONE},
    site::{self, Packed, SiteSet, Value, What},
};

use crate::plan::{Arguments, Instrument, Mechanism, Plan, REGISTERS, Returns, Site};

/// One site of the plan, in attach order.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Its row in [`States`].
    pub row: usize,
    pub site: Site,
    /// For a walker the number of its function.
    pub function: u8,
    pub instrument: Instrument,
    /// For a walker the number under which its calls are counted, see `Block::passes` of the common crate.
    pub number: u16,
}

impl Job {
    /// Whether both are the same place, whatever row each has.
    pub(super) fn is_same_site(&self, other: &Job) -> bool {
        let place = |job: &Job| (job.site.address, job.site.module.clone(), job.function, job.instrument);
        place(self) == place(other) && self.site.symbol == other.site.symbol
    }
}

/// The functions that are timed, in the order of the plan.
pub(super) fn functions(plan: &Plan) -> Vec<String> {
    let timed = plan.targets.iter().filter(|target| target.instrument == Instrument::Time);
    timed.map(|target| target.function.clone()).collect()
}

/// Every site that can be probed, hot ones first, imports before walkers.
pub(super) fn jobs(plan: &Plan, functions: &[String]) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut row = 0;
    for target in &plan.targets {
        let function = functions.iter().position(|name| *name == target.function).unwrap_or_default() as u8;
        for site in &target.sites {
            if !matches!(site.mechanism, Mechanism::Unavailable { .. }) {
                let (site, instrument) = (site.clone(), target.instrument);
                jobs.push(Job { row, site, function, instrument, number: UNNUMBERED });
            }
            row += 1;
        }
        row += usize::from(target.sites.is_empty());
    }
    jobs.sort_by_key(|job| job.site.rank);
    jobs
}

/// The bits of a site table that holds every kprobe of the plan; at least `bits`.
pub(super) fn site_table_bits(jobs: &[Job], bits: u32) -> u32 {
    let mut table = vec![SiteSet::default(); 1 << bits];
    let fits = jobs.iter().flat_map(Job::kprobes).all(|Kprobe { address, what, .. }| {
        table[SiteSet::of(address, bits) as usize].put(site::Site { address, what })
    });
    if fits { bits } else { site_table_bits(jobs, bits + 1) }
}

/// A kprobe of a site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kprobe {
    pub program: &'static str,
    pub address: u64,
    pub what: Packed,
}

impl Job {
    /// The kprobes, in the order of attaching: behind the call first, so that no call waits for its return.
    pub(super) fn kprobes(&self) -> Vec<Kprobe> {
        let (call, returned) = match self.instrument {
            Instrument::Count => ("import_call", "import_return"),
            Instrument::Time => ("iter_call", "iter_return"),
        };
        let kprobe = |program, address, what: What| Kprobe { program, address, what: what.packed() };
        let what = self.what();
        let behind = match self.instrument {
            Instrument::Count => what,
            Instrument::Time => What { count: Value::number(self.number), ..what },
        };
        match self.site.mechanism {
            Mechanism::Trap { after } => {
                let at = |argument: Value| abi(argument.base);
                let at_call = What { iter: at(what.iter), count: at(what.count), ..what };
                vec![kprobe(returned, after, behind), kprobe(call, self.site.address, at_call)]
            }
            Mechanism::Jump { before, after, iter, count } => {
                let there = What { iter, count, ..what };
                match before {
                    Some(before) => vec![kprobe(returned, after, behind), kprobe(call, before, there)],
                    None if count.mode == site::ARGUMENT => vec![kprobe("import_vector", after, there)],
                    None => vec![kprobe("import_done", after, there)],
                }
            }
            Mechanism::Fentry | Mechanism::Fexit | Mechanism::Unavailable { .. } => Vec::new(),
        }
    }

    /// What the kernel side needs to know, the arguments by their positions.
    pub(super) fn what(&self) -> What {
        match self.site.arguments {
            Arguments::Import { segments, fast, path, by_syscall, pointer } => What {
                target: path as u8,
                iter: Value::argument(fast),
                count: Value::argument(segments),
                flags: if by_syscall { site::BY_SYSCALL } else { 0 },
                returns: if pointer { site::RETURNS_POINTER } else { site::RETURNS_BYTES },
                ..What::default()
            },
            Arguments::Iter { iter, bytes, count, returns, keeps } => What {
                target: self.function,
                iter: Value::argument(iter),
                count: Value::argument(bytes),
                returns: match returns {
                    Returns::Bytes => site::RETURNS_BYTES,
                    Returns::All => site::RETURNS_ALL,
                    Returns::Zero => site::RETURNS_ZERO,
                    Returns::Nothing => site::RETURNS_NOTHING,
                },
                arguments: count,
                flags: if keeps { site::KEEPS } else { 0 },
            },
        }
    }
}

/// Where the calling convention has the argument at this position, from 0.
fn abi(position: u8) -> Value {
    Value {
        mode: site::REGISTER,
        base: REGISTERS[usize::from(position).min(REGISTERS.len() - 1)],
        ..Value::default()
    }
}

/// From the kind byte of an iterator to the number of its kind and how its segments are counted.
pub(super) fn kind_index(plan: &Plan) -> [u8; 256] {
    let kinds = &plan.iter.kinds;
    std::array::from_fn(|byte| {
        let value = byte as u8 & !plan.iter.ignored_bits;
        let number = kinds.iter().position(|kind| kind.value == value);
        let segments = match number.map(|number| kinds[number].name.as_str()) {
            Some("ubuf") => ONE,
            Some("iovec" | "kvec" | "bvec") => COUNTED,
            // pipe, xarray, folioq and discard have none, or other things in that place.
            _ => 0,
        };
        number.unwrap_or(kinds.len()) as u8 | segments
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{IterLayout, Kind, Target};
    use iotrace_common::{import::Path, site::table_bits};

    fn site(address: u64, rank: u8, mechanism: Mechanism) -> Site {
        let arguments =
            Arguments::Import { segments: 2, fast: 3, path: Path::Readv, by_syscall: true, pointer: false };
        Site { symbol: "f".into(), module: None, offset: 0, address, mechanism, arguments, rank }
    }

    fn plan() -> Plan {
        let trap = |address, rank| site(address, rank, Mechanism::Trap { after: address + 5 });
        let unavailable = Mechanism::Unavailable { reason: "notrace".into() };
        let target = |symbol: &str, instrument, sites: Vec<Site>| Target {
            symbol: symbol.into(),
            function: symbol.into(),
            instrument,
            sites,
            reason: None,
        };
        let kind = |name: &str, value| Kind { name: name.into(), value };
        Plan {
            iter: IterLayout {
                kind_offset: 0,
                kinds: vec![kind("iovec", 4), kind("kvec", 8)],
                ignored_bits: 3,
            },
            targets: vec![
                target("import_iovec", Instrument::Count, vec![trap(10, 1), site(20, 0, unavailable)]),
                target("nowhere", Instrument::Time, vec![]),
                target("copy_to_iter", Instrument::Time, vec![trap(30, 0)]),
            ],
        }
    }

    #[test]
    fn behind_a_walkers_call_its_number_is_known() {
        let plan = plan();
        let mut job = jobs(&plan, &functions(&plan)).remove(0);
        job.number = 255;
        let kprobes = job.kprobes();
        assert_eq!((kprobes[0].program, kprobes[0].what.count().add), ("iter_return", 255));
        assert_eq!((kprobes[1].program, kprobes[1].what.count().mode), ("iter_call", site::REGISTER));
    }

    #[test]
    fn hot_sites_come_first_and_know_their_rows() {
        let plan = plan();
        let jobs = jobs(&plan, &functions(&plan));
        let rows: Vec<_> = jobs.iter().map(|job| (job.site.address, job.row, job.function)).collect();
        assert_eq!(rows, [(30, 3, 1), (10, 0, 0)]);
    }

    #[test]
    fn direction_bits_are_no_part_of_a_kind() {
        let index = kind_index(&plan());
        assert_eq!(
            [4, 5, 7, 8, 9, 16, 0].map(|byte: usize| index[byte]),
            [COUNTED, COUNTED, COUNTED, COUNTED | 1, COUNTED | 1, 2, 2]
        );
    }

    #[test]
    fn the_site_table_grows_until_all_fit() {
        let jobs: Vec<Job> = (0..2000)
            .map(|number| 0xffff_ffff_8100_0000 + number * 0x35)
            .map(|address| Job {
                row: 0,
                site: site(address, 0, Mechanism::Trap { after: address + 5 }),
                function: 0,
                instrument: Instrument::Count,
                number: UNNUMBERED,
            })
            .collect();
        let bits = site_table_bits(&jobs, 4);
        assert!((10..=table_bits(4000) + 3).contains(&bits), "{bits}");
    }
}
