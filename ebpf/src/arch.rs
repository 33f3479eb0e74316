//! What depends on the architecture, and on nothing else: where a probed instruction's arguments and result
//! are, and which system call is in progress.

#[cfg(bpf_target_arch = "x86_64")]
mod x86_64;
#[cfg(bpf_target_arch = "x86_64")]
pub use x86_64::*;
