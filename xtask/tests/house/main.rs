//! The rules of ARCHITECTURE.md that a program can check: which crates may use what, which words may occur where, and that
//! files do not import from one another in a circle. `cargo xtask house` runs only these.

#![allow(clippy::unwrap_used)]

mod circles;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Words that code may contain only in some places. A place that begins with `!` reverses this: only there the words
/// are forbidden.
struct Rule {
    words: &'static [&'static str],
    allowed: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        words: &["aya::", "aya_obj::"],
        allowed: &["memscope-daemon/src/probe/", "memscope-ebpf/"],
        why: "aya belongs to the daemon's probes",
    },
    Rule {
        words: &["tonic::"],
        allowed: &[
            "crates/rpc/",
            "crates/service/",
            "memscope-ctl/",
            "memscope-archive/src/daemon.rs",
            "proto/",
            "memscope-daemon/src/serve.rs",
            // OpenTelemetry's messages have that word in their paths.
            "memscope-daemon/src/otlp/",
            "crates/otlp/",
        ],
        why: "gRPC belongs to the server, its clients, and the trait's implementation",
    },
    Rule {
        words: &[
            "std::fs",
            "std::net",
            "std::process",
            "tokio::",
            "SystemTime::now",
            "Instant::now",
        ],
        allowed: &["!crates/ledger/src/"],
        why: "the ledger has no I/O and no clock",
    },
    Rule {
        words: &["std::", "alloc::"],
        allowed: &["!clients/mark/src/"],
        why: "the mark library runs inside other programs: it allocates nothing and needs only core",
    },
    Rule {
        words: &[
            "std::net",
            "std::process",
            "tokio::",
            "SystemTime::now",
            "Instant::now",
        ],
        allowed: &["!crates/dump/src/"],
        why: "msMemScope's files are read and written without a clock, a process or the network",
    },
    Rule {
        words: &[
            "std::fs",
            "std::net",
            "std::process",
            "tokio::",
            "SystemTime::now",
        ],
        allowed: &["!crates/archive/src/"],
        why: "what the archive's rows are follows from answers alone",
    },
    Rule {
        words: &["object_store::", "reqwest::"],
        allowed: &["memscope-archive/src/store.rs"],
        why: "HTTP and the credentials of stores belong to one file of the archive's program",
    },
    Rule {
        words: &["memscope_dump::"],
        allowed: &["crates/dump/", "memscope-daemon/", "memscope-ctl/", "fuzz/"],
        why: "msMemScope's files concern the two programs only",
    },
];

/// The crates of ours that a crate may use, for crates that may not use everything. Their tests may use more.
const MAY_USE: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("crates/units", &[]),
    ("crates/vendors", &["common"]),
    ("crates/messagepack", &[]),
    (
        "crates/ledger",
        &["messagepack", "proto", "units", "vendors"],
    ),
    ("crates/log", &["common", "ledger", "messagepack", "units"]),
    ("crates/diff", &["proto"]),
    ("crates/pickle", &["ledger", "units"]),
    ("crates/memory", &[]),
    ("crates/export", &["diff", "ledger", "proto", "units"]),
    ("crates/service", &["proto"]),
    ("crates/metrics", &["proto"]),
    ("crates/otlp", &["metrics", "proto", "units"]),
    ("crates/archive", &["proto", "units"]),
    (
        "memscope-archive",
        &["archive-rows", "pages", "proto", "service"],
    ),
    ("crates/structure", &["memory"]),
    ("crates/heap", &["memory", "python"]),
    ("crates/generated", &["ebpf-build"]),
    ("crates/owners", &[]),
    ("crates/ranks", &[]),
    ("crates/pages", &[]),
    ("crates/report", &["owners", "ranks", "units"]),
    (
        "memscope-ctl",
        &[
            "diff", "dump", "pages", "pickle", "proto", "ranks", "report", "service", "units",
            "vendors",
        ],
    ),
];

