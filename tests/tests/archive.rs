//! The archive: what DuckDB and ClickHouse's engine read in it is what the daemon says, once and only once, whatever dies or fails meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Daemon, LONG, MIB, Program, SHORT, SmallDisk, TempDir, Torch, Value, device, eventually, json,
    number, piped, root, scratch, tool, until,
};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const ENGINES: [&str; 2] = ["duckdb", "clickhouse"];

/// The Python with both engines and moto.
fn python() -> PathBuf {
    let python = root().join("target/archive/bin/python");
    assert!(
        python.exists(),
        "no {}; cargo xtask setup --archive makes it",
        python.display()
    );
    python
}

fn script(name: &str) -> PathBuf {
    root().join("tests/archive").join(name)
}

/// Asks one engine; a list of rows for each query.
fn ask(engine: &str, queries: &[String]) -> Vec<Vec<Value>> {
    let mut command = Command::new(python());
    command.arg(script("ask.py")).arg(engine);
    let said = piped(&mut command, &json!(queries).to_string());
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{engine} {queries:#?}: {errors}");
    let answers: Value = String::from_utf8(said.stdout).unwrap().parse().unwrap();
    let lists = answers.as_array().unwrap().iter();
    lists.map(|rows| rows.as_array().unwrap().clone()).collect()
}

/// A table of an archive as the engine reads it.
fn table(engine: &str, archive: &Path, name: &str) -> String {
    let files = format!("'{}/{name}/v1/**/*.parquet'", archive.display());
    match engine {
        "duckdb" => {
            format!("read_parquet({files}, hive_partitioning = true, union_by_name = true)")
        }
        _ => format!("file({files}, 'Parquet')"),
    }
}

/// Asks both engines the same, which must answer alike. `{TABLE}` in a query stands for a table.
fn both(archive: &Path, queries: &[&str]) -> Vec<Vec<Value>> {
    let [one, other] = ENGINES.map(|engine| {
        let with = |query: &&str| {
            let mut text = (*query).to_owned();
            for name in [
                "findings",
                "steps",
                "peaks",
                "stacks",
                "ooms",
                "snapshots",
                "events",
                "gaps",
            ] {
                let place = format!("{{{name}}}");
                if text.contains(&place) {
                    text = text.replace(&place, &table(engine, archive, name));
                }
            }
            if engine == "clickhouse" {
                text.push_str(" SETTINGS use_hive_partitioning = 1");
            }
            text
        };
        ask(engine, &queries.iter().map(with).collect::<Vec<String>>())
    });
    assert_eq!(one, other, "DuckDB and ClickHouse: {queries:#?}");
    one
}

fn only(rows: &[Value]) -> Vec<Value> {
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows[0].as_array().unwrap().clone()
}

/// A running memscope-archive.
struct Archive {
    program: Program,
}

fn command(daemon: &Daemon, to: &str, spool: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(tool("memscope-archive"));
    command
        .args([
            "--to",
            to,
            "--cluster",
            "of a test",
            "--node",
            "node-1",
            "--every",
            "1",
        ])
        .arg("--socket")
        .arg(daemon.socket())
        .arg("--spool")
        .arg(spool)
        .args(more);
    command
}

impl Archive {
    fn start(daemon: &Daemon, to: &str, spool: &Path, more: &[&str]) -> Archive {
        Archive::of(command(daemon, to, spool, more))
    }

    fn of(command: Command) -> Archive {
        Archive {
            program: Program::start("memscope-archive", command),
        }
    }

    /// Ends it as `systemctl stop` does.
    fn stop(mut self) -> String {
        self.program.signal(libc::SIGTERM);
        let status = self.program.wait();
        eventually("it says that it ends", || {
            self.program.errors().contains("the archive ends")
        });
        let said = self.program.errors();
        assert!(
            status.success() && !said.contains("panicked"),
            "{status}: {said}"
        );
        said
    }

    fn kill(mut self) {
        self.program.kill();
    }
}

/// Whether everything of a process is archived: nothing waits, and its last numbers are in a batch.
fn is_written(spool: &Path, process: &Value) -> bool {
    let handle = number(&process["handle"]);
    let mut batches: Vec<PathBuf> = std::fs::read_dir(spool)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("batch-"))
        })
        .collect();
    batches.sort();
    let Some(newest) = batches.last() else {
        return false;
    };
    let Ok(text) = std::fs::read_to_string(newest.join("manifest.json")) else {
        return false;
    };
    let manifest: Value = text.parse().unwrap();
    let processes = manifest["cursor"]["processes"].as_object().unwrap();
    let ended = processes
        .iter()
        .any(|(name, seen)| name.ends_with(&format!("/{handle}")) && seen["ended"] == true);
    let waiting = batches.iter().any(|batch| {
        std::fs::read_dir(batch)
            .into_iter()
            .flatten()
            .any(|file| file.is_ok_and(|file| file.file_name() != "manifest.json"))
    });
    ended && !waiting
}

