//! Calls in flight, in their array: left at the call, taken at its return.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use core::ptr::read_volatile;
use iotrace_common::{
    flight::{FLIGHT_BITS, Flight},
    lost::Lost,
};

use crate::maps::{Own, lose};

/// Calls in flight.
static FLIGHTS: Own<Flight, { 1 << FLIGHT_BITS }> = Own::new([Flight::NONE; 1 << FLIGHT_BITS]);

/// Now, in nanoseconds of the monotonic clock.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { bpf_ktime_get_ns() }
}

/// Leaves a call for its return: in its place, or in the one beside it if another call is there. A call that is written
/// over will not be matched any more: three have met, or returns were missed.
#[inline(always)]
pub fn leave(call: Flight) {
    let key = call.key;
    let first = Flight::place(key);
    let mut place = FLIGHTS.at(first);
    // SAFETY: the places are values of the array. Member by member: the padding stays.
    unsafe {
        let held = read_volatile(&raw const (*place).key);
        if held != 0 {
            let beside = FLIGHTS.at(first ^ 1);
            if held != key && !holds_another(beside, key) {
                place = beside;
            } else {
                lose(Lost::Flight);
            }
        }
        (*place).key = key;
        (*place).start = call.start;
        (*place).iter = call.iter;
        (*place).asked = call.asked;
        (*place).more = call.more;
        (*place).seal = call.sealed();
    }
}

/// Whether a call with another stack pointer is there.
///
/// # Safety
/// `place` must be one of the array's.
#[inline(always)]
unsafe fn holds_another(place: *const Flight, key: u64) -> bool {
    // SAFETY: by contract.
    let held = unsafe { read_volatile(&raw const (*place).key) };
    held != 0 && held != key
}

/// Takes the call that returns; [`Flight::NONE`] if it was lost, or if this is no return at all: some functions also
/// jump to the instruction after a call. (Of an `Option` the compiler would read what is in it before it knows.)
#[inline(always)]
pub fn take(key: u64) -> Flight {
    let first = Flight::place(key);
    match take_from(FLIGHTS.at(first), key) {
        Flight { key: 0, .. } => take_from(FLIGHTS.at(first ^ 1), key),
        call => call,
    }
}

#[inline(always)]
fn take_from(place: *mut Flight, key: u64) -> Flight {
    // SAFETY: the place is a value of the array. Each member is read once, so that what is checked is used.
    unsafe {
        if read_volatile(&raw const (*place).key) != key {
            return Flight::NONE;
        }
        let call = Flight {
            key,
            start: read_volatile(&raw const (*place).start),
            iter: read_volatile(&raw const (*place).iter),
            asked: read_volatile(&raw const (*place).asked),
            more: read_volatile(&raw const (*place).more),
            seal: read_volatile(&raw const (*place).seal),
            ..Flight::NONE
        };
        if call.seal != call.sealed() {
            return Flight::NONE;
        }
        (*place).key = 0;
        call
    }
}
