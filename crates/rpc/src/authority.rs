//! Accepts clients that send the socket's path as the authority of their calls.
//!
//! Every HTTP/2 request carries `:authority`, the host that it is meant for. A Unix socket has no host, so gRPC's C
//! core (on which Python, C++, Ruby and PHP are built) sends the socket's path instead, percent-encoded. The HTTP/2
//! library under the server considers that a broken request and resets the stream before any of our code sees it. The
//! server does not need the authority, because the caller is known from the socket. So its value is replaced before
//! that library reads it.
//!
//! This needs no HPACK library, because nothing is decoded: a header block is a sequence of fields whose lengths can be
//! read without decoding their contents (RFC 7541, section 6). The new value has the same number of letters as the old
//! one, so the compression tables of the client and of the HTTP/2 library keep the same size and the same indices.

use crate::caller::Peer;
use crate::io::Io;
use crate::share::Place;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Length of the text that a client sends before its first frame: 24 bytes (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length of a frame's head: length (3 bytes), type, flags, stream (4 bytes).
const FRAME_HEAD: usize = 9;
/// Longest payload of a frame that a server accepts by default. This server does not change the default.
const LONGEST: usize = 16_384;
/// Type of the frame that begins a header block.
const HEADERS: u8 = 1;
/// Flags of such a frame: it has padding; it has a priority.
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// Index of the name `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY_NAME: &[u8] = b":authority";
/// How long the holder of a certificate may take for the first bytes. Until they have come there is no HTTP/2 by which a
/// silent client could be pinged.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);
/// The letter that is repeated to make the new value.
const LETTER: u8 = b'm';

/// A connection. At the Unix socket, the authority of every request is replaced by a valid host name.
pub(crate) struct Connection {
    stream: Io,
    /// `None`: nothing is replaced.
    translator: Option<Translator>,
    /// When the first bytes must have come, and how many of them are missing. `None`: they have come.
    begins: Option<(Pin<Box<Sleep>>, usize)>,
    /// Bytes that were translated; the first `read` of them have been read.
    ready: Vec<u8>,
    read: usize,
    peer: Peer,
    /// Given back when the connection is closed.
    _place: Place,
    /// When the connection is closed, whatever the client does.
    end: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// `within`: the time after which the connection is closed.
    pub(crate) fn new(stream: Io, peer: Peer, place: Place, within: Option<Duration>) -> Self {
        let is_local = matches!(stream, Io::Unix(_));
        Connection {
            stream,
            begins: (!is_local).then(|| (Box::pin(sleep(BEGINS_WITHIN)), PREFACE)),
            peer,
            _place: place,
            end: within.map(|within| Box::pin(sleep(within))),
            translator: is_local.then(Translator::default),
            ready: Vec::new(),
            read: 0,
        }
    }
}

impl Connection {
    fn read_as_it_is(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some((until, _)) = &mut self.begins
            && until.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        if let Some((_, missing)) = &mut self.begins {
            *missing = missing.saturating_sub(into.filled().len() - before);
            if *missing == 0 {
                self.begins = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(end) = &mut this.end
            && end.as_mut().poll(context).is_ready()
        {
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        let Some(translator) = &mut this.translator else {
            return this.read_as_it_is(context, into);
        };
        while this.read == this.ready.len() {
            this.ready.clear();
            this.read = 0;
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                // End of the stream. An incomplete frame is passed on unchanged.
                translator.finish(&mut this.ready);
                if this.ready.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            translator.push(buffer.filled(), &mut this.ready);
        }
        let rest = &this.ready[this.read..];
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        this.read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Finds the frames in the bytes of a client, and replaces the authority in them.
struct Translator {
    /// Number of bytes that are passed on unchanged before the head of the next frame.
    passing: usize,
    /// The part of the current frame that has arrived: of a frame that begins a header block the whole frame is
    /// collected, of others only the head.
    frame: Vec<u8>,
}

impl Default for Translator {
    fn default() -> Self {
        Translator {
            passing: PREFACE,
            frame: Vec::new(),
        }
    }
}

impl Translator {
    /// Takes the next bytes, and appends to `out` what can be passed on.
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.passing > 0 {
                let (now, rest) = bytes.split_at(self.passing.min(bytes.len()));
                out.extend_from_slice(now);
                self.passing -= now.len();
                bytes = rest;
                continue;
            }
            let wanted = match length_of(&self.frame) {
                Some(length) => FRAME_HEAD + length,
                None => FRAME_HEAD,
            };
            let (now, rest) = bytes.split_at((wanted - self.frame.len()).min(bytes.len()));
            self.frame.extend_from_slice(now);
            bytes = rest;
            self.advance(out);
        }
    }

    /// Passes on the collected bytes, if enough of the frame has arrived.
    fn advance(&mut self, out: &mut Vec<u8>) {
        let Some(length) = length_of(&self.frame) else {
            return;
        };
        if self.frame[3] != HEADERS || length > LONGEST {
            self.finish(out);
            self.passing = length;
        } else if self.frame.len() == FRAME_HEAD + length {
            match translated(&self.frame) {
                Some(frame) => out.extend_from_slice(&frame),
                None => out.extend_from_slice(&self.frame),
            }
            self.frame.clear();
        }
    }

    /// Passes on the collected bytes unchanged.
    fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.frame);
    }
}

/// Length of a frame's payload; `None` until its whole head has arrived.
fn length_of(frame: &[u8]) -> Option<usize> {
    let length = frame.get(..FRAME_HEAD)?;
    Some(usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]))
}

