//! iotrace: what vectored I/O and the kernel's iov_iter layer really cost.
//!
//! ```text
//! kernel text, kallsyms, BTF ──► plan ──► probes ──► maps ──► Snapshot ──┬──► metrics ──► http ──► Prometheus
//!                                                                        └──► Delta ──► top ──► terminal, JSON
//! ```

pub mod plan;
pub mod snapshot;