fn places(archive: &Path) -> Vec<String> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(archive, &mut found);
    let inside = |path: &PathBuf| path.strip_prefix(archive).unwrap().display().to_string();
    found.iter().map(inside).collect()
}

/// What the daemon says of the steps of a process, as the archive has it: rows, steps, sums.
fn told_steps(daemon: &Daemon, pid: u32) -> Vec<Value> {
    let answer = daemon.json(&["steps", "--last", "10000", "--pid", &pid.to_string()]);
    let rows = answer["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{answer:#}");
    let sum = |field: &str| rows.iter().map(|row| number(&row[field])).sum::<u64>();
    let last = rows.iter().map(|row| number(&row["step"])).max().unwrap();
    vec![
        json!(rows.len()),
        json!(last),
        json!(sum("allocs")),
        json!(sum("frees")),
        json!(sum("allocated_bytes")),
        json!(sum("freed_bytes")),
        json!(sum("max_allocated_bytes")),
        json!(sum("end_reserved_bytes")),
    ]
}

const STEPS: &str = "SELECT count(*), max(step), sum(allocs), sum(frees), sum(allocated_bytes), sum(freed_bytes), sum(max_allocated_bytes), sum(end_reserved_bytes) FROM {steps}";

#[test]
fn both_engines_read_what_the_daemon_says() {
    let folder = scratch();
    let (archive, spool) = (folder.path().join("archive"), folder.path().join("spool"));
    std::fs::create_dir(&archive).unwrap();
    let daemon = Daemon::start();
    let to = format!("file://{}", archive.display());
    let checked = command(&daemon, &to, &spool, &["--check"])
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(
        places(&archive),
        Vec::<String>::new(),
        "the check leaves nothing"
    );
    let running = Archive::start(&daemon, &to, &spool, &["--events", "all"]);
    // A name that leads elsewhere, if it is let.
    let mut torch = Torch::start(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("SLURM_JOB_ID", "../../77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_NAME", "a 'job'"),
    ]);
    let pid = torch.pid();
    eventually("events are listened to", || {
        running.program.errors().contains("the archive begins")
    });
    daemon.attach(pid, "trace");
    torch.ask("train 5");
    torch.ask("leak 260 1500000 5");
    torch.ask("oom 2");
    until(LONG, "the leak is found", || {
        let process = daemon.process(pid)?;
        (number(&process["growing_lines"]) > 0).then_some(())
    });
    let kept = until(SHORT, "the snapshot is there", || {
        let snapshots = daemon.json(&["snapshots"]);
        let list = snapshots["snapshots"].as_array()?.clone();
        (!list.is_empty()).then_some(list)
    });
    torch.kill();
    let process = until(SHORT, "it is known that it ended", || {
        let process = daemon.process(pid)?;
        (process["state"] == "exited").then_some(process)
    });
    until(LONG, "its end is archived", || {
        is_written(&spool, &process).then_some(())
    });
    running.stop();

    // Where things lie.
    for place in places(&archive) {
        assert!(
            place.contains("/v1/date=20") && place.contains("/cluster=of%20a%20test/job="),
            "{place}"
        );
        let known = ["slurm-..%2F..%2F77/", "none/"]
            .iter()
            .any(|job| place.contains(&format!("job={job}")));
        assert!(known, "{place}");
    }
    let stats = daemon.stats(pid);
    let held = device(&stats, 0);
    let answers = both(
        &archive,
        &[
            STEPS,
            "SELECT count(*), count(DISTINCT step), min(rank), max(world_size), min(pid), min(slurm_job), min(job_name), min(step_source) FROM {steps} WHERE source = 'pool'",
            "SELECT allocated_bytes, reserved_bytes, peak_allocated_bytes, peak_reserved_bytes, alloc_count, free_count, oom_count FROM {peaks} WHERE ended AND device = 0",
            "SELECT sum(count), max(oom_count) FROM {ooms}",
            "SELECT count(*), count(DISTINCT sequence) FROM {events}",
            "SELECT count(*) FROM {events} WHERE kind = 'exited'",
            "SELECT sum(peak_bytes), sum(allocated_bytes), sum(allocated_blocks) FROM {stacks} WHERE ended",
            "SELECT state, file, function, count(*) FROM {findings} GROUP BY state, file, function ORDER BY state DESC",
            "SELECT snapshot, file_bytes, trigger FROM {snapshots} ORDER BY snapshot",
            "SELECT count(DISTINCT cluster), min(schema_version), count(DISTINCT job) FROM {peaks}",
            "SELECT count(*) - count(address), count(*) - count(size_bytes), min(device), max(device) FROM {events} WHERE kind = 'trace' AND body LIKE '%\"action\":\"alloc\"%'",
        ],
    );
    assert_eq!(only(&answers[0]), told_steps(&daemon, pid));
    let steps = only(&answers[1]);
    assert_eq!(steps[0], steps[1], "each step once");
    assert_eq!(
        steps[2..],
        [
            json!(3),
            json!(8),
            json!(pid),
            json!("../../77"),
            json!("a 'job'"),
            json!("optimizer")
        ]
    );
    let names = [
        "allocated_bytes",
        "reserved_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "alloc_count",
        "free_count",
        "oom_count",
    ];
    assert_eq!(
        only(&answers[2]),
        names.map(|name| held[name].clone()),
        "{held:#}"
    );
    let count = held["oom_count"].clone();
    assert_eq!(only(&answers[3]), [count.clone(), count]);
    let events = only(&answers[4]);
    assert_eq!(events[0], events[1], "each event once");
    assert!(
        number(&events[0]) > number(&held["alloc_count"]),
        "{events:?}"
    );
    assert_eq!(only(&answers[5]), [json!(1)]);
    assert_eq!(only(&answers[10]), [json!(0), json!(0), json!(0), json!(0)]);
    let top = daemon.json(&["stacks", "--pid", &pid.to_string(), "--metric", "peak"]);
    let amounts = top["devices"].as_array().unwrap().iter();
    let sum = |amount: &str, of: &str| -> u64 {
        amounts
            .clone()
            .map(|it| number(&it["amounts"][amount][of]))
            .sum()
    };
    assert_eq!(
        only(&answers[6]),
        [
            json!(sum("peak", "bytes")),
            json!(sum("allocated", "bytes")),
            json!(sum("allocated", "count"))
        ]
    );
    // The finding is there, and how it ended.
    let findings = &answers[7];
    let line = findings
        .iter()
        .find(|row| row[0] == "standing")
        .expect("the finding");
    assert!(
        line[1].as_str().unwrap().ends_with("workloads/agent.py"),
        "{findings:#?}"
    );
    assert_eq!(line[2], "leak");
    let told = kept
        .iter()
        .map(|one| json!([one["snapshot"], one["bytes"], one["when"]]));
    assert_eq!(answers[8], told.collect::<Vec<Value>>());
    assert_eq!(only(&answers[9]), [json!(1), json!(1), json!(1)]);
    // A snapshot's file is the file, byte for byte.
    let content = format!(
        "SELECT content FROM {} ORDER BY snapshot LIMIT 1",
        table("duckdb", &archive, "snapshots")
    );
    let content = &ask("duckdb", &[content])[0][0][0];
    let file = std::fs::read(kept[0]["path"].as_str().unwrap()).unwrap();
    let digits: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(content == &json!(digits), "the file of the snapshot");

    examples_work(&archive);
    old_files_are_read_with_new_ones(&archive, &folder);
}

