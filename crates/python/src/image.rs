//! Mapped files that contain an interpreter, and what their symbols and sections say about it.

use std::ffi::OsString;
use std::path::PathBuf;

use memscope_site::elf::{Budget, Elf, ElfError, FileBytes, ReadAt, SymbolTable};
use memscope_site::mapped::{Mapped, MappedObject, OpenError};
use memscope_site::place::Machine;

use crate::error::PythonError;
use crate::version::{self, Version};

/// Number of bytes of `PyGILState_GetThisThreadState` that are read at most.
const FUNCTION: u64 = 96;
/// A section of constants that is larger than this, in bytes, is not searched for versions.
const MAX_CONSTANTS: u64 = 1 << 26;

/// Address and size of a symbol, in bytes. Where the type is used says whether the address is the file's or the
/// process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SymbolPlace {
    pub address: u64,
    pub size: u64,
}

/// What a file says about an interpreter in it. All addresses are the file's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// `_PyRuntime`, from its symbol or from the section `.PyRuntime`.
    pub runtime: Option<SymbolPlace>,
    /// Whether `runtime` comes from the section.
    pub by_section: bool,
    /// `Py_Version`.
    pub version: Option<SymbolPlace>,
    /// `PyCode_Type`.
    pub code_type: Option<SymbolPlace>,
    /// `PyGILState_GetThisThreadState`.
    pub this_thread: Option<SymbolPlace>,
    /// The first bytes of that function.
    pub this_thread_code: Vec<u8>,
    /// Texts among the file's constants that look like the `PY_VERSION` of a supported minor version.
    pub version_texts: Vec<Version>,
    /// Whether the file defines the C interface of an interpreter, or has the section `.PyRuntime`.
    pub is_python: bool,
}

const RUNTIME: &[u8] = b"_PyRuntime";
const VERSION: &[u8] = b"Py_Version";
const CODE_TYPE: &[u8] = b"PyCode_Type";
const THIS_THREAD: &[u8] = b"PyGILState_GetThisThreadState";
const INTERFACE: &[u8] = b"Py_InitializeEx";

impl Evidence {
    /// Searches a file. With `thoroughly` also its symbols that are not exported are searched, of which some libraries
    /// have half a million.
    pub fn read<R: ReadAt + ?Sized>(
        elf: &Elf<'_, R>,
        thoroughly: bool,
    ) -> Result<Evidence, ElfError> {
        let mut found = Evidence::default();
        if let Some(table) = elf.exported_symbols()? {
            found.symbols(&table);
        }
        if found.runtime.is_none()
            && thoroughly
            && let Some(table) = elf.all_symbols()?
        {
            found.symbols(&table);
        }
        if found.runtime.is_none()
            && let Some(section) = elf.section(".PyRuntime")
        {
            found.by_section = true;
            found.is_python = true;
            found.runtime = Some(SymbolPlace {
                address: section.address,
                size: section.size,
            });
        }
        if let Some(place) = found.this_thread
            && let Some((offset, rest)) = elf.code_offset_of(place.address)
        {
            found.this_thread_code =
                elf.bytes_at(offset, rest.min(FUNCTION), "the code of a function")?;
        }
        if found.runtime.is_some()
            && found.version.is_none()
            && let Some(section) = elf.section(".rodata")
            && section.size <= MAX_CONSTANTS
        {
            found.version_texts = version_texts(&elf.bytes_at(
                section.offset,
                section.size,
                "the section of constants",
            )?);
        }
        Ok(found)
    }

    fn symbols(&mut self, table: &SymbolTable) {
        let like = |rest: &[u8]| rest.starts_with(b"_Py") || rest.starts_with(b"Py");
        for symbol in table.defined_like(like) {
            let place = Some(SymbolPlace {
                address: symbol.address,
                size: symbol.size,
            });
            match symbol.name {
                RUNTIME => self.runtime = place,
                VERSION => self.version = place,
                CODE_TYPE => self.code_type = place,
                THIS_THREAD => self.this_thread = place,
                INTERFACE => self.is_python = true,
                _ => {}
            }
        }
    }
}

/// All different versions among the texts between NULs that read `3.N.M…`, with a supported minor version.
fn version_texts(constants: &[u8]) -> Vec<Version> {
    let mut found = Vec::new();
    for text in constants.split(|byte| *byte == 0) {
        if text.len() < 16
            && text.starts_with(b"3.")
            && let Ok(text) = std::str::from_utf8(text)
            && let Some(version) = Version::from_text(text)
            && (version::FIRST..=version::LAST).contains(&version.minor)
            && !found.contains(&version)
        {
            found.push(version);
        }
    }
    found
}

