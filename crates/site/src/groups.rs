//! Paths of control groups, as the whole machine calls them.
//!
//! The kernel writes the paths in `/proc/PID/cgroup` as they look from the control group namespace of whoever reads them. A container
//! usually has one of its own, and reads `/../../user.slice` of a process that is in `/user.slice`. Owns: where that namespace begins,
//! which is looked for once. Refuses: to enter another namespace, which needs rights that a daemon on every node should not have.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What is said where control groups cannot be told apart ([`View::Unknown`]).
pub const UNKNOWN: &str = "memscoped runs in a container that does not show it the machine's control groups, and does not know their paths";
/// What is to be done about that.
pub const WAY_OUT: &str =
    "give the container the machine's /sys/fs/cgroup, or start it with --cgroupns=host";

/// How the paths are to be taken that the kernel tells this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// They are those of the machine.
    Machine,
    /// They begin at this control group of the unified hierarchy.
    From(String),
    /// They begin at a control group that this program cannot see.
    Unknown,
}

impl View {
    /// That of this program. It is looked for once: who is moved to another control group stays in its namespace.
    pub fn own() -> &'static View {
        static OWN: OnceLock<View> = OnceLock::new();
        OWN.get_or_init(|| {
            let root = unified().filter(|root| {
                // The file system's own root is the first of its files. A container without the machine's sees a part as if it were all.
                fs::metadata(root).is_ok_and(|metadata| metadata.ino() == 1)
            });
            View::of(Path::new("/proc"), root.as_deref(), std::process::id())
        })
    }

    /// That of the process `own`, where all control groups are beneath `root`.
    fn of(proc: &Path, root: Option<&Path>, own: u32) -> View {
        // The machine's first process is in no group of a container.
        let first = fs::read_to_string(proc.join("1/cgroup")).unwrap_or_default();
        if !lines(&first).any(|(_, path)| path.starts_with("/..")) {
            return View::Machine;
        }
        let begin = || {
            let text = fs::read_to_string(proc.join(own.to_string()).join("cgroup")).ok()?;
            let (_, relative) = lines(&text).find(|(controllers, _)| controllers.is_empty())?;
            let path = group_of(own, root?)?;
            let begin = path.strip_suffix(relative.trim_end_matches('/'))?;
            Some(begin.to_owned()).filter(|begin| begin.starts_with('/') && begin.len() > 1)
        };
        begin().map_or(View::Unknown, View::From)
    }

    /// What the machine calls the control group of the unified hierarchy whose path is `path` here.
    #[must_use]
    pub fn whole(&self, path: &str) -> String {
        match self {
            View::From(begin) => absolute(begin, path),
            View::Machine | View::Unknown => path.to_owned(),
        }
    }
}

/// Controllers and path of each line of a file `cgroup`.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// The path `/../../b`, which begins at `base`, from the root on.
fn absolute(base: &str, path: &str) -> String {
    let mut parts = Vec::new();
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Where the unified hierarchy is mounted.
fn unified() -> Option<PathBuf> {
    let only = Path::new("/sys/fs/cgroup");
    // Beside those of version 1 it has a place of its own.
    let beside = only.join("unified");
    if only.join("cgroup.controllers").exists() {
        return Some(only.to_owned());
    }
    beside.join("cgroup.procs").exists().then_some(beside)
}

/// Path beneath `root` of the control group that has this process.
fn group_of(pid: u32, root: &Path) -> Option<String> {
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        if pids.lines().any(|line| line.parse() == Ok(pid)) {
            let path = folder.strip_prefix(root).ok()?.to_str()?;
            return Some(format!("/{path}"));
        }
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        let folders = entries.flatten().filter(|entry| {
            let kind = entry.file_type();
            kind.is_ok_and(|kind| kind.is_dir())
        });
        left.extend(folders.map(|entry| entry.path()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_out_of_the_namespace() {
        let pod = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope";
        for (path, whole) in [
            ("/", pod),
            (
                "/inner",
                "/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope/inner",
            ),
            (
                "/../../kubepods-pod2.slice/cri-containerd-b.scope",
                "/kubepods.slice/kubepods-pod2.slice/cri-containerd-b.scope",
            ),
            ("/../../../init.scope", "/init.scope"),
            ("/../../..", "/"),
            ("/../../../../..", "/"),
        ] {
            assert_eq!(absolute(pod, path), whole, "{path}");
            assert_eq!(View::From(pod.to_owned()).whole(path), whole, "{path}");
            assert_eq!(View::Machine.whole(path), path);
        }
    }

    /// A process with its line of the unified hierarchy.
    fn process(proc: &Path, pid: u32, path: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{path}\n")).unwrap();
    }

    #[test]
    fn where_the_namespace_begins() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, root) = (folder.path().join("proc"), folder.path().join("cgroup"));
        for (group, pids) in [
            ("", "2\n"),
            ("init.scope", "1\n"),
            ("kubepods.slice/pod1/main/worker", "77\n777\n"),
            ("kubepods.slice/pod2", "7\n"),
        ] {
            fs::create_dir_all(root.join(group)).unwrap();
            fs::write(root.join(group).join("cgroup.procs"), pids).unwrap();
        }
        let view = |first: &str, own: &str, root: Option<&Path>| {
            process(&proc, 1, first);
            process(&proc, 777, own);
            View::of(&proc, root, 777)
        };
        let whole = "/kubepods.slice/pod1/main/worker";
        let from = |begin: &str| View::From(begin.to_owned());
        assert_eq!(view("/init.scope", whole, Some(&root)), View::Machine);
        assert_eq!(
            view("/../../../../init.scope", "/", Some(&root)),
            from(whole)
        );
        // It has groups of its own in its namespace.
        assert_eq!(
            view("/../../../init.scope", "/worker", Some(&root)),
            from("/kubepods.slice/pod1/main")
        );
        let unknown = [
            view("/../../init.scope", "/", None),
            // It was moved out of the group where its namespace begins.
            view("/../../init.scope", "/../other", Some(&root)),
            // What is mounted has other groups.
            view(
                "/../../init.scope",
                "/",
                Some(&root.join("kubepods.slice/pod2")),
            ),
        ];
        assert_eq!(unknown, [View::Unknown, View::Unknown, View::Unknown]);
    }
}
