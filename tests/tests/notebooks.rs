//! The Python package in notebooks: its tables have the numbers of memscope-ctl and of PyTorch, and `%memscope` works in a kernel.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::certificates::{Authority, ServerFiles, Time};
use memscope_tests::{
    Daemon, LONG, Program, SHORT, TempDir, Torch, Value, assert_totals, json, number, root,
    scratch, sim, tool, until,
};

/// What setup installed for this.
fn installed() -> PathBuf {
    let python = root().join("target/clients/python");
    assert!(
        python.join("complete").exists(),
        "no {}: cargo xtask setup --clients",
        python.display()
    );
    python
}

/// The folder of the packages that setup installed.
fn packages() -> PathBuf {
    let folders = std::fs::read_dir(installed().join("lib")).unwrap();
    let mut found = folders.map(|entry| entry.unwrap().path().join("site-packages"));
    found
        .find(|folder| folder.join("pyarrow").is_dir())
        .expect("pyarrow, which cargo xtask setup --clients installs")
}

fn sources() -> PathBuf {
    root().join("clients/python/src")
}

/// Sets what a program with the package needs: where its programs are, and a place for what it and its libraries write.
fn at_home(command: &mut Command, folder: &Path) {
    let bin = tool("memscope-ctl").parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let paths = std::iter::once(bin).chain(std::env::split_paths(&path));
    command
        .env("PATH", std::env::join_paths(paths).unwrap())
        .env("MPLCONFIGDIR", folder.join("matplotlib"))
        .env("IPYTHONDIR", folder.join("ipython"))
        .env("JUPYTER_PATH", folder.join("jupyter"))
        .env("JUPYTER_RUNTIME_DIR", folder.join("runtime"))
        .env("JUPYTER_DATA_DIR", folder.join("data"))
        .env("JUPYTER_CONFIG_DIR", folder.join("config"));
}

/// Python with the package and all that it may use.
fn python(folder: &Path) -> Command {
    let mut python = Command::new(installed().join("bin/python"));
    python.env("PYTHONPATH", sources());
    at_home(&mut python, folder);
    python
}

/// The tables of a source.
fn tables(daemon: &Daemon, source: &str, pid: Option<&str>) -> Value {
    tables_with(daemon, source, pid, &[])
}

/// The same with these variables.
fn tables_with(
    daemon: &Daemon,
    source: &str,
    pid: Option<&str>,
    variables: &[(&str, String)],
) -> Value {
    let folder = scratch();
    let mut command = python(folder.path());
    command
        .args(["-W", "error"])
        .arg(root().join("tests/clients/tables.py"))
        .arg(source)
        .args(pid)
        .env("MEMSCOPE_SOCKET", daemon.socket())
        .env("MEMSCOPED", tool("memscoped"))
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .env("TMPDIR", folder.path());
    let said = Program::start("tables.py", command).hear_within(LONG);
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("memscope-"))
        .collect();
    assert_eq!(
        left, [""; 0],
        "what was started for {source} left something"
    );
    said
}

fn sum(rows: &Value, column: &str) -> u64 {
    let rows = rows.as_array().unwrap();
    rows.iter().map(|row| number(&row[column])).sum()
}

/// Each column that the rows of a table have in common with those of an answer is the same.
#[track_caller]
fn assert_same_columns(rows: &Value, answer: &Value, columns: &[&str]) {
    let (rows, answer) = (rows.as_array().unwrap(), answer.as_array().unwrap());
    assert_eq!(rows.len(), answer.len());
    assert!(!rows.is_empty());
    for (row, said) in rows.iter().zip(answer) {
        for column in columns {
            assert_eq!(row[column], said[column], "{column}: {row:#} {said:#}");
        }
    }
}

/// Whether both say the same. A moment of the wall clock, in nanoseconds since 1970, may differ a little: the machine's wall clock is adjusted
/// while the test runs, and each answer has the clock of its own moment.
fn is_same_but_for_the_clock(left: &Value, right: &Value) -> bool {
    const IN_THIS_CENTURY: u64 = 1 << 60;
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            let mut pairs = left.iter().zip(right);
            left.len() == right.len() && pairs.all(|(l, r)| is_same_but_for_the_clock(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            let other = |name: &String| right.get(name).unwrap_or(&Value::Null);
            let mut each = left.iter();
            left.len() == right.len()
                && each.all(|(name, value)| is_same_but_for_the_clock(value, other(name)))
        }
        (left, right) => match (left.as_u64(), right.as_u64()) {
            (Some(l), Some(r)) if l > IN_THIS_CENTURY => l.abs_diff(r) < 1_000_000,
            _ => left == right,
        },
    }
}

