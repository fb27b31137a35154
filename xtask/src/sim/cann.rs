//! Builds the simulated CANN libraries.
//!
//! `tests/simcann/src` has all functions that matter, so a C program needs nothing else. For a torch_npu, the
//! operators that it looks up by name are read from its library and become stubs of libopapi.so.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::compiler::{self, Compiler};
use crate::{elf, process};

/// The simulated libraries, in folders as an installation of CANN has them.
pub struct Libraries {
    /// The folder that `ASCEND_HOME_PATH` names.
    pub home: PathBuf,
}

/// One library.
struct Library {
    name: &'static str,
    /// Prefix of the names of its source files.
    sources: &'static str,
    /// Libraries that it calls, or that a program expects to be loaded with it.
    needs: &'static [&'static str],
    /// Functions that tools put probes on. After the build it is checked that they begin with `push`.
    probed: &'static [&'static str],
}

const HAL: &str = "libascend_hal.so";
const RUNTIME: &str = "libruntime.so";
const ACL: &str = "libascendcl.so";
const OPERATORS: &str = "libopapi.so";

/// An empty library. torch_npu reports its memory through mstx if a library of this name is preloaded.
const HOOK: &str = "libascend_kernel_hook.so";

/// All libraries, each after those that it needs.
const LIBRARIES: [Library; 12] = [
    Library {
        name: HAL,
        sources: "hal_",
        needs: &[],
        probed: &[
            "halMemAlloc",
            "halMemFree",
            "halMemCreate",
            "halMemRelease",
            "halMemAddressReserve",
            "halMemAddressFree",
            "halMemMap",
            "halMemUnmap",
            "halHostRegister",
            "halHostUnregister",
        ],
    },
    Library {
        name: RUNTIME,
        sources: "rt_",
        needs: &[HAL],
        probed: &[
            "rtMalloc",
            "rtFree",
            "rtMallocHost",
            "rtFreeHost",
            "rtMallocPhysical",
            "rtKernelLaunch",
            "rtKernelLaunchWithFlagV2",
            "rtKernelLaunchWithHandleV2",
            "rtLaunchKernelByFuncHandleV2",
        ],
    },
    Library {
        name: "libprofapi.so",
        sources: "profapi",
        needs: &[HAL],
        probed: &[],
    },
    Library {
        name: ACL,
        sources: "acl_",
        needs: &[RUNTIME, HAL, "libprofapi.so"],
        probed: &[
            "aclrtMalloc",
            "aclrtMallocAlign32",
            "aclrtMallocCached",
            "aclrtMallocWithCfg",
            "aclrtMallocForTaskScheduler",
            "aclrtMallocHost",
            "aclrtMallocHostWithCfg",
            "aclrtFree",
            "aclrtFreeWithDevSync",
            "aclrtFreeHost",
            "aclrtMallocPhysical",
            "aclrtFreePhysical",
            "aclrtReserveMemAddress",
            "aclrtReleaseMemAddress",
            "aclrtMapMem",
            "aclrtUnmapMem",
            "aclrtHostRegister",
            "aclrtHostRegisterV2",
            "aclrtHostUnregister",
            "aclrtSetDevice",
            "aclrtResetDevice",
            "aclrtCreateContext",
            "aclrtSetCurrentContext",
            "aclrtLaunchKernel",
            "aclrtLaunchKernelWithConfig",
        ],
    },
    Library {
        name: "libacl_op_compiler.so",
        sources: "opcompiler",
        needs: &[ACL, RUNTIME, HAL],
        probed: &[],
    },
    Library {
        name: "libhccl.so",
        sources: "hccl",
        needs: &[RUNTIME, HAL],
        probed: &[],
    },
    Library {
        name: OPERATORS,
        sources: "opapi",
        needs: &[RUNTIME, HAL],
        probed: &[],
    },
    Library {
        name: "libms_tools_ext.so",
        sources: "mstx",
        needs: &[HAL],
        probed: &[
            "mstxMarkA",
            "mstxRangeStartA",
            "mstxRangeEnd",
            "mstxDomainCreateA",
            "mstxDomainMarkA",
            "mstxDomainRangeStartA",
            "mstxDomainRangeEnd",
            "mstxMemHeapRegister",
            "mstxMemHeapUnregister",
            "mstxMemRegionsRegister",
            "mstxMemRegionsUnregister",
        ],
    },
    Library {
        name: "libgraph.so",
        sources: "graph",
        needs: &[HAL],
        probed: &[],
    },
    Library {
        name: "libge_runner.so",
        sources: "nothing",
        needs: &["libgraph.so"],
        probed: &[],
    },
    Library {
        name: "libacl_tdt_channel.so",
        sources: "nothing",
        needs: &[],
        probed: &[],
    },
    Library {
        name: HOOK,
        sources: "nothing",
        needs: &[],
        probed: &[],
    },
];

impl Libraries {
    /// The folder of the libraries.
    pub fn folder(&self) -> PathBuf {
        self.home.join("lib64")
    }

    /// The library that makes torch_npu report its memory through mstx.
    pub fn hook(&self) -> PathBuf {
        self.folder().join(HOOK)
    }

    /// Arguments of the compiler for a C program that uses AscendCL, the runtime, the HAL and mstx.
    pub fn c_flags(&self) -> Vec<String> {
        let include = sources().join("include");
        let folder = self.folder();
        let mut words = vec!["-isystem".to_owned(), include.display().to_string()];
        words.extend(
            [ACL, RUNTIME, HAL, "libms_tools_ext.so"]
                .map(|name| folder.join(name).display().to_string()),
        );
        words.push(format!("-Wl,-rpath,{}", folder.display()));
        words
    }
}

