//! Judges what a machine printed: whether memscope's numbers are those of the programs themselves and nothing is left
//! behind, or, on a kernel that is too old, whether memscoped refuses it as it should.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::setup::tool::Version;

/// A program, and the chains of functions that its stacks must show, outermost first.
struct Program {
    name: &'static str,
    chains: [&'static [&'static str]; 2],
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "c",
        chains: [&["run", "use_one", "take"], &["run", "keep_one", "take"]],
    },
    Program {
        name: "python",
        chains: [
            &["_bootstrap", "run", "use_one", "take"],
            &["_bootstrap", "run", "keep_one", "take"],
        ],
    },
];

/// The text that was printed after each line `## NAME`.
type Parts<'a> = BTreeMap<&'a str, String>;

/// The oldest kernel that memscoped starts on.
const OLDEST: Version = Version(5, 15);

/// So many instructions a kernel's verifier may follow in one of our programs. It refuses a program in which it had to
/// follow a million; the rest is room for the verifiers of kernels that are not booted, which follow more or fewer. The most is
/// 25,469 on 6.1, and 57,161 on 6.12.
const FOLLOWED: u64 = 250_000;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is right, with links of this kind.
    Right { links: String },
    /// The kernel is too old, and memscoped says so in this sentence.
    Refused { sentence: String },
}

/// Returns the kernel's release and what came of it. Fails with a list of everything that is wrong.
pub fn judge(said: &str, alloc: &str) -> Result<(String, Outcome)> {
    let parts = parts(said);
    if !parts.contains_key("end") {
        bail!("the machine did not come to its end");
    }
    let machine = part(&parts, "machine")?;
    let release = machine.split(' ').nth(1).context("no kernel was named")?;
    let version = Version::in_words(release).context("the kernel has no version")?;
    let mut wrong = Vec::new();
    let outcome = if version < OLDEST {
        let sentence = refused(&parts, release, &mut wrong)?;
        Outcome::Refused { sentence }
    } else {
        if let Err(error) = verified(&parts, &mut wrong) {
            wrong.push(format!("{error:#}"));
        }
        for program in &PROGRAMS {
            if let Err(error) = one(&parts, program, alloc, &mut wrong) {
                wrong.push(format!("{}: {error:#}", program.name));
            }
        }
        if part(&parts, "stopped")?.trim() != "0" {
            wrong.push("memscoped did not stop cleanly".to_owned());
        }
        let links = part(&parts, "log")?.split_whitespace();
        let links = links.filter_map(|word| word.strip_prefix("links=")).next();
        Outcome::Right {
            links: links.unwrap_or("none").trim_matches('"').to_owned(),
        }
    };
    same(&parts, "before", "stopped", &mut wrong)?;
    if !wrong.is_empty() {
        bail!("on Linux {release}:\n  {}", wrong.join("\n  "));
    }
    println!("vm: Linux {release}: {outcome:?}");
    Ok((release.to_owned(), outcome))
}

/// The sentence with which memscoped refuses a kernel that is too old.
fn refused(parts: &Parts<'_>, release: &str, wrong: &mut Vec<String>) -> Result<String> {
    if part(parts, "stopped")?.trim() == "0" {
        wrong.push("memscoped ended without an exit code that says failure".to_owned());
    }
    if !part(parts, "state directory")?.trim().is_empty() {
        wrong.push("memscoped left files in its state directory".to_owned());
    }
    let mut said = part(parts, "log")?
        .lines()
        .filter_map(|line| line.strip_prefix("memscoped: "));
    let sentence = said.next().unwrap_or_default();
    let needed = format!("Linux {OLDEST}");
    if said.next().is_some() || !sentence.contains(&needed) || !sentence.contains(release) {
        wrong.push(format!(
            "memscoped did not refuse this kernel in one sentence with both versions: {sentence}"
        ));
    }
    Ok(sentence.to_owned())
}

/// Judges how much the verifier had to do for each program.
fn verified(parts: &Parts<'_>, wrong: &mut Vec<String>) -> Result<()> {
    #[derive(Deserialize)]
    struct Verified {
        program: String,
        verified: u64,
    }
    let said = part(parts, "verified")?.trim();
    for (place, line) in said.lines().enumerate() {
        let one: Verified =
            serde_json::from_str(line).with_context(|| format!("verified: {line}"))?;
        let followed = format!(
            "the verifier followed {} instructions of {}",
            one.verified, one.program
        );
        if one.verified > FOLLOWED {
            wrong.push(format!(
                "{followed}; it may be {FOLLOWED}, and it refuses 1,000,000"
            ));
        } else if place < 3 {
            println!("vm: {followed}");
        }
    }
    if said.is_empty() {
        wrong.push("nothing was said of what the verifier followed".to_owned());
    }
    Ok(())
}

