//! Interpreters beside PyTorch's: from roots of their own (`cargo xtask pythons`), stripped, broken, dying. Python
//! frames as the interpreter itself names them; nothing hangs, and what could not be read is said.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{Daemon, LONG, Library, Program, Value, number, scratch, sim, strip, until};

/// A runtime that needs no C library.
fn runtime() -> PathBuf {
    memscope_tests::library(
        "runtime.c",
        "libcudart.so.13",
        Library::None,
        &["-fPIC", "-nostdlib", "-Wl,-soname,libcudart.so.13"],
    )
}

struct Interpreter {
    program: Program,
}

impl Interpreter {
    /// In a root of its own, where the script and the runtime lie already, or here.
    fn start(program: &Path, root: Option<&Path>) -> Interpreter {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/interpreter.py");
        let command = match root {
            None => {
                let mut command = Command::new(program);
                command.arg(here).arg(runtime());
                command
            }
            Some(root) => {
                let inside = root.join("opt/memscope");
                std::fs::create_dir_all(&inside).unwrap();
                std::fs::copy(here, inside.join("interpreter.py")).unwrap();
                std::fs::copy(runtime(), inside.join("libcudart.so.13")).unwrap();
                let mut command = Command::new("chroot");
                command.arg(root).arg(program);
                command.args([
                    "/opt/memscope/interpreter.py",
                    "/opt/memscope/libcudart.so.13",
                ]);
                command.env("LC_ALL", "C.UTF-8");
                command
            }
        };
        let mut program = Program::start("the interpreter", command);
        let said = program.hear_within(LONG);
        assert_eq!(said["pid"], program.pid(), "{said}");
        Interpreter { program }
    }

    fn pid(&self) -> String {
        self.program.pid_text()
    }

    fn ask(&mut self, command: &str) -> Value {
        self.program.tell(command);
        self.program.hear_within(LONG)
    }

    fn end(mut self) {
        self.program.tell("end");
        assert!(self.program.wait().success());
    }
}

fn python() -> PathBuf {
    PathBuf::from(sim().python("").get_program())
}

/// File, line and name.
type Frame = (String, u64, String);

/// A row of `stacks`.
#[derive(Debug)]
struct Row {
    bytes: u64,
    /// Of Python code.
    frames: Vec<Frame>,
    /// Names of those of compiled code.
    natives: Vec<String>,
    truncated: bool,
    missing: Value,
}

/// What each stack allocated.
fn rows(daemon: &Daemon, pid: &str) -> Vec<Row> {
    let answer = daemon.json(&[
        "stacks",
        "--pid",
        pid,
        "--metric",
        "allocated",
        "--limit",
        "0",
    ]);
    let frame = |frame: &Value| {
        let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
        let line = frame["line"].as_u64().unwrap_or_default();
        (text("file"), line, text("name"))
    };
    let rows = answer["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        let frames = row["frames"].as_array().unwrap().iter();
        let (native, python): (Vec<&Value>, _) = frames.partition(|f| f["kind"] == "native");
        Row {
            bytes: number(&row["amounts"]["allocated"]["bytes"]),
            frames: python.into_iter().map(frame).collect(),
            natives: native.into_iter().map(|f| frame(f).2).collect(),
            truncated: row["truncated"] == true,
            missing: row["missing"].clone(),
        }
    })
    .collect()
}

/// Every allocation's frames are those that the interpreter names.
fn stacks_are_its_own(program: &Path, root: Option<&Path>, stacks: &str) {
    let daemon = Daemon::start();
    let mut interpreter = Interpreter::start(program, root);
    let pid = interpreter.pid();
    let ask = [
        "attach", "--pid", &pid, "--level", "segments", "--stacks", stacks,
    ];
    daemon.json(&ask);
    let told = interpreter.ask("allocate");
    let mut own = BTreeMap::<Vec<Frame>, u64>::new();
    for (size, frames) in told.as_object().unwrap() {
        let frames = serde_json::from_value(frames.clone()).unwrap();
        *own.entry(frames).or_default() += size.parse::<u64>().unwrap();
    }
    let natives = stacks == "all";
    let rows = until(LONG, "every frame is named", || {
        let rows = rows(&daemon, &pid);
        let mut natives = rows.iter().flat_map(|row| &row.natives);
        let mut python = rows.iter().flat_map(|row| &row.frames);
        let waits = natives.any(|name| name.starts_with("0x"))
            || python.any(|(_, _, name)| name.is_empty());
        (!waits).then_some(rows)
    });
    let mut seen = BTreeMap::<Vec<Frame>, u64>::new();
    for row in rows {
        // Where compiled code ends a stack early, Python's frames are whole all the same.
        assert!(natives || !row.truncated, "{row:#?}");
        assert_eq!(natives, !row.natives.is_empty(), "{row:#?}");
        *seen.entry(row.frames).or_default() += row.bytes;
    }
    assert!(own.len() > 300);
    for (frames, bytes) in &own {
        let found = seen.get(frames);
        if found != Some(bytes) {
            let alike: Vec<_> = seen.iter().filter(|(_, of)| *of == bytes).collect();
            println!("{bytes} bytes are of {alike:#?}");
        }
        assert_eq!(found, Some(bytes), "{}: {frames:#?}", program.display());
    }
    assert_eq!(seen.len(), own.len());
    interpreter.end();
}