/// The queries of the page about the archive, each on its engine.
fn examples_work(archive: &Path) {
    let page = std::fs::read_to_string(root().join("docs/archive.md")).unwrap();
    let mut queries = [Vec::new(), Vec::new()];
    for block in page.split("```sql\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let text = text.replace("/srv/archive", archive.to_str().unwrap());
        let (engine, query) = text.split_once('\n').unwrap();
        match engine {
            "-- DuckDB" => queries[0].push(query.to_owned()),
            "-- ClickHouse" => queries[1].push(query.to_owned()),
            other => panic!("{other} is no engine"),
        }
    }
    assert!(queries[0].len() >= 5 && queries[0].len() == queries[1].len());
    let [one, other] = [0, 1].map(|place| ask(ENGINES[place], &queries[place]));
    for ((query, one), other) in queries[0].iter().zip(&one).zip(&other) {
        assert!(!one.is_empty(), "no rows: {query}");
        // ClickHouse leaves the names of folders as they are.
        let decoded = json!(other).to_string().replace("%2F", "/");
        assert_eq!(json!(one).to_string(), decoded, "{query}");
    }
}

/// A file of a writer that did not know a column yet, and one of a writer that knows one more, are read together with those of this one.
fn old_files_are_read_with_new_ones(archive: &Path, folder: &TempDir) {
    let mixed = folder.path().join("mixed");
    let place = "steps/v1/date=2026-01-01/cluster=old/job=none";
    std::fs::create_dir_all(mixed.join(place)).unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(archive.join("steps"))
        .arg(&mixed)
        .status();
    assert!(copied.unwrap().success());
    let from = table("duckdb", archive, "steps");
    let into = |name: &str| mixed.join(place).join(name).display().to_string();
    let plain = "date, cluster, job";
    ask(
        "duckdb",
        &[
            format!(
                "COPY (SELECT * EXCLUDE ({plain}, frees, end_reserved_bytes) FROM {from} LIMIT 7) TO '{}' (FORMAT parquet)",
                into("older.parquet")
            ),
            format!(
                "COPY (SELECT * EXCLUDE ({plain}), 42::BIGINT AS a_later_column FROM {from} LIMIT 5) TO '{}' (FORMAT parquet)",
                into("newer.parquet")
            ),
        ],
    );
    let query = format!(
        "SELECT count(*), count(frees), count(a_later_column), max(a_later_column), count(allocs) FROM {}",
        table("duckdb", &mixed, "steps")
    );
    let here = format!("SELECT count(*) FROM {from}");
    let answers = ask("duckdb", &[query, here]);
    let count = number(&answers[1][0][0]);
    assert_eq!(
        only(&answers[0]),
        [
            json!(count + 12),
            json!(count + 5),
            json!(5),
            json!(42),
            json!(count + 12)
        ]
    );
    // ClickHouse takes what a file lacks as null, and what it has besides as not asked for.
    let files = format!("'{}/steps/v1/**/*.parquet'", mixed.display());
    let query = format!(
        "SELECT count(*), count(frees), count(a_later_column), max(a_later_column), count(allocs) FROM file({files}, 'Parquet') SETTINGS schema_inference_mode = 'union', schema_inference_make_columns_nullable = 1"
    );
    assert_eq!(ask("clickhouse", &[query])[0], answers[0]);
}

