//! The functions of the iov_iter layer. Their names are here and nowhere else.

use std::collections::BTreeSet;
use std::ops::Range;

use super::arch_x86_64::REGISTER_ARGUMENTS;
use super::btf::{Btf, Prototype, Value};
use super::kallsyms::Symbols;
use super::text::Reader;
use super::{Instrument, PlanError, Returns};

/// More than lib/iov_iter.c ever had: 20 to 26 KiB.
const LIB_LIMIT: u64 = 256 << 10;
/// More arguments than any function here has, or the kernel allows under fentry.
const ARGUMENTS: usize = 12;

/// Positions of what is read of a call, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Of an import.
    Import {
        /// `nr_segs`.
        segments: u8,
        /// `fast_segs`.
        fast: u8,
        /// Whether it returns a pointer to the segments, not their bytes.
        pointer: bool,
    },
    /// Of a walker.
    Iter {
        /// The `struct iov_iter *`.
        iter: u8,
        /// The byte count.
        bytes: u8,
        /// How many arguments there are.
        count: u8,
        /// What it returns.
        returns: Returns,
        /// Whether it leaves the iterator where it was.
        keeps: bool,
    },
}

struct Entry {
    symbol: &'static str,
    function: &'static str,
    /// Its ABI, for kernels whose BTF has no functions of lib/ (5.10). Where BTF has them, it is asked.
    shape: Shape,
}

const fn import(symbol: &'static str, segments: u8, fast: u8, pointer: bool) -> Entry {
    Entry { symbol, function: symbol, shape: Shape::Import { segments, fast, pointer } }
}

const fn walker(
    symbol: &'static str,
    function: &'static str,
    (iter, bytes, count): (u8, u8, u8),
    returns: Returns,
) -> Entry {
    Entry { symbol, function, shape: Shape::Iter { iter, bytes, count, returns, keeps: false } }
}

/// A walker that leaves the iterator where it was.
const fn keeper(symbol: &'static str, (iter, bytes, count): (u8, u8, u8)) -> Entry {
    let shape = Shape::Iter { iter, bytes, count, returns: Returns::Bytes, keeps: true };
    Entry { symbol, function: symbol, shape }
}

/// Every target of the kernels from 5.10 on, in the order in which they are shown. `copy_to_iter` and its like are
/// inline checks in front of the function that has the underscore.
const TABLE: [Entry; 29] = [
    import("import_iovec", 2, 3, false),
    import("__import_iovec", 2, 3, false),
    import("iovec_from_user", 1, 2, true),
    walker("_copy_to_iter", "copy_to_iter", (2, 1, 3), Returns::Bytes),
    walker("_copy_from_iter", "copy_from_iter", (2, 1, 3), Returns::Bytes),
    walker("_copy_from_iter_nocache", "copy_from_iter_nocache", (2, 1, 3), Returns::Bytes),
    walker("_copy_from_iter_flushcache", "copy_from_iter_flushcache", (2, 1, 3), Returns::Bytes),
    walker("_copy_mc_to_iter", "copy_mc_to_iter", (2, 1, 3), Returns::Bytes),
    walker("_copy_from_iter_full", "copy_from_iter_full", (2, 1, 3), Returns::All),
    walker("_copy_from_iter_full_nocache", "copy_from_iter_full_nocache", (2, 1, 3), Returns::All),
    walker("copy_page_to_iter", "copy_page_to_iter", (3, 2, 4), Returns::Bytes),
    walker("copy_page_to_iter_nofault", "copy_page_to_iter_nofault", (3, 2, 4), Returns::Bytes),
    walker("copy_page_from_iter", "copy_page_from_iter", (3, 2, 4), Returns::Bytes),
    walker("copy_page_from_iter_atomic", "copy_page_from_iter_atomic", (3, 2, 4), Returns::Bytes),
    walker("copy_folio_from_iter_atomic", "copy_folio_from_iter_atomic", (3, 2, 4), Returns::Bytes),
    keeper("iov_iter_copy_from_user_atomic", (1, 3, 4)),
    walker("iov_iter_zero", "iov_iter_zero", (1, 0, 2), Returns::Bytes),
    walker("csum_and_copy_to_iter", "csum_and_copy_to_iter", (3, 1, 4), Returns::Bytes),
    walker("csum_and_copy_from_iter", "csum_and_copy_from_iter", (3, 1, 4), Returns::Bytes),
    walker("csum_and_copy_from_iter_full", "csum_and_copy_from_iter_full", (3, 1, 4), Returns::All),
    walker("hash_and_copy_to_iter", "hash_and_copy_to_iter", (3, 1, 4), Returns::Bytes),
    walker("crc32c_and_copy_to_iter", "crc32c_and_copy_to_iter", (3, 1, 4), Returns::Bytes),
    walker(NOTRACE_WRAPPER, NOTRACE_WRAPPER, (2, 4, 6), Returns::Zero),
    walker("iov_iter_advance", "iov_iter_advance", (0, 1, 2), Returns::Nothing),
    walker("iov_iter_extract_pages", "iov_iter_extract_pages", (0, 2, 6), Returns::Bytes),
    keeper("iov_iter_get_pages", (0, 2, 5)),
    walker("iov_iter_get_pages2", "iov_iter_get_pages2", (0, 2, 5), Returns::Bytes),
    keeper("iov_iter_get_pages_alloc", (0, 2, 4)),
    walker("iov_iter_get_pages_alloc2", "iov_iter_get_pages_alloc2", (0, 2, 4), Returns::Bytes),
];

