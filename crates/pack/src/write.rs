//! The writer.

use crate::error::Error;
use rmp::encode;
use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use std::io::{self, Write};

/// So many bytes are handed on at once.
const PIECE: usize = 1 << 16;

/// Writes a value with the names of its fields. What was written without a field, or with one more, can be read.
///
/// # Errors
/// If writing fails, or if the length of a list is not known before its elements are.
pub fn write_named(to: &mut dyn Write, value: &impl Serialize) -> Result<(), Error> {
    write(to, value, true)
}

/// A value with the names of its fields.
///
/// # Errors
/// If the length of a list is not known before its elements are.
pub fn to_vec_named(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    write(&mut bytes, value, true)?;
    Ok(bytes)
}

/// A value with numbers in place of the names of fields: for a reader that is of the same program.
///
/// # Errors
/// If the length of a list is not known before its elements are.
pub fn to_vec(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    write(&mut bytes, value, false)?;
    Ok(bytes)
}

fn write(to: &mut dyn Write, value: &impl Serialize, names: bool) -> Result<(), Error> {
    let mut writer = Serializer {
        to,
        piece: Vec::new(),
        names,
    };
    value.serialize(&mut writer)?;
    writer.hand_on()
}

/// The writer of one value and of all in it.
pub struct Serializer<'a> {
    to: &'a mut dyn Write,
    /// What was not handed on yet.
    piece: Vec<u8>,
    /// Whether fields have their names, and not their numbers.
    names: bool,
}

impl Serializer<'_> {
    #[cold]
    fn hand_on(&mut self) -> Result<(), Error> {
        self.to.write_all(&self.piece).map_err(Error::io)?;
        self.piece.clear();
        Ok(())
    }

    /// After something was put into the piece: hands it on if it is full.
    fn done<T, E: Into<io::Error>>(&mut self, put: Result<T, E>) -> Result<(), Error> {
        put.map_err(|error| Error::io(error.into()))?;
        match self.piece.len() {
            0..PIECE => Ok(()),
            _ => self.hand_on(),
        }
    }

    fn nothing(&mut self) -> Result<(), Error> {
        let put = encode::write_nil(&mut self.piece);
        self.done(put)
    }

    fn truth(&mut self, truth: bool) -> Result<(), Error> {
        let put = encode::write_bool(&mut self.piece, truth);
        self.done(put)
    }

    fn unsigned(&mut self, number: u64) -> Result<(), Error> {
        let put = encode::write_uint(&mut self.piece, number);
        self.done(put)
    }

    fn signed(&mut self, number: i64) -> Result<(), Error> {
        let put = encode::write_sint(&mut self.piece, number);
        self.done(put)
    }

    fn float(&mut self, number: f64) -> Result<(), Error> {
        let put = encode::write_f64(&mut self.piece, number);
        self.done(put)
    }

    fn text(&mut self, text: &str) -> Result<(), Error> {
        length(Some(text.len()))?;
        let put = encode::write_str(&mut self.piece, text);
        self.done(put)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        length(Some(bytes.len()))?;
        let put = encode::write_bin(&mut self.piece, bytes);
        self.done(put)
    }

    fn list(&mut self, count: Option<usize>) -> Result<(), Error> {
        let put = encode::write_array_len(&mut self.piece, length(count)?);
        self.done(put)
    }

    fn map(&mut self, count: Option<usize>) -> Result<(), Error> {
        let put = encode::write_map_len(&mut self.piece, length(count)?);
        self.done(put)
    }

    /// The beginning of a variant with something in it.
    fn variant(&mut self, name: &'static str) -> Result<(), Error> {
        self.map(Some(1))?;
        self.text(name)
    }
}

/// A length as MessagePack has it.
fn length(count: Option<usize>) -> Result<u32, Error> {
    count
        .and_then(|count| u32::try_from(count).ok())
        .ok_or_else(|| Error::other("a length of 32 bits", "none"))
}

macro_rules! values {
    ($($name:ident $of:ty => $put:ident)*) => {$(
        fn $name(self, value: $of) -> Result<(), Error> {
            self.$put(value.into())
        }
    )*};
}

impl<'a, 'b> serde::Serializer for &'a mut Serializer<'b> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Fields<'a, 'b>;
    type SerializeStructVariant = Fields<'a, 'b>;

    fn is_human_readable(&self) -> bool {
        false
    }

    values! {
        serialize_bool bool => truth
        serialize_u8 u8 => unsigned
        serialize_u16 u16 => unsigned
        serialize_u32 u32 => unsigned
        serialize_u64 u64 => unsigned
        serialize_i8 i8 => signed
        serialize_i16 i16 => signed
        serialize_i32 i32 => signed
        serialize_i64 i64 => signed
        serialize_f32 f32 => float
        serialize_f64 f64 => float
        serialize_str &str => text
        serialize_bytes &[u8] => bytes
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.text(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.nothing()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.nothing()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.nothing()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<(), Error> {
        self.text(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.variant(name)?;
        value.serialize(self)
    }

    fn serialize_seq(self, count: Option<usize>) -> Result<Self, Error> {
        self.list(count)?;
        Ok(self)
    }

    fn serialize_tuple(self, count: usize) -> Result<Self, Error> {
        self.list(Some(count))?;
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, count: usize) -> Result<Self, Error> {
        self.list(Some(count))?;
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        count: usize,
    ) -> Result<Self, Error> {
        self.variant(name)?;
        self.list(Some(count))?;
        Ok(self)
    }

    fn serialize_map(self, count: Option<usize>) -> Result<Self, Error> {
        self.map(count)?;
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, count: usize) -> Result<Fields<'a, 'b>, Error> {
        self.map(Some(count))?;
        Ok(Fields { to: self, next: 0 })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        count: usize,
    ) -> Result<Fields<'a, 'b>, Error> {
        self.variant(name)?;
        self.map(Some(count))?;
        Ok(Fields { to: self, next: 0 })
    }
}

macro_rules! elements {
    ($($of:ident $put:ident)*) => {$(
        impl $of for &mut Serializer<'_> {
            type Ok = ();
            type Error = Error;

            fn $put<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        }
    )*};
}

elements! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
    SerializeTupleVariant serialize_field
}

impl SerializeMap for &mut Serializer<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

/// The fields of a structure.
pub struct Fields<'a, 'b> {
    to: &'a mut Serializer<'b>,
    /// Number of the next field.
    next: u64,
}

impl Fields<'_, '_> {
    fn name(&mut self, name: &'static str) -> Result<(), Error> {
        let number = self.next;
        self.next += 1;
        match self.to.names {
            true => self.to.text(name),
            false => self.to.unsigned(number),
        }
    }
}

macro_rules! fields {
    ($($of:ident)*) => {$(
        impl $of for Fields<'_, '_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Error> {
                self.name(name)?;
                value.serialize(&mut *self.to)
            }

            fn skip_field(&mut self, _: &'static str) -> Result<(), Error> {
                self.next += 1;
                Ok(())
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        }
    )*};
}

fields! {
    SerializeStruct
    SerializeStructVariant
}