#[test]
fn killed_at_random_moments_it_writes_everything_once() {
    let folder = scratch();
    let (archive, spool) = (folder.path().join("archive"), folder.path().join("spool"));
    std::fs::create_dir(&archive).unwrap();
    let to = format!("file://{}", archive.display());
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    // Another listener, of which nothing is killed.
    let mut listens = Command::new(tool("memscope-ctl"));
    listens.arg("--socket").arg(daemon.socket());
    listens.args(["events", "--json", "--kind", "trace"]);
    let mut listener = Program::start("memscope-ctl events", listens);
    torch.tell("leak 1500 300000 5");
    // Numbers of a generator that is the same in each run.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut killed_with_batches = 0;
    for _ in 0..12 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let running = Archive::start(&daemon, &to, &spool, &["--events", "all"]);
        std::thread::sleep(std::time::Duration::from_millis(random % 1500));
        running.kill();
        killed_with_batches += usize::from(!places(&archive).is_empty());
    }
    assert!(killed_with_batches > 3, "{killed_with_batches}");
    let running = Archive::start(&daemon, &to, &spool, &["--events", "all"]);
    torch.hear();
    torch.ask("train 3");
    torch.kill();
    let process = until(SHORT, "it is known that it ended", || {
        let process = daemon.process(pid)?;
        (process["state"] == "exited").then_some(process)
    });
    until(LONG, "its end is archived", || {
        is_written(&spool, &process).then_some(())
    });
    running.stop();
    let answers = both(
        &archive,
        &[
            STEPS,
            "SELECT count(*), count(DISTINCT step) FROM {steps} WHERE source = 'pool'",
            "SELECT count(*) FROM {peaks} WHERE ended",
            "SELECT count(*) FROM {findings} WHERE state = 'standing'",
            "SELECT count(*), count(DISTINCT number) FROM {findings} WHERE state = 'standing'",
            "SELECT count(*), count(DISTINCT sequence), min(sequence), max(sequence) FROM {events}",
            "SELECT from_number, to_number FROM {gaps} WHERE of_table = 'events' ORDER BY from_number",
            "SELECT count(*) FROM {gaps} WHERE of_table NOT IN ('events', 'findings')",
            "SELECT sequence FROM {events} ORDER BY sequence",
        ],
    );
    assert_eq!(only(&answers[0]), told_steps(&daemon, pid));
    let steps = only(&answers[1]);
    assert_eq!(steps[0], steps[1], "each step once");
    assert_eq!(only(&answers[2]), [json!(1)], "the end is told once");
    let findings = only(&answers[4]);
    assert!(
        number(&findings[0]) > 0 && findings[0] == findings[1],
        "{findings:?}"
    );
    assert_eq!(only(&answers[7]), [json!(0)], "nothing else is missing");
    // What the other listener heard is in the archive, or in a gap: not in both, and not in none.
    let events = only(&answers[5]);
    assert_eq!(events[0], events[1], "each event once");
    let numbers: BTreeSet<u64> = answers[8].iter().map(|row| number(&row[0])).collect();
    let mut gaps = Vec::new();
    for gap in &answers[6] {
        let (from, to) = (number(&gap[0]), number(&gap[1]));
        assert!(from <= to, "{gap}");
        assert_eq!(
            numbers.range(from..=to).next(),
            None,
            "an event in a gap: {gap}"
        );
        gaps.push((from, to));
    }
    assert!(!gaps.is_empty(), "it was killed often");
    let missing = |next: u64| !gaps.iter().any(|(from, to)| (*from..=*to).contains(&next));
    let (first, last) = (*numbers.first().unwrap(), *numbers.last().unwrap());
    let mut heard = BTreeSet::new();
    while let Some(event) = listener.heard() {
        heard.insert(number(&event["id"]["sequence"]));
    }
    listener.kill();
    assert!(heard.range(first..=last).count() > 1000, "{}", heard.len());
    let untold = heard.range(first..=last);
    let untold: Vec<&u64> = untold
        .filter(|number| !numbers.contains(number) && missing(**number))
        .collect();
    assert!(
        untold.is_empty(),
        "{} are nowhere, as {:?}",
        untold.len(),
        untold.first()
    );
}

