//! What objects that give names say.

use std::cell::RefCell;
use std::io;

use memscope_memory::Memory;
use memscope_python::{Code, read_code, read_string};

use crate::answer::quoted;
use crate::heap::{Heap, Minor};
use crate::objects::{Found, Label};
use crate::pages::Pages;
use crate::shapes::{Kind, Part, Value};

/// Most characters of a name.
const LONGEST: usize = 200;
/// Most elements of a tuple that are shown, and how deep tuples in tuples are.
const MOST_ELEMENTS: u64 = 4;
const DEEPEST: u32 = 2;

/// The pages as memory that is read at addresses.
struct Seen<'p, 'a, M: ?Sized>(RefCell<&'p mut Pages<'a, M>>);

impl<M: Memory + ?Sized> Memory for Seen<'_, '_, M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let is_read = self.0.borrow_mut().bytes(address, buffer);
        is_read
            .then_some(())
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

impl<M: Memory + ?Sized> Heap<'_, M> {
    /// The text of the object at this address, if it is one. It may be cut.
    pub fn string(&mut self, address: u64) -> Option<Box<str>> {
        if let Some(known) = self.texts.get(&address) {
            return known.clone();
        }
        let is_text = self
            .type_of(address)
            .is_some_and(|number| self.types[number as usize].value == Value::Text);
        let text = is_text.then(|| self.read_text(address)).flatten();
        self.texts.insert(address, text.clone());
        text
    }

    fn read_text(&mut self, address: u64) -> Option<Box<str>> {
        let seen = Seen(RefCell::new(&mut self.pages));
        let text = read_string(&seen, &self.layout, address).ok()?;
        Some(shortened(text.text).into())
    }

    /// The file of the module at this address.
    pub fn file_of_module(&mut self, module: u64) -> Option<String> {
        let dict = self.pages.word(module + 16)?;
        let number = self.type_of(dict)?;
        let mut found = Found::new();
        self.references(dict, number, &mut found);
        let file = found.iter().find(|reference| {
            matches!(reference.label, Label::Key(key) if self.string(key).as_deref() == Some("__file__"))
        })?;
        self.string(file.target).map(Into::into)
    }

    /// Whether this is the name of a dictionary in which a module of `torch.nn` keeps what it consists of.
    pub fn is_part_of_module(&mut self, name: u64) -> bool {
        self.string(name)
            .and_then(|name| Part::of(&name, Kind::Dict))
            .is_some_and(Part::is_of_module)
    }

    /// The code object at this address.
    pub fn code(&mut self, address: u64) -> Option<Code> {
        if !self.is_code(address) {
            return None;
        }
        let seen = Seen(RefCell::new(&mut self.pages));
        read_code(&seen, &self.layout, address).ok()
    }

    /// The name of a local variable of a code object, by its number.
    pub fn name_of_local(&mut self, code: u64, mut number: u64) -> Option<Box<str>> {
        for table in self.tables_of_names(code) {
            if table == 0 {
                continue;
            }
            let count = self.length(table, Kind::Tuple)?;
            if number < count {
                let name = self.pages.word(self.items_of_tuple(table) + number * 8)?;
                return self.string(name);
            }
            number -= count;
        }
        None
    }

    /// The name of a variable that a closure has, by its number among the closure's `count` cells: free variables are a code object's last.
    pub fn name_of_free(&mut self, code: u64, number: u64, count: u64) -> Option<Box<str>> {
        let mut all = 0;
        for table in self.tables_of_names(code) {
            if table != 0 {
                all += self.length(table, Kind::Tuple)?;
            }
        }
        self.name_of_local(code, all.checked_sub(count)? + number)
    }

    /// A key of a dictionary as Python would write it: `'name'`, `7`, `('k', 7)`, `<Parameter>`. The second value is the text itself, if it
    /// is one.
    pub fn key(&mut self, address: u64) -> (String, Option<Box<str>>) {
        match self.string(address) {
            Some(text) => (quoted(&text), Some(text)),
            None => (self.shown(address, 0), None),
        }
    }

    fn shown(&mut self, address: u64, depth: u32) -> String {
        if let Some(text) = self.string(address) {
            return quoted(&text);
        }
        let Some(number) = self.type_of(address) else {
            return "<?>".to_owned();
        };
        let made = &self.types[number as usize];
        let (kind, value, name) = (made.kind, made.value, made.name.clone());
        if value == Value::Whole
            && let Some(whole) = self.whole(address)
        {
            return match (&*name, whole) {
                ("bool", 0) => "False".to_owned(),
                ("bool", _) => "True".to_owned(),
                _ => whole.to_string(),
            };
        }
        match (&*name, kind) {
            ("NoneType", _) => "None".to_owned(),
            ("float", _) => match self.pages.word(address + 16) {
                Some(bits) => format!("{:?}", f64::from_bits(bits)),
                None => "<float>".to_owned(),
            },
            (_, Kind::Tuple) if depth < DEEPEST => {
                let count = self.length(address, kind).unwrap_or(0);
                let mut shown = Vec::new();
                for number in 0..count.min(MOST_ELEMENTS) {
                    let element = self
                        .pages
                        .word(self.items_of_tuple(address) + number * 8)
                        .unwrap_or(0);
                    shown.push(self.shown(element, depth + 1));
                }
                let tail = match count {
                    1 => ",",
                    _ if count > MOST_ELEMENTS => ", …",
                    _ => "",
                };
                format!("({}{tail})", shown.join(", "))
            }
            _ => format!("<{name}>"),
        }
    }

    /// A whole number of at most two digits to the base 2^30.
    fn whole(&mut self, address: u64) -> Option<i64> {
        let tag = self.pages.word(address + 16)?;
        let (digits, is_negative) = match self.minor {
            Minor(12..) => (tag >> 3, tag & 3 == 2),
            Minor(_) => ((tag as i64).unsigned_abs(), (tag as i64) < 0),
        };
        let raw = match digits {
            0 => 0,
            1 | 2 => self.pages.word(address + 24)?,
            _ => return None,
        };
        let low = raw & 0x3fff_ffff;
        let high = if digits == 2 {
            raw >> 32 & 0x3fff_ffff
        } else {
            0
        };
        let size = (high << 30 | low) as i64;
        Some(if is_negative { -size } else { size })
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
