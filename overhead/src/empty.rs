//! Programs that do nothing, attached.

use std::thread;

use anyhow::{Context as _, Result};
use aya::{
    Btf, Ebpf,
    programs::{FEntry, FExit, KProbe},
};

use crate::places::{OPTIMIZED, Place};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/empty"));

/// The function of the load `import` that an empty fentry is attached to, and that other tracers trace.
pub const FUNCTION: &str = "vfs_readv";

/// The programs; detached when dropped.
pub struct Empty(Ebpf);

impl Empty {
    /// Loads them, attached nowhere yet.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Empty> {
        Ok(Empty(Ebpf::load(OBJECT).context("the empty programs cannot be loaded")?))
    }

    /// At the entry of a function.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn fentry(&mut self, function: &str) -> Result<()> {
        let program: &mut FEntry = self.0.program_mut("empty_fentry").context("no program")?.try_into()?;
        program.load(function, &Btf::from_sys_fs()?)?;
        program.attach()?;
        Ok(())
    }

    /// At the exit of a function.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn fexit(&mut self, function: &str) -> Result<()> {
        let program: &mut FExit = self.0.program_mut("empty_fexit").context("no program")?.try_into()?;
        program.load(function, &Btf::from_sys_fs()?)?;
        program.attach()?;
        Ok(())
    }

    /// A kprobe at each place, which reads the clock if it is to; says which the kernel made a jump of.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn kprobes(&mut self, places: &[Place], clock: bool) -> Result<String> {
        let name = if clock { "clock_kprobe" } else { "empty_kprobe" };
        let program: &mut KProbe = self.0.program_mut(name).context("no program")?.try_into()?;
        program.load()?;
        for place in places {
            program
                .attach(place.function.as_str(), place.offset)
                .with_context(|| format!("no kprobe at {}", place.name()))?;
        }
        let notes = places.iter().map(|place| {
            if place.is_optimized() { format!("{} [OPTIMIZED]", place.name()) } else { place.name() }
        });
        let notes: Vec<_> = notes.collect();
        thread::sleep(OPTIMIZED);
        Ok(notes.join(", "))
    }
}