fn sources() -> PathBuf {
    process::root().join("tests/simcann/src")
}

/// Builds the libraries with this C compiler, unless they are there already. With the folder of a torch_npu,
/// they have the operators that it uses.
pub fn build(compiler: &str, torch_npu: Option<&Path>) -> Result<Libraries> {
    let sources = sources();
    let binary = torch_npu.map(|folder| folder.join("torch_npu/lib/libtorch_npu.so"));
    let name = torch_npu
        .and_then(Path::parent)
        .and_then(Path::file_name)
        .map_or("plain".into(), |name| name.to_string_lossy());
    let mut hasher = DefaultHasher::new();
    include_str!("cann.rs").hash(&mut hasher);
    include_str!("compiler.rs").hash(&mut hasher);
    compiler.hash(&mut hasher);
    include_str!("../elf.rs").hash(&mut hasher);
    for folder in [&sources, &compiler::common()] {
        compiler::hash_files(folder, &mut hasher)?;
    }
    if let Some(binary) = &binary {
        let data = binary
            .metadata()
            .with_context(|| format!("cannot read {}", binary.display()))?;
        (binary, data.len(), data.modified()?).hash(&mut hasher);
    }
    let libraries = Libraries {
        home: process::target()
            .join("simcann")
            .join(format!("{name}-{:016x}", hasher.finish())),
    };
    if libraries.hook().exists() {
        return Ok(libraries);
    }
    eprintln!(
        "sim: building the simulated CANN libraries in {}",
        libraries.home.display()
    );
    compiler::aside(&libraries.home, "lib64", |aside| {
        // torch_npu checks whether an installation has these folders.
        for folder in ["lib64", "objects", "opp", "runtime", "compiler"] {
            fs::create_dir_all(aside.join(folder))?;
        }
        let include = vec![sources.clone(), sources.join("include"), compiler::common()];
        let compiler = Compiler::new(compiler, include, &aside.join("objects"))?;
        let operators = binary.as_deref().map(operators_of).transpose()?;
        for library in &LIBRARIES {
            make(&compiler, library, operators.as_ref(), &aside.join("lib64"))?;
        }
        Ok(())
    })?;
    Ok(libraries)
}

fn make(
    compiler: &Compiler,
    library: &Library,
    operators: Option<&BTreeSet<String>>,
    folder: &Path,
) -> Result<()> {
    let mut bodies = compiler::bodies(&sources(), |name| name.starts_with(library.sources))?;
    if library.name == HAL {
        bodies.extend(compiler::bodies(&compiler::common(), |_| true)?);
    }
    let mut objects = Vec::new();
    let mut defined = Vec::new();
    for body in &bodies {
        let object = compiler.compile(body, true)?;
        defined.extend(elf::defined_functions(&object)?);
        objects.push(object);
    }
    if library.name == OPERATORS
        && let Some(operators) = operators
    {
        let file = compiler.out.join("operators.c");
        let missing = operators.iter().filter(|name| !defined.contains(name));
        fs::write(&file, operator_source(missing)?)?;
        objects.push(compiler.compile(&file, true)?);
    }
    let file = folder.join(library.name);
    let mut link = compiler.link(library.name, &file, &objects);
    // A program that is linked with one of them finds functions of the others through it, as in CANN.
    link.arg("-Wl,--no-as-needed");
    link.args(library.needs.iter().map(|name| folder.join(name)));
    link.args(["-lpthread", "-ldl"]);
    process::output(&mut link).with_context(|| format!("cannot link {}", library.name))?;
    compiler.check_beginnings(&file, library.probed)
}

/// The operators that a library looks up by name.
fn operators_of(binary: &Path) -> Result<BTreeSet<String>> {
    let data = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    Ok(operators_in(&data))
}

fn operators_in(data: &[u8]) -> BTreeSet<String> {
    const BEGINNING: &[u8] = b"aclnn";
    const FIRST: &str = "GetWorkspaceSize";
    data.split(|byte| *byte == 0)
        .filter(|text| {
            text.len() > BEGINNING.len()
                && text.starts_with(BEGINNING)
                && text.iter().all(u8::is_ascii_alphanumeric)
        })
        .filter_map(|text| std::str::from_utf8(text).ok())
        .map(|text| text.strip_suffix(FIRST).unwrap_or(text).to_owned())
        .collect()
}

fn operator_source<'a>(names: impl Iterator<Item = &'a String>) -> Result<String> {
    let mut text = String::from("#include \"opapi.h\"\n");
    for name in names {
        writeln!(text, "OPERATOR({name})")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_whole_strings_of_the_binary() {
        let data = b"\0aclnnAdd\0aclnnMm: failed\0aclnnMatmulGetWorkspaceSize\0xaclnnSub\0aclnn\0";
        let names: Vec<String> = operators_in(data).into_iter().collect();
        assert_eq!(names, ["aclnnAdd", "aclnnMatmul"]);
    }

    #[test]
    fn libraries_come_after_those_they_need() {
        for (place, library) in LIBRARIES.iter().enumerate() {
            for needed in library.needs {
                assert!(
                    LIBRARIES[..place].iter().any(|it| it.name == *needed),
                    "{} needs {needed}",
                    library.name
                );
            }
        }
    }
}
