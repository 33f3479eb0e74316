//! The ring buffer through which slots are handed over.

use std::{
    fmt, io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use aya::maps::{MapData, RingBuf};
use iotrace_common::who::{Counts, Handover, KINDS, Slot, Who};

/// What slots held when another process took them, in the order in which it was sent.
pub struct Handovers(RingBuf<MapData>);

impl Handovers {
    pub(super) fn of(ring: RingBuf<MapData>) -> Handovers {
        Handovers(ring)
    }

    /// To be waited on by another thread.
    ///
    /// # Errors
    /// That no more files can be opened.
    pub fn waiter(&self) -> io::Result<Waiter> {
        // SAFETY: the ring buffer keeps its descriptor open.
        let ring = unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) };
        ring.try_clone_to_owned().map(Waiter)
    }

    /// The next one, if there is one.
    pub fn take(&mut self) -> Option<Handover> {
        loop {
            // The kernel side sends nothing of another size.
            if let Some(handover) = read(&self.0.next()?) {
                return Some(handover);
            }
        }
    }
}

/// Waits for something to be handed over.
#[derive(Debug)]
pub struct Waiter(OwnedFd);

impl Waiter {
    /// Returns when something was handed over, or after this time.
    pub fn wait(&self, most: Duration) {
        let mut ring = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let most = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one `pollfd`, which outlives the call. Why it returns does not matter.
        unsafe { libc::poll(&raw mut ring, 1, most) };
    }
}

impl fmt::Debug for Handovers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Handovers({})", self.0.as_raw_fd())
    }
}

/// Members in the order of `#[repr(C)]`, little-endian.
fn read(bytes: &[u8]) -> Option<Handover> {
    if bytes.len() != size_of::<Handover>() {
        return None;
    }
    let mut rest = bytes;
    let cpu = u32::from_le_bytes(first(&mut rest)?);
    let slot = u32::from_le_bytes(first(&mut rest)?);
    let who = Who {
        tgid: u32::from_le_bytes(first(&mut rest)?),
        generation: u32::from_le_bytes(first(&mut rest)?),
        cgroup: u64::from_le_bytes(first(&mut rest)?),
        comm: first(&mut rest)?,
    };
    let mut word = || first(&mut rest).map(u64::from_le_bytes);
    let turn = word()?;
    let mut counts = Counts { iter_calls: [0; KINDS], ..Counts::default() };
    for count in counts.words_mut() {
        *count = word()?;
    }
    Some(Handover { cpu, slot, content: Slot { who, turn, counts, pad: [0; 1] } })
}

fn first<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_read_from_its_place() {
        let words: Vec<u64> = (1..=size_of::<Handover>() as u64 / 8).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let handover = read(&bytes).unwrap();
        assert_eq!((handover.cpu, handover.slot), (1, 0));
        let Slot { who, turn, counts, .. } = handover.content;
        assert_eq!((who.tgid, who.generation, who.cgroup, who.comm[0], who.comm[8]), (2, 0, 3, 4, 5));
        assert_eq!(turn, 6);
        assert!(counts.words().eq(7..33));
        assert_eq!(read(&bytes[1..]), None);
    }
}
