//! Checks that a layout must pass in the running process before it is used.
//!
//! The process is not stopped, so a single attempt may see a list or a frame while it changes. So attempts are
//! repeated; one that succeeds is proof, because a wrong layout never fits.

use memscope_memory::Memory;

use crate::layout::{LINES_LNOTAB, Layout, NONE};
use crate::slot::Pthread;
use crate::text::part;
use crate::thread::{Thread, at, is_thread};
use crate::threads::list;
use crate::walk::{End, walk};

/// Offsets in a type object: its name, the function that frees its objects, its table of members.
const TYPE_NAME: u32 = 24;
const TYPE_DEALLOC: u32 = 48;
const TYPE_MEMBERS: u32 = 240;
/// Size of an entry of that table, which begins with the member's name, and where the entry has the member's offset.
const MEMBER: usize = 40;
const MEMBER_OFFSET: u32 = 16;
/// Number of members that are read at most. No version's code objects have as many.
const MEMBERS: usize = 64;
/// Number of attempts before a layout is refused.
pub(crate) const ATTEMPTS: usize = 200;

/// How much was checked in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Number of interpreters in the process; if it is more than one, there are subinterpreters.
    pub interpreters: usize,
    /// Number of thread states in their lists.
    pub threads: usize,
    /// Number of threads for which the way to the thread state leads to a state that the lists have for this thread.
    pub slots: usize,
    /// Number of frames in those stacks that end where they should and whose frames all lead to code objects.
    pub frames: usize,
    /// Number of fields of code objects whose offsets equal those that the interpreter's own type lists.
    pub members: usize,
}

/// Result of an attempt that succeeded.
#[derive(Debug)]
pub(crate) struct Proven {
    pub proof: Proof,
    pub threads: Vec<Thread>,
    pub code_type: u64,
    pub code_dealloc: u64,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no interpreter or no thread state: not yet, or no longer.
    Empty,
    /// Something does not fit the layout; the text says what.
    Unfit(String),
}

/// Checks the layout once. `code_type`: address of `PyCode_Type` if it is known; otherwise it is found through a frame.
pub(crate) fn attempt<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    runtime: u64,
    pthread: &Pthread,
    code_type: Option<u64>,
) -> Result<Proven, Refused> {
    let unfit = |what: &str| Refused::Unfit(what.to_owned());
    let first = memory
        .read_u64(at(runtime, layout.runtime.interpreters))
        .map_err(|_| unfit("_PyRuntime cannot be read"))?;
    if first == 0 {
        return Err(Refused::Empty);
    }
    let threads = list(memory, layout, runtime, pthread)
        .map_err(|error| Refused::Unfit(format!("the lists of threads: {error}")))?;
    if threads.is_empty() {
        return Err(Refused::Empty);
    }
    for thread in &threads {
        let owner = memory.read_u64(at(thread.state, layout.thread.interpreter));
        if !owner.is_ok_and(|owner| owner == thread.interpreter) {
            return Err(unfit("a thread state belongs to another interpreter"));
        }
    }
    if !threads.iter().any(|t| is_thread(memory, t.fsbase)) {
        return Err(unfit(
            "no thread state names a thread of glibc (another C library is not supported)",
        ));
    }
    let mut proof = Proof {
        interpreters: count_interpreters(&threads),
        threads: threads.len(),
        ..Proof::default()
    };
    let code_type = match code_type {
        Some(address) => address,
        None => type_of_frames(memory, layout, &threads)
            .ok_or_else(|| unfit("no thread has a frame of Python"))?,
    };
    let (code_dealloc, members) = check_type(memory, layout, code_type)?;
    proof.members = members;
    let stacks = check_frames(memory, layout, &threads, code_type);
    proof.frames = stacks.frames;
    // A running thread changes its stack while we read it, so a few stacks may be broken. With a wrong layout, on the
    // other hand, a few stacks fit by chance.
    if stacks.broken > 0 && stacks.fitting <= 2 * stacks.broken {
        return Err(Refused::Unfit(format!(
            "{} of {} stacks lead to something else than code objects",
            stacks.broken,
            stacks.broken + stacks.fitting
        )));
    }
    Ok(Proven {
        proof,
        threads,
        code_type,
        code_dealloc,
    })
}

