//! What a shared library exports, under which symbol versions, and how its functions begin.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use object::elf::FileHeader64;
use object::read::elf::{ElfFile, FileHeader, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

/// The exported functions of a library: name to symbol version.
pub type Exports = BTreeMap<String, Option<String>>;

/// Lists the functions that `library` exports.
pub fn exported_functions(library: &Path) -> Result<Exports> {
    let data = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    exports_of(&data).with_context(|| format!("cannot read the symbols of {}", library.display()))
}

fn exports_of(data: &[u8]) -> Result<Exports> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?;
    let mut exports = Exports::new();
    for (index, symbol) in symbols.enumerate() {
        let kind = symbol.st_type();
        let is_function = kind == object::elf::STT_FUNC || kind == object::elf::STT_GNU_IFUNC;
        if symbol.is_undefined(endian) || symbol.is_local() || !is_function {
            continue;
        }
        let name = std::str::from_utf8(symbols.symbol_name(endian, symbol)?)?.to_owned();
        let version = match &versions {
            Some(table) => table.version(table.version_index(endian, index).index())?,
            None => None,
        };
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        exports.insert(name, version);
    }
    Ok(exports)
}

/// A symbol that a library imports from another.
pub struct Import {
    /// Name of the symbol.
    pub name: String,
    /// Library that should define the symbol, and its version there, if the import says so.
    pub version: Option<(String, String)>,
}

/// Returns the names of the libraries that `library` needs, and the symbols that it imports.
pub fn imports(library: &Path) -> Result<(Vec<String>, Vec<Import>)> {
    let file =
        fs::File::open(library).with_context(|| format!("cannot read {}", library.display()))?;
    // These libraries are large, so only the parts that are needed are read.
    let data = ReadCache::new(file);
    imports_of(&data).with_context(|| format!("cannot read the symbols of {}", library.display()))
}

fn imports_of<'data, R: ReadRef<'data>>(data: R) -> Result<(Vec<String>, Vec<Import>)> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut needed = Vec::new();
    let table = sections.dynamic_table(endian, data)?;
    for entry in &table {
        if entry.tag == object::elf::DT_NEEDED {
            needed.push(text(table.string(entry)?));
        }
    }
    let mut imports = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        let name = text(symbols.symbol_name(endian, symbol)?);
        if !symbol.is_undefined(endian) || name.is_empty() {
            continue;
        }
        let version = match &versions {
            Some(table) => table.version(table.version_index(endian, index).index())?,
            None => None,
        };
        let version =
            version.and_then(|version| Some((text(version.file()?), text(version.name()))));
        imports.push(Import { name, version });
    }
    Ok((needed, imports))
}

/// The global functions that an object file defines.
pub fn defined_functions(object: &Path) -> Result<Vec<String>> {
    let data = fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*data)?;
    let mut names = Vec::new();
    for symbol in file.symbols() {
        if symbol.is_definition() && symbol.is_global() && symbol.kind() == SymbolKind::Text {
            names.push(symbol.name()?.to_owned());
        }
    }
    Ok(names)
}

/// The first `count` bytes of an exported function's code.
pub fn first_bytes(library: &Path, function: &str, count: usize) -> Result<Vec<u8>> {
    let data = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*data)?;
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.is_definition() && symbol.name() == Ok(function))
        .with_context(|| format!("{} does not export {function}", library.display()))?;
    let section = file.section_by_index(
        symbol
            .section_index()
            .context("a function without a section")?,
    )?;
    let code = section.data_range(symbol.address(), count as u64)?;
    Ok(code.context("a function outside of its section")?.to_vec())
}
