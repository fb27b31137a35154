//! Finds what an environment's PyTorch was built against: the libraries that it needs, the runtime and its headers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::packages;
use crate::elf::{self, Exports, Import};

/// A library for which a stand-in can be built.
pub struct StandIn {
    /// Name of the library between `lib` and `.so`.
    pub name: &'static str,
    /// Prefix of the names of the source files that simulate it; empty if nothing does.
    pub sources: &'static str,
    /// Prefix of the names of its functions, for imports that do not say which library they mean.
    functions: &'static str,
    /// Result of a function for which the simulation has no body.
    pub simulated: i32,
    /// Result of all functions where nothing is simulated: an error.
    pub absent: i32,
}

impl StandIn {
    const fn absent(name: &'static str, functions: &'static str, result: i32) -> Self {
        Self {
            name,
            sources: "",
            functions,
            simulated: result,
            absent: result,
        }
    }

    const fn simulated_by(self, sources: &'static str, simulated: i32) -> Self {
        Self {
            sources,
            simulated,
            ..self
        }
    }

    /// Whether a library is the one that this stands in for.
    fn is(&self, soname: &str) -> bool {
        let rest = soname
            .strip_prefix("lib")
            .and_then(|rest| rest.strip_prefix(self.name));
        rest.is_some_and(|rest| rest.starts_with(".so"))
    }

    /// Whether it is the runtime. Programs in C use it, too, so the real one's exports are read, and not only what
    /// PyTorch
    /// imports of it.
    pub fn is_runtime(&self) -> bool {
        self.name == "cudart"
    }
}

/// All libraries that are known, in the order in which they need each other, each with the error that its own header
/// has for "not there".
const STAND_INS: [StandIn; 15] = [
    // cudaErrorNoDevice
    StandIn::absent("cudart", "cuda", 100).simulated_by("runtime", 0),
    // CUBLAS_STATUS_NOT_INITIALIZED
    StandIn::absent("cublasLt", "cublasLt", 1).simulated_by("cublaslt", 0),
    StandIn::absent("cublas", "cublas", 1).simulated_by("cublas.", 0),
    // CUDNN_STATUS_NOT_INITIALIZED
    StandIn::absent("cudnn", "cudnn", 1001).simulated_by("cudnn", 0),
    // CUPTI_ERROR_NOT_INITIALIZED
    StandIn::absent("cupti", "cupti", 15).simulated_by("cupti", 15),
    // NVRTC_ERROR_INTERNAL_ERROR
    StandIn::absent("nvrtc", "nvrtc", 11),
    // CUFFT_NOT_SUPPORTED
    StandIn::absent("cufft", "cufft", 16),
    // CURAND_STATUS_INITIALIZATION_FAILED
    StandIn::absent("curand", "curand", 203),
    // CUSOLVER_STATUS_NOT_SUPPORTED
    StandIn::absent("cusolver", "cusolver", 9),
    // CUSPARSE_STATUS_NOT_SUPPORTED
    StandIn::absent("cusparse", "cusparse", 10),
    StandIn::absent("cusparseLt", "cusparseLt", 10),
    // ncclSystemError
    StandIn::absent("nccl", "nccl", 2),
    // CU_FILE_DRIVER_NOT_INITIALIZED
    StandIn::absent("cufile", "cuFile", 5001),
    StandIn::absent("nvshmem_host", "nvshmem", 1),
    // These are marks for a profiler, and there is none.
    StandIn::absent("nvToolsExt", "nvtx", 0),
];

/// Whether a source file, by its name, belongs to a library that is simulated by a stand-in.
pub fn is_of_a_stand_in(source: &str) -> bool {
    STAND_INS
        .iter()
        .any(|it| !it.sources.is_empty() && source.starts_with(it.sources))
}

/// The parts of one environment from which stand-ins are built.
pub struct Wheels {
    /// PyTorch's own libraries.
    pub torch: Vec<PathBuf>,
    /// The real runtime library.
    pub runtime: PathBuf,
    /// The folder with the driver's and the runtime's headers.
    pub include: PathBuf,
    /// The version of cuDNN that PyTorch was built with.
    pub cudnn: [u32; 3],
}

