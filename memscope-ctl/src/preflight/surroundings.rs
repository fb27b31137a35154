//! Checks what can separate the daemon from the processes, or slow it down: namespaces, lockdown, the BPF JIT, the BPF file
//! system, hidden processes, control groups.

use crate::preflight::{Check, Machine, Status};
use std::collections::BTreeMap;
use std::path::Path;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![pid_namespace(machine), lockdown(machine), jit(machine)];
    checks.push(bpf_fs(machine));
    checks.extend(hidepid(machine));
    checks.push(cgroup(machine));
    checks
}

fn pid_namespace(machine: &Machine) -> Check {
    let link = machine.link("proc/self/ns/pid");
    if link.as_deref() == Some(Path::new(INITIAL_PID_NAMESPACE)) {
        return Check::new(
            "pid-namespace",
            Status::Ok,
            "the machine's own",
            "all processes can be seen",
        );
    }
    Check::new(
        "pid-namespace",
        Status::Fail,
        "another than the machine's",
        "memscoped does not start in it: the kernel knows processes by the machine's ids",
    )
    .todo("start memscoped on the host, or in a container with --pid=host (hostPID: true)")
}

fn lockdown(machine: &Machine) -> Check {
    let text = machine
        .read("sys/kernel/security/lockdown")
        .unwrap_or_default();
    let mode = text
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match mode {
        None => Check::new(
            "lockdown",
            Status::Ok,
            "not in use",
            "the kernel restricts nothing",
        ),
        Some("confidentiality") => Check::new(
            "lockdown",
            Status::Warn,
            "confidentiality",
            "BPF programs may not read kernel memory; tracing of processes may be refused",
        )
        .todo("boot with lockdown=integrity if memscoped is refused"),
        Some(mode) => Check::new(
            "lockdown",
            Status::Ok,
            mode,
            "does not restrict what memscope does",
        ),
    }
}

fn jit(machine: &Machine) -> Check {
    match machine.number("proc/sys/net/core/bpf_jit_enable") {
        Some(0) => Check::new(
            "bpf-jit",
            Status::Warn,
            "off",
            "BPF programs are interpreted: each probe costs several times as much",
        )
        .todo("sysctl net.core.bpf_jit_enable=1"),
        Some(_) => Check::new(
            "bpf-jit",
            Status::Ok,
            "on",
            "BPF programs run as machine code",
        ),
        // The file is readable by root only, and is absent where the kernel always compiles.
        None => Check::new(
            "bpf-jit",
            Status::Ok,
            "not shown",
            "this kernel does not say",
        ),
    }
}

/// Where memscoped pins what outlives it, unless `--pin-dir` says otherwise.
const BPF_FS: &str = "/sys/fs/bpf";

fn bpf_fs(machine: &Machine) -> Check {
    let mounts = machine.read("proc/self/mounts").unwrap_or_default();
    let all = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "bpf").then_some((point, options.split(',').any(|option| option == "rw")))
    });
    // Of several at one place, the last one is seen.
    let all: BTreeMap<&str, bool> = all.collect();
    let writable = all.iter().find(|(_, writable)| **writable);
    let outlives = "what is traced outlives memscoped: a crash or an upgrade loses no records";
    let (found, todo) = match (all.get(BPF_FS), writable) {
        (Some(true), _) => {
            return Check::new("bpf-fs", Status::Ok, BPF_FS, outlives);
        }
        (_, Some((point, _))) => {
            let dir = format!("{point}/memscope");
            // memscoped that was started so has made it, and takes it away with its pins.
            if machine.exists(dir.trim_start_matches('/')) {
                return Check::new("bpf-fs", Status::Ok, dir, outlives);
            }
            let found = format!("only at {point}");
            let todo = format!("start memscoped with --pin-dir {dir}");
            let means = "without --pin-dir there, probes end with memscoped, so that a crash or an upgrade loses records";
            return Check::new("bpf-fs", Status::Warn, found, means).todo(todo);
        }
        (Some(false), None) => (
            format!("{BPF_FS} is read-only"),
            format!("mount -o remount,rw {BPF_FS}"),
        ),
        (None, None) => (
            format!("not mounted at {BPF_FS}"),
            format!("mount -t bpf bpf {BPF_FS}"),
        ),
    };
    let means = "probes end with memscoped, so that a crash or an upgrade loses records";
    Check::new("bpf-fs", Status::Warn, found, means).todo(todo)
}

fn hidepid(machine: &Machine) -> Option<Check> {
    let mounts = machine.read("proc/self/mounts").ok()?;
    let options = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (point == "/proc" && kind == "proc").then(|| fields.next())?
    })?;
    let value = options
        .split(',')
        .find_map(|option| option.strip_prefix("hidepid="))?;
    if matches!(value, "0" | "off") {
        return None;
    }
    Some(
        Check::new(
            "proc",
            Status::Warn,
            format!("/proc is mounted with hidepid={value}"),
            "processes of other users are hidden from a daemon that is not root",
        )
        .todo("start memscoped as root, or give it the gid= of that mount"),
    )
}

