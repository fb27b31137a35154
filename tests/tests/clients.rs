//! Clients that are made with gRPC's own libraries, as they come: on the Unix socket, with default options. And the client of the Python package.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{
    Daemon, LONG, Program, Torch, Value, device, json, number, root, scratch, tool, until, xtask,
};

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

/// Runs it, and gives what it said.
fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said.into_owned())
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let (is_well, said) = run(command);
    assert!(is_well, "{command:?}: {said}");
}

/// All `.proto` files.
fn protos() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("proto/memscope/v1")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

/// Python with gRPC's libraries and with the package's sources: with the newest protobuf, or with the oldest that the package reads.
fn package(protobuf: Protobuf) -> Command {
    let sources = root().join("clients/python/src");
    let mut paths = vec![sources];
    if protobuf == Protobuf::Oldest {
        paths.insert(0, installed("oldest"));
    }
    let mut python = Command::new(installed("python/bin/python"));
    python.env("PYTHONPATH", std::env::join_paths(paths).unwrap());
    python
}

#[derive(Clone, Copy, PartialEq)]
enum Protobuf {
    Newest,
    Oldest,
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
        let mut generate = Command::new(&python);
        generate
            .args(["-m", "grpc_tools.protoc", "-I"])
            .arg(root().join("proto"));
        for option in ["--python_out", "--grpc_python_out"] {
            generate.arg(format!("{option}={}", folder.display()));
        }
        succeeds(generate.args(protos()));
        let mut client = Command::new(&python);
        client
            .env("PYTHONPATH", folder)
            .arg(root().join("docs/clients/generated.py"))
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

/// Where Debian puts the sources of Go's libraries.
const GO_SOURCES: &str = "/usr/share/gocode";

#[test]
fn gos_grpc_go() {
    attaches_asks_and_listens(|daemon, folder, pid| {
        let sources = folder.join("src/dashboard");
        std::fs::create_dir_all(&sources).unwrap();
        std::fs::copy(
            root().join("docs/clients/dashboard.go"),
            sources.join("dashboard.go"),
        )
        .unwrap();
        let mut generate = Command::new("protoc");
        generate.arg("-I").arg(root().join("proto"));
        for option in ["--go_out", "--go-grpc_out"] {
            generate.arg(format!("{option}={}", sources.display()));
        }
        succeeds(generate.args(protos()));
        let program = folder.join("dashboard");
        // Debian's libraries are found by GOPATH, in which there are no modules.
        let path = std::env::join_paths([folder, Path::new(GO_SOURCES)]).unwrap();
        succeeds(
            Command::new("go")
                .args(["build", "-o"])
                .args([&program, &sources])
                .current_dir(&sources)
                .env("GOPATH", path)
                .env("GO111MODULE", "off")
                .env("GOFLAGS", "")
                .env("GOCACHE", root().join("target/clients/go-cache")),
        );
        let mut client = Command::new(program);
        client.arg(daemon.socket()).arg(pid.to_string());
        client
    });
}

#[test]
fn the_python_package() {
    for protobuf in [Protobuf::Newest, Protobuf::Oldest] {
        attaches_asks_and_listens(|daemon, _, pid| {
            let mut client = package(protobuf);
            client
                .arg(root().join("docs/clients/dashboard.py"))
                .arg(daemon.socket())
                .arg(pid.to_string());
            client
        });
    }
}

/// What memscope-ctl says when it is refused.
fn refusal(daemon: &Daemon, arguments: &[&str]) -> Value {
    let said = daemon.ctl(&[&["--json"], arguments].concat());
    assert_ne!(said.code, 0, "{said}");
    said.document()["error"].clone()
}

#[test]
fn the_python_packages_calls_and_errors() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("alloc a 3000000");
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "segments");
    torch.ask("alloc b 50000000");
    // A path that has to be written as a URI for gRPC.
    let folder = scratch();
    let odd = folder.path().join("a b%41#?é");
    std::os::unix::fs::symlink(daemon.socket(), &odd).unwrap();
    for protobuf in [Protobuf::Newest, Protobuf::Oldest] {
        let mut client = package(protobuf);
        client
            .arg(root().join("tests/clients/package.py"))
            .arg(daemon.socket())
            .arg(&pid)
            .env("MEMSCOPE_SOCKET", &odd);
        let said = Program::start("client", client).hear_within(LONG);
        let version = said["protobuf"].as_str().unwrap();
        assert_eq!(
            version.starts_with("3.20."),
            protobuf == Protobuf::Oldest,
            "protobuf {version}"
        );
        assert_eq!(said["processes"], json!([torch.pid()]));
        assert_eq!(said["told"], json!(["there"]));
        assert_eq!(said["marks"], json!(["here", "there"]));
        assert_eq!(said["trigger"], json!([true, false]));
        assert_eq!(said["diff"], true);
        assert!(number(&said["exported"]) > 0, "{said:#}");
        let stats = daemon.stats(torch.pid());
        let driver = &device(&stats, 0)["driver"]["bytes"];
        assert!(number(driver) >= 50_000_000, "{stats:#}");
        assert_eq!(said["driver"], json!([[0, driver]]));
        // The daemon's words are those that memscope-ctl passes on.
        let not_traced = refusal(&daemon, &["stats", "--pid", "1"]);
        assert_eq!(not_traced["code"], "not_traced");
        for (name, error) in [
            ("not_traced", not_traced.clone()),
            ("stream", not_traced),
            (
                "not_exact",
                refusal(&daemon, &["--strict", "stats", "--pid", &pid]),
            ),
            ("invalid", refusal(&daemon, &["trigger", "add", "whenever"])),
        ] {
            assert_eq!(
                said[name],
                json!({"error": error, "grpc": true}),
                "{said:#}"
            );
        }
        assert_eq!(said["not_exact"]["error"]["code"], "not_exact");
        assert_eq!(said["invalid"]["error"]["code"], "invalid");
        assert_eq!(said["late"]["error"]["code"], "timeout");
        assert_eq!(said["nobody"]["error"]["code"], "no_daemon");
        assert_eq!(said["nobody"]["grpc"], false);
        assert_eq!(said["negative"], "ValueError");
        assert_eq!(said["unknown"], "TypeError");
        let help = run(Command::new(tool("memscope-ctl")).arg("--help")).1;
        let socket = said["default_socket"].as_str().unwrap();
        assert!(help.contains(&format!("[default: {socket}]")), "{help}");
    }
}

