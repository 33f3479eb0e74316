//! Starting programs: the kernel reads their headers through kernel vectors.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use super::{Options, Work};
use crate::tally::Tally;

struct Exec(PathBuf);

impl Work for Exec {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let status = Command::new(&self.0)
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("cannot run {}", self.0.display()))?;
        ensure!(status.success(), "{} ended with {status}", self.0.display());
        tally.plain("execve", 0);
        Ok(())
    }
}

/// fork, execve and wait.
pub fn exec(options: &Options) -> Result<Box<dyn Work>> {
    Ok(Box::new(Exec(options.file.clone().unwrap_or_else(|| "/bin/true".into()))))
}
