//! From the running kernel's symbols, types and text to what shall be probed, where and how.
//!
//! Pure: functions over bytes, no I/O. The same kernel gives the same plan.

mod arch_x86_64;
pub mod btf;
mod jump;
pub mod kallsyms;
pub mod kcore;
pub mod landing;
mod layout;
mod run_x86_64;
mod site;
mod syscall;
mod target;
pub mod text;
pub mod zerocopy;

use iotrace_common::{import::Path, site::Value};

pub use arch_x86_64::REGISTERS;
use btf::Btf;
use kallsyms::Symbols;
use landing::Landings;
use text::{Reader, Text};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// BTF does not describe `struct iov_iter` as any known kernel does.
    #[error("the kernel's BTF has no {what}")]
    NoLayout {
        /// What was looked for.
        what: &'static str,
    },
    /// The kinds of iterator do not fit the byte that they are read from.
    #[error("enum iter_type has {name} = {value}, which does not fit a byte")]
    OddKind {
        /// The member's name.
        name: String,
        /// Its value.
        value: u64,
    },
    /// None of the functions of lib/iov_iter.c is there.
    #[error("kallsyms has none of the functions of lib/iov_iter.c")]
    NoTargets,
    /// The functions of lib/iov_iter.c do not stand together, so calls among them cannot be told from others.
    #[error("the functions of lib/iov_iter.c are spread over {span} bytes")]
    Spread {
        /// From the first to the last.
        span: u64,
    },
    /// The text of the kernel proper was not given.
    #[error("the kernel's text could not be read")]
    NoText,
}

/// Finds every target, and every site of it, in the kernel with these symbols, types and text.
pub fn plan(symbols: &Symbols<'_>, btf: &Btf<'_>, text: &[Text<'_>]) -> Result<Plan, PlanError> {
    let iter = layout::iter(btf)?;
    let lib = target::lib_text(symbols)?;
    let reader = Reader::new(symbols, text);
    if !reader.covers(&lib) {
        return Err(PlanError::NoText);
    }
    let found = target::find(symbols, btf, &reader, &lib);
    let targets = site::find(symbols, btf, &reader, &lib, found);
    Ok(Plan { iter, targets })
}

/// Every target of this kernel, its sites, and the reason for each that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where `struct iov_iter` keeps its kind, and what the kinds are called.
    pub iter: IterLayout,
    /// Imports first, then walkers, each in the order of the table.
    pub targets: Vec<Target>,
}

impl Plan {
    /// Takes over the modules' sites from a later plan of the same kernel. Its own text does not change, but some of it
    /// is probed by then: the sites there stay as they were found before.
    pub fn renew_modules(&mut self, later: &Plan) {
        for target in &mut self.targets {
            target.sites.retain(|site| site.module.is_none());
            let same = later.targets.iter().filter(|other| other.symbol == target.symbol);
            let sites = same.flat_map(|other| &other.sites).filter(|site| site.module.is_some());
            target.sites.extend(sites.cloned());
        }
    }
}

impl Plan {
    /// Replaces traps by jumps, where the kernel's own text allows it: a module's tables of static keys and fixups cannot
    /// be found. `vectors` tells that programs can read the arguments of the system call in progress.
    pub fn optimize(&mut self, symbols: &Symbols<'_>, text: &[Text<'_>], landings: &Landings, vectors: bool) {
        jump::optimize(self, &Reader::new(symbols, text), symbols, landings, vectors);
    }
}

/// What the kernel side must know of `struct iov_iter` (include/linux/uio.h), from BTF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterLayout {
    /// Offset of `iter_type` (before 5.14: `type`) in bytes.
    pub kind_offset: u32,
    /// The members of `enum iter_type` in the order of their values; names in lower case without `ITER_`.
    pub kinds: Vec<Kind>,
    /// Bits of the kind byte that are not part of the kind: 3 before 5.14 (direction and `NO_REF`), else 0.
    pub ignored_bits: u8,
}

