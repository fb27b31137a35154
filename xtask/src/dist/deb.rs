//! The .deb. dpkg-deb makes it of a tree and of what is said here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::contents::{ITEMS, Kind, PROGRAMS};
use super::release::Release;
use super::tree::{self, Layout};
use crate::{elf, process};

/// Who answers for the packages.
pub const MAINTAINER: &str = "The memscope authors <memscope@users.noreply.github.com>";

/// What the packages are, in one line and at length. Both kinds say the same.
pub const SUMMARY: &str = "follows the device memory of running GPU and NPU processes";
/// The description, of which no line is longer than 79 letters.
pub const DESCRIPTION: &str = "\
memscoped attaches to unmodified processes from outside, with eBPF probes on
the allocator functions of CUDA, of Ascend's CANN and of PyTorch, and follows
every allocation from then on. memscope-ctl asks it what is held, by which
line of the program, and what keeps growing.
Nothing is traced until a policy or somebody says so.";

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

const LAYOUT: Layout = Layout {
    zsh: "vendor-completions",
    changelog: "changelog",
};

/// Makes the package in `output`; returns its path.
pub fn make(programs: &Path, work: &Path, output: &Path, release: &Release) -> Result<PathBuf> {
    let tree = work.join("deb");
    tree::write(programs, &tree, &LAYOUT, &release.commit)?;
    write_documents(&tree, release)?;
    write_control(&tree, programs, release)?;
    tree::settle(&tree, &release.commit)?;
    let file = output.join(format!(
        "memscope_{}_{}.deb",
        version(release),
        architecture()?
    ));
    let level = if release.quick { "-z0" } else { "-z6" };
    process::output(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", level, "--build"])
            .arg(&tree)
            .arg(&file)
            .env("SOURCE_DATE_EPOCH", release.commit.seconds.to_string()),
    )?;
    Ok(file)
}

/// The version of the program, and after it that of the packaging.
fn version(release: &Release) -> String {
    format!("{}-{}", release.version, release.revision)
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name for {other} is not known here"),
    }
}

/// What Debian wants below `usr/share/doc`: the licences in one file, and a changelog of the packaging.
fn write_documents(tree: &Path, release: &Release) -> Result<()> {
    let documents = tree.join("usr/share/doc/memscope");
    let deploy = process::root().join("deploy/packages/debian");
    let copyright = fs::read_to_string(deploy.join("copyright"))?;
    let mit = fs::read_to_string(process::root().join("LICENSE-MIT"))?;
    let indented: Vec<String> = mit
        .trim()
        .lines()
        .map(|line| {
            if line.is_empty() {
                " .".to_owned()
            } else {
                format!(" {line}")
            }
        })
        .collect();
    fs::write(
        documents.join("copyright"),
        copyright.replace("@MIT@", &indented.join("\n")),
    )?;
    let date = release.commit.written("-R")?;
    let changes = documents.join("changelog.Debian");
    fs::write(
        &changes,
        format!(
            "memscope ({}) unstable; urgency=medium\n\n  * What changed in memscope is in changelog.gz.\n\n -- {MAINTAINER}  {date}\n",
            version(release)
        ),
    )?;
    tree::compress(&changes)?;
    tree::copy(
        &deploy.join("lintian-overrides"),
        &tree.join("usr/share/lintian/overrides/memscope"),
        0o644,
    )
}

/// Writes the folder `DEBIAN`, which is not installed.
fn write_control(tree: &Path, programs: &Path, release: &Release) -> Result<()> {
    let files = tree::files(tree)?;
    let bytes: u64 = files
        .iter()
        .map(|file| file.metadata().map_or(0, |data| data.len()))
        .sum();
    let sums = process::output(
        Command::new("md5sum")
            .current_dir(tree)
            .args(files.iter().filter_map(|file| file.strip_prefix(tree).ok())),
    )?;
    let control = tree.join("DEBIAN");
    fs::create_dir(&control)?;
    fs::write(control.join("md5sums"), sums)?;
    let settings: String = ITEMS
        .iter()
        .filter(|item| item.kind == Kind::Setting)
        .map(|item| format!("/{}\n", item.to))
        .collect();
    fs::write(control.join("conffiles"), settings)?;
    for script in SCRIPTS {
        let from = process::root().join("deploy/packages/debian").join(script);
        tree::copy(&from, &control.join(script), 0o755)?;
    }
    let description: Vec<String> = DESCRIPTION.lines().map(|line| format!(" {line}")).collect();
    let text = format!(
        "Package: memscope\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\nDepends: {}\nSection: admin\nPriority: optional\nHomepage: {}\nDescription: {SUMMARY}\n{}\n",
        version(release),
        architecture()?,
        bytes.div_ceil(1024),
        depends(programs)?.join(", "),
        env!("CARGO_PKG_REPOSITORY"),
        description.join("\n"),
    );
    fs::write(control.join("control"), text)?;
    Ok(())
}

/// What must be installed: the libraries that the programs name, in the versions that their symbols ask for, and what makes the group.
fn depends(programs: &Path) -> Result<Vec<String>> {
    let mut least: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for program in &PROGRAMS {
        let file = programs.join(program.file);
        let (libraries, symbols) = elf::imports(&file)?;
        for library in &libraries {
            least.entry(package_of(library)?).or_default();
        }
        for (library, version) in symbols.into_iter().filter_map(|symbol| symbol.version) {
            let needed = least.entry(package_of(&library)?).or_default();
            let number = number_of(&version)
                .with_context(|| format!("{}: a symbol of version {version}", file.display()))?;
            *needed = number.max(std::mem::take(needed));
        }
    }
    let mut all: Vec<String> = least
        .into_iter()
        .map(|(package, version)| {
            let parts: Vec<String> = version.iter().map(u32::to_string).collect();
            format!("{package} (>= {})", parts.join("."))
        })
        .collect();
    all.push("systemd | systemd-standalone-sysusers | systemd-sysusers".to_owned());
    Ok(all)
}

/// The Debian package of a library that every program in Rust needs. Another library would need thought.
fn package_of(library: &str) -> Result<&'static str> {
    let of_libc = [
        "libc.so.",
        "libm.so.",
        "ld-linux",
        "libpthread.so.",
        "libdl.so.",
    ];
    if of_libc.iter().any(|name| library.starts_with(name)) {
        return Ok("libc6");
    }
    if library.starts_with("libgcc_s.so.") {
        return Ok("libgcc-s1");
    }
    bail!("the programs need {library}, and it is not known here which package has it")
}

/// The numbers in the name of a symbol version, such as `GLIBC_2.34` and `GCC_4.2.0`.
fn number_of(version: &str) -> Option<Vec<u32>> {
    let (_, numbers) = version.split_once('_')?;
    numbers.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(number_of("GLIBC_2.34") > number_of("GLIBC_2.4"));
        assert_eq!(number_of("GCC_4.2.0"), Some(vec![4, 2, 0]));
        assert_eq!(number_of("GLIBC_PRIVATE"), None);
    }

    #[test]
    fn an_unknown_library_is_an_error() {
        assert!(package_of("libssl.so.3").is_err());
        assert_eq!(package_of("ld-linux-x86-64.so.2").ok(), Some("libc6"));
    }
}
