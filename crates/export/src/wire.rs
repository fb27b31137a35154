//! Protobuf's wire encoding, as much as a trace of Perfetto's and a profile of pprof's need.
//!
//! Why not `prost`: the house keeps it to the rooms that talk gRPC, and what is needed of it here is
//! varints, strings and nested messages: <https://protobuf.dev/programming-guides/encoding/>.

/// Wire types.
const VARINT: u32 = 0;
const LEN: u32 = 2;

/// A message under construction.
#[derive(Debug, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties it and keeps its room.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// An unsigned integer, an enum or a bool.
    pub(crate) fn uint(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field << 3 | VARINT));
        self.varint(value);
    }

    /// A string. Empty ones are written too: the fields used here are `optional`.
    pub(crate) fn text(&mut self, field: u32, text: &str) {
        self.varint(u64::from(field << 3 | LEN));
        self.varint(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// A message inside this one. Its length comes before it and is known after it: one byte is
    /// kept for it, which is enough for nearly all; longer ones are moved.
    pub(crate) fn nested(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        self.varint(u64::from(field << 3 | LEN));
        let place = self.bytes.len();
        self.bytes.push(0);
        write(self);
        let len = (self.bytes.len() - place - 1) as u64;
        let (encoded, count) = encode(len);
        self.bytes
            .splice(place..=place, encoded.into_iter().take(count));
    }

    fn varint(&mut self, value: u64) {
        let (encoded, count) = encode(value);
        self.bytes.extend(encoded.into_iter().take(count));
    }
}

/// Seven bits a byte, lowest first, the eighth saying that more follow: the bytes and how many.
fn encode(mut value: u64) -> ([u8; 10], usize) {
    let mut encoded = [0; 10];
    let mut count = 0;
    for byte in &mut encoded {
        count += 1;
        *byte = value as u8 & 0x7f;
        value >>= 7;
        if value == 0 {
            break;
        }
        *byte |= 0x80;
    }
    (encoded, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the encoding's documentation, and its ends.
    #[test]
    fn as_documented() {
        let written = |write: fn(&mut Message)| {
            let mut message = Message::default();
            write(&mut message);
            message.bytes
        };
        assert_eq!(written(|m| m.uint(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(written(|m| m.text(2, "testing")), b"\x12\x07testing");
        assert_eq!(
            written(|m| m.nested(3, |m| m.uint(1, 150))),
            [0x1a, 0x03, 0x08, 0x96, 0x01]
        );
        assert_eq!(written(|m| m.uint(58, 0)), [0xd0, 0x03, 0]);
        assert_eq!(written(|m| m.uint(1, u64::MAX)).len(), 11);
        let long = written(|m| m.nested(1, |m| m.text(1, &"x".repeat(300))));
        assert_eq!(&long[..6], [0x0a, 0xaf, 0x02, 0x0a, 0xac, 0x02]);
        assert_eq!(long.len(), 3 + 303);
    }
}
