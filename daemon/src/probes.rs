//! From the plan to probes in the kernel, and out again. Knows aya; knows no metric and no terminal.

use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, AsRawFd, RawFd},
    thread::{self, JoinHandle},
};

use aya::{
    Btf, BtfError, Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::{
        FEntry, FExit, KProbe, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _,
        fentry::FEntryLink, fexit::FExitLink, kprobe::KProbeLink, raw_trace_point::RawTracePointLink,
    },
};
use aya_log::EbpfLogger;
use iotrace_common::{
    import::{ImportRecord, Path},
    iter::IterRecord,
    lost::LostRecord,
    site::{self, FENTRIES, SiteSet, table_bits},
};

use crate::{
    arch,
    kernel::Facts,
    plan::{Instrument, Mechanism},
    privileges,
    shared::Shared,
    snapshot::State,
};

#[cfg(test)]
mod contract;
mod job;
mod refusal;
mod states;

use job::{Job, functions, jobs, kernel_site, kind_index, site_table_bits};
use refusal::{explain, refused};

pub use refusal::ProbesError;
pub use states::States;

/// The kernel side, as built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/iotrace"));

/// Threads that detach: the kernel waits out a grace period for each probe, and these overlap.
const DETACHERS: usize = 8;

/// `SYSCALL_FROM` of the kernel side: by `bpf_task_pt_regs`.
const BY_HELPER: u32 = 1;
/// `SYSCALL_FROM` of the kernel side: on the task's stack.
const BY_STACK: u32 = 2;

/// The smallest ring buffer on x86_64.
const PAGE: u32 = 4096;

/// Open files beside the two for each site: maps, programs, connections, and some room.
const OTHER_FILES: u64 = 512;

/// What the probes count, in shared memory.
#[derive(Debug)]
pub struct Records {
    /// CPU × path.
    pub imports: Shared<ImportRecord>,
    /// CPU × function × kind.
    pub iters: Shared<IterRecord>,
    /// CPU.
    pub lost: Shared<LostRecord>,
    /// CPUs.
    pub cpus: usize,
    /// Names of the functions.
    pub functions: Vec<String>,
    /// Names of the kinds, `other` last.
    pub kinds: Vec<String>,
    /// The state of the sites.
    pub states: States,
}

/// What is to be counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope {
    /// Only children of this process and their descendants.
    pub follow: bool,
    /// Rare events are logged by the kernel side.
    pub diagnose: bool,
}

/// The kernel side, loaded, and the probes attached so far. Detached when dropped.
#[derive(Debug)]
pub struct Probes {
    ebpf: Ebpf,
    jobs: VecDeque<Job>,
    states: States,
    sites: Shared<SiteSet>,
    site_bits: u32,
    fentry_sites: Shared<site::Site>,
    fentries: usize,
    links: Vec<Link>,
    /// The kernel's types as aya wants them, read on a thread meanwhile: fentry needs them.
    types: Types,
}

#[derive(Debug)]
enum Types {
    Reading(JoinHandle<Result<Btf, BtfError>>),
    Read(Result<Btf, String>),
}

impl Types {
    fn get(&mut self) -> Result<&Btf, String> {
        if let Types::Reading(_) = self
            && let Types::Reading(reading) = std::mem::replace(self, Types::Read(Err("not read".into())))
        {
            let read = reading.join().map_err(|_| "the thread that read BTF panicked".to_owned());
            *self = Types::Read(read.and_then(|read| read.map_err(|error| error.to_string())));
        }
        match self {
            Types::Read(Ok(types)) => Ok(types),
            Types::Read(Err(error)) => Err(error.clone()),
            Types::Reading(_) => Err("not read".into()),
        }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "held to keep the probe attached; detached when dropped")]
