//! `walk PID` prints the Python interpreter of a process, how its threads find their state, and every thread's stack.

use std::error::Error;
use std::time::Instant;

use memscope_memory::ProcessMemory;
use memscope_python::{End, Interpreter, find, threads, walk_thread};

fn main() -> Result<(), Box<dyn Error>> {
    let pid: u32 = std::env::args().nth(1).ok_or("which process?")?.parse()?;
    let begun = Instant::now();
    let interpreter = find(pid)?;
    println!(
        "CPython {} ({:?}) in {}, found and proven in {:?}",
        interpreter.version,
        interpreter.version_from,
        interpreter.path.to_string_lossy(),
        begun.elapsed()
    );
    println!(
        "_PyRuntime at {:#x}, PyCode_Type at {:#x}, bias {:#x}, opened as {}",
        interpreter.runtime,
        interpreter.code_type,
        interpreter.bias,
        interpreter.open_path.display()
    );
    println!("thread state at {}", interpreter.thread_state);
    println!(
        "  pthread key {:?}, glibc {:?}",
        interpreter.thread_key, interpreter.pthread
    );
    println!("code objects are freed by {:?}", interpreter.code_dealloc);
    println!("{:?}", interpreter.proof);
    for limit in interpreter.limits() {
        println!("limit: {limit}");
    }
    println!("{:#?}", interpreter.layout);
    let memory = ProcessMemory::open(pid)?;
    for thread in threads(&memory, &interpreter)? {
        println!(
            "\nthread {} (fsbase {:#x}, state {:#x}, interpreter {:#x})",
            thread.tid.map_or("?".to_owned(), |tid| tid.to_string()),
            thread.fsbase,
            thread.state,
            thread.interpreter
        );
        stack(&memory, &interpreter, thread.state);
    }
    Ok(())
}

fn stack(memory: &ProcessMemory, interpreter: &Interpreter, state: u64) {
    let walk = walk_thread(memory, interpreter, state);
    for frame in &walk.frames {
        match interpreter.code(memory, frame.code) {
            Ok(code) if !code.is_entered(frame.instruction, frame.owner) => {
                println!("  ({}: not entered yet)", code.name.text);
            }
            Ok(code) => {
                let line = code.line(frame.instruction);
                println!(
                    "  {} at {}:{}",
                    code.name.text,
                    code.file_name.text,
                    line.map_or("?".to_owned(), |line| line.to_string())
                );
            }
            Err(error) => println!("  {:#x}: {error}", frame.code),
        }
    }
    if walk.end != End::Outermost {
        println!("  … {:?}", walk.end);
    }
}
