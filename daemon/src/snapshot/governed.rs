//! What the probes cost, and what they therefore do not see.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What keeps to the overhead budget, and how well. Estimates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Governed {
    /// The budget, in seconds of a processor for each second.
    pub budget: f64,
    /// Seconds of a processor that the probes of a call take, as measured at the start: by the mechanism of a walker's
    /// site, and `import`.
    pub costs: BTreeMap<String, f64>,
    /// Seconds of a processor that the probes of walkers took.
    pub seconds: f64,
    /// Calls of walkers, by function, of all processes.
    pub functions: BTreeMap<String, Passed>,
    /// Whether the hard limit was reached: walkers are seen no more.
    pub gave_up: bool,
}

/// Calls of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// That passed a site while it was probed.
    pub seen: f64,
    /// All of them: what passed closed sites is estimated from the windows before and after.
    pub estimated: f64,
}

/// [`Governed::costs`]: of an import.
pub const IMPORT: &str = "import";

impl Governed {
    pub(super) fn subtract(&mut self, before: &Governed) {
        self.seconds -= before.seconds;
        for (function, passed) in &mut self.functions {
            if let Some(before) = before.functions.get(function) {
                passed.seen -= before.seen;
                passed.estimated -= before.estimated;
            }
        }
    }
}