const PASS: u8 = 0;
const BUSY: u8 = 1;
const CUT: u8 = 2;
const CLOSED: u8 = 3;

/// Stands between the archive and a store, and has it fail.
struct Between {
    address: String,
    mode: Arc<AtomicU8>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    failed: Arc<AtomicUsize>,
}

impl Between {
    fn start(store: String) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between {
            address: listener.local_addr().unwrap().to_string(),
            mode: Arc::default(),
            streams: Arc::default(),
            failed: Arc::default(),
        };
        let (mode, streams) = (Arc::clone(&between.mode), Arc::clone(&between.streams));
        let failed = Arc::clone(&between.failed);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                streams.lock().unwrap().push(client.try_clone().unwrap());
                let (mode, failed, store) = (
                    mode.load(Ordering::SeqCst),
                    Arc::clone(&failed),
                    store.clone(),
                );
                std::thread::spawn(move || serve(client, mode, &failed, &store));
            }
        });
        between
    }

    /// From now on it does this; connections that there are end.
    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Serves one connection, and ends it. What else has it open does not keep it then.
fn serve(client: TcpStream, mode: u8, failed: &AtomicUsize, store: &str) {
    if mode != PASS {
        failed.fetch_add(1, Ordering::SeqCst);
    }
    serve_as(client.try_clone().unwrap(), mode, store);
    let _ = client.shutdown(Shutdown::Both);
}