#[test]
fn tables_are_what_memscope_ctl_and_pytorch_say() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let (pid, text) = (torch.pid(), torch.pid_text());
    torch.ask("init");
    daemon.attach(pid, "trace");
    torch.ask("alloc a 3000000");
    torch.ask("train 30");
    daemon.ctl(&["mark", "--pid", &text, "here"]).text();
    torch.ask("free a");
    let told = torch.ask("alloc b 50000000");
    let stats = daemon.stats(pid);
    assert_totals(&stats, &told);
    let said = tables(&daemon, "daemon", Some(&text));
    let live = &said["tables"];

    assert_same_columns(
        &live["stats"],
        &stats["devices"],
        &[
            "device",
            "allocated_bytes",
            "reserved_bytes",
            "peak_allocated_bytes",
            "live_blocks",
            "alloc_count",
            "total_bytes",
        ],
    );
    let device = &told["devices"][0];
    let allocated = number(&device["allocated"]);
    let reserved = number(&device["reserved"]);
    assert_eq!(said["sums"], json!([allocated, allocated]));
    assert_eq!(sum(&live["segments"], "allocated_bytes"), allocated);
    assert_eq!(sum(&live["segments"], "size_bytes"), reserved);
    assert_eq!(sum(&live["blocks"], "size_bytes"), reserved);
    assert_eq!(sum(&live["stacks"], "live_bytes"), allocated);
    assert_eq!(sum(&live["owners"], "bytes"), allocated);

    // The history, entry by entry.
    let snapshot = daemon.json(&["snapshot", "--pid", &text, "--format", "json"]);
    let columns = [
        "action",
        "device",
        "address",
        "size_bytes",
        "stream",
        "time_boot_ns",
    ];
    assert_same_columns(&live["events"], &snapshot["trace"], &columns);

    let steps = daemon.json(&["steps", "--pid", &text, "--last", "0"]);
    let columns = [
        "step",
        "from_boot_ns",
        "to_boot_ns",
        "min_allocated_bytes",
        "max_allocated_bytes",
        "allocs",
    ];
    assert_same_columns(&live["steps"], &steps["rows"], &columns);
    let leaks = daemon.json(&["leaks", "--pid", &text, "--no-holders"]);
    let growing = |row: &&Value| row["verdict"] != "steady";
    assert_eq!(
        live["leaks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(growing)
            .count(),
        leaks["lines"]
            .as_array()
            .unwrap()
            .iter()
            .filter(growing)
            .count()
    );
    let course = live["timeline"].as_array().unwrap();
    let most = course
        .iter()
        .map(|row| number(&row["max_allocated_bytes"]))
        .max();
    assert_eq!(
        most,
        Some(number(&live["stats"][0]["peak_allocated_bytes"]))
    );
    assert_eq!(live["marks"][0]["name"], "here");
    assert_eq!(live["processes"][0]["pid"], pid);
    assert_eq!(live["devices"][0]["allocated_bytes"], allocated);
    for name in ["timeline", "stacks", "blocks", "steps", "owners"] {
        let shown = json!(["image/png", "text/html", "text/plain"]);
        assert_eq!(said["shown"][name], shown, "{name}");
    }

    // The same moment from a recording, and from PyTorch's own snapshot, with the daemon gone.
    let folder = scratch();
    let recording = folder.path().join("run.memscope");
    let recording = recording.to_str().unwrap();
    daemon.ctl(&["record", "-o", recording]).text();
    let pickle = folder.path().join("snapshot.pickle");
    let pickle = pickle.to_str().unwrap();
    torch.ask(&format!("dump {pickle} 4"));
    let replayed = tables(&daemon, recording, None);
    for name in ["segments", "blocks", "events", "stacks", "steps", "marks"] {
        assert!(
            is_same_but_for_the_clock(&replayed["tables"][name], &live[name]),
            "{name}: {:#}\n{:#}",
            replayed["tables"][name],
            live[name]
        );
    }
    let columns = [
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "peak_allocated_bytes",
        "peak",
    ];
    assert_same_columns(&replayed["tables"]["stats"], &live["stats"], &columns);

    let said = tables(&daemon, pickle, None);
    let columns = [
        "device",
        "segment_address",
        "address",
        "size_bytes",
        "state",
        "stream",
    ];
    assert_same_columns(&said["tables"]["blocks"], &live["blocks"], &columns);
    assert_eq!(
        sum(&said["tables"]["segments"], "allocated_bytes"),
        allocated
    );
}

