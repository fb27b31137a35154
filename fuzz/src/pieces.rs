//! Inputs that consist of pieces, so that lengths and check sums can be made right around contents that are not.

/// Reads an input piece by piece; where it ends, zeros come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces<'a>(pub(crate) &'a [u8]);

impl<'a> Pieces<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// At most so many bytes, as many as there are.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next piece: its kind, and its content.
    pub(crate) fn piece(&mut self) -> Option<(u8, &'a [u8])> {
        if self.0.is_empty() {
            return None;
        }
        let kind = self.byte();
        let len = self.u16();
        Some((kind, self.take(usize::from(len))))
    }
}

/// Appends a piece as [`Pieces::piece`] reads it. What is longer than a piece can be is cut off.
pub(crate) fn put(kind: u8, content: &[u8], into: &mut Vec<u8>) {
    let content = &content[..content.len().min(usize::from(u16::MAX))];
    into.push(kind);
    into.extend_from_slice(&(content.len() as u16).to_le_bytes());
    into.extend_from_slice(content);
}