enum Link {
    KProbe(KProbeLink),
    FEntry(FEntryLink),
    FExit(FExitLink),
    RawTracePoint(RawTracePointLink),
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

/// What aya prepares without knowing the plan: it reads all of the kernel's types, twice, which takes a while.
pub struct Prepared {
    loader: EbpfLoader<'static>,
    types: Types,
}

impl Prepared {
    /// Prepares; returns when the loader is ready, the rest goes on meanwhile.
    pub fn new() -> Prepared {
        Prepared { types: Types::Reading(thread::spawn(Btf::from_sys_fs)), loader: EbpfLoader::new() }
    }
}

impl Default for Prepared {
    fn default() -> Prepared {
        Prepared::new()
    }
}

impl Probes {
    /// Loads the kernel side for this kernel; attaches nothing yet.
    ///
    /// # Errors
    /// What the kernel refuses, and what to do.
    pub fn load(prepared: Prepared, facts: &Facts, scope: Scope) -> Result<(Probes, Records), ProbesError> {
        let plan = &facts.plan;
        let functions = functions(plan);
        let mut kinds: Vec<String> = plan.iter.kinds.iter().map(|kind| kind.name.clone()).collect();
        kinds.push("other".into());
        let jobs = jobs(plan, &functions);
        let traps = jobs.iter().filter(|job| matches!(job.site.mechanism, Mechanism::Trap { .. })).count();
        let site_bits = site_table_bits(&jobs, table_bits(2 * traps));
        privileges::allow_files(2 * jobs.len() as u64 + OTHER_FILES);
        if !facts.has_task_pt_regs {
            privileges::allow_locked_memory();
        }

        let cpus = facts.cpus as usize;
        let iters = cpus * functions.len() * kinds.len();
        let task = &facts.task;
        let syscall_from = if facts.has_task_pt_regs { BY_HELPER } else { BY_STACK };
        let kind_index = kind_index(plan);
        let syscall_path = arch::syscall_paths();
        let numbers = [
            functions.len() as u32,
            kinds.len() as u32,
            site_bits,
            u32::from(scope.follow),
            u32::from(scope.diagnose),
        ];
        let Prepared { mut loader, types } = prepared;
        loader
            .override_global("SYSCALL_FROM", &syscall_from, true)
            .override_global("TASK_STACK", &task.stack, true)
            .override_global("TASK_STATUS", &task.status, true)
            .override_global("TASK_TGID", &task.tgid, true)
            .override_global("TASK_PID", &task.pid, true)
            .override_global("ITER_KIND", &plan.iter.kind_offset, true)
            .override_global("ITER_COUNT", &facts.iter_count, true)
            .override_global("FUNCTIONS", &numbers[0], true)
            .override_global("KINDS", &numbers[1], true)
            .override_global("SITE_BITS", &numbers[2], true)
            .override_global("FOLLOW", &numbers[3], true)
            .override_global("DIAGNOSE", &numbers[4], true)
            .override_global("KIND_INDEX", &kind_index, true)
            .override_global("SYSCALL_PATH", &syscall_path, true)
            .map_max_entries("IMPORTS", (cpus * Path::COUNT) as u32)
            .map_max_entries("ITERS", iters.max(1) as u32)
            .map_max_entries("LOST", facts.cpus)
            .map_max_entries("SITES", 1 << site_bits);
        if !scope.diagnose {
            // Nothing is written to it then; a page is the least that the kernel takes.
            loader.map_max_entries("AYA_LOGS", PAGE);
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| refused(&error))?;
        for name in ["import_call", "import_return", "iter_call", "iter_return"] {
            kprobe(&mut ebpf, name)?.load().map_err(|error| refused(&error))?;
        }
        whoami(&mut ebpf)?;
        if syscall_from == BY_STACK {
            whereis(&mut ebpf)?;
        }

        let states = States::of(plan);
        let records = Records {
            imports: share(&ebpf, "IMPORTS", cpus * Path::COUNT, false)?,
            iters: share(&ebpf, "ITERS", iters.max(1), false)?,
            lost: share(&ebpf, "LOST", cpus, false)?,
            cpus,
            functions,
            kinds,
            states: states.clone(),
        };
        let mut probes = Probes {
            sites: share(&ebpf, "SITES", 1 << site_bits, true)?,
            fentry_sites: share(&ebpf, "FENTRY_SITES", FENTRIES, true)?,
            ebpf,
            jobs: jobs.into(),
            states,
            site_bits,
            fentries: 0,
            links: Vec::new(),
            types,
        };
        if scope.follow {
            probes.follow()?;
        }
        Ok((probes, records))
    }

