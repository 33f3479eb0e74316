//! The places from which targets are reached: how each is probed, on which path it lies, how soon it is attached.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iotrace_common::import::Path;
use iotrace_common::site::{FENTRIES, SYSCALLS};

use super::arch_x86_64::REGISTER_ARGUMENTS;
use super::btf::Btf;
use super::kallsyms::{Symbol, Symbols};
use super::syscall::{self, Bodies};
use super::target::{Found, Reach, Shape, iter_shape};
use super::text::{Reader, Reference};
use super::{Arguments, Instrument, Mechanism, Site, Target};

/// A wrapper does nothing but check its arguments; `simple_copy_to_iter` has 59 bytes.
const WRAPPER_LIMIT: u64 = 256;

const NOTRACE: &str = "its caller is notrace";
const TAIL_JUMP: &str = "it is a tail jump: nothing of its caller runs after it";
const NOT_FOUND: &str = "nothing calls it by name";
const WITHIN: &str = "only functions call it that are targets themselves";

/// The targets with their sites.
pub fn find(
    symbols: &Symbols<'_>,
    btf: &Btf<'_>,
    reader: &Reader<'_>,
    lib: &Range<u64>,
    found: Vec<Found>,
) -> Vec<Target> {
    let called = |found: &&Found| matches!(found.reach, Reach::Callers(_));
    let addresses: Vec<_> = found.iter().filter(called).map(|found| found.address).collect();
    // What is called from within a target would be counted twice.
    let own: BTreeSet<_> = found.iter().map(|found| found.address).collect();
    let references: Vec<_> = reader
        .references(&addresses)
        .into_iter()
        .filter(|reference| {
            !own.contains(&reference.function.address) && !is_within(symbols, lib, reference.function)
        })
        .collect();
    let wrappers = wrappers(symbols, btf, reader, &references);
    let bodies = syscall::bodies(symbols, btf, reader, &references);
    let is_target = |reference: &Reference<'_>| {
        matches!(wrappers.get(&reference.function.address), Some(Ok(Wrapper { alone: true, .. })))
    };
    let (within, references): (Vec<_>, Vec<_>) = references.into_iter().partition(is_target);

    let mut targets: Vec<_> = found
        .into_iter()
        .map(|found| {
            let (mut sites, reason) = match found.reach {
                Reach::Not(reason) => (Vec::new(), Some(reason)),
                Reach::Itself(shape) => {
                    let function = Symbol { name: found.symbol, address: found.address, module: None };
                    (vec![itself(found.symbol, function, shape)], None)
                }
                Reach::Callers(shape) => {
                    let calls = references.iter().filter(|reference| reference.target == found.address);
                    let sites: Vec<_> = calls
                        .flat_map(|reference| {
                            let site = site(found.symbol, reader, &wrappers, reference, shape);
                            climb(&bodies, reference.function.address, site)
                        })
                        .collect();
                    let is_within = within.iter().any(|reference| reference.target == found.address);
                    let reason = if is_within { WITHIN } else { NOT_FOUND };
                    let reason = sites.is_empty().then_some(reason);
                    (sites, reason)
                }
            };
            sites.sort_by(|one, other| {
                let key = |site: &Site| (site.rank, site.symbol.clone(), site.offset, site.module.clone());
                key(one).cmp(&key(other)).then(one.address.cmp(&other.address))
            });
            Target {
                symbol: found.symbol.to_owned(),
                function: found.function.to_owned(),
                instrument: found.instrument,
                sites,
                reason: reason.map(str::to_owned),
            }
        })
        .collect();
    let alone: BTreeMap<_, _> =
        within.iter().map(|reference| (reference.function.address, reference)).collect();
    targets.extend(alone.into_values().filter_map(|Reference { function, .. }| {
        let wrapper = wrappers.get(&function.address)?.as_ref().ok()?;
        Some(Target {
            symbol: function.name.to_owned(),
            function: function.name.to_owned(),
            instrument: Instrument::Time,
            sites: vec![itself(function.name, *function, wrapper.shape)],
            reason: None,
        })
    }));
    limit(&mut targets, &Mechanism::Fentry, FENTRIES);
    limit(&mut targets, &Mechanism::Fexit, SYSCALLS);
    targets
}

/// Whether a function belongs to lib/iov_iter.c, the parts that the compiler has moved elsewhere (`.cold`) included.
fn is_within(symbols: &Symbols<'_>, lib: &Range<u64>, function: Symbol<'_>) -> bool {
    let whole = function.name.split_once('.').and_then(|(whole, _)| symbols.address_of(whole));
    function.module.is_none()
        && (lib.contains(&function.address) || whole.is_some_and(|at| lib.contains(&at)))
}