/// Around `_copy_from_iter_full` and its kin on the TCP send path (include/net/sock.h). Where a compiler leaves this
/// out of line, as that of Debian's 5.10 does, the kernel's `inline` makes it notrace: then its own calls are what
/// can be seen. Elsewhere it has no text of its own.
const NOTRACE_WRAPPER: &str = "skb_do_copy_data_nocache";

/// Other functions of lib/iov_iter.c, which show how far its text reaches.
const ANCHORS: [&str; 14] = [
    "dup_iter",
    "fault_in_iov_iter_readable",
    "import_single_range",
    "import_ubuf",
    "iov_iter_alignment",
    "iov_iter_bvec",
    "iov_iter_discard",
    "iov_iter_gap_alignment",
    "iov_iter_init",
    "iov_iter_kvec",
    "iov_iter_npages",
    "iov_iter_restore",
    "iov_iter_revert",
    "iov_iter_single_seg_count",
];

/// Targets that some kernels have elsewhere: since 6.7 in net/core/datagram.c and net/core/skbuff.c.
const MOVED: [&str; 5] = [
    "csum_and_copy_to_iter",
    "csum_and_copy_from_iter",
    "csum_and_copy_from_iter_full",
    "hash_and_copy_to_iter",
    "crc32c_and_copy_to_iter",
];

/// A target that the running kernel has.
#[derive(Clone, Debug)]
pub struct Found {
    /// The kernel's symbol.
    pub symbol: &'static str,
    /// The name in metrics.
    pub function: &'static str,
    /// Its first byte.
    pub address: u64,
    /// What it is probed for.
    pub instrument: Instrument,
    /// How it is reached.
    pub reach: Reach,
}

/// How a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Where it is called.
    Callers(Shape),
    /// It is itself traceable.
    Itself(Shape),
    /// Not at all.
    Not(&'static str),
}

/// The text of lib/iov_iter.c: from the first to the end of the last of its functions.
pub fn lib_text(symbols: &Symbols<'_>) -> Result<Range<u64>, PlanError> {
    let targets = TABLE.iter().map(|entry| entry.symbol);
    let targets = targets.filter(|symbol| *symbol != NOTRACE_WRAPPER && !MOVED.contains(symbol));
    let addresses = targets.chain(ANCHORS).filter_map(|name| symbols.address_of(name));
    let (first, last) = addresses
        .fold(None, |range: Option<(u64, u64)>, address| {
            let (first, last) = range.unwrap_or((address, address));
            Some((first.min(address), last.max(address)))
        })
        .ok_or(PlanError::NoTargets)?;
    let end = symbols.enclosing(last).map_or(last, |(_, end)| end);
    match end.saturating_sub(first) {
        span if span > LIB_LIMIT => Err(PlanError::Spread { span }),
        _ => Ok(first..end),
    }
}

