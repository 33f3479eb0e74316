//! The table from the address of a probe to what the kernel side needs to know there.
//!
//! Set-associative: an address is hashed to a set of [`SET`] places and compared with each. It needs no
//! attach cookie (which old kernels lack), and a site can be added while others are live.

use crate::spread;

/// Places in a set: one cache line.
pub const SET: usize = 4;

/// Functions that can be probed by `fentry` and `fexit` at the same time; each needs programs of its own.
pub const FENTRIES: usize = 8;
/// System calls that can be probed by `fexit` at the same time; each needs a program of its own.
pub const SYSCALLS: usize = 4;

/// [`What::returns`]: the function returns the bytes it did, or a negative error.
pub const RETURNS_BYTES: u8 = 0;
/// [`What::returns`]: the function returns whether it did all bytes (`bool`).
pub const RETURNS_ALL: u8 = 1;
/// [`What::returns`]: the function returns nothing.
pub const RETURNS_NOTHING: u8 = 2;
/// [`What::returns`]: the function returns a pointer, or a negative error.
pub const RETURNS_POINTER: u8 = 3;
/// [`What::returns`]: the function returns 0 if it did all bytes, or a negative error.
pub const RETURNS_ZERO: u8 = 4;

/// [`What::flags`]: the system call in progress names the path; [`What::target`] is only for when there is none.
pub const BY_SYSCALL: u8 = 1;
/// [`What::flags`]: the walker leaves the iterator where it was, so its segments cannot be told.
pub const KEEPS: u8 = 2;

/// Where a number is at a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// One of [`REGISTER`], [`MEMORY`], [`CONSTANT`] and [`ARGUMENT`].
    pub mode: u8,
    /// Only the lower 32 bits count.
    pub narrow: bool,
    /// The number of a register as the processor has it: rax 0, rcx 1, rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi 7, r8 8 …
    /// r15 15.
    pub base: u8,
    /// What is added to the register; the constant itself. See [`Value::MOST`].
    pub add: i16,
}

/// [`Value::mode`]: the sum of the register and `add`.
pub const REGISTER: u8 = 0;
/// [`Value::mode`]: what lies in memory at that sum.
pub const MEMORY: u8 = 1;
/// [`Value::mode`]: `add`.
pub const CONSTANT: u8 = 2;
/// [`Value::mode`]: the argument at this position of the function, or of the system call in progress.
pub const ARGUMENT: u8 = 3;

impl Value {
    /// Bits of a packed value.
    const BITS: u32 = 21;
    /// The largest `add`, and with a minus sign the smallest.
    pub const MOST: i64 = (1 << 13) - 1;

    /// The argument at this position, from 0.
    pub const fn argument(position: u8) -> Value {
        Value { mode: ARGUMENT, narrow: false, base: position, add: 0 }
    }

    /// The number of a site: see [`crate::block::Block::passes`].
    pub const fn number(number: u16) -> Value {
        Value { mode: CONSTANT, narrow: false, base: 0, add: number as i16 }
    }

    const fn packed(self) -> u64 {
        let add = (self.add as u64) & 0x3fff;
        (self.mode & 3) as u64 | (self.narrow as u64) << 2 | ((self.base & 15) as u64) << 3 | add << 7
    }

    #[inline(always)]
    const fn unpacked(word: u64) -> Value {
        Value {
            mode: word as u8 & 3,
            narrow: word & 4 != 0,
            base: (word >> 3) as u8 & 15,
            // With its sign.
            add: ((word << (64 - Value::BITS)) as i64 >> (64 - Value::BITS + 7)) as i16,
        }
    }
}

/// What is known at a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// For an import the number of its [`crate::import::Path`]; for a walker the number of its function.
    pub target: u8,
    /// What the target returns: one of the `RETURNS_…` values.
    pub returns: u8,
    /// A set of [`BY_SYSCALL`] and [`KEEPS`].
    pub flags: u8,
    /// Number of arguments, needed to find the return value under `fexit`.
    pub arguments: u8,
    /// For a walker, the `struct iov_iter *`; for an import, `fast_segs`.
    pub iter: Value,
    /// For a walker, the byte count, and behind its call [`Value::number`]; for an import, `nr_segs`.
    pub count: Value,
}

/// [`What`], in one word.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed(pub u64);

impl What {
    /// In one word.
    pub const fn packed(self) -> Packed {
        let numbers = self.target as u64
            | ((self.returns & 7) as u64) << 8
            | ((self.flags & 3) as u64) << 11
            | ((self.arguments & 15) as u64) << 55;
        Packed(numbers | self.iter.packed() << 13 | self.count.packed() << 34)
    }
}

impl Packed {
    /// [`What::target`].
    #[inline(always)]
    pub const fn target(self) -> u8 {
        self.0 as u8
    }

