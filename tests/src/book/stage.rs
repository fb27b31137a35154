//! Where listed commands are run: a daemon, a training loop, and for each block a folder with the files that it names.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command as Process;

use serde_json::Value;
use tempfile::TempDir;

use crate::book::page::words_of_ours;
use crate::build::{Library, copy_program, executable};
use crate::calls::Calls;
use crate::ctl::{Asking, Said};
use crate::daemon::Daemon;
use crate::group::Group;
use crate::number;
use crate::places::{root, scratch, tool};
use crate::sim::sim;
use crate::torch::{Torch, claims_to_know};
use crate::wait::{LONG, SHORT, until};

/// Steps that the training loop makes after an attach: more than any page's command names, and enough for a verdict.
const STEPS: u32 = 260;
/// The process id that stands for the reader's in the book.
const EXAMPLE: &str = "4242";
/// Exit code of `leaks --exit-code` when something grows, as in every program that the book's commands are run with.
const GROWS: i32 = 10;

/// A daemon, and what it traces.
pub struct Stage {
    daemon: Daemon,
    torch: Torch,
    others: Option<Others>,
    folder: TempDir,
    /// Whether the loop has made its steps since it was attached.
    stepped: bool,
}

/// The exit code that the book promises for a command (docs/what-limits-numbers.md).
pub fn expected_code(words: &[String]) -> i32 {
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    if has("leaks") && has("--exit-code") {
        GROWS
    } else {
        0
    }
}

/// `python tests/book/NAME` on the simulated device.
pub fn program_of_the_book(name: &str) -> Torch {
    let file = root().join("tests/book").join(name);
    Torch::from_command(sim().script(&file))
}

impl Stage {
    /// Starts both.
    pub fn start() -> Stage {
        Stage {
            daemon: Daemon::start(),
            torch: program_of_the_book("training.py"),
            others: None,
            folder: scratch(),
            stepped: false,
        }
    }

    /// Begins anew: an empty folder with the files that commands take, nothing attached, no rules.
    pub fn begin(&mut self) {
        self.folder = scratch();
        open_to_all(self.folder.path(), 0o755);
        self.daemon.ctl(&["detach", "--all"]).text();
        self.stepped = false;
    }

    /// Runs `memscope-ctl …` as the book has it, with the example's names replaced by real ones, and checks its exit code,
    /// its files, and what it did.
    #[track_caller]
    pub fn run(&mut self, place: &str, text: &str) {
        let mut words = words_of_ours(text).expect("a command of memscope-ctl");
        self.make_files(&words);
        let subject = subcommand(&words).to_owned();
        match subject.as_str() {
            "attach" => {
                self.daemon.ctl(&["detach", "--all"]).text();
                self.stepped = false;
            }
            "doctor" => {}
            _ => self.be_traced(),
        }
        self.make_true(&words);
        self.replace(&mut words);
        let said = self.ask(&words);
        let expected = expected_code(&words);
        assert_eq!(said.code, expected, "{place}: {text}\n{said}");
        let file = words
            .iter()
            .position(|word| word == "-o" || word == "--output");
        if let Some(file) = file.and_then(|at| words.get(at + 1)) {
            self.check_file(place, &self.folder.path().join(file));
        } else {
            assert!(
                !said.output.trim().is_empty(),
                "{place}: says nothing: {said}"
            );
        }
        match subject.as_str() {
            "attach" => self.assert_attached(place, &words),
            "detach" => {
                let traced = number(&self.daemon.json(&["status"])["traced_processes"]);
                let left = u64::from(words.iter().any(|word| word == "--rule"));
                assert_eq!(traced, left, "{place}: {text} detached nothing");
                self.stepped = false;
            }
            _ => {}
        }
    }

    fn command(&self, prefix: &[&str], words: &[String]) -> Asking {
        Asking::raw(prefix, words)
            .with("MEMSCOPE_SOCKET", self.daemon.socket())
            .inside(self.folder.path())
    }

