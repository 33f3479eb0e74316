//! The kernel's types (`/sys/kernel/btf/vmlinux`): member offsets, the kinds of iterator, prototypes.
//!
//! Format: Documentation/bpf/btf.rst, include/uapi/linux/btf.h. One pass finds where each type starts; names are
//! compared only when one is asked for, because most of the 130,000 types never are.
//!
//! Whatever the file says, reading it and each question about it take time in proportion to its length. Reading
//! takes no more memory than its length, an answer no more than ten times that.

mod find;

pub use find::{Parameter, Prototype, Value};

/// `BTF_MAGIC` as a little-endian kernel writes it.
const MAGIC: u16 = 0xeb9f;
/// Size of the header fields that are read (`struct btf_header`).
const HEADER: usize = 24;
/// Size of `struct btf_type`.
const TYPE: usize = 12;
/// The kernel accepts names of up to `KSYM_NAME_LEN` bytes, which was 128, is 512 and may grow.
const NAME_LIMIT: usize = 1024;
/// Typedefs, qualifiers and nested structs deeper than this are taken for a loop.
const DEPTH: usize = 32;

/// Why the types cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Not BTF, or cut off.
    #[error("BTF, offset {offset}: {cause}")]
    Malformed {
        /// Where.
        offset: usize,
        /// What is wrong there.
        cause: &'static str,
    },
    /// Of a kernel with the other byte order.
    #[error("BTF of a big-endian kernel")]
    BigEndian,
}

/// `BTF_KIND_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Pointer,
    Struct,
    Union,
    Enum,
    Enum64,
    Function,
    Prototype,
    /// Typedef, const, volatile, restrict and type tags: the same type by another name.
    Alias,
    Other,
}

/// `struct btf_type` and what follows it.
#[derive(Clone, Copy)]
struct Type<'a> {
    kind: Kind,
    /// Where the name starts in the strings.
    name: u32,
    /// Whether `struct` members have their bit size in the offset (`kind_flag`).
    flag: bool,
    /// The size in bytes or the type meant, as the kind has it.
    value: u32,
    /// The members, parameters and the like, in one piece.
    rest: &'a [u8],
}

/// The kernel's types.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type starts, from type 1; type 0 is `void`.
    starts: Vec<u32>,
}

impl<'a> Btf<'a> {
    /// Checks the header and finds where each type starts. Names and references are checked when they are used.
    pub fn parse(file: &'a [u8]) -> Result<Btf<'a>, BtfError> {
        let malformed = |offset, cause| BtfError::Malformed { offset, cause };
        match half(file, 0) {
            Some(MAGIC) => {}
            Some(magic) if magic.swap_bytes() == MAGIC => return Err(BtfError::BigEndian),
            _ => return Err(malformed(0, "no BTF magic")),
        }
        if file.get(2) != Some(&1) {
            return Err(malformed(2, "not version 1"));
        }
        let field = |offset| word(file, offset).ok_or(malformed(file.len(), "the header is cut off"));
        let header = field(4)? as usize;
        if header < HEADER {
            return Err(malformed(4, "the header is too short"));
        }
        let section = |offset, cause| -> Result<(usize, &'a [u8]), BtfError> {
            let start = header.checked_add(field(offset)? as usize).ok_or(malformed(offset, cause))?;
            let end = start.checked_add(field(offset + 4)? as usize).ok_or(malformed(offset, cause))?;
            Ok((start, file.get(start..end).ok_or(malformed(offset, cause))?))
        };
        let (first, types) = section(8, "the types are not in the file")?;
        let (_, strings) = section(16, "the strings are not in the file")?;

        // A type has 38 bytes or so.
        let mut starts = Vec::with_capacity(types.len() / 32);
        let mut offset = 0;
        while offset < types.len() {
            let length = length(types, offset).map_err(|cause| malformed(first + offset, cause))?;
            if types.len() - offset < length {
                return Err(malformed(first + offset, "the type is cut off"));
            }
            // Fits: the header gives the section's length in 32 bits.
            starts.push(offset as u32);
            offset += length;
        }
        Ok(Btf { types, strings, starts })
    }

    /// How many types there are, `void` left out.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no types.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = Type<'a>> {
        self.starts.iter().filter_map(|&start| self.at(start as usize))
    }

    /// The type with this number; `None` for `void` and for numbers that no type has.
    fn get(&self, number: u32) -> Option<Type<'a>> {
        let start = *self.starts.get((number as usize).checked_sub(1)?)?;
        self.at(start as usize)
    }

    fn at(&self, start: usize) -> Option<Type<'a>> {
        let types = self.types;
        let info = word(types, start + 4)?;
        Some(Type {
            kind: kind(info),
            name: word(types, start)?,
            flag: info >> 31 != 0,
            value: word(types, start + 8)?,
            rest: types.get(start + TYPE..start + length(types, start).ok()?)?,
        })
    }

    /// The type with its other names taken off; `None` for `void`.
    fn resolve(&self, number: u32) -> Option<Type<'a>> {
        let mut found = self.get(number)?;
        for _ in 0..DEPTH {
            if found.kind != Kind::Alias {
                return Some(found);
            }
            found = self.get(found.value)?;
        }
        None
    }

    /// Whether the string that starts at `offset` is `name`.
    fn is_named(&self, offset: u32, name: &str) -> bool {
        let start = offset as usize;
        let end = start.saturating_add(name.len());
        self.strings.get(start..end) == Some(name.as_bytes()) && self.strings.get(end) == Some(&0)
    }

    /// Whether what has its name at `offset` has none.
    fn is_anonymous(&self, offset: u32) -> bool {
        self.strings.get(offset as usize).is_none_or(|&first| first == 0)
    }

    /// The string that starts at `offset`; empty if there is none, or none that could be a name.
    fn string(&self, offset: u32) -> &'a str {
        let bytes = self.strings.get(offset as usize..).unwrap_or_default();
        let length = bytes.iter().take(NAME_LIMIT + 1).position(|&byte| byte == 0).unwrap_or(0);
        str::from_utf8(&bytes[..length]).unwrap_or_default()
    }
}

/// Splits what follows a `struct btf_type` into its 32-bit words, `width` of them at a time.
fn records(rest: &[u8], width: usize) -> impl Iterator<Item = &[u8]> {
    rest.chunks_exact(4 * width)
}

/// Length of the type at `offset` with all that belongs to it.
fn length(types: &[u8], offset: usize) -> Result<usize, &'static str> {
    let info = word(types, offset + 4).ok_or("the type is cut off")?;
    let count = (info & 0xffff) as usize;
    let rest = match info >> 24 & 0x1f {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Int, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Struct, union, data section, 64-bit enum.
        4 | 5 | 15 | 19 => 12 * count,
        // Enum, prototype.
        6 | 13 => 8 * count,
        _ => return Err("a kind of type that is not known"),
    };
    Ok(TYPE + rest)
}

fn kind(info: u32) -> Kind {
    match info >> 24 & 0x1f {
        1 => Kind::Int,
        2 => Kind::Pointer,
        4 => Kind::Struct,
        5 => Kind::Union,
        6 => Kind::Enum,
        8..=11 | 18 => Kind::Alias,
        12 => Kind::Function,
        13 => Kind::Prototype,
        19 => Kind::Enum64,
        _ => Kind::Other,
    }
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    let bytes = bytes.get(offset..offset.checked_add(2)?)?;
    bytes.try_into().map(u16::from_le_bytes).ok()
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    bytes.try_into().map(u32::from_le_bytes).ok()
}

#[cfg(test)]
mod tests;