#[test]
fn another_machine_is_asked_over_tls() {
    let folder = scratch();
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = ServerFiles::write(folder.path(), &servers, &clients);
    let daemon = Daemon::with(&files.listening());
    let address = until(SHORT, "the daemon says where it listens", || {
        let log = daemon.log();
        let (_, rest) = log.split_once("listening on ")?;
        rest.split_once(' ').map(|(address, _)| address.to_owned())
    });
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 2");
    let issued = clients.client("ops", &["memscope:see"], Time::Now);
    let variables: Vec<_> = [
        ("MEMSCOPE_TLS_CERT", &issued.certificate),
        ("MEMSCOPE_TLS_KEY", &issued.key),
        ("MEMSCOPE_TLS_CA", &servers.certificate()),
    ]
    .into_iter()
    .map(|(name, content)| {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        (name, file.to_str().unwrap().to_owned())
    })
    .collect();
    let near = tables(&daemon, daemon.socket().to_str().unwrap(), None);
    let far = tables_with(&daemon, &address, None, &variables);
    assert!(number(&near["tables"]["stats"][0]["allocated_bytes"]) > 0);
    for name in ["stats", "stacks"] {
        assert_eq!(far["tables"][name], near["tables"][name], "{name}: {far:#}");
    }
    // Each answer reads the clocks anew, so moments differ by nanoseconds.
    let columns = [
        "step",
        "allocs",
        "frees",
        "max_allocated_bytes",
        "to_boot_ns",
    ];
    assert_same_columns(&far["tables"]["steps"], &near["tables"]["steps"], &columns);
    let columns = [
        "device",
        "address",
        "size_bytes",
        "requested_bytes",
        "state",
    ];
    assert_same_columns(
        &far["tables"]["blocks"],
        &near["tables"]["blocks"],
        &columns,
    );
}

#[test]
fn what_cannot_be_opened_says_why() {
    let daemon = Daemon::start();
    let folder = scratch();
    let file = folder.path().join("no recording");
    std::fs::write(&file, "nothing of the kind").unwrap();
    for (source, code) in [
        (file.to_str().unwrap(), "replay_failed"),
        ("/nonexistent", "no_recording"),
        ("unix:/nonexistent", "no_daemon"),
        ("recording:/nonexistent", "no_recording"),
        ("node7:9465", "invalid"),
    ] {
        let said = tables(&daemon, source, None);
        assert_eq!(said["error"]["code"], code, "{said:#}");
        assert_ne!(said["error"]["hint"], "", "{said:#}");
    }
}

#[test]
fn views_and_tables_of_made_up_answers() {
    let folder = scratch();
    let mut command = python(folder.path());
    command
        .args(["-W", "error", "-m", "unittest", "discover", "-v", "-s"])
        .arg(root().join("clients/python/tests_with_packages"))
        .env("MPLBACKEND", "agg");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("(test_views.Hostile."), "{said}");
}

/// A kernel that has PyTorch under the simulated device. Gives the folder that it is described in.
fn kernel(daemon: &Daemon) -> TempDir {
    let folder = scratch();
    let mut command = sim().python_with_package("agent.py");
    let path = [sources(), packages()];
    command
        .env("PYTHONPATH", std::env::join_paths(path).unwrap())
        .env("MEMSCOPE_SOCKET", daemon.socket());
    let environment: serde_json::Map<String, Value> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), json!(value?.to_str()?))))
        .collect();
    let described = json!({
        "argv": [command.get_program().to_str().unwrap(), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "PyTorch on the simulated device",
        "language": "python",
        "env": environment,
    });
    let place = folder.path().join("jupyter/kernels/simulated");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("kernel.json"), described.to_string()).unwrap();
    folder
}

/// Executes a notebook; its cells with their outputs.
fn executed(daemon: &Daemon, notebook: &Path) -> Vec<Value> {
    let folder = kernel(daemon);
    let mut command = python(folder.path());
    command
        .arg(root().join("tests/clients/notebook.py"))
        .arg(notebook)
        .arg("simulated");
    let said = Program::start("notebook.py", command).hear_within(LONG);
    said.as_array().unwrap().clone()
}

