//! The kernel's lists of BPF programs, maps and links.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

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

/// `BPF_MAP_GET_NEXT_KEY`, `BPF_OBJ_GET_INFO_BY_FD`.
const NEXT_KEY: libc::c_long = 4;
const INFO: libc::c_long = 15;

/// How many entries the map with this name has that a process holds open. Programs may change it meanwhile.
#[track_caller]
pub fn entries(pid: u32, name: &str) -> usize {
    let maps = Kind::held_by(pid)
        .into_iter()
        .filter(|(kind, _)| *kind == Kind::Map);
    for (kind, id) in maps {
        let attributes: [u32; 32] = std::array::from_fn(|at| if at == 0 { id } else { 0 });
        // SAFETY: as in `exists`.
        let fd =
            unsafe { libc::syscall(libc::SYS_bpf, kind.get_fd_by_id(), attributes.as_ptr(), 12) };
        if fd < 0 {
            continue;
        }
        // SAFETY: a new descriptor of our own.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let info = info_of(&fd);
        let text = &info[24..40];
        let end = text
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(text.len());
        if text[..end] == *name.as_bytes() {
            return count(&fd, u32::from_ne_bytes(info[8..12].try_into().unwrap()));
        }
    }
    panic!("process {pid} has no map {name}");
}

/// The beginning of a `struct bpf_map_info`: type, number, size of the key, size of the value, entries, flags, name.
fn info_of(fd: &OwnedFd) -> [u8; 40] {
    let mut info = [0u8; 40];
    let mut attributes = [0u64; 16];
    attributes[0] = fd.as_raw_fd() as u64 | (info.len() as u64) << 32;
    attributes[1] = info.as_mut_ptr() as u64;
    // SAFETY: the kernel reads the first 16 bytes of the attributes and fills at most as many bytes as they say.
    let failed = unsafe { libc::syscall(libc::SYS_bpf, INFO, attributes.as_ptr(), 16) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    info
}

fn count(fd: &OwnedFd, key_size: u32) -> usize {
    let mut key = vec![0u8; key_size as usize];
    let mut next = key.clone();
    let mut count = 0;
    loop {
        let mut attributes = [0u64; 16];
        attributes[0] = fd.as_raw_fd() as u64;
        attributes[1] = if count == 0 { 0 } else { key.as_ptr() as u64 };
        attributes[2] = next.as_mut_ptr() as u64;
        // SAFETY: both buffers are as long as a key; the kernel writes the second.
        let failed = unsafe { libc::syscall(libc::SYS_bpf, NEXT_KEY, attributes.as_ptr(), 32) };
        if failed != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
            return count;
        }
        key.copy_from_slice(&next);
        count += 1;
    }
}
