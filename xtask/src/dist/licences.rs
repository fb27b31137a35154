//! The licences of the libraries that are part of the programs: their texts must go with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::contents::PROGRAMS;
use crate::process;

/// Of what cargo says of the packages, what is needed here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None is a dependency of the program itself; others are of its build or its tests.
    kind: Option<String>,
}

/// Beginnings of the names of files that say how a library may be used.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Writes which libraries are in the programs, under which licences, and the texts of these.
pub fn write(file: &Path) -> Result<()> {
    let text = process::output(
        Command::new("cargo")
            .args(["metadata", "--locked", "--format-version", "1"])
            .args([
                "--filter-platform",
                &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
            ])
            .current_dir(process::root()),
    )?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("cargo says what cannot be read")?;
    let inside = inside(&metadata);
    let mut list =
        "Libraries that are part of the programs of memscope, with their licences.\n\n".to_owned();
    // Hundreds of libraries have the same text.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &metadata.packages {
        if package.source.is_none() || !inside.contains(package.id.as_str()) {
            continue;
        }
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see its text");
        list += &format!("{name}: {licence}\n");
        for text in texts_of(package)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        list += &format!(
            "\n{}\n{}\n\n{}\n",
            "-".repeat(78),
            names.join(", "),
            text.trim()
        );
    }
    // What npm brings into memscope-ctl's page was collected when the page was made.
    let page = process::root().join("ui/built/licences.txt");
    list += &"-".repeat(78);
    list += "\n";
    list +=
        &fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    fs::write(file, list).with_context(|| format!("cannot write {}", file.display()))
}

/// The packages that the programs are made of.
fn inside(metadata: &Metadata) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node))
        .collect();
    let is_program = |package: &&Package| {
        PROGRAMS
            .iter()
            .any(|program| program.package == package.name)
    };
    let mut left: Vec<&str> = metadata
        .packages
        .iter()
        .filter(is_program)
        .map(|package| package.id.as_str())
        .collect();
    let mut inside = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !inside.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
        let own = dependencies
            .iter()
            .filter(|it| it.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        left.extend(own.map(|it| it.pkg.as_str()));
    }
    inside
}

fn texts_of(package: &Package) -> Result<Vec<String>> {
    let folder = package.manifest_path.parent().context("no folder")?;
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.to_uppercase();
            path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            let bytes =
                fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
        })
        .collect()
}
