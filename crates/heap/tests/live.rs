//! Reads the objects of a real PyTorch on the simulated device, and finds each block where the program says that it put it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use memscope_heap::{Held, Origin, Wanted, read};
use memscope_memory::{Memory, ProcessMemory};
use memscope_tests::{Device, Program, sim_of};
use serde_json::Value;

mod web;

/// What is asked about a process.
fn wanted(pid: u32, blocks: Vec<u64>) -> Wanted {
    let interpreter = memscope_python::find(pid).unwrap();
    Wanted {
        layout: interpreter.layout,
        code_type: interpreter.code_type,
        runtime: interpreter.runtime,
        blocks,
        objects: Vec::new(),
        modules: true,
    }
}

fn start() -> (Program, Value) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/holders.py");
    let mut program = Program::start("holders", sim_of(Device::Cuda).script(&script));
    let told = program.hear();
    (program, told)
}

/// The addresses of the blocks of all cases.
fn blocks(told: &Value) -> Vec<u64> {
    let cases = told["cases"].as_array().unwrap().iter();
    cases.map(|case| case["block"].as_u64().unwrap()).collect()
}

/// Bytes of a piece of memory that is kept.
const PIECE: u64 = 4096;

/// Pieces of a process's memory; `None` where there is none.
type Pieces = HashMap<u64, Option<Vec<u8>>>;

/// Fills the buffer from pieces.
fn fill(
    address: u64,
    buffer: &mut [u8],
    mut piece: impl FnMut(u64, usize, &mut [u8]) -> bool,
) -> io::Result<()> {
    let mut at = address;
    let mut rest = buffer;
    while !rest.is_empty() {
        let room = (PIECE - at % PIECE).min(rest.len() as u64) as usize;
        let (now, later) = rest.split_at_mut(room);
        if !piece(at / PIECE, (at % PIECE) as usize, now) {
            return Err(io::ErrorKind::NotFound.into());
        }
        rest = later;
        at = at.wrapping_add(room as u64);
    }
    Ok(())
}

fn copy(pieces: &Pieces, number: u64, from: usize, into: &mut [u8]) -> bool {
    let Some(Some(piece)) = pieces.get(&number) else {
        return false;
    };
    into.copy_from_slice(&piece[from..from + into.len()]);
    true
}

/// A process's memory, of which all is kept that is read.
struct Keeping {
    process: ProcessMemory,
    pieces: RefCell<Pieces>,
}

impl Memory for Keeping {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        fill(address, buffer, |number, from, into| {
            let mut pieces = self.pieces.borrow_mut();
            pieces.entry(number).or_insert_with(|| {
                let mut bytes = vec![0; PIECE as usize];
                let read = self.process.read(number * PIECE, &mut bytes);
                read.ok().map(|()| bytes)
            });
            copy(&pieces, number, from, into)
        })
    }
}

/// Memory of which some words are others: small numbers, or addresses of something else.
struct Damaged<'a> {
    pieces: &'a Pieces,
    addresses: &'a [u64],
    seed: u64,
    one_in: u64,
}

impl Memory for Damaged<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        fill(address, buffer, |number, from, into| {
            if !copy(self.pieces, number, from, into) {
                return false;
            }
            if from.is_multiple_of(8) {
                let first = number * PIECE / 8 + from as u64 / 8;
                for (word, place) in into.chunks_exact_mut(8).zip(first..) {
                    let dice = mixed(place ^ self.seed);
                    if dice.is_multiple_of(self.one_in) {
                        let other = match dice >> 32 & 3 {
                            0 => dice >> 40,
                            1 => dice,
                            _ => self.addresses[(dice >> 34) as usize % self.addresses.len()],
                        };
                        word.copy_from_slice(&other.to_le_bytes());
                    }
                }
            }
            true
        })
    }
}

fn mixed(mut number: u64) -> u64 {
    number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    number = (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ number >> 33
}

/// A reading ends on any memory, and tells only of blocks that were asked for.
#[test]
fn damaged_memory_is_read_to_an_end() {
    let (program, told) = start();
    let wanted = wanted(program.pid(), blocks(&told));
    let keeping = Keeping {
        process: ProcessMemory::open(program.pid()).unwrap(),
        pieces: RefCell::default(),
    };
    let whole = read(&keeping, &wanted).unwrap();
    assert_eq!(whole.held.len(), wanted.blocks.len());
    let pieces = keeping.pieces.into_inner();
    // Words of the process that are addresses: of objects, of types, of everything.
    let mut addresses = Vec::new();
    for piece in pieces.values().flatten() {
        let words = piece.chunks_exact(8).step_by(61);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        addresses.extend(words.filter(|word| pieces.contains_key(&(word / PIECE))));
    }
    assert!(addresses.len() > 10_000);
    let mut held = Vec::new();
    for (seed, one_in) in (1..).zip([1_000_000, 20_000, 1_000, 50]) {
        let damaged = Damaged {
            pieces: &pieces,
            addresses: &addresses,
            seed: mixed(seed),
            one_in,
        };
        let found = match read(&damaged, &wanted) {
            Ok(reading) => {
                assert!(
                    reading
                        .held
                        .iter()
                        .all(|one| wanted.blocks.contains(&one.block))
                );
                let ways = reading.held.iter().map(|one| reading.way(one.holder).len());
                assert!(ways.into_iter().all(|steps| steps > 0));
                reading.held.len()
            }
            Err(_) => 0,
        };
        held.push(found);
    }
    // A little damage costs a little.
    assert!(held[0] > wanted.blocks.len() / 2, "{held:?}");
}

#[test]
fn each_block_is_found_where_the_program_put_it() {
    let (program, told) = start();
    let cases = told["cases"].as_array().unwrap();
    assert!(cases.len() > 80, "{told}");
    let process = ProcessMemory::open(program.pid()).unwrap();
    let reading = read(&process, &wanted(program.pid(), blocks(&told))).unwrap();
    assert!(reading.knows_tensors && reading.knows_graphs && !reading.is_cut);
    let held: HashMap<u64, &Held> = reading.held.iter().map(|held| (held.block, held)).collect();
    let mut wrong = Vec::new();
    for case in cases {
        let way = match held.get(&case["block"].as_u64().unwrap()) {
            Some(held) => {
                let sure = reading.way(held.holder).iter().all(|holder| holder.is_sure);
                (reading.path(held.holder), held.origin, sure)
            }
            None => ("nothing".to_owned(), Origin::Outside, false),
        };
        let expected = (
            case["way"].as_str().unwrap().to_owned(),
            match &case["origin"] {
                Value::String(text) if text == "Named" => Origin::Named,
                Value::String(text) if text == "Garbage" => Origin::Garbage,
                _ => Origin::Outside,
            },
            true,
        );
        if way != expected {
            wrong.push(format!("{}: {way:?}, and not {expected:?}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is said of tensors in a random web of objects is what Python's garbage collector says in the process.
#[test]
fn tensors_in_a_web_of_objects_are_held_as_the_collector_says() {
    for seed in 1..=4 {
        let command = sim_of(Device::Cuda).script(&web::script());
        let asked = web::Asked::of(command, seed, Some("cuda"));
        let pid = asked.program.pid();
        let reading = read(
            &ProcessMemory::open(pid).unwrap(),
            &wanted(pid, asked.places()),
        );
        let wrong = asked.compare(&reading.unwrap());
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}
