//! The simulated devices and the Python environment that goes with them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::places::{root, workload};
use crate::program::run;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// CUDA.
    Cuda,
    /// CANN, with torch_npu.
    Npu,
}

impl Device {
    /// As `cargo xtask sim --device` and PyTorch call it.
    pub fn name(self) -> &'static str {
        match self {
            Device::Cuda => "cuda",
            Device::Npu => "npu",
        }
    }

    /// What the names of its settings begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Device::Cuda => "SIMCUDA_",
            Device::Npu => "SIMCANN_",
        }
    }
}

/// What `cargo xtask sim` gives.
pub struct Sim {
    device: Device,
    variables: Vec<(String, String)>,
    python: PathBuf,
    libraries: PathBuf,
}

/// The simulated CUDA device; found out once.
pub fn sim() -> &'static Sim {
    sim_of(Device::Cuda)
}

/// A simulated device; found out once.
pub fn sim_of(device: Device) -> &'static Sim {
    static CUDA: OnceLock<Sim> = OnceLock::new();
    static NPU: OnceLock<Sim> = OnceLock::new();
    let sim = match device {
        Device::Cuda => &CUDA,
        Device::Npu => &NPU,
    };
    sim.get_or_init(|| Sim::find(device))
}

/// The words with which `cc` compiles a C program that uses AscendCL; found out once.
pub(crate) fn acl_flags() -> &'static [String] {
    static FLAGS: OnceLock<Vec<String>> = OnceLock::new();
    FLAGS.get_or_init(|| {
        let words = xtask(&["--device", Device::Npu.name(), "--c-flags"]);
        words.split_whitespace().map(str::to_owned).collect()
    })
}

/// Runs `cargo xtask sim ARGUMENTS`. Builds the libraries where that is needed, so it may take a while.
fn xtask(arguments: &[&str]) -> String {
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
    fn find(device: Device) -> Sim {
        if device == Device::Cuda && std::env::var_os("MEMSCOPE_REAL_DEVICE").is_some() {
            return Sim::real();
        }
        let chosen = ["--device", device.name()];
        let variables: Vec<(String, String)> = xtask(&[&chosen[..], &["--print-env"]].concat())
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let value = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| name == wanted);
            found.map_or("", |(_, value)| value.as_str())
        };
        let libraries = match device {
            Device::Cuda => {
                let runtime = value("LD_PRELOAD")
                    .split(':')
                    .find(|file| file.contains("libcudart.so"));
                Path::new(runtime.expect("LD_PRELOAD names libcudart"))
                    .parent()
                    .unwrap()
                    .to_owned()
            }
            Device::Npu => Path::new(value("ASCEND_HOME_PATH")).join("lib64"),
        };
        let script = "import sys; print(sys.executable)";
        let python = xtask(&[&chosen[..], &["--", "python", "-Sc", script]].concat())
            .trim()
            .into();
        Sim {
            device,
            variables,
            python,
            libraries,
        }
    }

    /// This machine's GPU, with the PyTorch in `$MEMSCOPE_TORCH_VENV`, where `MEMSCOPE_REAL_DEVICE` is set. Tests that
    /// want the simulated device to do something of its own (several devices, one of a size, calls that fail) fail there.
    fn real() -> Sim {
        let folder = std::env::var_os("MEMSCOPE_TORCH_VENV");
        let folder = PathBuf::from(folder.expect("MEMSCOPE_TORCH_VENV names an environment"));
        let mut found = Sim {
            device: Device::Cuda,
            variables: Vec::new(),
            python: folder.join("bin/python"),
            libraries: PathBuf::new(),
        };
        let packages = std::fs::read_dir(found.site_packages().join("nvidia")).unwrap();
        let mut folders = packages.map(|entry| entry.unwrap().path().join("lib"));
        let has_runtime = |folder: &PathBuf| {
            let files = std::fs::read_dir(folder).into_iter().flatten();
            files.flatten().any(|file| {
                let name = file.file_name();
                name.to_string_lossy().starts_with("libcudart.so.")
            })
        };
        found.libraries = folders.find(has_runtime).expect("PyTorch has a libcudart");
        found
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
        match self.device {
            Device::Cuda => self.library("libcudart.so."),
            Device::Npu => self.libraries.join("libruntime.so"),
        }
    }

    /// The simulated driver: the HAL of an NPU.
    pub fn driver(&self) -> PathBuf {
        match self.device {
            Device::Cuda => self.library("libcuda.so."),
            Device::Npu => self.libraries.join("libascend_hal.so"),
        }
    }

    /// A variable of the environment that it makes.
    pub fn variable(&self, wanted: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
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
        self.script(&workload(script))
    }

    /// Any Python script on the simulated device.
    pub fn script(&self, file: &Path) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(file)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
            .env("PYTHONUNBUFFERED", "1")
            .env("MEMSCOPE_TEST_DEVICE", self.device.name())
            .env("OMP_NUM_THREADS", "1");
        command
    }

    /// The same with this tree's Python package, and the mark library that cargo has built beside the test.
    pub fn python_with_package(&self, script: &str) -> Command {
        let mut command = self.python(script);
        let own = std::env::current_exe().expect("a path of this test");
        let library = own.with_file_name("libmemscope_mark.so");
        assert!(library.is_file(), "{} is not there", library.display());
        command
            .env(
                "PYTHONPATH",
                self.path_with(root().join("clients/python/src")),
            )
            .env("MEMSCOPE_MARK_LIBRARY", library);
        command
    }

    /// The same with the library transformers, where `cargo xtask setup --transformers` puts it. A PyTorch of one's own must have it.
    pub fn python_with_transformers(&self, script: &str) -> Command {
        let mut command = self.python(script);
        let folder = root().join("target/venv/transformers");
        if std::env::var_os("MEMSCOPE_TORCH_VENV").is_none() {
            assert!(folder.is_dir(), "{} is not there", folder.display());
            command.env("PYTHONPATH", self.path_with(folder));
        }
        command
    }

    /// What PYTHONPATH must be for modules in a further folder.
    fn path_with(&self, folder: PathBuf) -> OsString {
        let others = self.variable("PYTHONPATH").map(PathBuf::from);
        std::env::join_paths(std::iter::once(folder).chain(others)).unwrap()
    }

    /// A native program on the simulated device. The libraries that it was linked with are found by
    /// themselves; nothing is preloaded.
    pub fn native(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, value) in &self.variables {
            if name.starts_with(self.device.prefix()) {
                command.env(name, value);
            }
        }
        command
    }
}
