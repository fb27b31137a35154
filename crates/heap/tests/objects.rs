//! Reads the objects of interpreters without PyTorch, and finds each where the program says that it put it: the `python3` on PATH, or those
//! that `cargo xtask pythons` names.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_heap::{Held, MOST_HOLDERS, Origin, Reading, Wanted, read};
use memscope_memory::{Memory, ProcessMemory};
use memscope_tests::Program;
use serde_json::Value;

mod web;

/// An interpreter, perhaps in another root folder.
#[derive(Debug)]
struct Python {
    root: Option<PathBuf>,
    program: PathBuf,
}

fn pythons() -> Vec<Python> {
    let Ok(named) = std::env::var("MEMSCOPE_PYTHONS") else {
        return vec![Python {
            root: None,
            program: "python3".into(),
        }];
    };
    let named: Vec<Value> = serde_json::from_str(&named).unwrap();
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let python = |one: &Value| Python {
        root: path(&one["root"]),
        program: path(&one["program"]).unwrap(),
    };
    named.iter().map(python).collect()
}

/// The command that runs a script with an interpreter.
fn command(python: &Python, script: &Path) -> Command {
    let mut command = match &python.root {
        None => {
            let mut command = Command::new(&python.program);
            command.arg(script);
            command
        }
        Some(root) => {
            let inside = root.join("opt/memscope");
            std::fs::create_dir_all(&inside).unwrap();
            let name = script.file_name().unwrap();
            std::fs::copy(script, inside.join(name)).unwrap();
            let mut command = Command::new("chroot");
            command.arg(root).arg(&python.program);
            command.arg(Path::new("/opt/memscope").join(name));
            command
        }
    };
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn start(python: &Python) -> (Program, Value) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/objects.py");
    let mut program = Program::start("objects", command(python, &script));
    let told = program.hear();
    (program, told)
}

/// Reads who holds these objects.
fn read_of(pid: u32, objects: Vec<u64>) -> Reading {
    read_by(&ProcessMemory::open(pid).unwrap(), pid, objects)
}

/// Reads who holds these objects from such memory of the process.
fn read_by(memory: &dyn Memory, pid: u32, objects: Vec<u64>) -> Reading {
    let interpreter = memscope_python::find(pid).unwrap();
    let wanted = Wanted {
        layout: interpreter.layout,
        code_type: interpreter.code_type,
        runtime: interpreter.runtime,
        blocks: Vec::new(),
        objects,
        modules: true,
    };
    let reading = read(memory, &wanted).unwrap();
    assert!(!reading.is_cut);
    reading
}

/// What is wrong with the ways to the objects of a process.
fn wrong(pid: u32, told: &Value) -> Vec<String> {
    let cases = told["cases"].as_array().unwrap();
    let objects = cases.iter().map(|case| case["object"].as_u64().unwrap());
    let reading = read_of(pid, objects.collect());
    let held: HashMap<u64, &Held> = reading.held.iter().map(|held| (held.block, held)).collect();
    let mut wrong = Vec::new();
    for case in cases {
        let way = match held.get(&case["object"].as_u64().unwrap()) {
            Some(held) => {
                let sure = reading.way(held.holder).iter().all(|holder| holder.is_sure);
                (
                    reading.path(held.holder),
                    format!("{:?}", held.origin),
                    sure,
                    held.others,
                )
            }
            None => (
                "nothing".to_owned(),
                format!("{:?}", Origin::Outside),
                false,
                0,
            ),
        };
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        let expected = (text("way"), text("origin"), true, 0);
        if way != expected {
            wrong.push(format!("{}: {way:?}, and not {expected:?}", text("name")));
        }
    }
    wrong
}

