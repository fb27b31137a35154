//! The sink that writes JSON.

use crate::sink::Sink;
use std::io::{self, Write};

pub(crate) struct Json<W> {
    out: W,
    /// For each open list and dictionary: whether it has an element yet.
    filled: Vec<bool>,
}

impl<W: Write> Json<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            filled: Vec::new(),
        }
    }

    fn begin(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.filled.push(false);
        self.out.write_all(bracket)
    }

    fn end(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.filled.pop();
        self.out.write_all(bracket)
    }

    fn comma(&mut self) -> io::Result<()> {
        match self.filled.last_mut() {
            Some(filled) if !*filled => {
                *filled = true;
                Ok(())
            }
            _ => self.out.write_all(b","),
        }
    }
}

impl<W: Write> Sink for Json<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b"{")
    }
    fn key(&mut self, key: &'static str) -> io::Result<()> {
        self.comma()?;
        self.text(key)?;
        self.out.write_all(b":")
    }
    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b"}")
    }
    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b"[")
    }
    fn item(&mut self) -> io::Result<()> {
        self.comma()
    }
    fn end_list(&mut self) -> io::Result<()> {
        self.end(b"]")
    }
    fn pair(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        write!(self.out, "[{first},{second}]")
    }
    fn int(&mut self, value: u64) -> io::Result<()> {
        write!(self.out, "{value}")
    }
    fn float(&mut self, value: f64) -> io::Result<()> {
        // `{:?}` writes a whole number with a decimal point, so that Python reads it as a float.
        write!(self.out, "{value:?}")
    }
    fn signed(&mut self, value: i64) -> io::Result<()> {
        write!(self.out, "{value}")
    }
    fn flag(&mut self, value: bool) -> io::Result<()> {
        write!(self.out, "{value}")
    }
    fn word(&mut self, word: &'static str) -> io::Result<()> {
        self.text(word)
    }
    fn text(&mut self, text: &str) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut self.out, text)?)
    }
}
