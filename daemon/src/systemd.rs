//! What systemd tells the service, and what it is told.

use std::{
    io,
    os::fd::RawFd,
    time::{Duration, Instant},
};

use sd_notify::NotifyState;

/// The sockets that it passes to this process.
///
/// # Errors
/// What it says about them makes no sense.
pub fn sockets() -> io::Result<impl Iterator<Item = RawFd>> {
    sd_notify::listen_fds()
}

/// Tells it how things are; and that the service is of use now, if it is `ready` for the first time.
pub fn status(status: &str, ready: bool) {
    let states = [NotifyState::Status(status), NotifyState::Ready];
    notify(if ready { &states } else { &states[..1] });
}

/// Tells it that the service ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::debug!("systemd is not told: {error}");
    }
}

/// Tells it that the service lives, if it wants to be told (`WatchdogSec=`).
pub struct Watchdog {
    /// As often as sd_watchdog_enabled(3) recommends: half of what systemd waits.
    every: Duration,
    told: Instant,
    round: u64,
}

impl Watchdog {
    /// As it asked for when it started this process; `None` if it did not.
    pub fn wanted() -> Option<Watchdog> {
        let every = sd_notify::watchdog_enabled()? / 2;
        Some(Watchdog { every, told: Instant::now(), round: 0 })
    }

    /// To be called more often than it wants to be told; it is told if the work has come to another `round` since.
    pub fn look(&mut self, round: u64) {
        if self.told.elapsed() >= self.every && round != self.round {
            notify(&[NotifyState::Watchdog]);
            (self.told, self.round) = (Instant::now(), round);
        }
    }
}
