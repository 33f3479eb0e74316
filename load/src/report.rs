//! How a load hands its outcome to the program that started it.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    mem::ManuallyDrop,
    os::fd::{AsRawFd as _, FromRawFd as _},
};

use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::{Impossible, sys, tally::Tally};

/// What came of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All of it was done.
    Done(Tally),
    /// This kernel or machine does not offer it.
    Impossible(String),
    /// It failed.
    Failed(String),
}

impl Outcome {
    /// Of a result.
    pub fn of(result: Result<Tally>) -> Outcome {
        match result {
            Ok(tally) => Outcome::Done(tally),
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
    pub fn done(self) -> Result<Tally> {
        match self {
            Outcome::Done(tally) => Ok(tally),
            Outcome::Impossible(why) => Err(Impossible(why).into()),
            Outcome::Failed(why) => Err(anyhow!(why)),
        }
    }
}

/// A file in memory that a child inherits and writes its outcome to.
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
        Ok(Report(sys::owned(file).into()))
    }

    /// What a child is to be given as `--report`.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// What the child said, once it has ended.
    ///
    /// # Errors
    /// It said nothing.
    pub fn read(mut self) -> Result<Outcome> {
        let mut text = Vec::new();
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut text)).context("cannot read the outcome")?;
        serde_json::from_slice(&text).context("the load died before it told its outcome")
    }
}

/// Writes the outcome to the descriptor that [`Report::number`] named.
pub fn hand_over(report: i32, outcome: &Outcome) -> Result<()> {
    // SAFETY: only lent, and left open.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(report) });
    Ok(file.write_all(&serde_json::to_vec(outcome)?)?)
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
        assert!(Report::new().unwrap().read().is_err());
    }
}
