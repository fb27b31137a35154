//! `cargo xtask chart`: renders the Helm chart into the plain manifests in `deploy/kubernetes`, or checks that they are what it gives.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use crate::process;
use crate::setup::mode::Mode;
use crate::setup::{self, chart};

/// What to do.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only check that the committed manifests are what the chart gives
    #[arg(long)]
    pub check: bool,
}

/// What tests/chart/render.py prints.
#[derive(Deserialize)]
struct Rendered {
    rendered: BTreeMap<String, String>,
}

/// The values with which everything is rendered that the chart has.
const ALL: &str = r#"{"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}, "dashboards": {"enabled": true}}"#;

/// Templates of what needs the Prometheus operator or Grafana, which go into a file of their own.
const MONITORING: [&str; 3] = ["podmonitor.yaml", "prometheusrule.yaml", "dashboards.yaml"];

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let alone = setup::alone()?;
    if !chart::ensure(Mode::Install)? {
        bail!("the chart cannot be rendered");
    }
    drop(alone);
    let root = process::root();
    let text = process::output(
        Command::new(chart::python())
            .arg(root.join("tests/chart/render.py"))
            .arg(root.join("deploy/helm/memscope"))
            .arg(ALL),
    )?;
    let rendered: Rendered =
        serde_json::from_str(&text).context("what Helm rendered is not understood")?;
    let mut nodes = heading("The namespace is `memscope`: kubectl create namespace memscope");
    let mut monitoring = heading("For the Prometheus operator and for Grafana's sidecar.");
    for (path, manifest) in &rendered.rendered {
        let name = path.rsplit('/').next().unwrap_or_default();
        if manifest.trim().is_empty() || !name.ends_with(".yaml") {
            continue;
        }
        let file = match MONITORING.contains(&name) {
            true => &mut monitoring,
            false => &mut nodes,
        };
        // These manifests are not Helm's.
        let plain = manifest.replace("managed-by: Helm", "managed-by: kubectl");
        let lines = plain
            .trim()
            .lines()
            .filter(|line| !line.contains("helm.sh/chart:"));
        *file += "---\n";
        for line in lines {
            *file += &format!("{}\n", line.trim_end());
        }
    }
    for (name, text) in [("memscope.yaml", nodes), ("monitoring.yaml", monitoring)] {
        let path = root.join("deploy/kubernetes").join(name);
        if options.check {
            if fs::read_to_string(&path).unwrap_or_default() != text {
                bail!(
                    "{} is not what the chart gives: cargo xtask chart",
                    path.display()
                );
            }
        } else {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    eprintln!("chart: deploy/kubernetes is what it gives");
    Ok(())
}

fn heading(more: &str) -> String {
    format!("# Made of deploy/helm/memscope by `cargo xtask chart`; a test compares both. {more}\n")
}
