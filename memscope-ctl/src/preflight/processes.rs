//! Finds the processes that use a device now, by the libraries that they have mapped.

use crate::preflight::{Check, Machine, Status};
use memscope_vendors::launchers::RANKS;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A device library that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Library {
    /// Short name (`libcudart`).
    pub(crate) name: &'static str,
    /// Path as the process sees it.
    pub(crate) path: String,
    /// The file was removed or replaced since it was mapped.
    pub(crate) deleted: bool,
}

/// A process with device libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceProcess {
    /// Process id.
    pub(crate) pid: u32,
    /// Short name (`/proc/PID/comm`).
    pub(crate) comm: String,
    /// Command line. It tells apart processes that run the same interpreter.
    pub(crate) cmdline: Vec<String>,
    /// Its rank among the processes of one job (`RANK` in its environment, or what another launcher calls it).
    pub(crate) rank: Option<String>,
    /// Resident memory on the host, in bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// Real user id.
    pub(crate) uid: Option<u32>,
    /// Device libraries, ordered by path.
    pub(crate) libraries: Vec<Library>,
    /// The process sees other mounts than we do (a container).
    pub(crate) other_mounts: bool,
    /// The root folder of the process is not ours (chroot).
    pub(crate) other_root: bool,
}

/// All processes with device libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Scan {
    /// Processes with device libraries, ordered by pid.
    pub(crate) processes: Vec<DeviceProcess>,
    /// Pids of the processes that could not be inspected: the kernel does not let this user read their mappings.
    pub(crate) unreadable: Vec<u32>,
}

/// Reads the mappings of every process. A process that ends meanwhile is left out.
#[must_use]
pub(crate) fn scan(machine: &Machine) -> Scan {
    let mut scan = Scan::default();
    let own_mounts = machine.link("proc/self/ns/mnt");
    let Ok(entries) = fs::read_dir(machine.path("proc")) else {
        return scan;
    };
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let folder = entry.path();
        let libraries = match fs::read(folder.join("maps")) {
            Ok(maps) => libraries(&String::from_utf8_lossy(&maps)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                scan.unreadable.push(pid);
                continue;
            }
            Err(_) => continue,
        };
        if libraries.is_empty() {
            continue;
        }
        let mounts = fs::read_link(folder.join("ns/mnt")).ok();
        let root = fs::read_link(folder.join("root")).ok();
        scan.processes.push(DeviceProcess {
            pid,
            comm: read_comm(&folder),
            cmdline: words(&folder.join("cmdline")),
            rank: rank(&folder),
            resident_bytes: resident(&folder),
            uid: uid(&folder),
            libraries,
            other_mounts: mounts.is_some() && own_mounts.is_some() && mounts != own_mounts,
            other_root: root.is_some_and(|root| root != Path::new("/")),
        });
    }
    scan.processes.sort_by_key(|process| process.pid);
    scan
}

