//! What NVIDIA's wheels in a PyTorch environment brought: the libraries to stand in for, and their headers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::venv;

/// The real libraries and headers that an environment's NVIDIA wheels brought.
pub struct Wheels {
    /// The real libraries, in the order of [`STAND_INS`].
    pub libraries: Vec<PathBuf>,
    /// The folders with the headers.
    pub include: Vec<PathBuf>,
}

/// A library that is stood in for.
pub struct StandIn {
    /// Its name between `lib` and `.so`.
    pub name: &'static str,
    /// How the names of its source files begin.
    pub sources: &'static str,
    /// A header that its sources need.
    pub header: &'static str,
    /// What its stubs return.
    pub result: i32,
}

/// All of them, in the order in which they need each other.
pub const STAND_INS: [StandIn; 5] = [
    StandIn {
        name: "cudart",
        sources: "runtime",
        header: "cuda_runtime_api.h",
        result: 0,
    },
    StandIn {
        name: "cublasLt",
        sources: "cublaslt",
        header: "cublasLt.h",
        result: 0,
    },
    StandIn {
        name: "cublas",
        sources: "cublas.",
        header: "cublas_api.h",
        result: 0,
    },
    StandIn {
        name: "cudnn",
        sources: "cudnn",
        header: "cudnn.h",
        result: 0,
    },
    // CUPTI_ERROR_NOT_INITIALIZED
    StandIn {
        name: "cupti",
        sources: "cupti",
        header: "cupti.h",
        result: 15,
    },
];

/// Looks for them in `environment`.
pub fn find(environment: &Path) -> Result<Wheels> {
    let nvidia = venv::site_packages(environment)?.join("nvidia");
    let mut files = Vec::new();
    let mut include = Vec::new();
    // nvidia/<package>/{lib,include} or, from CUDA 13 on, nvidia/cu13/{lib,include}.
    for package in fs::read_dir(&nvidia).with_context(|| {
        format!(
            "{} has no CUDA build of torch: cannot read {}",
            environment.display(),
            nvidia.display()
        )
    })? {
        let package = package?.path();
        if let Ok(entries) = fs::read_dir(package.join("lib")) {
            for entry in entries {
                files.push(entry?.path());
            }
        }
        let headers = package.join("include");
        if headers.join("cuda.h").exists()
            || STAND_INS.iter().any(|it| headers.join(it.header).exists())
        {
            include.push(headers);
        }
    }
    include.sort();
    let mut libraries = Vec::new();
    for StandIn { name, header, .. } in STAND_INS {
        let prefix = format!("lib{name}.so.");
        let file = files.iter().find(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix(&prefix)
                .is_some_and(|major| major.bytes().all(|byte| byte.is_ascii_digit()))
        });
        libraries.push(
            file.with_context(|| format!("{} has no {prefix}*", nvidia.display()))?
                .clone(),
        );
        if !include.iter().any(|folder| folder.join(header).exists()) {
            bail!("{} has no {header}", nvidia.display());
        }
    }
    Ok(Wheels { libraries, include })
}
