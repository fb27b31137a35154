//! Finds or installs the programs that building, testing and changing memscope need, with their versions.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::apt;
use super::mode::Mode;
use super::tool::{Found, Tool, Version, found, provide, said};
use crate::process;

const LINKER_VERSION: &str = "0.13.0";
const LINKER: Version = Version(0, 13);
/// The LLVM that `bpf-linker` is built with: at least as new as that of the Rust compilers in question.
const LLVM: &str = "22";

/// The C compiler. The least version is so old that every distribution in use has it.
const CC: Tool = Tool {
    name: "C compiler",
    why: "it builds the simulated devices and the libraries that are written in C",
    programs: &["cc", "gcc", "clang"],
    ask: &["--version"],
    least: Version(8, 0),
    packages: &["gcc", "libc6-dev"],
};
const NODE: Tool = Tool {
    name: "Node.js",
    why: "it runs the script of exported pages, and a client in TypeScript",
    programs: &["node", "nodejs"],
    ask: &["--version"],
    least: Version(18, 0),
    packages: &["nodejs"],
};
const NPM: Tool = Tool {
    name: "npm",
    why: "it gets what PyTorch's viewer and a client in TypeScript import",
    programs: &["npm"],
    ask: &["--version"],
    least: Version(8, 0),
    packages: &["npm"],
};
const DEBOOTSTRAP: Tool = Tool {
    name: "debootstrap",
    why: "it makes roots of other releases of Debian",
    programs: &["debootstrap"],
    ask: &["--version"],
    least: Version(1, 0),
    packages: &["debootstrap"],
};
/// Debian has them all; what they make is for other distributions as well.
const PACKAGERS: [Tool; 2] = [
    Tool {
        name: "dpkg-deb",
        why: "it makes the .deb",
        programs: &["dpkg-deb"],
        ask: &["--version"],
        // The first that makes files whose bytes depend on their content alone.
        least: Version(1, 18),
        packages: &["dpkg"],
    },
    Tool {
        name: "rpmbuild",
        why: "it makes the .rpm",
        programs: &["rpmbuild"],
        ask: &["--version"],
        least: Version(4, 14),
        packages: &["rpm"],
    },
];
/// What judges packages and what is in them.
const JUDGES: [Tool; 2] = [
    Tool {
        name: "lintian",
        why: "it judges the .deb by Debian's rules",
        programs: &["lintian"],
        ask: &["--version"],
        least: Version(2, 100),
        packages: &["lintian"],
    },
    Tool {
        name: "man",
        why: "it shows the man pages",
        programs: &["man"],
        ask: &["--version"],
        least: Version(2, 8),
        packages: &["man-db"],
    },
];
const PODMAN: Tool = Tool {
    name: "podman",
    why: "it starts containers: those whose names memscope tells, the image, and Debian with systemd in charge",
    programs: &["podman"],
    ask: &["--version"],
    // That of Debian 12.
    least: Version(4, 3),
    packages: &["podman", "runc"],
};
/// It says no version.
const MANDOC: &str = "mandoc";
/// It is only asked about files, so it need not be what the machine was started with.
const SYSTEMD: Tool = Tool {
    name: "systemd-analyze",
    why: "it checks the unit with which memscoped is a service",
    programs: &["systemd-analyze"],
    ask: &["--version"],
    // The first version that judges a unit that is not installed.
    least: Version(250, 0),
    packages: &["systemd"],
};
/// A terminal without a window, in which tests press keys and read the screen.
const TMUX: Tool = Tool {
    name: "tmux",
    why: "tests walk through memscope-ctl top in its terminals",
    programs: &["tmux"],
    ask: &["-V"],
    // That of Debian 12.
    least: Version(3, 3),
    packages: &["tmux"],
};
/// The usual way to count calls from outside, measured beside memscope.
const BPFTRACE: Tool = Tool {
    name: "bpftrace",
    why: "benchmarks measure its probes beside memscope's",
    programs: &["bpftrace"],
    ask: &["--version"],
    // That of Debian 12.
    least: Version(0, 17),
    packages: &["bpftrace"],
};
/// They fetch metrics, evaluate rules and take alerts, as on the machines of those who run memscope.
const PROMETHEUS: Tool = Tool {
    name: "Prometheus",
    why: "it fetches metrics and evaluates the rules and dashboards in deploy/",
    programs: &["prometheus"],
    ask: &["--version"],
    // That of Debian 12.
    least: Version(2, 40),
    packages: &["prometheus"],
};
const ALERTMANAGER: Tool = Tool {
    name: "Alertmanager",
    why: "it takes the alerts of the rules in deploy/",
    programs: &["prometheus-alertmanager"],
    ask: &["--version"],
    least: Version(0, 24),
    packages: &["prometheus-alertmanager"],
};
/// A cluster of one machine, with ports and folders of the test's own, which starts jobs.
const SLURM: Tool = Tool {
    name: "Slurm",
    why: "it starts jobs, whose names and ranks memscope tells",
    programs: &["slurmctld"],
    ask: &["-V"],
    // That of Debian 12.
    least: Version(22, 5),
    packages: &["slurm-wlm", "munge"],
};
const RUNC: Tool = Tool {
    name: "runc",
    why: "podman starts containers with it, also where control groups are of both versions",
    programs: &["runc"],
    ask: &["--version"],
    least: Version(1, 1),
    packages: &["runc"],
};
/// The names are those that tests/viewers/browser.mjs looks for.
const CHROMIUM: Tool = Tool {
    name: "Chromium",
    why: "it opens exported pages",
    programs: &[
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ],
    ask: &["--version"],
    least: Version(100, 0),
    packages: &["chromium"],
};