/// A library to build: its name, what it exports, and how.
pub type Wanted = (String, Exports, &'static StandIn);

/// Finds these parts in `environment`.
pub fn find(environment: &Path) -> Result<Wheels> {
    let packages = packages::site_packages(environment)?;
    let mut torch = Vec::new();
    let own = packages.join("torch/lib");
    for file in
        fs::read_dir(&own).with_context(|| format!("{} has no torch", environment.display()))?
    {
        let file = file?.path();
        if name_of(&file).contains(".so") {
            torch.push(file);
        }
    }
    torch.sort();
    let nvidia = packages.join("nvidia");
    let lacks = |what: &str| {
        format!(
            "{} has no CUDA build of torch: {} has no {what}",
            environment.display(),
            nvidia.display()
        )
    };
    // nvidia/<package>/{lib,include} or, from CUDA 13 on, nvidia/cu13/{lib,include}.
    let mut runtime = None;
    let mut include = None;
    for package in fs::read_dir(&nvidia).with_context(|| lacks("libraries"))? {
        let package = package?.path();
        let headers = package.join("include");
        if headers.join("cuda_runtime_api.h").exists() && headers.join("cuda.h").exists() {
            include = Some(headers);
        }
        for file in fs::read_dir(package.join("lib")).into_iter().flatten() {
            let file = file?.path();
            if name_of(&file).starts_with("libcudart.so.") {
                runtime = Some(file);
            }
        }
    }
    Ok(Wheels {
        torch,
        runtime: runtime.with_context(|| lacks("libcudart.so"))?,
        include: include.with_context(|| lacks("cuda_runtime_api.h"))?,
        cudnn: cudnn(&packages)?,
    })
}

impl Wheels {
    /// The libraries that PyTorch needs and does not bring itself, in the order in which they need each other.
    pub fn wanted(&self) -> Result<Vec<Wanted>> {
        let mut sonames = BTreeMap::new();
        let mut imports = Vec::new();
        for library in &self.torch {
            let (needed, all) = elf::imports(library)?;
            for name in needed {
                let brought = self.torch.iter().any(|file| name_of(file) == name);
                let place = STAND_INS.iter().position(|it| it.is(&name));
                if let (false, Some(place)) = (brought, place) {
                    sonames.insert(place, name);
                }
            }
            imports.extend(all);
        }
        let mut wanted: Vec<Wanted> = Vec::new();
        for (place, soname) in sonames {
            wanted.push((soname, Exports::new(), &STAND_INS[place]));
        }
        for (soname, exports, stand_in) in &mut wanted {
            if stand_in.is_runtime() {
                *exports = elf::exported_functions(&self.runtime)?;
                if name_of(&self.runtime) != *soname {
                    bail!("torch needs {soname}, and has {}", self.runtime.display());
                }
                continue;
            }
            exports.extend(of(stand_in, soname, &imports));
        }
        Ok(wanted)
    }
}

/// The imports that belong to this library. Names decide only if it has no symbol versions, because PyTorch's libraries
/// also import functions with such names from each other.
fn of(stand_in: &StandIn, soname: &str, imports: &[Import]) -> Exports {
    let mut versioned = Exports::new();
    let mut by_name = Exports::new();
    for import in imports {
        match &import.version {
            Some((file, version)) if file == soname => {
                versioned.insert(import.name.clone(), Some(version.clone()));
            }
            None if belongs(&import.name).is_some_and(|it| it.name == stand_in.name) => {
                by_name.insert(import.name.clone(), None);
            }
            _ => {}
        }
    }
    if versioned.is_empty() {
        by_name
    } else {
        versioned
    }
}

/// The library that a function belongs to, by its name: cusparseLtInit is cuSPARSELt's, not cuSPARSE's.
fn belongs(function: &str) -> Option<&'static StandIn> {
    STAND_INS
        .iter()
        .filter(|it| function.starts_with(it.functions))
        .max_by_key(|it| it.functions.len())
}

/// The version of cuDNN that PyTorch's wheel asks for.
fn cudnn(packages: &Path) -> Result<[u32; 3]> {
    let requirements = packages::requirements(packages)?;
    let version = requirements.iter().find_map(|requirement| {
        let rest = requirement.strip_prefix("nvidia-cudnn-cu")?;
        rest.split_once("==")?.1.split([')', ';', ' ']).next()
    });
    let version = version.context("torch's wheel does not say which cuDNN it needs")?;
    let mut parts = version.split('.').map(str::parse);
    let mut next = || parts.next().and_then(Result::ok);
    match (next(), next(), next()) {
        (Some(major), Some(minor), Some(patch)) => Ok([major, minor, patch]),
        _ => bail!("torch's wheel asks for cuDNN {version}, which is no version"),
    }
}

fn name_of(file: &Path) -> std::borrow::Cow<'_, str> {
    file.file_name().unwrap_or_default().to_string_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_a_version_goes_by_the_longest_name() {
        let name = |function| belongs(function).map(|it| it.name);
        assert_eq!(name("cusparseLtInit"), Some("cusparseLt"));
        assert_eq!(name("cusparseCreate"), Some("cusparse"));
        assert_eq!(name("cublasLtMatmul"), Some("cublasLt"));
        assert_eq!(name("cuFileOpen"), Some("cufile"));
        assert_eq!(name("nvshmem_malloc"), Some("nvshmem_host"));
        assert_eq!(name("malloc"), None);
    }

    #[test]
    fn a_stand_in_is_for_every_version_of_its_library() {
        assert!(STAND_INS[0].is("libcudart.so.12"));
        assert!(STAND_INS[0].is("libcudart.so.13"));
        assert!(!STAND_INS[2].is("libcublasLt.so.13"));
        // This is a copy under another name, which some wheels of PyTorch contain.
        assert!(!STAND_INS[10].is("libcusparseLt-f80c68d1.so.0"));
    }
}
