//! From the plan to probes in the kernel, and out again. Knows aya; knows no metric and no terminal.

use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    thread,
};

use aya::{
    Ebpf,
    programs::{
        FEntry, FExit, ProgramError, fentry::FEntryLink, fexit::FExitLink, kprobe::KProbeLink,
        raw_trace_point::RawTracePointLink,
    },
};
use aya_log::EbpfLogger;
use iotrace_common::{
    block::Block,
    site::{self, FENTRIES, SYSCALLS, SiteSet},
};

use crate::{
    filter::Filter,
    plan::{Mechanism, Plan, zerocopy::Zerocopy},
    shared::Shared,
    snapshot::State,
};

mod attach;
mod close;
#[cfg(test)]
mod contract;
mod handovers;
mod job;
mod load;
mod maps;
mod programs;
mod refusal;
mod states;
mod zerocopy;

use close::{CLOSED, Numbers};
use job::{Job, Kprobe, jobs};
use load::{Types, kprobe, raw_trace_point};
use refusal::{explain, refused};

pub use close::OpenSite;
pub use handovers::{Handovers, Waiter};
pub use load::{Prepared, Records};
pub use programs::Programs;
pub use refusal::ProbesError;
pub use states::States;

/// The kernel side, as built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/iotrace"));

/// Threads that detach: the kernel waits out a grace period for each probe, and these overlap.
const DETACHERS: usize = 8;

/// What is to be counted.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Only these processes.
    pub filter: Filter,
    /// Only children of this process and their descendants.
    pub follow: bool,
    /// Rare events are logged by the kernel side.
    pub diagnose: bool,
}

/// The kernel side, loaded, and the probes attached so far. Detached when dropped.
#[derive(Debug)]
pub struct Probes {
    ebpf: Ebpf,
    plan: Plan,
    jobs: VecDeque<Job>,
    states: States,
    programs: Programs,
    functions: Vec<String>,
    sites: Shared<SiteSet>,
    site_bits: u32,
    /// For kprobes that carry what their program must know; `None` before 5.15.
    kprobe_type: Option<u32>,
    fentry_sites: Shared<site::Site>,
    fentries: usize,
    syscall_sites: Shared<site::Site>,
    syscalls: usize,
    held: Vec<Held>,
    /// Sites that are closed: their turn was, and they are not probed now.
    closed: Vec<Job>,
    numbers: Numbers,
    blocks: Arc<Shared<Block>>,
    cpus: usize,
    tracepoints: Vec<RawTracePointLink>,
    /// What watches TCP without copies, as long as it is not attached.
    zerocopy: Option<Zerocopy>,
    others: Vec<Link>,
    types: Types,
}