/// Makes sure that there is what building needs, apart from Rust. False: it is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    CC.ensure(mode)
}

/// Makes sure that there is what compiles the BPF programs, for those who change them. False: something is missing
/// (only with [`Mode::Check`]).
pub fn ensure_bpf(mode: Mode) -> Result<bool> {
    // Both are looked for, so that each is reported even if the other is missing.
    let found = [ensure_bpf_compiler(mode)?, ensure_bpf_linker(mode)?];
    Ok(found.into_iter().all(|found| found))
}

/// Makes sure that there is a Python that can make virtual environments.
pub fn ensure_python(mode: Mode) -> Result<bool> {
    let works = || {
        let program =
            process::find_program("python3").ok_or_else(|| "it is not on PATH".to_owned())?;
        let version = said(
            &program,
            &[
                "-c",
                "import ensurepip, venv, sys; print(sys.version.split()[0])",
            ],
        );
        let why = || format!("{} has no modules ensurepip and venv", program.display());
        let version = version.ok_or_else(why)?;
        Ok(Found { program, version })
    };
    let why = "PyTorch runs in environments that it makes";
    provide("Python 3 with venv", why, mode, works, || {
        apt(&["python3", "python3-venv"])
    })
}

/// Makes sure that there is debootstrap, which makes roots of other releases of Debian.
pub fn ensure_debootstrap(mode: Mode) -> Result<bool> {
    DEBOOTSTRAP.ensure(mode)
}

/// Makes sure that there are systemd's programs, with which tests check the files in `deploy/`.
pub fn ensure_systemd(mode: Mode) -> Result<bool> {
    SYSTEMD.ensure(mode)
}

/// Makes sure that there is tmux, in whose terminals tests press keys.
pub fn ensure_terminal(mode: Mode) -> Result<bool> {
    TMUX.ensure(mode)
}

/// Makes sure that there is what benchmarks measure beside memscope.
pub fn ensure_bench(mode: Mode) -> Result<bool> {
    BPFTRACE.ensure(mode)
}

/// Makes sure that there is podman.
pub fn ensure_podman(mode: Mode) -> Result<bool> {
    PODMAN.ensure(mode)
}

/// Makes sure that there is what makes packages.
pub fn ensure_packagers(mode: Mode) -> Result<bool> {
    PACKAGERS
        .iter()
        .try_fold(true, |complete, tool| Ok(tool.ensure(mode)? & complete))
}

/// Makes sure that there is what makes packages, and what judges them and their man pages.
pub fn ensure_packages(mode: Mode) -> Result<bool> {
    let mut complete = ensure_packagers(mode)?;
    for tool in &JUDGES {
        complete &= tool.ensure(mode)?;
    }
    let mandoc = || match process::find_program(MANDOC) {
        Some(program) => Ok(Found {
            program,
            version: "its version is not told".to_owned(),
        }),
        None => Err("it is not on PATH".to_owned()),
    };
    let why = "it judges the man pages";
    Ok(provide(MANDOC, why, mode, mandoc, || apt(&[MANDOC]))? & complete)
}

/// Makes sure that there are Prometheus and Alertmanager.
pub fn ensure_prometheus(mode: Mode) -> Result<bool> {
    Ok(PROMETHEUS.ensure(mode)? & ALERTMANAGER.ensure(mode)?)
}

