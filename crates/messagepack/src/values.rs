//! serde's view of the bytes. These functions exist once for each type that is read: what they can leave to [`Reader`], they do.

use crate::Error;
use crate::read::{Head, Reader};
use rmp::Marker;
use serde::de::{self, DeserializeSeed, Deserializer, Visitor};

/// The entries of a list or a map that are still to be read.
struct Entries<'a, 'r> {
    reader: &'a mut Reader<'r>,
    left: u32,
}

impl Reader<'_> {
    fn list<'de, V: Visitor<'de>>(&mut self, length: u32, visitor: V) -> Result<V::Value, Error> {
        self.enter()?;
        let mut entries = Entries {
            reader: self,
            left: length,
        };
        let value = visitor.visit_seq(&mut entries)?;
        let left = entries.left;
        self.leave(left)?;
        Ok(value)
    }

    fn map<'de, V: Visitor<'de>>(&mut self, length: u32, visitor: V) -> Result<V::Value, Error> {
        self.enter()?;
        let mut entries = Entries {
            reader: self,
            left: length,
        };
        let value = visitor.visit_map(&mut entries)?;
        let left = entries.left;
        self.leave(left)?;
        Ok(value)
    }

    fn integer<'de, V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            other => other.refused("an integer"),
        }
    }

    fn float<'de, V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::F32(value) => visitor.visit_f32(value),
            Head::F64(value) => visitor.visit_f64(value),
            // A field that was an integer in an older file.
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            other => other.refused("a number"),
        }
    }
}

/// Functions that read what others read.
macro_rules! as_others {
    ($($name:ident($($unused:ty),*) is $read:ident;)*) => {$(
        fn $name<V: Visitor<'de>>(self, $(_: $unused,)* visitor: V) -> Result<V::Value, Error> {
            self.$read(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Reader<'_> {
    type Error = Error;

    as_others! {
        deserialize_u8() is integer;
        deserialize_u16() is integer;
        deserialize_u32() is integer;
        deserialize_u64() is integer;
        deserialize_i8() is integer;
        deserialize_i16() is integer;
        deserialize_i32() is integer;
        deserialize_i64() is integer;
        deserialize_f32() is float;
        deserialize_f64() is float;
        deserialize_char() is deserialize_str;
        deserialize_string() is deserialize_str;
        deserialize_identifier() is deserialize_str;
        deserialize_byte_buf() is deserialize_bytes;
        deserialize_unit_struct(&'static str) is deserialize_unit;
        deserialize_tuple(usize) is deserialize_seq;
        deserialize_tuple_struct(&'static str, usize) is deserialize_seq;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(value) => visitor.visit_bool(value),
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            Head::F32(value) => visitor.visit_f32(value),
            Head::F64(value) => visitor.visit_f64(value),
            Head::Text(length) => visitor.visit_str(self.text(length)?),
            Head::Bytes(length) => visitor.visit_bytes(self.byte_string(length)?),
            Head::List(length) => self.list(length, visitor),
            Head::Map(length) => self.map(length, visitor),
            other @ Head::Extension(_) => other.refused("a value that a type can have"),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Bool(value) => visitor.visit_bool(value),
            other => other.refused("a boolean"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Text(length) => visitor.visit_str(self.text(length)?),
            other => other.refused("a string"),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Bytes(length) => visitor.visit_bytes(self.byte_string(length)?),
            other => other.refused("a byte string"),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.next_kind()? == Marker::Null {
            self.head()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            // `rmp-serde` writes a structure without fields as an empty list.
            Head::Nil | Head::List(0) => visitor.visit_unit(),
            other => other.refused("nil"),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::List(length) => self.list(length, visitor),
            other => other.refused("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Map(length) => self.map(length, visitor),
            other => other.refused("a map"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.head()? {
            Head::Map(length) => self.map(length, visitor),
            // Written without the names of its fields.
            Head::List(length) => self.list(length, visitor),
            other => other.refused("a structure"),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        // A variant without content is its name, any other is a map of its name to its content.
        let has_content = match self.next_kind()? {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => match self.head()? {
                Head::Map(1) => true,
                other => return other.refused("a map with one entry"),
            },
            _ => false,
        };
        self.enter()?;
        let value = visitor.visit_enum(Variant {
            reader: self,
            has_content,
        })?;
        self.leave(0)?;
        Ok(value)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl<'de> de::SeqAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

impl<'de> de::MapAccess<'de> for Entries<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

/// A variant of an enumeration.
struct Variant<'a, 'r> {
    reader: &'a mut Reader<'r>,
    /// Something follows the variant's name.
    has_content: bool,
}

impl Variant<'_, '_> {
    /// An error where the name stands alone, but the type has content for it.
    fn needs_content(&self) -> Result<(), Error> {
        let found = "a variant without content";
        let wanted = "a variant with content";
        match self.has_content {
            true => Ok(()),
            false => Err(Error::Kind { found, wanted }),
        }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.has_content {
            true => de::Deserialize::deserialize(self.reader),
            false => Ok(()),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        self.needs_content()?;
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.needs_content()?;
        self.reader.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.needs_content()?;
        self.reader.deserialize_struct("", fields, visitor)
    }
}
