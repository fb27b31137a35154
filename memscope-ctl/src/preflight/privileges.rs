//! Checks the privileges of this process: capabilities, user namespace, and the sysctls that restrict tracing.

use crate::preflight::kernel::Features;
use crate::preflight::{Check, Machine, Role, Status};
use serde::Serialize;

const PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

/// The effective capabilities that matter for tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Capabilities {
    /// `CAP_BPF`: load programs.
    pub(crate) bpf: bool,
    /// `CAP_PERFMON`: attach programs, and read memory in them.
    pub(crate) perfmon: bool,
    /// `CAP_SYS_ADMIN`: replaces `CAP_BPF` and `CAP_PERFMON`, on any kernel.
    pub(crate) sys_admin: bool,
    /// `CAP_SYS_PTRACE`: inspect processes of other users.
    pub(crate) sys_ptrace: bool,
    /// `CAP_CHECKPOINT_RESTORE`: open the very files that a process has mapped, even if they were replaced since.
    pub(crate) checkpoint_restore: bool,
}

impl Capabilities {
    /// Reads the capabilities of this process.
    #[must_use]
    pub(crate) fn of(machine: &Machine) -> Self {
        let status = machine.read("proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let has = |number: u32| bits.is_some_and(|bits| bits >> number & 1 == 1);
        Capabilities {
            bpf: has(BPF),
            perfmon: has(PERFMON),
            sys_admin: has(SYS_ADMIN),
            sys_ptrace: has(PTRACE),
            checkpoint_restore: has(CHECKPOINT_RESTORE),
        }
    }

    /// Names of the capabilities that are missing to load and attach programs. Without `uprobe_multi` probes are perf events, which the
    /// kernel gives to nobody without `CAP_SYS_ADMIN`.
    #[must_use]
    pub(crate) fn missing_to_trace(&self, uprobe_multi: bool) -> Vec<&'static str> {
        if self.sys_admin {
            return Vec::new();
        }
        if !uprobe_multi {
            return vec!["CAP_SYS_ADMIN"];
        }
        let needs = [(self.bpf, "CAP_BPF"), (self.perfmon, "CAP_PERFMON")];
        needs
            .iter()
            .filter(|(has, _)| !has)
            .map(|(_, name)| *name)
            .collect()
    }

    /// Names of the capabilities that are missing to inspect processes of other users.
    #[must_use]
    pub(crate) fn missing_to_look(&self) -> Vec<&'static str> {
        let needs = [
            (self.sys_ptrace, "CAP_SYS_PTRACE"),
            (
                self.checkpoint_restore || self.sys_admin,
                "CAP_CHECKPOINT_RESTORE",
            ),
        ];
        needs
            .iter()
            .filter(|(has, _)| !has)
            .map(|(_, name)| *name)
            .collect()
    }
}

pub(super) fn checks(machine: &Machine, role: Role) -> Vec<Check> {
    let capabilities = Capabilities::of(machine);
    let missing = capabilities.missing_to_trace(Features::of(machine).uprobe_multi);
    let mut checks = vec![
        capability_check(
            "privileges",
            &missing,
            role,
            "programs can be loaded and attached",
            "programs can be neither loaded nor attached",
            Status::Fail,
        ),
        capability_check(
            "inspection",
            &capabilities.missing_to_look(),
            role,
            "the libraries of every process can be read",
            "processes of other users, and files that a process mapped and that were replaced \
             since, cannot be read",
            Status::Warn,
        ),
    ];
    checks.push(user_namespace(machine));
    checks.push(paranoia(machine, missing.is_empty()));
    checks
}

fn capability_check(
    name: &'static str,
    missing: &[&str],
    role: Role,
    good: &str,
    bad: &str,
    worst: Status,
) -> Check {
    if missing.is_empty() {
        return Check::new(name, Status::Ok, "all capabilities needed", good);
    }
    let found = format!("this user lacks {}", missing.join(" and "));
    match role {
        Role::Daemon => Check::new(name, worst, found, bad).todo(format!(
            "start memscoped as root, or give it {}",
            missing.join(" and ")
        )),
        Role::Client => Check::new(
            name,
            Status::Warn,
            found,
            "memscope-ctl needs none of them, a memscoped started by this user would",
        )
        .todo("start memscoped as root (sudo memscoped, or its systemd unit)"),
    }
}