/// The repository's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

#[test]
fn crates_use_only_what_they_may() {
    check_uses(&root()).unwrap();
}

#[test]
fn no_files_import_from_one_another_in_a_circle() {
    check_circles(&root()).unwrap();
}

#[test]
fn words_occur_only_where_they_may() {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &mut files).unwrap();
    let mut found = Vec::new();
    for file in &files {
        let place = file.strip_prefix(&root).unwrap().to_string_lossy();
        let text = fs::read_to_string(file).unwrap();
        for rule in RULES {
            check_rule(rule, &place, &text, &mut found);
        }
    }
    assert!(found.is_empty(), "not allowed:\n  {}", found.join("\n  "));
    // The daemon alone has more of them.
    assert!(files.len() > 200, "only {} files were found", files.len());
}

/// Where all files of a folder of tests are one program, the compiler says nothing of a file that it does not name.
#[test]
fn no_file_of_tests_is_forgotten() {
    let mut files = Vec::new();
    collect(&root(), &mut files).unwrap();
    let mut looked_at = 0;
    for all in files.iter().filter(|path| path.ends_with("tests/all.rs")) {
        let named = fs::read_to_string(all).unwrap();
        let folder = all.parent().unwrap();
        let beside = files.iter().filter(|file| file.parent() == Some(folder));
        for file in beside.filter(|file| *file != all) {
            let name = file.file_stem().unwrap().to_string_lossy();
            let is_named = named.lines().any(|line| line == format!("mod {name};"));
            assert!(is_named, "{} does not name {name}", all.display());
            looked_at += 1;
        }
    }
    assert!(looked_at >= 6, "only {looked_at} files were found");
}

/// Compares the dependencies of crates with what they may use.
fn check_uses(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    for (folder, may_use) in MAY_USE {
        let path = root.join(folder).join("Cargo.toml");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let manifest: toml::Table = text
            .parse()
            .with_context(|| format!("{folder}/Cargo.toml"))?;
        let uses = manifest.get("dependencies").and_then(toml::Value::as_table);
        let ours = uses
            .into_iter()
            .flat_map(toml::Table::keys)
            .filter_map(|name| name.strip_prefix("memscope-"));
        for name in ours.filter(|name| !may_use.contains(name)) {
            found.push(format!("{folder} uses {name}"));
        }
    }
    if !found.is_empty() {
        bail!(
            "crates use what they may not (ARCHITECTURE.md):\n  {}",
            found.join("\n  ")
        );
    }
    Ok(())
}

/// Fails where files of one crate import from one another in a circle.
fn check_circles(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let manifest: toml::Table = text.parse().context("Cargo.toml")?;
    let list = |name: &str| {
        let found = manifest.get("workspace").and_then(|w| w.get(name));
        let found = found.and_then(toml::Value::as_array).cloned();
        found.unwrap_or_default().into_iter()
    };
    let mut found = Vec::new();
    for folder in list("members").chain(list("exclude")) {
        let folder = root.join(folder.as_str().unwrap_or_default()).join("src");
        found.extend(circles::of(&folder)?);
    }
    if !found.is_empty() {
        let root = format!("{}/", root.display());
        bail!(
            "{} circles of files that import from one another: move what they share into a file below them\n  {}",
            found.len(),
            found.join("\n  ").replace(&root, "")
        );
    }
    Ok(())
}

fn check_rule(rule: &Rule, place: &str, text: &str, found: &mut Vec<String>) {
    let inverted = rule.allowed.iter().find_map(|a| a.strip_prefix('!'));
    let bound = match inverted {
        Some(only) => place.starts_with(only),
        None => !rule.allowed.iter().any(|a| place.starts_with(a)),
    };
    if !bound || place.starts_with("xtask/") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for word in rule.words {
            if line.contains(word) {
                found.push(format!("{place}:{}: {word} ({})", number + 1, rule.why));
            }
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}
