//! Files and memory that a traced process withholds: pages of a FUSE file system whose server stops to answer. Whoever reads
//! one hangs, and no signal ends that. Everybody else is answered meanwhile, and exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memscope_tests::limits::{Met, constant};
use memscope_tests::{
    Calls, Daemon, LONG, Library, Program, coverage, executable, library, number, scratch, sim,
    until,
};
use serde_json::Value;
use tempfile::TempDir;

/// A process with a FUSE file system of its own, on which there is this file under this name.
fn withholding(shown: &Path, name: &str) -> (Program, TempDir) {
    let folder = scratch();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = sim().native(executable("withheld.c", Library::None));
    command.arg(folder.path()).arg(shown).arg(name);
    command.env("LD_LIBRARY_PATH", sim().libraries());
    let mut program = Program::start("the process that withholds", command);
    assert_eq!(program.hear()["ready"], true);
    (program, folder)
}

fn done(program: &mut Program, command: &str) {
    let answer = program.ask(command);
    assert_eq!(answer["result"], 0, "{command}: {answer}");
}

/// Bytes that a process holds on all devices.
fn held(daemon: &Daemon, pid: u32) -> u64 {
    let stats = daemon.stats(pid);
    let devices = stats["devices"].as_array().unwrap().iter();
    devices.map(|d| number(&d["driver"]["bytes"])).sum()
}

/// Asks for something in another thread, and meanwhile for the daemon's status and a neighbour's numbers again and
/// again. Gives the answer to it.
fn meanwhile(daemon: &Daemon, neighbour: &mut Calls, question: &[&str]) -> (Value, i32) {
    let mut longest = Duration::ZERO;
    let mut bytes = held(daemon, neighbour.pid());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| daemon.ctl(question));
        let mut last_round = false;
        loop {
            bytes += 512;
            neighbour.call(&format!("cudaMalloc b{bytes} 512"));
            let began = Instant::now();
            daemon.json(&["status"]);
            longest = longest.max(began.elapsed());
            assert_eq!(held(daemon, neighbour.pid()), bytes);
            if last_round {
                break;
            }
            last_round = asking.is_finished();
        }
        let said = asking.join().unwrap();
        println!("the slowest status took {longest:?}");
        (said.document(), said.code)
    })
}

/// SIGKILL ends the daemon although readers of its hang.
fn killed(mut daemon: Daemon) {
    daemon.kill();
    assert!(daemon.has_ended());
}

#[test]
fn a_library_whose_contents_are_withheld() {
    let daemon = Daemon::start();
    let mut neighbour = Calls::start(&[]);
    daemon.attach(neighbour.pid(), "segments");
    for what in ["reads", "opens"] {
        let (mut program, _folder) = withholding(&sim().runtime(), "libcudart.so.99");
        done(&mut program, &format!("load {}", sim().runtime().display()));
        done(&mut program, "map");
        done(&mut program, &format!("hold {what}"));
        let attach = [
            "attach",
            "--pid",
            &program.pid_text(),
            "--level",
            "segments",
            "--json",
        ];
        let (answer, code) = meanwhile(&daemon, &mut neighbour, &attach);
        assert_eq!(code, 0, "{answer:#}");
        // The library beside it is traced, and what could not be read is named.
        done(&mut program, "malloc 4096");
        let stats = daemon.stats(program.pid());
        assert_eq!(held(&daemon, program.pid()), 4096, "{stats:#}");
        assert!(coverage(&stats).contains(&"not_probed"), "{stats:#}");
        let notes = stats["coverage"].to_string();
        assert!(notes.contains("libcudart.so.99"), "{notes}");
        assert!(notes.contains("was not delivered"), "{notes}");
        program.kill();
        until(Duration::from_secs(30), "the end is noticed", || {
            daemon
                .process(program.pid())
                .is_none_or(|one| one["state"] != "running")
                .then_some(())
        });
    }
    killed(daemon);
    Met {
        what: "time in which a piece of a file is delivered",
        most: constant("crates/memory/src/reader/pool.rs", "FILES"),
        beyond: "its reader is given up and replaced, and the file is left out and tried again later",
        told: "`not_probed` in coverage, with its name",
        test: "a_library_whose_contents_are_withheld",
    }
    .is_told();
}

/// A process that maps a device's library of which nothing can be read.
fn with_a_library_that_cannot_be_read() -> (Program, TempDir) {
    let (mut program, folder) = withholding(&sim().runtime(), "libcudart.so.99");
    done(&mut program, "map");
    done(&mut program, "hold reads");
    (program, folder)
}

#[test]
fn the_only_library_is_withheld() {
    let daemon = Daemon::start();
    let (mut program, _folder) = with_a_library_that_cannot_be_read();
    daemon
        .ctl(&["attach", "--pid", &program.pid_text()])
        .refused(1, &["libcudart.so.99", "was not delivered"]);
    program.kill();
}

