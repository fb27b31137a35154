//! A terminal without a window: tmux, with a server of the test's own.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::{LONG, scratch, until};

/// What the shell in it says when it waits for a command.
const PROMPT: &str = "ready>";

/// A terminal with a shell in it. It ends, with all that runs in it, when it is dropped.
pub struct Terminal {
    folder: TempDir,
}

impl Terminal {
    /// Opens one with so many columns and lines, and waits for the shell.
    #[track_caller]
    pub fn open(columns: u32, lines: u32) -> Terminal {
        let terminal = Terminal { folder: scratch() };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let shell = format!("env PS1='{PROMPT} ' bash --norc --noprofile -i");
        let size = ["-x", &columns, "-y", &lines];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &[&shell]].concat());
        // Programs may write to the clipboard, which is one of tmux's buffers then.
        terminal.tmux(&["set-option", "-g", "set-clipboard", "on"]);
        terminal.wait(PROMPT);
        terminal
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("tmux.sock")
    }

    /// Gives tmux a command, and what it says about it.
    #[track_caller]
    pub fn tmux(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.socket())
            .args(["-u", "-f", "/dev/null"]);
        command
            .args(words)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX");
        let output = command.output();
        let output = output.expect("tmux: cargo xtask setup --terminal installs it");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {words:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types a line, and Enter.
    #[track_caller]
    pub fn type_line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.press(&["Enter"]);
    }

    /// Presses keys, by tmux's names for them.
    #[track_caller]
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// What is on the screen.
    #[track_caller]
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until a text is on the screen; gives the screen.
    #[track_caller]
    pub fn wait(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted; gives it.
    #[track_caller]
    pub fn wait_for(&self, wanted: &str, is_there: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(LONG, wanted, || {
                last = self.screen();
                is_there(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("{wanted} is not on the screen:\n{last}"))
    }

    /// Waits until the shell waits for a command, at the end of all that is on the screen.
    #[track_caller]
    pub fn wait_for_prompt(&self) -> String {
        self.wait_for("the shell's prompt", |screen| {
            screen.trim_end().ends_with(PROMPT)
        })
    }

    /// Process id of the program that the shell runs.
    #[track_caller]
    pub fn program(&self) -> i32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let file = format!("/proc/{shell}/task/{shell}/children");
        until(LONG, "a program of the shell", || {
            let children = std::fs::read_to_string(&file).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket()).arg("kill-server");
        // The server may have ended with its only shell.
        let _ = command.output();
    }
}