    #[track_caller]
    fn ask(&self, words: &[String]) -> Said {
        if let Some(others) = &self.others
            && words == ["attach", "--all"]
        {
            // As another user, whose only process on a device is ours: as root it would attach the processes of everybody on
            // this machine, those of other tests among them.
            let asks: Vec<&str> = others.asks.iter().map(String::as_str).collect();
            return self.command(&asks, words).ask();
        }
        let ctl = tool("memscope-ctl");
        self.command(&[ctl.to_str().unwrap()], words).ask()
    }

    /// The loop is attached, what was there before is known, and it has made its steps.
    fn be_traced(&mut self) {
        let pid = self.torch.pid();
        let state = self
            .daemon
            .process(pid)
            .map(|process| process["state"].clone());
        if state != Some(Value::from("attached")) {
            self.daemon.attach(pid, "trace");
            self.stepped = false;
        }
        if !self.stepped {
            self.torch.ask(&format!("steps {STEPS}"));
            until(SHORT, "what was there before is known", || {
                claims_to_know(&self.daemon.stats(pid)).then_some(())
            });
            self.stepped = true;
        }
    }

    /// What a command takes for granted.
    fn make_true(&mut self, words: &[String]) {
        let ours = self.torch.pid_text();
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            // The snapshot of an out-of-memory error is taken by itself.
            ["snapshots", ..] => {
                let none = |stage: &Stage| stage.list(&["snapshots"], "snapshots").is_empty();
                if none(self) {
                    self.torch.ask("fail 1024");
                    until(SHORT, "a snapshot is kept", || (!none(self)).then_some(()));
                }
            }
            ["inefficient", "--pid", ..] | ["uses", ..] => {
                self.daemon.detach(self.torch.pid());
                let attach = ["attach", "--pid", &ours, "--accesses"];
                self.daemon.json(&attach);
                self.torch.ask("steps 10");
            }
            ["attach", "--comm" | "--cgroup" | "--all", ..] => self.need_others(),
            ["detach", "--rule", ..] => {
                self.need_others();
                let name = self.others.as_ref().map(|others| others.name.clone());
                let name = name.unwrap_or_default();
                if self.list(&["status"], "rules").is_empty() {
                    self.daemon.ctl(&["attach", "--comm", &name]).text();
                }
            }
            _ => {}
        }
        if let Some(past) = words.iter().filter_map(|word| seconds_ago(word)).max() {
            // In the present attach: what is in an earlier one now may be between the two when it is asked for.
            until(LONG, "the process has a past", || {
                let stats = self.daemon.stats(self.torch.pid());
                let attached_ns = number(&stats["process"]["attached_boot_ns"]);
                let since_ns = number(&stats["as_of_boot_ns"]) - attached_ns;
                (since_ns > u64::from(past) * 1_000_000_000).then_some(())
            });
        }
    }

    fn list(&self, words: &[&str], key: &str) -> Vec<Value> {
        let list = &self.daemon.json(words)[key];
        list.as_array().cloned().unwrap_or_default()
    }

    /// Puts real names in the place of the example's: process, name, control group, numbers of rules, triggers and snapshots,
    /// and times that are minutes or hours ago, when this process did not run yet.
    fn replace(&self, words: &mut Vec<String>) {
        let last = |words: &[&str], list: &str, key: &str| {
            let entries = self.list(words, list);
            entries.last().map(|entry| number(&entry[key]).to_string())
        };
        for at in 0..words.len() {
            let before = at.checked_sub(1).map(|before| words[before].clone());
            let real = match (before.as_deref(), words[at].as_str()) {
                (_, EXAMPLE) => Some(self.torch.pid_text()),
                (Some("--comm"), _) => self.others.as_ref().map(|others| others.name.clone()),
                (Some("--cgroup"), _) => {
                    let others = self.others.as_ref();
                    others.map(|others| Group::outer_of(others.program.pid()))
                }
                (Some("--rule"), _) => last(&["status"], "rules", "rule"),
                (Some("remove"), _) => last(&["trigger", "list"], "triggers", "trigger"),
                (Some("uses"), _) => Some(self.address_of_a_block()),
                (Some("get"), _) => last(&["snapshots"], "snapshots", "snapshot"),
                (_, word) => seconds_ago(word).map(|past| format!("-{past}s")),
            };
            if let Some(real) = real {
                words[at] = real;
            }
        }
        if words[0] == "ui" {
            // It serves until it is interrupted; tests of its own open the page.
            words.push("--help".to_owned());
        }
        if words[0] == "watch" {
            // It goes on until it is interrupted.
            words.extend(["--count".to_owned(), "2".to_owned()]);
        }
    }

    /// The address of a block that the loop holds.
    #[track_caller]
    fn address_of_a_block(&self) -> String {
        let file = self.folder.path().join("blocks.json");
        let name = file.to_str().unwrap();
        let (pid, format) = (self.torch.pid_text(), "memory-viz-json");
        let words = ["snapshot", "--pid", &pid, "--format", format, "-o", name];
        self.daemon.ctl(&words).text();
        let text = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let snapshot: Value = serde_json::from_slice(&text).unwrap();
        let segments = snapshot["segments"].as_array().unwrap().iter();
        let mut blocks = segments.flat_map(|segment| segment["blocks"].as_array().unwrap());
        let held = blocks.find(|block| block["state"] == "active_allocated");
        held.expect("a block")["address"].to_string()
    }

    fn need_others(&mut self) {
        if self.others.is_none() {
            let others = Others::start();
            // As if their user were of the group that may ask.
            open_to_all(self.daemon.folder(), 0o755);
            open_to_all(&self.daemon.socket(), 0o666);
            self.others = Some(others);
        }
    }

    #[track_caller]
    fn assert_attached(&self, place: &str, words: &[String]) {
        let rule = ["--comm", "--cgroup", "--all"].contains(&words[1].as_str());
        let pid = match &self.others {
            Some(others) if rule => others.program.pid(),
            _ => self.torch.pid(),
        };
        let process = self.daemon.process(pid);
        let process = process.unwrap_or_else(|| panic!("{place}: {pid} is not traced"));
        assert_eq!(process["state"], "attached", "{place}: {process:#}");
    }

    /// Files that a command reads and that nobody made yet.
    fn make_files(&mut self, words: &[String]) {
        for word in words {
            let file = self.folder.path().join(word);
            let golden = |name: &str| root().join("crates/dump/tests/golden").join(name);
            let source = match word.as_str() {
                _ if file.exists() => continue,
                "before.pickle" | "after.pickle" => {
                    self.be_traced();
                    let file = file.to_str().unwrap();
                    let words = ["snapshot", "--pid", &self.torch.pid_text(), "-o", file];
                    self.daemon.ctl(&words).text();
                    self.torch.ask("steps 1");
                    continue;
                }
                "nodes.txt" => {
                    self.be_traced();
                    let list = format!("here unix:{}\n", self.daemon.socket().display());
                    std::fs::write(file, list).unwrap();
                    continue;
                }
                "before.csv" => golden("inefficient_1.csv"),
                "after.csv" => golden("inefficient_2.csv"),
                "dump.csv" => golden("offline_leaks_1.csv"),
                _ => continue,
            };
            let text = std::fs::read_to_string(source).unwrap();
            std::fs::write(file, text.replace("memscope golden", "step")).unwrap();
        }
    }

    /// A file is there, and of the kind that its name says.
    #[track_caller]
    fn check_file(&self, place: &str, file: &Path) {
        if file.is_dir() {
            return self.check_folder(place, file);
        }
        let bytes = std::fs::read(file).unwrap_or_else(|error| {
            panic!("{place}: {}: {error}", file.display());
        });
        let text = String::from_utf8_lossy(&bytes);
        let has = |words: &[&str]| words.iter().all(|word| text.contains(word));
        let ending = file
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let right = match ending.as_str() {
            "pickle" => {
                bytes.starts_with(&[0x80])
                    && bytes.ends_with(b".")
                    && has(&["segments", "device_traces"])
            }
            "html" => has(&["<!doctype html>", "</html>"]) || has(&["<!DOCTYPE html>", "</html>"]),
            "svg" => has(&["<svg", "</svg>"]),
            "mscope" => {
                let words = ["--recording", file.to_str().unwrap(), "ps"];
                Asking::new(words)
                    .ask()
                    .text()
                    .contains(&self.torch.pid_text())
            }
            other => panic!("{place}: this test does not know what a .{other} has to be"),
        };
        assert!(right, "{place}: {} is of another kind", file.display());
    }

    /// A folder is a recording, or has msMemScope's dumps in it.
    #[track_caller]
    fn check_folder(&self, place: &str, folder: &Path) {
        let mut dumps = 0;
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if name.starts_with("memscope_dump_") && name.ends_with(".csv") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    assert!(text.starts_with("ID,Event,"), "{place}: {}", path.display());
                    dumps += 1;
                }
            }
        }
        let is_report = folder.join("latest/report.html").is_file();
        if dumps == 0 && !is_report {
            let words = ["--recording", folder.to_str().unwrap(), "ps"];
            Asking::new(words).ask().text();
        }
    }
}

