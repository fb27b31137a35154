//! The bytes and the beginnings of values. Nothing here depends on the type that is read.

use crate::Error;
use rmp::Marker;
use std::io::{self, Read};

/// How many times lists and maps may contain one another, so that a damaged file cannot exhaust the stack. `rmp-serde` has this limit too.
const LEVELS: u32 = 1024;
/// Bytes of a string for which room is made at a time: a damaged length is not believed before its bytes are there.
const PIECE: usize = 1 << 16;

/// The beginning of a value: the whole value where it is a number, otherwise its length in bytes or entries.
#[derive(Clone, Copy)]
pub(crate) enum Head {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Text(u32),
    Bytes(u32),
    List(u32),
    Map(u32),
    Extension(u32),
}

impl Head {
    /// An error: the type wanted another kind of value.
    #[cold]
    pub(crate) fn refused<T>(self, wanted: &'static str) -> Result<T, Error> {
        let found = match self {
            Head::Nil => "nil",
            Head::Bool(_) => "a boolean",
            Head::Unsigned(_) | Head::Signed(_) => "an integer",
            Head::F32(_) | Head::F64(_) => "a floating-point number",
            Head::Text(_) => "a string",
            Head::Bytes(_) => "a byte string",
            Head::List(_) => "a list",
            Head::Map(_) => "a map",
            Head::Extension(_) => "an extension",
        };
        Err(Error::Kind { found, wanted })
    }
}

/// Bytes of MessagePack.
pub(crate) struct Reader<'r> {
    from: &'r mut dyn Read,
    /// Bytes that were read ahead; those before `at` are used up.
    ahead: Vec<u8>,
    at: usize,
    /// How much is read ahead at a time.
    most_ahead: usize,
    /// The string or byte string that was read last.
    text: Vec<u8>,
    levels_left: u32,
}