    /// The log of the kernel side, if rare events are logged.
    pub fn log(&mut self, scope: Scope) -> Option<KernelLog> {
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

    /// Attaches the next site. A site that the kernel refuses is so marked, and the others go on.
    pub fn attach_next(&mut self) {
        let Some(job) = self.jobs.pop_front() else { return };
        let attached = match job.site.mechanism {
            Mechanism::Trap { after } => self.trap(&job, after),
            Mechanism::Fentry => self.fentry(&job),
            Mechanism::Unavailable { .. } => return,
        };
        match attached {
            Ok(()) => {
                self.mark(&job, site::ON);
                self.states.set(job.row, State::Attached, String::new());
            }
            Err(reason) => {
                log::debug!("{}: {reason}", job.site.name());
                self.states.set(job.row, State::Failed, reason);
            }
        }
    }

    /// Probes the call and the instruction after it; that one first, so that no call waits for its return.
    fn trap(&mut self, job: &Job, after: u64) -> Result<(), String> {
        let (call, returned) = match job.instrument {
            Instrument::Count => ("import_call", "import_return"),
            Instrument::Time => ("iter_call", "iter_return"),
        };
        if !self.mark(job, site::OFF) {
            return Err("no room in the site table".into());
        }
        let mut links = Vec::with_capacity(2);
        for (program, address) in [(returned, after), (call, job.site.address)] {
            let program = kprobe(&mut self.ebpf, program).map_err(|error| error.to_string())?;
            // With an empty name the kernel takes the offset for the address (kernel/trace/trace_event_perf.c):
            // it works for symbols that occur twice and for modules, too.
            let link = program.attach("", address).map_err(|error| explain(&error))?;
            links.push(Link::KProbe(program.take_link(link).map_err(|error| explain(&error))?));
        }
        self.links.append(&mut links);
        Ok(())
    }

    fn fentry(&mut self, job: &Job) -> Result<(), String> {
        let number = self.fentries;
        if number >= FENTRIES {
            return Err(format!("more than {FENTRIES} functions to probe by fentry"));
        }
        self.fentries += 1;
        self.fentry_sites.set(number, kernel_site(job, job.site.address, site::OFF));
        let types = self.types.get()?;
        let missing = || "this binary has no such program".to_owned();

        let program = self.ebpf.program_mut(&format!("iter_exit_{number}")).ok_or_else(missing)?;
        let exit: &mut FExit = program.try_into().map_err(|error: ProgramError| error.to_string())?;
        exit.load(&job.site.symbol, types).map_err(|error| explain(&error))?;
        let link = exit.attach().map_err(|error| explain(&error))?;
        let exit = exit.take_link(link).map_err(|error| explain(&error))?;

        let program = self.ebpf.program_mut(&format!("iter_entry_{number}")).ok_or_else(missing)?;
        let entry: &mut FEntry = program.try_into().map_err(|error: ProgramError| error.to_string())?;
        entry.load(&job.site.symbol, types).map_err(|error| explain(&error))?;
        let link = entry.attach().map_err(|error| explain(&error))?;
        let entry = entry.take_link(link).map_err(|error| explain(&error))?;

        self.links.extend([Link::FExit(exit), Link::FEntry(entry)]);
        Ok(())
    }

    /// Writes the site into the table of the kernel side; `false` if there is no room.
    fn mark(&mut self, job: &Job, state: u8) -> bool {
        match job.site.mechanism {
            Mechanism::Trap { after } => [job.site.address, after].into_iter().all(|address| {
                let index = SiteSet::of(address, self.site_bits) as usize;
                let Some(mut set) = self.sites.get(index) else { return false };
                set.put(kernel_site(job, address, state)) && self.sites.set(index, set)
            }),
            Mechanism::Fentry => {
                let held = |number: &usize| {
                    self.fentry_sites.get(*number).is_some_and(|held| held.address == job.site.address)
                };
                (0..self.fentries).find(held).is_some_and(|number| {
                    self.fentry_sites.set(number, kernel_site(job, job.site.address, state))
                })
            }
            Mechanism::Unavailable { .. } => false,
        }
    }

    fn follow(&mut self) -> Result<(), ProbesError> {
        for (name, tracepoint) in [("tree_fork", "sched_process_fork"), ("tree_free", "sched_process_free")] {
            let program = raw_trace_point(&mut self.ebpf, name)?;
            program.load().map_err(|error| refused(&error))?;
            let link = program.attach(tracepoint).map_err(|error| refused(&error))?;
            let link = program.take_link(link).map_err(|error| refused(&error))?;
            self.links.push(Link::RawTracePoint(link));
        }
        Ok(())
    }

    /// Detaches everything. Dropping does the same, one after the other.
    pub fn detach(mut self) {
        let mut links = std::mem::take(&mut self.links);
        let share = links.len().div_ceil(DETACHERS).max(1);
        thread::scope(|scope| {
            while !links.is_empty() {
                let some = links.split_off(links.len().saturating_sub(share));
                scope.spawn(move || drop(some));
            }
        });
    }
}

fn kprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut KProbe, ProbesError> {
    ebpf.program_mut(name).and_then(|program| program.try_into().ok()).ok_or(ProbesError::Missing(name))
}

fn raw_trace_point<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut RawTracePoint, ProbesError> {
    ebpf.program_mut(name).and_then(|program| program.try_into().ok()).ok_or(ProbesError::Missing(name))
}

/// Lets the kernel side learn which process is its own.
fn whoami(ebpf: &mut Ebpf) -> Result<(), ProbesError> {
    let program = raw_trace_point(ebpf, "whoami")?;
    program.load().map_err(|error| refused(&error))?;
    program.test_run(RawTracePointRunOptions::default()).map_err(|error| refused(&error))?;
    Ok(())
}

/// Lets the kernel side see a system call of this process, and measure where its registers are saved.
fn whereis(ebpf: &mut Ebpf) -> Result<(), ProbesError> {
    let program = raw_trace_point(ebpf, "whereis")?;
    program.load().map_err(|error| refused(&error))?;
    let link = program.attach("sys_enter").map_err(|error| refused(&error))?;
    // Detaching is itself a system call, and so is this one, in case a kernel detaches before it enters.
    let _parent = std::os::unix::process::parent_id();
    program.detach(link).map_err(|error| refused(&error))
}

fn share<T: Copy>(
    ebpf: &Ebpf,
    name: &'static str,
    length: usize,
    writable: bool,
) -> Result<Shared<T>, ProbesError> {
    let map: &MapData = match ebpf.map(name) {
        Some(Map::Array(map)) => map,
        _ => return Err(ProbesError::Missing(name)),
    };
    // SAFETY: the kernel side declares this map as an mmapable array of `T` (a test compares the sizes in the
    // object with the common crate), and `length` is the number of entries it was created with.
    unsafe { Shared::map(map.fd().as_fd(), length, writable) }
        .map_err(|error| ProbesError::Share { name, error })
}
