//! The operations that both encodings, pickle and JSON, offer to the walk over a report.

use std::io;

/// Writes a tree of dictionaries, lists and scalars in order. A call of `key` comes before each value of a dictionary,
/// a call of `item` before each element of a list.
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
    /// Writes one of our own few words. An encoding may write it once and refer to it later.
    fn word(&mut self, word: &'static str) -> io::Result<()>;
    /// Writes any text.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// Writes a text that is likely to come again. An encoding may write it once and refer to it later.
    fn name(&mut self, text: &str) -> io::Result<()> {
        self.text(text)
    }
    /// Refers to the value that was [`Sink::share`]d under this number before. Returns false if there is none, or if
    /// the encoding has no references: then the caller writes the value and shares it.
    fn refer(&mut self, _number: u32) -> io::Result<bool> {
        Ok(false)
    }
    /// Gives this number to the value that was just written, for [`Sink::refer`].
    fn share(&mut self, _number: u32) -> io::Result<()> {
        Ok(())
    }

    fn empty_list(&mut self) -> io::Result<()> {
        self.begin_list()?;
        self.end_list()
    }
}
