//! Live attachments: a program on places of one file in one process.

use std::any::Any;
use std::ffi::CString;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::Path;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};

use super::ProbeError;
use super::load::{AttachMethod, Kernel, Program};
use super::multi::{self, Point};

/// A live attachment. Dropping it detaches the probes, which may take a tenth of a second: the kernel waits until no
/// processor is inside the probe.
pub struct Link {
    /// The attached program.
    pub program: Program,
    /// File that the probes stand in, as users see it.
    pub path: String,
    /// Number of places in the file.
    pub points: usize,
    /// One descriptor, or one perf link for each place. Dropping it detaches.
    _held: Box<dyn Any + Send>,
}

/// Attaches one program. `open_path` must lead to the file that is really mapped; `shown_path` is the path for
/// messages.
pub fn attach(
    kernel: &mut Kernel,
    program: Program,
    pid: u32,
    open_path: &Path,
    shown_path: &str,
    points: &[Point],
) -> Result<Link, ProbeError> {
    let failed = |source| ProbeError::Attach {
        path: shown_path.to_owned(),
        pid,
        source,
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
            Box::new(link) as Box<dyn Any + Send>
        }
        AttachMethod::Perf => {
            let scope = NonZeroU32::new(pid).map_or(UProbeScope::CallingProcess, |pid| {
                UProbeScope::OneProcess(pid)
            });
            let probe = kernel.perf_program(program)?;
            let mut links: Vec<UProbeLink> = Vec::with_capacity(points.len());
            for point in points {
                let wrap = |source| ProbeError::Aya {
                    program: program.name().to_owned(),
                    action: "attached",
                    source: Box::new(source),
                };
                let id = probe
                    .attach(
                        UProbeAttachPoint {
                            location: UProbeAttachLocation::AbsoluteOffset(point.offset),
                            cookie: Some(point.cookie),
                        },
                        open_path,
                        scope,
                    )
                    .map_err(wrap)?;
                links.push(probe.take_link(id).map_err(wrap)?);
            }
            Box::new(links)
        }
    };
    Ok(Link {
        program,
        path: shown_path.to_owned(),
        points: points.len(),
        _held: held,
    })
}

/// Removes links in parallel, since each removal waits for a grace period of the kernel. Returns when all are
/// removed.
pub fn detach_all(links: Vec<Link>) {
    const SIDE_BY_SIDE: usize = 16;
    let mut rest = links;
    std::thread::scope(|scope| {
        while !rest.is_empty() {
            let share = rest.len().div_ceil(SIDE_BY_SIDE).max(1);
            let part = rest.split_off(rest.len().saturating_sub(share));
            scope.spawn(move || drop(part));
        }
    });
}
