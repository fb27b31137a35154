//! The house's rules that a program can check: which crates may use what.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// A word that only some places may contain in code.
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
        words: &["tonic::", "prost::"],
        allowed: &[
            "memscope-rpc/",
            "memscope-ctl/",
            "proto/",
            "memscope-daemon/src/serve.rs",
        ],
        why: "the wire belongs to the rpc crate, its clients, and the trait's implementation",
    },
    Rule {
        words: &[
            "memscope_ledger::",
            "memscope_daemon::",
            "memscope_site::",
            "memscope_journal::",
        ],
        allowed: &[
            "memscope-daemon/",
            "memscope-rpc/",
            "memscope-decode/",
            "memscope-export/",
            "memscope-dump/",
            "memscope-journal/",
            "memscope-site/",
            "memscope-python/",
            "memscope-native/",
            "memscope-ledger/tests/",
            "memscope-ledger/benches/",
            "memscope-ledger/examples/",
            "memscope-ctl/tests/",
        ],
        why: "clients know the wire only, and the ledger knows nothing of ours",
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
        allowed: &["!memscope-ledger/src/"],
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
        allowed: &["!memscope-dump/src/"],
        why: "msMemScope's files are read and written without a clock, a process or the network",
    },
    Rule {
        words: &["memscope_dump::"],
        allowed: &["memscope-dump/", "memscope-daemon/", "memscope-ctl/"],
        why: "msMemScope's files concern the two programs only",
    },
];

/// Files past this many lines are two rooms.
const LONGEST: usize = 600;

/// Checks every Rust file of the workspace.
pub fn check() -> Result<()> {
    let root = process::root();
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    let mut found = Vec::new();
    for file in &files {
        let place = file
            .strip_prefix(&root)
            .unwrap_or(file)
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
        if text.lines().count() > LONGEST {
            found.push(format!(
                "{place}: {} lines, more than {LONGEST}",
                text.lines().count()
            ));
        }
        for rule in RULES {
            check_rule(rule, &place, &text, &mut found);
        }
    }
    if !found.is_empty() {
        bail!("the house's rules are broken:\n  {}", found.join("\n  "));
    }
    eprintln!("house: {} files keep the rules", files.len());
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