fn read_comm(folder: &Path) -> String {
    let bytes = fs::read(folder.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\n')
        .to_owned()
}

/// The words of a file in which each word ends with a zero byte.
fn words(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// The rank that launchers of several processes put into the environment. Another user's environment is unreadable.
fn rank(folder: &Path) -> Option<String> {
    let environment = words(&folder.join("environ"));
    RANKS.iter().find_map(|ranks| {
        let mut all = environment.iter();
        let value = all.find_map(|word| word.strip_prefix(ranks.rank)?.strip_prefix('='))?;
        let rank: u32 = value.trim().parse().ok()?;
        Some(rank.to_string())
    })
}

fn uid(folder: &Path) -> Option<u32> {
    status(folder, "Uid:")?.parse().ok()
}

fn resident(folder: &Path) -> Option<u64> {
    let kib: u64 = status(folder, "VmRSS:")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The first word behind `name` in the process's status file.
fn status(folder: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next().map(str::to_owned)
}

fn libraries(maps: &str) -> Vec<Library> {
    let mut found = BTreeMap::new();
    for line in maps.lines() {
        // A line has address, permissions, offset, device and inode, then the path, which may contain blanks.
        let Some(start) = line.find('/') else {
            continue;
        };
        let (path, deleted) = match line[start..].strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (&line[start..], false),
        };
        let file = path.rsplit('/').next().unwrap_or_default();
        if let Some(library) = memscope_vendors::library(file.as_bytes()) {
            found
                .entry((path.to_owned(), deleted))
                .or_insert(library.name);
        }
    }
    found
        .into_iter()
        .map(|((path, deleted), name)| Library {
            name,
            path,
            deleted,
        })
        .collect()
}

/// Largest number of unreadable processes that are listed by pid.
const NAMED: usize = 5;

fn unreadable(pids: &[u32], is_root: bool) -> String {
    let mut named: Vec<String> = pids.iter().take(NAMED).map(u32::to_string).collect();
    if pids.len() > NAMED {
        named.push("…".to_owned());
    }
    let why = match is_root {
        true => {
            "the kernel denies reading their mappings even to root, as a security module or another user namespace can"
        }
        false => "reading the mappings of another user's process needs root",
    };
    format!(
        "; {} could not be looked at ({}): {why}",
        pids.len(),
        named.join(", ")
    )
}

pub(super) fn check(scan: &Scan) -> Check {
    let count = scan.processes.len();
    let mut found = match count {
        0 => "no process uses a device library now".to_owned(),
        1 => "1 process with device libraries".to_owned(),
        count => format!("{count} processes with device libraries"),
    };
    if !scan.unreadable.is_empty() {
        let is_root = rustix::process::geteuid().is_root();
        found.push_str(&unreadable(&scan.unreadable, is_root));
    }
    let means = if count == 0 {
        "there is nothing to attach yet; `attach --comm NAME` waits for it"
    } else {
        "they can be attached"
    };
    Check::new("processes", Status::Ok, found, means)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MAPS: &str = "\
7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /opt/my env/libcudart.so.12
7f0000001000-7f0000002000 rw-p 00001000 08:01 1 /opt/my env/libcudart.so.12
7f0000002000-7f0000003000 r-xp 00000000 08:01 2 /opt/libc10_cuda.so (deleted)
7f0000003000-7f0000004000 r-xp 00000000 08:01 3 /usr/lib/libcudadebugger.so.1
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0 [vdso]
";

    #[test]
    fn finds_libraries_once_and_those_replaced() {
        let found = libraries(MAPS);
        let names: Vec<_> = found.iter().map(|l| (l.name, l.deleted)).collect();
        assert_eq!(names, [("libc10_cuda", true), ("libcudart", false)]);
        assert_eq!(found[1].path, "/opt/my env/libcudart.so.12");
    }

    #[test]
    fn what_could_not_be_looked_at_has_a_reason() {
        let few = unreadable(&[3, 4], false);
        assert_eq!(
            few,
            "; 2 could not be looked at (3, 4): reading the mappings of another user's process needs root"
        );
        let many = unreadable(&[1, 2, 3, 4, 5, 6], true);
        assert!(
            many.starts_with("; 6 could not be looked at (1, 2, 3, 4, 5, …): the kernel denies"),
            "{many}"
        );
        let scan = Scan {
            unreadable: vec![7],
            ..Scan::default()
        };
        let found = check(&scan).found;
        assert!(
            found.starts_with("no process uses a device library now; 1 could not be looked at (7)"),
            "{found}"
        );
    }

    #[test]
    fn scans_a_proc() {
        let folder = tempfile::tempdir().unwrap();
        let slurm = "RANK=\0SLURM_PROCID=5\0";
        for (pid, maps, mounts, environment) in [
            ("self", "", 1, ""),
            ("7", MAPS, 2, "HOME=/\0RANK=3\0RANKS=8\0SLURM_PROCID=5\0"),
            ("9", "", 1, ""),
            ("12", MAPS, 1, slurm),
        ] {
            let own = folder.path().join("proc").join(pid);
            fs::create_dir_all(own.join("ns")).unwrap();
            fs::write(own.join("maps"), maps).unwrap();
            fs::write(own.join("comm"), "python\n").unwrap();
            let status = "Name:\tpython\nUid:\t5\t5\t5\t5\nVmRSS:\t  2048 kB\n";
            fs::write(own.join("status"), status).unwrap();
            fs::write(own.join("cmdline"), "/usr/bin/python3\0train.py\0").unwrap();
            fs::write(own.join("environ"), environment).unwrap();
            symlink(format!("mnt:[{mounts}]"), own.join("ns/mnt")).unwrap();
            symlink("/", own.join("root")).unwrap();
        }
        let scan = scan(&Machine::at(folder.path()));
        let seen: Vec<_> = scan
            .processes
            .iter()
            .map(|p| (p.pid, p.other_mounts))
            .collect();
        assert_eq!(seen, [(7, true), (12, false)]);
        assert_eq!(scan.processes[0].comm, "python");
        assert_eq!(scan.processes[0].uid, Some(5));
        assert_eq!(scan.processes[0].cmdline, ["/usr/bin/python3", "train.py"]);
        assert_eq!(scan.processes[0].rank.as_deref(), Some("3"));
        assert_eq!(scan.processes[1].rank.as_deref(), Some("5"));
        assert_eq!(scan.processes[0].resident_bytes, Some(2 << 20));
        assert!(!scan.processes[0].other_root);
    }
}