/// Such a process has that library all the same: it is not followed from its start. When the library can be read it is, although the
/// process does nothing.
#[test]
fn a_library_that_was_withheld_is_read_later() {
    let daemon = Daemon::with(&["--probe-user-mounts"]);
    let (mut program, _folder) = with_a_library_that_cannot_be_read();
    let pid = program.pid();
    daemon.json(&["attach", "--pid", &program.pid_text(), "--wait"]);
    let stats = daemon.stats(pid);
    assert_eq!(stats["process"]["from_start"], false, "{stats:#}");
    assert!(coverage(&stats).contains(&"not_probed"), "{stats:#}");
    assert_eq!(stats["placement"]["sites"], 0, "{stats:#}");
    done(&mut program, "hold nothing");
    until(LONG, "the library is read", || {
        let stats = daemon.stats(pid);
        let is_said = coverage(&stats).contains(&"not_probed");
        (!is_said && number(&stats["placement"]["sites"]) > 0).then_some(())
    });
    daemon.detach(pid);
    program.finish();
}

#[test]
fn memory_that_is_withheld() {
    let daemon = Daemon::start();
    let mut neighbour = Calls::start(&[]);
    daemon.attach(neighbour.pid(), "segments");
    let allocator = library("allocator.c", "libc10_cuda.so", Library::None, &[]);
    let (mut program, _folder) = withholding(&allocator, "withheld");
    done(&mut program, &format!("load {}", allocator.display()));
    done(&mut program, "become");
    done(
        &mut program,
        "cover _ZN3c104cuda20CUDACachingAllocator9allocatorE",
    );
    done(&mut program, "hold reads");
    let attach = ["attach", "--pid", &program.pid_text(), "--wait", "--json"];
    let (answer, code) = meanwhile(&daemon, &mut neighbour, &attach);
    assert_eq!(code, 0, "{answer:#}");
    let stats = ["stats", "--pid", &program.pid_text(), "--json"];
    let (answer, code) = meanwhile(&daemon, &mut neighbour, &stats);
    assert_eq!(code, 0, "{answer:#}");
    assert_eq!(answer["backend"]["kind"], "unknown", "{answer:#}");
    let status = daemon.json(&["status"]);
    assert!(number(&status["reads_given_up"]) > 0, "{status:#}");
    killed(daemon);
    Met {
        what: "time in which memory of a process is delivered",
        most: constant("crates/memory/src/reader/pool.rs", "MEMORY"),
        beyond: "its reader is given up and replaced, and the process is read again later",
        told: "`reads_given_up` in `status`",
        test: "memory_that_is_withheld",
    }
    .is_told();
}

/// What is withheld is read in one go with all that is made of it, so nobody but that reader waits.
#[test]
fn structures_that_are_withheld() {
    let daemon = Daemon::start();
    let mut neighbour = Calls::start(&[]);
    daemon.attach(neighbour.pid(), "segments");
    let allocator = library(
        "allocator.c",
        "libc10_cuda.so",
        Library::None,
        &["-DNATIVE"],
    );
    let (mut program, _folder) = withholding(&allocator, "withheld");
    done(&mut program, &format!("load {}", allocator.display()));
    done(&mut program, "become");
    done(&mut program, "cover native 1");
    done(&mut program, "hold reads");
    let pid = program.pid_text();
    let attach = ["attach", "--pid", &pid, "--level", "read", "--json"];
    let (answer, code) = meanwhile(&daemon, &mut neighbour, &attach);
    assert_eq!(code, 0, "{answer:#}");
    let stats = until(LONG, "the reading is given up", || {
        let (stats, code) = meanwhile(&daemon, &mut neighbour, &["stats", "--pid", &pid, "--json"]);
        assert_eq!(code, 0, "{stats:#}");
        // Until it is, an answer says that the reading has not ended.
        let notes = stats["coverage"].to_string();
        let is_told = notes.contains("was not delivered");
        (is_told && coverage(&stats).contains(&"reading_failed")).then_some(stats)
    });
    assert_eq!(stats["backend"]["kind"], "native", "{stats:#}");
    // Nobody knows whether it grows, and the list says why.
    until(LONG, "it is judged", || {
        let listed = daemon.process(program.pid())?;
        (listed["verdict"] == "nothing_read").then_some(())
    });
    let status = daemon.json(&["status"]);
    assert!(number(&status["reads_given_up"]) > 0, "{status:#}");
    killed(daemon);
}

/// While the kernel places a probe it reads the file, and no program on the machine can start another one until it has. So no
/// probe is placed where that is in the hands of a user, unless that is wanted.
#[test]
fn no_probe_on_a_users_file_system() {
    let (mut program, _folder) = withholding(&sim().runtime(), "libcudart.so.99");
    done(&mut program, "load");
    {
        let daemon = Daemon::start();
        daemon.attach(program.pid(), "segments");
        let stats = daemon.stats(program.pid());
        assert!(coverage(&stats).contains(&"not_probed"), "{stats:#}");
        let notes = stats["coverage"].to_string();
        for word in ["libcudart.so.99", "FUSE", "--probe-user-mounts"] {
            assert!(notes.contains(word), "{notes}");
        }
        let status = daemon.json(&["status"]);
        assert!(
            !status["libraries"].to_string().contains("libcudart.so.99"),
            "{status:#}"
        );
    }
    let daemon = Daemon::with(&["--probe-user-mounts"]);
    daemon.attach(program.pid(), "segments");
    done(&mut program, "malloc 4096");
    assert_eq!(held(&daemon, program.pid()), 4096);
    daemon.detach(program.pid());
    program.finish();
}
