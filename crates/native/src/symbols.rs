//! Finds the names of functions for addresses in files of code.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use memscope_site::demangle;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};

use crate::image::Image;

/// Names are cut off after this many bytes, since those of C++ templates can be arbitrarily long.
const LONGEST: usize = 1024;

/// One function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Demangled name of the function; empty: the file has no name for it.
    pub name: String,
    /// Path of the source file; empty: there is no debugging information.
    pub file: String,
    /// Line in the source file; 0: not known.
    pub line: u32,
}

/// The functions that the code at an address belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The functions that were inlined there, innermost first, and last the function that they were inlined into. Never
    /// empty.
    pub functions: Vec<Function>,
}

/// Finds names of functions by symbols and debugging information, and keeps what it has read of the files.
pub struct Symbols {
    symbolizer: Symbolizer,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Symbols")
    }
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols {
            symbolizer: Symbolizer::builder()
                .enable_code_info(true)
                .enable_inlined_fns(true)
                .enable_demangling(false)
                .build(),
        }
    }
}

/// Folder where distributions install debugging information that they ship in files of its own.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// A path by which the symbols of the file can be read now. First choice: the file with its debugging information, by
/// build id. Second: its own path, if that still names the same file; then debugging information beside it is found,
/// and all processes share what was read. Last: the open file.
fn path(image: &Image) -> PathBuf {
    if let Some((folder, name)) = image.build_id().split_at_checked(2)
        && !name.is_empty()
    {
        let apart = PathBuf::from(DEBUG)
            .join(folder)
            .join(format!("{name}.debug"));
        if apart.is_file() {
            return apart;
        }
    }
    let same = |path: &std::path::Path| {
        let (Ok(there), Ok(here)) = (std::fs::metadata(path), image.file().metadata()) else {
            return false;
        };
        (there.dev(), there.ino(), there.len()) == (here.dev(), here.ino(), here.len())
    };
    if same(&image.path) {
        return image.path.clone();
    }
    PathBuf::from(format!("/proc/self/fd/{}", image.file().as_raw_fd()))
}

fn function(name: &str, info: Option<&CodeInfo<'_>>) -> Function {
    Function {
        name: demangle(name, LONGEST),
        file: info.map_or_else(String::new, |info| {
            info.to_path().to_string_lossy().into_owned()
        }),
        line: info.and_then(|info| info.line).unwrap_or(0),
    }
}

impl Symbols {
    /// Names for addresses of one file, which are given in its own numbering: one result for each address, in the same
    /// order. Where nothing is known the only function has an empty name.
    pub fn name(&self, image: &Arc<Image>, addresses: &[u64]) -> Vec<Named> {
        let nothing = || Named {
            functions: vec![Function::default()],
        };
        let mut elf = Elf::new(path(image));
        elf.debug_syms = true;
        let found = match self
            .symbolizer
            .symbolize(&Source::Elf(elf), Input::VirtOffset(addresses))
        {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(path = %image.path.display(), %error, "no symbols");
                return addresses.iter().map(|_| nothing()).collect();
            }
        };
        found
            .into_iter()
            .map(|symbol| match symbol {
                Symbolized::Sym(symbol) => {
                    let mut functions: Vec<Function> = symbol
                        .inlined
                        .iter()
                        .rev()
                        .map(|inlined| function(&inlined.name, inlined.code_info.as_ref()))
                        .collect();
                    functions.push(function(&symbol.name, symbol.code_info.as_deref()));
                    Named { functions }
                }
                Symbolized::Unknown(_) => nothing(),
            })
            .collect()
    }
}
