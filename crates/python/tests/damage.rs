//! Damaged, hostile and changing memory: whatever it contains, reading it ends, within the limits, and with a result.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::{Met, constant};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use memscope_memory::Memory;
use memscope_python::layout::KIND_CURRENT_FRAME;
use memscope_python::{
    Code, End, Interpreter, Layout, MAX_FRAMES, MAX_LINES, MAX_TEXT, Proof, Pthread, RawCode,
    ThreadStateAt, Version, VersionFrom, decode, read_code, table, threads, walk_thread,
};
use proptest::prelude::*;

/// Address at which the memory of these tests begins.
const BASE: u64 = 0x10_0000;

/// One piece of memory at [`BASE`]; nothing else can be read.
#[derive(Debug)]
struct Piece(Vec<u8>);

impl Memory for Piece {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = address
            .checked_sub(BASE)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.0.get(at..at.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::InvalidInput)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// Memory in which some words are set. All others, from [`BASE`] on, are zero.
#[derive(Default)]
struct Words(HashMap<u64, u64>);

impl Words {
    fn set(&mut self, address: u64, offset: u32, value: u64) {
        self.0.insert(address + u64::from(offset), value);
    }
}

impl Memory for Words {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if address < BASE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (i, byte) in buffer.iter_mut().enumerate() {
            let at = address + i as u64;
            let word = self.0.get(&(at & !7)).copied().unwrap_or(0);
            *byte = word.to_le_bytes()[(at & 7) as usize];
        }
        Ok(())
    }
}

/// Layouts of every kind.
fn layouts() -> Vec<Layout> {
    let mut all: Vec<Layout> = (9..=12).map(|minor| table(minor).unwrap()).collect();
    let mut newest = all[3];
    newest.kind = KIND_CURRENT_FRAME;
    newest.frame.code_tags = 3;
    all.push(newest);
    all
}

fn interpreter(layout: Layout) -> Interpreter {
    Interpreter {
        version: Version::minor_only(layout.minor as u8),
        version_from: VersionFrom::Fit,
        path: "python".into(),
        open_path: PathBuf::new(),
        bias: 0,
        runtime: BASE,
        layout,
        thread_state: ThreadStateAt::Slot { offset: 0 },
        thread_key: None,
        pthread: Pthread::default(),
        code_type: BASE,
        code_dealloc: None,
        proof: Proof::default(),
    }
}

const STATE: u64 = BASE + 0x1000;
const CFRAME: u64 = BASE + 0x2000;
const FRAMES: u64 = BASE + 0x10_0000;

/// A thread state with this many frames, 256 bytes apart; the outermost one is called by `last`.
fn stack(layout: &Layout, count: u64, last: u64) -> Words {
    let mut words = Words::default();
    let first = if layout.thread.cframe_frame == u32::MAX || layout.kind == KIND_CURRENT_FRAME {
        STATE + u64::from(layout.thread.frame)
    } else {
        words.set(STATE, layout.thread.frame, CFRAME);
        CFRAME + u64::from(layout.thread.cframe_frame)
    };
    words.0.insert(first, FRAMES);
    for i in 0..count {
        let frame = FRAMES + 256 * i;
        let next = if i + 1 == count { last } else { frame + 256 };
        words.set(frame, layout.frame.previous, next);
        words.set(frame, layout.frame.code, BASE + i * 16);
    }
    words
}

#[test]
fn walks_end_and_say_how() {
    for layout in layouts() {
        let interpreter = interpreter(layout);
        let walk = |words: &Words| walk_thread(words, &interpreter, STATE);
        let whole = walk(&stack(&layout, 300, 0));
        assert_eq!((whole.frames.len(), whole.end), (300, End::Outermost));
        assert_eq!(whole.frames[7].code, BASE + 7 * 16);
        let cycle = walk(&stack(&layout, 300, FRAMES + 256 * 100));
        assert_eq!((cycle.frames.len(), cycle.end), (300, End::Cycle));
        let own = walk(&stack(&layout, 1, FRAMES));
        assert_eq!((own.frames.len(), own.end), (1, End::Cycle));
        let hole = walk(&stack(&layout, 10, 4096));
        assert_eq!(
            (hole.frames.len(), hole.end),
            (10, End::Unreadable { address: 4096 })
        );
        let deep = walk(&stack(&layout, 5000, 0));
        assert_eq!((deep.frames.len(), deep.end), (MAX_FRAMES, End::Limit));
        let none = walk(&stack(&layout, 0, 0));
        // The first frame is all zero: it has no caller and no code.
        assert_eq!((none.frames.len(), none.end), (1, End::Outermost));
        let nowhere = walk_thread(&Words::default(), &interpreter, 64);
        assert!(matches!(nowhere.end, End::Unreadable { .. }));
    }
    Met {
        what: "Python frames of a stack that is read from outside",
        most: constant("crates/python/src/walk.rs", "MAX_FRAMES"),
        beyond: "the walk ends there",
        told: "its end, `Limit`",
        test: "walks_end_and_say_how",
    }
    .is_told();
}

