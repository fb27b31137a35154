//! Checks what can separate the daemon from the processes, or slow it down: namespaces, lockdown, the BPF JIT, hidden
//! processes, control groups.

use crate::preflight::{Check, Machine, Status};
use std::path::Path;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![pid_namespace(machine), lockdown(machine), jit(machine)];
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
        Status::Warn,
        "another than the machine's",
        "processes outside of it cannot be seen, and pids mean those in here",
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
    if machine.exists("sys/fs/cgroup/cgroup.controllers") {
        return Check::new("cgroup", Status::Ok, "version 2", "attach --cgroup works");
    }
    if machine.exists("sys/fs/cgroup/unified/cgroup.procs") {
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
            .filter(|check| check.status == Status::Warn)
            .map(|check| check.name)
            .collect();
        assert_eq!(
            warned,
            ["pid-namespace", "lockdown", "bpf-jit", "proc", "cgroup"]
        );
    }
}
