//! Tables of lines: which line an instruction belongs to. Any bytes can be read as a table; damage gives wrong lines,
//! but never a panic.

use crate::layout::{LINES_LNOTAB, LINES_LOCATIONS, LINES_RANGES};

/// A range of instructions that belong to the same line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRange {
    /// Offset of the first instruction, in bytes.
    pub start: u64,
    /// Offset of the first byte after the range; `u64::MAX` where the table leaves the end open.
    pub end: u64,
    /// The line; `None` where the instructions have no line, or the table gives an impossible one.
    pub line: Option<u32>,
}

/// Iterator over the ranges of a table, in their order.
#[derive(Clone, Debug)]
pub struct LineRanges<'a> {
    table: &'a [u8],
    form: u32,
    line: i64,
    at: u64,
    done: bool,
}

impl<'a> LineRanges<'a> {
    /// Reads a table of the form `form` (`LINES_*`), of a function that begins at the line `first_line`.
    pub fn new(table: &'a [u8], form: u32, first_line: i32) -> LineRanges<'a> {
        LineRanges {
            table,
            form,
            line: i64::from(first_line),
            at: 0,
            done: false,
        }
    }

    fn take(&mut self, length: u64, line: Option<i64>) -> LineRange {
        let start = self.at;
        self.at = self.at.saturating_add(length);
        LineRange {
            start,
            end: self.at,
            line: line.and_then(|line| u32::try_from(line).ok()),
        }
    }

    /// Reads pairs of (bytes to advance, lines to advance). The instructions that the first pair passes have the first
    /// line, and the line after the last pair holds to the end.
    fn lnotab(&mut self) -> Option<LineRange> {
        let line = self.line;
        if let Some((pair, rest)) = self.table.split_at_checked(2) {
            self.table = rest;
            self.line += i64::from(pair[1] as i8);
            return Some(self.take(u64::from(pair[0]), Some(line)));
        }
        let open = !self.done;
        self.done = true;
        open.then(|| self.take(u64::MAX, Some(line)))
    }

    /// Reads pairs of (bytes of this range, difference of its line to the range before); −128: no line.
    fn ranges(&mut self) -> Option<LineRange> {
        let (pair, rest) = self.table.split_at_checked(2)?;
        self.table = rest;
        let line = match pair[1] as i8 {
            i8::MIN => None,
            delta => {
                self.line += i64::from(delta);
                Some(self.line)
            }
        };
        Some(self.take(u64::from(pair[0]), line))
    }

    /// Reads entries that begin with a byte with the highest bit set, which has the form of the entry and its number of
    /// units less one. The other bytes of the entry follow it.
    fn locations(&mut self) -> Option<LineRange> {
        let (first, rest) = self.table.split_first()?;
        if first & 0x80 == 0 {
            return None;
        }
        let end = rest
            .iter()
            .position(|byte| byte & 0x80 != 0)
            .unwrap_or(rest.len());
        let (body, rest) = rest.split_at(end);
        self.table = rest;
        let delta = match (first >> 3) & 15 {
            15 => None,
            13 | 14 => Some(signed(body)),
            form @ 10..=12 => Some(i64::from(form) - 10),
            _ => Some(0),
        };
        self.line = self.line.saturating_add(delta.unwrap_or(0));
        let line = delta.map(|_| self.line);
        Some(self.take((u64::from(first & 7) + 1) * 2, line))
    }
}

impl Iterator for LineRanges<'_> {
    type Item = LineRange;

    fn next(&mut self) -> Option<LineRange> {
        match self.form {
            LINES_LNOTAB => self.lnotab(),
            LINES_RANGES => self.ranges(),
            LINES_LOCATIONS => self.locations(),
            _ => None,
        }
    }
}

/// Decodes a signed number: six bits in each byte, lowest first; bit 6 says that more bytes follow; the lowest bit of
/// the number is its sign.
fn signed(body: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (i, byte) in body.iter().enumerate().take(10) {
        value |= u64::from(byte & 63) << (6 * i);
        if byte & 64 == 0 {
            break;
        }
    }
    let size = (value >> 1) as i64;
    if value & 1 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(table: &[u8], form: u32, first: i32) -> Vec<(u64, u64, Option<u32>)> {
        LineRanges::new(table, form, first)
            .map(|range| (range.start, range.end, range.line))
            .collect()
    }

    #[test]
    fn old_pairs_go_forth_and_back() {
        assert_eq!(
            lines(&[0, 1, 8, 2, 6, 0xff], LINES_LNOTAB, 10),
            [
                (0, 0, Some(10)),
                (0, 8, Some(11)),
                (8, 14, Some(13)),
                (14, u64::MAX, Some(12))
            ]
        );
        assert_eq!(lines(&[], LINES_LNOTAB, 3), [(0, u64::MAX, Some(3))]);
    }

    #[test]
    fn ranges_may_have_no_line() {
        assert_eq!(
            lines(&[4, 0, 2, 0x80, 6, 3], LINES_RANGES, 7),
            [(0, 4, Some(7)), (4, 6, None), (6, 12, Some(10))]
        );
    }

    #[test]
    fn every_form_of_location() {
        // No line, 1 unit; same line, 2 units; one line more, 1 unit; long form, −3 lines; without columns, +70 lines.
        let table = [
            0xf8,
            0x81,
            0x12,
            0xd8,
            1,
            2,
            0xf0,
            7,
            4,
            1,
            1,
            0xe8,
            0x40 | (140 & 63),
            140 >> 6,
        ];
        assert_eq!(
            lines(&table, LINES_LOCATIONS, 100),
            [
                (0, 2, None),
                (2, 6, Some(100)),
                (6, 8, Some(101)),
                (8, 10, Some(98)),
                (10, 12, Some(168))
            ]
        );
    }

    proptest! {
        #[test]
        fn any_table(table in proptest::collection::vec(any::<u8>(), 0..300), form in 0_u32..5, first: i32) {
            let mut at = 0;
            for range in LineRanges::new(&table, form, first) {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end >= range.start);
                at = range.end;
            }
        }
    }
}
