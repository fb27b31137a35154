//! `cargo xtask vm`: a 64-bit Arm machine, simulated by QEMU, in which memscoped traces two programs.
//!
//! The task builds memscope for the machine, makes a root of Debian's packages and the two programs, boots Debian's
//! kernel with it, and compares memscope's numbers with those that the programs print themselves. The machine has no
//! disk and no network; its only output is its serial console.

mod image;
mod judge;
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::aarch64::{self, CC, Packages};
use crate::process;
use crate::setup::mode::Mode;
use crate::setup::tool::{Tool, Version};
use crate::sim::cann;
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

/// The simulator that runs the machine.
const SIMULATOR: Tool = Tool {
    name: "QEMU for aarch64",
    why: "it simulates a machine of aarch64",
    programs: &[machine::QEMU],
    ask: &["--version"],
    least: Version(7, 0),
    packages: &["qemu-system-arm"],
};

#[derive(Args, Clone)]
pub struct Options {
    /// The machine
    #[arg(long, default_value = "aarch64", value_parser = ["aarch64"])]
    pub arch: String,

    /// Whose functions the programs call: a stand-in for CUDA's, or the simulated CANN libraries
    #[arg(long, default_value = "npu", value_parser = DEVICES.map(|device| device.name))]
    pub device: String,

    /// Another kernel than Debian's, such as one with larger pages (an uncompressed or EFI image)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Seconds after which the machine is switched off, and the check has failed
    #[arg(long, default_value_t = 300)]
    pub deadline: u64,

    /// Memory of the machine in MiB
    #[arg(long, default_value_t = 2048)]
    pub memory: u32,

    /// What the processor is; the newest that QEMU knows signs return addresses where code asks for it
    #[arg(long, default_value = "max,pauth-impdef=on")]
    pub cpu: String,
}

/// Debian's package that depends on the package of the current kernel.
const KERNEL: &str = "linux-image-arm64";
/// Packages that the programs need (what these depend on is fetched, too), and the package of a shell.
const USERLAND: [&str; 3] = ["libgcc-s1", "python3-minimal", "libpython3-stdlib"];
const SHELL: &str = "busybox-static";

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    if !ensure(Mode::Check)? {
        bail!("cargo xtask setup --aarch64 installs what is missing");
    }
    let programs = aarch64::build(&aarch64::Options {
        package: vec!["memscope-daemon".to_owned(), "memscope-ctl".to_owned()],
        ..aarch64::Options::default()
    })?;
    let folder = aarch64::folder().join("vm");
    fs::create_dir_all(&folder)?;
    let device = DEVICES
        .iter()
        .find(|device| device.name == options.device)
        .context("no such device")?;
    let image = make(&folder, &programs, device)?;
    let said = machine::boot(&machine::Machine {
        kernel: match &options.kernel {
            Some(kernel) => kernel.clone(),
            None => kernel()?,
        },
        image,
        cpu: options.cpu.clone(),
        memory_mib: options.memory,
        deadline: Duration::from_secs(options.deadline),
    })?;
    judge::judge(&said, device.alloc)
}

/// Makes sure that everything is there. False: something is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    let cross = aarch64::ensure(mode)?;
    let simulator = SIMULATOR.ensure(mode)?;
    let complete = kernel().is_ok() && root().join("usr").is_dir();
    match (complete, mode) {
        (true, _) => eprintln!("Debian for aarch64: found, {}", root().display()),
        (false, Mode::Check) => eprintln!("Debian for aarch64: missing; the machine runs it"),
        (false, Mode::Install) => fetch()?,
    }
    Ok(cross && simulator && (complete || mode == Mode::Install))
}

/// Folder into which Debian is unpacked.
fn root() -> PathBuf {
    aarch64::folder().join("root")
}

fn fetch() -> Result<()> {
    eprintln!("Debian for aarch64: missing, fetching; the machine runs it");
    let packages = Packages::new(&aarch64::folder())?;
    packages.update()?;
    let kernels = packages.depends(KERNEL, "linux-image-")?;
    let kernel = kernels
        .first()
        .with_context(|| format!("{KERNEL} names no kernel"))?;
    packages.unpack(&[kernel], &aarch64::folder().join("kernel"))?;
    packages.unpack(&[SHELL], &root())?;
    packages.unpack_with_all(&USERLAND, &root())
}

/// The kernel that was fetched.
fn kernel() -> Result<PathBuf> {
    let boot = aarch64::folder().join("kernel/boot");
    let entries =
        fs::read_dir(&boot).with_context(|| format!("no kernel in {}", boot.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .max()
        .with_context(|| format!("no kernel in {}", boot.display()))
}

/// Makes the root file system, as an archive that the kernel unpacks into memory.
fn make(folder: &Path, programs: &Path, device: &Device) -> Result<PathBuf> {
    let sources = process::root().join("tests/vm");
    let mut image = Image::default();
    image.tree(&root(), wanted)?;
    let calls = folder.join("calls");
    let source = sources.join("calls.c");
    if device.simulated {
        let libraries = cann::build(CC, None)?;
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
    image.file(
        "usr/lib/calls.py",
        &fs::read(sources.join("calls.py"))?,
        false,
    );
    for name in ["memscoped", "memscope-ctl"] {
        let small = folder.join(name);
        // Debugging information is the largest part of a debug build.
        process::output(
            Command::new("aarch64-linux-gnu-strip")
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

/// Path of a library in the machine.
fn in_lib(name: &str) -> String {
    format!("usr/lib/aarch64-linux-gnu/{name}")
}

/// Whether a file of the packages is put into the machine: no documentation, and nothing of Python that the program
/// does not use.
fn wanted(path: &str) -> bool {
    let unwanted = [
        "usr/share/",
        "var/",
        "etc/",
        "usr/sbin/",
        "usr/lib/aarch64-linux-gnu/gconv/",
        "usr/lib/python3/",
    ];
    let parts = [
        "/test/",
        "/idlelib/",
        "/lib2to3/",
        "/ensurepip/",
        "/distutils/",
    ];
    !unwanted.iter().any(|start| path.starts_with(start))
        && !parts.iter().any(|part| path.contains(part))
}

/// Compiles a file for the machine. Its code signs return addresses, so that the stack walk meets signed ones.
fn compile(source: &Path, to: &Path, more: &[String]) -> Result<()> {
    let here = format!("-ffile-prefix-map={}=.", process::root().display());
    process::run(
        process::command(CC)
            .args(["-O1", "-g", "-Wall", "-Werror", &here])
            .arg("-mbranch-protection=standard")
            .arg("-o")
            .args([to, source])
            .args(more),
    )
}
