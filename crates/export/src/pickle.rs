//! The sink that writes a pickle (protocol 4) for PyTorch's viewer.
//!
//! Why we use no crate: `serde-pickle` writes every u64 from 2^31 on as a LONG1 of nine bytes, and the
//! viewer's reader makes a BigInt of a LONG1 longer than eight, which throws as soon as it is added
//! to a number: no address would work. It also has no memo, so a million entries would spell out
//! each key a million times (three times the size). What we need of the format fits into this file.
//!
//! The viewer reads the opcodes that we use and few others: no GLOBAL, REDUCE, BINBYTES, BINUNICODE8
//! or LONG4. It appends a batch by spreading it into a call's arguments, so a batch has at most 1000 elements,
//! as in CPython.

use crate::sink::Sink;
use std::collections::HashMap;
use std::io::{self, Write};

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const EMPTY_LIST: u8 = b']';
const SETITEMS: u8 = b'u';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const BINFLOAT: u8 = b'G';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

const PROTOCOL: u8 = 4;
const BATCH: u32 = 1000;

pub(crate) struct Pickle<W> {
    out: W,
    /// For each open list: number of elements since the last MARK.
    batches: Vec<u32>,
    /// Place in the reader's memo of each word written so far.
    memo: HashMap<&'static str, u32>,
    /// Memo places of other texts.
    names: HashMap<String, u32>,
    /// Memo places of shared values, by the number that [`Sink::share`] gave them.
    shared: HashMap<u32, u32>,
    /// Number of memo places in use.
    memoized: u32,
}

impl<W: Write> Pickle<W> {
    pub(crate) fn start(mut out: W) -> io::Result<Self> {
        out.write_all(&[PROTO, PROTOCOL])?;
        Ok(Self {
            out,
            batches: Vec::new(),
            memo: HashMap::new(),
            names: HashMap::new(),
            shared: HashMap::new(),
            memoized: 0,
        })
    }

    pub(crate) fn stop(mut self) -> io::Result<()> {
        self.op(STOP)
    }

    fn op(&mut self, opcode: u8) -> io::Result<()> {
        self.out.write_all(&[opcode])
    }

    /// Stores the value that was just written in the memo and returns its place there.
    fn memoize(&mut self) -> io::Result<u32> {
        self.op(MEMOIZE)?;
        let place = self.memoized;
        self.memoized += 1;
        Ok(place)
    }

    fn get(&mut self, place: u32) -> io::Result<()> {
        match u8::try_from(place) {
            Ok(place) => self.out.write_all(&[BINGET, place]),
            Err(_) => {
                self.op(LONG_BINGET)?;
                self.out.write_all(&place.to_le_bytes())
            }
        }
    }

    /// Writes an integer in as few bytes of two's complement as it needs.
    fn long(&mut self, value: i128) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        // Leading copies of the sign bit, without the one that is needed.
        let spare = match value < 0 {
            true => value.leading_ones(),
            false => value.leading_zeros(),
        } - 1;
        let len = bytes.len() - (spare / 8) as usize;
        self.out.write_all(&[LONG1, len as u8])?;
        self.out.write_all(bytes.get(..len).unwrap_or(&bytes))
    }
}

