//! `cargo xtask vm`: machines, simulated by QEMU, in which memscoped traces two programs on Debian's kernels.
//!
//! The task builds memscope for the machine, makes a root of Debian's packages and the two programs, boots each kernel
//! with it, and compares memscope's numbers with those that the programs print themselves. The machine has no disk and
//! no network; its only output is its serial console.

mod architecture;
mod image;
mod judge;
mod kernels;
mod machine;
mod table;

pub use architecture::{AARCH64, X86_64};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::debian::Packages;
use crate::process;
use crate::setup::mode::Mode;
use crate::sim::{cann, compiler};
use architecture::Architecture;
use image::Image;

/// A runtime that the programs call. tests/vm/device.h has its names in C.
struct Device {
    name: &'static str,
    /// File of the library in which the functions are looked up.
    library: &'static str,
    select: &'static str,
    alloc: &'static str,
    free: &'static str,
    /// Size of the smallest allocation in bytes.
    unit: u64,
    /// Whether the simulated CANN libraries are used; else tests/vm/device.c is the only library.
    simulated: bool,
}

const DEVICES: [Device; 2] = [
    Device {
        name: "cuda",
        library: "libcudart.so.13",
        select: "cudaSetDevice",
        alloc: "cudaMalloc",
        free: "cudaFree",
        unit: 512,
        simulated: false,
    },
    Device {
        name: "npu",
        library: "libascendcl.so",
        select: "aclrtSetDevice",
        alloc: "aclrtMallocAlign32",
        free: "aclrtFree",
        unit: 2 << 20,
        simulated: true,
    },
];

#[derive(Args, Clone)]
pub struct Options {
    /// The machine
    #[arg(long, default_value = AARCH64.name, value_parser = Architecture::ALL.map(|one| one.name))]
    pub arch: String,

    /// Debian's releases whose kernels are booted, one after the other
    #[arg(
        long, value_name = "RELEASE", value_delimiter = ',', default_value = "bookworm",
        value_parser = ["all", kernels::SUITES[0], kernels::SUITES[1], kernels::SUITES[2], kernels::SUITES[3]]
    )]
    pub kernels: Vec<String>,

    /// Another kernel than Debian's, such as one with larger pages (an uncompressed or EFI image)
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    pub kernel: Option<PathBuf>,

    /// Whose functions the programs call: a stand-in for CUDA's, or the simulated CANN libraries
    #[arg(long, default_value = "npu", value_parser = DEVICES.map(|device| device.name))]
    pub device: String,

    /// Write the results into docs/evidence/kernels.md
    #[arg(long, conflicts_with_all = ["kernel", "device"])]
    pub write: bool,

    /// Seconds after which a machine is switched off, and the check has failed
    #[arg(long, default_value_t = 900)]
    pub deadline: u64,

    /// Processors of the machine; with one, threads run into the same probe while another is in it
    #[arg(long, default_value_t = 2)]
    pub processors: u32,

    /// Memory of the machine in MiB
    #[arg(long, default_value_t = 2048)]
    pub memory: u32,

    /// Where memscoped and memscope-ctl are, if they are built already.
    #[arg(skip)]
    pub programs: Option<PathBuf>,
}

/// What `cargo xtask test` boots: the oldest kernel that memscoped starts on and Debian has. Its verifier is the strictest,
/// while the other tests run on the kernel of the machine that they are on. `programs` is the folder of programs that
/// were built for the tests.
pub fn oldest(programs: PathBuf) -> Result<()> {
    run(&Options {
        arch: X86_64.name.to_owned(),
        kernels: vec![kernels::SUITES[1].to_owned()],
        kernel: None,
        device: DEVICES[0].name.to_owned(),
        write: false,
        deadline: 900,
        processors: 2,
        memory: 2048,
        programs: Some(programs),
    })
}

