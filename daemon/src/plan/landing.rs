//! Places in the kernel's text that are reached, or changed, otherwise than the instructions there say: static keys
//! (`struct jump_entry`, include/linux/jump_label.h) and fixups of faults (`struct exception_table_entry`,
//! arch/x86/include/asm/extable.h). Both tables have offsets relative to themselves.
//!
//! Whatever the tables hold, reading them takes time and memory in proportion to their length.

use super::btf::Btf;

/// A table as it stands in the kernel's memory.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Where its entries keep what matters, from BTF.
#[derive(Clone, Copy)]
struct Layout {
    size: usize,
    code: usize,
    target: usize,
}

impl Layout {
    fn of(btf: &Btf<'_>, structure: &str, code: &str, target: &str) -> Option<Layout> {
        let member = |name| btf.offset_of(structure, name).map(|offset| offset as usize);
        let layout =
            Layout { size: btf.size_of(structure)? as usize, code: member(code)?, target: member(target)? };
        (layout.code.max(layout.target) + 4 <= layout.size).then_some(layout)
    }

    /// From where to where each entry leads.
    fn read(self, table: Table<'_>) -> impl Iterator<Item = (u64, u64)> {
        let entries = table.bytes.chunks_exact(self.size);
        let starts = (table.address..).step_by(self.size);
        entries.zip(starts).filter_map(move |(entry, start)| {
            let lead = |offset: usize| {
                let relative = entry.get(offset..offset + 4)?.try_into().map(i32::from_le_bytes).ok()?;
                Some(start.wrapping_add(offset as u64).wrapping_add_signed(i64::from(relative)))
            };
            Some((lead(self.code)?, lead(self.target)?))
        })
    }
}

/// The places, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Landings {
    keys: Vec<u64>,
    faults: Vec<u64>,
    targets: Vec<u64>,
}

impl Landings {
    /// Reads the tables of the kernel proper: `__start___jump_table` to `__stop___jump_table`, and `__start___ex_table`
    /// to `__stop___ex_table`. `None` where BTF does not describe them.
    pub fn read(btf: &Btf<'_>, jumps: Table<'_>, fixups: Table<'_>) -> Option<Landings> {
        let jump = Layout::of(btf, "jump_entry", "code", "target")?;
        let fixup = Layout::of(btf, "exception_table_entry", "insn", "fixup")?;
        let (keys, mut targets): (Vec<u64>, Vec<u64>) = jump.read(jumps).unzip();
        let (faults, fixups): (Vec<u64>, Vec<u64>) = fixup.read(fixups).unzip();
        targets.extend(fixups);
        let sorted = |mut places: Vec<u64>| {
            places.sort_unstable();
            places
        };
        Some(Landings { keys: sorted(keys), faults: sorted(faults), targets: sorted(targets) })
    }

    /// Whether a static key may put a jump here.
    pub fn is_key(&self, address: u64) -> bool {
        self.keys.binary_search(&address).is_ok()
    }

    /// Whether some instruction of a function may fault and go on at a fixup: the kernel optimises no kprobe in it.
    pub fn may_fault(&self, start: u64, end: u64) -> bool {
        let first = self.faults.partition_point(|&fault| fault < start);
        self.faults.get(first).is_some_and(|&fault| fault < end)
    }

    /// The places of a function at which static keys and fixups land.
    pub fn within(&self, start: u64, end: u64) -> &[u64] {
        let first = self.targets.partition_point(|&target| target < start);
        let after = self.targets.partition_point(|&target| target < end);
        self.targets.get(first..after).unwrap_or_default()
    }
}
