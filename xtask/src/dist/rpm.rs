//! The .rpm. rpmbuild makes it of a tree and of a spec file that is written here; it finds by itself which symbols of which libraries
//! the programs need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::contents::{ITEMS, Kind, LICENCES};
use super::deb::{DESCRIPTION, SUMMARY};
use super::release::Release;
use super::tree::{self, Layout};
use crate::process;

const LAYOUT: Layout = Layout {
    zsh: "site-functions",
    changelog: "CHANGELOG.md",
};

/// The scripts, by the names of their sections in a spec file.
const SCRIPTS: [&str; 3] = ["post", "preun", "postun"];

/// Folders that belong to memscope alone and go with it. Others belong to the packages that look into them.
const OWN: [&str; 3] = [
    "etc/memscope",
    "usr/share/memscope",
    "usr/share/doc/memscope",
];

/// Makes the package in `output`; returns its path.
pub fn make(programs: &Path, work: &Path, output: &Path, release: &Release) -> Result<PathBuf> {
    let tree = work.join("rpm");
    tree::write(programs, &tree, &LAYOUT, &release.commit)?;
    for licence in LICENCES {
        let to = tree.join("usr/share/licenses/memscope").join(licence);
        tree::copy(&process::root().join(licence), &to, 0o644)?;
    }
    tree::settle(&tree, &release.commit)?;
    let spec = work.join("memscope.spec");
    fs::write(&spec, text(&tree, release)?)?;
    let top = work.join("rpmbuild");
    process::output(
        Command::new("rpmbuild")
            .arg("-bb")
            .args(["--define", &format!("_topdir {}", top.display())])
            .args(["--define", &format!("_rpmdir {}", top.display())])
            .args(["--define", "_buildhost localhost"])
            .args(["--define", "use_source_date_epoch_as_buildtime 1"])
            .args(["--define", "clamp_mtime_to_source_date_epoch 1"])
            .arg(&spec)
            .env("SOURCE_DATE_EPOCH", release.commit.seconds.to_string()),
    )?;
    let made = tree::files(&top)?
        .into_iter()
        .find(|file| file.extension().is_some_and(|end| end == "rpm"))
        .context("rpmbuild made no package")?;
    let file = output.join(made.file_name().context("a file without a name")?);
    fs::copy(&made, &file).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// The spec file. Nothing is built by it: the tree is there.
fn text(tree: &Path, release: &Release) -> Result<String> {
    let mut text = format!(
        "\
Name: memscope
Version: {}
Release: {}
Summary: {SUMMARY}
License: MIT OR Apache-2.0
URL: {}
Requires: systemd
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%global _binary_payload {}

%description
{DESCRIPTION}

%install
mkdir -p %{{buildroot}}
cp -a {}/. %{{buildroot}}

",
        release.version,
        release.revision,
        env!("CARGO_PKG_REPOSITORY"),
        if release.quick {
            "w1.zstdio"
        } else {
            "w19.zstdio"
        },
        tree.display(),
    );
    for script in SCRIPTS {
        let lines = fs::read_to_string(process::root().join("deploy/packages/rpm").join(script))?;
        // A percent sign begins a macro in a spec file.
        text += &format!("%{script}\n{}\n", lines.replace('%', "%%"));
    }
    text += "%files\n%defattr(-,root,root,-)\n";
    for folder in OWN {
        text += &format!("%dir /{folder}\n");
    }
    let mut folders = std::collections::BTreeSet::new();
    for file in tree::files(tree)? {
        let path = file.strip_prefix(tree)?;
        text += &format!("{}/{}\n", mark(path), path.display());
        // Folders below our own are ours as well.
        for folder in path.ancestors().skip(1) {
            let is_below = |own: &&str| folder.starts_with(own) && folder != Path::new(own);
            if OWN.iter().any(is_below) {
                folders.insert(folder.to_owned());
            }
        }
    }
    for folder in folders {
        text += &format!("%dir /{}\n", folder.display());
    }
    text += "%dir /usr/share/licenses/memscope\n";
    Ok(text)
}

/// What stands before a file in the list.
fn mark(path: &Path) -> &'static str {
    let item = ITEMS.iter().find(|item| Path::new(item.to) == path);
    match item.map(|item| item.kind) {
        Some(Kind::Setting) => "%config(noreplace) ",
        Some(Kind::Document) => "%doc ",
        _ if path.starts_with("usr/share/doc") => "%doc ",
        _ if path.starts_with("usr/share/licenses") => "%license ",
        _ => "",
    }
}
