//! `cargo xtask dashboards`: writes the dashboards for Grafana in `deploy/grafana` from one description.
//!
//! Owns: how a description becomes Grafana's JSON. What the dashboards show is in `described`.

mod described;

use anyhow::{Context, Result, bail};
use clap::Args;
use described::{DASHBOARDS, Dashboard, Line, Panel};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

use crate::process;

/// Folder of the dashboards.
const FOLDER: &str = "deploy/grafana";
/// Columns of Grafana's grid, and how many of them and of its rows a panel takes.
const GRID: usize = 24;
const WIDTH: usize = 12;
const HEIGHT: usize = 8;
/// Version of Grafana's format for dashboards: that of Grafana 9 and 10, which later ones read as well.
const SCHEMA: u32 = 38;

/// What to do.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Write nothing; fail if the committed files are not what the description gives
    #[arg(long)]
    pub check: bool,
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    for dashboard in DASHBOARDS {
        let path = path(dashboard);
        let text = text(dashboard)?;
        if !options.check {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}", path.display());
        } else if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            bail!(
                "{} is not what its description gives; `cargo xtask dashboards` makes it anew",
                path.display()
            );
        }
    }
    Ok(())
}

fn path(dashboard: &Dashboard) -> PathBuf {
    process::root()
        .join(FOLDER)
        .join(format!("{}.json", dashboard.file))
}

fn text(dashboard: &Dashboard) -> Result<String> {
    Ok(serde_json::to_string_pretty(&document(dashboard))? + "\n")
}

fn document(dashboard: &Dashboard) -> Value {
    let panels = dashboard.panels.iter().enumerate();
    let mut variables = vec![json!({
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
    })];
    variables.extend(dashboard.variables.iter().map(|name| {
        let of = match *name {
            "instance" => "memscope_build",
            _ => "memscope_process",
        };
        // Where there is no job, a process has no label for one, and `.*` would match it.
        let all = match *name {
            "job_id" => ".+",
            _ => ".*",
        };
        json!({
            "name": name, "label": name, "type": "query", "datasource": source(), "refresh": 2,
            "query": {"query": format!("label_values({of}, {name})"), "refId": name},
            "multi": true, "includeAll": true, "allValue": all, "current": {"text": "All", "value": "$__all"},
        })
    }));
    json!({
        "uid": format!("memscope-{}", dashboard.file),
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["memscope"],
        "schemaVersion": SCHEMA,
        "editable": true,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["memscope"], "title": "memscope", "asDropdown": true, "includeVars": true, "keepTime": true}],
        "templating": {"list": variables},
        "panels": panels.map(|(nth, one)| panel(nth, one)).collect::<Vec<_>>(),
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panel(nth: usize, panel: &Panel) -> Value {
    let lines = panel.lines.iter().zip('A'..);
    let targets = lines.map(|(Line { expression, legend }, id)| {
        json!({
            "refId": id.to_string(), "datasource": source(), "expr": expression, "legendFormat": legend,
            "instant": panel.is_table, "range": !panel.is_table, "format": if panel.is_table { "table" } else { "time_series" },
        })
    });
    let per_row = GRID / WIDTH;
    let mut made = json!({
        "id": nth + 1,
        "title": panel.title,
        "description": panel.description,
        "type": if panel.is_table { "table" } else { "timeseries" },
        "datasource": source(),
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": nth % per_row * WIDTH, "y": nth / per_row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets.collect::<Vec<_>>(),
    });
    // A difference may be below zero, and would be cut off.
    let is_difference = |line: &Line| line.expression.contains(" - ");
    if !panel.lines.iter().any(is_difference) {
        made["fieldConfig"]["defaults"]["min"] = json!(0);
    }
    if panel.is_table {
        made["transformations"] = json!([{"id": "organize", "options": {"excludeByName": {"Time": true, "__name__": true, "job": true}}}]);
    }
    made
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_metrics::FAMILIES;
    use std::collections::HashSet;

    #[test]
    fn the_committed_dashboards_are_what_their_description_gives() {
        run(&Options { check: true }).unwrap();
    }

    #[test]
    fn what_may_be_negative_is_not_cut_off_and_bytes_are_bytes() {
        let panels = DASHBOARDS.iter().flat_map(|one| one.panels);
        for (nth, one) in panels.enumerate() {
            let made = panel(nth, one);
            let has_floor = made["fieldConfig"]["defaults"].get("min").is_some();
            for line in one.lines {
                let may_be_negative = line.expression.ends_with(" - 1");
                assert!(!(has_floor && may_be_negative), "{}", one.title);
                if one.unit == "bytes" {
                    assert!(line.expression.contains("bytes"), "{}", one.title);
                }
            }
        }
    }

    /// `.*` matches series without the label as well. What is of no job would be drawn as one curve, the sum of all such processes.
    #[test]
    fn all_jobs_are_not_what_has_no_job() {
        let mut found = HashSet::new();
        for dashboard in DASHBOARDS {
            let made = document(dashboard);
            for variable in made["templating"]["list"].as_array().unwrap() {
                let name = variable["name"].as_str().unwrap().to_owned();
                let all = variable["allValue"].as_str();
                match name.as_str() {
                    "datasource" => assert_eq!(all, None),
                    "job_id" => assert_eq!(all, Some(".+"), "{}", dashboard.file),
                    _ => assert_eq!(all, Some(".*"), "{}: {name}", dashboard.file),
                }
                found.insert(name);
            }
        }
        assert!(found.contains("job_id"), "{found:?}");
    }

    /// Words of a text that look like names of metrics.
    fn names(text: &str) -> HashSet<String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':');
        let words = text.split(|letter| !is_part(letter));
        let ours = words.filter(|word| word.starts_with("memscope_") || word.starts_with("hw_gpu"));
        ours.map(str::to_owned).collect()
    }

    #[test]
    fn only_metrics_that_exist_are_asked_for() {
        let known: HashSet<String> = FAMILIES.iter().map(|family| family.full_name()).collect();
        let rules =
            fs::read_to_string(process::root().join("deploy/prometheus/memscope.rules.yml"))
                .unwrap();
        let mut asked = names(&rules);
        assert!(asked.len() > 10, "{asked:?}");
        for line in DASHBOARDS
            .iter()
            .flat_map(|one| one.panels)
            .flat_map(|panel| panel.lines)
        {
            asked.extend(names(line.expression));
        }
        let unknown: Vec<&String> = asked.iter().filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let recorded = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- record: "));
        let recorded: HashSet<&str> = recorded.collect();
        for line in DASHBOARDS
            .iter()
            .flat_map(|one| one.panels)
            .flat_map(|panel| panel.lines)
        {
            let words = line.expression.split(|letter: char| {
                !(letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':'))
            });
            for word in words.filter(|word| word.starts_with("memscope:")) {
                assert!(recorded.contains(word), "{word} is recorded by no rule");
            }
        }
    }

    #[test]
    fn each_expression_uses_the_dashboards_variables() {
        for dashboard in DASHBOARDS {
            for line in dashboard.panels.iter().flat_map(|panel| panel.lines) {
                for variable in line.expression.split('$').skip(1) {
                    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                    let name: String = variable.chars().take_while(|one| is_part(*one)).collect();
                    let known =
                        dashboard.variables.contains(&name.as_str()) || name == "__rate_interval";
                    assert!(known, "{}: ${name} in {}", dashboard.file, line.expression);
                }
            }
        }
    }
}
