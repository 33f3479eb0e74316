//! What the tests that run inside a guest share: running programs with a deadline, reading what iotrace reports,
//! and looking at what the kernel holds.

pub mod crowd;
pub mod daemon;
pub mod exposition;
pub mod findings;
pub mod http;
pub mod kernel;
pub mod process;
pub mod report;
pub mod syscalls;

use std::{
    env,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where the guest has the product.
pub const IOTRACE: &str = "/bin/iotrace";
/// Where the guest has the workloads.
pub const LOAD: &str = "/bin/iotrace-load";

/// Every test starts with this, and keeps what it returns: it is about a real kernel, as root, with nothing else
/// running, not even another test.
///
/// # Panics
/// Outside a guest of `cargo xtask`.
pub fn in_guest() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    assert!(
        env::var_os("IOTRACE_GUEST").is_some_and(|value| value == "1"),
        "this test needs a guest with a kernel of its own: run `cargo xtask test`"
    );
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether promised times are asserted: on 6.12, and only when asked to, for other work on the machine makes them
/// meaningless.
pub fn timed() -> bool {
    env::var_os("IOTRACE_TIMED").is_some_and(|value| value == "1") && kernel::version() == (6, 12)
}