fn user_namespace(machine: &Machine) -> Check {
    let map = machine.read("proc/self/uid_map").unwrap_or_default();
    let fields: Vec<_> = map.split_ascii_whitespace().collect();
    if fields == ["0", "0", "4294967295"] {
        Check::new(
            "user-namespace",
            Status::Ok,
            "the machine's own",
            "capabilities count",
        )
    } else {
        Check::new(
            "user-namespace",
            Status::Warn,
            "another than the machine's",
            "capabilities do not count outside of it: a daemon in here can load nothing",
        )
        .todo("start memscoped outside of the rootless container")
    }
}

fn paranoia(machine: &Machine, privileged: bool) -> Check {
    let show = |value: Option<i64>| value.map_or("unknown".into(), |value| value.to_string());
    let perf = machine.number("proc/sys/kernel/perf_event_paranoid");
    let bpf = machine.number("proc/sys/kernel/unprivileged_bpf_disabled");
    let found = format!(
        "kernel.perf_event_paranoid={}, kernel.unprivileged_bpf_disabled={}",
        show(perf),
        show(bpf)
    );
    let means = if privileged {
        "neither holds up a process with these capabilities"
    } else {
        "neither matters for a memscoped with its capabilities, which it needs in any case"
    };
    Check::new("sysctls", Status::Ok, found, means)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(bits: u64) -> (tempfile::TempDir, Machine) {
        with_kernel(bits, "6.12.1")
    }

    fn with_kernel(bits: u64, release: &str) -> (tempfile::TempDir, Machine) {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("osrelease"), release).unwrap();
        let own = folder.path().join("proc/self");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(
            own.join("status"),
            format!("Name:\tx\nCapEff:\t{bits:016x}\n"),
        )
        .unwrap();
        std::fs::write(own.join("uid_map"), "         0          0 4294967295\n").unwrap();
        let machine = Machine::at(folder.path());
        (folder, machine)
    }

    #[test]
    fn capabilities_that_are_enough() {
        let (_keep, admin) = with(1 << SYS_ADMIN | 1 << PTRACE);
        assert!(
            checks(&admin, Role::Daemon)
                .iter()
                .all(|c| c.status == Status::Ok)
        );
        let (_keep, fine) = with(1 << BPF | 1 << PERFMON | 1 << PTRACE | 1 << CHECKPOINT_RESTORE);
        assert!(
            checks(&fine, Role::Daemon)
                .iter()
                .all(|c| c.status == Status::Ok)
        );
    }

    #[test]
    fn a_daemon_without_them_fails_and_a_client_is_told() {
        let (_keep, none) = with(0);
        let daemon = &checks(&none, Role::Daemon)[0];
        assert_eq!(daemon.status, Status::Fail);
        assert_eq!(daemon.found, "this user lacks CAP_BPF and CAP_PERFMON");
        assert_eq!(checks(&none, Role::Client)[0].status, Status::Warn);
        let (_keep, half) = with(1 << BPF);
        assert_eq!(
            Capabilities::of(&half).missing_to_trace(true),
            ["CAP_PERFMON"]
        );
    }

    #[test]
    fn probes_that_are_perf_events_need_more() {
        let all = 1 << BPF | 1 << PERFMON | 1 << PTRACE | 1 << CHECKPOINT_RESTORE;
        let (_keep, old) = with_kernel(all, "6.1.0-18-amd64");
        let privileges = &checks(&old, Role::Daemon)[0];
        assert_eq!(privileges.status, Status::Fail);
        assert_eq!(privileges.found, "this user lacks CAP_SYS_ADMIN");
        let (_keep, admin) = with_kernel(all | 1 << SYS_ADMIN, "6.1.0-18-amd64");
        assert_eq!(checks(&admin, Role::Daemon)[0].status, Status::Ok);
    }
}
