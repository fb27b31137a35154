//! What both encodings offer to the walk over a report.

use std::io;

/// Takes a tree of dictionaries, lists and scalars in order. A value of a dictionary is preceded by
/// its `key`, an element of a list by `item`.
pub(crate) trait Sink {
    fn begin_dict(&mut self) -> io::Result<()>;
    fn key(&mut self, key: &'static str) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    fn item(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    fn pair(&mut self, pair: (u64, u64)) -> io::Result<()>;
    fn int(&mut self, value: u64) -> io::Result<()>;
    fn float(&mut self, value: f64) -> io::Result<()>;
    fn signed(&mut self, value: i64) -> io::Result<()>;
    fn flag(&mut self, value: bool) -> io::Result<()>;
    /// One of our own few words; may be written once and referred to.
    fn word(&mut self, word: &'static str) -> io::Result<()>;
    /// Any text.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// A text that is likely to come again; may be written once and referred to.
    fn name(&mut self, text: &str) -> io::Result<()> {
        self.text(text)
    }
    /// Refers to a value that was written before under this number; says no where it was not, or where the
    /// encoding has no such thing: then it is written, and [`Sink::share`]d.
    fn refer(&mut self, _number: u32) -> io::Result<bool> {
        Ok(false)
    }
    /// The value just written has this number.
    fn share(&mut self, _number: u32) -> io::Result<()> {
        Ok(())
    }

    fn empty_list(&mut self) -> io::Result<()> {
        self.begin_list()?;
        self.end_list()
    }
}
