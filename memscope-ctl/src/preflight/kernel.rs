//! What the kernel can do. Its own type information (BTF) is more reliable than its version number, because
//! distributions backport features. The number decides where there is no BTF.

use crate::preflight::{Check, Machine, Status};
use serde::Serialize;
use std::fmt;

const BTF: &str = "sys/kernel/btf/vmlinux";
/// What to do about a kernel that is too old: memscoped asks for the newest of what it needs, attach cookies.
const BOOT: &str = "boot Linux 5.15 or newer";

/// Version of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Version(
    /// Major.
    pub u32,
    /// Minor.
    pub u32,
);

impl Version {
    /// Parses the first two numbers of a release (`6.8.0-45-generic`).
    #[must_use]
    pub(crate) fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        Some(Version(
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
        ))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// What the kernel can do, as far as that can be seen without loading a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Features {
    /// Release string of the kernel, as `uname -r` prints it.
    pub(crate) release: String,
    /// Version, if the release begins with one.
    pub(crate) version: Option<Version>,
    /// The kernel describes its own types (BTF).
    pub(crate) btf: bool,
    /// BPF ring buffer (5.8).
    pub(crate) ring_buffer: bool,
    /// Cookies that tell a program at which site it runs (5.15).
    pub(crate) attach_cookie: bool,
    /// One link for many uprobes (6.6).
    pub(crate) uprobe_multi: bool,
    /// Uprobes are available in any form.
    pub(crate) uprobes: bool,
}

impl Features {
    /// Reads the features from `/proc` and `/sys`.
    #[must_use]
    pub(crate) fn of(machine: &Machine) -> Self {
        let release = machine
            .read("proc/sys/kernel/osrelease")
            .unwrap_or_default();
        let version = Version::parse(&release);
        let types = std::fs::read(machine.path(BTF)).unwrap_or_default();
        let has = |name: &str, since: Version| {
            if types.is_empty() {
                version.is_some_and(|version| version >= since)
            } else {
                contains_name(&types, name)
            }
        };
        let uprobe_multi = has("BPF_TRACE_UPROBE_MULTI", Version(6, 6));
        Features {
            version,
            btf: !types.is_empty(),
            ring_buffer: has("BPF_MAP_TYPE_RINGBUF", Version(5, 8)),
            attach_cookie: has("BPF_LINK_TYPE_PERF_EVENT", Version(5, 15)),
            uprobe_multi,
            uprobes: uprobe_multi || machine.exists("sys/bus/event_source/devices/uprobe/type"),
            release,
        }
    }
}

/// Whether the type information contains a string that is exactly `name`.
fn contains_name(types: &[u8], name: &str) -> bool {
    let mut needle = vec![0];
    needle.extend_from_slice(name.as_bytes());
    needle.push(0);
    types.windows(needle.len()).any(|part| part == needle)
}

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let features = Features::of(machine);
    let mut checks = vec![release(&features), architecture(std::env::consts::ARCH)];
    checks.push(if features.uprobes {
        Check::new(
            "uprobes",
            Status::Ok,
            "available",
            "functions of running programs can be watched; tracefs is not needed",
        )
    } else {
        Check::new(
            "uprobes",
            Status::Fail,
            "not available",
            "functions of running programs cannot be watched",
        )
        .todo("boot a kernel with CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, or mount /sys")
    });
    checks.push(if features.btf {
        Check::new(
            "btf",
            Status::Ok,
            "/sys/kernel/btf/vmlinux",
            "the kernel describes its types",
        )
    } else {
        Check::new(
            "btf",
            Status::Fail,
            "no /sys/kernel/btf/vmlinux",
            "memscoped cannot start: it follows processes by the kernel's own type descriptions",
        )
        .todo("boot a kernel with CONFIG_DEBUG_INFO_BTF, or mount the host's /sys")
    });
    checks.push(match (features.attach_cookie, features.uprobe_multi) {
        (true, true) => Check::new(
            "attach",
            Status::Ok,
            "one link for many probes (uprobe_multi)",
            "attaching is fast",
        ),
        (true, false) => Check::new(
            "attach",
            Status::Ok,
            "one perf event for each probe, with cookies",
            "attaching takes some milliseconds for each site",
        ),
        (false, _) => Check::new(
            "attach",
            Status::Fail,
            "no attach cookies",
            "memscoped cannot tell the functions that it probes from one another",
        )
        .todo(BOOT),
    });
    checks
}

