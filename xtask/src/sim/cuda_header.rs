//! Reads what `cuda.h` declares: the functions that the simulated driver exports, and which of them each unversioned
//! name means (`cuMemAlloc` is `cuMemAlloc_v2` today).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The driver's interface according to one version of its header.
pub struct Driver {
    /// Every function that a program compiled against this header may import.
    pub functions: BTreeSet<String>,
    /// The function that each unversioned name means.
    pub names: BTreeMap<String, String>,
}

/// Reads `cuda.h` in `include` with the C preprocessor.
pub fn driver(include: &Path) -> Result<Driver> {
    let header = include.join("cuda.h");
    let preprocess = |options: &[&str]| {
        process::output(
            Command::new("cc")
                .args(options)
                .args(["-E", "-P", "-x", "c"])
                .arg(&header),
        )
        .context("cannot preprocess cuda.h")
    };
    let mut functions = BTreeSet::new();
    // The header as every program sees it; with the superseded functions; with per-thread default streams.
    for options in [
        &[][..],
        &["-D__CUDA_API_VERSION_INTERNAL"],
        &["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"],
    ] {
        functions.extend(declared(&preprocess(options)?));
    }
    let macros = preprocess(&["-dM"])?;
    let mut names: BTreeMap<String, String> = functions
        .iter()
        .map(|name| (name.clone(), name.clone()))
        .collect();
    for line in macros.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        // The value may be wrapped: __CUDA_API_PTSZ(cuMemcpy).
        let value = value
            .rsplit('(')
            .next()
            .unwrap_or(value)
            .trim_end_matches(')');
        if is_function(name) && functions.contains(value) {
            names.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok(Driver { functions, names })
}

fn is_function(word: &str) -> bool {
    let rest = word.strip_prefix("cu").unwrap_or_default();
    rest.starts_with(|letter: char| letter.is_ascii_uppercase())
        && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The names in declarations `CUresult NAME(` of preprocessed text.
fn declared(text: &str) -> impl Iterator<Item = String> {
    text.split("CUresult").skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('(')?;
        let name = name.trim();
        is_function(name).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found_and_pointers_to_functions_are_not() {
        let text = "typedef enum { X } CUresult;\nCUresult cuInit(unsigned int Flags);\n\
                    extern CUresult\n cuMemAlloc_v2(CUdeviceptr *p, size_t n);\n typedef CUresult (*F)(int);";
        let names: Vec<String> = declared(text).collect();
        assert_eq!(names, ["cuInit", "cuMemAlloc_v2"]);
    }
}
