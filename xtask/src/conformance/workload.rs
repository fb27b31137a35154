//! The scripts that are compared, and what they need.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{process, sim};

/// Folder of our own scripts.
pub const FOLDER: &str = "tests/workloads/conformance";
/// Beginning of a line that says what a script needs.
const MARK: &str = "# conformance:";

/// A script and what it needs.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Name of the workload in the table.
    pub name: String,
    /// Path of the script.
    pub script: PathBuf,
    /// Environment variables that the script needs.
    pub variables: Vec<(String, String)>,
    /// Number of simulated devices.
    pub devices: Option<u32>,
    /// Memory of the simulated devices.
    pub device_size: Option<String>,
    /// A feature that PyTorch must have for the script, such as `torch.cuda.MemPool`.
    pub needs: Option<String>,
}

impl Workload {
    /// Reads a script: one of our own, or any other.
    pub fn read(script: &Path) -> Result<Workload> {
        let script = std::path::absolute(script).context("cannot find the current directory")?;
        let text = fs::read_to_string(&script)
            .with_context(|| format!("cannot read the script {}", script.display()))?;
        let mut workload = Workload {
            name: script
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            script,
            ..Workload::default()
        };
        for line in text.lines() {
            if let Some(words) = line.strip_prefix(MARK) {
                workload
                    .take(words.trim())
                    .with_context(|| format!("in {}: {line}", workload.script.display()))?;
            }
        }
        Ok(workload)
    }

    fn take(&mut self, words: &str) -> Result<()> {
        match words.split_once(' ').unwrap_or((words, "")) {
            ("env", rest) => {
                let (name, value) = rest.split_once('=').context("env needs NAME=VALUE")?;
                self.variables.push((name.to_owned(), value.to_owned()));
            }
            ("devices", rest) => {
                self.devices = Some(rest.parse().context("devices needs a number")?);
            }
            ("device-size", rest) => self.device_size = Some(rest.to_owned()),
            ("needs", rest) => self.needs = Some(rest.to_owned()),
            (word, _) => {
                bail!("{word:?} is none of env, devices, device-size, needs");
            }
        }
        Ok(())
    }

    /// The script's environment variables, under the names that this device's PyTorch knows.
    pub fn variables_of(&self, device: sim::Device) -> Vec<(String, String)> {
        let mut variables = self.variables.clone();
        if device == sim::Device::Npu {
            for (name, _) in &mut variables {
                if name == "PYTORCH_CUDA_ALLOC_CONF" {
                    *name = "PYTORCH_NPU_ALLOC_CONF".to_owned();
                }
                *name = name.replace("SIMCUDA_", "SIMCANN_");
            }
            variables.push(("MEMSCOPE_ON_NPU".to_owned(), "1".to_owned()));
        }
        variables
    }

    /// A need of the script that only the simulated device is sure to fulfil, in words.
    pub fn simulated(&self) -> Option<String> {
        let simulated = self
            .variables
            .iter()
            .find(|(name, _)| name.starts_with("SIMCUDA_"))
            .map(|(name, _)| name.clone());
        let devices = self.devices.map(|number| format!("{number} devices"));
        let size = self.device_size.as_ref();
        let size = size.map(|size| format!("a device of {size}"));
        devices.or(size).or(simulated)
    }

    /// The settings of the simulated device that the script wants.
    pub fn device(&self, device: sim::Device) -> sim::Options {
        sim::Options {
            device,
            devices: self.devices,
            device_size: self.device_size.clone(),
            ..sim::Options::default()
        }
    }
}

/// Reads our own scripts: all, or those named.
pub fn ours(names: &[String]) -> Result<Vec<Workload>> {
    let folder = process::root().join(FOLDER);
    let mut scripts = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "py") {
            scripts.push(path);
        }
    }
    scripts.sort();
    let all = scripts
        .iter()
        .map(|script| Workload::read(script))
        .collect::<Result<Vec<_>>>()?;
    if names.is_empty() {
        return Ok(all);
    }
    names
        .iter()
        .map(|name| {
            let known = || {
                let names: Vec<&str> = all.iter().map(|w| w.name.as_str()).collect();
                format!(
                    "there is no workload {name}; there are {}",
                    names.join(", ")
                )
            };
            all.iter()
                .find(|workload| workload.name == *name)
                .cloned()
                .with_context(known)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &[&str]) -> Result<Workload> {
        let mut workload = Workload::default();
        for line in lines {
            workload.take(line)?;
        }
        Ok(workload)
    }

    #[test]
    fn what_a_script_says_it_needs() -> Result<()> {
        let workload = taken(&[
            "env PYTORCH_CUDA_ALLOC_CONF=a:b,c:[1:2,>:3]",
            "devices 3",
            "device-size 1GiB",
            "needs torch.cuda.MemPool",
        ])?;
        assert_eq!(
            workload.variables,
            [(
                "PYTORCH_CUDA_ALLOC_CONF".to_owned(),
                "a:b,c:[1:2,>:3]".to_owned()
            )]
        );
        assert_eq!(workload.devices, Some(3));
        assert_eq!(workload.device_size.as_deref(), Some("1GiB"));
        assert_eq!(workload.needs.as_deref(), Some("torch.cuda.MemPool"));
        for wrong in ["env A", "devices two", "surprise 1", ""] {
            assert!(taken(&[wrong]).is_err(), "{wrong:?}");
        }
        Ok(())
    }

    #[test]
    fn our_own_can_be_read() -> Result<()> {
        assert!(ours(&[])?.len() >= 12);
        assert_eq!(ours(&["devices".to_owned()])?.len(), 1);
        assert!(ours(&["nothing".to_owned()]).is_err());
        Ok(())
    }
}
