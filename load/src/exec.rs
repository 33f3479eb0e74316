//! Starting programs: the kernel reads their headers through kernel vectors.

use std::{
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Impossible,
    memory::{Mapping, memory_file},
    sys::{call, number},
    tally::Tally,
    work::{Setup, Work},
};

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
pub fn exec(setup: &Setup) -> Result<Box<dyn Work>> {
    Ok(Box::new(Exec(setup.file.clone().unwrap_or_else(|| "/bin/true".into()))))
}

/// `BINPRM_BUF_SIZE` (include/uapi/linux/binfmts.h): what the kernel reads of a file to find out what it is.
const LOOKED_AT: usize = 256;

/// The kernel looks at its start, and refuses it.
struct NoProgram(OwnedFd);

impl Work for NoProgram {
    fn once(&mut self, tally: &mut Tally) -> Result<()> {
        let (path, none) = (c"".as_ptr() as usize, [std::ptr::null::<u8>()]);
        let none = none.as_ptr() as usize;
        let arguments = [number(&self.0), path, none, none, libc::AT_EMPTY_PATH as usize];
        // SAFETY: the path is a C string, and both lists end at once.
        let result = unsafe { call(libc::SYS_execveat, arguments) };
        match result.as_ref().err().and_then(io::Error::raw_os_error) {
            Some(libc::ENOEXEC) => tally.plain("execveat", LOOKED_AT),
            Some(libc::EACCES) => return Err(Impossible("files in memory may not be run".into()).into()),
            _ => anyhow::bail!("{result:?} instead of ENOEXEC"),
        }
        Ok(())
    }
}

/// `execveat(2)` of a text without a program to read it. Of anything else the kernel would ask modprobe.
pub fn no_program(_: &Setup) -> Result<Box<dyn Work>> {
    let file = memory_file(LOOKED_AT).context("cannot make a file in memory")?;
    let start = Mapping::new(Some(&file), 0, LOOKED_AT).context("cannot map it")?;
    // SAFETY: within the mapping, which is as long as the file.
    unsafe { start.at::<[u8; 4]>(0).write_volatile(*b"text") };
    Ok(Box::new(NoProgram(file)))
}