#[test]
fn each_object_is_found_where_the_program_put_it() {
    let mut all = Vec::new();
    for python in pythons() {
        let (program, told) = start(&python);
        assert!(told["cases"].as_array().unwrap().len() > 90, "{told}");
        let wrong = wrong(program.pid(), &told);
        eprintln!("{python:?}, {}: {} wrong", told["version"], wrong.len());
        all.extend(
            wrong
                .iter()
                .map(|wrong| format!("{}: {wrong}", told["version"])),
        );
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// What is said of objects in a random web is what the interpreter's garbage collector says in the process.
#[test]
fn objects_in_a_web_are_held_as_the_collector_says() {
    let mut all = Vec::new();
    for python in pythons() {
        for seed in 1..=8 {
            let asked = web::Asked::of(command(&python, &web::script()), seed, None);
            let reading = read_of(asked.program.pid(), asked.places());
            let wrong = asked.compare(&reading);
            all.extend(
                wrong
                    .iter()
                    .map(|wrong| format!("{python:?}, seed {seed}: {wrong}")),
            );
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The memory of a process that has some containers. Each grows, and its table moves, as soon as its first word was read.
struct Growing {
    process: ProcessMemory,
    program: RefCell<Program>,
    /// The containers that have not grown yet: their names and addresses.
    waiting: RefCell<Vec<(String, u64)>>,
}

impl Memory for Growing {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.process.read(address, buffer)?;
        let read = address..address + buffer.len() as u64;
        let mut waiting = self.waiting.borrow_mut();
        for (name, _) in waiting.extract_if(.., |(_, head)| read.contains(head)) {
            let mut program = self.program.borrow_mut();
            assert_eq!(program.ask(&name)["grown"], *name);
        }
        Ok(())
    }
}

/// Elements of the smallest of these containers.
const SMALL: usize = 20;

#[test]
fn a_container_that_moves_while_it_is_read_is_read_where_it_is() {
    for python in pythons() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/moving.py");
        let mut command = command(&python, &script);
        command.env("MALLOC_MMAP_THRESHOLD_", "131072");
        let mut program = Program::start("moving", command);
        let told = program.hear();
        let pid = program.pid();
        let things = told["things"].as_array().unwrap();
        let things: Vec<u64> = things.iter().map(|thing| thing.as_u64().unwrap()).collect();
        let heads = told["heads"].as_object().unwrap();
        let waiting = heads
            .iter()
            .map(|(name, head)| (name.clone(), head.as_u64().unwrap()))
            .collect();
        let memory = Growing {
            process: ProcessMemory::open(pid).unwrap(),
            program: RefCell::new(program),
            waiting: RefCell::new(waiting),
        };
        let reading = read_by(&memory, pid, things.clone());
        let mut held: HashMap<String, usize> = HashMap::new();
        for one in &reading.held {
            let path = reading.path(one.holder);
            let path = path.split('[').next().unwrap();
            let path = path.split(".<element>").next().unwrap();
            *held.entry(format!("{path} {:?}", one.origin)).or_default() += 1;
        }
        let each = (things.len() - SMALL) / 3;
        let expected = [
            ("kept", each),
            ("named", each),
            ("some", each),
            ("small", SMALL),
        ]
        .map(|(name, count)| (format!("__main__.{name} Named"), count));
        assert_eq!(held, HashMap::from(expected), "{python:?}");
    }
}

/// Each element is held, though there is no room to tell of each how.
#[test]
fn elements_stand_for_others_where_there_are_too_many() {
    let python = &pythons()[0];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/many.py");
    let mut program = Program::start("many", command(python, &script));
    let told = program.hear();
    let things = told["things"].as_array().unwrap().iter();
    let things: Vec<u64> = things.map(|thing| thing.as_u64().unwrap()).collect();
    assert!(things.len() > MOST_HOLDERS);
    let reading = read_of(program.pid(), things.clone());
    assert_eq!((reading.left_out, reading.held.len()), (0, things.len()));
    let mut held: HashMap<String, usize> = HashMap::new();
    for one in &reading.held {
        let way = reading.way(one.holder);
        assert!(way.iter().all(|holder| holder.is_sure));
        let path = reading.path(one.holder);
        let name = path.split('[').next().unwrap();
        let depth = path.matches('[').count();
        *held.entry(format!("{name} {depth}")).or_default() += 1;
    }
    let expected = [("__main__.many 1", 160_000), ("__main__.named 2", 2_000)];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(held, HashMap::from(expected));
}
