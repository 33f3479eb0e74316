//! Capabilities: given up as soon as the probes are attached.

use caps::CapSet;

/// Gives up every capability of the calling thread, for good. What cannot be given up is logged.
pub fn drop_all() {
    // Inheritable before permitted: it may not hold what permitted has not.
    for set in [CapSet::Ambient, CapSet::Bounding, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted]
    {
        if let Err(error) = caps::clear(None, set) {
            log::debug!("capabilities stay in the {set:?} set: {error}");
        }
    }
}
