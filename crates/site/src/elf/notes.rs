//! ELF notes: data that tools store in a file for each other, such as the build id.

use super::bytes::u32_at;

/// One note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    /// Name of the tool or system that defines the meaning of `kind`, such as `GNU`.
    pub owner: &'a [u8],
    /// Kind of the note, as defined by the owner.
    pub kind: u32,
    /// Contents of the note.
    pub content: &'a [u8],
}

/// The notes of a segment or section, up to the first one that does not fit into it.
pub fn notes(mut bytes: &[u8]) -> Vec<Note<'_>> {
    fn padded(size: usize) -> Option<usize> {
        Some(size.checked_add(3)? & !3)
    }
    let mut notes = Vec::new();
    while bytes.len() >= 12 {
        let (owner, content) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4) as usize);
        let kind = u32_at(bytes, 8);
        let rest = &bytes[12..];
        let (Some(skip_owner), Some(skip_content)) = (padded(owner), padded(content)) else {
            break;
        };
        let (Some(name), Some(tail)) = (rest.get(..owner), rest.get(skip_owner..)) else {
            break;
        };
        let Some(content) = tail.get(..content) else {
            break;
        };
        notes.push(Note {
            owner: name.strip_suffix(b"\0").unwrap_or(name),
            kind,
            content,
        });
        bytes = tail.get(skip_content..).unwrap_or(&[]);
    }
    notes
}