#[test]
fn of_this_machine() {
    stacks_are_its_own(&python(), None, "python");
    stacks_are_its_own(&python(), None, "all");
}

/// The symbols that `strip` takes are not those that are needed.
#[test]
fn stripped() {
    let folder = scratch();
    let real = std::fs::canonicalize(python()).unwrap();
    // Beside its library, where there is one, and with its own standard library.
    let copy = folder.path().join("python");
    strip(&real, &copy, &[]);
    let home = real.parent().unwrap().parent().unwrap();
    let wrapper = folder.path().join("run");
    std::fs::write(
        &wrapper,
        format!(
            "#!/bin/sh\nPYTHONHOME={} exec {} \"$@\"\n",
            home.display(),
            copy.display()
        ),
    )
    .unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    stacks_are_its_own(&wrapper, None, "python");
}

/// Frames that lead in a circle, nowhere, or into the kernel: the allocation is counted, the walk ends, the process
/// and the daemon go on, and what was cut off is told.
#[test]
fn broken_frames() {
    let daemon = Daemon::start();
    let mut interpreter = Interpreter::start(&python(), None);
    let pid = interpreter.pid();
    daemon.json(&["attach", "--pid", &pid, "--level", "segments"]);
    let said = interpreter.ask("broken");
    let rows = rows(&daemon, &pid);
    // Stacks that look alike are one.
    let row = |allocations: &[&str]| {
        let bytes: u64 = allocations.iter().map(|what| number(&said[*what])).sum();
        let mut rows = rows.iter();
        let found = rows.find(|row| row.bytes == bytes);
        found.unwrap_or_else(|| panic!("{allocations:?} {said:#}"))
    };
    let names = |row: &Row| -> Vec<String> { row.frames.iter().map(|f| f.2.clone()).collect() };
    let circle = row(&["a circle"]);
    assert!(circle.truncated && circle.frames.len() > 500, "{circle:#?}");
    assert_eq!(names(circle)[..3], ["take", "take", "take"]);
    let nowhere = row(&["nothing mapped", "the kernel", "not aligned"]);
    assert!(nowhere.truncated, "{nowhere:#?}");
    assert_eq!(names(nowhere), ["take"], "up to there it is right");
    assert_eq!(names(row(&["whole again"])), ["take", "broken", "<module>"]);
    // A frame whose code is none has no name, and the others have theirs.
    assert_eq!(names(row(&["no code"])), ["", "broken", "<module>"]);
    assert_eq!(names(row(&["no instruction"]))[0], "take");
    // What was cut off is told.
    let answer = daemon.json(&["stacks", "--pid", &pid, "--metric", "allocated"]);
    let cut = &answer["devices"][0]["truncated"]["allocated"];
    assert_eq!(number(&cut["count"]), 4, "{answer:#}");
    interpreter.end();
}

/// Killed in the middle of walks, again and again: nothing is left behind that the next one misses.
#[test]
fn killed_while_walked() {
    let daemon = Daemon::start();
    for _ in 0..12 {
        let mut interpreter = Interpreter::start(&python(), None);
        let pid = interpreter.program.pid();
        daemon.json(&["attach", "--pid", &pid.to_string(), "--level", "segments"]);
        interpreter.ask("loop");
        until(LONG, "it allocates", || {
            (number(&daemon.stats(pid)["process"]["events"]) > 100).then_some(())
        });
        drop(interpreter);
    }
    let mut interpreter = Interpreter::start(&python(), None);
    let pid = interpreter.pid();
    daemon.json(&["attach", "--pid", &pid, "--level", "segments"]);
    interpreter.ask("allocate");
    for row in rows(&daemon, &pid) {
        assert_eq!(row.missing, Value::Null, "{row:#?}");
    }
    interpreter.end();
}

/// The buffers of a walk are used again: what is left in them of Python's frames is in no stack of compiled code alone.
#[test]
fn compiled_code_alone_after_python() {
    let daemon = Daemon::start();
    let mut interpreter = Interpreter::start(&python(), None);
    let pid = interpreter.pid();
    for stacks in ["python", "native"] {
        daemon.json(&[
            "attach", "--pid", &pid, "--level", "segments", "--stacks", stacks,
        ]);
        interpreter.ask("allocate");
        let rows = rows(&daemon, &pid);
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row.frames.is_empty(), stacks == "native", "{row:#?}");
        }
        daemon.json(&["detach", "--pid", &pid]);
    }
    interpreter.end();
}

/// CPython of other Debian releases, each in a root of its own: as in a container.
#[cfg(feature = "pythons")]
#[test]
fn in_other_roots() {
    let list = std::env::var("MEMSCOPE_PYTHONS").expect("cargo xtask pythons runs this test");
    let list: Value = serde_json::from_str(&list).unwrap();
    for python in list.as_array().unwrap() {
        let program = Path::new(python["program"].as_str().unwrap());
        let root = python["root"].as_str().map(Path::new);
        stacks_are_its_own(program, root, "python");
        stacks_are_its_own(program, root, "all");
        println!("{} in {root:?}: its stacks are its own", program.display());
    }
}
