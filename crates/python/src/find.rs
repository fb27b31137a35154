//! Finds the interpreter of a process.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use memscope_memory::{Memory, ProcessMemory};
use memscope_site::SiteError;
use memscope_site::mapped::{self, Mapped};
use serde::{Deserialize, Serialize};

use crate::code::{Code, CodeError, read_code};
use crate::debug_offsets;
use crate::error::PythonError;
use crate::image::{Image, images};
use crate::layout::{Layout, NONE};
use crate::metered::Metered;
use crate::prove::{self, ATTEMPTS, Proof, Proven, Refused};
use crate::slot::{self, Pthread, ThreadStateAt};
use crate::tables;
use crate::thread::{Thread, at};
use crate::threads::list;
use crate::tls;
use crate::version::{FIRST, LAST, Release, Version};
use crate::walk::{self, Walk};

/// A running interpreter, and everything that is needed to walk its frames.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// Version of CPython.
    pub version: Version,
    /// How the version is known.
    pub version_from: VersionFrom,
    /// Path of the file that contains it, in the process's mount namespace.
    pub path: OsString,
    /// Path by which we can open exactly this file, as long as it is mapped.
    pub open_path: PathBuf,
    /// Number to add (wrapping) to the file's own addresses to get addresses in the process.
    pub bias: u64,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Offsets of the fields in its structures.
    pub layout: Layout,
    /// How a thread finds its own state.
    pub thread_state: ThreadStateAt,
    /// The pthread key under which it keeps thread states; `None` if it uses a thread-local variable.
    pub thread_key: Option<u32>,
    /// Offsets in glibc's description of a thread.
    pub pthread: Pthread,
    /// Address of `PyCode_Type`, the type of every code object.
    pub code_type: u64,
    /// The function that frees code objects; `None` if it is in no mapped file that can be opened.
    pub code_dealloc: Option<FileFunction>,
    /// What was checked in the process's memory.
    pub proof: Proof,
}

/// A function of the process, with the mapped file that contains it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileFunction {
    /// Address of the function in the process.
    pub address: u64,
    /// Path of the file, as the process sees it.
    pub path: OsString,
    /// Path by which we can open exactly this file, as long as it is mapped.
    pub open_path: PathBuf,
    /// Offset in the file at which the function begins, in bytes.
    pub file_offset: u64,
}

/// How the version of an interpreter is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VersionFrom {
    /// From the description at the beginning of `_PyRuntime` (3.13 and later).
    Description,
    /// From the exported number `Py_Version` (3.11 and later).
    Symbol,
    /// From a constant in the file or from the file's name; and of all candidates only this version's layout fits the
    /// process.
    Fit,
}

/// Something that cannot be seen in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// There are subinterpreters, and before 3.12 a thread's slot keeps the state of the interpreter in which the
    /// thread ran first.
    #[error(
        "there are subinterpreters; before CPython 3.12, a thread that runs in one shows the frames of the interpreter that it ran in first"
    )]
    Subinterpreters,
}

/// Finds the interpreter of a process, and proves in the process's memory what the result says about it.
pub fn find(pid: u32) -> Result<Interpreter, PythonError> {
    let mapped = mapped::read(pid)?;
    let memory = ProcessMemory::open(pid).map_err(|source| SiteError::memory(pid, source))?;
    let images = images(pid, &mapped)?;
    search(pid, &mapped, &memory, &images)
}

/// Finds the one that is running of the interpreters that are mapped.
fn search<M: Memory + ?Sized>(
    pid: u32,
    mapped: &Mapped,
    memory: &M,
    images: &[Image],
) -> Result<Interpreter, PythonError> {
    let memory = Metered::new(memory);
    let mut found = Vec::new();
    let mut refused = None;
    for image in images {
        let identified = identify(pid, mapped, &memory, image);
        memory.check()?;
        match identified {
            Ok(interpreter) => found.push(interpreter),
            // The error of an interpreter that was never started gives way to any other error.
            Err(error) => {
                let replace = match &refused {
                    None | Some(PythonError::NotInitialized { .. }) => true,
                    Some(_) => false,
                };
                if replace {
                    refused = Some(error);
                }
            }
        }
    }
    if found.len() > 1 {
        return Err(PythonError::Several {
            paths: found
                .iter()
                .map(|i| i.path.to_string_lossy().into_owned())
                .collect(),
        });
    }
    match (found.pop(), refused) {
        (Some(interpreter), None | Some(PythonError::NotInitialized { .. })) => Ok(interpreter),
        // Refused even if another interpreter was found: the one with the error may be running too, and without its
        // frames the stacks would be incomplete.
        (_, Some(error)) => Err(error),
        (None, None) => Err(PythonError::NoInterpreter),
    }
}

