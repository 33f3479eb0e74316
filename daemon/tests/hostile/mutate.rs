//! Changes to bytes, as accidents and adversaries make them.

use proptest::prelude::*;
use proptest::sample::Index;

/// Numbers at the edges of fields.
const WORDS: [u32; 14] = [
    0,
    1,
    2,
    12,
    24,
    0xfff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0x0400_ffff,
    0x0d00_ffff,
    0xffff_fff0,
    u32::MAX,
];
/// The same for 64 bits.
pub const LONGS: [u64; 10] = [
    0,
    1,
    64,
    1 << 31,
    u32::MAX as u64,
    i64::MAX as u64,
    1 << 63,
    0xffff_ffff_8100_0000,
    u64::MAX - 0xfff,
    u64::MAX,
];

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    /// One bit is turned.
    Bit(Index, u8),
    /// One byte is replaced.
    Byte(Index, u8),
    /// A word at a multiple of four is replaced.
    Word(Index, u32),
    /// The same with eight bytes.
    Long(Index, u64),
    /// A word becomes another word of the file: a type refers to itself or another, a length becomes an offset.
    Copy(Index, Index),
    /// Some bytes are gone.
    Remove(Index, usize),
    /// Some bytes are there twice.
    Repeat(Index, usize),
    /// Others come in between.
    Insert(Index, Vec<u8>),
    /// The file ends.
    End(Index),
}

/// Any changes, most of them few.
pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let one = prop_oneof![
        4 => (at(), 0u8..8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        4 => (at(), prop::sample::select(WORDS.to_vec())).prop_map(|(at, word)| Change::Word(at, word)),
        2 => (at(), 0u32..64).prop_map(|(at, word)| Change::Word(at, word)),
        2 => (at(), prop::sample::select(LONGS.to_vec())).prop_map(|(at, long)| Change::Long(at, long)),
        3 => (at(), at()).prop_map(|(from, to)| Change::Copy(from, to)),
        1 => (at(), 1usize..40).prop_map(|(at, length)| Change::Remove(at, length)),
        1 => (at(), 1usize..40).prop_map(|(at, length)| Change::Repeat(at, length)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, new)| Change::Insert(at, new)),
        1 => at().prop_map(Change::End),
    ];
    prop::collection::vec(one, 0..8)
}

/// The bytes with these changes.
pub fn changed(bytes: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes {
        if bytes.len() < 8 {
            break;
        }
        let length = bytes.len();
        let word = |at: &Index| at.index(length / 4) * 4;
        match change {
            Change::Bit(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Change::Byte(at, byte) => bytes[at.index(length)] = *byte,
            Change::Word(at, new) => bytes[word(at)..][..4].copy_from_slice(&new.to_le_bytes()),
            Change::Long(at, new) => {
                bytes[at.index(length / 8) * 8..][..8].copy_from_slice(&new.to_le_bytes());
            }
            Change::Copy(from, to) => {
                let from = word(from);
                bytes.copy_within(from..from + 4, word(to));
            }
            Change::Remove(at, most) => {
                let at = at.index(length);
                bytes.drain(at..length.min(at + most));
            }
            Change::Repeat(at, most) => {
                let at = at.index(length);
                let again = bytes[at..length.min(at + most)].to_vec();
                bytes.splice(at..at, again);
            }
            Change::Insert(at, new) => {
                let at = at.index(length);
                bytes.splice(at..at, new.iter().copied());
            }
            Change::End(at) => bytes.truncate(at.index(length)),
        }
    }
    bytes
}

/// The bytes cut off at every length, and with every word, every byte and every bit changed.
pub fn every(bytes: &[u8], mut tell: impl FnMut(&[u8])) {
    for length in 0..=bytes.len() {
        tell(&bytes[..length]);
    }
    let mut other = bytes.to_vec();
    for at in 0..bytes.len() {
        for byte in [0, 1, 0x1f, 0x7f, 0x80, 0xff, b'\n', b'\t', b' ', b'[']
            .into_iter()
            .chain((0..8).map(|bit| bytes[at] ^ 1 << bit))
        {
            other[at] = byte;
            tell(&other);
        }
        other[at] = bytes[at];
    }
    for at in (0..bytes.len().saturating_sub(3)).step_by(4) {
        for word in WORDS {
            other[at..at + 4].copy_from_slice(&word.to_le_bytes());
            tell(&other);
        }
        other[at..at + 4].copy_from_slice(&bytes[at..at + 4]);
    }
}