/// What the kernel held at a moment.
fn held(parts: &Parts<'_>, when: &str) -> Result<Value> {
    let text = part(parts, &format!("held {when}"))?;
    serde_json::from_str(text).with_context(|| format!("held {when}"))
}

/// Compares what the kernel held at two moments.
fn same(parts: &Parts<'_>, first: &str, then: &str, wrong: &mut Vec<String>) -> Result<()> {
    let (one, other) = (held(parts, first)?, held(parts, then)?);
    println!("vm: the kernel held {one} {first}, {other} {then}");
    if one != other {
        wrong.push(format!("the kernel held {one} {first}, {other} {then}"));
    }
    Ok(())
}

fn part<'a>(parts: &'a Parts<'_>, name: &str) -> Result<&'a str> {
    let text = parts.get(name);
    let text = text.with_context(|| format!("nothing was printed as {name}"))?;
    Ok(text)
}

fn parts(said: &str) -> Parts<'_> {
    let mut parts = Parts::new();
    let mut name = "";
    for line in said.lines() {
        if let Some(next) = line.strip_prefix("## ") {
            name = next.trim();
            parts.entry(name).or_default();
        } else {
            let part = parts.entry(name).or_default();
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

fn one(parts: &Parts<'_>, program: &Program, alloc: &str, wrong: &mut Vec<String>) -> Result<()> {
    let part = |what: &str| part(parts, &format!("{} {what}", program.name));
    let [attached, detached] =
        ["attached", "detached"].map(|when| format!("{} {when}", program.name));
    let links = |held: Value| held["links"].as_u64().unwrap_or(0);
    if links(held(parts, &attached)?) <= links(held(parts, "ready")?) {
        wrong.push(format!(
            "{}: no link was counted while it was attached",
            program.name
        ));
    }
    same(parts, "ready", &detached, wrong)?;
    let said = part("said")?;
    let truth = said_of(said, "calls")?;
    let unseen = said_of(said, "unseen")?;
    let stats: Value = serde_json::from_str(part("stats")?).context("stats")?;
    let after: Value = serde_json::from_str(part("after")?).context("stats after the detach")?;
    let mut compare = |what: &str, memscope: &Value, program_says: &Value| {
        let same = memscope == program_says && !memscope.is_null();
        let line = format!(
            "{} {what}: memscope {memscope}, the program {program_says}",
            program.name
        );
        println!("vm: {}{line}", if same { "" } else { "WRONG: " });
        if !same {
            wrong.push(line);
        }
    };
    for (name, field) in [
        ("allocs", "alloc_count"),
        ("frees", "free_count"),
        ("live", "live_blocks"),
        ("live_bytes", "allocated_bytes"),
    ] {
        compare(name, &stats["devices"][0][field], &truth[name]);
        // Calls after the detach must not be counted.
        let what = format!("{name}, after the detach");
        compare(&what, &after["devices"][0][field], &truth[name]);
    }
    let failures = stats["failures"].as_array().cloned().unwrap_or_default();
    let failed = failures.iter().find(|one| one["function"] == alloc);
    let failed = failed.map_or(Value::Null, |one| one["count"].clone());
    compare("failed", &failed, &truth["failed"]);
    compare("lost records", &stats["lost_records"], &Value::from(0));
    let state = &after["process"]["state"];
    compare("state", state, &Value::from("detached"));
    let stacks = part("stacks")?;
    let taken: u64 = stacks.lines().filter_map(count).sum();
    compare("stacks", &Value::from(taken), &truth["allocs"]);
    let calls = |line: &Value| line["allocs"].as_u64().unwrap_or(0);
    if calls(&unseen) <= calls(&truth) {
        wrong.push(format!(
            "{}: nothing was called after the detach",
            program.name
        ));
    }
    for chain in program.chains {
        let found = stacks.lines().any(|line| has(line, chain));
        let chain = chain.join(";");
        println!(
            "vm: {}{} stack {chain}",
            if found { "" } else { "WRONG: no " },
            program.name
        );
        if !found {
            wrong.push(format!("{}: no stack shows {chain}", program.name));
        }
    }
    Ok(())
}

/// The line of JSON that the program printed about one part of its run.
fn said_of(said: &str, part: &str) -> Result<Value> {
    said.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| line["part"] == part)
        .with_context(|| format!("the program said nothing of {part}"))
}

/// The number at the end of a line of folded stacks.
fn count(line: &str) -> Option<u64> {
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Whether a line of folded stacks has these functions, in this order, the last one innermost.
fn has(line: &str, chain: &[&str]) -> bool {
    let Some((stack, _)) = line.rsplit_once(' ') else {
        return false;
    };
    let names: Vec<&str> = stack
        .split(';')
        .map(|frame| frame.split(' ').next().unwrap_or(frame))
        .collect();
    let mut rest = chain.iter().peekable();
    for name in &names {
        if rest.peek() == Some(&name) {
            rest.next();
        }
    }
    rest.peek().is_none() && names.last() == chain.last()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SAID: &str = r#"{"part":"calls","allocs":3,"frees":1,"failed":1,"live":2,"live_bytes":96}
{"part":"unseen","allocs":4,"frees":2,"failed":1,"live":2,"live_bytes":96}"#;

    const HELD: &str = r#"{"programs":19,"links":3}"#;

    const VERIFIED: &str = r#"{"program":"call_return","verified":50000}"#;

    fn machine(bytes: u64, stack: &str) -> String {
        let device = format!(
            r#"{{"alloc_count":3,"free_count":1,"live_blocks":2,"allocated_bytes":{bytes}}}"#
        );
        let stats = format!(
            r#"{{"devices":[{device}],"failures":[{{"function":"f","count":1}}],"lost_records":0,"process":{{"state":"detached"}}}}"#
        );
        let mut all = format!(
            "boot\n## machine\nLinux 6.1.0-50-amd64 x86_64\n## held ready\n{HELD}\n## verified\n{VERIFIED}\n"
        );
        for name in ["c", "python"] {
            all.push_str(&format!(
                "## {name} stats\n{stats}\n## {name} after\n{stats}\n"
            ));
            all.push_str(&format!("## {name} said\nready\n{SAID}\n"));
            all.push_str(&format!("## {name} stacks\n{stack}\n"));
            let attached = r#"{"programs":19,"links":4}"#;
            all.push_str(&format!("## held {name} attached\n{attached}\n"));
            all.push_str(&format!("## held {name} detached\n{HELD}\n"));
        }
        let log = "INFO ready socket=/run/s links=\"uprobe_multi\"";
        all + &stopped(0, log)
    }

    fn stopped(code: u32, log: &str) -> String {
        format!(
            "## held before\n{{}}\n## stopped\n{code}\n## held stopped\n{{}}\n## log\n{log}\n## state directory\n## end\n"
        )
    }

    const STACKS: &str = "x (y);_bootstrap (t.py:1);run (a:1);use_one (a:2);take (a:3) [native] 1\n\
                          _bootstrap (t.py:1);run (a:1);keep_one (a:2);take (a:3) 2";

    #[test]
    fn right_and_wrong_numbers() {
        let right = Outcome::Right {
            links: "uprobe_multi".to_owned(),
        };
        let judged = judge(&machine(96, STACKS), "f").unwrap();
        assert_eq!(judged, ("6.1.0-50-amd64".to_owned(), right));
        let wrong = |said: &str| judge(said, "f").unwrap_err().to_string();
        let bytes = wrong(&machine(97, STACKS));
        assert!(bytes.contains("live_bytes: memscope 97, the program 96"));
        let stack = wrong(&machine(96, "run;take;use_one 3"));
        assert!(stack.contains("no stack shows run;use_one;take"));
        let left = machine(96, STACKS).replace(
            &format!("held c detached\n{HELD}"),
            "held c detached\n{\"links\":4}",
        );
        assert!(wrong(&left).contains("c detached"));
        let long = wrong(&machine(96, STACKS).replace("50000", "900000"));
        assert!(long.contains("followed 900000 instructions of call_return"));
        let unsaid = wrong(&machine(96, STACKS).replace(VERIFIED, ""));
        assert!(unsaid.contains("nothing was said"));
        assert!(judge("## c said\n", "f").is_err());
        assert!(judge("## end\n", "f").is_err());
    }

    #[test]
    fn an_old_kernel_is_refused_in_one_sentence() {
        let machine = "## machine\nLinux 5.10.0-32-amd64 x86_64\n";
        let says = |code, log| judge(&format!("{machine}{}", stopped(code, log)), "f");
        let sentence = "needs Linux 5.15, this is Linux 5.10.0-32-amd64";
        let log = format!("memscoped: {sentence}\n");
        let (_, outcome) = says(1, &log).unwrap();
        let expected = Outcome::Refused {
            sentence: sentence.to_owned(),
        };
        assert_eq!(outcome, expected);
        assert!(says(0, &log).is_err());
        assert!(says(1, "memscoped: the kernel refused it").is_err());
        assert!(says(1, &format!("{log}{log}")).is_err());
    }
}