/// A version that may be the right one, with its layout.
struct Candidate {
    version: Version,
    from: VersionFrom,
    layout: Layout,
}

fn identify<M: Memory + ?Sized>(
    pid: u32,
    mapped: &Mapped,
    memory: &Metered<'_, M>,
    image: &Image,
) -> Result<Interpreter, PythonError> {
    let candidates = candidates(memory, image)?;
    let pthread = Pthread::find(pid, mapped, memory);
    let code_type = image.place(image.evidence.code_type);
    let mut fitting = Vec::new();
    let mut reasons = Vec::new();
    for candidate in candidates {
        match prove(memory, image, &candidate, &pthread, code_type) {
            Ok(proven) => fitting.push((candidate, proven)),
            Err(
                error @ (PythonError::NotInitialized { .. } | PythonError::TooManyReads { .. }),
            ) => return Err(error),
            Err(error) => reasons.push(error),
        }
    }
    let (candidate, proven) = match (fitting.pop(), fitting.is_empty()) {
        (Some(only), true) => only,
        (Some(last), false) => {
            fitting.push(last);
            let all: Vec<String> = fitting.iter().map(|(c, _)| c.version.to_string()).collect();
            return Err(unknown(image, format!("{} all fit", all.join(", "))));
        }
        (None, _) if reasons.len() == 1 => return Err(reasons.swap_remove(0)),
        (None, _) => {
            let all: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            return Err(unknown(image, all.join("; ")));
        }
    };
    let way = thread_state(memory, image, &candidate, &pthread, proven)?;
    Ok(Interpreter {
        version: candidate.version,
        version_from: candidate.from,
        path: image.path.clone(),
        open_path: image.open_path.clone(),
        bias: image.bias,
        runtime: image.runtime.address,
        layout: candidate.layout,
        thread_state: way.at,
        thread_key: way.key,
        pthread,
        code_type: way.proven.code_type,
        code_dealloc: file_function(pid, mapped, way.proven.code_dealloc),
        proof: Proof {
            slots: way.slots,
            ..way.proven.proof
        },
    })
}

/// The versions that the interpreter may have, by the best evidence that there is.
fn candidates<M: Memory + ?Sized>(
    memory: &M,
    image: &Image,
) -> Result<Vec<Candidate>, PythonError> {
    let mut bytes = vec![0; debug_offsets::LENGTH];
    let runtime = image.runtime.address;
    if image.runtime.size >= debug_offsets::LENGTH as u64 {
        read(memory, runtime, &mut bytes)?;
    }
    if let Some(head) = debug_offsets::head(&bytes) {
        let version = Version::from_hex(head.hex)
            .ok_or_else(|| unknown(image, format!("it calls itself {:#x}", head.hex)))?;
        supported(version)?;
        if head.free_threaded {
            return Err(PythonError::FreeThreaded { version });
        }
        let layout = debug_offsets::layout(version, &bytes)
            .map_err(|what| misfit(image, version, format!("its description lacks {what}")))?;
        if image.runtime.size != head.runtime_size && !image.evidence.by_section {
            return Err(misfit(
                image,
                version,
                "_PyRuntime has another size than its description says".to_owned(),
            ));
        }
        return Ok(vec![Candidate {
            version,
            from: VersionFrom::Description,
            layout,
        }]);
    }
    if let Some(address) = image.place(image.evidence.version) {
        let hex = memory
            .read_u64(address)
            .map_err(|source| PythonError::Memory { address, source })?;
        let version = Version::from_hex(hex)
            .ok_or_else(|| unknown(image, format!("Py_Version is {hex:#x}")))?;
        supported(version)?;
        let layout = tables::layout(version.minor)
            .ok_or_else(|| misfit(image, version, "it does not describe itself".to_owned()))?;
        return Ok(vec![Candidate {
            version,
            from: VersionFrom::Symbol,
            layout,
        }]);
    }
    let mut versions = image.evidence.version_texts.clone();
    if let Some(minor) = image.named
        && !versions.iter().any(|version| version.minor == minor)
    {
        versions.push(Version::minor_only(minor));
    }
    if let [only] = versions[..] {
        supported(only)?;
    }
    let candidates = by_minor(&versions);
    if candidates.is_empty() {
        return Err(unknown(
            image,
            "no description, no Py_Version, no version among its constants or in its name"
                .to_owned(),
        ));
    }
    Ok(candidates)
}

