//! Compares the numbers of memscope that the machine printed with those of the programs themselves.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

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

/// Fails with a list of everything that is wrong.
pub fn judge(said: &str, alloc: &str) -> Result<()> {
    let parts = parts(said);
    if !parts.contains_key("end") {
        bail!("the machine did not come to its end");
    }
    let mut wrong = Vec::new();
    for program in &PROGRAMS {
        if let Err(error) = one(&parts, program, alloc, &mut wrong) {
            wrong.push(format!("{}: {error:#}", program.name));
        }
    }
    if !wrong.is_empty() {
        bail!("the machine's numbers are wrong:\n  {}", wrong.join("\n  "));
    }
    println!("vm: everything agrees");
    Ok(())
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
    let part = |what: &str| {
        let name = format!("{} {what}", program.name);
        let text = parts.get(name.as_str());
        text.with_context(|| format!("nothing was printed as {name}"))
    };
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

    fn machine(bytes: u64, stack: &str) -> String {
        let device = format!(
            r#"{{"alloc_count":3,"free_count":1,"live_blocks":2,"allocated_bytes":{bytes}}}"#
        );
        let stats = format!(
            r#"{{"devices":[{device}],"failures":[{{"function":"f","count":1}}],"lost_records":0,"process":{{"state":"detached"}}}}"#
        );
        let mut all = "boot\n".to_owned();
        for name in ["c", "python"] {
            all.push_str(&format!(
                "## {name} stats\n{stats}\n## {name} after\n{stats}\n"
            ));
            all.push_str(&format!("## {name} said\nready\n{SAID}\n"));
            all.push_str(&format!("## {name} stacks\n{stack}\n"));
        }
        all + "## end\n"
    }

    const STACKS: &str = "x (y);_bootstrap (t.py:1);run (a:1);use_one (a:2);take (a:3) [native] 1\n\
                          _bootstrap (t.py:1);run (a:1);keep_one (a:2);take (a:3) 2";

    #[test]
    fn right_and_wrong_numbers() {
        judge(&machine(96, STACKS), "f").unwrap();
        let wrong = judge(&machine(97, STACKS), "f").unwrap_err().to_string();
        assert!(wrong.contains("live_bytes: memscope 97, the program 96"));
        let wrong = judge(&machine(96, "run;take;use_one 3"), "f").unwrap_err();
        assert!(
            wrong
                .to_string()
                .contains("no stack shows run;use_one;take")
        );
        assert!(judge("## c said\n", "f").is_err());
        assert!(judge("## end\n", "f").is_err());
    }
}
