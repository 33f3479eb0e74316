//! A server's source that always says the same.

use iotrace::http::{Form, Source};

/// What [`Fixed`] says.
pub const TEXT: &str = "one 1\n";

/// Says [`TEXT`], and is ready.
pub struct Fixed;

impl Source for Fixed {
    type Reading = ();

    fn read(&self) -> Result<(), String> {
        Ok(())
    }

    fn encode(&self, (): &(), _: Form) -> Result<Vec<u8>, String> {
        Ok(TEXT.into())
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}
