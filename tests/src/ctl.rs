//! Asking memscope-ctl.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::places::tool;
use crate::program::{Program, run};

/// A question to memscope-ctl that is not yet asked.
pub struct Asking {
    command: Command,
    limit: Duration,
}

/// What memscope-ctl said.
#[derive(Debug)]
pub struct Said {
    /// Exit code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
    asked: String,
}

impl Asking {
    /// `memscope-ctl ARGUMENTS`.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Asking {
        Asking::through(Command::new(tool("memscope-ctl")), arguments)
    }

    /// `PREFIX… ARGUMENTS`, where the prefix ends in memscope-ctl.
    pub fn raw<S: AsRef<OsStr>>(prefix: &[&str], arguments: impl IntoIterator<Item = S>) -> Asking {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]);
        Asking::through(command, arguments)
    }

    fn through<S: AsRef<OsStr>>(
        mut command: Command,
        arguments: impl IntoIterator<Item = S>,
    ) -> Asking {
        command
            .args(arguments)
            .env_remove("MEMSCOPE_SOCKET")
            .env("MEMSCOPED", tool("memscoped"))
            .env("COLUMNS", "200");
        Asking {
            command,
            limit: Duration::from_secs(60),
        }
    }

    /// Changes its environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Asking {
        self.command.env(name, value);
        self
    }

    /// Asks from within this folder.
    #[must_use]
    pub fn inside(mut self, folder: &Path) -> Asking {
        self.command.current_dir(folder);
        self
    }

    /// Asks, and does not wait for the end of the answer.
    pub fn start(self) -> Program {
        Program::start("memscope-ctl", self.command)
    }

    /// Asks.
    #[track_caller]
    pub fn ask(self) -> Said {
        let asked = format!("{:?}", self.command);
        let (status, output, errors) = run(self.command, self.limit);
        let said = Said {
            code: status.code().unwrap_or(-1),
            output,
            errors,
            asked,
        };
        assert!(!said.errors.contains("panicked at"), "a panic: {said}");
        assert!(said.code >= 0, "killed by a signal: {said}");
        said
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\nexit code {}\n{}\n{}",
            self.asked, self.code, self.output, self.errors
        )
    }
}

impl Said {
    /// Its output, if it went well.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{self}");
        &self.output
    }

    /// Its JSON document, if it went well.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self}");
        self.document()
    }

    /// Its JSON document.
    #[track_caller]
    pub fn document(&self) -> Value {
        serde_json::from_str(&self.output)
            .unwrap_or_else(|error| panic!("no JSON document: {error}: {self}"))
    }

    /// It failed with this exit code, and says what happened and what to do: `words` are all in it.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) -> &Said {
        assert_eq!(self.code, code, "{self}");
        let text = self.errors.to_lowercase();
        assert!(text.contains("try:"), "does not say what to do: {self}");
        for word in words {
            assert!(
                text.contains(&word.to_lowercase()),
                "does not say {word:?}: {self}"
            );
        }
        self
    }
}