/// A thin function that can be traced and ends in tail jumps to walkers.
struct Wrapper {
    shape: Shape,
    /// It leads to several walkers (`dax_copy_to_iter` to `_copy_to_iter` and `_copy_mc_to_iter`): the name of either
    /// would be wrong for some calls, so it is a target of its own. Otherwise it stands for the walker.
    alone: bool,
}

/// By address, each function with a tail jump to a walker, or why it cannot be probed instead.
type Wrappers = BTreeMap<u64, Result<Wrapper, &'static str>>;

/// Looks at each function with a tail jump to a walker.
fn wrappers(
    symbols: &Symbols<'_>,
    btf: &Btf<'_>,
    reader: &Reader<'_>,
    references: &[Reference<'_>],
) -> Wrappers {
    let mut by_function: BTreeMap<u64, Vec<&Reference<'_>>> = BTreeMap::new();
    for reference in references {
        by_function.entry(reference.function.address).or_default().push(reference);
    }
    by_function.retain(|_, references| references.iter().any(|reference| reference.after.is_none()));
    let names: Vec<_> = by_function.values().map(|references| references[0].function.name).collect();
    let prototypes = btf.prototypes(&names);
    let judge = |references: &[&Reference<'_>], prototype: Option<_>| {
        let &Reference { function, end, target, .. } = references[0];
        if !reader.has_ftrace_entry(function.address) {
            return Err(NOTRACE);
        }
        // A call beside the jump would be counted as the wrapper and as itself.
        let calls = references.iter().any(|reference| reference.after.is_some());
        if calls || end - function.address > WRAPPER_LIMIT {
            return Err(TAIL_JUMP);
        }
        if function.module.is_some() {
            return Err("it is a tail jump in a module");
        }
        if symbols.named(function.name).nth(1).is_some() {
            return Err("it is a tail jump, and several functions have its caller's name");
        }
        match prototype.as_ref().and_then(|prototype| iter_shape(prototype, false)) {
            Some(shape @ Shape::Iter { count, .. }) if count <= REGISTER_ARGUMENTS => {
                let alone = references.iter().any(|reference| reference.target != target);
                Ok(Wrapper { shape, alone })
            }
            _ => Err(TAIL_JUMP),
        }
    };
    let judged = by_function.iter().zip(prototypes);
    judged.map(|((&address, references), prototype)| (address, judge(references, prototype))).collect()
}

/// A site whose function is probed as a whole.
fn itself(target: &str, function: Symbol<'_>, shape: Shape) -> Site {
    Site {
        symbol: function.name.to_owned(),
        module: function.module.map(str::to_owned),
        offset: 0,
        address: function.address,
        mechanism: Mechanism::Fentry,
        arguments: arguments(shape, function.name),
        rank: rank(target, function.name),
    }
}

/// The site of a call or tail jump.
fn site(
    target: &str,
    reader: &Reader<'_>,
    wrappers: &Wrappers,
    reference: &Reference<'_>,
    shape: Shape,
) -> Site {
    let function = reference.function;
    let unavailable = |reason: &str| Mechanism::Unavailable { reason: reason.to_owned() };
    let mechanism = match (reference.after, wrappers.get(&function.address)) {
        (Some(_), _) if !reader.is_traceable(function) => unavailable(NOTRACE),
        (Some(after), _) => Mechanism::Trap { after },
        (None, Some(Ok(wrapper))) if matches!(shape, Shape::Iter { .. }) => {
            return itself(target, function, wrapper.shape);
        }
        (None, Some(Err(reason))) => unavailable(reason),
        (None, _) => unavailable(TAIL_JUMP),
    };
    Site {
        offset: reference.address - function.address,
        address: reference.address,
        mechanism,
        ..itself(target, function, shape)
    }
}

/// For an import in a system call's body that cannot be probed, the sites around it.
fn climb(bodies: &Bodies, function: u64, site: Site) -> Vec<Site> {
    let (Some(around), Arguments::Import { path, .. }) = (bodies.get(&function), site.arguments) else {
        return vec![site];
    };
    if around.is_empty() {
        return vec![site];
    }
    // How many segments fit the caller's own array is not known there.
    let fast = 0;
    let arguments =
        Arguments::Import { segments: syscall::SEGMENTS, fast, path, by_syscall: false, pointer: false };
    let sites = around.iter().map(|(symbol, address)| Site {
        symbol: symbol.clone(),
        module: None,
        offset: 0,
        address: *address,
        mechanism: Mechanism::Fexit,
        arguments,
        rank: site.rank,
    });
    sites.collect()
}

/// Leaves the first sites of that mechanism, hot ones first, and takes the others out.
fn limit(targets: &mut [Target], mechanism: &Mechanism, most: usize) {
    let mut sites: Vec<_> = targets
        .iter_mut()
        .flat_map(|target| &mut target.sites)
        .filter(|site| site.mechanism == *mechanism)
        .collect();
    // Stable: within a rank the order of the table.
    sites.sort_by_key(|site| site.rank);
    for site in sites.into_iter().skip(most) {
        let reason = format!("no more than {most} functions are traced as a whole");
        site.mechanism = Mechanism::Unavailable { reason };
    }
}

fn arguments(shape: Shape, caller: &str) -> Arguments {
    match shape {
        Shape::Iter { iter, bytes, count, returns, keeps } => {
            Arguments::Iter { iter, bytes, count, returns, keeps }
        }
        Shape::Import { segments, fast, pointer } => {
            let (path, by_syscall) = match path(caller) {
                // The local side is imported whole, of the remote one only the array is read.
                (Path::ProcessVm, _) if pointer => (Path::ProcessVmRemote, false),
                path => path,
            };
            Arguments::Import { segments, fast, path, by_syscall, pointer }
        }
    }
}

/// The path that leads through an importer, and whether the system call in progress says it better.
fn path(caller: &str) -> (Path, bool) {
    let caller = whole(caller);
    match caller {
        "vfs_readv" => (Path::Readv, true),
        "vfs_writev" => (Path::Writev, true),
        "sendmsg_copy_msghdr" | "___sys_sendmsg" => (Path::Sendmsg, true),
        "recvmsg_copy_msghdr" | "___sys_recvmsg" => (Path::Recvmsg, true),
        "copy_msghdr_from_user" | "get_compat_msghdr" => (Path::Other, true),
        _ if caller.starts_with("io_") || caller.starts_with("__io_") => (Path::IoUring, false),
        _ if caller.starts_with("aio_") => (Path::Aio, false),
        _ if caller.starts_with("process_vm_rw") => (Path::ProcessVm, false),
        _ if caller.contains("vmsplice") => (Path::Vmsplice, false),
        _ if caller.contains("madvise") => (Path::Madvise, false),
        _ if caller.starts_with("keyctl") => (Path::Keyctl, false),
        _ if ["blk_rq_map_user", "sg_", "nvme"].iter().any(|start| caller.starts_with(start)) => {
            (Path::Block, false)
        }
        _ => (Path::Other, false),
    }
}

/// Functions on the read, write, send, receive and pipe paths of the kernels 5.10 to 7.3. TCP receives through
/// `simple_copy_to_iter`: what `tcp_recvmsg_locked` copies itself is the urgent byte.
const HOT: [&str; 24] = [
    "___sys_recvmsg",
    "___sys_sendmsg",
    "anon_pipe_read",
    "anon_pipe_write",
    "copy_msghdr_from_user",
    "filemap_read",
    "generic_file_buffered_read",
    "generic_perform_write",
    "iomap_file_buffered_write",
    "iomap_write_actor",
    "ip_generic_getfrag",
    "pipe_read",
    "pipe_write",
    "read_iter_zero",
    "recvmsg_copy_msghdr",
    "sendmsg_copy_msghdr",
    "shmem_file_read_iter",
    "simple_copy_to_iter",
    "skb_copy_datagram_from_iter",
    "tcp_sendmsg_locked",
    "udp_recvmsg",
    "udpv6_recvmsg",
    "vfs_readv",
    "vfs_writev",
];

/// Walkers that even the hot functions call only for odd devices: those that cannot do checksums, or that ask for
/// `NETIF_F_NOCACHE_COPY`.
const ODD: [&str; 3] = ["_copy_from_iter_nocache", "_copy_from_iter_full_nocache", "csum_and_copy_from_iter"];

/// When a site is attached: 0 for the hot ones, 1 for the rest.
fn rank(target: &str, caller: &str) -> u8 {
    u8::from(!HOT.contains(&whole(caller)) || ODD.contains(&target))
}

/// A name without the compiler's suffix.
fn whole(name: &str) -> &str {
    name.split_once('.').map_or(name, |(whole, _)| whole)
}
