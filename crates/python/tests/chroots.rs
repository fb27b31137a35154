//! Tests with interpreters of several Debian releases, each in a root folder of its own. `cargo xtask pythons` makes
//! these and runs the tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::c::{self, Folder};
use common::{AGENT, BUSY, Program, Python, TWO, checks};
use memscope_python::{PythonError, ThreadStateAt, VersionFrom, find};

#[test]
fn stacks_are_those_that_python_reports() {
    Python::named().iter().for_each(checks::stacks);
}

#[test]
fn lines_are_those_that_python_reports() {
    for python in Python::named() {
        checks::lines(&python, 8000);
    }
}

#[test]
fn a_process_that_never_rests() {
    Python::named().iter().for_each(checks::busy);
}

#[test]
fn a_process_with_hundreds_of_threads() {
    Python::named().iter().for_each(checks::many_threads);
}

#[test]
fn frames_that_are_still_being_made() {
    for python in Python::named() {
        checks::prologue(&python);
    }
}

#[test]
fn a_forked_process() {
    Python::named().iter().for_each(checks::forked);
}

#[test]
fn subinterpreters() {
    Python::named().iter().for_each(checks::subinterpreters);
}

#[test]
fn names_beyond_the_bound() {
    Python::named().iter().for_each(checks::long_names);
}

#[test]
fn pthread_keys_of_the_second_level() {
    Python::named().iter().for_each(checks::high_keys);
}

/// The interpreters in other roots: programs of Debian, with their libraries beside them.
fn rooted() -> Vec<Python> {
    let all = Python::named();
    all.into_iter()
        .filter(|python| python.root.is_some())
        .collect()
}

/// Path of an interpreter's shared library, as the interpreter sees it.
fn library(python: &Python) -> PathBuf {
    python
        .ask(
            "import glob, sys\n\
             print(*glob.glob('/usr/lib/*/libpython3.%d.so.1.0' % sys.version_info[1]))",
        )
        .into()
}

/// Runs the program that loads the library. Checks that it is refused before it starts its interpreter, and returns it
/// afterwards.
fn started(command: Command) -> Program {
    let mut program = Program::start(command);
    assert_eq!(program.line::<String>(), "loaded");
    match find(program.pid()) {
        Err(PythonError::NotInitialized { .. }) => {}
        other => panic!("{other:?}"),
    }
    program.tell();
    program
}

/// The library is part of another program: loaded when the program starts, and loaded later.
#[test]
fn embedded() {
    let mut embedded = 0;
    for python in rooted() {
        // The program is compiled on this machine, and does not run with old C libraries.
        if python.minor() < 11 {
            continue;
        }
        embedded += 1;
        let library = library(&python);
        let folder = Folder::new(&python);
        folder.cc("host", c::HOST, &["-ldl"]);
        let host = folder.there("host");
        let mut late = python.command_of(&host);
        late.arg(&library).arg(AGENT);
        let late = checks::stacks_of(&python, started(late));
        let mut early = checks::preloaded(&python, &library);
        early.arg(&host).arg(&library).arg(AGENT);
        let early = checks::stacks_of(&python, started(early));
        assert!(matches!(early.thread_state, ThreadStateAt::Slot { .. }));
        if early.version.minor >= 15 {
            assert!(matches!(late.thread_state, ThreadStateAt::Dynamic { .. }));
        }
    }
    assert!(embedded > 0);
}

/// A second interpreter that is not running is ignored; if it is running, the process is refused.
#[test]
fn two_at_once() {
    for python in rooted() {
        let library = library(&python);
        let library = library.to_string_lossy();
        let mut program = python.run(TWO, &[&library]);
        let _: HashMap<String, u32> = program.line();
        let first = find(program.pid()).unwrap();
        assert!(!first.path.to_string_lossy().contains("libpython"));
        let started: HashMap<String, u32> = program.ask();
        assert_eq!(started["started"], 1);
        match find(program.pid()) {
            Err(PythonError::Several { paths }) => assert_eq!(paths.len(), 2, "{paths:?}"),
            other => panic!("{python:?}: {other:?}"),
        }
    }
}

/// Changes the first letter of a name wherever the name stands in a file's bytes.
fn rename(bytes: &mut [u8], name: &str) {
    let name = format!("\0{name}\0").into_bytes();
    let places: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| *window == name)
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty(), "no {name:?}");
    for place in places {
        bytes[place + 1] = b'X';
    }
}

/// A copy of an interpreter that lacks some of its symbols.
fn stripped(python: &Python, folder: &Folder, names: &[&str]) -> Python {
    let root = python.root.as_deref().unwrap_or(Path::new("/"));
    let program = python.ask("import os, sys; print(os.path.realpath(sys.executable))");
    let mut bytes = fs::read(root.join(program.trim_start_matches('/'))).unwrap();
    for name in names {
        rename(&mut bytes, name);
    }
    let name = format!("python3.{}", python.minor());
    fs::write(folder.here(&name), bytes).unwrap();
    fs::set_permissions(folder.here(&name), fs::Permissions::from_mode(0o755)).unwrap();
    Python {
        root: python.root.clone(),
        program: folder.there(&name),
    }
}

/// Without symbols, the interpreter is found by its section, in versions that have one; without `Py_Version`, its
/// version is known from its description or because only one fits. Where neither is possible it is refused with a clear
/// reason. (Extension modules may need the missing symbols, so the programs of this test use none.)
#[test]
fn stripped_interpreters() {
    for python in rooted() {
        let minor = python.minor();
        let folder = Folder::new(&python);
        let mut names = vec!["_PyRuntime", "PyCode_Type"];
        if minor >= 11 {
            names.push("Py_Version");
        }
        let copy = stripped(&python, &folder, &names);
        if minor >= 10 {
            let found = checks::prologue(&copy);
            let expected = if minor >= 13 {
                VersionFrom::Description
            } else {
                VersionFrom::Fit
            };
            assert_eq!(found.version_from, expected);
        } else {
            let mut program = copy.run(BUSY, &[]);
            let _: HashMap<String, u32> = program.line();
            match find(program.pid()) {
                Err(PythonError::Stripped { missing, .. }) => {
                    assert!(missing.contains("_PyRuntime"))
                }
                other => panic!("{python:?}: {other:?}"),
            }
        }
        if minor >= 15 {
            let copy = stripped(&python, &folder, &["PyGILState_GetThisThreadState"]);
            let mut program = copy.run(BUSY, &[]);
            let _: HashMap<String, u32> = program.line();
            match find(program.pid()) {
                Err(PythonError::ThreadState { what, .. }) => assert!(what.contains("PyGILState")),
                other => panic!("{python:?}: {other:?}"),
            }
        }
    }
}
