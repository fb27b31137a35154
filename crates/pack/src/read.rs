//! The reader.

use crate::error::Error;
use rmp::Marker;
use serde::de::{
    DeserializeOwned, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::io::{self, Read};

/// Bytes of a long input that are asked for at once.
const PIECE: usize = 1 << 16;
/// So many lists, maps and options may be inside of each other. The state of a ledger has about twenty.
const DEPTH: u16 = 256;

/// Reads what is in these bytes.
///
/// # Errors
/// If they are not what was written for this type.
pub fn from_slice<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, Error> {
    let at_once = bytes.len().clamp(1, PIECE);
    read_by(&mut bytes, at_once)
}

/// Reads what comes from here. It may take more bytes than those that it needs.
///
/// # Errors
/// If reading fails, or if the bytes are not what was written for this type.
pub fn read<T: DeserializeOwned>(from: &mut dyn Read) -> Result<T, Error> {
    read_by(from, PIECE)
}

fn read_by<T: DeserializeOwned>(from: &mut dyn Read, at_once: usize) -> Result<T, Error> {
    T::deserialize(&mut Deserializer {
        source: Source {
            from,
            at_once,
            piece: Vec::new(),
            at: 0,
            long: Vec::new(),
        },
        seen: None,
        depth: DEPTH,
    })
}

/// What is read from.
struct Source<'a> {
    from: &'a mut dyn Read,
    /// Bytes that are asked for at once; at least one.
    at_once: usize,
    /// Bytes that are here already.
    piece: Vec<u8>,
    /// Bytes of the piece that were taken.
    at: usize,
    /// What was longer than the rest of its piece.
    long: Vec<u8>,
}

impl Source<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, Error> {
        loop {
            if let Some(byte) = self.piece.get(self.at) {
                self.at += 1;
                return Ok(*byte);
            }
            self.more()?;
        }
    }

    /// Brings the next piece. There is at least one byte in it.
    #[cold]
    fn more(&mut self) -> Result<(), Error> {
        self.piece.resize(self.at_once, 0);
        self.at = 0;
        let came = loop {
            match self.from.read(&mut self.piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.piece.truncate(*came.as_ref().unwrap_or(&0));
        match came {
            Ok(0) => Err(Error::io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::io(error)),
        }
    }

    /// A number of so many bytes, the greatest first.
    fn number(&mut self, bytes: u32) -> Result<u64, Error> {
        (0..bytes).try_fold(0, |number, _| Ok(number << 8 | u64::from(self.byte()?)))
    }

    /// The next bytes. As many are kept as really come.
    fn take(&mut self, length: u32) -> Result<&[u8], Error> {
        let length = length as usize;
        if self.piece.len() - self.at >= length {
            let taken = self.piece.get(self.at..self.at + length);
            self.at += length;
            return Ok(taken.unwrap_or_default());
        }
        self.long.clear();
        while self.long.len() < length {
            if self.at == self.piece.len() {
                self.more()?;
            }
            let rest = self.piece.get(self.at..).unwrap_or_default();
            let wanted = rest.len().min(length - self.long.len());
            self.long
                .extend_from_slice(rest.get(..wanted).unwrap_or_default());
            self.at += wanted;
        }
        Ok(&self.long)
    }
}

/// What stands before a value, or is one.
#[derive(Clone, Copy)]
enum Head {
    Nothing,
    Bool(bool),
    Unsigned(u64),
    /// A number below zero, unless whoever wrote it did so for one that is not.
    Signed(i64),
    Float(f64),
    Text(u32),
    Bytes(u32),
    List(u32),
    Map(u32),
}

impl Head {
    fn is(self) -> &'static str {
        match self {
            Head::Nothing => "nothing",
            Head::Bool(_) => "a truth value",
            Head::Unsigned(_) => "a number",
            Head::Signed(_) => "a number with a sign",
            Head::Float(_) => "a number with a fraction",
            Head::Text(_) => "a text",
            Head::Bytes(_) => "bytes",
            Head::List(_) => "a list",
            Head::Map(_) => "a map",
        }
    }
}

/// The reader of one value and of all in it.
pub struct Deserializer<'a> {
    source: Source<'a>,
    /// A head that was read and not used yet.
    seen: Option<Head>,
    /// How many lists and maps may still be inside of each other.
    depth: u16,
}

