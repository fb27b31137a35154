//! A daemon of this test's own.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::ctl::{Asking, Said};
use crate::need_root;
use crate::places::{scratch, tool};
use crate::program::{kill_group, tied};
use crate::wait::{LONG, SHORT, until};

/// A daemon with a socket and a state directory of its own. Ends when it is dropped, and must then end
/// well.
pub struct Daemon {
    child: Child,
    folder: TempDir,
    arguments: Vec<String>,
    ended: Option<ExitStatus>,
}

impl Daemon {
    /// Starts one and waits until it answers.
    pub fn start() -> Daemon {
        Daemon::with(&[])
    }

    /// Starts one with more arguments.
    pub fn with(arguments: &[&str]) -> Daemon {
        Daemon::wrapped(&[], arguments)
    }

    /// Starts one through a prefix such as `unshare -m …`, which must end in an exec of the rest.
    pub fn wrapped(prefix: &[&str], arguments: &[&str]) -> Daemon {
        Daemon::launch(prefix, arguments).answers()
    }

    /// Starts one whose state directory is a disk of its own, of this size (`4m`).
    pub fn on_a_disk_of(size: &str, arguments: &[&str]) -> Daemon {
        let script = format!(
            "mkdir -p \"$E2E_STATE\" && mount -t tmpfs -o size={size} none \"$E2E_STATE\" && exec \"$0\" \"$@\""
        );
        Daemon::wrapped(&["unshare", "--mount", "sh", "-c", &script], arguments)
    }

    /// Waits until it answers.
    fn answers(mut self) -> Daemon {
        until(SHORT, "the daemon answers", || {
            if self.has_ended() {
                panic!("the daemon ended: {}", self.log());
            }
            (self.ask(&["status"]).ask().code == 0).then_some(())
        });
        self
    }

    /// Starts one and does not wait.
    pub fn launch(prefix: &[&str], arguments: &[&str]) -> Daemon {
        Daemon::launch_in(scratch(), prefix, arguments)
    }