/// The targets that the running kernel has, in the order of the table.
pub fn find(symbols: &Symbols<'_>, btf: &Btf<'_>, reader: &Reader<'_>, lib: &Range<u64>) -> Vec<Found> {
    let prototypes = btf.prototypes(&TABLE.map(|entry| entry.symbol));
    let entries = TABLE.iter().zip(prototypes);
    let mut taken = BTreeSet::new();
    entries
        .filter_map(|(entry, prototype)| {
            let mut all = symbols.named(entry.symbol).filter(|symbol| symbol.module.is_none());
            let address = all.next()?.address;
            if entry.symbol == NOTRACE_WRAPPER && reader.has_ftrace_entry(address) {
                return None;
            }
            let reach = if all.next().is_some() {
                Reach::Not("several functions have this name")
            } else if !taken.insert(address) {
                Reach::Not("another target has its address")
            } else {
                reach(entry, prototype.as_ref(), lib.contains(&address), || reader.has_ftrace_entry(address))
            };
            let instrument = match entry.shape {
                Shape::Import { .. } => Instrument::Count,
                Shape::Iter { .. } => Instrument::Time,
            };
            Some(Found { symbol: entry.symbol, function: entry.function, address, instrument, reach })
        })
        .collect()
}

fn reach(
    entry: &Entry,
    prototype: Option<&Prototype<'_>>,
    in_lib: bool,
    has_ftrace_entry: impl FnOnce() -> bool,
) -> Reach {
    let shape = match prototype {
        None => Some(entry.shape),
        Some(prototype) => shape(entry, prototype),
    };
    match shape {
        None => Reach::Not("its arguments are not the known ones"),
        Some(shape) if in_lib => Reach::Callers(shape),
        // The kernel sets fentry by BTF.
        Some(shape) if prototype.is_some() && has_ftrace_entry() => Reach::Itself(shape),
        Some(shape) => Reach::Callers(shape),
    }
}

fn shape(entry: &Entry, prototype: &Prototype<'_>) -> Option<Shape> {
    match entry.shape {
        Shape::Import { pointer, .. } => import_shape(prototype, pointer),
        // Its count is called `copy`, and no type says that it returns 0 for all.
        Shape::Iter { iter, returns: Returns::Zero, .. } => {
            (position(prototype, |_, is_iter| is_iter) == Some(iter)).then_some(entry.shape)
        }
        Shape::Iter { keeps, .. } => iter_shape(prototype, keeps),
    }
}

fn import_shape(prototype: &Prototype<'_>, pointer: bool) -> Option<Shape> {
    let segments = position(prototype, |name, _| name == "nr_segs")?;
    let fast = position(prototype, |name, _| name == "fast_segs")?;
    let returns = if pointer { Value::Other } else { Value::Integer };
    (prototype.returns == returns).then_some(Shape::Import { segments, fast, pointer })
}

/// The shape of a function that takes a `struct iov_iter *` and a byte count, both in registers.
pub fn iter_shape(prototype: &Prototype<'_>, keeps: bool) -> Option<Shape> {
    let iter = position(prototype, |_, is_iter| is_iter)?;
    let bytes = position(prototype, |name, _| matches!(name, "bytes" | "len" | "size" | "maxsize"))?;
    let returns = match prototype.returns {
        Value::Integer => Returns::Bytes,
        Value::Bool => Returns::All,
        Value::Void => Returns::Nothing,
        Value::Other => return None,
    };
    let count = u8::try_from(prototype.parameters.len()).ok()?;
    Some(Shape::Iter { iter, bytes, count, returns, keeps })
}

/// The position of the segment count among a system call's arguments.
pub fn syscall_segments(prototype: &Prototype<'_>) -> Option<u8> {
    position(prototype, |name, _| matches!(name, "nr_segs" | "vlen"))
}

/// The position of the one parameter that fits, if it travels in a register.
fn position(prototype: &Prototype<'_>, fits: impl Fn(&str, bool) -> bool) -> Option<u8> {
    if prototype.parameters.len() > ARGUMENTS {
        return None;
    }
    let mut all = (0u8..).zip(&prototype.parameters).filter(|(_, found)| fits(found.name, found.is_iter));
    let (position, _) = all.next()?;
    (all.next().is_none() && position < REGISTER_ARGUMENTS).then_some(position)
}

/// For each target that BTF has: its symbol, its shape in the table and by BTF.
#[cfg(test)]
pub fn shapes(btf: &Btf<'_>) -> Vec<(&'static str, Shape, Option<Shape>)> {
    let prototypes = btf.prototypes(&TABLE.map(|entry| entry.symbol));
    let known =
        TABLE.iter().zip(&prototypes).filter_map(|(entry, prototype)| Some((entry, prototype.as_ref()?)));
    known.map(|(entry, prototype)| (entry.symbol, entry.shape, shape(entry, prototype))).collect()
}
