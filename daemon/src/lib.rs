//! iotrace: what vectored I/O and the kernel's iov_iter layer really cost.
//!
//! ```text
//! kernel text, kallsyms, BTF ──► plan ──► probes ──► maps ──► Snapshot ──┬──► metrics ──► http ──► Prometheus
//!                                                                        └──► Delta ──► top ──► terminal, JSON
//! ```

pub mod allocator;
pub mod arch;
pub mod bench;
pub mod calibration;
pub mod cgroups;
pub mod check;
pub mod cli;
pub mod commands;
pub mod daemon;
pub mod files;
pub mod filter;
pub mod governor;
pub mod http;
pub mod kernel;
pub mod listen;
pub mod logging;
pub mod measure;
pub mod metrics;
pub mod names;
pub mod own;
pub mod pids;
pub mod plan;
pub mod printable;
pub mod privileges;
pub mod probes;
pub mod selftest;
pub mod shared;
pub mod snapshot;
pub mod systemd;
pub mod top;
pub mod totals;
pub mod tracer;
pub mod who;
