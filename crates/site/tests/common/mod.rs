//! Fixtures: small libraries built with `cc`, and processes that have them mapped.
#![allow(dead_code)] // each test file uses its part

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memscope_site::place::Emulation;
use memscope_site::{FoundSite, Level, Missing, ObjectSites, Resolved, Resolver};

pub struct Fixtures {
    dir: tempfile::TempDir,
}

impl Fixtures {
    pub fn new() -> Fixtures {
        Fixtures {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cc(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        self.cc_in(&[], name, source, arguments)
    }

    /// `before` are arguments that stand before the source, such as its language.
    fn cc_in(&self, before: &[&str], name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let output = self.path(name);
        std::fs::create_dir_all(output.parent().unwrap()).unwrap();
        let input = self.path(&format!("{}.c", name.replace('/', "_")));
        std::fs::write(&input, source).unwrap();
        let done = Command::new("cc")
            .args(["-O1", "-fno-ipa-icf", "-Wl,--build-id"])
            .arg("-o")
            .arg(&output)
            .args(before)
            .arg(&input)
            .args(arguments)
            .output()
            .expect("a C compiler (cc)");
        assert!(
            done.status.success(),
            "cc failed: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        output
    }

    /// Builds a shared library.
    pub fn library(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let mut all = vec!["-shared", "-fPIC", "-fcf-protection=none"];
        all.extend(arguments);
        self.cc(name, source, &all)
    }

    /// Builds a program.
    pub fn program(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        self.cc(name, source, arguments)
    }

    /// Builds a program in C++.
    pub fn program_of_cpp(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let mut all = arguments.to_vec();
        all.extend(["-xnone", "-lstdc++"]);
        self.cc_in(&["-xc++"], name, source, &all)
    }

    /// Starts a process that loads these libraries and waits.
    pub fn run(&self, libraries: &[&Path]) -> Waiting {
        let host = self.path("host");
        if !host.exists() {
            self.program("host", HOST, &["-ldl"]);
        }
        Waiting::start(Command::new(host).args(libraries))
    }
}

const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **names) {
    for (int i = 1; i < n; i++)
        if (!dlopen(names[i], RTLD_NOW | RTLD_LOCAL)) { puts(dlerror()); return 1; }
    puts("ready");
    fflush(stdout);
    return getchar() == 0;
}
"#;

/// A child process that waits for the end of its input. It is killed when the test drops it.
pub struct Waiting {
    child: Child,
}

impl Waiting {
    pub fn start(command: &mut Command) -> Waiting {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line.trim(), "ready");
        Waiting { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn resolve(pid: u32, level: Level) -> Resolved {
    Resolver::for_kernel(Emulation::of_kernel(6, 18))
        .resolve(pid, level)
        .unwrap()
}

pub fn object<'a>(resolved: &'a Resolved, library: &Path) -> &'a ObjectSites {
    let path = library.to_string_lossy();
    resolved
        .objects
        .iter()
        .find(|object| object.display_path == path)
        .unwrap_or_else(|| panic!("no sites in {path}: {:?}", resolved.missing))
}

pub fn site<'a>(object: &'a ObjectSites, name: &str) -> &'a FoundSite {
    object
        .sites
        .iter()
        .find(|site| site.row.name == name)
        .unwrap_or_else(|| panic!("{name} not found in {}", object.display_path))
}

pub fn missing<'a>(resolved: &'a Resolved, function: &str) -> &'a Missing {
    resolved
        .missing
        .iter()
        .find(|missing| missing.function == function)
        .unwrap_or_else(|| panic!("{function} is not missing: {:?}", resolved.missing))
}
