//! How a thread finds its own thread state: in the slot of a pthread key, or in a thread-local variable.
//!
//! We use the state that the interpreter keeps for `PyGILState_Ensure`: it stays bound to the thread as long as the
//! thread has anything to do with Python. The other place, `_Py_tss_tstate` (from 3.12 on), is empty whenever the
//! thread has released the GIL, and PyTorch releases it before it dispatches an operator.

use std::fmt;
use std::io;

use memscope_memory::Memory;
use memscope_site::elf::{Budget, Elf, SymbolTable};
use memscope_site::mapped::Mapped;

use crate::thread::{THREAD_POINTER_AT_END, Thread, at, is_thread};

/// The place of a thread's state, starting from the thread's `fsbase` (on aarch64 its `tpidr_el0`). If 0 is read at any
/// step, the thread has no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadStateAt {
    /// At `fsbase` + `offset`: a pthread key below 32, or a thread-local variable of a file that was loaded at the
    /// start of the program.
    Slot {
        /// Distance from `fsbase` in bytes. It is signed, because thread-local variables lie below `fsbase`.
        offset: i64,
    },
    /// A pthread key from 32 on: at `fsbase` + `table` is a pointer, and at the pointer's value + `offset` is the
    /// state.
    SecondLevel {
        /// Distance of the pointer from `fsbase`, in bytes.
        table: i64,
        /// Offset of the state in the memory that the pointer points to, in bytes.
        offset: u64,
    },
    /// A thread-local variable of a file that was loaded later: at `fsbase` + `vector` is the pointer to the dynamic
    /// thread vector; in the vector, at `entry`, is the pointer to the file's variables (−1 while the thread has none
    /// yet); and among these, at `offset`, is the state.
    Dynamic {
        /// Distance from `fsbase` of the pointer to the vector, in bytes.
        vector: i64,
        /// Offset of the file's entry in the vector, in bytes.
        entry: u64,
        /// Offset of the state among the file's variables, in bytes.
        offset: u64,
    },
}

/// A [`ThreadStateAt`] as plain numbers: begin with `fsbase`; `reads` times, add the next offset and read the word
/// there. The last word is the state.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadStatePath {
    /// Number of reads: 1 to 3.
    pub reads: u32,
    /// Always 0.
    pub padding: u32,
    /// Numbers to add before each read, in bytes.
    pub offsets: [i64; 3],
}

impl ThreadStateAt {
    /// The place as plain numbers.
    pub fn path(&self) -> ThreadStatePath {
        let (reads, offsets) = match *self {
            ThreadStateAt::Slot { offset } => (1, [offset, 0, 0]),
            ThreadStateAt::SecondLevel { table, offset } => (2, [table, offset as i64, 0]),
            ThreadStateAt::Dynamic {
                vector,
                entry,
                offset,
            } => (3, [vector, entry as i64, offset as i64]),
        };
        ThreadStatePath {
            reads,
            padding: 0,
            offsets,
        }
    }

    /// Reads the state of the thread with this `fsbase`; `None` if the thread has none.
    pub fn read<M: Memory + ?Sized>(&self, memory: &M, fsbase: u64) -> io::Result<Option<u64>> {
        let path = self.path();
        let mut address = fsbase;
        for offset in path.offsets.iter().take(path.reads as usize) {
            address = memory.read_u64(address.wrapping_add_signed(*offset))?;
            if address == 0 || address == u64::MAX {
                return Ok(None);
            }
        }
        Ok(Some(address))
    }
}

impl fmt::Display for ThreadStateAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThreadStateAt::Slot { offset } if *offset < 0 => {
                write!(f, "[fsbase - {:#x}]", offset.unsigned_abs())
            }
            ThreadStateAt::Slot { offset } => write!(f, "[fsbase + {offset:#x}]"),
            ThreadStateAt::SecondLevel { table, offset } => {
                write!(f, "[[fsbase + {table:#x}] + {offset:#x}]")
            }
            ThreadStateAt::Dynamic {
                vector,
                entry,
                offset,
            } => write!(f, "[[[fsbase + {vector:#x}] + {entry:#x}] + {offset:#x}]"),
        }
    }
}

