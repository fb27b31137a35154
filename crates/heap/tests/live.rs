//! Reads the objects of a real PyTorch on the simulated device, and finds each block where the program says that it put it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::path::Path;

use memscope_heap::{Held, Origin, Reading, Wanted, read};
use memscope_memory::ProcessMemory;
use memscope_tests::{Device, Program, sim_of};
use serde_json::Value;

/// Reads the objects that hold these blocks.
fn reading(pid: u32, blocks: Vec<u64>) -> Reading {
    let interpreter = memscope_python::find(pid).unwrap();
    let wanted = Wanted {
        layout: interpreter.layout,
        code_type: interpreter.code_type,
        runtime: interpreter.runtime,
        blocks,
    };
    read(&ProcessMemory::open(pid).unwrap(), &wanted).unwrap()
}

#[test]
fn each_block_is_found_where_the_program_put_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/holders.py");
    let mut program = Program::start("holders", sim_of(Device::Cuda).script(&script));
    let told = program.hear();
    let cases = told["cases"].as_array().unwrap();
    assert!(cases.len() > 80, "{told}");
    let blocks = cases.iter().map(|case| case["block"].as_u64().unwrap());
    let began = std::time::Instant::now();
    let reading = reading(program.pid(), blocks.collect());
    eprintln!(
        "{} objects, {} tensors, {} MiB, {:?}",
        reading.objects,
        reading.tensors,
        reading.bytes >> 20,
        began.elapsed()
    );
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
