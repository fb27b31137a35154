//! The parser of `/proc/<pid>/maps`. It accepts any input without a panic.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// One line of `/proc/<pid>/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address of the mapping.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Whether it is readable.
    pub read: bool,
    /// Whether it is writable.
    pub write: bool,
    /// Whether it is executable.
    pub execute: bool,
    /// Offset in the file of the byte at `start`.
    pub offset: u64,
    /// Major and minor device number of the file, as the kernel shows them here (on overlayfs they differ from `stat`).
    pub device: (u32, u32),
    /// Inode number of the file; 0: there is no file.
    pub inode: u64,
    /// Name in the last column of the line.
    pub name: Name,
}

/// The last column of a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// No name: anonymous memory.
    Anonymous,
    /// `[heap]`, `[vdso]`, …, with the brackets.
    Special(String),
    /// A mapped file.
    File {
        /// Path in the process's mount namespace, without the kernel's ` (deleted)`.
        path: OsString,
        /// Whether the path no longer names this file.
        deleted: bool,
    },
    /// A name that is neither a path nor in brackets (`anon_inode:[…]`).
    Other(String),
}

impl Mapping {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }
    /// Whether the mapping has no bytes. The kernel never shows such a mapping.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
    /// Address in memory of the byte at this offset of the file, if this mapping covers it.
    pub fn address_of(&self, file_offset: u64) -> Option<u64> {
        let inside = file_offset.checked_sub(self.offset)?;
        if inside < self.len() {
            self.start.checked_add(inside)
        } else {
            None
        }
    }
}

/// Parses all lines that have the known form. The second result is the number of lines that have another form.
pub fn parse(text: &[u8]) -> (Vec<Mapping>, usize) {
    let mut mappings = Vec::new();
    let mut unknown = 0;
    for line in text.split(|byte| *byte == b'\n') {
        if line.is_empty() {
            continue;
        }
        match parse_line(line) {
            Some(mapping) => mappings.push(mapping),
            None => unknown += 1,
        }
    }
    (mappings, unknown)
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = word(line)?;
    let (permissions, rest) = word(rest)?;
    let (offset, rest) = word(rest)?;
    let (device, rest) = word(rest)?;
    let (inode, rest) = word(rest)?;
    let (start, end) = split_once(range, b'-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    if end < start || permissions.len() < 4 {
        return None;
    }
    let (major, minor) = split_once(device, b':')?;
    Some(Mapping {
        start,
        end,
        read: permissions[0] == b'r',
        write: permissions[1] == b'w',
        execute: permissions[2] == b'x',
        offset: hex(offset)?,
        device: (
            u32::try_from(hex(major)?).ok()?,
            u32::try_from(hex(minor)?).ok()?,
        ),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        name: name(rest),
    })
}

/// The next word, and the text after it. Words are separated by one or more spaces. (Only the name, which comes last
/// and is not read as a word, may contain spaces.)
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let begin = text.iter().position(|byte| *byte != b' ')?;
    let text = &text[begin..];
    let end = text
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(text.len());
    Some((&text[..end], &text[end..]))
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = text.iter().position(|byte| *byte == at)?;
    Some((&text[..position], &text[position + 1..]))
}

