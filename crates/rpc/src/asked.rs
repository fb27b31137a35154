//! Reads requests from the wire. Every number and word in them is checked here.

use crate::daemon::{AttachOptions, AttachScope, DetachScope, Moment, SHORTEST_READ_EVERY};
use crate::refusal::invalid;
use crate::{Refusal, StackKinds};
use memscope_ledger::event::{Level, Mark, MarkKind, MarkSource};
use memscope_proto::v1;
use std::time::Duration;

/// Largest number of bytes of a mark's name; the same limit as for the marks of programs.
const MARK_NAME: usize = 128;

/// Most addresses of blocks in one question. What `owners` says of each of them fits into an answer beside its rows.
const MOST_ADDRESSES: usize = 1000;

/// Checks the addresses of blocks that a question names.
pub(crate) fn addresses(asked: &[u64]) -> Result<(), Refusal> {
    if asked.len() > MOST_ADDRESSES {
        return Err(invalid(
            format!(
                "a question names at most {MOST_ADDRESSES} addresses, and this one names {}",
                asked.len()
            ),
            "ask about fewer of them at a time, or about all blocks by naming none",
        ));
    }
    Ok(())
}

/// Reads the mark that a request wants to add.
pub(crate) fn mark(wanted: v1::MarkRequest) -> Result<Mark, Refusal> {
    if wanted.name.len() > MARK_NAME {
        return Err(invalid(
            format!("a name of {} bytes is too long", wanted.name.len()),
            format!("name the moment with at most {MARK_NAME} bytes"),
        ));
    }
    Ok(Mark {
        kind: match wanted.step {
            true => MarkKind::Step,
            false => MarkKind::Instant,
        },
        source: MarkSource::Outside,
        name: wanted.name.into(),
        ..Mark::default()
    })
}

