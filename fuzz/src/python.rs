//! CPython's structures, read from the memory of a process.

use crate::Target;
use crate::memory::{self, Lying, Made};
use crate::pieces::Pieces;
use memscope_python::layout::{KIND_CURRENT_FRAME, NONE};
use memscope_python::{Layout, ThreadStateAt, read_code, read_string, states, table, walk};
use std::hint::black_box;

const BASE: u64 = 0x10_0000;
const STATE: u64 = BASE + 0x1000;
const CFRAME: u64 = BASE + 0x2000;
const INTERPRETER: u64 = BASE + 0x8000;
const FRAMES: u64 = BASE + 0x4_0000;
const CODE: u64 = BASE + 0x6_0000;

pub(crate) const TARGET: Target = Target {
    name: "python",
    reads: "threads, frames, code objects and tables of lines of CPython in memory that lies and changes",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 256,
    longest: 1 << 13,
};

/// Layouts of every kind.
fn layouts() -> Vec<Layout> {
    let mut all: Vec<Layout> = (9..=12).filter_map(table).collect();
    if let Some(newest) = all.last().copied() {
        let mut newer = newest;
        newer.kind = KIND_CURRENT_FRAME;
        newer.frame.code_tags = 3;
        all.push(newer);
    }
    all
}

/// The first byte says which layout the interpreter has, the rest is the memory.
fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    let layouts = layouts();
    let layout = layouts[usize::from(pieces.byte()) % layouts.len()];
    let instruction = pieces.u64();
    let memory = Lying::new(BASE, &mut pieces);
    let _ = black_box(states(&memory, &layout, BASE));
    let walked = walk(&memory, &layout, STATE);
    for frame in walked.frames.iter().take(16) {
        let Ok(code) = read_code(&memory, &layout, frame.code) else {
            continue;
        };
        for instruction in [frame.instruction, instruction] {
            black_box(code.line(instruction));
            black_box(code.contains(instruction));
            black_box(code.is_entered(instruction, frame.owner));
        }
        // A table that is read to its end has at most as many ranges as bytes, and one that is open.
        let ranges = code.line_ranges().count();
        assert!(
            ranges <= code.lines.len() + 1,
            "{ranges} ranges of {} bytes",
            code.lines.len()
        );
    }
    let _ = black_box(read_string(&memory, &layout, STATE));
    for way in [
        ThreadStateAt::Slot { offset: -8 },
        ThreadStateAt::SecondLevel {
            table: 16,
            offset: 8,
        },
        ThreadStateAt::Dynamic {
            vector: 8,
            entry: 16,
            offset: instruction,
        },
    ] {
        let _ = black_box(way.read(&memory, STATE));
    }
}

/// A string object of ASCII.
fn text(memory: &mut Made, layout: &Layout, at: u64, text: &str) {
    let shape = &layout.text;
    memory.word(at + u64::from(shape.length), text.len() as u64);
    memory.put(at + u64::from(shape.state), &0x64_u32.to_le_bytes());
    // Behind the header of a compact string of ASCII.
    let header = if layout.minor >= 12 { 40 } else { 48 };
    memory.put(at + header, text.as_bytes());
}

/// A thread with three frames of one function.
fn made(layout: &Layout) -> Made {
    let mut memory = Made::new(BASE);
    let word = u64::from;
    memory.word(BASE + word(layout.runtime.interpreters), INTERPRETER);
    memory.word(INTERPRETER + word(layout.runtime.threads), STATE);
    let first = if layout.thread.cframe_frame == NONE || layout.kind == KIND_CURRENT_FRAME {
        STATE + word(layout.thread.frame)
    } else {
        memory.word(STATE + word(layout.thread.frame), CFRAME);
        CFRAME + word(layout.thread.cframe_frame)
    };
    memory.word(first, FRAMES);
    for number in 0..3 {
        let frame = FRAMES + 256 * number;
        let next = if number == 2 { 0 } else { frame + 256 };
        memory.word(frame + word(layout.frame.previous), next);
        memory.word(frame + word(layout.frame.code), CODE);
        memory.word(frame + word(layout.frame.instruction), number * 4);
    }
    let code = &layout.code;
    for (at, object, of) in [
        (code.file_name, CODE + 0x1000, "train.py"),
        (code.name, CODE + 0x2000, "step"),
        (code.qualified_name, CODE + 0x3000, "Trainer.step"),
    ] {
        if at != NONE {
            memory.word(CODE + word(at), object);
            text(&mut memory, layout, object, of);
        }
    }
    let lines = CODE + 0x4000;
    memory.word(CODE + word(code.lines), lines);
    memory.put(CODE + word(code.first_line), &7_i32.to_le_bytes());
    let table = [0x80, 0, 0xd8, 4, 5, 0x84, 3, 0xf0, 2, 1, 1, 0xe8, 4, 3];
    memory.word(lines + word(layout.bytes.length), table.len() as u64);
    memory.put(lines + word(layout.bytes.data), &table);
    memory
}

fn seeds() -> Vec<Vec<u8>> {
    let of = |(number, layout): (u8, &Layout)| {
        let mut seed = vec![number];
        seed.extend_from_slice(&4_u64.to_le_bytes());
        memory::write(&made(layout).bytes, &mut seed);
        seed
    };
    (0..).zip(&layouts()).map(of).collect()
}
