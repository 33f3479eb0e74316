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

/// [`Site::state`]: nothing is counted here yet: not all of its probes are attached.
pub const OFF: u8 = 0;
/// [`Site::state`]: calls are counted.
pub const ON: u8 = 1;

/// [`Site::returns`]: the function returns the bytes it did, or a negative error.
pub const RETURNS_BYTES: u8 = 0;
/// [`Site::returns`]: the function returns whether it did all bytes (`bool`).
pub const RETURNS_ALL: u8 = 1;
/// [`Site::returns`]: the function returns nothing.
pub const RETURNS_NOTHING: u8 = 2;
/// [`Site::returns`]: the function returns a pointer, or a negative error.
pub const RETURNS_POINTER: u8 = 3;
/// [`Site::returns`]: the function returns 0 if it did all bytes, or a negative error.
pub const RETURNS_ZERO: u8 = 4;

/// [`Site::flags`]: the system call in progress names the path; [`Site::target`] is only for when there is none.
pub const BY_SYSCALL: u8 = 1;
/// [`Site::flags`]: the walker leaves the iterator where it was, so its segments cannot be told.
pub const KEEPS: u8 = 2;

/// What is known at one probe. Argument positions count from 0 in the order of the calling convention.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Address of the probed instruction; 0 in a free place.
    pub address: u64,
    /// For an import the number of its [`crate::import::Path`]; for a walker the number of its function.
    pub target: u8,
    /// [`OFF`] or [`ON`].
    pub state: u8,
    /// For a walker, the position of the `struct iov_iter *`; for an import, of `fast_segs`.
    pub iter: u8,
    /// For a walker, the position of the byte count; for an import, of `nr_segs`.
    pub count: u8,
    /// What the target returns: one of the `RETURNS_…` values.
    pub returns: u8,
    /// A set of [`BY_SYSCALL`] and [`KEEPS`].
    pub flags: u8,
    /// Number of arguments, needed to find the return value under `fexit`.
    pub arguments: u8,
    /// Room.
    pub pad: u8,
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

    /// The site with this address.
    #[inline(always)]
    pub const fn find(&self, address: u64) -> Option<&Site> {
        if self.sites[0].address == address {
            return Some(&self.sites[0]);
        }
        if self.sites[1].address == address {
            return Some(&self.sites[1]);
        }
        if self.sites[2].address == address {
            return Some(&self.sites[2]);
        }
        if self.sites[3].address == address {
            return Some(&self.sites[3]);
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
        Site { address, target: address as u8, ..Site::default() }
    }

    #[test]
    fn a_full_set_refuses_and_keeps_what_it_has() {
        let mut set = SiteSet::default();
        assert!((1..=4).all(|address| set.put(site(address))));
        assert!(!set.put(site(5)));
        assert!(set.put(Site { state: ON, ..site(2) }));
        assert_eq!(set.find(2).map(|site| site.state), Some(ON));
        assert_eq!(set.find(5), None);
        set.take(2);
        assert_eq!(set.find(2), None);
        assert!(set.put(site(5)) && set.find(4).is_some());
    }

    proptest! {
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
                prop_assert_eq!(found, Some(&site(address)));
            }
        }
    }
}