fn serve_as(mut client: TcpStream, mode: u8, store: &str) {
    match mode {
        CLOSED => {}
        BUSY => {
            let _ = client.read(&mut [0; 65536]);
            let answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = client.write_all(answer.as_bytes());
        }
        _ => {
            let Ok(mut upstream) = TcpStream::connect(store) else {
                return;
            };
            let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            let there = std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            if mode == CUT {
                // The store has done it, and its answer never arrives.
                let _ = upstream.read(&mut [0; 65536]);
            } else {
                let _ = std::io::copy(&mut upstream, &mut client);
            }
            let _ = client.shutdown(Shutdown::Both);
            let _ = upstream.shutdown(Shutdown::Both);
            let _ = there.join();
        }
    }
}

/// moto's S3, at an address of its own.
struct Store {
    address: String,
    _program: Program,
}

impl Store {
    fn start(address: Option<String>) -> Store {
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .to_string()
        };
        let address = address.unwrap_or_else(free);
        let (host, port) = address.split_once(':').unwrap();
        let mut command = Command::new(python());
        command.args(["-m", "moto.server", "-H", host, "-p", port]);
        let program = Program::start("moto", command);
        until(LONG, "moto answers", || TcpStream::connect(&address).ok());
        Store {
            address,
            _program: program,
        }
    }

    fn client(&self, arguments: &[&str]) {
        let mut command = Command::new(python());
        command
            .arg(script("store.py"))
            .arg(format!("http://{}", self.address))
            .args(arguments);
        let said = command.output().unwrap();
        assert!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
}

#[test]
fn a_store_that_fails_gets_everything_once() {
    let folder = scratch();
    let (archive, spool) = (folder.path().join("archive"), folder.path().join("spool"));
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    // The store is not there yet, and then it is, at the same address.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let between = Between::start(address.clone());
    let mut archiving = command(&daemon, "s3://bucket/a-prefix", &spool, &[]);
    archiving
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "a-secret-word")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ENDPOINT", format!("http://{}", between.address))
        .env("AWS_ALLOW_HTTP", "true");
    let running = Archive::of(archiving);
    torch.ask("train 20");
    until(LONG, "it is told that the store is not there", || {
        running
            .program
            .errors()
            .contains("the store does not take a file")
            .then_some(())
    });
    let store = Store::start(Some(address));
    store.client(&["make", "bucket"]);
    until(LONG, "the store takes files again", || {
        running
            .program
            .errors()
            .contains("the store takes files again")
            .then_some(())
    });
    for mode in [BUSY, CUT, CLOSED, BUSY, CUT] {
        let before = between.failed.load(Ordering::SeqCst);
        between.set(mode);
        torch.ask("train 20");
        until(LONG, "it has failed", || {
            (between.failed.load(Ordering::SeqCst) > before).then_some(())
        });
        between.set(PASS);
        torch.ask("train 20");
    }
    torch.kill();
    let process = until(SHORT, "it is known that it ended", || {
        let process = daemon.process(pid)?;
        (process["state"] == "exited").then_some(process)
    });
    until(LONG, "its end is archived", || {
        is_written(&spool, &process).then_some(())
    });
    let said = running.stop();
    assert!(!said.contains("a-secret-word"), "{said}");
    store.client(&["get", "bucket", archive.to_str().unwrap()]);
    let archive = archive.join("a-prefix");
    let answers = both(
        &archive,
        &[
            STEPS,
            "SELECT count(*), count(DISTINCT step) FROM {steps} WHERE source = 'pool'",
            "SELECT count(*) FROM {peaks} WHERE ended",
        ],
    );
    assert_eq!(only(&answers[0]), told_steps(&daemon, pid));
    let steps = only(&answers[1]);
    assert_eq!(steps[0], steps[1], "each step once");
    assert_eq!(only(&answers[2]), [json!(1)]);
    // ClickHouse reads them from the store itself.
    let there = format!(
        "SELECT count(*), max(step) FROM s3('http://{}/bucket/a-prefix/steps/v1/**/*.parquet', 'key', 'word', 'Parquet')",
        store.address
    );
    let told = told_steps(&daemon, pid);
    assert_eq!(only(&ask("clickhouse", &[there])[0]), told[..2]);
}

