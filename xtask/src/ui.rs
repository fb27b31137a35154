//! `cargo xtask ui`: makes the page of `memscope-ctl ui` of the sources in `ui/`, or compares what is committed with what they give.
//!
//! The page is committed in `ui/built`, so that building memscope-ctl needs no Node.js. `digest.txt` there has the digest of the sources,
//! the version of the bundler, and the digest of each file, as `made-from` has them for the BPF objects.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use memscope_ebpf_build::digest;
use serde::Deserialize;

use crate::process;
use crate::setup::mode::Mode;
use crate::setup::{self, page};

/// What to do.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Write nothing; check types, run the tests of the parts that need no browser, and fail if the committed page is not what the
    /// sources give
    #[arg(long)]
    pub check: bool,
}

/// Everything that the page depends on, below `ui`: files, and folders with all files in them.
const SOURCES: [&str; 4] = ["package.json", "package-lock.json", "tsconfig.json", "src"];
/// The files of the page, and the licences of the libraries in it.
const FILES: [&str; 5] = [
    "app.css",
    "app.js",
    "favicon.svg",
    "index.html",
    "licences.txt",
];
/// The libraries that are in the page; others are only for making and testing it.
const LIBRARIES: [&str; 4] = ["@preact/signals", "@preact/signals-core", "preact", "uplot"];
const FACTS: &str = "digest.txt";
const AGAIN: &str = "`cargo xtask ui` makes it anew";

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    if options.check {
        return check();
    }
    let made = made()?;
    let folder = folder().join("built");
    fs::create_dir_all(&folder)?;
    for (name, content) in &made {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("{}: {} bytes", path.display(), content.len());
    }
    Ok(())
}

/// Makes the page and compares it with what is committed, byte by byte.
pub fn check() -> Result<()> {
    for (name, content) in made()? {
        let path = folder().join("built").join(&name);
        let committed = fs::read(&path).unwrap_or_default();
        ensure!(
            committed == content,
            "{} is not what the sources give; {AGAIN}",
            path.display()
        );
    }
    eprintln!("ui: ui/built is what the sources give");
    Ok(())
}

fn folder() -> PathBuf {
    process::root().join("ui")
}

/// The files of the page with their contents, and the facts about them. Types are checked and the tests of its parts run before.
fn made() -> Result<BTreeMap<String, Vec<u8>>> {
    let _alone = setup::alone()?;
    page::ensure(Mode::Install)?;
    let workshop = page::workshop();
    for name in ["src", "tests"] {
        let copy = workshop.join(name);
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        for file in files(&folder(), name)? {
            let to = workshop.join(&file);
            fs::create_dir_all(to.parent().unwrap_or(&workshop))?;
            fs::copy(folder().join(&file), to)?;
        }
    }
    fs::copy(
        folder().join("tsconfig.json"),
        workshop.join("tsconfig.json"),
    )?;
    let program = |name: &str| {
        let mut command = process::command(Path::new("node_modules/.bin").join(name));
        command.current_dir(&workshop);
        command
    };
    process::run(program("tsc").args(["-p", "."]))?;
    let quiet = "--log-level=warning";
    process::run(program("esbuild").args([
        "tests/pure.test.ts",
        "--bundle",
        "--platform=node",
        "--format=esm",
        "--outfile=tests/pure.test.mjs",
        quiet,
    ]))?;
    process::run(
        process::command("node")
            .args(["--test", "tests/pure.test.mjs"])
            .current_dir(&workshop),
    )?;
    process::run(program("esbuild").args([
        "src/app.tsx",
        "src/app.css",
        "--bundle",
        "--minify",
        "--format=iife",
        "--target=es2023,chrome115,firefox115,safari17",
        "--jsx=automatic",
        "--jsx-import-source=preact",
        "--charset=utf8",
        "--legal-comments=none",
        "--outdir=built",
        quiet,
    ]))?;
    let mut all = BTreeMap::new();
    for name in FILES {
        let content = match name {
            "licences.txt" => licences(&workshop)?.into_bytes(),
            "app.js" | "app.css" => fs::read(workshop.join("built").join(name))?,
            _ => fs::read(folder().join("src").join(name))?,
        };
        all.insert(name.to_owned(), content);
    }
    let mut facts = BTreeMap::from([
        ("sources".to_owned(), sources()?),
        ("esbuild".to_owned(), package(&workshop, "esbuild")?.version),
    ]);
    for (name, content) in &all {
        facts.insert(name.clone(), digest(content));
    }
    let lines = facts.iter().map(|(name, fact)| format!("{name}: {fact}\n"));
    all.insert(FACTS.to_owned(), lines.collect::<String>().into_bytes());
    Ok(all)
}