/// Offsets in glibc's `struct pthread`, in bytes. The structure begins at `fsbase` on x86-64, and ends at the thread
/// pointer on aarch64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pthread {
    /// The kernel's number of the thread: 32 bits.
    pub tid: u32,
    /// The table of pointers to blocks of key slots. The first block lies directly before this table.
    pub blocks: u32,
    /// Size of a key slot in bytes.
    pub slot: u32,
    /// Offset of the value in a slot.
    pub value: u32,
    /// Number of bytes of the structure that lie below the thread pointer: all of them on aarch64, none on x86-64.
    pub below: u32,
    /// Whether the numbers were read from glibc's own description. Otherwise they are those of [`Pthread::default`].
    pub described: bool,
}

/// Number of slots in a block of pthread keys (`PTHREAD_KEY_2NDLEVEL_SIZE`).
const BLOCK: u32 = 32;
/// Number of pthread keys of a process (`PTHREAD_KEYS_MAX`).
const KEYS: u32 = 1024;

impl Default for Pthread {
    /// The numbers of glibc 2.31 to 2.42 on x86-64.
    fn default() -> Pthread {
        Pthread {
            tid: 720,
            blocks: 1296,
            slot: 16,
            value: 8,
            below: 0,
            described: false,
        }
    }
}

impl Pthread {
    /// Reads the description that glibc keeps for debuggers. If there is none, the known numbers are used.
    pub(crate) fn find<M: Memory + ?Sized>(pid: u32, mapped: &Mapped, memory: &M) -> Pthread {
        let budget = Budget::of_process();
        mapped
            .objects
            .iter()
            .filter(|object| object.is_executable())
            .filter(|object| {
                let name = object.file_name();
                name.starts_with("libc.so")
                    || name.starts_with("libc-")
                    || name.starts_with("libpthread")
            })
            .find_map(|object| {
                let opened = object.open(pid).ok()?;
                let elf = Elf::read_within(&opened.bytes, &budget).ok()?;
                let bias = object.bias(&elf)?;
                let tables = [elf.exported_symbols(), elf.all_symbols()];
                tables
                    .into_iter()
                    .find_map(|table| Pthread::described(&table.ok()??, memory, bias))
            })
            .unwrap_or_default()
    }

    fn described<M: Memory + ?Sized>(
        table: &SymbolTable,
        memory: &M,
        bias: u64,
    ) -> Option<Pthread> {
        let number = |name: &[u8], word: u64| {
            let symbol = table
                .defined_like(|rest| rest.starts_with(b"_thread_db_"))
                .find(|symbol| symbol.name == name)?;
            let mut raw = [0; 4];
            let address = symbol.address.wrapping_add(bias).wrapping_add(4 * word);
            memory.read(address, &mut raw).ok()?;
            Some(u32::from_le_bytes(raw))
        };
        // glibc describes each field by three numbers: bits, count, offset.
        let found = Pthread {
            tid: number(b"_thread_db_pthread_tid", 2)?,
            blocks: number(b"_thread_db_pthread_specific", 2)?,
            slot: number(b"_thread_db_sizeof_pthread_key_data", 0)?,
            value: number(b"_thread_db_pthread_key_data_data", 2)?,
            below: if THREAD_POINTER_AT_END {
                number(b"_thread_db_sizeof_pthread", 0)?
            } else {
                0
            },
            described: true,
        };
        let sound = found.blocks < 1 << 16
            && found.tid < 1 << 16
            && found.below < 1 << 16
            && (8..=64).contains(&found.slot)
            && found.value < found.slot
            && found.blocks >= found.slot * BLOCK;
        sound.then_some(found)
    }

    /// The place of the value of a pthread key; `None` for a number that is no key.
    pub(crate) fn key(&self, key: u32) -> Option<ThreadStateAt> {
        let place = key % BLOCK * self.slot + self.value;
        match key / BLOCK {
            _ if key >= KEYS => None,
            0 => Some(ThreadStateAt::Slot {
                offset: i64::from(self.blocks - BLOCK * self.slot + place) - i64::from(self.below),
            }),
            block => Some(ThreadStateAt::SecondLevel {
                table: i64::from(self.blocks + 8 * block) - i64::from(self.below),
                offset: u64::from(place),
            }),
        }
    }
}

