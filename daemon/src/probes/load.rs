//! Loading the kernel side: its read-only data, its maps, the programs that run once.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    sync::Arc,
    thread::{self, JoinHandle},
};

use aya::{
    Btf, BtfError, Ebpf, EbpfLoader,
    maps::{Map, MapData, RingBuf},
    programs::{KProbe, RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use iotrace_common::{
    CAST_CALL,
    block::{Block, PAIRS},
    site::{FENTRIES, SYSCALLS, table_bits},
    zerocopy::ZerocopyRecord,
};

use super::{
    OBJECT, Probes, ProbesError, Programs, Scope, States,
    attach::kprobe_type,
    close::Numbers,
    handovers::Handovers,
    job::{functions, jobs, kind_index, site_table_bits},
    maps,
    refusal::refused,
};
use crate::{
    arch,
    filter::{Filter, PIDS},
    kernel::{Cast, Facts},
    privileges,
    shared::Shared,
};

/// `SYSCALL_FROM` of the kernel side: by `bpf_task_pt_regs`.
const BY_HELPER: u32 = 1;
/// `SYSCALL_FROM` of the kernel side: on the task's stack.
const BY_STACK: u32 = 2;

/// The smallest ring buffer on x86_64.
const PAGE: u32 = 4096;

/// Probes for which the site table has room beside those of the plan: of modules that are loaded later.
const LATER: usize = 1024;

/// Open files beside the two for each site: maps, programs, connections, modules loaded later, and some room.
const OTHER_FILES: u64 = 2048;

/// What the probes count, in shared memory.
#[derive(Debug)]
pub struct Records {
    /// CPU.
    pub blocks: Arc<Shared<Block>>,
    /// CPU.
    pub zerocopy: Shared<ZerocopyRecord>,
    /// What slots held when another process took them.
    pub handovers: Handovers,
    /// CPUs.
    pub cpus: usize,
    /// Names of the functions.
    pub functions: Vec<String>,
    /// Names of the kinds, `other` last.
    pub kinds: Vec<String>,
    /// The state of the sites.
    pub states: States,
    /// The programs that are loaded.
    pub programs: Programs,
    /// Bytes of each map, by its name.
    pub maps: BTreeMap<String, u64>,
}

/// The kernel's types as aya wants them, read on a thread meanwhile. They take eight megabytes and more.
#[derive(Debug)]
pub(super) enum Types {
    Reading(JoinHandle<Result<Btf, BtfError>>),
    Read(Result<Btf, String>),
    /// To be read again if they are needed once more: for a module that is loaded later.
    Dropped,
}

impl Types {
    pub(super) fn get(&mut self) -> Result<&Btf, String> {
        if let Types::Dropped = self {
            *self = Types::Read(Btf::from_sys_fs().map_err(|error| error.to_string()));
        }
        if let Types::Reading(_) = self
            && let Types::Reading(reading) = std::mem::replace(self, Types::Read(Err("not read".into())))
        {
            let read = reading.join().map_err(|_| "the thread that read BTF panicked".to_owned());
            *self = Types::Read(read.and_then(|read| read.map_err(|error| error.to_string())));
        }
        match self {
            Types::Read(Ok(types)) => Ok(types),
            Types::Read(Err(error)) => Err(error.clone()),
            Types::Reading(_) | Types::Dropped => Err("not read".into()),
        }
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
    pub fn load(prepared: Prepared, facts: &Facts, scope: &Scope) -> Result<(Probes, Records), ProbesError> {
        let plan = &facts.plan;
        let functions = functions(plan);
        let mut kinds: Vec<String> = plan.iter.kinds.iter().map(|kind| kind.name.clone()).collect();
        kinds.push("other".into());
        let jobs = jobs(plan, &functions);
        let kprobe_type = facts.has_cookies.then(kprobe_type).transpose().map_err(ProbesError::KprobeType)?;
        let site_bits = match kprobe_type {
            // Each probe says itself what it is.
            Some(_) => 0,
            None => {
                let kprobes = jobs.iter().map(|job| job.kprobes().len()).sum::<usize>();
                site_table_bits(&jobs, table_bits(kprobes + LATER))
            }
        };
        privileges::allow_files(2 * jobs.len() as u64 + OTHER_FILES);
        if !facts.has_task_pt_regs {
            privileges::allow_locked_memory();
        }

        let cpus = facts.cpus as usize;
        if functions.len() * kinds.len() > PAIRS {
            return Err(ProbesError::Pairs { functions: functions.len(), kinds: kinds.len() });
        }
        let (task, iter) = (&facts.task, &facts.iter);
        let syscall_from = if facts.has_task_pt_regs { BY_HELPER } else { BY_STACK };
        let kind_index = kind_index(plan);
        let (syscall_path, vector_path) = (arch::syscall_paths(), arch::vector_paths());
        let numbers = [
            ("SYSCALL_FROM", syscall_from),
            ("TASK_STACK", task.stack),
            ("TASK_STATUS", task.status),
            ("TASK_TGID", task.tgid),
            ("TASK_PID", task.pid),
            ("TASK_LEADER", task.group_leader),
            ("TASK_COMM", task.comm),
            ("ITER_KIND", plan.iter.kind_offset),
            ("ITER_COUNT", iter.count),
            ("ITER_SEGMENTS", iter.nr_segs),
            ("ITER_OFFSET", iter.iov_offset),
            ("KINDS", kinds.len() as u32),
            ("SITE_BITS", site_bits),
            ("ITER_TYPE", facts.cast.map_or(0, |cast| cast.iter)),
            ("COOKIES", u32::from(kprobe_type.is_some())),
            ("FILTERED", u32::from(scope.follow || scope.filter != Filter::default())),
            ("FOLLOW", u32::from(scope.follow)),
            ("DIAGNOSE", u32::from(scope.diagnose)),
            ("CGROUP_ANCESTORS", facts.ancestors.map_or(0, |to| to.ids)),
            ("CGROUP_LEVEL", facts.ancestors.map_or(0, |to| to.level)),
            ("CSS_SET_CGROUP", facts.ancestors.map_or(0, |to| to.cgroup)),
            ("TASK_CGROUPS", facts.ancestors.map_or(0, |to| to.cgroups)),
            ("FILTER_BY_PID", u32::from(!scope.filter.pids.is_empty())),
            ("FILTER_BY_COMM", u32::from(scope.filter.comm.is_some())),
        ];
        let Prepared { mut loader, types } = prepared;
        for (name, number) in numbers.iter().chain(&facts.zerocopy.numbers) {
            loader.override_global(name, number, true);
        }
        let filter = &scope.filter;
        // The kernel side compares with all of them.
        let pids: [u32; PIDS] =
            std::array::from_fn(|place| filter.pids.get(place).or(filter.pids.first()).copied().unwrap_or(0));
        let (cgroup, level) = filter.cgroup.unwrap_or_default();
        let user = filter.uid.map_or(0, |uid| u64::from(uid) + 1);
        let comm = filter.comm.unwrap_or_default();
        loader
            .override_global("FILTER_PIDS", &pids, true)
            .override_global("FILTER_CGROUP", &cgroup, true)
            .override_global("FILTER_CGROUP_LEVEL", &level, true)
            .override_global("FILTER_USER", &user, true)
            .override_global("FILTER_COMM", &comm, true)
            .override_global("KIND_INDEX", &kind_index, true)
            .override_global("SYSCALL_PATH", &syscall_path, true)
            .override_global("VECTOR_PATH", &vector_path, true)
            .map_max_entries("BLOCKS", facts.cpus)
            .map_max_entries("ZEROCOPY", facts.cpus)
            .map_max_entries("SITES", 1 << site_bits);
        if !scope.diagnose {
            // Nothing is written to it then; a page is the least that the kernel takes.
            loader.map_max_entries("AYA_LOGS", PAGE);
        }
        let mut ebpf = loader.load(&object(facts.cast)).map_err(|error| refused(&error))?;
        let programs = Programs::default();
        // It asks for the system call's registers as only that helper gives them.
        let vector = facts.has_task_pt_regs.then_some("import_vector");
        let others = ["import_call", "import_return", "import_done", "iter_call", "iter_return"];
        for name in others.into_iter().chain(vector) {
            let program = kprobe(&mut ebpf, name)?;
            program.load().map_err(|error| refused(&error))?;
            programs.loaded(name, program.info());
        }
        whoami(&mut ebpf)?;
        if syscall_from == BY_STACK {
            whereis(&mut ebpf)?;
        }

        let maps = maps::bytes(&ebpf);
        let states = States::of(plan);
        states.set_others(super::zerocopy::rows(&facts.zerocopy));
        let handovers = ebpf.take_map("HANDOVERS").ok_or(ProbesError::Missing("HANDOVERS"))?;
        let handovers = RingBuf::try_from(handovers).map_err(|error| refused(&error))?;
        let blocks = Arc::new(share(&ebpf, "BLOCKS", cpus, false)?);
        let records = Records {
            blocks: Arc::clone(&blocks),
            zerocopy: share(&ebpf, "ZEROCOPY", cpus, false)?,
            handovers: Handovers::of(handovers),
            cpus,
            functions: functions.clone(),
            kinds,
            states: states.clone(),
            programs: programs.clone(),
            maps,
        };
        let mut probes = Probes {
            sites: share(&ebpf, "SITES", 1 << site_bits, true)?,
            fentry_sites: share(&ebpf, "FENTRY_SITES", FENTRIES, true)?,
            syscall_sites: share(&ebpf, "SYSCALL_SITES", SYSCALLS, true)?,
            ebpf,
            plan: plan.clone(),
            jobs: jobs.into(),
            states,
            programs,
            functions,
            site_bits,
            kprobe_type,
            fentries: 0,
            syscalls: 0,
            held: Vec::new(),
            closed: Vec::new(),
            numbers: Numbers::default(),
            blocks,
            cpus,
            tracepoints: Vec::new(),
            zerocopy: Some(facts.zerocopy.clone()),
            others: Vec::new(),
            types,
        };
        probes.watch("who_fork", "sched_process_fork")?;
        probes.watch("who_exec", "sched_process_exec")?;
        probes.watch("who_moved", "cgroup_attach_task")?;
        if scope.follow {
            probes.watch("tree_fork", "sched_process_fork")?;
            probes.watch("tree_free", "sched_process_free")?;
        }
        Ok((probes, records))
    }
}

/// The kernel side, with the number of `bpf_rdonly_cast` where it is called; where there is none, the calls are never
/// reached, and the verifier takes them out.
pub(super) fn object(cast: Option<Cast>) -> Vec<u8> {
    /// `BPF_JMP | BPF_CALL`, registers (source `BPF_PSEUDO_KFUNC_CALL`), offset (0: a function of the kernel proper).
    const CALL: [u8; 4] = [0x85, 0, 0, 0];
    const KFUNC: [u8; 4] = [0x85, 0x20, 0, 0];

    let mut object = OBJECT.to_vec();
    let Some(cast) = cast else { return object };
    for instruction in object.as_chunks_mut::<8>().0 {
        if instruction[..4] == CALL && instruction[4..] == CAST_CALL.to_le_bytes() {
            instruction[..4].copy_from_slice(&KFUNC);
            instruction[4..].copy_from_slice(&cast.call.to_le_bytes());
        }
    }
    object
}

pub(super) fn kprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut KProbe, ProbesError> {
    ebpf.program_mut(name).and_then(|program| program.try_into().ok()).ok_or(ProbesError::Missing(name))
}

pub(super) fn raw_trace_point<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut RawTracePoint, ProbesError> {
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
