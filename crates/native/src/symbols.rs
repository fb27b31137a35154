//! Names of addresses in files of code.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};

use crate::image::Image;

/// Names are cut here: those of C++ templates have no end.
const LONGEST: usize = 1024;

/// One function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its name, demangled. Empty: the file does not tell.
    pub name: String,
    /// Source file, where there is debugging information.
    pub file: String,
    /// Line in it; 0: not known.
    pub line: u32,
}

/// What is at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The function, and before it those that were inlined into it, innermost first. Never empty.
    pub functions: Vec<Function>,
}

/// Finds names.
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
                .enable_demangling(true)
                .build(),
        }
    }
}

/// Where distributions put debugging information that they ship apart.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// A path by which the file is found now: that of its debugging information, by build id; its own, where that
/// still names it, so that what is beside it is found and all processes share what was read; else the open file.
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

fn cut(mut name: String) -> String {
    if name.len() > LONGEST {
        let mut end = LONGEST;
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        name.push('…');
    }
    name
}

fn function(name: &str, info: Option<&CodeInfo<'_>>) -> Function {
    Function {
        name: cut(name.to_owned()),
        file: info.map_or_else(String::new, |info| {
            info.to_path().to_string_lossy().into_owned()
        }),
        line: info.and_then(|info| info.line).unwrap_or(0),
    }
}

impl Symbols {
    /// Names for addresses of one file, in its own numbering.
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