/// A whole frame of type HEADERS, with the authority replaced. `None`: the frame must stay as it is.
fn translated(frame: &[u8]) -> Option<Vec<u8>> {
    let flags = frame[4];
    let mut start = FRAME_HEAD;
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(*frame.get(start)?);
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let end = frame.len().checked_sub(padding)?;
    let mut new = frame[..start.min(frame.len())].to_vec();
    new.extend(translated_block(frame.get(start..end)?)?);
    new.extend_from_slice(&frame[end..]);
    let length = new.len() - FRAME_HEAD;
    if length > LONGEST {
        return None;
    }
    new[..3].copy_from_slice(&[(length >> 16) as u8, (length >> 8) as u8, length as u8]);
    Some(new)
}

/// A header block, or the beginning of one, with the authority replaced. `None`: it has no authority whose value is a
/// literal.
fn translated_block(block: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader { block, at: 0 };
    while let Some(field) = reader.field() {
        let Some(value) = field.authority else {
            continue;
        };
        let count = match value.huffman {
            true => symbols(value.bytes)?,
            false => value.bytes.len(),
        };
        let mut new = block[..field.value_at].to_vec();
        put_length(count, &mut new);
        new.extend(std::iter::repeat_n(LETTER, count));
        new.extend_from_slice(&block[reader.at..]);
        return Some(new);
    }
    None
}

/// Reads the fields of a header block one after the other.
struct Reader<'a> {
    block: &'a [u8],
    at: usize,
}

/// The part of a field that matters here.
struct Field<'a> {
    /// Value of the field, if the field is an authority whose value is a literal.
    authority: Option<Text<'a>>,
    /// Offset in the block at which the value begins (at its length).
    value_at: usize,
}

/// A string literal in a header block.
struct Text<'a> {
    bytes: &'a [u8],
    /// Whether the bytes are Huffman-coded.
    huffman: bool,
}

impl<'a> Reader<'a> {
    /// The next field. `None`: the block ends here, perhaps in the middle of a field.
    fn field(&mut self) -> Option<Field<'a>> {
        let first = *self.block.get(self.at)?;
        // The first bits of a field say what kind it is, and so how many bits its index has (RFC 7541, section 6).
        let bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = self.number(bits)?;
        if matches!(bits, 7 | 5) {
            // An entry of the table, or a change of the table's size: no string literal follows.
            return Some(Field {
                authority: None,
                value_at: self.at,
            });
        }
        let is_authority = match index {
            0 => {
                let name = self.text()?;
                !name.huffman && name.bytes == AUTHORITY_NAME
            }
            index => index == AUTHORITY_INDEX,
        };
        let value_at = self.at;
        let value = self.text()?;
        Some(Field {
            authority: is_authority.then_some(value),
            value_at,
        })
    }

    /// Reads an integer whose first part is the lowest `bits` bits of the next byte (RFC 7541, section 5.1).
    fn number(&mut self, bits: u32) -> Option<usize> {
        let mask = (1 << bits) - 1;
        let mut value = usize::from(*self.block.get(self.at)? & mask);
        self.at += 1;
        if value < usize::from(mask) {
            return Some(value);
        }
        for shift in (0..=21).step_by(7) {
            let byte = *self.block.get(self.at)?;
            self.at += 1;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<Text<'a>> {
        let huffman = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.number(7)?;
        let bytes = self.block.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(Text { bytes, huffman })
    }
}

