//! System calls that import in a body which cannot be probed.
//!
//! The body is declared `inline`, which in the kernel means notrace too, though it stands out of line
//! (`__do_sys_vmsplice`). The functions around it, for 64-bit and 32-bit calls, can be traced.

use std::collections::BTreeMap;

use super::btf::Btf;
use super::kallsyms::Symbols;
use super::target::syscall_segments;
use super::text::{Reader, Reference};

/// The position of the segment count among the arguments of such a system call: the third is in the same register in
/// 64-bit and in 32-bit calls.
pub const SEGMENTS: u8 = 2;

const BODY: &str = "__do_sys_";
const AROUND: [&str; 2] = ["__x64_sys_", "__ia32_sys_"];

/// System calls whose third argument is the segment count: their arguments are ABI.
const KNOWN: [&str; 2] = ["vmsplice", "process_madvise"];

/// By the address of a body, the functions around it that can be traced.
pub type Bodies = BTreeMap<u64, Vec<(String, u64)>>;

/// The bodies among the callers.
pub fn bodies(
    symbols: &Symbols<'_>,
    btf: &Btf<'_>,
    reader: &Reader<'_>,
    references: &[Reference<'_>],
) -> Bodies {
    let callers: BTreeMap<u64, &str> = references
        .iter()
        .map(|reference| reference.function)
        .filter(|function| function.module.is_none() && function.name.starts_with(BODY))
        .filter(|function| !reader.is_traceable(*function))
        .map(|function| (function.address, function.name))
        .collect();
    let names: Vec<&str> = callers.values().copied().collect();
    let prototypes = btf.prototypes(&names);
    let known = callers.into_iter().zip(prototypes).filter(|((_, name), prototype)| match prototype {
        Some(prototype) => syscall_segments(prototype) == Some(SEGMENTS),
        // Debian's 5.10 has no types for what is notrace.
        None => KNOWN.iter().any(|known| name.strip_prefix(BODY) == Some(known)),
    });
    known
        .map(|((body, name), _)| {
            let around = AROUND.iter().filter_map(|around| {
                let name = format!("{around}{}", name.strip_prefix(BODY)?);
                let address = symbols.address_of(&name)?;
                reader.has_ftrace_entry(address).then_some((name, address))
            });
            (body, around.collect())
        })
        .collect()
}