/// Packages that the programs need (what these depend on is fetched, too), and the package of a shell.
const USERLAND: [&str; 3] = ["libgcc-s1", "python3-minimal", "libpython3-stdlib"];
const SHELL: &str = "busybox-static";

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let architecture = Architecture::ALL
        .into_iter()
        .find(|one| one.name == options.arch)
        .context("no such machine")?;
    let device = DEVICES
        .iter()
        .find(|device| device.name == options.device)
        .context("no such device")?;
    if !ensure(architecture, Mode::Check)? {
        bail!(
            "cargo xtask setup {} installs what is missing",
            architecture.setup
        );
    }
    let folder = folder(architecture);
    let programs = match &options.programs {
        Some(folder) => folder.clone(),
        None => architecture.build()?,
    };
    let image = make(architecture, &folder, &programs, device)?;
    let boot = |kernel: &Path| {
        let said = machine::boot(&machine::Machine {
            architecture,
            kernel,
            image: &image,
            processors: options.processors,
            memory_mib: options.memory,
            deadline: Duration::from_secs(options.deadline),
        })?;
        judge::judge(&said, device.alloc)
    };
    if let Some(kernel) = &options.kernel {
        return boot(kernel).map(drop);
    }
    let all = options.kernels.iter().any(|suite| suite == "all");
    let asked = |suite: &&str| all || options.kernels.iter().any(|one| one == suite);
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for suite in kernels::SUITES.into_iter().filter(asked) {
        let kernel = kernels::of(suite, architecture, &folder)?;
        match boot(&kernel) {
            Ok((release, outcome)) => {
                rows.push(table::row(architecture, suite, &release, &outcome));
            }
            Err(error) => wrong.push(format!("{suite}: {error:#}")),
        }
    }
    if options.write {
        table::write(&rows)?;
    }
    for row in &rows {
        println!("{row}");
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Makes sure that everything is there, but for the kernels, which are fetched when they are asked for. False: something
/// is missing (only with [`Mode::Check`]).
pub fn ensure(architecture: &Architecture, mode: Mode) -> Result<bool> {
    let simulator = architecture.simulator.ensure(mode)?;
    let root = folder(architecture).join("root");
    let complete = root.join("usr").is_dir();
    match (complete, mode) {
        (true, _) => eprintln!(
            "Debian for {}: found, {}",
            architecture.name,
            root.display()
        ),
        (false, Mode::Check) => {
            eprintln!("Debian for {}: missing; machines run it", architecture.name);
        }
        (false, Mode::Install) => fetch(architecture, &root)?,
    }
    Ok(simulator && (complete || mode == Mode::Install))
}

/// Folder of everything for machines of an architecture.
fn folder(architecture: &Architecture) -> PathBuf {
    process::target().join("vm").join(architecture.name)
}

/// Fetches the release of Debian that this machine runs: the programs are linked with its libraries.
fn fetch(architecture: &Architecture, root: &Path) -> Result<()> {
    eprintln!(
        "Debian for {}: missing, fetching; machines run it",
        architecture.name
    );
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = system.lines();
    let release = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let release = release.context("/etc/os-release does not name a release of Debian")?;
    let apt = folder(architecture).join("apt");
    let packages = Packages::new(&apt, architecture.debian, Some(release))?;
    packages.update()?;
    // Only a root that has everything gets its name: what an interrupted fetch leaves is not taken for one, and an earlier xtask left it
    // at this place.
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    compiler::aside(root, "usr", |aside| {
        packages.unpack(&[SHELL], aside)?;
        packages.unpack_with_all(&USERLAND, aside)
    })
}

/// Makes the root file system, as an archive that the kernel unpacks into memory.
fn make(
    architecture: &Architecture,
    folder: &Path,
    programs: &Path,
    device: &Device,
) -> Result<PathBuf> {
    let in_lib = |name: &str| format!("usr/lib/{}/{name}", architecture.libraries);
    let compile =
        |source: &Path, to: &Path, more: &[String]| compile(architecture, source, to, more);
    let sources = process::root().join("tests/vm");
    let mut image = Image::default();
    image.tree(&folder.join("root"), wanted)?;
    let calls = folder.join("calls");
    let source = sources.join("calls.c");
    if device.simulated {
        let libraries = cann::build(architecture.cc, None)?;
        for entry in fs::read_dir(libraries.folder())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            image.file(&in_lib(&name), &fs::read(&path)?, false);
        }
        let mut words = libraries.c_flags();
        words.extend(["-DDEVICE_ACL".to_owned(), "-pthread".to_owned()]);
        compile(&source, &calls, &words)?;
    } else {
        let library = folder.join(device.library);
        let soname = format!("-Wl,-soname,{}", device.library);
        let words = ["-shared".to_owned(), "-fPIC".to_owned(), soname];
        compile(&sources.join("device.c"), &library, &words)?;
        image.file(&in_lib(device.library), &fs::read(&library)?, false);
        let words = [library.display().to_string(), "-pthread".to_owned()];
        compile(&source, &calls, &words)?;
    }
    image.file("usr/bin/calls", &fs::read(&calls)?, true);
    for script in ["calls.py", "held.py"] {
        let text = fs::read(sources.join(script))?;
        image.file(&format!("usr/lib/{script}"), &text, false);
    }
    for name in ["memscoped", "memscope-ctl"] {
        let small = folder.join(name);
        // Debugging information is the largest part of a debug build.
        process::output(
            Command::new(architecture.strip)
                .arg("--strip-debug")
                .arg("-o")
                .args([&small, &programs.join(name)]),
        )?;
        image.file(&format!("usr/bin/{name}"), &fs::read(&small)?, true);
    }
    let settings = format!(
        "DEVICE_LIBRARY={}\nDEVICE_SELECT={}\nDEVICE_ALLOC={}\nDEVICE_FREE={}\nDEVICE_UNIT={}\n\
         SIMCANN_DEVICE_SIZE=64GiB\n",
        device.library, device.select, device.alloc, device.free, device.unit
    );
    image.file("etc/device", settings.as_bytes(), false);
    image.file("init", &fs::read(sources.join("init"))?, true);
    for empty in ["proc", "sys", "dev", "run", "tmp"] {
        image.folder(empty);
    }
    image.write(&folder.join("root.cpio"))
}

/// Whether a file of the packages is put into the machine: no documentation, and nothing of Python that the program
/// does not use.
fn wanted(path: &str) -> bool {
    let unwanted = [
        "usr/share/",
        "var/",
        "etc/",
        "usr/sbin/",
        "usr/lib/python3/",
    ];
    let parts = [
        "/gconv/",
        "/test/",
        "/idlelib/",
        "/lib2to3/",
        "/ensurepip/",
        "/distutils/",
    ];
    !unwanted.iter().any(|start| path.starts_with(start))
        && !parts.iter().any(|part| path.contains(part))
}

/// Compiles a file for the machine.
fn compile(architecture: &Architecture, source: &Path, to: &Path, more: &[String]) -> Result<()> {
    let here = format!("-ffile-prefix-map={}=.", process::root().display());
    process::run(
        process::command(architecture.cc)
            .args(["-O1", "-g", "-Wall", "-Werror", &here])
            .arg(architecture.protection)
            .arg("-o")
            .args([to, source])
            .args(more),
    )
}
