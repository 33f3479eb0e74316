//! What is read of the running kernel's memory, through `/proc/kcore`: its text, and tables that say what may change in it.

use std::{fs::File, io::Read as _, os::unix::fs::FileExt as _};

use super::{KCORE, KernelError, unreadable};
use crate::plan::{
    btf::Btf,
    kallsyms::{self, Symbols},
    kcore::Segments,
    landing::{Landings, Table},
};

/// A piece of text.
pub(super) struct Image {
    /// Where it starts.
    pub(super) address: u64,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The module it belongs to; `None` for the kernel proper.
    pub(super) module: Option<String>,
}

/// The text of the kernel and its modules, as it is in memory.
pub(super) fn text(symbols: &Symbols<'_>) -> Result<Vec<Image>, KernelError> {
    /// More text than any kernel has: a larger range is a mistake.
    const MOST: u64 = 256 << 20;

    let (kcore, segments) = open()?;
    let core = symbols.core_text().ok_or(KernelError::Restricted)?;
    let modules = symbols.module_text();
    let ranges =
        [(None, core)].into_iter().chain(modules.into_iter().map(|(name, range)| (Some(name), range)));
    let mut images = Vec::new();
    for (module, range) in ranges {
        let length = range.end.saturating_sub(range.start);
        let place = segments.locate(range.clone()).filter(|_| length <= MOST);
        let (Some(place), true) = (place, length > 0) else {
            match module {
                None => return Err(KernelError::NoText(range.start)),
                // A module may have gone since kallsyms was read.
                Some(_) => continue,
            }
        };
        let mut bytes = vec![0; length as usize];
        match (kcore.read_exact_at(&mut bytes, place), &module) {
            (Ok(()), _) => images.push(Image { address: range.start, bytes, module }),
            (Err(_), Some(_)) => {}
            (Err(error), None) => return Err(unreadable(KCORE, error)),
        }
    }
    Ok(images)
}

/// The kernel's tables of static keys and of fixups; without them every probe at a call is a trap.
pub(super) fn landings(kallsyms: &[u8], btf: &Btf<'_>) -> Option<Landings> {
    /// A kernel has a quarter of a megabyte of either.
    const MOST: u64 = 16 << 20;

    let (kcore, segments) = open().ok()?;
    let table = |name: &str| {
        let bound = |which: &str| kallsyms::data(kallsyms, &format!("__{which}___{name}"));
        let range = bound("start")?..bound("stop")?;
        let length = range.end.checked_sub(range.start).filter(|&length| length <= MOST)?;
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            kcore.read_exact_at(&mut bytes, segments.locate(range.clone())?).ok()?;
        }
        Some((range.start, bytes))
    };
    let (jumps, fixups) = (table("jump_table")?, table("ex_table")?);
    let [jumps, fixups] = [&jumps, &fixups].map(|(address, bytes)| Table { address: *address, bytes });
    Landings::read(btf, jumps, fixups)
}

/// The file that holds the kernel's memory, and what is where in it.
fn open() -> Result<(File, Segments), KernelError> {
    /// Program headers lie within the first pages; a kernel has a dozen.
    const HEADERS: usize = 64 << 10;

    let kcore = File::open(KCORE).map_err(|error| unreadable(KCORE, error))?;
    let mut headers = Vec::with_capacity(HEADERS);
    (&kcore).take(HEADERS as u64).read_to_end(&mut headers).map_err(|error| unreadable(KCORE, error))?;
    let segments = Segments::parse(&headers).map_err(KernelError::Kcore)?;
    Ok((kcore, segments))
}
