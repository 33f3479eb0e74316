//! A writer of the one archive format that the kernel unpacks into its first file system: cpio, "newc".

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Component, Path};

/// An archive under way. Folders on the way to a file are added by themselves.
pub struct Archive<W> {
    out: W,
    folders: BTreeSet<String>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

impl<W: Write> Archive<W> {
    /// An empty archive that goes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, folders: BTreeSet::new(), entries: 0 }
    }

    /// Adds a folder, if it is not there yet.
    pub fn folder(&mut self, path: &Path) -> io::Result<()> {
        let mut name = String::new();
        for part in path.components() {
            let Component::Normal(part) = part else { continue };
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(&part.to_string_lossy());
            if self.folders.insert(name.clone()) {
                self.entry(&name, FOLDER, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file with the permissions `mode`.
    pub fn file(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        self.folder(path.parent().unwrap_or(Path::new("/")))?;
        let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
        self.entry(&name, FILE | mode, content)
    }

    /// Adds a symbolic link that leads to `to`.
    pub fn link(&mut self, path: &Path, to: &Path) -> io::Result<()> {
        self.folder(path.parent().unwrap_or(Path::new("/")))?;
        let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
        self.entry(&name, LINK, to.to_string_lossy().as_bytes())
    }

    /// Closes the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("{name} is too large for an initramfs"))
        })?;
        let name_size = u32::try_from(name.len() + 1).expect("paths are short");
        // Magic, then 13 fields: inode, mode, uid, gid, links, mtime, size, two device numbers
        // of the archive's disk, two of the file, the name's size with its NUL, a checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        self.padded(&[header.as_bytes(), &[0]].concat())?;
        self.padded(content)
    }

    /// Writes `bytes` and fills up to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let field = |at: usize| {
            let text = std::str::from_utf8(&archive[at..at + 8]).unwrap();
            u32::from_str_radix(text, 16).unwrap()
        };
        let mut at = 0;
        let mut found = Vec::new();
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701");
            let (mode, size, name_size) = (field(at + 14), field(at + 54) as usize, field(at + 94) as usize);
            let name = String::from_utf8(archive[at + 110..at + 109 + name_size].to_vec()).unwrap();
            let content = (at + 110 + name_size).next_multiple_of(4);
            found.push((name, mode, archive[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
        found
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut archive = Archive::new(Vec::new());
        archive.file(Path::new("/bin/a"), 0o755, b"12345").unwrap();
        archive.file(Path::new("/bin/b/c"), 0o644, b"").unwrap();
        archive.folder(Path::new("/bin/b")).unwrap();
        archive.link(Path::new("sbin"), Path::new("usr/sbin")).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let expected = [
            ("bin", 0o040_755, &b""[..]),
            ("bin/a", 0o100_755, b"12345"),
            ("bin/b", 0o040_755, b""),
            ("bin/b/c", 0o100_644, b""),
            ("sbin", 0o120_777, b"usr/sbin"),
            ("TRAILER!!!", 0, b""),
        ];
        let expected = expected.map(|(name, mode, content)| (name.to_owned(), mode, content.to_vec()));
        assert_eq!(names(&bytes), expected);
    }
}