#[test]
fn the_python_package_is_what_the_protos_give() {
    let (output, _, errors) = xtask(&["clients", "--check"]);
    assert!(output.status.success(), "{errors}");
    let daemon = Daemon::start();
    let mut client = package(Protobuf::Newest);
    client
        .arg(root().join("tests/clients/same.py"))
        .arg(daemon.socket());
    let said = Program::start("client", client).hear_within(LONG);
    assert_eq!(said["differ"], json!([]), "{said:#}");
    assert_eq!(said["package"], said["daemon"]);
    assert_eq!(
        said["package"].as_array().map(Vec::len),
        Some(protos().len())
    );
}

/// What mypy says of programs that use the package.
fn mypy(arguments: &[&Path]) -> (bool, String) {
    let mut mypy = package(Protobuf::Newest);
    mypy.args(["-m", "mypy", "--strict", "--cache-dir=/dev/null"])
        .args(arguments)
        .env("MYPYPATH", root().join("clients/python/src"));
    run(&mut mypy)
}

#[test]
fn the_python_package_is_typed() {
    let dashboard = root().join("docs/clients/dashboard.py");
    let tried = root().join("tests/clients/package.py");
    let (is_well, said) = mypy(&[&dashboard, &tried]);
    assert!(is_well, "{said}");
    let (is_well, said) = mypy(&["-p".as_ref(), "memscope".as_ref()]);
    assert!(is_well, "{said}");
    // Nothing of it is `Any`, which would take everything.
    let folder = scratch();
    let wrong = folder.path().join("wrong.py");
    let mistakes = [
        "daemon.stats('4242')",
        "daemon.stats()",
        "daemon.stats(4242).devises",
        "daemon.stats(4242).devices[0].allocated_bytes.upper()",
        "daemon.attach(4242, level='trace')",
        "next(daemon.events(4242)).pid + ''",
        "daemon.stub.Stats(v1.ListRequest())",
    ];
    let mut program = "import memscope.client\nfrom memscope import v1\n\
        from memscope.v1.memscope_pb2_grpc import MemscopeStub\n\
        daemon = memscope.client.connect()\n"
        .to_owned();
    for mistake in mistakes {
        let line = mistake.replace("daemon.stub", "MemscopeStub(daemon.channel)");
        program.push_str(&line);
        program.push('\n');
    }
    std::fs::write(&wrong, program).unwrap();
    let (_, said) = mypy(&[&wrong]);
    for (number, mistake) in mistakes.iter().enumerate() {
        let place = format!("wrong.py:{}: error:", number + 5);
        assert!(said.contains(&place), "{mistake} is taken: {said}");
    }
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
