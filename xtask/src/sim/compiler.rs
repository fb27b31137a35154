//! Compiling and linking simulated devices: what all of them share.

use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{elf, process};

/// Like the real libraries' functions, ours must begin with `push`, so the compiler may neither leave the
/// frame pointer out nor set it up late.
const FLAGS: [&str; 10] = [
    "-std=gnu11",
    "-O2",
    "-g1",
    "-fPIC",
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
    "-fno-optimize-sibling-calls",
    "-fno-ipa-icf",
    "-Wall",
    "-Wno-deprecated-declarations",
];

/// Folder of the sources that all simulated devices share.
pub fn common() -> PathBuf {
    process::root().join("tests/simcommon")
}

/// The C files and headers of a folder.
fn source_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "c" || extension == "h")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Hashes the names and contents of the C files and headers of a folder and of all folders in it. Some headers have no ending.
pub fn hash_files(folder: &Path, hasher: &mut impl Hasher) -> Result<()> {
    let cannot = || format!("cannot read {}", folder.display());
    let mut entries = fs::read_dir(folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(cannot)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            hash_files(&path, hasher)?;
        } else if path.extension().is_none_or(|it| it == "c" || it == "h") {
            entry.file_name().hash(hasher);
            fs::read(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .hash(hasher);
        }
    }
    Ok(())
}

/// The C files of a folder whose names `wanted` accepts.
pub fn bodies(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = source_files(folder)?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".c") && wanted(&name)
    });
    Ok(files)
}

/// Lets `build` fill a folder beside `folder` and then renames it, so that two builds at once, or one that fails, do
/// no harm. `finished` is a file that the complete folder contains.
pub fn aside(folder: &Path, finished: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let aside = folder.with_extension(format!("{}.tmp", std::process::id()));
    fs::create_dir_all(&aside).with_context(|| format!("cannot create {}", aside.display()))?;
    if let Err(error) = build(&aside) {
        let _ = fs::remove_dir_all(&aside);
        return Err(error);
    }
    if fs::rename(&aside, folder).is_err() {
        let _ = fs::remove_dir_all(&aside);
        if !folder.join(finished).exists() {
            bail!("cannot create {}", folder.display());
        }
    }
    Ok(())
}

/// A C compiler with the flags that simulated devices need.
#[derive(Clone)]
pub struct Compiler {
    program: String,
    /// Target of the compiler, as it names it itself.
    pub machine: String,
    /// Folders in which it looks for headers.
    pub include: Vec<PathBuf>,
    /// A header that is included before each file.
    before: Option<PathBuf>,
    /// Folder for the objects.
    pub out: PathBuf,
}

impl Compiler {
    /// The compiler with this name on PATH.
    pub fn new(program: &str, include: Vec<PathBuf>, out: &Path) -> Result<Compiler> {
        let machine = process::output(Command::new(program).arg("-dumpmachine"))?;
        Ok(Compiler {
            program: program.to_owned(),
            machine: machine.trim().to_owned(),
            include,
            before: None,
            out: out.to_path_buf(),
        })
    }

    /// The same compiler, but it includes a header before each file and writes its objects to another folder.
    pub fn with_header(&self, header: PathBuf, out: &Path) -> Compiler {
        Compiler {
            before: Some(header),
            out: out.to_path_buf(),
            ..self.clone()
        }
    }

    /// Whether it compiles for x86-64.
    fn for_x86_64(&self) -> bool {
        self.machine.starts_with("x86_64")
    }

    /// The command that compiles and links.
    pub fn command(&self) -> Command {
        let mut compiler = Command::new(&self.program);
        compiler.args(FLAGS);
        if self.for_x86_64() {
            compiler.arg("-fcf-protection=none");
        }
        compiler
    }

    /// Compiles one file; returns the object. With `hidden`, only functions that are marked for it are exported.
    pub fn compile(&self, source: &Path, hidden: bool) -> Result<PathBuf> {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let object = self.out.join(format!("{name}.o"));
        let mut compiler = self.command();
        if hidden {
            compiler.arg("-fvisibility=hidden");
        }
        for folder in &self.include {
            compiler.arg("-I").arg(folder);
        }
        if let Some(header) = &self.before {
            compiler.arg("-include").arg(header);
        }
        compiler.arg("-c").arg(source).arg("-o").arg(&object);
        process::output(&mut compiler)
            .with_context(|| format!("cannot compile {}", source.display()))?;
        Ok(object)
    }

    /// The command that links objects to a library with this name; the caller adds what else it needs.
    pub fn link(&self, soname: &str, file: &Path, objects: &[PathBuf]) -> Command {
        let mut link = self.command();
        link.arg("-shared")
            .arg(format!("-Wl,-soname,{soname}"))
            .args(["-Wl,-z,defs", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN"]);
        link.arg("-o").arg(file).args(objects);
        link
    }

    /// Checks that functions begin with `push`. On x86-64 a probe on `push` costs a tenth of one on most other
    /// instructions. The real libraries' functions begin with it, so ours must, too, for measurements to mean anything.
    pub fn check_beginnings(&self, file: &Path, functions: &[&str]) -> Result<()> {
        if !self.for_x86_64() {
            return Ok(());
        }
        for function in functions {
            let code = elf::first_bytes(file, function, 2)?;
            let is_push = (0x50..0x58).contains(&code[0])
                || (code[0] == 0x41 && (0x50..0x58).contains(&code[1]));
            if !is_push {
                bail!(
                    "{function} begins with {code:02x?} and not with a push; what compiler is {}?",
                    self.program
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::hash::DefaultHasher;

    #[test]
    fn each_c_file_and_header_of_a_folder_is_in_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let hash = || {
            let mut hasher = DefaultHasher::new();
            hash_files(folder.path(), &mut hasher).unwrap();
            hasher.finish()
        };
        let mut hashes = vec![hash()];
        fs::create_dir_all(folder.path().join("include/nv")).unwrap();
        for name in ["one.c", "include/nv/target"] {
            for text in ["a", "b"] {
                fs::write(folder.path().join(name), text).unwrap();
                hashes.push(hash());
            }
        }
        // Python leaves what it has compiled beside its sources.
        fs::create_dir_all(folder.path().join("__pycache__")).unwrap();
        fs::write(folder.path().join("__pycache__/test.pyc"), "a").unwrap();
        assert_eq!(hash(), hashes[4]);
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 5);
    }
}