/// A member of `enum iter_type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// As in `ITER_UBUF`, but `ubuf`.
    pub name: String,
    /// Its value on this kernel.
    pub value: u8,
}

/// What a target is probed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Instrument {
    /// An import: calls counted by segments.
    Count,
    /// A walker: calls timed by kind.
    Time,
}

/// A function of the iov_iter layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The kernel's symbol, such as `_copy_to_iter`.
    pub symbol: String,
    /// The name in metrics: the kernel's API name, such as `copy_to_iter`.
    pub function: String,
    /// What it is probed for.
    pub instrument: Instrument,
    /// Where it is called, hot sites first.
    pub sites: Vec<Site>,
    /// Why it has no site, if it has none.
    pub reason: Option<String>,
}

/// A place in traceable text from which a target is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The enclosing function's symbol.
    pub symbol: String,
    /// The module it is in; `None` for the kernel proper.
    pub module: Option<String>,
    /// Offset of the probed instruction in that function.
    pub offset: u64,
    /// Its address.
    pub address: u64,
    /// How it is probed.
    pub mechanism: Mechanism,
    /// Where the arguments are.
    pub arguments: Arguments,
    /// Attach order: sites on the read, write, send, receive and pipe paths come first (0), the rest later (1).
    pub rank: u8,
}

/// How a site is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// `fentry` and `fexit` on the enclosing function, which is itself traceable and exposes the arguments.
    Fentry,
    /// A kprobe on the call instruction and one on the instruction after it.
    Trap {
        /// Address of the instruction after the call.
        after: u64,
    },
    /// Kprobes that the kernel can make jumps of, where the arguments are elsewhere than the calling convention has them.
    Jump {
        /// Address of the instruction before the call that is probed; `None` if the arguments can still be told
        /// behind it.
        before: Option<u64>,
        /// Address of the instruction after the call.
        after: u64,
        /// Where `fast_segs`, or the `struct iov_iter *`, is.
        iter: Value,
        /// Where `nr_segs`, or the byte count, is.
        count: Value,
    },
    /// `fexit` on the function of a system call in which the import itself cannot be probed: the saved registers
    /// tell the segments, the result the bytes.
    Fexit,
    /// Not at all.
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// Positions of a target's arguments, from 0, in the order of the calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// Of an import.
    Import {
        /// `nr_segs`.
        segments: u8,
        /// `fast_segs`.
        fast: u8,
        /// The path if the system call in progress does not name one.
        path: Path,
        /// Whether the system call in progress names the path.
        by_syscall: bool,
        /// Whether it returns a pointer, so that its bytes are not known.
        pointer: bool,
    },
    /// Of a walker.
    Iter {
        /// The `struct iov_iter *`.
        iter: u8,
        /// The byte count.
        bytes: u8,
        /// How many arguments the probed function has.
        count: u8,
        /// What it returns.
        returns: Returns,
        /// Whether it leaves the iterator where it was, so that its segments cannot be told.
        keeps: bool,
    },
}

/// What a walker returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// The bytes done (`size_t`), or those or a negative error (`ssize_t`).
    Bytes,
    /// Whether all bytes were done (`bool`).
    All,
    /// 0 if all bytes were done, or a negative error (`int`).
    Zero,
    /// Nothing.
    Nothing,
}

impl Site {
    /// As the kernel writes it: `vfs_readv+0xcf`, or `tun_get_user+0x2d0 [tun]`; without an offset where the whole function is probed.
    pub fn name(&self) -> String {
        match self.mechanism {
            Mechanism::Fentry | Mechanism::Fexit => self.within(self.symbol.clone()),
            _ => self.place(self.offset),
        }
    }

    /// An offset in its function, as the kernel writes it.
    pub fn place(&self, offset: u64) -> String {
        self.within(format!("{}+{offset:#x}", self.symbol))
    }

    fn within(&self, place: String) -> String {
        match &self.module {
            Some(module) => format!("{place} [{module}]"),
            None => place,
        }
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
