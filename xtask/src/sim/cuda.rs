//! Builds the simulated CUDA libraries for one PyTorch environment.
//!
//! The libraries export what the libraries of the environment's own PyTorch import, by name and symbol version. Of
//! NVIDIA's wheels only the runtime's is needed, for its exports and headers. `tests/simcuda/src` has the function
//! bodies that matter; every other export becomes a stub.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::compiler::{self, Compiler};
use super::cuda_header;
use crate::elf::{self, Exports};
use crate::process;
use crate::setup::torch::stubs::{stub_source, version_script};
use crate::setup::torch::wheels::{self, StandIn, Wheels};

/// The simulated libraries of one environment.
pub struct Libraries {
    /// Folder of the libraries.
    pub folder: PathBuf,
    /// The names of the stand-ins, in the order in which they need each other.
    pub names: Vec<String>,
    /// Folders with headers: first our replacements, then the real ones.
    pub include: Vec<PathBuf>,
}

impl Libraries {
    /// Paths of the libraries to preload.
    pub fn preload(&self, with_nvml: bool) -> Vec<PathBuf> {
        let nvml = with_nvml.then_some(NVML);
        let names = [DRIVER]
            .into_iter()
            .chain(nvml)
            .chain(self.names.iter().map(String::as_str));
        names.map(|name| self.folder.join(name)).collect()
    }

    /// Arguments of the compiler for a C program that uses the driver and the runtime.
    pub fn c_flags(&self) -> Vec<String> {
        let mut words = Vec::new();
        for folder in &self.include {
            words.extend(["-isystem".to_owned(), folder.display().to_string()]);
        }
        words.extend(
            [DRIVER, &self.names[0]].map(|name| self.folder.join(name).display().to_string()),
        );
        words.push(format!("-Wl,-rpath,{}", self.folder.display()));
        words
    }
}

/// The driver's libraries, which are not part of any wheel. The first exports what its header declares, the second
/// what its source defines.
const DRIVER: &str = "libcuda.so.1";
const NVML: &str = "libnvidia-ml.so.1";
/// AMD's runtime: the same device under HIP's names, in one library.
const HIP: &str = "libamdhip64.so.5";

/// File that is written last, with the names of the stand-ins, one per line.
const NAMES: &str = "stand-ins";

/// Functions that tools put probes on. After the build it is checked that they begin with `push`.
const PROBED_DRIVER: &[&str] = &[
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
];
const PROBED_RUNTIME: &[&str] = &[
    "cudaMalloc",
    "cudaFree",
    "cudaMallocAsync",
    "cudaFreeAsync",
    "cudaMallocManaged",
    "cudaHostAlloc",
    "cudaSetDevice",
];

/// Builds the libraries for `environment`, unless they are there already.
pub fn build(environment: &Path) -> Result<Libraries> {
    let wheels = wheels::find(environment)?;
    let sources = process::root().join("tests/simcuda/src");
    let include = vec![sources.join("include"), wheels.include.clone()];
    let name = environment
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let folder = process::target()
        .join("simcuda")
        .join(format!("{name}-{:016x}", fingerprint(&sources, &wheels)?));
    if !folder.join(NAMES).exists() {
        eprintln!(
            "sim: building the simulated CUDA libraries in {}",
            folder.display()
        );
        compiler::aside(&folder, NAMES, |aside| {
            let mut include = include.clone();
            include.extend([sources.clone(), compiler::common(), aside.to_path_buf()]);
            Builder {
                wheels: &wheels,
                sources: &sources,
                compiler: Compiler::new("cc", include, aside)?,
                out: aside,
            }
            .all()
        })?;
    }
    let names = fs::read_to_string(folder.join(NAMES)).context("cannot read what was built")?;
    Ok(Libraries {
        folder,
        names: names.lines().map(str::to_owned).collect(),
        include,
    })
}