/// The paths, relative to the folder, of this file or of all files in this folder, in order.
fn files(folder: &Path, name: &str) -> Result<Vec<String>> {
    let path = folder.join(name);
    if !path.is_dir() {
        return Ok(vec![name.to_owned()]);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry?.file_name();
        let Some(entry) = entry.to_str() else {
            bail!("a file in {} has no name in UTF-8", path.display());
        };
        names.extend(files(folder, &format!("{name}/{entry}"))?);
    }
    names.sort();
    Ok(names)
}

/// Digest of everything that the page is made from: names, lengths and contents of the files.
fn sources() -> Result<String> {
    let folder = folder();
    let mut all = Vec::new();
    for name in SOURCES {
        for file in files(&folder, name)? {
            let content =
                fs::read(folder.join(&file)).with_context(|| format!("cannot read ui/{file}"))?;
            all.extend(file.as_bytes());
            all.push(0);
            all.extend((content.len() as u64).to_le_bytes());
            all.extend(content);
        }
    }
    Ok(digest(&all))
}

/// Of what a module says of itself, what is needed here.
#[derive(Deserialize)]
struct Package {
    version: String,
    license: String,
}

fn package(workshop: &Path, name: &str) -> Result<Package> {
    let path = workshop
        .join("node_modules")
        .join(name)
        .join("package.json");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not understood", path.display()))
}

/// The libraries in the page, and the texts of their licences, which must go with them.
fn licences(workshop: &Path) -> Result<String> {
    let mut text = String::from("Libraries in the page of memscope-ctl ui, and their licences\n");
    for name in LIBRARIES {
        let Package { version, license } = package(workshop, name)?;
        let path = workshop.join("node_modules").join(name).join("LICENSE");
        let words =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text += &format!("\n== {name} {version} ({license})\n\n{}\n", words.trim());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_committed_was_made_from_the_sources() {
        let built = folder().join("built");
        let facts = fs::read_to_string(built.join(FACTS)).unwrap();
        let fact = |name: &str| {
            let line = facts.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(": ")).unwrap()
        };
        assert_eq!(fact("sources"), sources().unwrap(), "{AGAIN}");
        for name in FILES {
            let content = fs::read(built.join(name)).unwrap();
            assert_eq!(fact(name), digest(&content), "{name}: {AGAIN}");
        }
        let lock = fs::read_to_string(folder().join("package-lock.json")).unwrap();
        let lock: serde_json::Value = serde_json::from_str(&lock).unwrap();
        let locked = &lock["packages"]["node_modules/esbuild"]["version"];
        assert_eq!(fact("esbuild"), locked.as_str().unwrap(), "{AGAIN}");
    }

    #[test]
    fn the_page_has_no_script_or_style_of_its_own_and_no_address_elsewhere() {
        let built = folder().join("built");
        let page = fs::read_to_string(built.join("index.html")).unwrap();
        for word in ["<style", "style=", "onclick", "onload", "//"] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        let style = fs::read_to_string(built.join("app.css")).unwrap();
        for word in ["url(", "@import"] {
            assert!(!style.contains(word), "{word}");
        }
        // The names of XML's vocabularies are no addresses that anybody asks.
        let program = fs::read_to_string(built.join("app.js")).unwrap();
        let program = program.replace("http://www.w3.org/", "");
        for word in ["http://", "https://", "eval(", "new Function"] {
            assert!(!program.contains(word), "{word}");
        }
        for file in files(&folder(), "src").unwrap() {
            let source = fs::read_to_string(folder().join(&file)).unwrap();
            for word in ["innerHTML", "InnerHTML", "document.write"] {
                assert!(!source.contains(word), "{file}: {word}");
            }
        }
    }
}