    fn launch_in(folder: TempDir, prefix: &[&str], arguments: &[&str]) -> Daemon {
        need_root();
        // The log of the next one follows that of the one before.
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))
            .unwrap();
        let mut words: Vec<std::ffi::OsString> = prefix.iter().map(Into::into).collect();
        words.push(tool("memscoped").into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg("--socket")
            .arg(folder.path().join("sock"));
        command
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            // A memscoped that is installed on the machine may have a configuration.
            .args((!arguments.contains(&"--config")).then_some("--config=none"))
            // What a test kills leaves nothing behind, unless the test is about that.
            .args((!arguments.contains(&"--pin-dir")).then_some("--pin-dir=none"))
            .args(arguments);
        command
            .env("MEMSCOPE_LOG", "info")
            .env("NO_COLOR", "1")
            .env("E2E_STATE", folder.path().join("state"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = tied(&mut command)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Daemon {
            child,
            folder,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            ended: None,
        }
    }

    /// Kills it with -9, and starts another one in its place.
    #[track_caller]
    pub fn again(&mut self) -> Daemon {
        self.kill();
        self.successor()
    }

    /// Starts another one in the place of one that has ended: with its state directory, its socket and its arguments.
    #[track_caller]
    pub fn successor(&mut self) -> Daemon {
        let with = self.arguments.clone();
        self.successor_with(&with.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The same with other arguments.
    #[track_caller]
    pub fn successor_with(&mut self, arguments: &[&str]) -> Daemon {
        assert!(self.has_ended(), "the first one still runs");
        let folder = std::mem::replace(&mut self.folder, scratch());
        Daemon::launch_in(folder, &[], arguments).answers()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// Its state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Its only recording.
    #[track_caller]
    pub fn recording(&self) -> PathBuf {
        let journals = std::fs::read_dir(self.state().join("journal")).unwrap();
        // Beside it lies a lock.
        let mut recordings = journals
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir());
        let only = recordings.next().expect("a recording");
        assert_eq!(recordings.next(), None, "one recording");
        only
    }

    /// The folder of both.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A question to it.
    pub fn ask(&self, arguments: &[&str]) -> Asking {
        let socket = self.socket();
        let socket = socket.to_str().unwrap();
        Asking::new(["--socket", socket].iter().chain(arguments))
    }

    /// `memscope-ctl ARGUMENTS`.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> Said {
        self.ask(arguments).ask()
    }

    /// `memscope-ctl --json ARGUMENTS`, which must go well.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.ctl(&[&["--json"], arguments].concat()).json()
    }

    /// Attaches a process at a level; gives what is said of it.
    #[track_caller]
    pub fn attach(&self, pid: u32, level: &str) -> Value {
        let answer = self.json(&["attach", "--pid", &pid.to_string(), "--level", level]);
        assert_eq!(
            answer["processes"].as_array().map(Vec::len),
            Some(1),
            "{answer:#}"
        );
        assert_eq!(answer["processes"][0]["pid"], pid, "{answer:#}");
        answer["processes"][0].clone()
    }

    /// Detaches a process.
    #[track_caller]
    pub fn detach(&self, pid: u32) {
        let answer = self.json(&["detach", "--pid", &pid.to_string()]);
        assert_eq!(answer["pids"], serde_json::json!([pid]));
    }

    /// Lets all users ask it, as if they were of its group.
    pub fn open_to_all(&self) {
        set_permissions(self.folder(), Permissions::from_mode(0o755)).unwrap();
        set_permissions(self.socket(), Permissions::from_mode(0o666)).unwrap();
    }

    /// What a process holds. It waits for longer than the 30 s of `memscope-ctl`: an answer took more than these where the process allocated
    /// without a pause while other programs kept the processors busy.
    #[track_caller]
    pub fn stats(&self, pid: u32) -> Value {
        self.json(&["stats", "--timeout", "120", "--pid", &pid.to_string()])
    }

    /// The process in the answer to `ps`.
    #[track_caller]
    pub fn process(&self, pid: u32) -> Option<Value> {
        let answer = self.json(&["ps"]);
        let list = answer["processes"].as_array().unwrap();
        list.iter()
            .rev()
            .find(|process| process["pid"] == pid)
            .cloned()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory; the child is not yet waited for, so the number is its own.
        let result = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(result, 0, "cannot signal the daemon");
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        until(LONG, "the daemon ends", || self.has_ended().then_some(()));
        self.ended.unwrap()
    }

    /// Ends it as `systemctl stop` does; it must end with 0 and leave nothing but its journal.
    #[track_caller]
    pub fn stop(&mut self) {
        if !self.has_ended() {
            self.signal(libc::SIGTERM);
        }
        let status = self.wait();
        assert!(
            status.success(),
            "the daemon ended with {status}: {}",
            self.log()
        );
        assert!(
            !self.log().contains("panicked at"),
            "the daemon panicked: {}",
            self.log()
        );
        let mut left: Vec<String> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        let allowed = ["log", "state"];
        assert!(
            left.iter().all(|name| allowed.contains(&name.as_str())),
            "the daemon left {left:?}"
        );
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        kill_group(&self.child);
        self.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // No panic may come of this: it would end everything.
            let mut status = Command::new(tool("memscope-ctl"));
            status
                .arg("--socket")
                .arg(self.socket())
                .args(["--timeout", "3", "status"]);
            if let Ok(said) = status.output() {
                eprintln!(
                    "---- its status:\n{}",
                    String::from_utf8_lossy(&said.stdout)
                );
            }
            kill_group(&self.child);
            let _ = self.child.wait();
            let log = self.log();
            let from = log.len().saturating_sub(4000);
            eprintln!(
                "---- the daemon logged:\n{}",
                log.get(from..).unwrap_or(&log)
            );
        } else if self.ended.is_none() {
            self.stop();
        }
    }
}
