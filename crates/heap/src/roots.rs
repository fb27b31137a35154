//! Where names begin: the modules and the frames of an interpreter; and the lists of all objects that the garbage collector knows.

use std::io;
use std::time::Duration;

use memscope_memory::Memory;
use memscope_python::{RawFrame, State};

use crate::graph::MOST_OBJECTS;
use crate::heap::{Heap, Minor};
use crate::objects::{Found, Label, Reference, What};
use crate::shapes::Kind;

/// Bytes of an interpreter's state in which its modules and its lists of objects are looked for.
const STATE: u64 = 1 << 19;
/// Heads of lists begin at multiples of so many bytes: from 3.13.4 on not at whole words everywhere.
const HEADS: usize = 4;
/// Bytes of what stands before an object that the collector knows.
const HEADER: u64 = 16;
/// A dictionary of modules has at least so many: an interpreter starts with more.
const FEWEST_MODULES: u64 = 8;
/// How far away from a name a search begins: the program's own file, its other modules, the outermost frame of the first thread and of others,
/// each frame within these, and the modules of libraries. A way from a module is there however far the program has come just now; a way
/// from a frame goes with the frame, that from the outermost ones last.
const MAIN: u32 = 0;
const MODULES: u32 = 2;
const FRAMES: u32 = 4;
const FRAMES_OF_OTHERS: u32 = 40;
const FRAME: u32 = 4;
const LIBRARIES: u32 = 64;
/// Frames from so far inside on begin equally far away.
const DEEPEST_FRAME: u32 = 200;
/// How often the list of threads is read.
const READINGS_OF_STATES: u32 = 5;
/// How long a reading waits in all for the first thread, if its frames do not end where threads begin. The first wait is the shortest, and each
/// further one is twice as long as the one before.
const MOST_WAITED: Duration = Duration::from_millis(128);
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// The outermost functions of threads: a program's file, what `python -m` begins with, and what `threading` does.
const BEGINNINGS: [&str; 4] = [
    "<module>",
    "_run_module_as_main",
    "_bootstrap",
    "_bootstrap_inner",
];
/// Parts of the paths of files that belong to libraries.
const PATHS_OF_LIBRARIES: [&str; 4] = [
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/lib64/python",
];

/// The references by which a search begins, with their distances.
pub(crate) type Seeds = Vec<(Reference, u32)>;

/// Objects that the garbage collector knows.
#[derive(Default)]
pub(crate) struct Tracked {
    pub objects: Vec<u64>,
    /// The tensors among them.
    pub tensors: Vec<u64>,
}

