//! Everything that one CPU counts, in one piece: one look-up leads to all of it, and no CPU writes where another does.

use crate::{
    import::{ImportRecord, Path},
    iter::IterRecord,
    lost::LostRecord,
    site::FENTRIES,
    who::{SLOTS, Slot},
};

/// Rows for functions and kinds on one CPU, the unused first one included. A busy machine meets some 20 pairs.
pub const ROWS: usize = 64;
/// Pairs of a function and a kind at most, as a power of two: 31 functions and 10 kinds make 310.
pub const PAIRS: usize = 512;

/// Sites of walkers whose calls are counted one by one, as a power of two; [`FENTRIES`] of them belong to the functions that
/// are probed by fentry. Sites for which there is no number left share [`UNNUMBERED`].
pub const NUMBERS: usize = 256;
/// The number of sites without one of their own.
pub const UNNUMBERED: u16 = FENTRIES as u16;

/// What one CPU counts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// What could not be counted.
    pub lost: LostRecord,
    /// Imports, by path.
    pub imports: [ImportRecord; Path::COUNT],
    /// What processes did.
    pub slots: [Slot; SLOTS as usize],
    /// The pair that each row belongs to, plus 1: the function's number times the number of kinds, plus the kind's. Rows are
    /// taken from the second on, as pairs come up.
    pub pairs: [u16; ROWS],
    /// The row of each pair; 0 for none yet.
    pub rows: [u8; PAIRS],
    /// Rows that are taken.
    pub taken: u64,
    /// Programs that are about to take one.
    pub takers: u64,
    /// Fills the cache line.
    pub pad: [u64; 6],
    /// Calls of walkers that have returned, by the number of the site, also those that no filter lets through. They wrap.
    pub passes: [u32; NUMBERS],
    /// Walkers, by row.
    pub iters: [IterRecord; ROWS],
}

// 64 KiB for each CPU is what the documentation promises.
const _: () = assert!(size_of::<Block>() <= 64 << 10 && size_of::<Block>().is_multiple_of(64));