/// A mapped file that contains an interpreter. `runtime` is an address in the process; `evidence` has the file's own.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub path: OsString,
    /// The path, as shown in messages.
    pub display: String,
    pub open_path: PathBuf,
    pub bias: u64,
    pub runtime: SymbolPlace,
    pub evidence: Evidence,
    /// Minor version in the file's name.
    pub named: Option<u8>,
}

impl Image {
    /// Turns an address of the file into the address in the process.
    pub fn place(&self, place: Option<SymbolPlace>) -> Option<u64> {
        place.map(|place| place.address.wrapping_add(self.bias))
    }
}

/// All mapped files that contain an interpreter. Files that are named like Python, and the program itself, are searched
/// first; other files (an interpreter in a library of another name) are opened only if those contain none.
pub(crate) fn images(pid: u32, mapped: &Mapped) -> Result<Vec<Image>, PythonError> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let likely = |object: &MappedObject| {
        let name = object.file_name();
        name.starts_with("python")
            || name.starts_with("libpython")
            || program.as_deref().is_some_and(|path| path == object.path)
    };
    let mut stripped = None;
    let budget = Budget::of_process();
    for first in [true, false] {
        let mut images = Vec::new();
        for object in &mapped.objects {
            if !object.is_executable() || likely(object) != first {
                continue;
            }
            let named = first && object.file_name().starts_with("libpython3.");
            match image(pid, &budget, object, first) {
                Ok(Some(Interpreter::Image(image))) => images.push(*image),
                Ok(Some(Interpreter::Stripped)) => stripped = Some(object.display_path()),
                Ok(None) => {}
                // Only an error of a file that is named like the interpreter's library counts: other files may be
                // anything.
                Err(error) if named => return Err(error),
                Err(_) => {}
            }
        }
        if !images.is_empty() {
            return Ok(images);
        }
    }
    match stripped {
        Some(path) => Err(PythonError::Stripped {
            path,
            missing: "_PyRuntime in .dynsym and .symtab, and the section .PyRuntime",
        }),
        None => Err(PythonError::NoInterpreter),
    }
}

enum Interpreter {
    Image(Box<Image>),
    Stripped,
}

fn image(
    pid: u32,
    budget: &Budget,
    object: &MappedObject,
    likely: bool,
) -> Result<Option<Interpreter>, PythonError> {
    let path = object.display_path();
    let opened = match object.open(pid) {
        Ok(opened) => opened,
        Err(OpenError::NotRegular) => return Ok(None),
        Err(source) => return Err(PythonError::Open { path, source }),
    };
    let file = |source| PythonError::File {
        path: path.clone(),
        source,
    };
    let elf: Elf<'_, FileBytes> = Elf::read_within(&opened.bytes, budget).map_err(file)?;
    if Machine::from_elf(elf.machine) != Machine::this() {
        return Ok(None);
    }
    let evidence = Evidence::read(&elf, likely).map_err(file)?;
    let named = named(&object.file_name());
    let (Some(place), Some(bias)) = (evidence.runtime, object.bias(&elf)) else {
        // A launcher is named like the library that it loads, but defines nothing of an interpreter.
        return Ok(evidence.is_python.then_some(Interpreter::Stripped));
    };
    Ok(Some(Interpreter::Image(Box::new(Image {
        display: object.display_path(),
        path: object.path.clone(),
        open_path: opened.open_path,
        bias,
        runtime: SymbolPlace {
            address: place.address.wrapping_add(bias),
            size: place.size,
        },
        evidence,
        named,
    }))))
}

/// The minor version in a file name such as `libpython3.11.so.1.0` or `python3.9`.
fn named(file: &str) -> Option<u8> {
    let (_, rest) = file.split_once("python3.")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_among_constants() {
        let constants = b"\0abc\x003.9.2\x003.9.2\x003.1.4\0x3.9.2\x003.10.4+\x003.9\0";
        let found: Vec<String> = version_texts(constants)
            .iter()
            .map(Version::to_string)
            .collect();
        assert_eq!(found, ["3.9.2", "3.10.4"]);
    }

    #[test]
    fn versions_in_names() {
        assert_eq!(named("libpython3.11.so.1.0"), Some(11));
        assert_eq!(named("python3.9"), Some(9));
        assert_eq!(named("libpython3.9d.so"), Some(9));
        assert_eq!(named("python3"), None);
        assert_eq!(named("blender"), None);
    }
}
