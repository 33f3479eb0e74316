//! `/proc/kcore`: which part of the file holds which part of the kernel's memory.
//!
//! Its start is an ELF core file's header (fs/proc/kcore.c). The reading is done elsewhere.
//!
//! Whatever the headers say, reading them takes time in proportion to their length and no more memory than twice
//! that.

use std::ops::Range;

/// Size of `Elf64_Ehdr`.
const HEADER: usize = 64;
/// Size of `Elf64_Phdr`.
const PROGRAM_HEADER: usize = 56;
/// The program headers follow the ELF header at once.
const FARTHEST: u64 = 64 << 10;
/// `PT_LOAD`.
const LOAD: u32 = 1;

/// Why the file's layout cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kcore, offset {offset}: {cause}")]
pub struct KcoreError {
    /// Where.
    pub offset: usize,
    /// What is wrong there.
    pub cause: &'static str,
}

/// A piece of memory that the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Where it starts in the file.
    pub offset: u64,
}

/// The memory that the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    segments: Vec<Segment>,
}

impl Segments {
    /// Reads the headers from the start of the file; [`Segments::needed`] tells how much of it they take.
    pub fn parse(start: &[u8]) -> Result<Segments, KcoreError> {
        let (table, count) = program_headers(start)?;
        let cut = KcoreError { offset: start.len(), cause: "the program headers are cut off" };
        let headers = start.get(table..table + count * PROGRAM_HEADER).ok_or(cut)?;
        let segments = headers
            .chunks_exact(PROGRAM_HEADER)
            .filter(|header| header[..4] == LOAD.to_le_bytes())
            // Offsets in `Elf64_Phdr`: p_offset 8, p_vaddr 16, p_memsz 40.
            .map(|header| Segment {
                address: long(header, 16),
                size: long(header, 40),
                offset: long(header, 8),
            })
            .filter(|segment| {
                // The last one may end with the address space.
                segment.size != 0
                    && segment.address.checked_add(segment.size - 1).is_some()
                    && segment.offset.checked_add(segment.size - 1).is_some()
            })
            .collect();
        Ok(Segments { segments })
    }

    /// How many bytes of the file its headers take, from the first 64 or more: less than 4 MiB.
    pub fn needed(start: &[u8]) -> Result<usize, KcoreError> {
        let (table, count) = program_headers(start)?;
        Ok(table + count * PROGRAM_HEADER)
    }

    /// Every segment, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().copied()
    }

    /// Where in the file a range of addresses starts; `None` if no segment holds all of it.
    pub fn locate(&self, range: Range<u64>) -> Option<u64> {
        let last = range.end.checked_sub(1).filter(|&last| last >= range.start)?;
        let segment = self
            .segments
            .iter()
            .find(|segment| segment.address <= range.start && last - segment.address < segment.size)?;
        segment.offset.checked_add(range.start - segment.address)
    }
}

/// Where the program headers start and how many there are.
fn program_headers(start: &[u8]) -> Result<(usize, usize), KcoreError> {
    let fail = |offset, cause| Err(KcoreError { offset, cause });
    if start.len() < HEADER {
        return fail(start.len(), "the ELF header is cut off");
    }
    if start[..4] != *b"\x7fELF" {
        return fail(0, "not ELF");
    }
    // EI_CLASS 2, EI_DATA 1.
    if start[4..6] != [2, 1] {
        return fail(4, "not ELF of 64 bits, little endian");
    }
    // e_phentsize, e_phnum, e_phoff.
    if usize::from(half(start, 54)) != PROGRAM_HEADER {
        return fail(54, "program headers of an unknown size");
    }
    match long(start, 32) {
        table @ ..=FARTHEST => Ok((table as usize, usize::from(half(start, 56)))),
        _ => fail(32, "the program headers are far from the ELF header"),
    }
}

fn half(bytes: &[u8], offset: usize) -> u16 {
    bytes[offset..offset + 2].try_into().map(u16::from_le_bytes).unwrap_or_default()
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..offset + 8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests;