/// Judges the architecture that this program was built for, which is the one that it runs on.
fn architecture(name: &str) -> Check {
    match name {
        "x86_64" => Check::new("architecture", Status::Ok, name, "everything works"),
        "aarch64" => Check::new(
            "architecture",
            Status::Ok,
            name,
            "each probe single-steps an instruction, which costs more than on x86_64",
        ),
        _ => Check::new(
            "architecture",
            Status::Fail,
            name,
            "memscope's programs do not know the registers of this machine",
        )
        .todo("trace programs on x86_64 or aarch64"),
    }
}

fn release(features: &Features) -> Check {
    let found = match features.release.as_str() {
        "" => "unknown".to_owned(),
        release => format!("Linux {release}"),
    };
    if features.ring_buffer {
        Check::new("kernel", Status::Ok, found, "has the BPF ring buffer")
    } else {
        Check::new(
            "kernel",
            Status::Fail,
            found,
            "has no BPF ring buffer: nothing can be traced",
        )
        .todo(BOOT)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(release: &str, types: Option<&[u8]>) -> (tempfile::TempDir, Machine) {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("proc/sys/kernel/osrelease", release.as_bytes());
        write("sys/bus/event_source/devices/uprobe/type", b"7\n");
        if let Some(types) = types {
            write(BTF, types);
        }
        let machine = Machine::at(folder.path());
        (folder, machine)
    }

    #[test]
    fn machines_that_are_known() {
        assert_eq!(architecture("x86_64").status, Status::Ok);
        assert_eq!(architecture("aarch64").status, Status::Ok);
        assert_eq!(architecture("riscv64").status, Status::Fail);
    }

    fn status(machine: &Machine, name: &str) -> Status {
        let checks = checks(machine);
        checks
            .iter()
            .find(|check| check.name == name)
            .unwrap()
            .status
    }

    #[test]
    fn versions() {
        assert_eq!(Version::parse("6.8.0-45-generic"), Some(Version(6, 8)));
        assert_eq!(Version::parse("5.15"), Some(Version(5, 15)));
        assert_eq!(Version::parse("unknown"), None);
        assert!(Version(5, 15) > Version(5, 8));
    }

    #[test]
    fn an_old_kernel_fails_and_a_new_one_does_not() {
        let (_keep, old) = machine("5.4.0", None);
        assert_eq!(status(&old, "kernel"), Status::Fail);
        let (_keep, middle) = machine("5.10.1", None);
        assert_eq!(status(&middle, "kernel"), Status::Ok);
        assert_eq!(status(&middle, "attach"), Status::Fail);
        assert_eq!(status(&middle, "btf"), Status::Fail);
        let (_keep, new) = machine("6.6.0", None);
        assert_eq!(status(&new, "attach"), Status::Ok);
    }

    #[test]
    fn types_say_more_than_the_number() {
        let types = b"\0BPF_MAP_TYPE_RINGBUF\0BPF_LINK_TYPE_PERF_EVENT\0XBPF_TRACE_UPROBE_MULTI\0";
        let (_keep, backported) = machine("4.18.0-553.el8", Some(types));
        let features = Features::of(&backported);
        assert!(features.ring_buffer && features.attach_cookie && features.btf);
        assert!(!features.uprobe_multi);
    }

    #[test]
    fn no_proc_is_no_panic() {
        let machine = Machine::at("/nonexistent");
        assert_eq!(status(&machine, "kernel"), Status::Fail);
        assert_eq!(status(&machine, "uprobes"), Status::Fail);
    }
}