/// Makes sure that there are a scheduler and a container engine.
pub fn ensure_workloads(mode: Mode) -> Result<bool> {
    Ok(SLURM.ensure(mode)? & PODMAN.ensure(mode)? & RUNC.ensure(mode)?)
}

/// Makes sure that there is npm, the package manager of Node.js.
pub fn ensure_npm(mode: Mode) -> Result<bool> {
    NPM.ensure(mode)
}

/// Makes sure that there is Node.js.
pub fn ensure_node(mode: Mode) -> Result<bool> {
    NODE.ensure(mode)
}

/// Makes sure that there are a browser, which runs without a window, and Node.js, which drives it.
pub fn ensure_browser(mode: Mode) -> Result<bool> {
    let named = std::env::var_os("MEMSCOPE_CHROMIUM").map(PathBuf::from);
    let browser = match named {
        Some(program) => {
            eprintln!(
                "Chromium: {} is named by MEMSCOPE_CHROMIUM",
                program.display()
            );
            true
        }
        None => CHROMIUM.ensure(mode).context(
            "any Chromium or Chrome will do: put it on PATH or name it with MEMSCOPE_CHROMIUM",
        )?,
    };
    Ok(NODE.ensure(mode)? & browser)
}

fn ensure_bpf_compiler(mode: Mode) -> Result<bool> {
    let name = "Rust compiler with library sources";
    let why = "it compiles the BPF programs";
    let find = || match memscope_ebpf_build::find_toolchain() {
        Ok(found) => Ok(Found {
            program: found.rustc,
            version: found.version,
        }),
        Err(error) => Err(error.to_string()),
    };
    provide(name, why, mode, find, || {
        apt(&["rustc-web", "rust-web-src"]).context(
            "with rustup, this is the usual way: rustup toolchain install nightly --component rust-src",
        )
    })
}

fn ensure_bpf_linker(mode: Mode) -> Result<bool> {
    let why = "it links the BPF programs";
    // The one that setup installed is tried first, because it has the wanted version.
    let find = || {
        let program = memscope_ebpf_build::find_linker(&tools().join("bin"));
        let program = program.map_err(|error| error.to_string())?;
        found(program, &["--version"], LINKER)
    };
    provide("bpf-linker", why, mode, find, install_bpf_linker)
}

fn tools() -> PathBuf {
    process::target().join("tools")
}

fn install_bpf_linker() -> Result<()> {
    // bpf-linker links LLVM, which is C++.
    let packages = [
        format!("llvm-{LLVM}-dev"),
        format!("libpolly-{LLVM}-dev"),
        "g++".to_owned(),
    ];
    let packages = packages.each_ref().map(String::as_str);
    let prefix = match llvm_prefix() {
        Some(prefix) if process::find_program("c++").is_some() => prefix,
        _ => {
            apt(&packages).with_context(|| {
                format!(
                    "LLVM {LLVM} with its headers is needed (on Debian 12 it is in bookworm-security); \
                     with another LLVM: cargo install bpf-linker"
                )
            })?;
            llvm_prefix()
                .with_context(|| format!("LLVM {LLVM} was installed but cannot be found"))?
        }
    };
    process::run(
        process::command("cargo")
            .args([
                "install",
                "bpf-linker",
                "--version",
                LINKER_VERSION,
                "--locked",
            ])
            .args([
                "--no-default-features",
                "--features",
                &format!("llvm-{LLVM}"),
            ])
            .arg("--root")
            .arg(tools())
            // The build of bpf-linker reads the first variable, its dependency llvm-sys the second.
            .env("LLVM_PREFIX", &prefix)
            .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix)
            // What takes long when it links is LLVM, which is there already.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env_remove("RUSTC")
            .env_remove("RUSTC_WORKSPACE_WRAPPER"),
    )
}

fn llvm_prefix() -> Option<PathBuf> {
    let prefix = match process::output(Command::new(format!("llvm-config-{LLVM}")).arg("--prefix"))
    {
        Ok(text) => PathBuf::from(text.trim()),
        Err(_) => PathBuf::from(format!("/usr/lib/llvm-{LLVM}")),
    };
    // The library's package comes without headers; libPolly's is separate.
    let complete =
        prefix.join("include/llvm-c/Core.h").exists() && prefix.join("lib/libPolly.a").exists();
    complete.then_some(prefix)
}