/// One candidate for each minor version that has a table. If there are several versions with the same minor version,
/// the candidate's last part is unknown.
fn by_minor(versions: &[Version]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for version in versions.iter().filter(|version| version.is_supported()) {
        let Some(layout) = tables::layout(version.minor) else {
            continue;
        };
        match candidates
            .iter_mut()
            .find(|candidate| candidate.version.minor == version.minor)
        {
            Some(same) => same.version = Version::minor_only(version.minor),
            None => candidates.push(Candidate {
                version: *version,
                from: VersionFrom::Fit,
                layout,
            }),
        }
    }
    candidates
}

fn supported(version: Version) -> Result<(), PythonError> {
    let known = version.release == Release::Unknown && (FIRST..=LAST).contains(&version.minor);
    if known || version.is_supported() {
        Ok(())
    } else {
        Err(PythonError::Unsupported { version })
    }
}

fn prove<M: Memory + ?Sized>(
    memory: &Metered<'_, M>,
    image: &Image,
    candidate: &Candidate,
    pthread: &Pthread,
    code_type: Option<u64>,
) -> Result<Proven, PythonError> {
    let mut last = Refused::Empty;
    for _ in 0..ATTEMPTS {
        let runtime = image.runtime.address;
        match prove::attempt(memory, &candidate.layout, runtime, pthread, code_type) {
            Ok(proven) => return Ok(proven),
            Err(refused) => last = refused,
        }
        memory.check()?;
    }
    Err(match last {
        Refused::Empty => PythonError::NotInitialized {
            path: image.display.clone(),
        },
        Refused::Unfit(what) => misfit(image, candidate.version, what),
    })
}

/// A way from a thread to its thread state, with the attempt that proved it.
struct Way {
    at: ThreadStateAt,
    key: Option<u32>,
    slots: usize,
    proven: Proven,
}

fn thread_state<M: Memory + ?Sized>(
    memory: &Metered<'_, M>,
    image: &Image,
    candidate: &Candidate,
    pthread: &Pthread,
    mut proven: Proven,
) -> Result<Way, PythonError> {
    let expected = candidate.layout.runtime.thread_key;
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let found = if expected == NONE {
            match image.place(image.evidence.this_thread) {
                None => Err("it does not export PyGILState_GetThisThreadState".to_owned()),
                Some(address) => tls::by_function(
                    memory,
                    &image.evidence.this_thread_code,
                    address,
                    &proven.threads,
                )
                .map(|(way, trial)| (None, way, trial)),
            }
        } else {
            let runtime = (image.runtime.address, image.runtime.size);
            slot::by_key(memory, pthread, runtime, expected, &proven.threads)
                .map(|(key, way, trial)| (Some(key), way, trial))
        };
        match found {
            Ok((key, at, trial)) => {
                return Ok(Way {
                    at,
                    key,
                    slots: trial.right,
                    proven,
                });
            }
            Err(what) => last = what,
        }
        memory.check()?;
        // Threads may have begun or ended since the list was read, so it is read again.
        proven = prove(memory, image, candidate, pthread, Some(proven.code_type))?;
    }
    Err(PythonError::ThreadState {
        path: image.display.clone(),
        version: candidate.version,
        what: last,
    })
}

/// The mapped file that contains a function of the process, and the function's offset in it.
fn file_function(pid: u32, mapped: &Mapped, address: u64) -> Option<FileFunction> {
    let (object, mapping) = mapped.objects.iter().find_map(|object| {
        object
            .mappings
            .iter()
            .find(|m| m.execute && (m.start..m.end).contains(&address))
            .map(|mapping| (object, mapping))
    })?;
    Some(FileFunction {
        address,
        path: object.path.clone(),
        open_path: object.open(pid).ok()?.open_path,
        file_offset: address - mapping.start + mapping.offset,
    })
}

fn read<M: Memory + ?Sized>(
    memory: &M,
    address: u64,
    buffer: &mut [u8],
) -> Result<(), PythonError> {
    memory
        .read(address, buffer)
        .map_err(|source| PythonError::Memory { address, source })
}

fn misfit(image: &Image, version: Version, what: String) -> PythonError {
    PythonError::Layout {
        path: image.display.clone(),
        version,
        what,
    }
}