/// Result of trying a way to the thread state with all threads that the interpreter lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Number of threads for which it leads to their own state.
    pub right: usize,
    /// Number of threads for which it leads to nothing: they are just beginning, or have ended.
    pub empty: usize,
    /// Number of threads for which it leads to something else.
    pub wrong: usize,
}

impl Trial {
    /// Whether the way is proven: it must be right for at least one thread and wrong for none.
    pub fn proves(&self) -> bool {
        self.right > 0 && self.wrong == 0
    }
}

/// Tries a way to the thread state with every thread.
pub(crate) fn attempt<M: Memory + ?Sized>(
    memory: &M,
    way: &ThreadStateAt,
    threads: &[Thread],
) -> Trial {
    let mut trial = Trial::default();
    for thread in threads {
        if !is_thread(memory, thread.fsbase) {
            continue;
        }
        match way.read(memory, thread.fsbase) {
            Ok(None) => trial.empty += 1,
            // A thread that runs several interpreters has a state in each of them. Any of these is right.
            Ok(Some(state))
                if threads
                    .iter()
                    .any(|other| other.state == state && other.fsbase == thread.fsbase) =>
            {
                trial.right += 1;
            }
            Ok(Some(_)) | Err(_) => trial.wrong += 1,
        }
    }
    trial
}

/// Number of bytes at the beginning of `_PyRuntime` in which a key is searched.
const REACH: u64 = 8192;

/// Finds the interpreter's pthread key in `_PyRuntime`: at the expected offset, or else at any other. Only a key that
/// is proven counts.
///
/// # Errors
/// No key is proven, or there are two different ones, neither of them at the expected offset.
pub(crate) fn by_key<M: Memory + ?Sized>(
    memory: &M,
    pthread: &Pthread,
    runtime: (u64, u64),
    expected: u32,
    threads: &[Thread],
) -> Result<(u32, ThreadStateAt, Trial), String> {
    let (address, size) = runtime;
    let proven = |key: u32| {
        let way = pthread.key(key)?;
        let trial = attempt(memory, &way, threads);
        trial.proves().then_some((key, way, trial))
    };
    if let Some(found) = key_at(memory, at(address, expected)).and_then(proven) {
        return Ok(found);
    }
    // Another release of the same version may have the key at another offset.
    let mut found: Option<(u32, ThreadStateAt, Trial)> = None;
    for offset in (0..size.min(REACH)).step_by(4) {
        let Some(key) = key_at(memory, address.wrapping_add(offset)) else {
            continue;
        };
        match (proven(key), &found) {
            (Some(this), Some(other)) if this.0 != other.0 => {
                return Err(format!(
                    "the pthread keys {} and {} both lead to thread states",
                    other.0, this.0
                ));
            }
            (Some(this), None) => found = Some(this),
            _ => {}
        }
    }
    found.ok_or_else(|| "no pthread key in _PyRuntime leads to a thread state".to_owned())
}