fn count_interpreters(threads: &[Thread]) -> usize {
    let mut all: Vec<u64> = threads.iter().map(|t| t.interpreter).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

/// The type of the innermost frame's code object, of the first thread where that is a type named "code".
fn type_of_frames<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    threads: &[Thread],
) -> Option<u64> {
    threads.iter().find_map(|thread| {
        let frame = *walk(memory, layout, thread.state).frames.first()?;
        let found = memory
            .read_u64(at(frame.code, layout.code.object_type))
            .ok()?;
        is_code_type(memory, found).then_some(found)
    })
}

fn is_code_type<M: Memory + ?Sized>(memory: &M, address: u64) -> bool {
    memory
        .read_u64(at(address, TYPE_NAME))
        .and_then(|name| memory.read_string(name, 16))
        .is_ok_and(|name| name == b"code")
}

/// Compares the layout with the members that the type itself lists, by name and offset. Returns the address of the
/// function that frees code objects, and the number of fields that were compared.
fn check_type<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    code_type: u64,
) -> Result<(u64, usize), Refused> {
    let unfit = |what: String| Refused::Unfit(what);
    if !is_code_type(memory, code_type) {
        return Err(unfit("the type of code objects is none".to_owned()));
    }
    let word = |offset| {
        memory
            .read_u64(at(code_type, offset))
            .map_err(|error| unfit(format!("the type of code objects: {error}")))
    };
    let dealloc = word(TYPE_DEALLOC)?;
    let members = word(TYPE_MEMBERS)?;
    let code = &layout.code;
    let lines = if code.lines_are == LINES_LNOTAB {
        "co_lnotab"
    } else {
        "co_linetable"
    };
    let mut wanted: Vec<(&str, u32)> = [
        ("co_filename", code.file_name),
        ("co_name", code.name),
        ("co_qualname", code.qualified_name),
        ("co_firstlineno", code.first_line),
        (lines, code.lines),
    ]
    .into_iter()
    .filter(|(_, offset)| *offset != NONE)
    .collect();
    let total = wanted.len();
    for i in 0..MEMBERS {
        let mut member = [0; MEMBER];
        let read = memory.read(at(members, (i * MEMBER) as u32), &mut member);
        let name = part(&member, 0).map_or(0, u64::from_le_bytes);
        if read.is_err() || name == 0 || wanted.is_empty() {
            break;
        }
        let Ok(name) = memory.read_string(name, 64) else {
            break;
        };
        let offset = part(&member, MEMBER_OFFSET).map_or(0, u64::from_le_bytes);
        if let Some(place) = wanted.iter().position(|(w, _)| w.as_bytes() == name) {
            let (name, expected) = wanted.swap_remove(place);
            if offset != u64::from(expected) {
                return Err(unfit(format!(
                    "{name} lies at {offset} of a code object, not at {expected}"
                )));
            }
        }
    }
    if let Some((name, _)) = wanted.first() {
        return Err(unfit(format!("code objects have no {name}")));
    }
    Ok((dealloc, total))
}

/// How many stacks of threads fit the layout.
#[derive(Default)]
struct Stacks {
    /// Number of stacks that end where they should, have at least one frame, and whose frames all have code objects.
    fitting: usize,
    /// Number of stacks that end elsewhere, or have a frame without a code object.
    broken: usize,
    /// Number of frames in the stacks that fit.
    frames: usize,
}

fn check_frames<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    threads: &[Thread],
    code_type: u64,
) -> Stacks {
    let mut stacks = Stacks::default();
    for thread in threads {
        let walk = walk(memory, layout, thread.state);
        let fits = walk.frames.iter().all(|frame| {
            memory
                .read_u64(at(frame.code, layout.code.object_type))
                .is_ok_and(|found| found == code_type)
        });
        if !fits || !matches!(walk.end, End::Outermost | End::Limit) {
            stacks.broken += 1;
        } else if !walk.frames.is_empty() {
            stacks.fitting += 1;
            stacks.frames += walk.frames.len();
        }
    }
    stacks
}