#[test]
fn frames_of_the_interpreter_itself_are_left_out() {
    let layout = table(12).unwrap();
    let mut words = stack(&layout, 5, 0);
    let internal = |frame| (frame, layout.frame.owner & !7);
    let shift = 8 * (layout.frame.owner & 7);
    for (frame, owner) in [(1, 3_u64), (2, 1), (3, 4)] {
        let (frame, at) = internal(FRAMES + 256 * frame);
        words.set(frame, at, owner << shift);
    }
    let walk = walk_thread(&words, &interpreter(layout), STATE);
    let seen: Vec<(u64, u8)> = walk.frames.iter().map(|f| (f.frame, f.owner)).collect();
    assert_eq!(seen, [(FRAMES, 0), (FRAMES + 512, 1), (FRAMES + 1024, 0)]);
}

#[test]
fn tags_of_code_words_are_taken_off() {
    let layout = layouts().pop().unwrap();
    let mut words = stack(&layout, 1, 0);
    words.set(FRAMES, layout.frame.code, 0xabc0 | 1);
    let walk = walk_thread(&words, &interpreter(layout), STATE);
    assert_eq!(walk.frames[0].code, 0xabc0);
}

#[test]
fn lists_without_an_end_are_refused() {
    for layout in layouts() {
        let mut words = Words::default();
        let (one, two) = (BASE + 0x5_0000, BASE + 0x6_0000);
        words.set(BASE, layout.runtime.interpreters, one);
        words.set(one, layout.runtime.threads, two);
        let interpreter = interpreter(layout);
        let count = |words: &Words| threads(words, &interpreter).map(|list| list.len());
        assert_eq!(count(&words).unwrap(), 1);
        words.set(two, layout.thread.next, two);
        assert!(count(&words).is_err());
        words.set(two, layout.thread.next, 0);
        words.set(one, layout.runtime.next, one);
        assert!(count(&words).is_err());
    }
}

/// A piece of random words, many of which are pointers into the piece, so that structures lead somewhere.
fn piece(seed: u64) -> Piece {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let words = 1 + next() % (1 << 14);
    let bytes = (0..words).flat_map(|_| {
        let word = match next() % 10 {
            0..4 => BASE + next() % words * 8,
            4 | 5 => next() % 100,
            6 => 0,
            7 => next(),
            // Valid states of strings.
            8 => 0x64,
            _ => 0x28,
        };
        word.to_le_bytes()
    });
    Piece(bytes.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_memory(seed: u64, at in 0_u64..1 << 14) {
        let piece = piece(seed);
        for layout in layouts() {
            let interpreter = interpreter(layout);
            let address = BASE + at * 8;
            let walk = walk_thread(&piece, &interpreter, address);
            prop_assert!(walk.frames.len() <= MAX_FRAMES);
            for frame in walk.frames.iter().take(20) {
                let _ = interpreter.code(&piece, frame.code);
            }
            let _ = threads(&piece, &interpreter);
            if let Ok(code) = read_code(&piece, &layout, address) {
                prop_assert!(code.name.text.chars().count() <= MAX_TEXT);
                prop_assert!(code.lines.len() <= MAX_LINES);
                for instruction in [0, 1, address, u64::MAX, i64::MAX as u64] {
                    let _ = code.line(instruction);
                    let _ = code.contains(instruction);
                    let _ = code.is_entered(instruction, 0);
                }
            }
            for way in [
                ThreadStateAt::Slot { offset: -8 },
                ThreadStateAt::SecondLevel { table: 16, offset: 8 },
                ThreadStateAt::Dynamic { vector: 8, entry: 16, offset: u64::MAX },
            ] {
                let _ = way.read(&piece, address);
            }
        }
    }

    #[test]
    fn any_capture(
        object in proptest::collection::vec(any::<u8>(), 0..260),
        text in proptest::collection::vec(any::<u8>(), 0..200),
        lines in proptest::collection::vec(any::<u8>(), 0..200),
        state in prop_oneof![any::<u32>(), Just(0x64), Just(0x24), Just(0x28), Just(0x30)],
        length in prop_oneof![any::<u64>(), 0_u64..200],
        instruction in any::<u64>(),
    ) {
        let mut text = text;
        if text.len() >= 40 {
            text[16..24].copy_from_slice(&length.to_le_bytes());
            text[32..36].copy_from_slice(&state.to_le_bytes());
        }
        for layout in layouts() {
            let raw = RawCode {
                address: BASE,
                object: &object,
                file_name: &text,
                name: &text,
                qualified_name: Some(&text),
                lines: &lines,
            };
            if let Ok(code) = Code::decode(&layout, &raw) {
                let _ = code.line(instruction);
                prop_assert!(code.lines.len() <= lines.len());
                prop_assert!(code.name.text.len() <= 4 * text.len());
            }
            let _ = decode(&layout, BASE, &object);
        }
    }
}
