//! A random web of Python objects, and what the garbage collector of the process says of it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_heap::{Origin, Reading};
use memscope_tests::Program;
use serde_json::Value;

/// The program that makes the web.
pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/web.py")
}

/// What the collector says of a thing.
struct Thing {
    /// Whether it is reached from a module or a frame.
    is_named: bool,
    /// The types of what refers to it, once for each reference.
    referrers: Vec<String>,
}

/// A process with a web, and what its collector says.
pub struct Asked {
    pub program: Program,
    things: HashMap<u64, Thing>,
    /// Holders between what refers to a thing and the end of the way to it: for a tensor its object.
    between: usize,
}

fn numbers(value: &Value) -> HashSet<u64> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap()).collect()
}

impl Asked {
    /// Starts the program by this command, and asks.
    pub fn of(mut command: Command, seed: u32, device: Option<&str>) -> Asked {
        command.arg(seed.to_string());
        command.args(device);
        let mut program = Program::start("web", command);
        let told = program.hear();
        let things = told["things"].as_array().unwrap().iter();
        let things = things.map(|row| {
            let names = row["referrers"].as_array().unwrap().iter();
            let thing = Thing {
                is_named: row["named"].as_bool().unwrap(),
                referrers: names
                    .map(|name| name.as_str().unwrap().to_owned())
                    .collect(),
            };
            (row["place"].as_u64().unwrap(), thing)
        });
        let things: HashMap<u64, Thing> = things.collect();
        assert!(things.len() > 25, "{told}");
        Asked {
            program,
            things,
            between: usize::from(device.is_some()),
        }
    }

    /// Where the things are.
    pub fn places(&self) -> Vec<u64> {
        self.things.keys().copied().collect()
    }

    /// Lets the process collect, and says what of a reading from before is wrong: where something is held from,
    /// how often, and by what kind of object.
    pub fn compare(mut self, reading: &Reading) -> Vec<String> {
        self.program.tell("collect");
        let collected = self.program.hear();
        let freed = numbers(&collected["freed"]);
        let observed = numbers(&collected["observed"]);
        // What the finalizer of a generator frees goes before the observer looks.
        assert!(observed.is_subset(&freed), "{collected}");
        assert!(
            self.between == 0 || freed.len() < observed.len() + 10,
            "{collected}"
        );
        let mut wrong = Vec::new();
        for held in &reading.held {
            let thing = &self.things[&held.block];
            let path = reading.path(held.holder);
            let way = reading.way(held.holder);
            let mut say = |what: String| wrong.push(format!("{:#x} at {path}: {what}", held.block));
            if !way.iter().all(|holder| holder.is_sure) {
                say("unsure".to_owned());
            }
            let origin = match (thing.is_named, freed.contains(&held.block)) {
                (true, _) => Origin::Named,
                (false, true) => Origin::Garbage,
                (false, false) => Origin::Outside,
            };
            if held.origin != origin {
                say(format!("{:?}, and not {origin:?}", held.origin));
            }
            if held.others as usize + 1 != thing.referrers.len() {
                say(format!("{} others, but {:?}", held.others, thing.referrers));
            }
            // From 3.13 on the values of an object's dictionary belong to the object, for the collector.
            let holders = way.iter().rev().skip(1 + self.between);
            let mut kinds = holders.map(|holder| reading.kinds[holder.kind as usize].as_str());
            let mut is_right = false;
            while !is_right && let Some(kind) = kinds.next() {
                let kind = kind.rsplit('.').next();
                is_right = thing
                    .referrers
                    .iter()
                    .any(|name| Some(name.as_str()) == kind);
                if kind != Some("dict") {
                    break;
                }
            }
            // The way to garbage may begin with the thing itself.
            let begins = origin == Origin::Garbage && way.len() == 1 + self.between;
            if !begins && !is_right {
                say(format!("not held by any of {:?}", thing.referrers));
            }
        }
        let missing = self.things.len() - reading.held.len();
        if missing != 0 {
            wrong.push(format!("{missing} are missing"));
        }
        wrong
    }
}
