//! Live attachments: a program on places of one file in one process.

use std::any::Any;
use std::ffi::CString;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use aya::programs::links::FdLink;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use memscope_memory::Owner;
use memscope_memory::file::{FileError, OpenFile};
use memscope_site::FileIdentity;
use memscope_site::mounts::{Waits, waits};
use serde::{Deserialize, Serialize};

use super::ProbeError;
use super::load::{AttachMethod, Kernel, Program};
use super::multi::{self, Point};
use super::pins::{PinError, Pins};

/// A live attachment. [`detach_all`] ends it, which may take a tenth of a second. A link that is pinned outlives this value; one that is
/// not ends with it.
pub struct Link {
    /// The place of the link in the traced process, and its pins.
    pub site: LinkSite,
    directory: Option<Pins>,
    /// Its drop detaches what is not pinned.
    held: Held,
}

/// What the kernel gave for a link: a descriptor, or one perf link for each place.
pub(super) type Held = Vec<Box<dyn Any + Send>>;

/// Where a link's program stands, in the form in which the next daemon learns of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSite {
    /// The program that runs at its places.
    pub program: Program,
    /// File that the probes stand in, as users see it.
    pub path: String,
    /// The file that is really mapped; `None` where nobody asks a second time for probes in it.
    pub file: Option<FileIdentity>,
    /// Places in the file.
    pub offsets: Vec<u64>,
    /// Names of its pins; empty if it ends with the daemon.
    pub pins: Vec<String>,
}

impl Link {
    /// A link that an earlier daemon has made and pinned.
    pub fn pinned(pins: &Pins, site: LinkSite) -> Result<Link, PinError> {
        let mut held: Held = Vec::new();
        for name in &site.pins {
            held.push(Box::new(pins.get(name)?));
        }
        Ok(Link {
            site,
            directory: Some(pins.clone()),
            held,
        })
    }

    /// The program that runs at its places.
    pub fn program(&self) -> Program {
        self.site.program
    }

    /// From here on it ends with what is returned.
    pub(super) fn unpinned(self) -> Held {
        if let Some(pins) = &self.directory {
            for name in &self.site.pins {
                if let Err(error) = pins.unpin(name) {
                    tracing::error!(error = %crate::error_chain(&error), "a probe could not be removed");
                }
            }
        }
        self.held
    }
}

/// Opens the file that a probe is to stand in, so that it stays the same from the checks here until the probe is placed.
fn checked(
    pid: u32,
    open_path: &Path,
    shown_path: &str,
    file: Option<&FileIdentity>,
    user_mounts: bool,
) -> Result<OpenFile, ProbeError> {
    let failed = |source| ProbeError::Attach {
        path: shown_path.to_owned(),
        pid,
        source,
    };
    let owner = Owner::process(pid).map_err(failed)?;
    let open = OpenFile::open(owner, open_path, true).map_err(|error| match error {
        FileError::Open(source) => failed(source),
        other => failed(std::io::Error::other(other)),
    })?;
    let now = FileIdentity::new(open.facts(), None);
    let is_same = file.is_none_or(|file| {
        (file.device, file.inode, file.size, file.modified_ns)
            == (now.device, now.inode, now.size, now.modified_ns)
    });
    if !is_same {
        return Err(failed(std::io::Error::other(
            "it was changed, or is no longer mapped, since it was searched for functions",
        )));
    }
    if !user_mounts && waits(pid, &open) != Waits::ForNobody {
        return Err(failed(std::io::Error::other(
            "a user could keep the kernel waiting for this file (FUSE, or an overlay of a user); --probe-user-mounts allows it",
        )));
    }
    Ok(open)
}

