//! Programs over PyTorch's allocator, as `xtask/differential/generate.py` makes them and as files keep them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{process, sim};

/// What a process is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// What the tables call it.
    pub name: String,
    /// Simulated devices.
    pub devices: u32,
    /// Memory of each, in MiB.
    pub room: u64,
    /// How PyTorch's allocator is told to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// How long after its record an event completes, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_delay_us: Option<u64>,
}

impl Environment {
    /// The environment variables that make it.
    pub fn variables(&self, installation: &Path) -> Result<Vec<(String, String)>> {
        let device = sim::Options {
            devices: Some(self.devices),
            device_size: Some(format!("{}MiB", self.room)),
            event_delay_us: self.event_delay_us,
            ..sim::Options::default()
        };
        let mut variables = sim::environment_of(installation, &device)?;
        if let Some(settings) = &self.settings {
            variables.push(("PYTORCH_CUDA_ALLOC_CONF".to_owned(), settings.clone()));
        }
        Ok(variables)
    }
}

/// What a daemon is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonKind {
    /// `roomy`, `rotation`, `overflow`.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl DaemonKind {
    /// Whether its ring is so small that records may be lost.
    pub fn loses(&self) -> bool {
        self.name == "overflow"
    }

    /// Whether its journal is so small that its oldest part goes.
    pub fn rotates(&self) -> bool {
        self.name == "rotation"
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// What it was made from.
    pub seed: u64,
    /// What its process is started with.
    pub environment: Environment,
    /// What its daemon is started with.
    pub daemon: DaemonKind,
    /// At which level memscope attaches.
    pub level: String,
    /// Which stacks are taken.
    pub stacks: String,
    /// What happens, one after the other; `player.py` says what each means.
    pub elements: Vec<Value>,
}

impl Program {
    /// What an element does.
    pub fn does(element: &Value) -> &str {
        element["do"].as_str().unwrap_or_default()
    }

    /// Whether both can be played in one process and watched by one daemon.
    pub fn goes_with(&self, other: &Program) -> bool {
        self.environment == other.environment && self.daemon == other.daemon
    }

    /// The same with other elements.
    pub fn with(&self, elements: Vec<Value>) -> Program {
        Program {
            elements,
            ..self.clone()
        }
    }

    /// From a file; what else is in it is for people.
    pub fn read(file: &Path) -> Result<Program> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the program {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no program of this task", file.display()))
    }
}

/// The programs of some seeds, both ends included, without what is named.
pub fn generate(first: u64, last: u64, without: &[String]) -> Result<Vec<Program>> {
    let python = process::find_program("python3").context("no python3 on PATH")?;
    let mut command = Command::new(python);
    command
        .args(["-I", "-B"])
        .arg(process::root().join("xtask/differential/generate.py"))
        .args([first.to_string(), last.to_string()])
        .args(without);
    let text = process::output(&mut command)?;
    let programs = text
        .lines()
        .map(|line| serde_json::from_str(line).context("a generated program is not understood"))
        .collect::<Result<Vec<Program>>>()?;
    if programs.is_empty() {
        bail!("no program was generated");
    }
    Ok(programs)
}

/// In an order in which those that go together stand together, as they came otherwise.
pub fn grouped(programs: Vec<Program>) -> Vec<Vec<Program>> {
    let mut groups: Vec<Vec<Program>> = Vec::new();
    for program in programs {
        let fitting = groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|other| other.goes_with(&program)));
        match fitting {
            Some(group) => group.push(program),
            None => groups.push(vec![program]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_program() -> Result<()> {
        let all = generate(1, 30, &[])?;
        assert_eq!(all.len(), 30);
        assert_eq!(generate(7, 7, &[])?, all[6..7]);
        let other = generate(1, 30, &["rotation".to_owned(), "overflow".to_owned()])?;
        assert!(other.iter().all(|program| program.daemon.name == "roomy"));
        Ok(())
    }

    #[test]
    fn a_program_survives_its_file() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("program.json");
        for program in generate(1, 30, &[])? {
            std::fs::write(&file, serde_json::to_string(&program)?)?;
            assert_eq!(Program::read(&file)?, program);
        }
        std::fs::write(&file, "{}")?;
        assert!(Program::read(&file).is_err());
        Ok(())
    }

    #[test]
    fn those_that_go_together_stand_together() -> Result<()> {
        let groups = grouped(generate(1, 60, &[])?);
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 60);
        for (at, group) in groups.iter().enumerate() {
            assert!(group.iter().all(|program| program.goes_with(&group[0])));
            assert!(
                groups[..at]
                    .iter()
                    .all(|before| !before[0].goes_with(&group[0]))
            );
        }
        Ok(())
    }
}
