//! The thread states of an interpreter's lists.

use std::collections::HashSet;
use std::io;

use memscope_site::Memory;

use crate::layout::{Layout, NONE};
use crate::slot::{Pthread, THREAD_POINTER_AT_END};

/// More interpreters or threads than this are damage.
const MAX_INTERPRETERS: usize = 1 << 10;
const MAX_THREADS: usize = 1 << 16;

/// Bytes of an entry of a vector of thread-local variables; the one before the first holds the length.
const VECTOR_ENTRY: u64 = 16;
/// A longer vector is damage.
const VECTOR_MOST: u64 = 1 << 16;

/// One thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// The `PyInterpreterState` that it belongs to.
    pub interpreter: u64,
    /// The `PyThreadState`.
    pub state: u64,
    /// The thread's `fsbase`, on aarch64 its `tpidr_el0`; 0 where it has not begun to run. On x86-64 it is the
    /// thread's `pthread_self`.
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
    pthread: &Pthread,
) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    let mut seen = HashSet::new();
    for interpreter in interpreters(memory, layout, runtime)? {
        let mut state = memory.read_u64(at(interpreter, layout.runtime.threads))?;
        while state != 0 {
            if threads.len() >= MAX_THREADS || !seen.insert(state) {
                return Err(damaged("a list of thread states has no end"));
            }
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

/// There is a thread of glibc here: the first word of what `fsbase` points to is its own address, and the third. On
/// aarch64 the first is the vector of thread-local variables, and before that the vector's length.
pub(crate) fn is_thread<M: Memory + ?Sized>(memory: &M, fsbase: u64) -> bool {
    if THREAD_POINTER_AT_END {
        return has_vector(memory, fsbase);
    }
    fsbase != 0
        && memory.read_u64(fsbase).is_ok_and(|own| own == fsbase)
        && memory
            .read_u64(fsbase.wrapping_add(16))
            .is_ok_and(|own| own == fsbase)
}

fn has_vector<M: Memory + ?Sized>(memory: &M, pointer: u64) -> bool {
    let vector = memory.read_u64(pointer).unwrap_or(0);
    pointer != 0
        && vector.is_multiple_of(16)
        && memory
            .read_u64(vector.wrapping_sub(VECTOR_ENTRY))
            .is_ok_and(|length| (1..VECTOR_MOST).contains(&length))
}

pub(crate) fn at(base: u64, offset: u32) -> u64 {
    base.wrapping_add(u64::from(offset))
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bytes;

    #[test]
    fn a_thread_is_known_by_its_vector() {
        let mut memory = Bytes::default();
        memory.word(0x1000, 0x5010);
        assert!(!has_vector(&memory, 0x1000), "no vector is there");
        memory.word(0x5000, 0x40);
        assert!(has_vector(&memory, 0x1000));
        for length in [0, VECTOR_MOST] {
            memory.word(0x5000, length);
            assert!(!has_vector(&memory, 0x1000));
        }
        memory.word(0x5000, 0x40);
        memory.word(0x1000, 0x5018);
        assert!(!has_vector(&memory, 0x1000));
        assert!(!has_vector(&memory, 0) && !has_vector(&memory, 0x2000));
    }
}
