//! What the verifier had to look at, by program.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use aya::programs::{ProgramError, ProgramInfo};

/// Instructions that the verifier processed for each program that is loaded (`verified_insns`, ≥ 5.16; no program
/// before), shared with whoever reads. The kernel's limit is a million.
#[derive(Clone, Debug, Default)]
pub struct Programs(Arc<Mutex<BTreeMap<String, u32>>>);

impl Programs {
    /// All so far.
    pub fn all(&self) -> BTreeMap<String, u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn loaded(&self, name: &str, info: Result<ProgramInfo, ProgramError>) {
        if let Some(instructions) = info.ok().and_then(|info| info.verified_instruction_count()) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), instructions);
        }
    }
}
