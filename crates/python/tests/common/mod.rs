//! The interpreters to test with, and the programs that run in them.
#![allow(dead_code)] // each test file uses its part

pub mod c;
pub mod checks;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

pub const AGENT: &str = include_str!("../python/agent.py");
pub const BUSY: &str = include_str!("../python/busy.py");
pub const CODES: &str = include_str!("../python/codes.py");
pub const FORKED: &str = include_str!("../python/forked.py");
pub const PROLOGUE: &str = include_str!("../python/prologue.py");
pub const TWO: &str = include_str!("../python/two.py");
pub const SUB: &str = include_str!("../python/sub.py");

/// An interpreter, perhaps in another root folder.
#[derive(Clone, Debug, Deserialize)]
pub struct Python {
    /// Folder that is its root directory (by chroot); `None`: our own root.
    pub root: Option<PathBuf>,
    /// Path of the program, as seen from that root.
    pub program: PathBuf,
}

impl Python {
    /// Every `python3` on PATH, each program once.
    pub fn on_path() -> Vec<Python> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut seen = HashSet::new();
        let found: Vec<Python> = std::env::split_paths(&path)
            .map(|folder| folder.join("python3"))
            .filter(|program| program.exists())
            .filter_map(|program| {
                let python = Python {
                    root: None,
                    program,
                };
                // The program on PATH may be a script that chooses an interpreter.
                let asked = python.ask("import os, sys; print(os.path.realpath(sys.executable))");
                seen.insert(asked.clone()).then_some(Python {
                    root: None,
                    program: asked.into(),
                })
            })
            .collect();
        assert!(!found.is_empty(), "these tests need a python3 on PATH");
        found
    }

    /// The interpreters that the environment variable names, for tests with more than the machine's own.
    pub fn named() -> Vec<Python> {
        let text = std::env::var("MEMSCOPE_PYTHONS").expect("`cargo xtask pythons` runs this");
        let named: Vec<Python> = serde_json::from_str(&text).unwrap();
        assert!(!named.is_empty());
        named
    }

    pub fn command(&self) -> Command {
        self.command_of(&self.program)
    }

    /// A command that runs another program in the interpreter's root.
    pub fn command_of(&self, program: &Path) -> Command {
        match &self.root {
            None => Command::new(program),
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(program);
                command
            }
        }
    }

    /// Runs Python code, and returns what it prints.
    pub fn ask(&self, source: &str) -> String {
        let output = self.command().args(["-c", source]).output().unwrap();
        assert!(
            output.status.success(),
            "{self:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn minor(&self) -> u8 {
        self.ask("import sys; print(sys.version_info[1])")
            .parse()
            .unwrap()
    }

    pub fn run(&self, source: &str, arguments: &[&str]) -> Program {
        let mut command = self.command();
        command.args(["-c", source]).args(arguments);
        Program::start(command)
    }
}

/// A program that prints JSON, and ends when its standard input does.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(mut command: Command) -> Program {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Program {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line of output as JSON.
    pub fn line<T: DeserializeOwned>(&mut self) -> T {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends an empty line, so that the program goes on.
    pub fn tell(&mut self) {
        let input = self.input.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
        input.flush().unwrap();
    }

    pub fn ask<T: DeserializeOwned>(&mut self) -> T {
        self.tell();
        self.line()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