/// Reads a key that is stored as {is initialised, key}, 32 bits each; `None` if none is.
fn key_at<M: Memory + ?Sized>(memory: &M, address: u64) -> Option<u32> {
    let word = memory.read_u64(address).ok()?;
    (word as u32 == 1).then_some((word >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bytes;

    const RUNTIME: u64 = 0x1_0000;
    const THREADS: [u64; 2] = [0x2_0000, 0x3_0000];
    const STATES: [u64; 2] = [0x7000, 0x8000];

    #[test]
    fn keys() {
        let pthread = Pthread::default();
        let slot = |offset| Some(ThreadStateAt::Slot { offset });
        let second = |table, offset| Some(ThreadStateAt::SecondLevel { table, offset });
        assert_eq!(pthread.key(0), slot(0x318));
        assert_eq!(pthread.key(31), slot(0x318 + 31 * 16));
        assert_eq!(pthread.key(32), second(0x510 + 8, 8));
        assert_eq!(pthread.key(1023), second(0x510 + 8 * 31, 31 * 16 + 8));
        assert_eq!(pthread.key(1024), None);
        // aarch64: the thread pointer is at the end of the structure (glibc 2.36).
        let pthread = Pthread {
            tid: 208,
            blocks: 784,
            below: 0x700,
            ..Pthread::default()
        };
        assert_eq!(pthread.key(0), slot(784 - 32 * 16 + 8 - 0x700));
        assert_eq!(pthread.key(33), second(784 + 8 - 0x700, 24));
    }

    #[test]
    fn ways_as_numbers() {
        let dynamic = ThreadStateAt::Dynamic {
            vector: 8,
            entry: 64,
            offset: 40,
        };
        assert_eq!(dynamic.path().reads, 3);
        let mut memory = Bytes::default();
        memory.word(THREADS[0] + 8, 0x9_0000);
        memory.word(0x9_0040, 0xa_0000);
        memory.word(0xa_0028, STATES[0]);
        assert_eq!(dynamic.read(&memory, THREADS[0]).unwrap(), Some(STATES[0]));
        // The thread has none of the module's variables yet.
        memory.word(0x9_0040, u64::MAX);
        assert_eq!(dynamic.read(&memory, THREADS[0]).unwrap(), None);
        assert!(dynamic.read(&memory, THREADS[1]).is_err());
        assert_eq!(dynamic.to_string(), "[[[fsbase + 0x8] + 0x40] + 0x28]");
    }

    /// Two threads whose first 32 slots are empty, and a runtime without a key.
    fn process() -> (Bytes, Vec<Thread>) {
        let mut memory = Bytes::default();
        memory.put(RUNTIME, &[0; 1024]);
        let threads = THREADS.iter().zip(STATES).map(|(&fsbase, state)| {
            memory.put(fsbase, &[0; 0x800]);
            memory.word(fsbase, fsbase);
            memory.word(fsbase + 16, fsbase);
            Thread {
                interpreter: 1,
                state,
                fsbase,
                tid: None,
            }
        });
        let threads = threads.collect();
        (memory, threads)
    }

    fn find(memory: &Bytes, threads: &[Thread]) -> Result<u32, String> {
        by_key(memory, &Pthread::default(), (RUNTIME, 1024), 584, threads).map(|(key, _, _)| key)
    }

    fn store(memory: &mut Bytes, key: u64, states: [u64; 2]) {
        for (fsbase, state) in THREADS.into_iter().zip(states) {
            memory.word(fsbase + 0x318 + 16 * key, state);
        }
    }

    #[test]
    fn the_key_where_it_should_be_and_elsewhere() {
        let (mut memory, threads) = process();
        assert!(find(&memory, &threads).is_err());
        store(&mut memory, 3, STATES);
        assert!(find(&memory, &threads).is_err(), "nothing names the key");
        memory.word(RUNTIME + 584, 3 << 32 | 1);
        assert_eq!(find(&memory, &threads), Ok(3));
        memory.word(RUNTIME + 584, 0);
        memory.word(RUNTIME + 700, 3 << 32 | 1);
        assert_eq!(find(&memory, &threads), Ok(3));
        // There is another key under which thread states are stored, and nothing says which one is right.
        store(&mut memory, 5, STATES);
        memory.word(RUNTIME + 800, 5 << 32 | 1);
        assert!(find(&memory, &threads).is_err_and(|why| why.contains("both")));
        memory.word(RUNTIME + 584, 5 << 32 | 1);
        assert_eq!(find(&memory, &threads), Ok(5));
    }

    #[test]
    fn a_key_must_be_right_for_one_and_wrong_for_none() {
        let (mut memory, threads) = process();
        memory.word(RUNTIME + 584, 3 << 32 | 1);
        store(&mut memory, 3, [STATES[0], 0]);
        assert_eq!(find(&memory, &threads), Ok(3), "the second has just begun");
        store(&mut memory, 3, [STATES[0], STATES[0]]);
        assert!(find(&memory, &threads).is_err(), "another thread's state");
        store(&mut memory, 3, [0, 0]);
        assert!(find(&memory, &threads).is_err());
    }
}