fn hex(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with('+') {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

fn name(rest: &[u8]) -> Name {
    let begin = rest.iter().position(|byte| *byte != b' ');
    let Some(begin) = begin else {
        return Name::Anonymous;
    };
    let text = &rest[begin..];
    if text.first() == Some(&b'/') {
        let (path, deleted) = match text.strip_suffix(b" (deleted)") {
            Some(path) => (path, true),
            None => (text, false),
        };
        return Name::File {
            path: unescape(path),
            deleted,
        };
    }
    let words = String::from_utf8_lossy(text).into_owned();
    if text.first() == Some(&b'[') {
        Name::Special(words)
    } else {
        Name::Other(words)
    }
}

/// The kernel writes a line feed in a path as `\012`, and escapes nothing else
/// (`show_map_vma` in fs/proc/task_mmu.c calls `seq_path` with "\n").
fn unescape(path: &[u8]) -> OsString {
    const LINE_FEED: &[u8] = b"\\012";
    if memchr::memmem::find(path, LINE_FEED).is_none() {
        return OsStr::from_bytes(path).to_owned();
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memmem::find(rest, LINE_FEED) {
        bytes.extend_from_slice(&rest[..at]);
        bytes.push(b'\n');
        rest = &rest[at + LINE_FEED.len()..];
    }
    bytes.extend_from_slice(rest);
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Mapping {
        let (mappings, unknown) = parse(line.as_bytes());
        assert_eq!((mappings.len(), unknown), (1, 0), "{line}");
        mappings[0].clone()
    }

    #[test]
    fn a_library() {
        let m = one(
            "7f2c8a600000-7f2c8a7b2000 r-xp 00028000 fe:01 131090                     /usr/lib/x86_64-linux-gnu/libc.so.6",
        );
        assert_eq!(
            (m.start, m.end, m.offset),
            (0x7f2c8a600000, 0x7f2c8a7b2000, 0x28000)
        );
        assert!(m.read && m.execute && !m.write);
        assert_eq!((m.device, m.inode), ((0xfe, 1), 131090));
        assert_eq!(
            m.name,
            Name::File {
                path: "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                deleted: false
            }
        );
        assert_eq!(m.address_of(0x28010), Some(0x7f2c8a600010));
        assert_eq!(m.address_of(0x27fff), None);
        assert_eq!(m.address_of(0x28000 + m.len()), None);
    }

    #[test]
    fn names_with_spaces_line_feeds_and_deleted() {
        let m = one("1000-2000 r-xp 0 00:2a 7 /opt/my libs/lib\\012a  b.so (deleted)");
        assert_eq!(
            m.name,
            Name::File {
                path: "/opt/my libs/lib\na  b.so".into(),
                deleted: true
            }
        );
        let m = one("1000-2000 rwxs 0 00:01 9 /memfd:jit code (deleted)");
        assert!(matches!(m.name, Name::File { deleted: true, .. }));
    }

    #[test]
    fn what_is_not_a_file() {
        assert_eq!(
            one("1000-2000 rw-p 00000000 00:00 0 ").name,
            Name::Anonymous
        );
        assert_eq!(
            one("7fff-8fff r-xp 00000000 00:00 0      [vdso]").name,
            Name::Special("[vdso]".into())
        );
        assert_eq!(
            one("1000-2000 rw-s 0 00:0e 12 anon_inode:[perf_event]").name,
            Name::Other("anon_inode:[perf_event]".into())
        );
    }

    #[test]
    fn lines_of_another_form_are_counted() {
        let (mappings, unknown) = parse(b"what is this\n2000-1000 r-xp 0 0:0 0 /x\n\n");
        assert_eq!((mappings.len(), unknown), (0, 2));
    }

    #[test]
    fn a_path_that_is_not_text() {
        let (mappings, _) = parse(b"1000-2000 r-xp 0 00:01 3 /lib/\xff\xfe.so");
        let Name::File { path, .. } = &mappings[0].name else {
            panic!("a file");
        };
        assert_eq!(path.as_bytes(), b"/lib/\xff\xfe.so");
    }

    proptest! {
        #[test]
        fn any_bytes(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&text);
        }

        #[test]
        fn nearly_right(text in "[0-9a-f]{0,17}-[0-9a-f]{0,17} [rwxps-]{0,5} [0-9a-f]{0,18} [0-9a-f:]{0,9} [0-9]{0,22} {0,3}[/\\[ -~]{0,30}") {
            let (mappings, _) = parse(text.as_bytes());
            for mapping in mappings {
                prop_assert!(mapping.start <= mapping.end);
                let _ = mapping.address_of(mapping.offset);
            }
        }
    }
}