impl Deserializer<'_> {
    fn head(&mut self) -> Result<Head, Error> {
        if let Some(head) = self.seen.take() {
            return Ok(head);
        }
        let source = &mut self.source;
        Ok(match Marker::from_u8(source.byte()?) {
            Marker::Null => Head::Nothing,
            Marker::False => Head::Bool(false),
            Marker::True => Head::Bool(true),
            Marker::FixPos(number) => Head::Unsigned(number.into()),
            Marker::U8 => Head::Unsigned(source.number(1)?),
            Marker::U16 => Head::Unsigned(source.number(2)?),
            Marker::U32 => Head::Unsigned(source.number(4)?),
            Marker::U64 => Head::Unsigned(source.number(8)?),
            Marker::FixNeg(number) => Head::Signed(number.into()),
            Marker::I8 => Head::Signed((source.number(1)? as i8).into()),
            Marker::I16 => Head::Signed((source.number(2)? as i16).into()),
            Marker::I32 => Head::Signed((source.number(4)? as i32).into()),
            Marker::I64 => Head::Signed(source.number(8)? as i64),
            Marker::F32 => Head::Float(f32::from_bits(source.number(4)? as u32).into()),
            Marker::F64 => Head::Float(f64::from_bits(source.number(8)?)),
            Marker::FixStr(length) => Head::Text(length.into()),
            Marker::Str8 => Head::Text(source.number(1)? as u32),
            Marker::Str16 => Head::Text(source.number(2)? as u32),
            Marker::Str32 => Head::Text(source.number(4)? as u32),
            Marker::Bin8 => Head::Bytes(source.number(1)? as u32),
            Marker::Bin16 => Head::Bytes(source.number(2)? as u32),
            Marker::Bin32 => Head::Bytes(source.number(4)? as u32),
            Marker::FixArray(length) => Head::List(length.into()),
            Marker::Array16 => Head::List(source.number(2)? as u32),
            Marker::Array32 => Head::List(source.number(4)? as u32),
            Marker::FixMap(length) => Head::Map(length.into()),
            Marker::Map16 => Head::Map(source.number(2)? as u32),
            Marker::Map32 => Head::Map(source.number(4)? as u32),
            _ => return Err(Error::other("a value", "an extension")),
        })
    }

    fn truth(&mut self) -> Result<bool, Error> {
        match self.head()? {
            Head::Bool(truth) => Ok(truth),
            other => Err(Error::other("a truth value", other.is())),
        }
    }

    fn unsigned(&mut self) -> Result<u64, Error> {
        match self.head()? {
            Head::Unsigned(number) => Ok(number),
            Head::Signed(number @ 0..) => Ok(number as u64),
            other => Err(Error::other("a number without a sign", other.is())),
        }
    }

    fn signed(&mut self) -> Result<i64, Error> {
        match self.head()? {
            Head::Unsigned(number @ 0..=0x7fff_ffff_ffff_ffff) => Ok(number as i64),
            Head::Signed(number) => Ok(number),
            other => Err(Error::other("a number of 64 bits", other.is())),
        }
    }

    fn float(&mut self) -> Result<f64, Error> {
        match self.head()? {
            Head::Float(number) => Ok(number),
            Head::Unsigned(number) => Ok(number as f64),
            Head::Signed(number) => Ok(number as f64),
            other => Err(Error::other("a number", other.is())),
        }
    }

    fn text(&mut self) -> Result<&str, Error> {
        match self.head()? {
            Head::Text(length) => self.text_of(length),
            other => Err(Error::other("a text", other.is())),
        }
    }

    fn text_of(&mut self, length: u32) -> Result<&str, Error> {
        std::str::from_utf8(self.source.take(length)?)
            .map_err(|_| Error::other("a text", "what is none in UTF-8"))
    }

    fn bytes(&mut self) -> Result<&[u8], Error> {
        match self.head()? {
            Head::Bytes(length) => self.source.take(length),
            other => Err(Error::other("bytes", other.is())),
        }
    }

    /// The length of a list, and whether its elements are single bytes: so short numbers of tuples are written by `rmp-serde`.
    fn list(&mut self) -> Result<(u32, bool), Error> {
        match self.head()? {
            Head::List(length) => Ok((length, false)),
            Head::Bytes(length) => Ok((length, true)),
            other => Err(Error::other("a list", other.is())),
        }
    }

    fn map(&mut self) -> Result<u32, Error> {
        match self.head()? {
            Head::Map(length) => Ok(length),
            other => Err(Error::other("a map", other.is())),
        }
    }

    fn nothing(&mut self) -> Result<(), Error> {
        match self.head()? {
            Head::Nothing | Head::List(0) => Ok(()),
            other => Err(Error::other("nothing", other.is())),
        }
    }

    fn deeper(&mut self) -> Result<(), Error> {
        self.depth = self
            .depth
            .checked_sub(1)
            .ok_or_else(|| Error::other("a value", "one that is nested too deeply"))?;
        Ok(())
    }

    /// Reads a value that nobody wants.
    fn skip(&mut self) -> Result<(), Error> {
        let mut values = 1u64;
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Text(length) | Head::Bytes(length) => {
                    self.source.take(length)?;
                }
                // These sums stay far below 2^64: each summand takes a byte of the input and is below 2^33.
                Head::List(length) => values = values.saturating_add(length.into()),
                Head::Map(length) => values = values.saturating_add(2 * u64::from(length)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// All elements must have been taken, or what was read is not what was written.
fn whole(left: u32) -> Result<(), Error> {
    match left {
        0 => Ok(()),
        _ => Err(Error::other("a list of another length", "a longer one")),
    }
}

macro_rules! numbers {
    ($($name:ident $read:ident $visit:ident)*) => {$(
        #[inline]
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.$read()?)
        }
    )*};
}