/// What an attach is about, for the audit log. It may be one that is refused.
pub(crate) fn attached(request: &v1::AttachRequest) -> String {
    use v1::attach_request::Scope;
    match &request.scope {
        Some(Scope::Pid(scope)) => format!("pid={}", scope.pid),
        Some(Scope::Comm(name)) => format!("comm={name:?}"),
        Some(Scope::Cgroup(path)) => format!("cgroup={path:?}"),
        Some(Scope::All(_)) => "all".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// What a detach is about, for the audit log.
pub(crate) fn detached(request: &v1::DetachRequest) -> String {
    use v1::detach_request::Scope;
    match &request.scope {
        Some(Scope::Pid(pid)) => format!("pid={pid}"),
        Some(Scope::Rule(rule)) => format!("rule={rule}"),
        Some(Scope::All(_)) => "all".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// Reads how much of the processes an attach wants to watch.
///
/// # Errors
/// If options do not go together, or have values that are none.
pub fn attach_options(request: &v1::AttachRequest) -> Result<AttachOptions, Refusal> {
    let level = level(request.level)?;
    if request.accesses && level < Level::Blocks {
        return Err(invalid(
            "at this level no block is seen that an operator could use".to_owned(),
            "follow accesses at level blocks or trace",
        ));
    }
    let step_name = Some(request.step_name.clone());
    Ok(AttachOptions {
        level,
        read_every: read_every(level, request.read_every_ns)?,
        stacks: StackKinds {
            depth: depth(request.stack_depth)?,
            sampling: sampling(request.stack_sample_bytes)?,
            ..stacks(request.stacks)?
        },
        step_name: step_name.filter(|name| !name.is_empty()),
        launches: request.launches || request.kernels,
        kernels: request.kernels,
        accesses: request.accesses,
        stack_budget: None,
    })
}

fn level(number: i32) -> Result<Level, Refusal> {
    match v1::Level::try_from(number) {
        Ok(v1::Level::Read) => Ok(Level::Read),
        Ok(v1::Level::Segments) => Ok(Level::Segments),
        Ok(v1::Level::Blocks) => Ok(Level::Blocks),
        Ok(v1::Level::Trace | v1::Level::Unspecified) => Ok(Level::Trace),
        Err(_) => Err(invalid(
            format!("level {number} is not known"),
            "read, segments, blocks and trace are",
        )),
    }
}

fn depth(frames: u32) -> Result<u32, Refusal> {
    match frames {
        0 => Ok(StackKinds::DEEPEST),
        1..=StackKinds::DEEPEST => Ok(frames),
        _ => Err(invalid(
            format!("stacks of {frames} frames are not taken"),
            "give a depth from 1 to 1024",
        )),
    }
}

fn sampling(bytes: u64) -> Result<u8, Refusal> {
    match bytes {
        0 => Ok(0),
        _ if bytes.is_power_of_two() && bytes <= 1 << 31 => Ok(bytes.trailing_zeros() as u8),
        _ => Err(invalid(
            format!("a stack cannot be taken of one allocation in {bytes} bytes"),
            "give a power of two up to 2 GiB, such as 1MiB",
        )),
    }
}

fn stacks(number: i32) -> Result<StackKinds, Refusal> {
    match v1::Stacks::try_from(number) {
        Ok(v1::Stacks::None) => Ok(StackKinds::NONE),
        Ok(v1::Stacks::Unspecified | v1::Stacks::Python) => Ok(StackKinds::PYTHON),
        Ok(v1::Stacks::Native) => Ok(StackKinds::NATIVE),
        Ok(v1::Stacks::All) => Ok(StackKinds::ALL),
        Err(_) => Err(invalid(
            format!("stacks of kind {number} are not known"),
            "none, python, native and all are",
        )),
    }
}

fn read_every(level: Level, every_ns: Option<u64>) -> Result<Option<Duration>, Refusal> {
    let every = every_ns.filter(|ns| *ns > 0).map(Duration::from_nanos);
    match every {
        Some(_) if level != Level::Read => Err(invalid(
            "only level read has a time between readings",
            "leave it out, or attach at level read",
        )),
        Some(every) if every < SHORTEST_READ_EVERY => Err(invalid(
            format!("{every:?} between two readings is too short"),
            format!("{SHORTEST_READ_EVERY:?} is the least"),
        )),
        every => Ok(every),
    }
}

pub(crate) fn attach_scope(
    scope: Option<v1::attach_request::Scope>,
) -> Result<AttachScope, Refusal> {
    use v1::attach_request::Scope;
    match scope {
        Some(Scope::Pid(v1::PidScope { pid: 0, .. })) => {
            Err(invalid("0 is no process", "give the pid of one"))
        }
        Some(Scope::Pid(scope)) => Ok(AttachScope::Pid {
            pid: scope.pid,
            children: scope.children,
            wait: scope.wait,
        }),
        Some(Scope::Comm(name)) if name.is_empty() || name.len() > 15 => Err(invalid(
            format!("{name:?} cannot be the short name of a process"),
            "it has 1 to 15 bytes: see /proc/PID/comm",
        )),
        Some(Scope::Comm(name)) => Ok(AttachScope::Comm(name)),
        Some(Scope::Cgroup(path)) => {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(invalid(
                    format!("{path:?} cannot be a control group"),
                    "give its path beneath the cgroup root, as in /proc/PID/cgroup",
                ));
            }
            Ok(AttachScope::Cgroup(path))
        }
        Some(Scope::All(true)) => Ok(AttachScope::All),
        Some(Scope::All(false)) | None => Err(invalid(
            "the request does not say what to attach",
            "give a pid, a short name, a control group, or all",
        )),
    }
}

pub(crate) fn detach_scope(
    scope: Option<v1::detach_request::Scope>,
) -> Result<DetachScope, Refusal> {
    use v1::detach_request::Scope;
    match scope {
        Some(Scope::Pid(pid)) => Ok(DetachScope::Pid(pid)),
        Some(Scope::Rule(rule)) => Ok(DetachScope::Rule(rule)),
        Some(Scope::All(true)) => Ok(DetachScope::All),
        Some(Scope::All(false)) | None => Err(invalid(
            "the request does not say what to detach",
            "give a pid, a rule, or all",
        )),
    }
}

/// The moment that a request asks for.
pub(crate) enum Asked {
    Now,
    At(Moment),
    /// The moment of the mark with this name.
    Mark(String),
    /// The moment of the peak, of a device or of the one with the largest peak.
    Peak(Option<i32>),
}

pub(crate) fn asked(at: Option<v1::Moment>) -> Result<Asked, Refusal> {
    use v1::moment::Moment as Wire;
    let Some(at) = at else {
        return Ok(Asked::Now);
    };
    match at.moment {
        Some(Wire::UnixNs(ns)) => Ok(Asked::At(Moment::Unix(ns))),
        Some(Wire::AgoNs(ns)) => Ok(Asked::At(Moment::Ago(ns))),
        Some(Wire::Event(number)) => Ok(Asked::At(Moment::Event(number))),
        Some(Wire::Step(number)) => Ok(Asked::At(Moment::Step(number))),
        Some(Wire::Mark(name)) => Ok(Asked::Mark(name)),
        Some(Wire::Peak(peak)) => Ok(Asked::Peak(peak.device)),
        None => Err(invalid(
            "the request names no moment",
            "give a time, an age, an event, a step, a mark or the peak, or leave it out for now",
        )),
    }
}
