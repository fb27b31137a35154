//! A thread of another process, and the check that an address is a thread's.

use memscope_memory::Memory;

/// Whether the thread pointer is the end of `struct pthread` (the ABI's first variant of thread-local storage) or its
/// beginning.
pub(crate) const THREAD_POINTER_AT_END: bool = cfg!(target_arch = "aarch64");

/// Size in bytes of an entry of a vector of thread-local variables. The entry before the first one holds the length.
const VECTOR_ENTRY: u64 = 16;

/// A vector with this many entries or more is taken for damaged memory.
const VECTOR_MOST: u64 = 1 << 16;

/// A thread state, and the thread that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Address of the `PyInterpreterState` that it belongs to.
    pub interpreter: u64,
    /// Address of the `PyThreadState`.
    pub state: u64,
    /// The thread's `fsbase`, on aarch64 its `tpidr_el0`; 0 if the thread has not begun to run. On x86-64 it equals the
    /// thread's `pthread_self`.
    pub fsbase: u64,
    /// The kernel's number of the thread in the PID namespace of the process, where it is known.
    pub tid: Option<u32>,
}

/// Whether `fsbase` is the thread pointer of a thread of glibc. On x86-64 the first and the third word at that address
/// must be the address itself. On aarch64 the first word must point to a vector of thread-local variables, before which
/// the vector's length stands.
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