fn unknown(image: &Image, tried: String) -> PythonError {
    PythonError::UnknownVersion {
        path: image.display.clone(),
        tried,
    }
}

impl Interpreter {
    /// What cannot be seen in this process.
    pub fn limits(&self) -> Vec<Limit> {
        let subinterpreters = self.version.minor < 12 && self.proof.interpreters > 1;
        subinterpreters
            .then_some(Limit::Subinterpreters)
            .into_iter()
            .collect()
    }

    /// What must be known to read code objects.
    pub fn codes(&self) -> Codes {
        Codes {
            layout: self.layout,
            code_type: self.code_type,
        }
    }

    /// Reads the code object at this address; an error where there is none.
    pub fn code<M: Memory + ?Sized>(&self, memory: &M, address: u64) -> Result<Code, CodeError> {
        self.codes().read(memory, address)
    }
}

/// What must be known of an interpreter to read its code objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Codes {
    layout: Layout,
    /// Address of the type of code objects.
    code_type: u64,
}

impl Codes {
    /// Whether there is a code object at this address now.
    pub fn is_code<M: Memory + ?Sized>(&self, memory: &M, address: u64) -> io::Result<bool> {
        memory
            .read_u64(at(address, self.layout.code.object_type))
            .map(|found| found == self.code_type)
    }

    /// Reads the code object at this address; an error where there is none.
    pub fn read<M: Memory + ?Sized>(&self, memory: &M, address: u64) -> Result<Code, CodeError> {
        match self.is_code(memory, address) {
            Ok(true) => read_code(memory, &self.layout, address),
            Ok(false) => Err(CodeError::Malformed {
                what: "the type",
                address,
            }),
            Err(source) => Err(CodeError::Read {
                what: "the type",
                address,
                source,
            }),
        }
    }
}

/// All thread states of a process, including those of subinterpreters. A thread that has run in several interpreters
/// has one state in each of them.
pub fn threads<M: Memory + ?Sized>(
    memory: &M,
    interpreter: &Interpreter,
) -> io::Result<Vec<Thread>> {
    list(
        memory,
        &interpreter.layout,
        interpreter.runtime,
        &interpreter.pthread,
    )
}