impl<'r> Reader<'r> {
    pub(crate) fn new(from: &'r mut dyn Read, most_ahead: usize) -> Reader<'r> {
        Reader {
            from,
            ahead: Vec::with_capacity(most_ahead),
            at: 0,
            most_ahead,
            text: Vec::new(),
            levels_left: LEVELS,
        }
    }

    /// The bytes that are there, at least one.
    fn there(&mut self) -> Result<&[u8], Error> {
        if self.at == self.ahead.len() {
            self.refill()?;
        }
        Ok(&self.ahead[self.at..])
    }

    #[cold]
    fn refill(&mut self) -> Result<(), Error> {
        self.at = 0;
        self.ahead.resize(self.most_ahead, 0);
        let read = loop {
            match self.from.read(&mut self.ahead) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.ahead.truncate(*read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(Error::Ended),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Read(error)),
        }
    }

    /// The kind of the next value, which stays to be read.
    pub(crate) fn next_kind(&mut self) -> Result<Marker, Error> {
        Ok(Marker::from_u8(self.there()?[0]))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let byte = self.there()?[0];
        self.at += 1;
        Ok(byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        match self.ahead.get(self.at..self.at + N) {
            Some(there) => {
                bytes.copy_from_slice(there);
                self.at += N;
            }
            None => {
                for byte in &mut bytes {
                    *byte = self.byte()?;
                }
            }
        }
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u32, Error> {
        Ok(u16::from_be_bytes(self.bytes()?).into())
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    /// Reads the beginning of the next value.
    pub(crate) fn head(&mut self) -> Result<Head, Error> {
        Ok(match Marker::from_u8(self.byte()?) {
            Marker::Null => Head::Nil,
            Marker::False => Head::Bool(false),
            Marker::True => Head::Bool(true),
            Marker::FixPos(value) => Head::Unsigned(value.into()),
            Marker::U8 => Head::Unsigned(self.byte()?.into()),
            Marker::U16 => Head::Unsigned(self.u16()?.into()),
            Marker::U32 => Head::Unsigned(self.u32()?.into()),
            Marker::U64 => Head::Unsigned(u64::from_be_bytes(self.bytes()?)),
            Marker::FixNeg(value) => Head::Signed(value.into()),
            Marker::I8 => Head::Signed(i8::from_be_bytes(self.bytes()?).into()),
            Marker::I16 => Head::Signed(i16::from_be_bytes(self.bytes()?).into()),
            Marker::I32 => Head::Signed(i32::from_be_bytes(self.bytes()?).into()),
            Marker::I64 => Head::Signed(i64::from_be_bytes(self.bytes()?)),
            Marker::F32 => Head::F32(f32::from_be_bytes(self.bytes()?)),
            Marker::F64 => Head::F64(f64::from_be_bytes(self.bytes()?)),
            Marker::FixStr(length) => Head::Text(length.into()),
            Marker::Str8 => Head::Text(self.byte()?.into()),
            Marker::Str16 => Head::Text(self.u16()?),
            Marker::Str32 => Head::Text(self.u32()?),
            Marker::Bin8 => Head::Bytes(self.byte()?.into()),
            Marker::Bin16 => Head::Bytes(self.u16()?),
            Marker::Bin32 => Head::Bytes(self.u32()?),
            Marker::FixArray(length) => Head::List(length.into()),
            Marker::Array16 => Head::List(self.u16()?),
            Marker::Array32 => Head::List(self.u32()?),
            Marker::FixMap(length) => Head::Map(length.into()),
            Marker::Map16 => Head::Map(self.u16()?),
            Marker::Map32 => Head::Map(self.u32()?),
            Marker::FixExt1 => Head::Extension(1),
            Marker::FixExt2 => Head::Extension(2),
            Marker::FixExt4 => Head::Extension(4),
            Marker::FixExt8 => Head::Extension(8),
            Marker::FixExt16 => Head::Extension(16),
            Marker::Ext8 => Head::Extension(self.byte()?.into()),
            Marker::Ext16 => Head::Extension(self.u16()?),
            Marker::Ext32 => Head::Extension(self.u32()?),
            Marker::Reserved => {
                return Err(Error::Kind {
                    found: "a byte that begins no value",
                    wanted: "a value",
                });
            }
        })
    }

    /// Reads the bytes of a byte string of this length.
    pub(crate) fn byte_string(&mut self, length: u32) -> Result<&[u8], Error> {
        let mut left = length as usize;
        self.text.clear();
        while left > 0 {
            let there = self.there()?.len();
            let from = self.at;
            if there < left && left >= self.most_ahead {
                // What is longer than what is read ahead goes where it belongs without a stop.
                self.text.extend_from_slice(&self.ahead[from..]);
                self.at = self.ahead.len();
                left -= there;
                self.straight(&mut left)?;
                continue;
            }
            let now = there.min(left);
            self.text.extend_from_slice(&self.ahead[from..from + now]);
            self.at += now;
            left -= now;
        }
        Ok(&self.text)
    }

    /// Reads the rest of a long byte string, of which `left` bytes are missing.
    fn straight(&mut self, left: &mut usize) -> Result<(), Error> {
        while *left > 0 {
            let (from, now) = (self.text.len(), PIECE.min(*left));
            self.text.resize(from + now, 0);
            self.from
                .read_exact(&mut self.text[from..])
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => Error::Ended,
                    _ => Error::Read(error),
                })?;
            *left -= now;
        }
        Ok(())
    }

    /// Reads a string of this length.
    pub(crate) fn text(&mut self, length: u32) -> Result<&str, Error> {
        str::from_utf8(self.byte_string(length)?).map_err(|_| Error::NotUtf8)
    }

    /// Passes over the next value, with all that it contains.
    pub(crate) fn skip(&mut self) -> Result<(), Error> {
        let mut values: u64 = 1;
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Text(length) | Head::Bytes(length) => self.pass(length.into())?,
                // A byte before the data says of which type it is.
                Head::Extension(length) => self.pass(u64::from(length) + 1)?,
                Head::List(entries) => values += u64::from(entries),
                Head::Map(entries) => values += 2 * u64::from(entries),
                _ => {}
            }
        }
        Ok(())
    }

    fn pass(&mut self, mut bytes: u64) -> Result<(), Error> {
        while bytes > 0 {
            let there = self.there()?.len();
            let now = there.min(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.at += now;
            bytes -= now as u64;
        }
        Ok(())
    }

    /// A list or a map begins.
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        let left = self.levels_left.checked_sub(1);
        self.levels_left = left.ok_or(Error::TooDeep(LEVELS))?;
        Ok(())
    }

    /// A list or a map ends, and `left` of its entries were not taken.
    pub(crate) fn leave(&mut self, left: u32) -> Result<(), Error> {
        self.levels_left += 1;
        match left {
            0 => Ok(()),
            left => Err(Error::TooMany { left }),
        }
    }
}
