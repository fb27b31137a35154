//! Checks that must hold for every interpreter.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memscope_memory::{Memory, ProcessMemory};
use memscope_python::{
    Code, End, Interpreter, MAX_TEXT, RawCode, Text, Thread, ThreadStateAt, VersionFrom, find,
    read_code, threads, walk_thread,
};
use serde::Deserialize;

use super::c::{self, Folder};
use super::{AGENT, BUSY, CODES, FORKED, PROLOGUE, Program, Python, SUB};

/// A wait that takes longer than this is a failure. A wait ends as soon as its condition holds.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Hello {
    pid: u32,
    expected: usize,
    version: [u32; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Told {
    pub ident: u64,
    /// For each frame: file, name, line, last instruction.
    pub frames: Vec<(String, String, Option<u32>, i64)>,
}

/// The frames that we read of a thread, without those that are still being made.
pub fn seen(memory: &ProcessMemory, interpreter: &Interpreter, thread: &Thread) -> Told {
    let walk = walk_thread(memory, interpreter, thread.state);
    assert_eq!(walk.end, End::Outermost);
    let frames = walk
        .frames
        .iter()
        .filter_map(|frame| {
            let code = interpreter.code(memory, frame.code).unwrap();
            assert!(code.contains(frame.instruction), "{code:?}");
            code.is_entered(frame.instruction, frame.owner).then(|| {
                (
                    code.file_name.text.clone(),
                    code.name.text.clone(),
                    code.line(frame.instruction),
                    code.last_instruction(frame.instruction),
                )
            })
        })
        .collect();
    Told {
        ident: thread.fsbase,
        frames,
    }
}

/// Threads wait in all kinds of calls: our frames equal those that Python itself reports.
pub fn stacks(python: &Python) {
    stacks_of(python, python.run(AGENT, &[]));
}

/// The same for a program that was started in another way.
pub fn stacks_of(python: &Python, mut program: Program) -> Interpreter {
    let hello: Hello = program.line();
    all_at_rest(python, &mut program, hello.expected);
    let interpreter = find(hello.pid).unwrap();
    describes(&interpreter, &hello);
    let memory = ProcessMemory::open(hello.pid).unwrap();
    let begun = Instant::now();
    loop {
        let differences = compare(&mut program, &memory, &interpreter);
        // The last threads may be about to wait: already on the right line, but not yet at the right instruction.
        if differences.is_empty() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{python:?}: {differences:#?}");
    }
    slots(hello.pid, &memory, &interpreter, hello.expected);
    interpreter
}

/// A command that runs its arguments as a program, with a library preloaded.
pub fn preloaded(python: &Python, library: &Path) -> Command {
    let mut word = OsString::from("LD_PRELOAD=");
    word.push(library);
    let mut command = python.command_of("env".as_ref());
    command.arg(word);
    command
}

/// An interpreter whose pthread key is not among the first 32.
pub fn high_keys(python: &Python) {
    let folder = Folder::new(python);
    folder.cc("keys.so", c::KEYS, &["-shared", "-fPIC", "-nostartfiles"]);
    let mut command = preloaded(python, &folder.there("keys.so"));
    command.arg(&python.program).args(["-c", AGENT]);
    let interpreter = stacks_of(python, Program::start(command));
    if interpreter.version.minor < 15 {
        assert!(interpreter.thread_key.unwrap() >= 100);
        assert!(matches!(
            interpreter.thread_state,
            ThreadStateAt::SecondLevel { .. }
        ));
    }
}

fn all_at_rest(python: &Python, program: &mut Program, expected: usize) {
    let begun = Instant::now();
    while program.ask::<Vec<Told>>().len() < expected {
        assert!(
            begun.elapsed() < PATIENCE,
            "{python:?}: threads do not rest"
        );
    }
}

/// Checks the version, and that everything that a tracer needs is there.
fn describes(interpreter: &Interpreter, hello: &Hello) {
    let version = interpreter.version;
    assert_eq!(u32::from(version.minor), hello.version[1]);
    if let Some(micro) = version.micro {
        assert_eq!(u32::from(micro), hello.version[2]);
    } else {
        assert_eq!(interpreter.version_from, VersionFrom::Fit);
    }
    let dealloc = interpreter.code_dealloc.as_ref().unwrap();
    assert_eq!(dealloc.path, interpreter.path);
    let file = std::fs::read(&dealloc.open_path).unwrap();
    let mut code = [0; 16];
    let memory = ProcessMemory::open(hello.pid).unwrap();
    memory.read(dealloc.address, &mut code).unwrap();
    assert_eq!(file[dealloc.file_offset as usize..][..16], code);
}

fn compare(
    program: &mut Program,
    memory: &ProcessMemory,
    interpreter: &Interpreter,
) -> Vec<(Told, Option<Told>)> {
    let told: Vec<Told> = program.ask();
    let ours = threads(memory, interpreter).unwrap();
    told.into_iter()
        .filter_map(|told| {
            let same = ours.iter().find(|thread| thread.fsbase == told.ident);
            let seen = same.map(|thread| seen(memory, interpreter, thread));
            (seen.as_ref() != Some(&told)).then_some((told, seen))
        })
        .collect()
}

/// Checks that the slot of every thread holds its state, and that the thread's number belongs to the process.
fn slots(pid: u32, memory: &ProcessMemory, interpreter: &Interpreter, expected: usize) {
    let ours = threads(memory, interpreter).unwrap();
    assert!(ours.len() > expected);
    assert!(
        interpreter.proof.slots >= expected,
        "{:?}",
        interpreter.proof
    );
    for thread in &ours {
        let state = interpreter.thread_state.read(memory, thread.fsbase);
        assert_eq!(state.unwrap(), Some(thread.state));
        let task = format!("/proc/{pid}/task/{}", thread.tid.unwrap());
        assert!(std::path::Path::new(&task).exists(), "{task}");
    }
    let main = ours.iter().filter(|thread| thread.tid == Some(pid)).count();
    assert_eq!(main, 1);
}

type Listed = (
    u64,
    String,
    String,
    Option<String>,
    i32,
    u64,
    Vec<(u64, i64)>,
);

/// Checks the line of every instruction of thousands of functions against what Python says.
pub fn lines(python: &Python, limit: usize) {
    let mut program = python.run(CODES, &[&limit.to_string()]);
    let mut listed = Vec::new();
    while let Some(code) = program.line::<Option<Listed>>() {
        listed.push(code);
    }
    assert!(listed.len() >= limit, "{}", listed.len());
    let interpreter = find(program.pid()).unwrap();
    let memory = ProcessMemory::open(program.pid()).unwrap();
    let mut instructions = 0;
    for code in &listed {
        instructions += check_code(&memory, &interpreter, code);
    }
    assert!(instructions > 20 * listed.len());
    eprintln!(
        "{}: {} functions, {instructions} instructions",
        interpreter.version,
        listed.len()
    );
}

fn check_code(memory: &ProcessMemory, interpreter: &Interpreter, listed: &Listed) -> usize {
    let (address, file, name, qualified, first_line, length, changes) = listed;
    let code = interpreter.code(memory, *address).unwrap();
    assert_eq!((&code.file_name.text, &code.name.text), (file, name));
    assert_eq!(code.first_line, *first_line);
    assert_eq!(
        code.qualified_name.as_ref().map(|t| &t.text),
        qualified.as_ref()
    );
    if let Some(ours) = code.length {
        assert_eq!(ours, *length);
    }
    let raw = Captured::new(memory, interpreter, *address);
    let (whole, cut) = (
        raw.decode(interpreter, usize::MAX),
        raw.decode(interpreter, 60),
    );
    assert_eq!(whole, code);
    assert!(code.file_name.text.starts_with(&cut.file_name.text));
    let mut ranges = code.line_ranges().filter(|range| range.end > range.start);
    let mut range = ranges.next().unwrap();
    let mut expected = None;
    let mut changes = changes.iter().peekable();
    for at in (0..*length).step_by(2) {
        while range.end <= at {
            range = ranges.next().unwrap();
        }
        let change = changes.next_if(|(start, _)| *start == at);
        if let Some((_, line)) = change {
            expected = u32::try_from(*line).ok();
        }
        assert_eq!(range.line, expected, "{name} of {file} at {at}");
        if change.is_some() {
            // The instruction in the form in which frames of this version store it.
            let instruction = match interpreter.version.minor {
                9 => at,
                10 => at / 2,
                _ => code.first_instruction + at,
            };
            assert_eq!(code.line(instruction), expected, "{name} of {file} at {at}");
            let of_cut = cut.line(instruction);
            assert!(of_cut == expected || of_cut.is_none() && cut.lines_truncated);
        }
    }
    assert_eq!(code.line(-1_i64 as u64), u32::try_from(*first_line).ok());
    (*length / 2) as usize
}

/// The bytes that a probe would capture of a code object.
struct Captured {
    address: u64,
    object: Vec<u8>,
    file_name: Vec<u8>,
    name: Vec<u8>,
    qualified_name: Vec<u8>,
    lines: Vec<u8>,
}

impl Captured {
    fn new(memory: &ProcessMemory, interpreter: &Interpreter, address: u64) -> Captured {
        let layout = &interpreter.layout;
        let mut object = vec![0; layout.code.size as usize];
        memory.read(address, &mut object).unwrap();
        let pointer = |at: u32| match at {
            u32::MAX => 0,
            at => u64::from_le_bytes(object[at as usize..][..8].try_into().unwrap()),
        };
        // The memory after an object may not be mapped.
        let take = |at: u64, most: usize| {
            let mut taken = vec![0; most];
            if memory.read(at, &mut taken).is_err() {
                taken.truncate(4096 - at as usize % 4096);
                let _ = memory.read(at, &mut taken);
            }
            taken
        };
        let length = memory.read_u64(pointer(layout.code.lines) + u64::from(layout.bytes.length));
        Captured {
            address,
            file_name: take(pointer(layout.code.file_name), 1024),
            name: take(pointer(layout.code.name), 1024),
            qualified_name: take(pointer(layout.code.qualified_name), 1024),
            lines: take(
                pointer(layout.code.lines),
                layout.bytes.data as usize + length.unwrap() as usize,
            ),
            object,
        }
    }

    fn decode(&self, interpreter: &Interpreter, most: usize) -> Code {
        fn cut(bytes: &[u8], most: usize) -> &[u8] {
            &bytes[..bytes.len().min(most)]
        }
        let raw = RawCode {
            address: self.address,
            object: &self.object,
            file_name: cut(&self.file_name, most),
            name: cut(&self.name, most),
            qualified_name: Some(cut(&self.qualified_name, most)),
            lines: cut(&self.lines, most),
        };
        Code::decode(&interpreter.layout, &raw).unwrap()
    }
}

/// The interpreter of a process that never waits is found nevertheless, and reading its memory never panics.
pub fn busy(python: &Python) {
    busy_as(python, &[]);
    busy_as(python, &["alone"]);
}

fn busy_as(python: &Python, arguments: &[&str]) {
    let mut program = python.run(BUSY, arguments);
    let hello: HashMap<String, u32> = program.line();
    let interpreter = find(hello["pid"]).unwrap();
    assert!(interpreter.proof.slots > 0);
    let memory = ProcessMemory::open(hello["pid"]).unwrap();
    let begun = Instant::now();
    let (mut frames, mut named) = (0, 0);
    while named < 2000 {
        // Lists and frames change while they are read, so errors are allowed; panics are not.
        for thread in threads(&memory, &interpreter).unwrap_or_default() {
            for frame in walk_thread(&memory, &interpreter, thread.state).frames {
                frames += 1;
                if let Ok(code) = interpreter.code(&memory, frame.code) {
                    let _ = code.line(frame.instruction);
                    named += 1;
                }
            }
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{python:?}: {named} of {frames}"
        );
    }
}

/// A process with hundreds of threads is found within the reads that a search may make.
pub fn many_threads(python: &Python) {
    const THREADS: usize = 500;
    const SOURCE: &str = "\
import os, sys, threading
def deep(n):
    if n: return deep(n - 1)
    os.read(pipe, 1)
pipe, _ = os.pipe()
threading.stack_size(1 << 18)
for _ in range(int(sys.argv[1])): threading.Thread(target=deep, args=(6,), daemon=True).start()
print(1, flush=True)
sys.stdin.read()
";
    let mut program = python.run(SOURCE, &[&THREADS.to_string()]);
    let _: u32 = program.line();
    let interpreter = find(program.pid()).unwrap();
    assert!(interpreter.proof.threads > THREADS);
}

/// The frames without their last instruction, because a thread may be reported shortly before it waits on its line.
fn lines_only(told: &Told) -> Vec<(&str, &str, Option<u32>)> {
    let frames = told.frames.iter();
    frames
        .map(|(file, name, line, _)| (file.as_str(), name.as_str(), *line))
        .collect()
}

/// A frame that is still being made is not shown, just as Python does not show it.
pub fn prologue(python: &Python) -> Interpreter {
    #[derive(Deserialize)]
    struct Stopped {
        pid: u32,
        #[serde(flatten)]
        told: Told,
    }
    let mut program = python.run(PROLOGUE, &[]);
    let stopped: Stopped = program.line();
    let interpreter = find(stopped.pid).unwrap();
    let memory = ProcessMemory::open(stopped.pid).unwrap();
    let ours = threads(&memory, &interpreter).unwrap();
    let thread = ours
        .iter()
        .find(|thread| thread.fsbase == stopped.told.ident)
        .unwrap();
    let ours = seen(&memory, &interpreter, thread);
    assert_eq!(lines_only(&ours), lines_only(&stopped.told));
    let walk = walk_thread(&memory, &interpreter, thread.state);
    if interpreter.version.minor == 11 {
        // Shows that the test is effective in this version: there was such a frame.
        assert_eq!(walk.frames.len(), ours.frames.len() + 1);
    }
    interpreter
}

/// In a process that was forked by a thread of another one, we find the state of that thread.
pub fn forked(python: &Python) {
    #[derive(Deserialize)]
    struct Child {
        pid: u32,
        #[serde(flatten)]
        told: Told,
    }
    let mut program = python.run(FORKED, &[]);
    let child: Child = program.line();
    assert_ne!(child.pid, program.pid());
    let interpreter = find(child.pid).unwrap();
    let memory = ProcessMemory::open(child.pid).unwrap();
    let own = threads(&memory, &interpreter).unwrap();
    let own: Vec<&Thread> = own
        .iter()
        .filter(|thread| thread.fsbase == child.told.ident)
        .collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].tid, Some(child.pid));
    let slot = interpreter.thread_state.read(&memory, own[0].fsbase);
    assert_eq!(slot.unwrap(), Some(own[0].state));
    // The child may still be in the function that reports.
    let begun = Instant::now();
    loop {
        let walk = walk_thread(&memory, &interpreter, own[0].state);
        if walk.frames.len() <= child.told.frames.len() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{walk:?}");
    }
    let ours = seen(&memory, &interpreter, own[0]);
    assert_eq!(lines_only(&ours), lines_only(&child.told));
}