/// Walks the frames of a thread state ([`Thread::state`]), innermost first. The walk always ends: it has a limit, and
/// it stops at cycles and at memory that cannot be read. [`Walk::end`] says which of these ended it.
pub fn walk_thread<M: Memory + ?Sized>(memory: &M, interpreter: &Interpreter, state: u64) -> Walk {
    walk::walk(memory, &interpreter.layout, state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug_offsets::tests::description;
    use crate::image::{Evidence, SymbolPlace};
    use crate::metered::MOST_READS;
    use crate::testing::Bytes;
    use memscope_tests::limits::{Met, constant};
    use std::cell::Cell;
    use std::collections::HashMap;

    const RUNTIME: u64 = 0x1000;
    const VERSION: u64 = 0x9000;

    fn image(evidence: Evidence, size: u64, named: Option<u8>) -> Image {
        Image {
            path: "python".into(),
            display: "python".to_owned(),
            open_path: PathBuf::new(),
            bias: 0,
            runtime: SymbolPlace {
                address: RUNTIME,
                size,
            },
            evidence,
            named,
        }
    }

    /// The candidates for these bytes at `_PyRuntime`, whose symbol has the size `size`.
    fn of_description(bytes: &[u8], size: u64) -> Result<Vec<Candidate>, PythonError> {
        let mut memory = Bytes::default();
        memory.put(RUNTIME, bytes);
        memory.put(RUNTIME + bytes.len() as u64, &[0; 512]);
        candidates(&memory, &image(Evidence::default(), size, None))
    }

    fn of_number(hex: u64) -> Result<Vec<Candidate>, PythonError> {
        let mut memory = Bytes::default();
        memory.put(RUNTIME, &[0; 1024]);
        memory.put(VERSION, &hex.to_le_bytes());
        let version = Some(SymbolPlace {
            address: VERSION,
            size: 8,
        });
        let evidence = Evidence {
            version,
            ..Evidence::default()
        };
        candidates(&memory, &image(evidence, 1024, None))
    }

    fn names(found: Result<Vec<Candidate>, PythonError>) -> Vec<String> {
        let found = found.unwrap();
        found.iter().map(|c| c.version.to_string()).collect()
    }

    #[test]
    fn versions_that_describe_themselves() {
        let bytes = description("3.14.10");
        let size = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
        assert_eq!(names(of_description(&bytes, size)), ["3.14.10"]);
        // The size does not match: another symbol of the same name, or another structure.
        let error = of_description(&bytes, size + 8).err().unwrap();
        assert!(matches!(error, PythonError::Layout { .. }), "{error}");

        let changed = |at: usize, value: u64| {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            of_description(&bytes, size).err().unwrap()
        };
        let error = changed(16, 1);
        assert!(matches!(error, PythonError::FreeThreaded { .. }), "{error}");
        for hex in [0x0310_00f0, 0x030e_00b1] {
            let error = changed(8, hex);
            assert!(matches!(error, PythonError::Unsupported { .. }), "{error}");
        }
        let error = changed(8, 7);
        assert!(
            matches!(error, PythonError::UnknownVersion { .. }),
            "{error}"
        );
        // The offset of a frame's owner lies outside of the frame.
        let error = changed(288, 4000);
        assert!(
            error.to_string().contains("interpreter_frame.owner"),
            "{error}"
        );
    }

    #[test]
    fn versions_that_are_a_number() {
        assert_eq!(names(of_number(0x030b_07f0)), ["3.11.7"]);
        let error = of_number(0x0308_12f0).err().unwrap();
        assert!(matches!(error, PythonError::Unsupported { .. }), "{error}");
        // From 3.13 on there must be a description.
        let error = of_number(0x030d_00f0).err().unwrap();
        assert!(matches!(error, PythonError::Layout { .. }), "{error}");
    }

    #[test]
    fn versions_by_constants_and_name() {
        let of = |texts: &[&str], named| {
            let version_texts = texts.iter().filter_map(|t| Version::from_text(t)).collect();
            let evidence = Evidence {
                version_texts,
                ..Evidence::default()
            };
            candidates(&Bytes::default(), &image(evidence, 656, named))
        };
        assert_eq!(names(of(&["3.9.2"], Some(9))), ["3.9.2"]);
        assert_eq!(names(of(&[], Some(10))), ["3.10"]);
        // The constant may be the version of some library. Both versions are tried, and the process's memory decides.
        assert_eq!(names(of(&["3.12.4"], Some(9))), ["3.12.4", "3.9"]);
        assert_eq!(names(of(&["3.9.2", "3.9.7"], Some(9))), ["3.9"]);
        let error = of(&[], Some(8)).err().unwrap();
        assert!(matches!(error, PythonError::Unsupported { .. }), "{error}");
        let error = of(&[], None).err().unwrap();
        assert!(
            matches!(error, PythonError::UnknownVersion { .. }),
            "{error}"
        );
    }

    /// Memory in which some words are set and all others are zero. It counts its reads, and bears only so many.
    #[derive(Default)]
    struct Counting {
        words: HashMap<u64, u64>,
        reads: Cell<u64>,
    }

    impl Counting {
        fn word(&mut self, address: u64, offset: u32, word: u64) {
            self.words.insert(at(address, offset), word);
        }

        fn text(&mut self, address: u64, text: &str) {
            for (address, piece) in (address..).step_by(8).zip(text.as_bytes().chunks(8)) {
                let mut word = [0; 8];
                word[..piece.len()].copy_from_slice(piece);
                self.word(address, 0, u64::from_le_bytes(word));
            }
        }
    }

    impl Memory for Counting {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.reads.set(self.reads.get() + 1);
            assert!(self.reads.get() <= MOST_READS, "the search goes on");
            for (address, byte) in (address..).zip(buffer) {
                let word = self.words.get(&(address & !7)).copied().unwrap_or(0);
                *byte = word.to_le_bytes()[(address & 7) as usize];
            }
            Ok(())
        }
    }

    const CODE_TYPE: u64 = 0xa000;
    const CODE: u64 = 0xb000;
    const OTHER_CODE: u64 = 0xc000;

    /// A process with so many threads of CPython 3.12, each with so many frames, whose outermost one runs this code object.
    /// Only that of [`CODE`] is one. No key leads to a thread state.
    fn process(threads: u64, frames: u64, outermost: u64) -> (Counting, Image) {
        const INTERPRETER: u64 = 0xd000;
        const THREAD: u64 = 0xe000;
        const CFRAME: u64 = 0x1_0000;
        const MEMBERS: u64 = 0x1_1000;
        const TEXTS: u64 = 0x1_2000;
        const FRAMES: u64 = 0x10_0000;
        const STATES: u64 = 0x1000_0000;
        let layout = tables::layout(12).unwrap();
        let mut memory = Counting::default();
        memory.word(VERSION, 0, 0x030c_00f0);
        memory.word(RUNTIME, layout.runtime.interpreters, INTERPRETER);
        memory.word(INTERPRETER, layout.runtime.threads, STATES);
        // What shows a thread on x86-64, and on aarch64.
        memory.word(THREAD, 0, THREAD);
        memory.word(THREAD, 16, THREAD);
        memory.word(THREAD - 16, 0, 1);
        for (number, state) in (1..=threads).zip((STATES..).step_by(512)) {
            let next = if number == threads { 0 } else { state + 512 };
            memory.word(state, layout.thread.next, next);
            memory.word(state, layout.thread.interpreter, INTERPRETER);
            memory.word(state, layout.thread.id, THREAD);
            memory.word(state, layout.thread.frame, CFRAME);
        }
        memory.word(CFRAME, layout.thread.cframe_frame, FRAMES);
        for (number, frame) in (1..=frames).zip((FRAMES..).step_by(256)) {
            let (next, code) = if number == frames {
                (0, outermost)
            } else {
                (frame + 256, CODE)
            };
            memory.word(frame, layout.frame.previous, next);
            memory.word(frame, layout.frame.code, code);
        }
        memory.word(CODE, layout.code.object_type, CODE_TYPE);
        memory.word(CODE_TYPE, 24, TEXTS);
        memory.text(TEXTS, "code");
        memory.word(CODE_TYPE, 240, MEMBERS);
        let members = [
            ("co_filename", layout.code.file_name),
            ("co_name", layout.code.name),
            ("co_qualname", layout.code.qualified_name),
            ("co_firstlineno", layout.code.first_line),
            ("co_linetable", layout.code.lines),
        ];
        for ((name, offset), number) in members.into_iter().zip(0..) {
            let text = TEXTS + 64 * (number + 1);
            memory.text(text, name);
            memory.word(MEMBERS + 40 * number, 0, text);
            memory.word(MEMBERS + 40 * number, 16, offset.into());
        }
        let place = |address, size| Some(SymbolPlace { address, size });
        let evidence = Evidence {
            version: place(VERSION, 8),
            code_type: place(CODE_TYPE, 416),
            ..Evidence::default()
        };
        (memory, image(evidence, 656, None))
    }

    fn search_in(memory: &Counting, images: &[Image]) -> PythonError {
        search(1, &Mapped::default(), memory, images).unwrap_err()
    }

    /// The search in such a process ends before the memory is read more often than it bears.
    fn is_given_up(threads: u64, frames: u64, outermost: u64) {
        let (memory, image) = process(threads, frames, outermost);
        let error = search_in(&memory, &[image.clone(), image]);
        assert!(
            matches!(error, PythonError::TooManyReads { most: MOST_READS }),
            "{error}"
        );
    }

    /// One attempt takes more than all that may be read.
    #[test]
    fn a_search_reads_only_so_much() {
        is_given_up(65_000, 1, OTHER_CODE);
        Met {
            what: "reads of a process's memory in the search for its Python interpreter",
            most: constant("crates/python/src/metered.rs", "MOST_READS"),
            beyond: "the search ends; it is made again when the process has mapped or unmapped code",
            told: "`no_python_stacks` in coverage, which says so; the error of `holders`",
            test: "a_search_reads_only_so_much",
        }
        .is_told();
    }

    #[test]
    fn long_chains_of_frames_are_read_only_so_often() {
        is_given_up(20, 1000, OTHER_CODE);
    }

    #[test]
    fn hundreds_of_threads_are_read_only_so_often() {
        is_given_up(400, 5, OTHER_CODE);
    }

    /// All fits, and no thread's state is found.
    #[test]
    fn a_way_to_the_state_is_searched_only_so_often() {
        is_given_up(400, 5, CODE);
    }

    /// What ends without reading much still tells what does not fit.
    #[test]
    fn a_search_that_ends_before_tells_what_does_not_fit() {
        let (memory, image) = process(2, 5, OTHER_CODE);
        let error = search_in(&memory, &[image]);
        assert!(matches!(error, PythonError::Layout { .. }), "{error}");
        let (memory, image) = process(2, 5, CODE);
        let error = search_in(&memory, &[image]);
        assert!(matches!(error, PythonError::ThreadState { .. }), "{error}");
    }
}