/// The texts of a cell's outputs.
fn text(cell: &Value) -> String {
    let outputs = cell["outputs"].as_array().unwrap();
    outputs
        .iter()
        .map(|output| output["text"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The number before which a text has these words, without its commas.
#[track_caller]
fn after(text: &str, words: &str) -> u64 {
    let (_, rest) = text
        .split_once(words)
        .unwrap_or_else(|| panic!("no {words:?} in {text}"));
    let digits = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',');
    digits
        .filter(|c| *c != ',')
        .collect::<String>()
        .parse()
        .unwrap()
}

/// A number as the views show it.
fn shown(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const CELLS: &str = r#"import torch, memscope
%load_ext memscope
#---
%memscope
#---
a = torch.empty(1000000, device="cuda")
torch.cuda.reset_peak_memory_stats()
#---
%%memscope
b = torch.empty(3000000, device="cuda")
keep = []
for i in range(10):
    t = torch.empty(100000, device="cuda")
    keep.append(torch.empty(50000, device="cuda"))
del a
7 * 6
#---
print(torch.cuda.max_memory_allocated())
torch.cuda.reset_peak_memory_stats()
#---
%%memscope
c = torch.empty(100000, device="cuda"); del c
#---
print(torch.cuda.max_memory_allocated())
#---
%%memscope
d = torch.empty(60000000, device="cuda")
1 / 0
#---
hostile = "<img src=x onerror=alert(1)>"
exec(compile(f"def f(): return torch.empty(700000, device='cuda')", hostile, "exec"))
kept = f()
memscope.mark(hostile)
#---
%memscope
#---
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
#---
%memscope nonsense
#---
%memscope marks
#---
%memscope timeline
#---
%memscope stop
#---
%memscope stop
"#;

#[test]
fn the_magic_in_a_kernel() {
    let daemon = Daemon::start();
    let folder = scratch();
    let file = folder.path().join("cells");
    std::fs::write(&file, CELLS).unwrap();
    let cells = executed(&daemon, &file);
    let text = |at: usize| text(&cells[at]);

    assert!(
        text(1).contains("no memory of a device is known"),
        "{}",
        text(1)
    );
    // What came and went by line, and the peak as PyTorch has it.
    let measured = text(3);
    let lines: Vec<&str> = measured.lines().collect();
    let line = |beginning: &str| {
        let found = lines.iter().find(|line| line.starts_with(beginning));
        found.unwrap_or_else(|| panic!("no line {beginning:?} in {measured}"))
    };
    assert!(lines.contains(&"42"), "{measured}");
    for (beginning, numbers) in [
        ("1 ", ["12,000,256", "1", "0", "12,000,256"]),
        ("4 ", ["4,003,840", "10", "3,603,456", "400,384"]),
        ("5 ", ["2,001,920", "10", "0", "2,001,920"]),
    ] {
        let words: Vec<&str> = line(beginning).split_whitespace().collect();
        let at = words.iter().position(|word| *word == numbers[0]);
        let at = at.unwrap_or_else(|| panic!("{words:?} has no {}", numbers[0]));
        assert_eq!(words[at..at + 4], numbers, "{measured}");
    }
    // Of what an earlier cell had allocated, the place is told.
    assert!(measured.contains("-4,000,256"), "{measured}");
    let peak: u64 = text(4).trim().parse().unwrap();
    assert_eq!(after(&measured, "peak "), peak, "{measured}");
    assert!(
        measured.contains(&format!("peak {} (exact", shown(peak))),
        "{measured}"
    );
    // The second time, it is not the largest since the attach.
    let peak: u64 = text(6).trim().parse().unwrap();
    assert!(
        text(5).contains(&format!("peak {} (exact)", shown(peak))),
        "{}",
        text(5)
    );
    // A cell that fails is measured, and its error is there.
    assert!(text(7).contains("240,000,000"), "{}", text(7));
    let errors: Vec<_> = cells[7]["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["error"])
        .collect();
    assert!(errors.contains(&&json!("ZeroDivisionError")), "{errors:?}");

    // The numbers of now, and a hostile name does nothing.
    let holds = text(9);
    let told = text(10);
    let told: Vec<u64> = told
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(after(&holds, "device 0: "), told[0], "{holds}");
    assert_eq!(after(&holds, "bytes allocated, "), told[1], "{holds}");
    for at in [9, 12] {
        let page = cells[at]["outputs"][0]["html"].as_str().unwrap();
        assert!(!page.contains("<img src=x"), "{page}");
    }
    let page = cells[12]["outputs"][0]["html"].as_str().unwrap();
    assert!(
        page.contains("&lt;img src=x onerror=alert(1)&gt;"),
        "{page}"
    );
    assert_eq!(cells[9]["outputs"][0]["png"], true);

    assert_eq!(cells[11]["outputs"][0]["error"], "MagicError");
    assert!(
        text(11).contains("%memscope nonsense is not known"),
        "{}",
        text(11)
    );
    assert_eq!(cells[13]["outputs"][0]["png"], true);
    assert_eq!(text(14), "");
    assert!(text(15).contains("is not traced"), "{}", text(15));
}

/// At level `read`, each question reads the pool: what is there is found, and nothing is seen to come or to go.
#[test]
fn a_cell_whose_memory_is_found_by_a_reading() {
    let daemon = Daemon::start();
    let folder = scratch();
    let file = folder.path().join("cells");
    let cells = r#"import torch, memscope
memscope.config(level="read")
%load_ext memscope
a = torch.empty(1000000, device="cuda")
#---
%%memscope
b = torch.empty(3000000, device="cuda")
#---
%%memscope
del b
"#;
    std::fs::write(&file, cells).unwrap();
    let cells = executed(&daemon, &file);
    let (found, gone) = (text(&cells[1]), text(&cells[2]));
    for told in [
        "device 0: 4,000,256 bytes before, 16,000,512 after (+12,000,256)",
        "12,000,256 bytes were found that nobody saw come: they are in left_bytes only",
    ] {
        assert!(found.contains(told), "{found}");
    }
    // What there was between two readings is not known.
    assert!(found.contains("(at least: level read"), "{found}");
    assert!(!found.contains("(exact"), "{found}");
    assert!(gone.contains("(-12,000,256)"), "{gone}");
    assert!(!gone.contains("were found"), "{gone}");
    for (said, numbers) in [
        (&found, ["0", "0", "0", "12,000,256"]),
        (&gone, ["0", "0", "12,000,256", "-12,000,256"]),
    ] {
        let has = said.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(4).any(|window| window == numbers)
        });
        assert!(has, "no {numbers:?} in {said}");
    }
}

#[test]
fn the_example_notebook() {
    let daemon = Daemon::start();
    let cells = executed(
        &daemon,
        &root().join("clients/python/examples/memory.ipynb"),
    );
    for cell in &cells {
        for output in cell["outputs"].as_array().unwrap() {
            assert_eq!(output["error"], Value::Null, "{cell:#}");
        }
    }
    let of = |source: &str| {
        let mut found = cells
            .iter()
            .filter(|cell| cell["source"].as_str().unwrap().starts_with(source));
        text(
            found
                .next_back()
                .unwrap_or_else(|| panic!("no cell {source:?}")),
        )
    };
    let told = of("print(");
    let told: Vec<u64> = told
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let holds = of("%memscope");
    assert!(
        of("%%memscope").contains("train(20)"),
        "{}",
        of("%%memscope")
    );
    assert!(
        of("%memscope steps").contains("Optimizer.step"),
        "{}",
        of("%memscope steps")
    );
    assert!(
        of("%memscope owners").contains("optimizer_state"),
        "{holds}"
    );
    // The sum of the blocks is what PyTorch has handed out.
    assert!(
        of("import memscope").contains(&told[0].to_string()),
        "{}",
        of("import memscope")
    );
}

#[test]
fn the_magic_in_a_terminal() {
    let daemon = Daemon::start();
    let folder = scratch();
    let mut command = sim().python_with_package("terminal.py");
    at_home(&mut command, folder.path());
    let path = [sources(), packages()];
    command
        .env("PYTHONPATH", std::env::join_paths(path).unwrap())
        .env("MEMSCOPE_SOCKET", daemon.socket());
    let mut shell = Program::start("a shell of IPython", command);
    let mut run = |cell: &str| {
        shell.tell(&json!(cell).to_string());
        shell.hear()
    };
    assert_eq!(run("import torch\n%load_ext memscope")["well"], true);
    // IPython leaves out the empty lines that a cell begins with, and numbers the others without them.
    let said = run("%%memscope\n\n  \nkept = torch.empty(1000000, device='cuda')\n");
    assert_eq!(said["well"], true, "{said:#}");
    let gave = said["said"].as_str().unwrap();
    assert!(
        gave.contains("kept = torch.empty(1000000, device='cuda')"),
        "{said:#}"
    );
    assert!(gave.contains("peak 4,000,256 (exact"), "{said:#}");
    let said = run("%memscope");
    assert!(
        said["gave"]
            .as_str()
            .unwrap()
            .contains("device 0: 4,000,256 bytes allocated"),
        "{said:#}"
    );
    drop(daemon);
    // Without a daemon it is told what is missing.
    let said = run("%memscope leaks");
    assert_eq!(said["well"], false);
    assert!(
        said["said"]
            .as_str()
            .unwrap()
            .contains("no daemon answers at"),
        "{said:#}"
    );
}