#[test]
fn a_full_spool_and_a_full_disk_are_told_and_nothing_else_is_lost() {
    let folder = scratch();
    let archive = folder.path().join("archive");
    let disk = SmallDisk::over(&folder.path().join("disk"), 4 * MIB);
    let (spool, full) = (disk.folder().join("spool"), disk.folder().join("full"));
    std::fs::create_dir(&archive).unwrap();
    let to = format!("file://{}", archive.display());
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    // A store that takes nothing: where its first folders would be there are files.
    let blocked: Vec<PathBuf> = [
        "events",
        "findings",
        "gaps",
        "ooms",
        "peaks",
        "snapshots",
        "stacks",
        "steps",
    ]
    .iter()
    .map(|name| archive.join(name))
    .collect();
    for path in &blocked {
        std::fs::write(path, "").unwrap();
    }
    let running = Archive::start(
        &daemon,
        &to,
        &spool,
        &["--events", "all", "--spool-mib", "1"],
    );
    until(LONG, "events are dropped", || {
        torch.ask("train 40");
        running
            .program
            .errors()
            .contains("the oldest events are dropped")
            .then_some(())
    });
    torch.ask("train 30");
    // Now the disk is full as well.
    let mut filler = std::fs::File::create(&full).unwrap();
    while filler.write_all(&[7; 4096]).is_ok() {}
    torch.ask("train 30");
    until(LONG, "a full disk is told", || {
        running
            .program
            .errors()
            .contains("no batch is closed")
            .then_some(())
    });
    std::fs::remove_file(&full).unwrap();
    drop(filler);
    for path in &blocked {
        std::fs::remove_file(path).unwrap();
    }
    until(LONG, "batches are closed again", || {
        running
            .program
            .errors()
            .contains("batches are closed again")
            .then_some(())
    });
    torch.kill();
    let process = until(SHORT, "it is known that it ended", || {
        let process = daemon.process(pid)?;
        (process["state"] == "exited").then_some(process)
    });
    until(LONG, "its end is archived", || {
        is_written(&spool, &process).then_some(())
    });
    running.stop();
    let answers = both(
        &archive,
        &[
            STEPS,
            "SELECT count(*), count(DISTINCT sequence), min(sequence), max(sequence) FROM {events}",
            "SELECT count(*), count(DISTINCT object) FROM {gaps} WHERE reason = 'dropped' AND of_table = 'events' AND missing > 0",
            "SELECT count(*) FROM {gaps} WHERE of_table NOT IN ('events')",
            "SELECT object FROM {gaps} WHERE reason = 'dropped' ORDER BY object",
        ],
    );
    assert_eq!(only(&answers[0]), told_steps(&daemon, pid));
    let dropped = only(&answers[2]);
    assert!(
        number(&dropped[0]) > 0 && dropped[0] == dropped[1],
        "{dropped:?}"
    );
    assert_eq!(only(&answers[3]), [json!(0)], "nothing else is missing");
    for object in &answers[4] {
        let path = archive.join(object[0].as_str().unwrap());
        assert!(!path.exists(), "{} was told to be dropped", path.display());
    }
}
