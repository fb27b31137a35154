//! The column `Attr`: ordered names and values.
//!
//! In CSV it is `{name:value,name:value}` without any quoting, although values may contain commas (a shape, a list).
//! In SQLite it is a JSON object whose values are strings.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names and values in the order in which they are written. A name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attr(Vec<(String, String)>);

impl Attr {
    /// No names and values.
    pub const fn new() -> Self {
        Attr(Vec::new())
    }

    /// Whether there are no names and values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value of this name; `None` if the name does not occur.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// Adds a name and a value at the end, even if the name occurs already.
    pub fn push(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }

    /// Like [`Attr::push`], but returns the result, so that calls can be chained.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.push(name, value.to_string());
        self
    }

    /// Replaces all values of a name by one, at the place of the first. If the name does not occur, it is added at the
    /// end.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        let place = self.0.iter().position(|(own, _)| own == name);
        let Some(place) = place else {
            self.push(name, value);
            return;
        };
        let mut first = true;
        self.0
            .retain(|(own, _)| own != name || std::mem::take(&mut first));
        if let Some(entry) = self.0.get_mut(place) {
            entry.1 = value.into();
        }
    }

    /// Removes all values of a name.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| own != name);
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Reads the form of CSV files. `None`: the text does not have this form.
    ///
    /// A comma ends a value only where a name and a colon follow and no bracket is open. So `shape:[1,2]` has one
    /// value, and so has `inefficient_type:a,b`.
    pub fn from_csv(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text == "N/A" {
            return Some(Self::new());
        }
        let inner = text.strip_prefix('{')?.strip_suffix('}')?;
        let mut entries: Vec<(String, String)> = Vec::new();
        if inner.is_empty() {
            return Some(Self::new());
        }
        let mut open = 0_u32;
        for piece in inner.split(',') {
            match (name_of(piece), entries.last_mut()) {
                (Some((name, value)), _) if open == 0 => {
                    entries.push((name.to_owned(), value.to_owned()));
                }
                (_, Some((_, value))) => {
                    value.push(',');
                    value.push_str(piece);
                }
                (_, None) => return None,
            }
            for letter in piece.chars() {
                match letter {
                    '[' | '(' => open += 1,
                    ']' | ')' => open = open.saturating_sub(1),
                    _ => {}
                }
            }
        }
        Some(Attr(entries))
    }

    /// The form of CSV files, without the quotes around the cell. The text is empty if there are no names and values.
    pub fn to_csv(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut text = String::from("{");
        for (index, (name, value)) in self.0.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(name);
            text.push(':');
            text.push_str(value);
        }
        text.push('}');
        text
    }

    /// Reads the form of SQLite files. `None`: the text does not have this form.
    pub fn from_json(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text == "N/A" {
            return Some(Self::new());
        }
        // A database that somebody made from a CSV file has the form of CSV.
        serde_json::from_str(text)
            .ok()
            .or_else(|| Self::from_csv(text))
    }

    /// The form of SQLite files. The text is empty if there are no names and values.
    pub fn to_json(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        // Writing a map of strings as JSON cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Splits `name:value`. Text with a second colon right behind the first does not have this form: it is a name such as
/// `aten::add`.
fn name_of(piece: &str) -> Option<(&str, &str)> {
    let (name, value) = piece.split_once(':')?;
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    (begins && name.chars().all(letter) && !value.starts_with(':')).then_some((name, value))
}

impl Serialize for Attr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Attr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Attr;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attr, A::Error> {
                let mut attr = Attr::new();
                while let Some((name, value)) = map.next_entry::<String, serde_json::Value>()? {
                    attr.0.push((
                        name,
                        match value {
                            serde_json::Value::String(text) => text,
                            other => other.to_string(),
                        },
                    ));
                }
                Ok(attr)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_have_commas_of_their_own() {
        let text = "{size:512,type:PTA,dtype:torch.float,shape:[1,2,3],inefficient_type:early_allocation,late_deallocation}";
        let attr = Attr::from_csv(text).unwrap();
        assert_eq!(attr.get("shape"), Some("[1,2,3]"));
        assert_eq!(
            attr.get("inefficient_type"),
            Some("early_allocation,late_deallocation")
        );
        assert_eq!(attr.to_csv(), text);
        assert_eq!(Attr::from_json(&attr.to_json()).unwrap(), attr);
    }

    #[test]
    fn the_older_generation_has_empty_values() {
        let attr = Attr::from_csv("{addr:206,size:16384,owner:,MID:7}").unwrap();
        assert_eq!((attr.get("owner"), attr.get("MID")), (Some(""), Some("7")));
    }

    #[test]
    fn what_is_no_attr_is_refused() {
        for text in ["size:1", "{1:2}", "{", "[a:b]", "{::x}"] {
            assert_eq!(Attr::from_csv(text), None, "{text}");
        }
        assert_eq!(Attr::from_csv("{}"), Some(Attr::new()));
        assert_eq!(Attr::from_json("[1]"), None);
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        let mut attr = Attr::from_csv("{a:1,b:2,a:3,c:4}").unwrap();
        attr.set("a", "9");
        assert_eq!(attr.to_csv(), "{a:9,b:2,c:4}");
        attr.set("d", "5");
        assert_eq!(attr.to_csv(), "{a:9,b:2,c:4,d:5}");
    }
}
