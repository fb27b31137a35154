//! Strings, in every form in which CPython 3.9 to 3.15 store them.

use crate::layout::TextLayout;

/// A string that was read, and whether it is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text {
    /// The characters. What is no valid character (half a surrogate pair, damage) is replaced by U+FFFD.
    pub text: String,
    /// Whether the string is longer than `text`, because only a part was captured or it exceeds the limit.
    pub truncated: bool,
}

/// What the header of a string object says about its characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of characters.
    pub length: u64,
    /// Bytes of one character: 1, 2 or 4.
    pub width: u32,
    /// Offset of the first character in the object; `None`: the characters are not part of the object.
    pub data: Option<u32>,
}

/// Reads the header of a string object; `None` where this is no valid string.
pub(crate) fn shape(layout: &TextLayout, header: &[u8]) -> Option<Shape> {
    let length = u64::from_le_bytes(part(header, layout.length)?);
    let state = u32::from_le_bytes(part(header, layout.state)?);
    let width = (state >> layout.kind_shift) & 7;
    // CPython's lengths are signed, so a larger number is no length.
    if !matches!(width, 1 | 2 | 4) || length > i64::MAX as u64 / 4 {
        return None;
    }
    let data = match (state & layout.compact != 0, state & layout.ascii != 0) {
        (true, true) => Some(layout.ascii_data),
        (true, false) => Some(layout.compact_data),
        (false, _) => None,
    };
    Some(Shape {
        length,
        width,
        data,
    })
}

/// Decodes the characters in `bytes`, which may be fewer than the string has.
pub(crate) fn decode(shape: Shape, bytes: &[u8]) -> Text {
    let width = shape.width as usize;
    let wanted = usize::try_from(shape.length).unwrap_or(usize::MAX);
    let characters: String = bytes
        .chunks_exact(width)
        .take(wanted)
        .map(|raw| {
            let mut number = [0; 4];
            number[..width].copy_from_slice(raw);
            char::from_u32(u32::from_le_bytes(number)).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect();
    Text {
        truncated: bytes.len() / width < wanted,
        text: characters,
    }
}

/// The `N` bytes at an offset of a structure; `None` where the structure is too short.
pub(crate) fn part<const N: usize>(bytes: &[u8], offset: u32) -> Option<[u8; N]> {
    let offset = usize::try_from(offset).ok()?;
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables;

    fn header(length: u64, state: u32) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        bytes[32..36].copy_from_slice(&state.to_le_bytes());
        bytes
    }

    #[test]
    fn widths() {
        let layout = tables::text(40, 56);
        let read = |length, state: u32, bytes: &[u8]| {
            let shape = shape(&layout, &header(length, state)).unwrap();
            let text = decode(shape, bytes);
            (shape.data, text.text, text.truncated)
        };
        assert_eq!(read(2, 0x64, b"abc"), (Some(40), "ab".to_owned(), false));
        assert_eq!(
            read(2, 0x24, b"\xe4\xdf"),
            (Some(56), "äß".to_owned(), false)
        );
        assert_eq!(
            read(2, 0x28, &[0xa2, 0x95, 0x70, 0x65]),
            (Some(56), "関数".to_owned(), false)
        );
        assert_eq!(
            read(1, 0x30, &[0x00, 0xf6, 0x01, 0x00]),
            (Some(56), "\u{1f600}".to_owned(), false)
        );
        // Half a surrogate pair, as in undecodable file names; and a string of which only a part is there.
        assert_eq!(
            read(3, 0x28, &[0xe4, 0xdc, b'x', 0]),
            (Some(56), "\u{fffd}x".to_owned(), true)
        );
        assert_eq!(read(2, 0x04, b"ab").0, None);
    }

    #[test]
    fn what_is_no_string() {
        let layout = tables::text(40, 56);
        for (length, state) in [(1, 0x60), (1, 0x6c), (u64::MAX, 0x64)] {
            assert_eq!(shape(&layout, &header(length, state)), None);
        }
        assert_eq!(shape(&layout, &[0; 20]), None);
    }
}
