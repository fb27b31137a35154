//! Programs over PyTorch's allocator, as `xtask/differential/generate.py` makes them and as files keep them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{process, sim};

/// The environment in which a process is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the environment in messages.
    pub name: String,
    /// Number of simulated devices.
    pub devices: u32,
    /// Memory of each device, in MiB.
    pub room: u64,
    /// Settings of PyTorch's allocator (`PYTORCH_CUDA_ALLOC_CONF`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// Time between the record of an event and its completion, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_delay_us: Option<u64>,
}

impl Environment {
    /// The environment variables that set it up.
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

/// A kind of daemon: the arguments with which it is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonKind {
    /// Name of the kind: `roomy`, `rotation` or `overflow`.
    pub name: String,
    /// Arguments of memscoped.
    pub arguments: Vec<String>,
}

impl DaemonKind {
    /// Whether the ring is so small that records may be lost.
    pub fn loses(&self) -> bool {
        self.name == "overflow"
    }

    /// Whether the journal is so small that its oldest part is deleted.
    pub fn rotates(&self) -> bool {
        self.name == "rotation"
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Seed from which the program was generated.
    pub seed: u64,
    /// Environment of the process that plays it.
    pub environment: Environment,
    /// Kind of daemon that traces it.
    pub daemon: DaemonKind,
    /// Level at which memscope attaches.
    pub level: String,
    /// Stacks that memscope takes, as `attach --stacks` names them.
    pub stacks: String,
    /// The elements of the program, in their order; `player.py` says what each means.
    pub elements: Vec<Value>,
}

impl Program {
    /// The word that says what an element does.
    pub fn does(element: &Value) -> &str {
        element["do"].as_str().unwrap_or_default()
    }

    /// Whether both can be played in one process and traced by one daemon.
    pub fn goes_with(&self, other: &Program) -> bool {
        self.environment == other.environment && self.daemon == other.daemon
    }

    /// The same program with other elements.
    pub fn with(&self, elements: Vec<Value>) -> Program {
        Program {
            elements,
            ..self.clone()
        }
    }

    /// Reads a program from a file. Other keys in the file are for people and ignored.
    pub fn read(file: &Path) -> Result<Program> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the program {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no program of this task", file.display()))
    }
}

/// Generates the programs of a range of seeds, both ends included. `without` names elements, environments and kinds
/// of daemon to leave out.
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

/// Groups the programs that can be played together. Their order is kept otherwise.
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
