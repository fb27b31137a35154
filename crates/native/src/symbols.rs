//! Finds the names of functions for addresses in files of code.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use memscope_memory::Owner;
use memscope_memory::file::OpenFile;
use memscope_site::elf::{Elf, FileBytes};
use memscope_units::demangle;

use blazesym::symbolize::source::{self, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};

use crate::copy::{Copy, CopyError, copy, is_compressed};
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

/// Most files of which what was read is kept. Those that were used last are kept.
const MOST_FILES: usize = 128;
/// Most bytes of the copies of these files.
const MOST_BYTES: u64 = 640 << 20;

/// What was read of one file.
struct Known {
    /// The file is forgotten when nobody else has it any more.
    image: Weak<Image>,
    /// Where its names are looked up; `None` if it has none that can be read.
    names: Option<Names>,
}

/// Finds the names of one file. Each file has a symbolizer of its own, because one never gives back what it has read.
struct Names {
    symbolizer: Symbolizer,
    path: PathBuf,
    /// The copy at this path, which goes with it.
    copy: Option<Copy>,
}

/// Finds names of functions by symbols and debugging information, and keeps what it has read of the files that were
/// used last.
#[derive(Default)]
pub struct Symbols {
    /// The file that was used last comes last.
    known: Vec<Known>,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Symbols")
    }
}

/// Folder where distributions install debugging information that they ship in files of its own. Only the machine's
/// administrator writes there.
const DEBUG: &str = "/usr/lib/debug";

impl Names {
    /// First choice: the file with the debugging information that the machine's administrator installed, by build id.
    /// Second: a file that the file's debug link names. Last: the file itself. Of the last two a copy is used, and of the
    /// first where it is compressed: its symbols can be read then.
    fn of(image: &Image) -> Result<Names, CopyError> {
        let symbolizer = || {
            Symbolizer::builder()
                .enable_code_info(true)
                .enable_inlined_fns(true)
                .enable_demangling(false)
        };
        let mut installed = None;
        if let Some((folder, name)) = image.build_id().split_at_checked(2)
            && !name.is_empty()
        {
            let path = Path::new(DEBUG)
                .join(".build-id")
                .join(folder)
                .join(format!("{name}.debug"));
            match OpenFile::open(Owner::MACHINE, &path, true).map(FileBytes::from) {
                Ok(apart) if is_compressed(&apart) => installed = Some(apart),
                Ok(_) => {
                    return Ok(Names {
                        symbolizer: symbolizer().build(),
                        path,
                        copy: None,
                    });
                }
                Err(_) => {}
            }
        }
        let apart = installed
            .or_else(|| linked(image))
            .and_then(|apart| copy(&apart).ok());
        let copy = match apart {
            Some(copy) => copy,
            None => copy(image.bytes())?,
        };
        Ok(Names {
            // A copy leads to no other file, but if it did, there is no folder in which to look.
            symbolizer: symbolizer()
                .set_debug_dirs(Some(Vec::<PathBuf>::new()))
                .build(),
            path: PathBuf::from(format!("/proc/self/fd/{}", copy.file.as_raw_fd())),
            copy: Some(copy),
        })
    }
}

/// Opens the file with debugging information that the file's debug link names. The name is a stranger's, so only regular files are
/// opened, and one counts only if it has the same build id, and if the owner of the file, or everybody, may read it.
fn linked(image: &Image) -> Option<FileBytes> {
    const LONGEST_LINK: u64 = 4096;
    let elf = Elf::read(image.bytes()).ok()?;
    if image.build_id().is_empty() || elf.section(".debug_info").is_some() {
        return None;
    }
    let section = elf.section(".gnu_debuglink")?;
    let size = section.size.min(LONGEST_LINK);
    let link = elf.bytes_at(section.offset, size, "the debug link").ok()?;
    let name = std::str::from_utf8(link.split(|byte| *byte == 0).next()?).ok()?;
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return None;
    }
    let owner = image.file().owner();
    let facts = image.file().facts();
    // The path is the process's, and leads to the same file here only if the process sees the files that the daemon sees.
    let here = OpenFile::open(owner, &image.path, true).ok()?;
    let here = here.facts();
    if (here.device, here.inode, here.size) != (facts.device, facts.inode, facts.size) {
        return None;
    }
    let folder = image.path.parent()?;
    let installed = Path::new(DEBUG).join(folder.strip_prefix("/").ok()?);
    let places = [folder.to_owned(), folder.join(".debug"), installed];
    places.iter().find_map(|place| {
        let apart = OpenFile::open(owner, &place.join(name), false).ok()?;
        let apart = FileBytes::from(apart);
        let its = *apart.file().facts();
        let is_itself = (its.device, its.inode) == (facts.device, facts.inode);
        let may_read = its.uid == facts.uid || its.mode & 0o004 != 0;
        let id = Elf::read(&apart).ok()?.build_id()?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        (may_read && !is_itself && id == image.build_id()).then_some(apart)
    })
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
    /// Forgets what was read of files that nobody uses any more.
    pub fn sweep(&mut self) {
        self.known.retain(|known| known.image.strong_count() > 0);
    }

    /// Number of files of which something is kept, and the bytes of their copies.
    pub fn size(&self) -> (usize, u64) {
        let copies = self.known.iter().filter_map(|known| {
            let copy = known.names.as_ref()?.copy.as_ref()?;
            Some(copy.bytes)
        });
        (self.known.len(), copies.sum())
    }

    /// What is known of this file. It is read if it is not known yet; other files give way.
    fn known(&mut self, image: &Arc<Image>) -> Option<&Names> {
        self.sweep();
        let place = self
            .known
            .iter()
            .position(|known| Weak::as_ptr(&known.image) == Arc::as_ptr(image));
        let known = match place {
            Some(place) => self.known.remove(place),
            None => Known {
                image: Arc::downgrade(image),
                names: Names::of(image)
                    .inspect_err(|error| {
                        tracing::debug!(path = %image.path.display(), %error, "no symbols");
                    })
                    .ok(),
            },
        };
        self.known.push(known);
        let mut size = self.size();
        while self.known.len() > 1 && (size.0 > MOST_FILES || size.1 > MOST_BYTES) {
            self.known.remove(0);
            size = self.size();
        }
        self.known.last()?.names.as_ref()
    }

    /// Names for addresses of one file, which are given in its own numbering: one result for each address, in the same
    /// order. Where nothing is known the only function has an empty name.
    pub fn name(&mut self, image: &Arc<Image>, addresses: &[u64]) -> Vec<Named> {
        let nothing = || Named {
            functions: vec![Function::default()],
        };
        let Some(names) = self.known(image) else {
            return addresses.iter().map(|_| nothing()).collect();
        };
        let mut elf = source::Elf::new(&names.path);
        elf.debug_syms = true;
        let found = match names
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