    /// [`What::returns`].
    #[inline(always)]
    pub const fn returns(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Whether one of these [`What::flags`] is set.
    #[inline(always)]
    pub const fn has(self, flags: u8) -> bool {
        self.0 & (flags as u64) << 11 != 0
    }

    /// [`What::arguments`].
    #[inline(always)]
    pub const fn arguments(self) -> u8 {
        (self.0 >> 55) as u8 & 15
    }

    /// [`What::iter`].
    #[inline(always)]
    pub const fn iter(self) -> Value {
        Value::unpacked(self.0 >> 13)
    }

    /// [`What::count`].
    #[inline(always)]
    pub const fn count(self) -> Value {
        Value::unpacked(self.0 >> 34)
    }
}

/// A probe and what is known there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Address of the probed instruction; 0 in a free place.
    pub address: u64,
    /// What is known there.
    pub what: Packed,
}

/// The places one address may be in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteSet {
    /// In any order, with holes.
    pub sites: [Site; SET],
}

const _: () = assert!(size_of::<Site>() == 16 && size_of::<SiteSet>() == 64);

impl SiteSet {
    /// The set of an address in a table of `1 << bits` sets.
    #[inline(always)]
    pub const fn of(address: u64, bits: u32) -> u32 {
        spread(address, bits) as u32
    }

    /// What is known at this address.
    #[inline(always)]
    pub const fn find(&self, address: u64) -> Option<Packed> {
        if self.sites[0].address == address {
            return Some(self.sites[0].what);
        }
        if self.sites[1].address == address {
            return Some(self.sites[1].what);
        }
        if self.sites[2].address == address {
            return Some(self.sites[2].what);
        }
        if self.sites[3].address == address {
            return Some(self.sites[3].what);
        }
        None
    }

    /// Takes the site with this address out.
    pub fn take(&mut self, address: u64) {
        for site in &mut self.sites {
            if site.address == address {
                *site = Site::default();
            }
        }
    }

    /// Puts a site into the set, over one with the same address or into a free place; `false` if it is full.
    pub fn put(&mut self, site: Site) -> bool {
        let place = |address| self.sites.iter().position(|held| held.address == address);
        let place = place(site.address).or_else(|| place(0));
        if let Some(place) = place {
            self.sites[place] = site;
        }
        place.is_some()
    }
}

/// How many bits a table for `sites` probes takes to begin with: twice as many sets as probes. Where
/// [`SiteSet::put`] tells that one overflows, one bit more.
pub const fn table_bits(sites: usize) -> u32 {
    let bits = (sites as u32 * 2).next_power_of_two().trailing_zeros();
    if bits < 4 { 4 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn site(address: u64) -> Site {
        Site { address, what: Packed(address) }
    }

    #[test]
    fn a_full_set_refuses_and_keeps_what_it_has() {
        let mut set = SiteSet::default();
        assert!((1..=4).all(|address| set.put(site(address))));
        assert!(!set.put(site(5)));
        assert!(set.put(Site { what: Packed(77), ..site(2) }));
        assert_eq!(set.find(2), Some(Packed(77)));
        assert_eq!(set.find(5), None);
        set.take(2);
        assert_eq!(set.find(2), None);
        assert!(set.put(site(5)) && set.find(4).is_some());
    }

    fn values() -> impl Strategy<Value = Value> {
        (0..4u8, any::<bool>(), 0..16u8, -Value::MOST..=Value::MOST)
            .prop_map(|(mode, narrow, base, add)| Value { mode, narrow, base, add: add as i16 })
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            target: u8, returns in 0..8u8, flags in 0..4u8, arguments in 0..16u8, iter in values(), count in values(),
        ) {
            let packed = What { target, returns, flags, arguments, iter, count }.packed();
            prop_assert_eq!((packed.target(), packed.returns(), packed.arguments()), (target, returns, arguments));
            prop_assert_eq!((packed.iter(), packed.count()), (iter, count));
            prop_assert_eq!([packed.has(1), packed.has(2)], [flags & 1 != 0, flags & 2 != 0]);
        }

        #[test]
        fn every_site_of_a_kernel_is_found_again(
            addresses in prop::collection::btree_set(0xffff_ffff_8100_0000u64..0xffff_ffff_8300_0000, 1..800)
        ) {
            // The daemon does the same: it doubles the table until no set overflows.
            let (bits, table) = (table_bits(addresses.len())..)
                .find_map(|bits| {
                    let mut table = vec![SiteSet::default(); 1 << bits];
                    let fits = addresses
                        .iter()
                        .all(|&address| table[SiteSet::of(address, bits) as usize].put(site(address)));
                    fits.then_some((bits, table))
                })
                .unwrap();
            prop_assert!(bits <= table_bits(addresses.len()) + 3);
            for &address in &addresses {
                let found = table[SiteSet::of(address, bits) as usize].find(address);
                prop_assert_eq!(found, Some(Packed(address)));
            }
        }
    }
}