/// Writes the length of a string literal that is not Huffman-coded.
fn put_length(length: usize, out: &mut Vec<u8>) {
    if length < 0x7f {
        out.push(length as u8);
        return;
    }
    out.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Number of codes of each length, from 5 bits on, in HPACK's Huffman code (RFC 7541, appendix B). The code is
/// canonical: codes of the same length are consecutive, and the codes of the next length begin where they end. So the
/// lengths suffice to count letters.
const CODES: [u32; 26] = [
    10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];
const SHORTEST: usize = 5;

/// Number of letters in a Huffman-coded string. `None`: it is not validly coded.
fn symbols(packed: &[u8]) -> Option<usize> {
    let bits = packed.len() * 8;
    let bit = |at: usize| u32::from(packed[at / 8] >> (7 - at % 8) & 1);
    let mut at = 0;
    let mut count = 0;
    'next: while at < bits {
        let mut code = 0;
        let mut first = 0;
        for length in 1..SHORTEST + CODES.len() {
            if at + length > bits {
                // The remaining bits are padding, if they are fewer than 8.
                return (bits - at < 8).then_some(count);
            }
            code = code << 1 | bit(at + length - 1);
            first <<= 1;
            let codes = length.checked_sub(SHORTEST).map_or(0, |place| CODES[place]);
            if code < first + codes {
                at += length;
                count += 1;
                continue 'next;
            }
            first += codes;
        }
        return None;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use httlib_hpack::{Decoder, Encoder};
    use proptest::prelude::*;

    /// A field to encode: name, value, flags of the encoder.
    type Written = (Vec<u8>, Vec<u8>, u8);

    /// The header fields that gRPC's C core sends for a call with this authority.
    fn call(authority: &str) -> Vec<Written> {
        let how = Encoder::WITH_INDEXING;
        [
            (":scheme", "http"),
            (":authority", authority),
            (":path", "/memscope.v1.Memscope/GetStatus"),
            ("te", "trailers"),
        ]
        .map(|(name, value)| (name.into(), value.into(), how))
        .into()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = payload.len();
        let mut frame = vec![(length >> 16) as u8, (length >> 8) as u8, length as u8];
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend_from_slice(payload);
        frame
    }

    /// Sends bytes through a translator, in pieces of these sizes, which are repeated until all bytes are sent.
    fn sent(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut translator = Translator::default();
        let mut out = Vec::new();
        let mut rest = bytes;
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*size).min(rest.len()));
            translator.push(now, &mut out);
            rest = later;
        }
        translator.finish(&mut out);
        out
    }

    /// What a server reads: the fields of all header frames.
    fn understood(mut bytes: &[u8]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut decoder = Decoder::default();
        let mut calls = Vec::new();
        bytes = &bytes[PREFACE..];
        while let Some(length) = length_of(bytes) {
            let (frame, rest) = bytes.split_at(FRAME_HEAD + length);
            bytes = rest;
            if frame[3] != HEADERS {
                continue;
            }
            let mut payload = &frame[FRAME_HEAD..];
            if frame[4] & PADDED != 0 {
                payload = &payload[1..payload.len() - usize::from(payload[0])];
            }
            if frame[4] & PRIORITY != 0 {
                payload = &payload[5..];
            }
            let mut fields = Vec::new();
            decoder.decode(&mut payload.to_vec(), &mut fields).unwrap();
            calls.push(
                fields
                    .into_iter()
                    .map(|(name, value, _)| (name, value))
                    .collect(),
            );
        }
        calls
    }

    #[test]
    fn a_path_becomes_a_name() {
        let mut encoder = Encoder::default();
        let mut block = Vec::new();
        for field in call("%2Frun%2Fmemscope%2Fmemscoped.sock") {
            encoder.encode(field, &mut block).unwrap();
        }
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(HEADERS, 0x04, &block));
        let calls = understood(&sent(&bytes, &[3]));
        assert_eq!(calls[0][1].0, AUTHORITY_NAME);
        assert_eq!(calls[0][1].1, [LETTER; 34]);
        assert_eq!(calls[0][2].1, b"/memscope.v1.Memscope/GetStatus");
    }

    #[test]
    fn a_name_that_is_spelled_out_is_found() {
        let mut block = vec![0x40, AUTHORITY_NAME.len() as u8];
        block.extend_from_slice(AUTHORITY_NAME);
        block.extend([3, b'%', b'2', b'F']);
        let new = translated_block(&block).unwrap();
        assert_eq!(new[..12], block[..12]);
        assert_eq!(new[12..], [3, LETTER, LETTER, LETTER]);
    }

    proptest! {
        #[test]
        fn letters_are_counted_as_the_code_has_them(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut packed = Vec::new();
            httlib_hpack::Encoder::default()
                .encode((b"x".to_vec(), text.clone(), Encoder::HUFFMAN_VALUE), &mut packed)
                .unwrap();
            let mut reader = Reader { block: &packed, at: 0 };
            reader.number(4).unwrap();
            reader.text().unwrap();
            let value = reader.text().unwrap();
            prop_assert!(value.huffman);
            prop_assert_eq!(symbols(value.bytes), Some(text.len()));
        }

        /// Through many calls of one connection, in which the client refers to what it sent before, everything but the
        /// authority arrives as it was sent.
        #[test]
        fn all_else_arrives_as_it_was_sent(
            calls in proptest::collection::vec(
                (
                    proptest::collection::vec(
                        (
                            prop_oneof![Just(":authority".to_owned()), "[a-z]{1,12}", Just(":path".to_owned())],
                            "[%-~]{0,200}",
                            0_u8..8,
                        ),
                        0..8,
                    ),
                    0_u8..4,
                    0_usize..40,
                ),
                1..12,
            ),
            sizes in proptest::collection::vec(1_usize..200, 1..5),
        ) {
            let mut encoder = Encoder::default();
            let mut bytes = vec![b'P'; PREFACE];
            let mut expected = Vec::new();
            for (fields, kind, padding) in calls {
                let mut block = Vec::new();
                let mut once = false;
                let mut wanted = Vec::new();
                for (name, value, how) in fields {
                    let is_authority = name == ":authority";
                    if is_authority && once {
                        continue;
                    }
                    once |= is_authority;
                    let mut flags = 0;
                    for (bit, flag) in [(1, Encoder::WITH_INDEXING), (2, Encoder::HUFFMAN_VALUE), (4, Encoder::BEST_FORMAT)] {
                        if how & bit != 0 {
                            flags |= flag;
                        }
                    }
                    wanted.push((name.clone().into_bytes(), value.clone().into_bytes()));
                    encoder.encode((name.into_bytes(), value.into_bytes(), flags), &mut block).unwrap();
                }
                expected.push(wanted);
                let mut payload = Vec::new();
                let mut flags = 0x04;
                if kind & 1 != 0 {
                    flags |= PADDED;
                    payload.push(padding as u8);
                }
                if kind & 2 != 0 {
                    flags |= PRIORITY;
                    payload.extend([0; 5]);
                }
                payload.extend_from_slice(&block);
                if kind & 1 != 0 {
                    payload.extend(vec![0; padding]);
                }
                bytes.extend(frame(HEADERS, flags, &payload));
                bytes.extend(frame(0, 0, b"some data"));
            }
            let arrived = understood(&sent(&bytes, &sizes));
            prop_assert_eq!(arrived.len(), expected.len());
            for (arrived, expected) in arrived.iter().zip(&expected) {
                prop_assert_eq!(arrived.len(), expected.len());
                for (arrived, expected) in arrived.iter().zip(expected) {
                    prop_assert_eq!(&arrived.0, &expected.0);
                    if arrived.0 == AUTHORITY_NAME {
                        prop_assert_eq!(&arrived.1, &vec![LETTER; expected.1.len()]);
                    } else {
                        prop_assert_eq!(&arrived.1, &expected.1);
                    }
                }
            }
        }

        /// Whatever is sent, nothing is lost and nothing panics.
        #[test]
        fn what_is_no_http_goes_through(bytes in proptest::collection::vec(any::<u8>(), 0..400), size in 1_usize..50) {
            let out = sent(&bytes, &[size]);
            prop_assert!(bytes.len() < PREFACE + FRAME_HEAD || !out.is_empty());
            prop_assert_eq!(&out[..bytes.len().min(PREFACE)], &bytes[..bytes.len().min(PREFACE)]);
        }
    }
}
