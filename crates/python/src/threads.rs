//! Reads the lists of interpreters and thread states.

use std::collections::HashSet;
use std::io;

use memscope_memory::Memory;

use crate::layout::{Layout, NONE};
use crate::slot::Pthread;
use crate::thread::{Thread, at, is_thread};

/// A list with more interpreters or thread states than this is taken for damaged memory.
const MAX_INTERPRETERS: usize = 1 << 10;
const MAX_THREADS: usize = 1 << 16;

/// A thread state, without the thread that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Address of the `PyInterpreterState` that it belongs to.
    pub interpreter: u64,
    /// Address of the `PyThreadState`.
    pub state: u64,
}

/// All thread states of the interpreters at `runtime`, whatever threads they belong to. As with [`crate::threads`], some may be gone
/// already, and new ones may be missing.
pub fn states<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    runtime: u64,
) -> io::Result<Vec<State>> {
    let mut states = Vec::new();
    let mut seen = HashSet::new();
    for interpreter in interpreters(memory, layout, runtime)? {
        let mut state = memory.read_u64(at(interpreter, layout.runtime.threads))?;
        while state != 0 {
            if states.len() >= MAX_THREADS || !seen.insert(state) {
                return Err(damaged("a list of thread states has no end"));
            }
            states.push(State { interpreter, state });
            state = memory.read_u64(at(state, layout.thread.next))?;
        }
    }
    Ok(states)
}

/// All thread states. The lists are read while they may change: a state in the result may be gone already, and a new
/// one may be missing.
pub(crate) fn list<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    runtime: u64,
    pthread: &Pthread,
) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for State { interpreter, state } in states(memory, layout, runtime)? {
        let fsbase = match memory.read_u64(at(state, layout.thread.id))? {
            0 => 0,
            own => at(own, pthread.below),
        };
        threads.push(Thread {
            interpreter,
            state,
            fsbase,
            tid: tid(memory, layout, pthread, state, fsbase),
        });
    }
    Ok(threads)
}

/// The addresses of all interpreters.
pub(crate) fn interpreters<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    runtime: u64,
) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    let mut next = memory.read_u64(at(runtime, layout.runtime.interpreters))?;
    while next != 0 {
        if found.len() >= MAX_INTERPRETERS || found.contains(&next) {
            return Err(damaged("the list of interpreters has no end"));
        }
        found.push(next);
        next = memory.read_u64(at(next, layout.runtime.next))?;
    }
    Ok(found)
}

/// The kernel's number of a thread. glibc's number comes first: the interpreter's may be that of a thread before a
/// fork.
fn tid<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    pthread: &Pthread,
    state: u64,
    fsbase: u64,
) -> Option<u32> {
    let told = is_thread(memory, fsbase).then(|| {
        let mut raw = [0; 4];
        let own = fsbase.wrapping_sub(u64::from(pthread.below));
        memory.read(at(own, pthread.tid), &mut raw).ok()?;
        Some(u64::from(u32::from_le_bytes(raw)))
    });
    let told = told.flatten();
    let told = told.or_else(|| match layout.thread.native_id {
        NONE => None,
        offset => memory.read_u64(at(state, offset)).ok(),
    });
    told.and_then(|tid| u32::try_from(tid).ok())
        .filter(|tid| *tid != 0)
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
