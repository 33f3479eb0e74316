//! Files of the user's: what is in them, and whether that has changed.

use std::{
    fs, io,
    io::Read as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use crate::printable;

/// The largest file that is read.
const MOST: u64 = 1 << 20;

/// What changes with a file: device, inode, size, and when it was changed last, by whatever means; or why nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Result<(u64, u64, u64, i64, i64), io::ErrorKind>);

impl Stamp {
    /// That of what is at this path now.
    pub fn of(path: &Path) -> Stamp {
        let stamp =
            |file: fs::Metadata| (file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec());
        Stamp(fs::metadata(path).map(stamp).map_err(|error| error.kind()))
    }
}

/// How messages call a file: in one line, whatever its name.
pub fn shown(path: &Path) -> String {
    printable::path(path.as_os_str().as_bytes())
}

/// All that is in the file.
///
/// # Errors
/// Those of the system; that it is a pipe or the like, which could not be read again; that it is too large.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would be waited for, where it is opened otherwise.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut contents = Vec::new();
    file.take(MOST + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {MOST} bytes")));
    }
    Ok(contents)
}
