//! The BPF objects that are committed beside their sources: made anew, or compared with what the sources give.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use memscope_ebpf_build::{
    ARCHITECTURES, Built, FOLDER, digest, find_linker, find_toolchain, linker_version, sources,
};
use object::build::elf::{Builder, SectionData};

/// Builds the objects and writes them; with `check`, compares them with those that are committed.
pub fn run(root: &Path, check: bool) -> Result<()> {
    if check {
        return compare(root);
    }
    let mut facts = toolchain(root)?;
    facts.insert("sources".to_owned(), sources(root)?);
    fs::create_dir_all(root.join(FOLDER))?;
    for (arch, object) in ARCHITECTURES.into_iter().zip(make_all(root)) {
        let object = object?;
        let path = Built::path(root, arch);
        fs::write(&path, &object).with_context(|| format!("cannot write {}", path.display()))?;
        facts.insert(arch.to_owned(), digest(&object));
        eprintln!("{}: {} bytes", path.display(), object.len());
    }
    let path = root.join(FOLDER).join("made-from");
    fs::write(&path, Built { facts }.text())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the objects and compares them with those that are committed: byte by byte if the compiler and the linker are
/// the same, else by their programs and maps.
fn compare(root: &Path) -> Result<()> {
    let built = Built::read(root);
    let here = toolchain(root)?;
    let is_same = here.iter().all(|(name, fact)| built.fact(name) == fact);
    let again = "`cargo xtask ebpf` makes them anew";
    let mut paths = Vec::new();
    for arch in ARCHITECTURES {
        let path = built.object(root, arch)?.with_context(|| {
            format!(
                "the object for {arch} in {FOLDER} was not made from the sources that are here; {again}"
            )
        })?;
        paths.push(path);
    }
    for ((arch, path), made) in ARCHITECTURES.into_iter().zip(paths).zip(make_all(root)) {
        let committed = fs::read(&path)?;
        let made = made?;
        if is_same {
            ensure!(
                committed == made,
                "{} is not what the sources give; {again}",
                path.display()
            );
            eprintln!("{arch}: the same, byte by byte");
        } else {
            ensure!(
                contents(&committed)? == contents(&made)?,
                "{} has other programs or maps than the sources give; {again}",
                path.display()
            );
            eprintln!(
                "{arch}: the same programs and maps; made by {}, here is {here:?}",
                built.text()
            );
        }
    }
    Ok(())
}

/// Versions of the compiler and the linker on this machine.
fn toolchain(root: &Path) -> Result<BTreeMap<String, String>> {
    let linker = find_linker(&root.join("target/tools/bin"))?;
    let version = linker_version(&linker)
        .with_context(|| format!("{} does not say its version", linker.display()))?;
    Ok(BTreeMap::from([
        ("rustc".to_owned(), find_toolchain()?.version),
        ("bpf-linker".to_owned(), version),
    ]))
}

/// Builds the object for each architecture, all at a time: each build compiles one thing after the other.
fn make_all(root: &Path) -> Vec<Result<Vec<u8>>> {
    std::thread::scope(|scope| {
        let builds = ARCHITECTURES.map(|arch| scope.spawn(move || make(root, arch)));
        builds
            .into_iter()
            .map(|build| build.join().map_err(|_| anyhow!("the build panicked"))?)
            .collect()
    })
}

/// Builds the object for an architecture, and removes what is not needed to load it.
fn make(root: &Path, arch: &str) -> Result<Vec<u8>> {
    let folder = root.join("target/ebpf");
    let path =
        memscope_ebpf_build::build(root, arch, &folder).context("the BPF object was not built")?;
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    stripped(&bytes).with_context(|| format!("{} cannot be stripped", path.display()))
}

/// Removes the debug information, but not BTF, and replaces mangled names of functions, because a part of them depends
/// on where they were compiled.
fn stripped(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut object = Builder::read(bytes)?;
    for section in &mut object.sections {
        let name = section.name.to_vec();
        section.delete = name.starts_with(b".debug") || name.starts_with(b".rel.debug");
    }
    for (number, symbol) in object.symbols.iter_mut().enumerate() {
        if symbol.name.starts_with(b"_R") || symbol.name.starts_with(b"_ZN") {
            symbol.name = format!("local_{number}").into_bytes().into();
        }
    }
    let has_names =
        |section: &object::build::elf::Section| matches!(section.data, SectionData::SectionString);
    if !object.sections.iter().any(has_names) {
        // LLVM keeps the names of sections and symbols in one section; the writer needs one for the sections.
        let names = object.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = object::elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut written = Vec::new();
    object.write(&mut written)?;
    Ok(written)
}

/// The names of the symbols and the content of the maps of an object, in a form that can be compared.
fn contents(bytes: &[u8]) -> Result<Vec<String>> {
    let object = Builder::read(bytes)?;
    let programs = object
        .symbols
        .iter()
        .filter(|symbol| symbol.section.is_some());
    let programs = programs.map(|symbol| symbol.name.to_string());
    let maps = object
        .sections
        .iter()
        .find(|section| section.name.as_slice() == b"maps");
    let maps = maps.ok_or_else(|| anyhow!("it has no maps"))?;
    let SectionData::Data(maps) = &maps.data else {
        bail!("its maps are empty");
    };
    let mut contents: Vec<String> = programs.chain([format!("{:?}", maps.as_slice())]).collect();
    contents.sort();
    Ok(contents)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_committed_tells_nothing_of_where_it_was_made() {
        for arch in ARCHITECTURES {
            let bytes = fs::read(Built::path(&crate::root(), arch)).unwrap();
            let has = |text: &str| {
                bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            };
            assert!(
                has("memscope-ebpf") || has("src/"),
                "it has its sources' names"
            );
            for secret in [
                "/home/",
                "/root/",
                "/tmp/",
                "/usr/",
                env!("CARGO_MANIFEST_DIR"),
                &crate::root().display().to_string(),
            ] {
                assert!(!has(secret), "{arch}: {secret}");
            }
            assert_eq!(stripped(&bytes).unwrap(), bytes, "it is stripped");
        }
    }
}