impl<W: Write> Sink for Pickle<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])
    }
    fn key(&mut self, key: &'static str) -> io::Result<()> {
        self.word(key)
    }
    fn end_dict(&mut self) -> io::Result<()> {
        self.op(SETITEMS)
    }
    fn begin_list(&mut self) -> io::Result<()> {
        self.batches.push(0);
        self.op(EMPTY_LIST)
    }
    fn item(&mut self) -> io::Result<()> {
        let Some(batch) = self.batches.last_mut() else {
            return Ok(());
        };
        match *batch {
            0 => {
                *batch = 1;
                self.op(MARK)
            }
            BATCH => {
                *batch = 1;
                self.out.write_all(&[APPENDS, MARK])
            }
            _ => {
                *batch += 1;
                Ok(())
            }
        }
    }
    fn end_list(&mut self) -> io::Result<()> {
        match self.batches.pop() {
            None | Some(0) => Ok(()),
            Some(_) => self.op(APPENDS),
        }
    }
    fn pair(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        self.int(first)?;
        self.int(second)?;
        self.op(TUPLE2)
    }
    fn int(&mut self, value: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.out.write_all(&[BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(value) {
            let [low, high] = short.to_le_bytes();
            return self.out.write_all(&[BININT2, low, high]);
        }
        match i64::try_from(value) {
            Ok(value) => self.signed(value),
            Err(_) => self.long(i128::from(value)),
        }
    }
    fn float(&mut self, value: f64) -> io::Result<()> {
        self.op(BINFLOAT)?;
        self.out.write_all(&value.to_be_bytes())
    }
    fn signed(&mut self, value: i64) -> io::Result<()> {
        match i32::try_from(value) {
            Ok(value) => {
                self.op(BININT)?;
                self.out.write_all(&value.to_le_bytes())
            }
            Err(_) => self.long(i128::from(value)),
        }
    }
    fn flag(&mut self, value: bool) -> io::Result<()> {
        self.op(if value { NEWTRUE } else { NEWFALSE })
    }
    fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(place) = self.memo.get(word) {
            return self.get(*place);
        }
        self.text(word)?;
        let place = self.memoize()?;
        self.memo.insert(word, place);
        Ok(())
    }
    fn name(&mut self, text: &str) -> io::Result<()> {
        if let Some(place) = self.names.get(text) {
            return self.get(*place);
        }
        self.text(text)?;
        let place = self.memoize()?;
        self.names.insert(text.to_owned(), place);
        Ok(())
    }
    fn refer(&mut self, number: u32) -> io::Result<bool> {
        match self.shared.get(&number) {
            Some(place) => self.get(*place).map(|()| true),
            None => Ok(false),
        }
    }
    fn share(&mut self, number: u32) -> io::Result<()> {
        let place = self.memoize()?;
        self.shared.insert(number, place);
        Ok(())
    }
    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Ok(len) = u8::try_from(text.len()) {
            self.out.write_all(&[SHORT_BINUNICODE, len])?;
        } else {
            let len = u32::try_from(text.len())
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            self.op(BINUNICODE)?;
            self.out.write_all(&len.to_le_bytes())?;
        }
        self.out.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn written(write: impl FnOnce(&mut Pickle<&mut Vec<u8>>)) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickle = Pickle::start(&mut out).unwrap();
        write(&mut pickle);
        pickle.stop().unwrap();
        out.split_off(2)
    }

    /// Expected are the bytes that CPython writes with protocol 4, without frames.
    #[test]
    fn integers_take_as_few_bytes_as_in_cpython() {
        let cases: [(u64, &[u8]); 7] = [
            (255, b"K\xff."),
            (256, b"M\x00\x01."),
            (65536, b"J\x00\x00\x01\x00."),
            (0x7fff_ffff, b"J\xff\xff\xff\x7f."),
            (0x8000_0000, b"\x8a\x05\x00\x00\x00\x80\x00."),
            (0x7f12_3456_7890, b"\x8a\x06\x90\x78\x56\x34\x12\x7f."),
            (u64::MAX, b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."),
        ];
        for (value, bytes) in cases {
            assert_eq!(written(|p| p.int(value).unwrap()), bytes, "{value:#x}");
        }
        let negative: [(i64, &[u8]); 4] = [
            (-1, b"J\xff\xff\xff\xff."),
            (-0x8000_0001, b"\x8a\x05\xff\xff\xff\x7f\xff."),
            (-0x80_0000_0000, b"\x8a\x05\x00\x00\x00\x00\x80."),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."),
        ];
        for (value, bytes) in negative {
            assert_eq!(written(|p| p.signed(value).unwrap()), bytes, "{value:#x}");
        }
    }

    #[test]
    fn floats_are_big_endian() {
        assert_eq!(
            written(|p| p.float(0.25).unwrap()),
            b"G\x3f\xd0\x00\x00\x00\x00\x00\x00."
        );
    }

    #[test]
    fn a_word_is_spelled_once() {
        let bytes = written(|p| {
            p.begin_list().unwrap();
            for _ in 0..3 {
                p.item().unwrap();
                p.word("addr").unwrap();
            }
            p.end_list().unwrap();
        });
        assert_eq!(bytes, b"](\x8c\x04addr\x94h\x00h\x00e.");
    }
}
