//! Clients that are made with gRPC's own libraries, as they come: on the Unix socket, with default options.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{Daemon, LONG, Program, Torch, device, json, number, root, scratch, until};

/// What setup installed for this.
fn installed(path: &str) -> PathBuf {
    let file = root().join("target/clients").join(path);
    assert!(
        file.exists(),
        "no {}: cargo xtask setup --clients",
        file.display()
    );
    file
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// The client attaches, says what `stats` says, and is told of an allocation that happens then.
fn attaches_asks_and_listens(client: impl FnOnce(&Daemon, &Path, u32) -> Command) {
    let daemon = Daemon::start();
    let folder = scratch();
    let mut torch = Torch::start(&[]);
    torch.ask("alloc a 3000000");
    let mut client = Program::start("client", client(&daemon, folder.path(), torch.pid()));
    let said = client.hear_within(LONG);
    let stats = daemon.stats(torch.pid());
    let allocated = number(&device(&stats, 0)["allocated_bytes"]);
    assert!(allocated >= 3_000_000, "{stats:#}");
    assert_eq!(said, json!({"device": 0, "allocated_bytes": allocated}));
    // Which of these comes after the daemon knows of the reader is not known; one that comes then is told.
    let mut count = 0;
    until(LONG, "an allocation in the stream of events", || {
        count += 1;
        torch.ask(&format!("alloc b{} 5000000", count % 10));
        let event = client.hear_within(LONG);
        (event["event"] == "trace").then_some(())
    });
}

#[test]
fn pythons_grpcio() {
    attaches_asks_and_listens(|daemon, folder, pid| {
        let python = installed("python/bin/python");
        let protos = root().join("proto");
        let mut generate = Command::new(&python);
        generate
            .args(["-m", "grpc_tools.protoc", "-I"])
            .arg(&protos);
        for option in ["--python_out", "--grpc_python_out"] {
            generate.arg(format!("{option}={}", folder.display()));
        }
        for file in std::fs::read_dir(protos.join("memscope/v1")).unwrap() {
            generate.arg(file.unwrap().path());
        }
        succeeds(&mut generate);
        let mut client = Command::new(&python);
        client
            .env("PYTHONPATH", folder)
            .arg(root().join("docs/clients/dashboard.py"))
            .arg(daemon.socket())
            .arg(pid.to_string());
        client
    });
}

#[test]
fn nodes_grpc_js() {
    attaches_asks_and_listens(|daemon, folder, pid| {
        let modules = installed("node/node_modules");
        // A program finds modules beside itself or above.
        std::os::unix::fs::symlink(&modules, folder.join("node_modules")).unwrap();
        std::fs::write(folder.join("package.json"), r#"{"type": "module"}"#).unwrap();
        let source = folder.join("dashboard.ts");
        std::fs::copy(root().join("docs/clients/dashboard.ts"), &source).unwrap();
        succeeds(
            Command::new("node")
                .arg(modules.join("typescript/bin/tsc"))
                .args(["--module", "nodenext", "--skipLibCheck", "--strict"])
                .arg(&source)
                .current_dir(folder),
        );
        let mut client = Command::new("node");
        client
            .arg(folder.join("dashboard.js"))
            .arg(root().join("proto"))
            .arg(daemon.socket())
            .arg(pid.to_string());
        client
    });
}

#[test]
fn reflection_and_health() {
    let daemon = Daemon::start();
    let mut command = Command::new(installed("python/bin/python"));
    command
        .arg(root().join("tests/clients/stock.py"))
        .arg(daemon.socket());
    let said = Program::start("client", command).hear_within(LONG);
    assert_eq!(said["health"], "SERVING");
    assert_eq!(said["fields"], json!(["pid"]));
    let services = said["services"].as_array().unwrap();
    for service in [
        "memscope.v1.Memscope",
        "memscope.v1.Triggers",
        "grpc.health.v1.Health",
    ] {
        assert!(services.contains(&json!(service)), "{said:#}");
    }
}
