//! How a load hands its outcome to the program that started it.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    mem::ManuallyDrop,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Impossible, memory::Mapping, sys, tally::Tally};

/// What came of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome<T = Tally> {
    /// All of it was done.
    Done(T),
    /// This kernel or machine does not offer it.
    Impossible(String),
    /// It failed.
    Failed(String),
}

impl<T> Outcome<T> {
    /// Of a result.
    pub fn of(result: Result<T>) -> Outcome<T> {
        match result {
            Ok(done) => Outcome::Done(done),
            Err(error) => match error.downcast_ref::<Impossible>() {
                Some(Impossible(why)) => Outcome::Impossible(why.clone()),
                None => Outcome::Failed(format!("{error:#}")),
            },
        }
    }

    /// The result again.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn done(self) -> Result<T> {
        match self {
            Outcome::Done(done) => Ok(done),
            Outcome::Impossible(why) => Err(Impossible(why).into()),
            Outcome::Failed(why) => Err(anyhow!(why)),
        }
    }
}

/// More than any outcome has.
const ROOM: usize = 64 << 10;

/// A file in memory that a child inherits and stores its outcome in: a write would be counted with its work.
#[derive(Debug)]
pub struct Report(File);

impl Report {
    /// An empty one.
    ///
    /// # Errors
    /// The kernel gave none.
    pub fn new() -> io::Result<Report> {
        // SAFETY: the name is a C string.
        let file = unsafe { sys::call(libc::SYS_memfd_create, [c"iotrace-report".as_ptr() as usize, 0]) }?;
        let file = File::from(sys::owned(file));
        file.set_len(ROOM as u64)?;
        Ok(Report(file))
    }

    /// What a child is to be given as `--report`.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// What the child said, once it has ended.
    ///
    /// # Errors
    /// It said nothing.
    pub fn read<T: DeserializeOwned>(mut self) -> Result<Outcome<T>> {
        let mut text = Vec::new();
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut text)).context("cannot read the outcome")?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        serde_json::from_slice(&text[..end]).context("the load died before it told its outcome")
    }
}

/// Stores the outcome in the file that [`Report::number`] named.
pub fn hand_over<T: Serialize>(report: i32, outcome: &Outcome<T>) -> Result<()> {
    let text = serde_json::to_vec(outcome)?;
    ensure!(text.len() < ROOM, "the outcome is too long");
    // SAFETY: only lent, and left open.
    let file = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(report) });
    let room = Mapping::new(Some(&file), 0, ROOM).context("cannot map the report")?;
    for (offset, byte) in text.into_iter().enumerate() {
        // SAFETY: `at` checks the place, and the file has as much room as the mapping if `Report::new` made it.
        unsafe { room.at::<u8>(offset).write_volatile(byte) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_arrives_as_it_was() {
        for outcome in [
            Outcome::Done(Tally::default()),
            Outcome::Impossible("no such kernel".into()),
            Outcome::Failed("3 bytes".into()),
        ] {
            let report = Report::new().unwrap();
            hand_over(report.number(), &outcome).unwrap();
            assert_eq!(report.read().unwrap(), outcome);
            assert_eq!(Outcome::of(outcome.clone().done()), outcome);
        }
        assert!(Report::new().unwrap().read::<Tally>().is_err());
    }
}