fn cgroup(machine: &Machine) -> Check {
    let is_version_2 = machine.exists("sys/fs/cgroup/cgroup.controllers");
    let is_hybrid = machine.exists("sys/fs/cgroup/unified/cgroup.procs");
    let root = match is_version_2 {
        true => "sys/fs/cgroup",
        false => "sys/fs/cgroup/unified",
    };
    // A container's control group namespace is not the machine's, whose first process looks from there as if it were somewhere above.
    let first = machine.read("proc/1/cgroup").unwrap_or_default();
    if first.lines().any(|line| line.contains(":/..")) && !machine.is_whole(root) {
        return Check::new(
            "cgroup",
            Status::Warn,
            "a container's own",
            "attach --cgroup and a policy's cgroup are refused: where the container is among the machine's control groups is not shown",
        )
        .todo("give the container the machine's /sys/fs/cgroup, or start it with --cgroupns=host");
    }
    if is_version_2 {
        return Check::new("cgroup", Status::Ok, "version 2", "attach --cgroup works");
    }
    if is_hybrid {
        return Check::new(
            "cgroup",
            Status::Ok,
            "version 1 and 2 (hybrid)",
            "attach --cgroup means paths of the unified hierarchy",
        );
    }
    Check::new(
        "cgroup",
        Status::Warn,
        "no version 2 hierarchy",
        "attach --cgroup does not work; --pid, --comm and --all do",
    )
    .todo("boot with systemd.unified_cgroup_hierarchy=1, or mount the host's /sys/fs/cgroup")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_container_with_everything_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["proc/self/ns", "proc/sys/net/core", "sys/kernel/security"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        symlink("pid:[4026532000]", root.join("proc/self/ns/pid")).unwrap();
        fs::write(
            root.join("sys/kernel/security/lockdown"),
            "none integrity [confidentiality]\n",
        )
        .unwrap();
        fs::write(root.join("proc/sys/net/core/bpf_jit_enable"), "0\n").unwrap();
        fs::write(
            root.join("proc/self/mounts"),
            "proc /proc proc rw,nosuid,hidepid=2,gid=5 0 0\n",
        )
        .unwrap();
        let checks = checks(&Machine::at(root));
        let warned: Vec<_> = checks
            .iter()
            .filter(|check| check.status != Status::Ok)
            .map(|check| check.name)
            .collect();
        assert_eq!(
            warned,
            [
                "pid-namespace",
                "lockdown",
                "bpf-jit",
                "bpf-fs",
                "proc",
                "cgroup"
            ]
        );
    }

    #[test]
    fn control_groups_of_a_container() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["proc/1", "sys/fs/cgroup"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "memory\n").unwrap();
        let with = |first: &str| {
            fs::write(root.join("proc/1/cgroup"), first).unwrap();
            cgroup(&Machine::at(root))
        };
        assert_eq!(with("0::/init.scope\n").status, Status::Ok);
        let inside = with("0::/../../init.scope\n");
        assert_eq!(inside.status, Status::Warn);
        assert!(inside.means.contains("--cgroup"), "{inside:?}");
    }

    #[test]
    fn a_place_for_pins() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        for (mounts, found, todo) in [
            ("bpf /sys/fs/bpf bpf rw,nosuid,mode=700 0 0", BPF_FS, ""),
            (
                "tmpfs /sys/fs/bpf tmpfs rw 0 0",
                "not mounted",
                "mount -t bpf bpf",
            ),
            (
                "bpf /sys/fs/bpf bpf ro,nosuid 0 0",
                "read-only",
                "remount,rw",
            ),
            (
                "bpf /run/bpf bpf rw 0 0",
                "only at /run/bpf",
                "--pin-dir /run/bpf/memscope",
            ),
        ] {
            fs::write(root.join("proc/self/mounts"), format!("{mounts}\n")).unwrap();
            let check = bpf_fs(&Machine::at(root));
            assert_eq!(
                check.means.starts_with("without --pin-dir"),
                todo.starts_with("--pin-dir")
            );
            assert!(check.found.contains(found), "{check:?}");
            let way_out = check.todo.clone().unwrap_or_default();
            assert!(way_out.contains(todo), "{check:?}");
            assert_eq!(check.status == Status::Ok, todo.is_empty(), "{check:?}");
        }
        // A memscoped that pins there has made its folder.
        fs::create_dir_all(root.join("run/bpf/memscope")).unwrap();
        let check = bpf_fs(&Machine::at(root));
        assert_eq!(check.status, Status::Ok, "{check:?}");
        assert_eq!(check.found, "/run/bpf/memscope");
    }
}