/// A thread runs in a subinterpreter: from 3.12 on its slot leads to the subinterpreter's state; before that a limit is
/// reported.
pub fn subinterpreters(python: &Python) {
    #[derive(Deserialize)]
    struct Inside {
        pid: u32,
        ident: u64,
    }
    let mut program = python.run(SUB, &[]);
    let inside: Inside = program.line();
    let interpreter = find(inside.pid).unwrap();
    assert_eq!(interpreter.proof.interpreters, 2);
    let memory = ProcessMemory::open(inside.pid).unwrap();
    let states: Vec<Thread> = threads(&memory, &interpreter)
        .unwrap()
        .into_iter()
        .filter(|thread| thread.fsbase == inside.ident)
        .collect();
    let slot = interpreter
        .thread_state
        .read(&memory, inside.ident)
        .unwrap();
    let own = states.iter().find(|t| Some(t.state) == slot).unwrap();
    let names = |thread| -> Vec<String> {
        let frames = seen(&memory, &interpreter, thread).frames;
        frames.into_iter().map(|(_, name, _, _)| name).collect()
    };
    if interpreter.version.minor >= 12 {
        assert_eq!(names(own), ["inside", "<module>"]);
        assert!(interpreter.limits().is_empty());
    } else {
        assert_eq!(names(own)[0], "outside");
        assert_eq!(interpreter.limits().len(), 1);
    }
}

/// Names that are longer than the limit are truncated, and marked as truncated.
pub fn long_names(python: &Python) {
    let mut program = python.run(AGENT, &[]);
    let hello: Hello = program.line();
    all_at_rest(python, &mut program, hello.expected);
    let interpreter = find(hello.pid).unwrap();
    let memory = ProcessMemory::open(hello.pid).unwrap();
    let cut = threads(&memory, &interpreter)
        .unwrap()
        .iter()
        .flat_map(|thread| walk_thread(&memory, &interpreter, thread.state).frames)
        .map(|frame| read_code(&memory, &interpreter.layout, frame.code).unwrap())
        .filter(|code| code.name.truncated || code.file_name.truncated)
        .map(|code| (code.name, code.file_name))
        .collect::<Vec<_>>();
    let text = |letter: &str, truncated| Text {
        text: letter.repeat(MAX_TEXT),
        truncated,
    };
    assert!(cut.contains(&(text("n", true), text("x", true))), "{cut:?}");
}