/// The subcommand in the words of a command, behind the options that stand before it.
fn subcommand(words: &[String]) -> &str {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--recording" | "--socket" | "--as-of" | "--timeout" => {
                words.next();
            }
            option if option.starts_with('-') => {}
            name => return name,
        }
    }
    ""
}

/// For a time ago such as `-5m` that many seconds instead, in the same order.
fn seconds_ago(word: &str) -> Option<u32> {
    let (digits, unit) = word.strip_prefix('-')?.split_at_checked(word.len() - 2)?;
    let count: u32 = digits.parse().ok()?;
    match unit {
        "m" => Some(1),
        "h" => Some(1 + count),
        _ => None,
    }
}

/// A process on a device with a name, a control group and a user of its own, for rules that attach whatever matches.
struct Others {
    program: Calls,
    name: String,
    /// What stands before memscope-ctl's words where its user asks.
    asks: Vec<String>,
    _group: Group,
    _folder: TempDir,
}

impl Others {
    fn start() -> Others {
        let own = std::process::id();
        let name = format!("book-{own}");
        let folder = scratch();
        open_to_all(folder.path(), 0o755);
        let copy = |from: &Path, name: &str| {
            let copy = folder.path().join(name);
            copy_program(from, &copy);
            open_to_all(&copy, 0o755);
            copy
        };
        let program = copy(&executable("calls.c", Library::Runtime), &name);
        for file in [sim().runtime(), sim().driver()] {
            copy(&file, file.file_name().unwrap().to_str().unwrap());
        }
        let ctl = copy(&tool("memscope-ctl"), "memscope-ctl");
        // Far from the numbers of real users, and another one for each run of this test.
        let user = 1_000_000 + own;
        let user = [
            "setpriv",
            &format!("--reuid={user}"),
            &format!("--regid={user}"),
        ]
        .map(str::to_owned);
        let user = [&user[..], &["--clear-groups".to_owned()]].concat();
        let mut command = Process::new(&user[0]);
        command.args(&user[1..]).arg(program);
        command.env("LD_LIBRARY_PATH", folder.path());
        let group = Group::start();
        Others {
            program: Calls::from_command(group.command(command)),
            name,
            asks: [&user[..], &[ctl.to_str().unwrap().to_owned()]].concat(),
            _group: group,
            _folder: folder,
        }
    }
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}