impl<'de> serde::Deserializer<'de> for &mut Deserializer<'_> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    numbers! {
        deserialize_bool truth visit_bool
        deserialize_u8 unsigned visit_u64
        deserialize_u16 unsigned visit_u64
        deserialize_u32 unsigned visit_u64
        deserialize_u64 unsigned visit_u64
        deserialize_i8 signed visit_i64
        deserialize_i16 signed visit_i64
        deserialize_i32 signed visit_i64
        deserialize_i64 signed visit_i64
        deserialize_f32 float visit_f64
        deserialize_f64 float visit_f64
        deserialize_char text visit_str
        deserialize_str text visit_str
        deserialize_string text visit_str
        deserialize_bytes bytes visit_bytes
        deserialize_byte_buf bytes visit_bytes
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Nothing => visitor.visit_unit(),
            Head::Bool(truth) => visitor.visit_bool(truth),
            Head::Unsigned(number) => visitor.visit_u64(number),
            Head::Signed(number) => visitor.visit_i64(number),
            Head::Float(number) => visitor.visit_f64(number),
            Head::Text(length) => visitor.visit_str(self.text_of(length)?),
            Head::Bytes(length) => visitor.visit_bytes(self.source.take(length)?),
            head @ Head::List(_) => {
                self.seen = Some(head);
                self.deserialize_seq(visitor)
            }
            head @ Head::Map(_) => {
                self.seen = Some(head);
                self.deserialize_map(visitor)
            }
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Nothing => visitor.visit_none(),
            head => {
                self.seen = Some(head);
                visitor.visit_some(self)
            }
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.nothing()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (left, single) = self.list()?;
        self.deeper()?;
        let mut elements = Elements {
            from: &mut *self,
            left,
            single,
        };
        let value = visitor.visit_seq(&mut elements)?;
        whole(elements.left)?;
        self.depth += 1;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.map()?;
        self.deeper()?;
        let mut elements = Elements {
            from: &mut *self,
            left,
            single: false,
        };
        let value = visitor.visit_map(&mut elements)?;
        whole(elements.left)?;
        self.depth += 1;
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let has_content = match self.head()? {
            Head::Map(1) => true,
            name @ Head::Text(_) => {
                self.seen = Some(name);
                false
            }
            other => return Err(Error::other("the name of a variant", other.is())),
        };
        visitor.visit_enum(Variant {
            from: self,
            has_content,
        })
    }

    /// The name of a field or a variant, or of a field its number.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Text(length) => visitor.visit_str(self.text_of(length)?),
            Head::Unsigned(number) => visitor.visit_u64(number),
            other => Err(Error::other("a name", other.is())),
        }
    }
}

/// What is in a list or in a map.
struct Elements<'a, 'b> {
    from: &'a mut Deserializer<'b>,
    left: u32,
    /// Whether each element is a single byte.
    single: bool,
}

impl Elements<'_, '_> {
    /// Goes to the next element, if there is one.
    fn next(&mut self) -> Result<bool, Error> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(false);
        };
        self.left = left;
        if self.single {
            self.from.seen = Some(Head::Unsigned(self.from.source.byte()?.into()));
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        match self.next()? {
            true => seed.deserialize(&mut *self.from).map(Some),
            false => Ok(None),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        match self.next()? {
            true => seed.deserialize(&mut *self.from).map(Some),
            false => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.from)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

/// A variant of an enumeration: its name alone, or a map of its name to what is in it.
struct Variant<'a, 'b> {
    from: &'a mut Deserializer<'b>,
    has_content: bool,
}

impl Variant<'_, '_> {
    fn content(&mut self) -> Result<(), Error> {
        match self.has_content {
            true => Ok(()),
            false => Err(Error::other(
                "a variant with something in it",
                "its name alone",
            )),
        }
    }
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name = seed.deserialize(&mut *self.from)?;
        Ok((name, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.has_content {
            true => self.from.nothing(),
            false => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(mut self, seed: T) -> Result<T::Value, Error> {
        self.content()?;
        seed.deserialize(self.from)
    }

    fn tuple_variant<V: Visitor<'de>>(mut self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.content()?;
        serde::Deserializer::deserialize_seq(self.from, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        mut self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.content()?;
        serde::Deserializer::deserialize_map(self.from, visitor)
    }
}
