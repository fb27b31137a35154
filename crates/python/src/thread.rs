//! A thread of another process, and how one is known to be there.

use memscope_memory::Memory;

/// Whether the thread pointer is the end of `struct pthread` (the ABI's first variant of thread-local storage) or its
/// beginning.
pub(crate) const THREAD_POINTER_AT_END: bool = cfg!(target_arch = "aarch64");

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