/// A site that is probed.
#[derive(Debug)]
struct Held {
    job: Job,
    links: Vec<Link>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held to keep the probe attached; detached when dropped")]
enum Link {
    Kprobe(OwnedFd),
    TableKprobe(KProbeLink),
    FEntry(FEntryLink),
    FExit(FExitLink),
}

/// What the kernel side says of rare events. Readable when there is something to [`flush`](KernelLog::flush).
pub struct KernelLog(EbpfLogger<&'static dyn log::Log>);

impl KernelLog {
    /// Passes all there is on to the log.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

impl AsRawFd for KernelLog {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Probes {
    /// The log of the kernel side, if rare events are logged.
    pub fn log(&mut self, scope: &Scope) -> Option<KernelLog> {
        let logger = scope.diagnose.then(|| EbpfLogger::init(&mut self.ebpf))?;
        logger
            .inspect_err(|error| log::warn!("the kernel side's log cannot be read: {error}"))
            .ok()
            .map(KernelLog)
    }

    /// The rank of the site whose turn is next; `None` when all have had theirs.
    pub fn next_rank(&self) -> Option<u8> {
        self.jobs.front().map(|job| job.site.rank)
    }

    /// Lets go of what only attaching needs, when all sites have had their turn.
    pub fn rest(&mut self) {
        if self.jobs.is_empty() {
            self.types = Types::Dropped;
        }
    }

    /// Attaches the next site. A site that the kernel refuses is so marked, and the others go on.
    pub fn attach_next(&mut self) {
        let Some(job) = self.jobs.pop_front() else { return };
        self.attach(job);
    }

    fn attach(&mut self, mut job: Job) {
        self.numbers.give(&mut job);
        let attached = match job.site.mechanism {
            Mechanism::Trap { .. } => self.kprobes(&job),
            Mechanism::Jump { after, .. } => self.kprobes(&job).or_else(|reason| {
                log::debug!("{}: {reason}; at the call itself, then", job.site.name());
                job.site.mechanism = Mechanism::Trap { after };
                self.states.trap(job.row, &job.site);
                self.kprobes(&job)
            }),
            Mechanism::Fentry => self.fentry(&mut job),
            Mechanism::Fexit => self.fexit(&job),
            Mechanism::Unavailable { .. } => return,
        };
        match attached {
            Ok(links) => {
                self.states.set(job.row, State::Attached, String::new());
                self.held.push(Held { job, links });
            }
            Err(reason) => {
                log::debug!("{}: {reason}", job.site.name());
                self.states.set(job.row, State::Failed, reason);
                self.numbers.take_back(&job);
            }
        }
    }

    /// Goes over to the plan of a kernel whose modules have changed: lets go of the sites that are no more, and
    /// queues those that are new.
    pub fn renew(&mut self, plan: &Plan) {
        self.plan.renew_modules(plan);
        let mut jobs = jobs(&self.plan, &self.functions);
        let states = States::of(&self.plan);
        let (held, gone): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| jobs.iter().any(|job| job.is_same_site(&held.job)));
        self.held = held;
        for Held { job, links } in gone {
            log::debug!("{}: its module is gone", job.site.name());
            drop(links);
            self.forget(&job);
            self.numbers.take_back(&job);
        }
        self.closed.retain_mut(|closed| {
            let Some(place) = jobs.iter().position(|job| job.is_same_site(closed)) else {
                self.numbers.take_back(closed);
                return false;
            };
            closed.row = jobs.remove(place).row;
            if matches!(closed.site.mechanism, Mechanism::Trap { .. }) {
                states.trap(closed.row, &closed.site);
            }
            states.set(closed.row, State::Closed, CLOSED.into());
            true
        });
        for held in &mut self.held {
            if let Some(place) = jobs.iter().position(|job| job.is_same_site(&held.job)) {
                held.job.row = jobs.remove(place).row;
                if matches!(held.job.site.mechanism, Mechanism::Trap { .. }) {
                    // Perhaps only because the kernel refused what the plan wanted.
                    states.trap(held.job.row, &held.job.site);
                }
                states.set(held.job.row, State::Attached, String::new());
            }
        }
        jobs.sort_by_key(|job| job.site.rank);
        self.states.take(&states);
        self.jobs = jobs.into();
    }

    /// Sets the site's kprobes, one after the other.
    fn kprobes(&mut self, job: &Job) -> Result<Vec<Link>, String> {
        let mut links = Vec::with_capacity(2);
        for Kprobe { program, address, what } in job.kprobes() {
            if self.kprobe_type.is_none() && !self.mark(site::Site { address, what }) {
                return Err("no room in the site table".into());
            }
            let program = kprobe(&mut self.ebpf, program).map_err(|error| error.to_string())?;
            links.push(if let Some(kprobe_type) = self.kprobe_type {
                let program = program.fd().map_err(|error| explain(&error))?;
                let link = attach::kprobe(program.as_fd(), kprobe_type, address, what);
                Link::Kprobe(link.map_err(|error| explain(&error))?)
            } else {
                // With an empty name the kernel takes the offset for the address.
                let link = program.attach("", address).map_err(|error| explain(&error))?;
                Link::TableKprobe(program.take_link(link).map_err(|error| explain(&error))?)
            });
        }
        Ok(links)
    }

    fn fentry(&mut self, job: &mut Job) -> Result<Vec<Link>, String> {
        let number = self.fentries;
        if number >= FENTRIES {
            return Err(format!("more than {FENTRIES} functions to probe by fentry"));
        }
        self.fentries += 1;
        job.number = number as u16;
        self.fentry_sites.set(number, site::Site { address: job.site.address, what: job.what().packed() });
        let exit = self.exit(&format!("iter_exit_{number}"), &job.site.symbol)?;
        let entry = self.entry(&format!("iter_entry_{number}"), &job.site.symbol)?;
        Ok(vec![exit, entry])
    }

    fn fexit(&mut self, job: &Job) -> Result<Vec<Link>, String> {
        let number = self.syscalls;
        if number >= SYSCALLS {
            return Err(format!("more than {SYSCALLS} system calls to probe by fexit"));
        }
        self.syscalls += 1;
        self.syscall_sites.set(number, site::Site { address: job.site.address, what: job.what().packed() });
        Ok(vec![self.exit(&format!("syscall_exit_{number}"), &job.site.symbol)?])
    }

    /// Runs a program at the entry of a function.
    fn entry(&mut self, name: &str, function: &str) -> Result<Link, String> {
        let types = self.types.get()?;
        let program = self.ebpf.program_mut(name).ok_or(NO_PROGRAM)?;
        let entry: &mut FEntry = program.try_into().map_err(|error: ProgramError| error.to_string())?;
        entry.load(function, types).map_err(|error| explain(&error))?;
        self.programs.loaded(name, entry.info());
        let link = entry.attach().map_err(|error| explain(&error))?;
        Ok(Link::FEntry(entry.take_link(link).map_err(|error| explain(&error))?))
    }

    /// Runs a program at the exit of a function.
    fn exit(&mut self, name: &str, function: &str) -> Result<Link, String> {
        let types = self.types.get()?;
        let program = self.ebpf.program_mut(name).ok_or(NO_PROGRAM)?;
        let exit: &mut FExit = program.try_into().map_err(|error: ProgramError| error.to_string())?;
        exit.load(function, types).map_err(|error| explain(&error))?;
        self.programs.loaded(name, exit.info());
        let link = exit.attach().map_err(|error| explain(&error))?;
        Ok(Link::FExit(exit.take_link(link).map_err(|error| explain(&error))?))
    }

    /// Writes a kprobe into the table of the kernel side; `false` if there is no room.
    fn mark(&mut self, site: site::Site) -> bool {
        let index = SiteSet::of(site.address, self.site_bits) as usize;
        let Some(mut set) = self.sites.get(index) else { return false };
        set.put(site) && self.sites.set(index, set)
    }

    /// Takes the kprobes of a site out of the table of the kernel side.
    fn forget(&mut self, job: &Job) {
        if self.kprobe_type.is_some() {
            return;
        }
        for Kprobe { address, .. } in job.kprobes() {
            let index = SiteSet::of(address, self.site_bits) as usize;
            if let Some(mut set) = self.sites.get(index) {
                set.take(address);
                self.sites.set(index, set);
            }
        }
    }

    /// Runs a program at a tracepoint from now on.
    fn watch(&mut self, name: &'static str, tracepoint: &str) -> Result<(), ProbesError> {
        let program = raw_trace_point(&mut self.ebpf, name)?;
        program.load().map_err(|error| refused(&error))?;
        self.programs.loaded(name, program.info());
        let link = program.attach(tracepoint).map_err(|error| refused(&error))?;
        self.tracepoints.push(program.take_link(link).map_err(|error| refused(&error))?);
        Ok(())
    }

    /// Detaches everything. Dropping does the same, one after the other.
    pub fn detach(mut self) {
        let mut links: Vec<Link> =
            self.held.drain(..).flat_map(|held| held.links).chain(self.others.drain(..)).collect();
        let share = links.len().div_ceil(DETACHERS).max(1);
        thread::scope(|scope| {
            while !links.is_empty() {
                let some = links.split_off(links.len().saturating_sub(share));
                scope.spawn(move || drop(some));
            }
        });
    }
}

const NO_PROGRAM: &str = "this binary has no such program";
