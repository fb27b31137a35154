//! The simulated CUDA device and the Python environment that goes with it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::places::{root, workload};
use crate::program::run;

/// What `cargo xtask sim` gives.
pub struct Sim {
    variables: Vec<(String, String)>,
    python: PathBuf,
    libraries: PathBuf,
}

/// The simulated device; found out once.
pub fn sim() -> &'static Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    SIM.get_or_init(Sim::find)
}

/// Runs `cargo xtask sim ARGUMENTS`. Builds the libraries where that is needed, so it may take a while.
pub(crate) fn xtask(arguments: &[&str]) -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .args(["xtask", "sim"])
        .args(arguments);
    // Those of this test's own build would make cargo build again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG")
            || text.starts_with("CARGO_MANIFEST")
            || text.starts_with("NEXTEST")
        {
            command.env_remove(&name);
        }
    }
    let (status, output, errors) = run(command, Duration::from_secs(600));
    assert!(
        status.success(),
        "cargo xtask sim {arguments:?}: {status}\n{errors}"
    );
    output
}

impl Sim {
    fn find() -> Sim {
        let variables: Vec<(String, String)> = xtask(&["--print-env"])
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let preload = variables
            .iter()
            .find(|(name, _)| name == "LD_PRELOAD")
            .map(|(_, value)| value.as_str());
        let runtime = preload
            .unwrap_or_default()
            .split(':')
            .find(|file| file.contains("libcudart.so"));
        let libraries = Path::new(runtime.expect("LD_PRELOAD names libcudart"))
            .parent()
            .unwrap()
            .to_owned();
        let python = xtask(&["--", "python", "-Sc", "import sys; print(sys.executable)"])
            .trim()
            .into();
        Sim {
            variables,
            python,
            libraries,
        }
    }

    /// The folder of the simulated libraries.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// The file of a simulated library, by the beginning of its name.
    pub fn library(&self, beginning: &str) -> PathBuf {
        let mut names: Vec<PathBuf> = std::fs::read_dir(&self.libraries)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                name.strip_prefix(beginning)
                    .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
            })
            .collect();
        names.sort();
        names
            .pop()
            .unwrap_or_else(|| panic!("no {beginning}* in {}", self.libraries.display()))
    }

    /// The simulated runtime.
    pub fn runtime(&self) -> PathBuf {
        self.library("libcudart.so.")
    }

    /// The simulated driver.
    pub fn driver(&self) -> PathBuf {
        self.library("libcuda.so.")
    }

    /// The folder that the `torch` package is in.
    pub fn site_packages(&self) -> PathBuf {
        let library = self
            .python
            .parent()
            .and_then(Path::parent)
            .unwrap()
            .join("lib");
        let mut folders = std::fs::read_dir(&library)
            .unwrap()
            .map(|entry| entry.unwrap().path().join("site-packages"));
        folders
            .find(|folder| folder.join("torch").is_dir())
            .expect("the environment has torch")
    }

    /// A Python workload on the simulated device.
    pub fn python(&self, script: &str) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(workload(script))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            .env("OMP_NUM_THREADS", "1");
        command
    }

    /// A native program on the simulated device. The libraries that it was linked with are found by
    /// themselves; nothing is preloaded.
    pub fn native(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, value) in &self.variables {
            if name.starts_with("SIMCUDA_") {
                command.env(name, value);
            }
        }
        command
    }
}