/// Attaches one program. `open_path` must lead to the file that is really mapped; `shown_path` is the path for
/// messages.
pub fn attach(
    kernel: &mut Kernel,
    program: Program,
    pid: u32,
    open_path: &Path,
    shown_path: &str,
    file: Option<&FileIdentity>,
    points: &[Point],
) -> Result<Link, ProbeError> {
    let failed = |source| ProbeError::Attach {
        path: shown_path.to_owned(),
        pid,
        source,
    };
    let open = checked(pid, open_path, shown_path, file, kernel.user_mounts)?;
    let open_path = open.own_path();
    let mut pins = Vec::new();
    let directory = kernel.pins().cloned();
    // A link that cannot be pinned ends with the daemon, and the next one makes it again.
    let unpinned = |error: &PinError| {
        tracing::warn!(error = %crate::error_chain(error), "a probe would not outlive the daemon");
    };
    let held = match kernel.method() {
        AttachMethod::Multi => {
            let path = CString::new(open_path.as_os_str().as_encoded_bytes())
                .map_err(|e| failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, e)))?;
            let fd = kernel
                .multi_program(program)
                .ok_or_else(|| ProbeError::Missing(program.name().to_owned()))?;
            let on_return = program.is_return();
            let link: OwnedFd = multi::attach(fd, &path, pid, points, on_return).map_err(failed)?;
            if let Some(directory) = &directory {
                let name = kernel.next_pin();
                match directory.pin(&name, link.as_fd()) {
                    Ok(()) => pins.push(name),
                    Err(error) => unpinned(&error),
                }
            }
            vec![Box::new(link) as Box<dyn Any + Send>]
        }
        AttachMethod::Perf => {
            let scope = NonZeroU32::new(pid).map_or(UProbeScope::CallingProcess, |pid| {
                UProbeScope::OneProcess(pid)
            });
            // Before 5.15 such a probe is a perf event without a link, and cannot be pinned.
            let directory = directory
                .as_ref()
                .filter(|_| aya::features().bpf_perf_link());
            let placed = each(
                kernel,
                program,
                points,
                (&open_path, scope),
                (directory, &mut pins),
                failed,
            );
            placed.inspect_err(|_| {
                // Pinned probes would go on without anybody who knows of them.
                for name in &pins {
                    if let Some(Err(error)) = directory.map(|pins| pins.unpin(name)) {
                        tracing::error!(error = %crate::error_chain(&error), "a probe could not be removed");
                    }
                }
            })?
        }
    };
    Ok(Link {
        site: LinkSite {
            program,
            path: shown_path.to_owned(),
            file: file.cloned(),
            offsets: points.iter().map(|point| point.offset).collect(),
            pins,
        },
        directory,
        held,
    })
}

/// Attaches a program at places of a file, each by a perf event, and pins these in the directory. Their names are then in `pins`, also if it
/// fails at one of them.
fn each(
    kernel: &mut Kernel,
    program: Program,
    points: &[Point],
    (path, scope): (&Path, UProbeScope),
    (directory, pins): (Option<&Pins>, &mut Vec<String>),
    failed: impl Fn(std::io::Error) -> ProbeError,
) -> Result<Held, ProbeError> {
    let mut links: Held = Vec::with_capacity(points.len());
    for point in points {
        let wrap = |source: aya::programs::ProgramError| ProbeError::Aya {
            program: program.name().to_owned(),
            action: "attached",
            source: Box::new(source),
        };
        let name = directory.map(|_| kernel.next_pin());
        let probe = kernel.perf_program(program)?;
        let place = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(point.offset),
            cookie: Some(point.cookie),
        };
        let id = probe.attach(place, path, scope).map_err(wrap)?;
        let link: UProbeLink = probe.take_link(id).map_err(wrap)?;
        let (Some(directory), Some(name)) = (directory, name) else {
            links.push(Box::new(link));
            continue;
        };
        let link =
            FdLink::try_from(link).map_err(|source| failed(std::io::Error::other(source)))?;
        let pinned = link.pin(directory.path(&name));
        let pinned = pinned.map_err(|source| failed(std::io::Error::other(source)))?;
        pins.push(name);
        links.push(Box::new(pinned));
    }
    Ok(links)
}

/// Removes links. On kernels from before late 2025 the removal of a pinned link is not waited for: its probe may go on for a moment after
/// this has returned. `beat` is called after each open file of theirs: for a library that hundreds of processes have mapped, the
/// kernel goes through all of them for each probe, which takes minutes.
pub fn detach_all(links: Vec<Link>, beat: impl Fn() + Sync) {
    let files = links.into_iter().flat_map(Link::unpinned).collect();
    close_all(files, |one| {
        drop(one);
        beat();
    });
}

/// Closes files in parallel, since each may wait for a grace period of the kernel. `close` closes one by dropping it.
pub(super) fn close_all(files: Held, close: impl Fn(Box<dyn Any + Send>) + Sync) {
    const SIDE_BY_SIDE: usize = 16;
    let mut rest = files;
    let share = rest.len().div_ceil(SIDE_BY_SIDE).max(1);
    std::thread::scope(|scope| {
        while !rest.is_empty() {
            let part = rest.split_off(rest.len().saturating_sub(share));
            scope.spawn(|| part.into_iter().for_each(&close));
        }
    });
}