/// A hash that changes whenever the libraries have to be built again.
fn fingerprint(sources: &Path, wheels: &Wheels) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    include_str!("cuda.rs").hash(&mut hasher);
    include_str!("../setup/torch/wheels.rs").hash(&mut hasher);
    include_str!("../setup/torch/stubs.rs").hash(&mut hasher);
    include_str!("cuda_header.rs").hash(&mut hasher);
    include_str!("compiler.rs").hash(&mut hasher);
    include_str!("../elf.rs").hash(&mut hasher);
    for folder in [sources, &compiler::common(), &hip()] {
        compiler::hash_files(folder, &mut hasher)?;
    }
    for library in wheels.torch.iter().chain([&wheels.runtime]) {
        let data = library
            .metadata()
            .with_context(|| format!("cannot read {}", library.display()))?;
        (library, data.len(), data.modified()?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Folder of the sources that make the simulated device one of AMD's.
fn hip() -> PathBuf {
    process::root().join("tests/simhip")
}

struct Builder<'a> {
    wheels: &'a Wheels,
    sources: &'a Path,
    compiler: Compiler,
    out: &'a Path,
}

impl Builder<'_> {
    fn all(&self) -> Result<()> {
        let driver = cuda_header::driver(&self.wheels.include)?;
        fs::write(self.out.join("names.c"), names_table(&driver)?)?;
        let [major, minor, patch] = self.wheels.cudnn;
        fs::write(
            self.out.join("cudnn_version.h"),
            format!(
                "#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n"
            ),
        )?;

        let is_ours = |name: &str| !wheels::is_of_a_stand_in(name) && name != "nvml.c";
        let mut bodies = self.bodies(is_ours)?;
        bodies.extend(compiler::bodies(&compiler::common(), |_| true)?);
        bodies.push(self.out.join("names.c"));
        let exports = driver
            .functions
            .iter()
            .map(|name| (name.clone(), None))
            .collect();
        self.library(DRIVER, &bodies, &exports, None)?;
        self.hip(&bodies)?;
        self.library(NVML, &[self.sources.join("nvml.c")], &Exports::new(), None)?;

        let mut names = String::new();
        let wanted = self.wheels.wanted()?.into_iter();
        for (soname, exports, stand_in) in wanted.filter(|it| !it.2.sources.is_empty()) {
            let bodies = self.bodies(|name| name.starts_with(stand_in.sources))?;
            self.library(&soname, &bodies, &exports, Some(stand_in))?;
            writeln!(names, "{soname}")?;
        }
        self.check_beginnings()?;
        fs::write(self.out.join(NAMES), names).context("cannot write what was built")
    }

    fn bodies(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
        compiler::bodies(self.sources, wanted)
    }

    /// Compiles the bodies, adds a stub for each export that has none, and links.
    fn library(
        &self,
        soname: &str,
        bodies: &[PathBuf],
        exports: &Exports,
        stand_in: Option<&StandIn>,
    ) -> Result<()> {
        let mut objects = Vec::new();
        let mut defined = Vec::new();
        for body in bodies {
            let object = self.compiler.compile(body, stand_in.is_none())?;
            defined.extend(elf::defined_functions(&object)?);
            objects.push(object);
        }
        let stubs = self.out.join(format!("{soname}.stubs.c"));
        let missing = exports.keys().filter(|name| !defined.contains(name));
        let result = stand_in.map_or(0, |it| it.simulated);
        fs::write(&stubs, self::stubs(missing, result))?;
        objects.push(self.compiler.compile(&stubs, false)?);

        let mut link = self.compiler.link(soname, &self.out.join(soname), &objects);
        if soname != DRIVER {
            link.arg(self.out.join(DRIVER));
        }
        if stand_in.is_some() {
            let script = self.out.join(format!("{soname}.map"));
            fs::write(&script, version_script(exports)?)?;
            link.arg(format!("-Wl,--version-script={}", script.display()));
        }
        link.args(["-lpthread", "-ldl"]);
        process::output(&mut link)
            .map(drop)
            .with_context(|| format!("cannot link {soname}"))
    }

    /// Builds the driver and the runtime once more, as one library that exports HIP's names only.
    fn hip(&self, driver: &[PathBuf]) -> Result<()> {
        let objects = self.out.join("hip");
        fs::create_dir_all(&objects)
            .with_context(|| format!("cannot create {}", objects.display()))?;
        let compiler = self.compiler.with_header(hip().join("names.h"), &objects);
        let runtime = self.bodies(|name| name.starts_with("runtime_"))?;
        let objects = driver
            .iter()
            .chain(&runtime)
            .map(|body| compiler.compile(body, false))
            .collect::<Result<Vec<PathBuf>>>()?;
        let script = self.out.join(format!("{HIP}.map"));
        fs::write(&script, "{\n  global: hip*;\n  local: *;\n};\n")
            .with_context(|| format!("cannot write {}", script.display()))?;
        let mut link = compiler.link(HIP, &self.out.join(HIP), &objects);
        // The names of local functions are stripped: CUDA's are among them, and this library must not look like
        // CUDA.
        link.arg(format!("-Wl,--version-script={}", script.display()))
            .args(["-Wl,--strip-all", "-lpthread", "-ldl"]);
        process::output(&mut link)
            .map(drop)
            .with_context(|| format!("cannot link {HIP}"))
    }

    fn check_beginnings(&self) -> Result<()> {
        let runtime = self.wheels.runtime.file_name().context("no runtime")?;
        self.compiler
            .check_beginnings(&self.out.join(DRIVER), PROBED_DRIVER)?;
        self.compiler
            .check_beginnings(&self.out.join(runtime), PROBED_RUNTIME)
    }
}

fn stubs<'a>(names: impl Iterator<Item = &'a String>, result: i32) -> String {
    let call = |name: &str| format!("simcuda_stub(\"{name}\", {result})");
    "int simcuda_stub(const char *function, int result);\n".to_owned() + &stub_source(names, call)
}

fn names_table(driver: &cuda_header::Driver) -> Result<String> {
    let mut text =
        String::from("const struct { const char *name, *target; } simcuda_names[] = {\n");
    for (name, target) in driver.names.iter().filter(|(name, target)| name != target) {
        writeln!(text, "    {{\"{name}\", \"{target}\"}},")?;
    }
    text.push_str("    {0, 0},\n};\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_says_its_name() {
        let names = ["cudaFoo".to_owned()];
        let line = "int cudaFoo(void) { return simcuda_stub(\"cudaFoo\", 3); }";
        assert!(stubs(names.iter(), 3).contains(line));
    }
}
