//! How much memory the kernel side's maps take: the formula of docs/memory.md, which tests hold against the kernel's own
//! count.

use crate::{
    block::Block,
    flight::{FLIGHT_BITS, Flight},
    site::SiteSet,
    who::GENERATION_BITS,
    zerocopy::{CALL_BITS, Call, SEND_BITS, Sending, ZerocopyRecord},
};

/// A map, and the bytes of what it holds. The kernel adds up to four pages for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub holds: &'static str,
    /// Bytes, whatever the number of CPUs.
    pub fixed: usize,
    /// Bytes for each CPU that the machine may have.
    pub per_cpu: usize,
}

/// What the kernel adds to a map at most: its description, the positions of a ring buffer, what is left of the last page.
pub const OVERHEAD: usize = 4 * 4096;

/// Entries of the map of followed thread groups.
pub const TREE: usize = 1 << 15;
/// Bytes of the ring buffer for handovers.
pub const HANDOVERS: usize = 1 << 19;

/// The maps that are larger than a few pages; before 5.15 the table of sites has so many sets.
pub const fn maps(sets: usize) -> [Map; 6] {
    const fn map(name: &'static str, holds: &'static str, fixed: usize, per_cpu: usize) -> Map {
        Map { name, holds, fixed, per_cpu }
    }
    let own = (size_of::<Flight>() << FLIGHT_BITS)
        + (4 << GENERATION_BITS)
        + (size_of::<Call>() << CALL_BITS)
        + (size_of::<Sending>() << SEND_BITS);
    // A bucket of the kernel's hash map is a list head and a lock (struct bucket, kernel/bpf/hashtab.c).
    let tree = TREE * 16;
    [
        map("BLOCKS", "imports, walkers, slots of processes, losses", 0, size_of::<Block>()),
        map("ZEROCOPY", "zerocopy receives and sends", 0, size_of::<ZerocopyRecord>()),
        map(".bss", "calls in flight, generations of process ids", own, 0),
        map("HANDOVERS", "processes on their way to the daemon", HANDOVERS, 0),
        map("TREE", "followed processes, none in the daemon", tree, 0),
        map("SITES", "probed addresses, before 5.15", sets * size_of::<SiteSet>(), 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_holds_on_machines_of_any_size() {
        let maps = maps(1 << 12);
        for cpus in [1, 2, 8, 64, 512, 8192] {
            let bytes: usize = maps.iter().map(|map| map.fixed + map.per_cpu * cpus + OVERHEAD).sum();
            assert!(bytes <= (8 << 20) + (64 << 10) * cpus, "{cpus} CPUs: {bytes}");
        }
    }
}
