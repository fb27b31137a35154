//! Finds or installs what clients in other languages are generated and tested with: gRPC's own libraries for Python,
//! Node.js and Go, and the generators of code for them. Among the packages for Python are those of OpenTelemetry that receive OTLP in
//! tests, and those with which the Python package makes tables and pictures and runs in notebooks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::mode::Mode;
use super::tool::{Found, Tool, Version, found, provide};
use super::{apt, npm, toolchain, venv};
use crate::process;

const PROTOC: Tool = Tool {
    name: "protoc",
    why: "it generates what clients are made of",
    programs: &["protoc"],
    ask: &["--version"],
    // The first version that writes stubs for Python.
    least: Version(3, 20),
    packages: &["protobuf-compiler"],
};
const GO: Tool = Tool {
    name: "Go",
    why: "it compiles a client in Go",
    programs: &["go"],
    ask: &["version"],
    least: Version(1, 18),
    packages: &["golang-go"],
};
const GO_MESSAGES: Tool = Tool {
    name: "protoc-gen-go",
    why: "it generates messages for Go",
    programs: &["protoc-gen-go"],
    ask: &["--version"],
    // The first version that knows optional fields.
    least: Version(1, 25),
    packages: &["protoc-gen-go"],
};
const GO_CALLS: Tool = Tool {
    name: "protoc-gen-go-grpc",
    why: "it generates calls for Go",
    programs: &["protoc-gen-go-grpc"],
    ask: &["--version"],
    least: Version(1, 0),
    packages: &["protoc-gen-go-grpc"],
};
/// The oldest grpc-go that the generated calls are made for.
const GO_LIBRARY: Version = Version(1, 32);
/// The plugin with which `protoc` generates calls for Python. It does not report its version.
pub const PYTHON_CALLS: &str = "grpc_python_plugin";
/// Folder in which Debian installs the sources of Go's libraries.
const GO_SOURCES: &str = "/usr/share/gocode";

/// Makes sure that everything is there. False: something is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    // All are looked for, so that each is reported even if another is missing.
    let found = [
        ensure_python(mode)?,
        ensure_node(mode)?,
        ensure_generators(mode)?,
        ensure_go(mode)?,
    ];
    Ok(found.into_iter().all(|found| found))
}

/// Folder of the environment with gRPC for Python.
pub fn python() -> PathBuf {
    folder().join("python")
}

fn folder() -> PathBuf {
    process::target().join("clients")
}

/// Whether a folder has what a file of requirements of tests/clients names, for the interpreter of an environment.
fn installed_from(
    folder: &Path,
    environment: &Path,
    name: &str,
    mode: Mode,
    install: impl Fn(&Path) -> Result<()>,
) -> Result<bool> {
    let pins = process::root().join("tests/clients").join(name);
    let what = format!("gRPC for Python, {name}");
    venv::installed_from(folder, environment, &pins, &what, mode, install)
}

/// Makes sure that there is gRPC for Python, and in a folder beside it the oldest protobuf that the package works with.
pub fn ensure_python(mode: Mode) -> Result<bool> {
    let python = python();
    let newest = installed_from(&python, &python, "requirements.txt", mode, |pins| {
        toolchain::ensure_python(mode)?;
        venv::make_with(&python, pins)
    })?;
    if !newest {
        return Ok(false);
    }
    let oldest = folder().join("oldest");
    installed_from(&oldest, &python, "oldest.txt", mode, |pins| {
        if oldest.exists() {
            fs::remove_dir_all(&oldest)?;
        }
        process::run(&mut venv::install_into(&python, &oldest, pins))
    })
}

fn ensure_node(mode: Mode) -> Result<bool> {
    let (pins, node) = (process::root().join("tests/clients"), folder().join("node"));
    if mode == Mode::Check && !npm::installed(&pins, &node)? {
        eprintln!("gRPC for Node.js: missing; tests ask the daemon with it");
        return Ok(false);
    }
    npm::install(&pins, &node)?;
    eprintln!("gRPC for Node.js: found in {}", node.display());
    toolchain::ensure_node(mode)
}

/// Makes sure that there are the generators of code for Python that are not in the environment.
pub fn ensure_generators(mode: Mode) -> Result<bool> {
    let why = "it generates calls for Python";
    let starts = || {
        let program = process::find_program(PYTHON_CALLS)
            .ok_or_else(|| format!("{PYTHON_CALLS} is not on PATH"))?;
        // It gets an empty request, only to see whether it starts.
        process::output(&mut std::process::Command::new(&program))
            .map_err(|error| error.to_string())?;
        let version = "which says no version, starts".to_owned();
        Ok(Found { program, version })
    };
    let calls = provide(PYTHON_CALLS, why, mode, starts, || {
        apt::apt(&["protobuf-compiler-grpc"])
    })?;
    Ok(PROTOC.ensure(mode)? & calls)
}

/// Makes sure that there are Go, its generators, and gRPC for Go.
fn ensure_go(mode: Mode) -> Result<bool> {
    let library = || {
        let source = Path::new(GO_SOURCES).join("src/google.golang.org/grpc/version.go");
        let text = fs::read_to_string(&source)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("const Version = "));
        let version = version.map(|version| version.trim_matches('"').to_owned());
        let version = version.ok_or_else(|| format!("{} says no version", source.display()))?;
        if Version::in_words(&version).is_none_or(|version| version < GO_LIBRARY) {
            return Err(format!("{version} is too old; {GO_LIBRARY} is needed"));
        }
        // It depends on a library for messages, which is in either of two packages; this one knows optional fields.
        let messages = Path::new(GO_SOURCES).join("src/google.golang.org/protobuf/reflect");
        let bridge = Path::new(GO_SOURCES).join("src/github.com/golang/protobuf/proto/wire.go");
        for part in [messages, bridge] {
            if !part.exists() {
                return Err(format!("{} is not there", part.display()));
            }
        }
        Ok(Found {
            program: source,
            version,
        })
    };
    let why = "a client in Go is compiled with it";
    let library = provide("gRPC for Go", why, mode, library, || {
        apt::apt(&[
            "golang-google-grpc-dev",
            "golang-google-protobuf-dev",
            "golang-github-golang-protobuf-1-5-dev",
        ])
    })?;
    Ok(GO.ensure(mode)? & GO_MESSAGES.ensure(mode)? & GO_CALLS.ensure(mode)? & library)
}

/// The version of `protoc`, as it reports it.
pub fn protoc_version() -> Result<String> {
    let program = process::find_program("protoc").context("protoc is not on PATH")?;
    let found = found(program, PROTOC.ask, PROTOC.least).map_err(anyhow::Error::msg)?;
    Ok(found.version)
}
