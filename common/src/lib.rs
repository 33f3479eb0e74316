//! What the kernel side and the daemon share: every layout and every formula, written once.
//!
//! Compiled for the bpf target and for the host; nothing here knows aya, a map or a file. Types that cross
//! the border are `#[repr(C)]`, made of fixed-width integers, padded by hand, and their sizes are asserted.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod block;
pub mod flight;
pub mod import;
pub mod iter;
pub mod lost;
pub mod memory;
pub mod site;
pub mod who;
pub mod zerocopy;

/// Stands in the kernel side's programs where the number of `bpf_rdonly_cast` is to be put in.
pub const CAST_CALL: u32 = 0x7ac5_70ca;

/// 2⁶⁴/φ, odd.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads an address over `1 << bits` places (Fibonacci hashing): the high bits of a product with 2⁶⁴/φ.
#[inline(always)]
pub const fn spread(address: u64, bits: u32) -> u64 {
    address.wrapping_mul(SPREAD) >> (64 - bits)
}
