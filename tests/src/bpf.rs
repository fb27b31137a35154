//! The kernel's lists of BPF programs, maps and links.

use std::collections::BTreeSet;

/// A list of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Programs.
    Program,
    /// Maps.
    Map,
    /// Links.
    Link,
}

/// Programs, maps and links that a process holds open.
pub type Objects = BTreeSet<(Kind, u32)>;

impl Kind {
    const ALL: [(Kind, &'static str); 3] = [
        (Kind::Program, "prog_id"),
        (Kind::Map, "map_id"),
        (Kind::Link, "link_id"),
    ];

    /// BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_LINK_GET_FD_BY_ID.
    fn get_fd_by_id(self) -> libc::c_long {
        match self {
            Kind::Program => 13,
            Kind::Map => 14,
            Kind::Link => 30,
        }
    }

    /// Those that a process holds, by the kernel's words about its descriptors.
    pub fn held_by(pid: u32) -> Objects {
        let mut objects = Objects::new();
        let folder =
            std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process's descriptors");
        for entry in folder.flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path()) else {
                continue;
            };
            for (kind, key) in Kind::ALL {
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
                if let Some(id) = line.and_then(|value| value.trim().parse().ok()) {
                    objects.insert((kind, id));
                }
            }
        }
        objects
    }
}

/// Whether the kernel still has it. Identifiers go round before they come again.
pub fn exists((kind, id): (Kind, u32)) -> bool {
    let attributes: [u32; 32] = std::array::from_fn(|at| if at == 0 { id } else { 0 });
    // SAFETY: the kernel reads 12 of the 128 bytes; the result is a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, kind.get_fd_by_id(), attributes.as_ptr(), 12) };
    if fd >= 0 {
        // SAFETY: a descriptor of our own.
        unsafe { libc::close(fd as i32) };
        return true;
    }
    let error = std::io::Error::last_os_error();
    assert_eq!(
        error.raw_os_error(),
        Some(libc::ENOENT),
        "{kind:?} {id}: {error}"
    );
    false
}
