//! The thread states of an interpreter's lists.

use std::collections::HashSet;
use std::io;

use memscope_site::Memory;

use crate::layout::{Layout, NONE};
use crate::slot::Pthread;

/// More interpreters or threads than this are damage.
const MAX_INTERPRETERS: usize = 1 << 10;
const MAX_THREADS: usize = 1 << 16;

/// One thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// The `PyInterpreterState` that it belongs to.
    pub interpreter: u64,
    /// The `PyThreadState`.
    pub state: u64,
    /// The thread's `pthread_self`, which is its `fsbase`; 0 where it has not begun to run.
    pub fsbase: u64,
    /// The thread's number in the kernel, as the PID namespace of the process counts, where it is known.
    pub tid: Option<u32>,
}

/// All thread states. The lists are read while they change: what a running process shows may be gone, and what it has
/// just begun may be missing.
pub(crate) fn list<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    runtime: u64,
    pthread: Option<&Pthread>,
) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    let mut seen = HashSet::new();
    for interpreter in interpreters(memory, layout, runtime)? {
        let mut state = memory.read_u64(at(interpreter, layout.runtime.threads))?;
        while state != 0 {
            if threads.len() >= MAX_THREADS || !seen.insert(state) {
                return Err(damaged("a list of thread states has no end"));
            }
            let fsbase = memory.read_u64(at(state, layout.thread.id))?;
            threads.push(Thread {
                interpreter,
                state,
                fsbase,
                tid: tid(memory, layout, pthread, state, fsbase),
            });
            state = memory.read_u64(at(state, layout.thread.next))?;
        }
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

/// glibc's own number first: the interpreter's may be that of a thread before a fork.
fn tid<M: Memory + ?Sized>(
    memory: &M,
    layout: &Layout,
    pthread: Option<&Pthread>,
    state: u64,
    fsbase: u64,
) -> Option<u32> {
    let told = pthread
        .filter(|_| is_thread(memory, fsbase))
        .and_then(|pthread| {
            let mut raw = [0; 4];
            memory.read(at(fsbase, pthread.tid), &mut raw).ok()?;
            Some(u64::from(u32::from_le_bytes(raw)))
        });
    let told = told.or_else(|| match layout.thread.native_id {
        NONE => None,
        offset => memory.read_u64(at(state, offset)).ok(),
    });
    told.and_then(|tid| u32::try_from(tid).ok())
        .filter(|tid| *tid != 0)
}

/// There is a thread of glibc here: the first word of what `fsbase` points to is its own address, and the third.
pub(crate) fn is_thread<M: Memory + ?Sized>(memory: &M, fsbase: u64) -> bool {
    fsbase != 0
        && memory.read_u64(fsbase).is_ok_and(|own| own == fsbase)
        && memory
            .read_u64(fsbase.wrapping_add(16))
            .is_ok_and(|own| own == fsbase)
}

pub(crate) fn at(base: u64, offset: u32) -> u64 {
    base.wrapping_add(u64::from(offset))
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
