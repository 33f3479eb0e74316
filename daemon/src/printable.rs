//! Names that others chose, made fit to be shown: no control character, no broken text, no endless length.

use std::fmt::Write as _;

/// A path or a unit's name. Backslashes stay, as systemd writes them.
pub fn path(bytes: &[u8]) -> String {
    /// Longer than any path that a person reads.
    const MOST: usize = 1024;
    let mut text = escaped(bytes, false);
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push('…');
    }
    text
}

/// A process' name, of at most 16 bytes. Different names stay different.
pub fn comm(bytes: &[u8]) -> String {
    escaped(bytes, true)
}

fn escaped(bytes: &[u8], double_backslash: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            // Writing to a string cannot fail.
            let _infallible = match character {
                '\\' if double_backslash => text.write_str("\\\\"),
                it if it.is_control() => write!(text, "\\x{:02x}", u32::from(it)),
                it if misleads(it) => write!(text, "\\u{{{:x}}}", u32::from(it)),
                it => text.write_char(it),
            };
        }
        for byte in chunk.invalid() {
            // U+0080 and above are told apart from bytes of broken text by the upper case.
            let _infallible = write!(text, "\\X{byte:02x}");
        }
    }
    text
}

/// Characters that are not seen but change what is: marks of direction, separators, joiners.
fn misleads(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_stays() {
        assert_eq!(path(b"/a/systemd-fsck@dev-disk-by\\x2duuid.service"), {
            "/a/systemd-fsck@dev-disk-by\\x2duuid.service"
        });
        assert_eq!(path("/größe/日本".as_bytes()), "/größe/日本");
        assert_eq!(comm(b"kworker/0:1H"), "kworker/0:1H");
    }

    #[test]
    fn what_would_harm_does_not() {
        assert_eq!(path(b"/a\x1b[2J\nb\x7f"), "/a\\x1b[2J\\x0ab\\x7f");
        assert_eq!(path("a\u{202e}b\u{85}".as_bytes()), "a\\u{202e}b\\x85");
        assert_eq!(path(b"/\xff\xfe/x"), "/\\Xff\\Xfe/x");
        let long = path(&"é".repeat(4000).into_bytes());
        assert!(long.len() <= 1024 + 3 && long.ends_with('…'));
    }

    #[test]
    fn names_stay_different() {
        let names: [&[u8]; 6] = [b"\\x1b", b"\x1b", "\u{85}".as_bytes(), b"\x85", b"\\X85", b"a\xff"];
        let shown: std::collections::BTreeSet<String> = names.iter().map(|name| comm(name)).collect();
        assert_eq!(shown.len(), names.len(), "{shown:?}");
    }
}