impl<M: Memory + ?Sized> Heap<'_, M> {
    /// The interpreters and the states of their threads. C++ that calls Python makes a state for its thread each time, and frees it again, so
    /// that a list may end at one that is just gone. The first thread's is the last of a list, and the same in most of several readings.
    fn states(&self, memory: &M, runtime: u64) -> io::Result<Vec<State>> {
        let read = || memscope_python::states(memory, &self.layout, runtime);
        let mut all = Vec::new();
        let mut failed = None;
        for _ in 0..READINGS_OF_STATES {
            match read() {
                Ok(states) => all.push(states),
                Err(error) => failed = Some(error),
            }
        }
        let last = |states: &Vec<State>| states.last().map(|state| state.state);
        let votes = |states: &Vec<State>| {
            let same = all.iter().filter(|other| last(other) == last(states));
            (same.count(), states.len())
        };
        match (all.iter().max_by_key(|states| votes(states)), failed) {
            (Some(states), _) => Ok(states.clone()),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// The addresses of the states of all interpreters, as the threads name them.
    pub fn interpreters(&self, memory: &M, runtime: u64) -> io::Result<Vec<u64>> {
        let mut all: Vec<u64> = self
            .states(memory, runtime)?
            .iter()
            .map(|state| state.interpreter)
            .collect();
        all.dedup();
        Ok(all)
    }

    /// The modules of these interpreters, and the local variables of all frames.
    pub fn seeds(&mut self, memory: &M, runtime: u64, interpreters: &[u64]) -> io::Result<Seeds> {
        let mut seeds = Seeds::new();
        self.walked.clear();
        for interpreter in interpreters {
            self.modules(*interpreter, &mut seeds);
        }
        let mut found = Found::new();
        let mut left = MOST_WAITED;
        let states = self.states(memory, runtime)?;
        for (number, state) in states.iter().enumerate() {
            // A new thread's state comes before those that are there.
            let is_first = states
                .get(number + 1)
                .is_none_or(|next| next.interpreter != state.interpreter);
            let begin = if is_first { FRAMES } else { FRAMES_OF_OTHERS };
            let frames = self.frames(memory, state.state, is_first, &mut left);
            for (inside, frame) in (0..).zip(frames.iter().rev()) {
                found.clear();
                if !self.walked.insert(frame.frame) {
                    continue;
                }
                if self.minor < Minor(11) {
                    if let Some(number) = self.type_of(frame.frame)
                        && self.types[number as usize].kind == Kind::Frame
                    {
                        self.locals_of_frame_object(frame.frame, number, &mut found);
                    }
                } else {
                    self.locals_of_frame(frame.frame, &mut found);
                }
                let distance = begin + FRAME * DEEPEST_FRAME.min(inside);
                seeds.extend(found.iter().map(|local| (*local, distance)));
            }
        }
        Ok(seeds)
    }

    /// The frames of a thread, innermost first. The thread goes on meanwhile, or waits in the middle of a call: its innermost frame may lead
    /// nowhere just then. So of the first thread a walk is believed that ends where threads begin; else it is tried again a little later, and
    /// the longest counts.
    fn frames(
        &mut self,
        memory: &M,
        state: u64,
        is_first: bool,
        left: &mut Duration,
    ) -> Vec<RawFrame> {
        let mut longest: Vec<RawFrame> = Vec::new();
        let mut wait = FIRST_WAIT;
        loop {
            let now = memscope_python::walk(memory, &self.layout, state).frames;
            let outermost = now.last().map(|frame| self.layout.code_address(frame.code));
            if now.len() > longest.len() {
                longest = now;
            }
            match outermost {
                None => {}
                Some(code) => {
                    let name = self.code(code).map(|code| code.name.text);
                    let is_begin = |name: String| BEGINNINGS.contains(&name.as_str());
                    if name.is_some_and(is_begin) {
                        break;
                    }
                }
            }
            // Autograd's threads call Python from C++, and begin with any function.
            let rest = left.checked_sub(wait).filter(|_| is_first);
            let Some(rest) = rest else {
                break;
            };
            *left = rest;
            std::thread::sleep(wait);
            wait *= 2;
        }
        longest
    }

    /// An interpreter's modules are the dictionary that has a module `__main__`.
    fn modules(&mut self, interpreter: u64, seeds: &mut Seeds) {
        let mut found = Found::new();
        for at in (0..STATE).step_by(8) {
            let Some(word) = self.pages.word(interpreter + at) else {
                return;
            };
            let Some(number) = self.type_of(word) else {
                continue;
            };
            if self.types[number as usize].kind != Kind::Dict
                || self.length(word, Kind::Dict).unwrap_or(0) < FEWEST_MODULES
            {
                continue;
            }
            found.clear();
            self.references(word, number, &mut found);
            let mut made = Seeds::new();
            let mut has_main = false;
            for reference in &found {
                let Label::Key(key) = reference.label else {
                    continue;
                };
                let is_module = self
                    .type_of(reference.target)
                    .is_some_and(|number| self.types[number as usize].kind == Kind::Module);
                let is_main = is_module && self.string(key).as_deref() == Some("__main__");
                has_main |= is_main;
                let seed = Reference {
                    label: Label::Module(key),
                    target: reference.target,
                    what: What::Object,
                };
                let distance = match is_main {
                    true => MAIN,
                    false if is_module && self.is_the_programs(reference.target) => MODULES,
                    false => LIBRARIES,
                };
                made.push((seed, distance));
            }
            if has_main {
                seeds.append(&mut made);
                return;
            }
        }
    }

    /// Whether a module is the program's own: it has a file, which does not lie where libraries do.
    fn is_the_programs(&mut self, module: u64) -> bool {
        if let Some(known) = self.own_modules.get(&module) {
            return *known;
        }
        let is_own = self
            .file_of_module(module)
            .is_some_and(|file| !PATHS_OF_LIBRARIES.iter().any(|part| file.contains(part)));
        self.own_modules.insert(module, is_own);
        is_own
    }

    /// All objects that the collector knows, as far as its lists can be followed while they change. An object that is moved to another list
    /// meanwhile may be told twice.
    pub fn tracked(&mut self, interpreters: &[u64]) -> Tracked {
        let mut tracked = Tracked::default();
        for interpreter in interpreters {
            for at in (0..STATE).step_by(HEADS) {
                let head = interpreter + at;
                if self.pages.word(head).is_none() {
                    break;
                }
                if self.is_head(head) {
                    let last = self.follow(head, 0, None, &mut tracked);
                    if last.is_some() {
                        // The list was changed while it was read: the rest of it is found from its other end.
                        self.follow(head, 8, last, &mut tracked);
                    }
                }
            }
        }
        tracked
    }

    /// The next or the previous header of a list; the lowest bits are the collector's own.
    fn link(&mut self, header: u64, at: u64) -> Option<u64> {
        let word = self.pages.word(header + at)? & !3;
        (word >= 1 << 12 && word >> 48 == 0).then_some(word)
    }

    fn is_head(&mut self, head: u64) -> bool {
        let (Some(next), Some(previous)) = (self.link(head, 0), self.link(head, 8)) else {
            return false;
        };
        next != head
            && previous != head
            && (self.link(next, 8) == Some(head) || self.link(previous, 0) == Some(head))
            && self.type_of(next + HEADER).is_some()
            && self.type_of(previous + HEADER).is_some()
    }

    /// Follows a list from its head in one direction, to its end or to `stop`. Returns the last header if the end was not reached.
    fn follow(
        &mut self,
        head: u64,
        at: u64,
        stop: Option<u64>,
        tracked: &mut Tracked,
    ) -> Option<u64> {
        let mut last = head;
        // A list that was changed may lead into a circle: one of these headers is met again then (Brent).
        let (mut met, mut steps, mut next_at) = (head, 0_u64, 2_u64);
        loop {
            let Some(now) = self.link(last, at) else {
                return Some(last);
            };
            if now == head || Some(now) == stop {
                return None;
            }
            let kind = self.type_of(now + HEADER);
            let is_over = tracked.objects.len() >= MOST_OBJECTS || self.pages.is_spent();
            let (Some(kind), false, false) = (kind, is_over, now == met) else {
                return Some(last);
            };
            tracked.objects.push(now + HEADER);
            if self.types[kind as usize].kind == Kind::Tensor {
                tracked.tensors.push(now + HEADER);
            }
            steps += 1;
            if steps == next_at {
                (met, next_at) = (now, next_at * 2);
            }
            last = now;
        }
    }
}
