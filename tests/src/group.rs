//! Control groups.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group of this test's own with another one in it, gone when it is dropped.
pub struct Group(PathBuf);

impl Group {
    /// Makes both.
    pub fn start() -> Group {
        let text = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let root = mounts
            .iter()
            .find(|mount| mount[2] == "cgroup2")
            .or_else(|| {
                mounts
                    .iter()
                    .find(|mount| mount[2] == "cgroup" && mount[3].contains("pids"))
            })
            .or_else(|| mounts.iter().find(|mount| mount[2] == "cgroup"))
            .expect(
                "this test needs a control group file system; mount -t cgroup2 none /sys/fs/cgroup",
            );
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("memscope-e2e-{}-{number}", std::process::id());
        let folder = Path::new(root[1]).join(name);
        std::fs::create_dir_all(folder.join("inner")).expect("a control group");
        Group(folder)
    }

    /// The command, to be run in the inner group.
    pub fn command(&self, mut command: Command) -> Command {
        let file = self.0.join("inner/cgroup.procs");
        // SAFETY: between fork and exec; opens and writes one file.
        unsafe { command.pre_exec(move || std::fs::write(&file, "0")) };
        command
    }

    /// Words before a command that is then run in the inner group, which looks to it like the root of all groups, as to a container.
    /// `hidden`: it sees no control groups of the machine either.
    pub fn container(&self, hidden: bool) -> Vec<String> {
        let procs = self.0.join("inner/cgroup.procs");
        let hide = match hidden {
            true => "mount -t tmpfs none /sys/fs/cgroup && ",
            false => "",
        };
        let script = format!(
            "echo 0 > {} && exec unshare --cgroup --mount sh -c '{hide}exec \"$0\" \"$@\"' \"$0\" \"$@\"",
            procs.display()
        );
        vec!["sh".to_owned(), "-c".to_owned(), script]
    }

    /// Moves a running process into the inner group.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.0.join("inner/cgroup.procs"), pid.to_string())
            .expect("the process is moved into the group");
    }

    /// The path of the outer group as the kernel tells it of a process in the inner one.
    pub fn outer_of(pid: u32) -> String {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains("memscope-e2e-"))
            .expect("the process is in the group");
        let path = line.splitn(3, ':').nth(2).unwrap();
        path.trim_end_matches("/inner").to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.0.join("inner"));
        let _ = std::fs::remove_dir(&self.0);
    }
}
