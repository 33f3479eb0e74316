//! `import_iovec` and its kin: segments at the call, bytes and errors at the return.

use aya_ebpf::programs::ProbeContext;
use iotrace_common::{
    import::SEGMENT_BUCKETS,
    lost::Lost,
    site::{BY_SYSCALL, Site},
};

use crate::{
    arch::{self, Regs},
    config::{self, NO_PATH},
    flight,
    maps::{Add, Alone, import_record, live, lose, site},
};

#[inline(always)]
pub fn call(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    let Some(site) = live(site(regs.address())) else { return };
    let path = path(site);
    let Some(record) = import_record(path) else { return lose(Lost::Record) };
    let segments = regs.argument(site.count) as u32;
    let fast = regs.argument(site.iter) as u32;
    // SAFETY: the record is a value of the map, this CPU's own.
    unsafe {
        match config::segment_bucket(segments) {
            Some(bucket) if bucket < SEGMENT_BUCKETS => {
                Alone::add(&raw mut (*record).buckets[bucket], 1);
                Alone::add(&raw mut (*record).segments, u64::from(segments));
                if segments > fast {
                    Alone::add(&raw mut (*record).allocated, 1);
                }
            }
            // The kernel refuses it: an error that has no segments.
            _ => Alone::add(&raw mut (*record).buckets[SEGMENT_BUCKETS - 1], 1),
        }
    }
    flight::leave(regs.stack_pointer(), flight::now(), 0, u64::from(path));
}

#[inline(always)]
pub fn returned(ctx: &ProbeContext) {
    let regs = Regs::of(ctx);
    if live(site(regs.address())).is_none() {
        return;
    }
    let Some(call) = flight::take(regs.stack_pointer()) else { return };
    let Some(record) = import_record(call.record as u8) else { return lose(Lost::Record) };
    let result = regs.result() as i64;
    // SAFETY: the record is a value of the map, this CPU's own.
    unsafe {
        if result < 0 {
            Alone::add(&raw mut (*record).errors, 1);
        } else {
            Alone::add(&raw mut (*record).bytes, result as u64);
        }
    }
}

/// The number of the path: the system call in progress tells `readv` from `preadv`, which share their site.
#[inline(always)]
fn path(site: &Site) -> u8 {
    if site.flags & BY_SYSCALL != 0 {
        let (number, compat) = arch::syscall();
        let path = config::syscall_path(number, compat);
        if path != NO_PATH {
            return path;
        }
    }
    site.target
}
