//! OTLP: what a collector receives is what Prometheus is told, findings and memory that ran out come as log records, and a collector that
//! is away, slow or unwilling costs nothing that is not counted. The receiver is made of OpenTelemetry's own packages for Python.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::certificates::Authority;
use memscope_tests::nvml::Machine;
use memscope_tests::{
    BpfFs, Daemon, LONG, Program, SHORT, TempDir, Torch, Value, eventually, json, metrics_of,
    number, root, scratch, until, workload_line,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const GIB: u64 = 1 << 30;
const SECRET: &str = "Bearer k3y-that-nobody-may-see";

/// The protocols: the word for memscoped, and that for the receiver.
const GRPC: Protocol = Protocol("grpc", "grpc");
const HTTP: Protocol = Protocol("http/protobuf", "http");

#[derive(Clone, Copy, PartialEq)]
struct Protocol(&'static str, &'static str);

/// A collector.
struct Receiver {
    program: Program,
    port: u64,
    file: PathBuf,
    protocol: Protocol,
}

impl Receiver {
    fn start(protocol: Protocol, folder: &Path, arguments: &[&str]) -> Receiver {
        let python = root().join("target/clients/python/bin/python");
        assert!(
            python.exists(),
            "no {}: cargo xtask setup --clients",
            python.display()
        );
        let file = folder.join("received");
        let mut command = Command::new(python);
        command
            .arg(root().join("tests/clients/otlp_receiver.py"))
            .args([protocol.1])
            .arg(&file)
            .args(arguments);
        let mut program = Program::start("the receiver", command);
        let port = number(&program.hear()["port"]);
        Receiver {
            program,
            port,
            file,
            protocol,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A daemon that sends here each second, and whose metrics can be fetched.
    fn daemon(&self, arguments: &[&str]) -> Daemon {
        let url = self.url();
        sends_to(&url, self.protocol, arguments)
    }

    /// Says how the next requests are answered.
    fn answers(&mut self, signal: &str, answers: &Value) {
        self.program.ask(&json!({ signal: answers }).to_string());
    }

    /// All requests so far.
    fn received(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // The last line may not be whole yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The requests with metrics.
    fn metrics(&self) -> Vec<Value> {
        let all = self.received().into_iter();
        all.filter(|one| one["signal"] == "metrics").collect()
    }

    /// The last request with metrics. Only that one is parsed, so that it is not old when it is compared.
    fn last_metrics(&self) -> Option<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let whole = &text[..text.rfind('\n')?];
        let mut lines = whole.lines().rev();
        let last = lines.find(|line| line.starts_with(r#"{"signal": "metrics""#))?;
        Some(last.parse().unwrap())
    }

    /// The log records.
    fn records(&self) -> Vec<Record> {
        let all = self.received().into_iter();
        let logs = all.filter(|one| one["signal"] == "logs");
        let records = logs.flat_map(|one| {
            let records = &one["message"]["resource_logs"][0]["scope_logs"][0]["log_records"];
            records.as_array().unwrap().clone()
        });
        records.map(Record).collect()
    }

    /// The record of this name about a process.
    fn record(&self, name: &str, pid: u32) -> Option<Record> {
        let mut all = self.records().into_iter();
        all.find(|one| one.0["event_name"] == name && one.of("process.pid") == pid.to_string())
    }

    /// What Prometheus's own parser reads in a text.
    fn parsed(&mut self, text: &str) -> Value {
        let line = json!({ "open_metrics": text }).to_string();
        self.program.ask(&line)["samples"].clone()
    }
}

/// A daemon that sends to this URL each second.
fn sends_to(url: &str, protocol: Protocol, arguments: &[&str]) -> Daemon {
    let all = [&sending_to(url, protocol)[..], arguments].concat();
    Daemon::with(&all)
}

fn sending_to(url: &str, protocol: Protocol) -> [&str; 8] {
    [
        "--metrics",
        "127.0.0.1:0",
        "--otlp-endpoint",
        url,
        "--otlp-protocol",
        protocol.0,
        "--otlp-interval-s",
        "1",
    ]
}

/// A log record.
#[derive(Clone, Debug)]
struct Record(Value);

impl Record {
    /// An attribute as text; empty if it is not there.
    fn of(&self, key: &str) -> String {
        let all = self.0["attributes"].as_array().unwrap();
        let Some(found) = all.iter().find(|one| one["key"] == key) else {
            return String::new();
        };
        let value = found["value"].as_object().unwrap().values().next().unwrap();
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    }

    fn headline(&self) -> &str {
        self.0["body"]["string_value"].as_str().unwrap()
    }
}

/// A number that the daemon counts of what it sends.
fn counted(daemon: &Daemon, series: &str) -> f64 {
    let text = metrics_of(daemon);
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("no {series} in {text}"))
        .trim()
        .parse()
        .unwrap()
}

fn sent(daemon: &Daemon) -> f64 {
    counted(daemon, "memscope_otlp_sent_total{signal=\"metrics\"}")
}

fn dropped(daemon: &Daemon, cause: &str) -> f64 {
    let series = format!("memscope_otlp_dropped_total{{signal=\"metrics\",cause=\"{cause}\"}}");
    counted(daemon, &series)
}

fn retries(daemon: &Daemon) -> f64 {
    counted(daemon, "memscope_otlp_retries_total{signal=\"metrics\"}")
}

/// Which attribute each label is: the table of docs/metrics.md.
fn conventions() -> BTreeMap<String, String> {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let row = line.strip_prefix("| `")?.strip_suffix("` |")?;
        let (label, attribute) = row.split_once("` | `")?;
        Some((label.to_owned(), attribute.replace('.', "_")))
    });
    let found: BTreeMap<String, String> = rows.collect();
    assert!(found.len() > 8, "{found:?}");
    found
}

type Series = (String, BTreeMap<String, String>, u64);

/// Samples as a set: name, labels, and the bits of the value.
fn set(samples: &Value) -> BTreeSet<Series> {
    let all = samples.as_array().unwrap().iter().map(|one| {
        let labels = one[1].as_object().unwrap().iter();
        let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        let value = one[2].as_f64().unwrap().to_bits();
        (one[0].as_str().unwrap().to_owned(), labels.collect(), value)
    });
    all.collect()
}

/// What Prometheus would have of the daemon's own text by way of a collector: the same names and values. The labels come from the
/// attributes of the data points.
fn by_way_of_a_collector(own: BTreeSet<Series>) -> BTreeSet<Series> {
    let conventions = conventions();
    let translated = own.into_iter().map(|(name, labels, value)| {
        let mut all = BTreeMap::new();
        for (label, text) in labels {
            let own = format!("memscope_{label}");
            let (key, text) = match (&*label, &*text) {
                ("device" | "line", "unknown") => continue,
                ("pid", "other") => ("memscope_together".to_owned(), "true".to_owned()),
                ("line", text) => {
                    let (file, number) = text.rsplit_once(':').unwrap();
                    all.insert("code_file_path".to_owned(), file.to_owned());
                    ("code_line_number".to_owned(), number.to_owned())
                }
                _ => (conventions.get(&label).cloned().unwrap_or(own), text),
            };
            all.insert(key, text);
        }
        (name, all, value)
    });
    translated.collect()
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u64
}

/// The data points of a metric in a request, with what kind it is.
fn points<'a>(request: &'a Value, name: &str) -> Option<(&'a Value, &'a Vec<Value>)> {
    let metrics = &request["message"]["resource_metrics"][0]["scope_metrics"][0]["metrics"];
    let mut metrics = metrics.as_array().unwrap().iter();
    let metric = metrics.find(|one| one["name"] == name)?;
    let data = metric.get("sum").or_else(|| metric.get("gauge")).unwrap();
    Some((metric, data["data_points"].as_array().unwrap()))
}

fn nanoseconds(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

/// The same of both: every data point with its labels, from a process that leaks, has run out of memory and is one of a job.
fn everything_is_what_prometheus_is_told(protocol: Protocol) {
    let folder = scratch();
    let mut receiver = Receiver::start(protocol, folder.path(), &[]);
    let before = now_ns();
    let machine = Machine::new(&[2 * GIB]);
    let url = receiver.url();
    let daemon = machine.daemon(&sending_to(&url, protocol));
    let started = now_ns();
    let mut torch = Torch::start(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_NAME", "a \"name\"\\with\nall"),
    ]);
    let attaching = now_ns();
    daemon.attach(torch.pid(), "trace");
    let attached = now_ns();
    torch.ask("train 5");
    torch.ask("oom 2");
    torch.ask("leak 200 1500000 5");
    eventually("the leak is among the metrics", || {
        metrics_of(&daemon).contains("memscope_finding_live_bytes{")
    });
    // A request and a text are of the same moment if the text was fetched within the second that numbers are kept for. All of them, and
    // nothing else, must be in both then.
    // OpenTelemetry's specification has `_ratio` for a gauge with the unit 1; of all of it, the exporter for Python leaves out just this.
    let ratio = |mut one: Series| {
        if one.0 == "memscope_fragmentation" {
            one.0.push_str("_ratio");
        }
        one
    };
    let deadline = Instant::now() + LONG;
    let (same, own) = loop {
        let request = receiver.last_metrics().unwrap();
        let text = metrics_of(&daemon);
        let own = by_way_of_a_collector(set(&receiver.parsed(&text)));
        let sent: BTreeSet<Series> = set(&request["prometheus"]).into_iter().map(ratio).collect();
        if own == sent {
            break (request, own);
        }
        let differ: Vec<&Series> = own.symmetric_difference(&sent).collect();
        assert!(Instant::now() < deadline, "never the same: {differ:#?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(own.len() > 50, "{own:#?}");
    let names: BTreeSet<&str> = own.iter().map(|(name, _, _)| &**name).collect();
    for name in [
        "memscope_finding_growth_bytes_per_second",
        "memscope_growth_bytes_per_step",
        "memscope_daemon_cpu_seconds_total",
        "memscope_fragmentation_ratio",
        "hw_gpu_memory_usage_bytes",
        "memscope_otlp_sent_total",
    ] {
        assert!(names.contains(name), "{name} in {names:?}");
    }

    // What only grows says so, and since when.
    let (metric, allocations) = points(&same, "memscope.allocations").unwrap();
    assert_eq!(metric["sum"]["is_monotonic"], true);
    assert_eq!(
        metric["sum"]["aggregation_temporality"],
        "AGGREGATION_TEMPORALITY_CUMULATIVE"
    );
    let since = nanoseconds(&allocations[0]["start_time_unix_nano"]);
    // The clock may have been corrected by a little meanwhile.
    let slack = 5_000_000;
    assert!(
        (attaching - slack..attached + slack).contains(&since),
        "{since}"
    );
    let (_, records) = points(&same, "memscope.records").unwrap();
    let since = nanoseconds(&records[0]["start_time_unix_nano"]);
    assert!(
        (before - slack..started + slack).contains(&since),
        "{since}"
    );
    let (metric, limit) = points(&same, "hw.gpu.memory.limit").unwrap();
    assert_eq!(metric["sum"].get("is_monotonic"), None, "false is left out");
    assert_eq!(metric["unit"], "By");
    assert_eq!(limit[0]["as_double"], 16.0 * GIB as f64);
    let attributes = limit[0]["attributes"].to_string();
    assert!(attributes.contains(&Machine::uuid(0)), "{attributes}");
    let (metric, allocated) = points(&same, "memscope.allocated").unwrap();
    assert_eq!(metric["unit"], "By");
    assert_eq!(allocated[0].get("start_time_unix_nano"), None);
    let (_, again) = points(&receiver.metrics()[0], "memscope.records")
        .map(|(metric, points)| (metric.clone(), points.clone()))
        .unwrap();
    assert_eq!(
        again[0]["start_time_unix_nano"], records[0]["start_time_unix_nano"],
        "a counter begins once"
    );

    // Who sent it.
    let resource = &same["message"]["resource_metrics"][0]["resource"];
    let resource = Record(resource.clone());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(resource.of("service.name"), "memscoped");
    assert_eq!(resource.of("service.version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(resource.of("host.name"), host.trim());
    assert_eq!(resource.of("os.type"), "linux");
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    assert_eq!(resource.of("host.id"), machine.trim());

    findings(&receiver, &daemon, &mut torch);
}

/// The log records of a process that leaks and has run out of memory.
fn findings(receiver: &Receiver, daemon: &Daemon, torch: &mut Torch) {
    let pid = torch.pid();
    let leak = until(SHORT, "the record about the leak", || {
        receiver.record("memscope.finding.reported", pid)
    });
    let planted = workload_line(
        "agent.py",
        "held.append(torch.empty(int(size), dtype=torch.uint8, device=DEVICE))",
    );
    assert_eq!(leak.0["severity_number"], "SEVERITY_NUMBER_WARN");
    assert!(leak.of("code.file.path").ends_with("workloads/agent.py"));
    assert_eq!(leak.of("code.line.number"), planted.to_string());
    assert_eq!(leak.of("code.function.name"), "leak");
    let headline = format!("memory keeps growing at agent.py:{planted} (leak): +");
    assert!(
        leak.headline().starts_with(&headline),
        "{}",
        leak.headline()
    );
    let stack = leak.of("code.stacktrace");
    assert!(
        stack.contains(&format!("agent.py\", line {planted}, in leak")),
        "{stack}"
    );
    assert_eq!(leak.of("memscope.job_id"), "slurm:77.0");
    assert_eq!(leak.of("memscope.rank"), "3");
    assert_eq!(leak.of("memscope.device"), "0");
    // PyTorch rounds 1,500,000 bytes to 512. A block that would leave little room behind it is not cut, so some are a little larger.
    let per_step: f64 = leak
        .of("memscope.finding.growth_bytes_per_step")
        .parse()
        .unwrap();
    assert!(
        (1_500_160.0..1_500_160.0 * 1.01).contains(&per_step),
        "{per_step}"
    );
    let confidence: f64 = leak.of("memscope.finding.confidence").parse().unwrap();
    assert!((0.5..=1.0).contains(&confidence), "{confidence}");
    let age = now_ns() - nanoseconds(&leak.0["time_unix_nano"]);
    assert!(age < 600_000_000_000, "{age} ns ago");
    // What the record says to type next is right.
    let command = leak.of("memscope.command");
    assert_eq!(command, format!("memscope-ctl leaks {pid}"));
    let said = daemon.ctl(&["leaks", &pid.to_string()]);
    assert!(
        said.output.contains(&format!("agent.py:{planted}")),
        "{said}"
    );

    // At that rate, what is free of the 16 GiB lasts for some minutes. How long is known as long as it goes on.
    let filling = until(LONG, "the record about the device", || {
        torch.ask("leak 20 1500000 5");
        receiver.record("memscope.finding.filling", pid)
    });
    assert_eq!(filling.0["severity_number"], "SEVERITY_NUMBER_ERROR");
    let left: f64 = filling.of("memscope.to_full_seconds").parse().unwrap();
    let rate: f64 = filling
        .of("memscope.finding.growth_bytes_per_second")
        .parse()
        .unwrap();
    let filled = left * rate / (14 * GIB) as f64;
    assert!((0.5..2.0).contains(&filled), "{left} s at {rate} bytes/s");
    assert_eq!(
        filling.of("memscope.finding.number"),
        leak.of("memscope.finding.number")
    );

    let oom = until(SHORT, "the record about memory that ran out", || {
        receiver.record("memscope.out_of_memory", pid)
    });
    assert_eq!(oom.0["severity_number"], "SEVERITY_NUMBER_ERROR");
    assert_eq!(oom.of("memscope.requested_bytes"), (1u64 << 50).to_string());
    assert!(
        oom.headline().contains("asked for 1,024.00 TiB")
            || oom.headline().contains("asked for 1.00 PiB"),
        "{}",
        oom.headline()
    );
    assert!(oom.of("code.stacktrace").contains("in oom"), "{oom:?}");
    // The second one came within the pause, and is told of in another record.
    let all_told = || {
        let told = receiver.records().into_iter().filter(|one| {
            one.0["event_name"] == "memscope.out_of_memory"
                && one.of("process.pid") == pid.to_string()
        });
        let times = told.map(|one| one.of("memscope.times").parse::<u64>().unwrap());
        times.sum::<u64>()
    };
    until(LONG, "both are told of", || (all_told() == 2).then_some(()));

    torch.kill();
    let ended = until(SHORT, "the record about its end", || {
        receiver.record("memscope.finding.ended", pid)
    });
    assert_eq!(ended.0["severity_number"], "SEVERITY_NUMBER_INFO");
    assert!(
        ended.headline().contains("the process has ended"),
        "{}",
        ended.headline()
    );
    assert_eq!(
        ended.of("memscope.finding.number"),
        leak.of("memscope.finding.number")
    );
    let reported = receiver.records().into_iter().filter(|one| {
        one.0["event_name"] == "memscope.finding.reported"
            && one.of("code.line.number") == planted.to_string()
    });
    assert_eq!(reported.count(), 1, "a finding is told of once");
}

#[test]
fn everything_is_what_prometheus_is_told_over_grpc() {
    everything_is_what_prometheus_is_told(GRPC);
}

#[test]
fn everything_is_what_prometheus_is_told_over_http() {
    everything_is_what_prometheus_is_told(HTTP);
}

/// The requests that came for one that was answered like this, itself included: the same numbers of the same moment.
fn tries(receiver: &Receiver, answer: &Value) -> Vec<f64> {
    let all = receiver.metrics();
    let Some(first) = all.iter().find(|one| one["answer"] == *answer) else {
        return Vec::new();
    };
    let same = all.iter().filter(|one| one["message"] == first["message"]);
    same.map(|one| one["at"].as_f64().unwrap()).collect()
}

/// A request that is answered like this comes again, not before so many seconds.
#[track_caller]
fn comes_again(receiver: &mut Receiver, answer: &Value, after_s: f64) {
    receiver.answers("metrics", &json!([answer]));
    let tries = until(LONG, "the request comes again", || {
        Some(tries(receiver, answer)).filter(|tries| tries.len() > 1)
    });
    assert_eq!(tries.len(), 2, "{answer}: once more, and accepted");
    assert!(tries[1] - tries[0] >= after_s, "{answer}: {tries:?}");
}

/// A request that is answered like this is dropped and counted.
#[track_caller]
fn is_dropped(receiver: &mut Receiver, daemon: &Daemon, answer: &Value, said: &str) {
    let before = dropped(daemon, "refused");
    receiver.answers("metrics", &json!([answer]));
    until(LONG, "what was refused is counted", || {
        let points = dropped(daemon, "refused") - before;
        (points > 0.0).then_some(())
    });
    // The next one comes, and this one does not come again.
    let arrived = receiver.metrics().len();
    eventually("further requests", || {
        receiver.metrics().len() > arrived + 1
    });
    assert_eq!(tries(receiver, answer).len(), 1, "{answer}");
    let status = daemon.json(&["status"]).to_string();
    assert!(status.contains(said), "{said}: {status}");
}

fn answers_are_taken_as_the_specification_says(
    protocol: Protocol,
    again: &[(Value, f64)],
    never: &[(Value, &str)],
) {
    let folder = scratch();
    let mut receiver = Receiver::start(protocol, folder.path(), &[]);
    let daemon = receiver.daemon(&[]);
    eventually("metrics arrive", || sent(&daemon) > 0.0);
    for (answer, after_s) in again {
        comes_again(&mut receiver, answer, *after_s);
    }
    assert_eq!(dropped(&daemon, "refused"), 0.0);
    eventually("each try is counted", || {
        retries(&daemon) >= again.len() as f64
    });
    for (answer, said) in never {
        is_dropped(&mut receiver, &daemon, answer, said);
    }
    receiver.answers(
        "metrics",
        &json!([{"rejected": 3, "message": "three are too old"}]),
    );
    eventually("what was rejected is counted", || {
        dropped(&daemon, "rejected") == 3.0
    });
    let status = daemon.json(&["status"]).to_string();
    assert!(
        status.contains("but for 3 of a request: three are too old"),
        "{status}"
    );
    eventually("it is said that all is well again", || {
        daemon
            .json(&["status"])
            .to_string()
            .contains("accepts metrics again")
    });
    // What arrived and what did not is everything: the receiver counts as well.
    assert_eq!(dropped(&daemon, "queue_full"), 0.0);
}

#[test]
fn answers_over_grpc() {
    answers_are_taken_as_the_specification_says(
        GRPC,
        &[
            (json!({"code": "UNAVAILABLE"}), 0.5),
            (json!({"code": "RESOURCE_EXHAUSTED", "retry_s": 3}), 3.0),
        ],
        &[
            (json!({"code": "RESOURCE_EXHAUSTED"}), "RESOURCE_EXHAUSTED"),
            (
                json!({"code": "INVALID_ARGUMENT", "message": "no such thing"}),
                "no such thing",
            ),
        ],
    );
}

#[test]
fn answers_over_http() {
    answers_are_taken_as_the_specification_says(
        HTTP,
        &[
            (json!({"status": 429, "retry_after": "3"}), 3.0),
            (json!({"status": 503, "retry_after": "2"}), 2.0),
            (json!({"status": 502}), 0.5),
        ],
        &[
            (
                json!({"status": 400, "message": "no such thing"}),
                "HTTP status 400: no such thing",
            ),
            (json!({"status": 500}), "HTTP status 500"),
        ],
    );
}

/// Collectors close connections that were silent. Whoever finds that out with a request makes another one at once.
#[test]
fn a_connection_that_was_closed_is_made_anew() {
    let folder = scratch();
    let mut receiver = Receiver::start(HTTP, folder.path(), &[]);
    let daemon = receiver.daemon(&[]);
    eventually("metrics arrive", || sent(&daemon) > 0.0);
    let closed = json!({"drop": true});
    receiver.answers("metrics", &json!([closed]));
    let tries = until(LONG, "the request comes again", || {
        Some(tries(&receiver, &closed)).filter(|tries| tries.len() > 1)
    });
    assert_eq!(tries.len(), 2);
    assert_eq!(retries(&daemon), 0.0, "nobody had to wait");
    let status = daemon.json(&["status"]).to_string();
    assert!(!status.contains("does not accept"), "{status}");
}

fn what_cannot_arrive_waits(protocol: Protocol) {
    let folder = scratch();
    // Nobody listens there yet.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let daemon = sends_to(&url, protocol, &[]);
    eventually("it is tried again", || retries(&daemon) >= 2.0);
    assert_eq!(sent(&daemon), 0.0);
    let status = daemon.json(&["status"]).to_string();
    assert!(status.contains("does not accept metrics now"), "{status}");
    assert!(status.contains("refused"), "the reason: {status}");
    let began = now_ns();
    let mut receiver = Receiver::start(protocol, folder.path(), &["--port", &port.to_string()]);
    let first = until(LONG, "what waited arrives", || {
        receiver.metrics().into_iter().next()
    });
    let (_, points) = points(&first, "memscope.records").unwrap();
    assert!(
        nanoseconds(&points[0]["time_unix_nano"]) < began,
        "the oldest comes first"
    );
    eventually("everything arrives", || {
        counted(&daemon, "memscope_otlp_waiting{signal=\"metrics\"}") == 0.0 && sent(&daemon) > 0.0
    });
    assert_eq!(dropped(&daemon, "queue_full"), 0.0);

    // One that never answers is given up after ten seconds, and nobody waits for it.
    let hang = json!({"hang": true});
    receiver.answers("metrics", &json!([hang]));
    eventually("it hangs", || !tries(&receiver, &hang).is_empty());
    assert_eq!(daemon.ctl(&["ps"]).code, 0);
    let tries = until(LONG, "the request comes again", || {
        Some(tries(&receiver, &hang)).filter(|tries| tries.len() > 1)
    });
    assert!(tries[1] - tries[0] >= 10.0, "{tries:?}");
    let status = daemon.json(&["status"]).to_string();
    assert!(status.contains("no answer within 10 s"), "{status}");
}

#[test]
fn what_cannot_arrive_waits_over_grpc() {
    what_cannot_arrive_waits(GRPC);
}

#[test]
fn what_cannot_arrive_waits_over_http() {
    what_cannot_arrive_waits(HTTP);
}

/// What listens there speaks something else.
#[test]
fn an_endpoint_that_is_none() {
    for protocol in [GRPC, HTTP] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
                let _ = stream.read(&mut [0; 64]);
            }
        });
        let daemon = sends_to(&url, protocol, &[]);
        eventually("it is tried again", || retries(&daemon) >= 2.0);
        let status = daemon.json(&["status"]).to_string();
        assert!(status.contains("does not accept metrics now"), "{status}");
        assert_eq!(dropped(&daemon, "refused"), 0.0);
        assert_eq!(daemon.ctl(&["ps"]).code, 0);
    }
}

fn secret_file(folder: &TempDir, mode: u32) -> String {
    let path = folder.path().join("headers");
    std::fs::write(&path, format!("Authorization: {SECRET}\nx-scope: a\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path.display().to_string()
}

#[test]
fn headers_are_sent_and_shown_to_nobody() {
    for protocol in [GRPC, HTTP] {
        let folder = scratch();
        let headers = secret_file(&folder, 0o600);
        let mut receiver = Receiver::start(protocol, folder.path(), &[]);
        let daemon = receiver.daemon(&["--otlp-headers-file", &headers]);
        let first = until(SHORT, "metrics arrive", || {
            receiver.metrics().into_iter().next()
        });
        assert_eq!(first["headers"]["authorization"], SECRET, "{first}");
        assert_eq!(first["headers"]["x-scope"], "a");
        // A collector that repeats it does not bring it into the log.
        let answer = match protocol == GRPC {
            true => json!({"code": "UNAUTHENTICATED", "message": format!("no such key: {SECRET}")}),
            false => json!({"status": 401, "message": format!("no such key: {SECRET}")}),
        };
        is_dropped(&mut receiver, &daemon, &answer, "no such key: [header]");
        let command_line = std::fs::read(format!("/proc/{}/cmdline", daemon.pid())).unwrap();
        for shown in [
            daemon.log(),
            daemon.json(&["status"]).to_string(),
            String::from_utf8_lossy(&command_line).into_owned(),
            metrics_of(&daemon),
        ] {
            assert!(!shown.contains("k3y"), "{shown}");
        }
    }
    let folder = scratch();
    let headers = secret_file(&folder, 0o644);
    let mut refused = Daemon::launch(
        &[],
        &[
            "--otlp-endpoint",
            "http://127.0.0.1:1",
            "--otlp-headers-file",
            &headers,
        ],
    );
    assert!(!refused.wait().success());
    let log = refused.log();
    assert!(log.contains("chmod 600") && log.contains(&headers), "{log}");
    assert!(!log.contains("k3y"), "{log}");
}

#[test]
fn only_a_collector_with_a_certificate_of_the_own_authority_is_trusted() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    for protocol in [GRPC, HTTP] {
        let folder = scratch();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let server = ours.server();
        let certificate = write("server.pem", &server.certificate);
        let key = write("server.key", &server.key);
        let (own, other) = (
            write("ours.pem", &ours.certificate()),
            write("theirs.pem", &theirs.certificate()),
        );
        let receiver = Receiver::start(
            protocol,
            folder.path(),
            &["--certificate", &certificate, "--key", &key],
        );
        let url = format!("https://127.0.0.1:{}", receiver.port);
        let stranger = sends_to(&url, protocol, &["--otlp-ca", &other]);
        eventually("it is tried again", || retries(&stranger) >= 2.0);
        let status = stranger.json(&["status"]).to_string();
        assert!(status.contains("UnknownIssuer"), "{status}");
        assert!(receiver.received().is_empty());
        let daemon = sends_to(&url, protocol, &["--otlp-ca", &own]);
        eventually("metrics arrive", || sent(&daemon) > 0.0);
    }
}

#[test]
fn what_is_left_at_the_end_is_sent_or_told() {
    for protocol in [GRPC, HTTP] {
        let folder = scratch();
        let receiver = Receiver::start(protocol, folder.path(), &[]);
        let url = receiver.url();
        let often = [
            "--otlp-endpoint",
            &url,
            "--otlp-protocol",
            protocol.0,
            "--otlp-interval-s",
            "3600",
        ];
        let mut daemon = Daemon::with(&often);
        eventually("the first metrics arrive", || receiver.metrics().len() == 1);
        let mut torch = Torch::start(&[]);
        daemon.attach(torch.pid(), "trace");
        torch.ask("train 3");
        let allocated = number(&daemon.stats(torch.pid())["devices"][0]["allocated_bytes"]);
        daemon.signal(libc::SIGTERM);
        assert!(daemon.wait().success(), "{}", daemon.log());
        let all = receiver.metrics();
        assert_eq!(all.len(), 2, "one more at the end");
        let (_, points) = points(&all[1], "memscope.allocated").unwrap();
        assert_eq!(points[0]["as_double"], allocated as f64);
        assert!(!daemon.log().contains("are lost"), "{}", daemon.log());
    }
    // Nobody is there: it ends all the same, and says what is lost.
    let mut daemon = sends_to("http://127.0.0.1:1", HTTP, &[]);
    eventually("it is tried again", || retries(&daemon) >= 2.0);
    daemon.signal(libc::SIGTERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
    let log = daemon.log();
    assert!(
        log.contains("data points had not reached the OTLP collector, and are lost"),
        "{log}"
    );
}

/// A counter that goes on must not seem to begin anew, or what it was before is counted once more.
#[test]
fn what_goes_on_after_a_hand_over_began_where_it_did() {
    let folder = scratch();
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let receiver = Receiver::start(GRPC, folder.path(), &[]);
    let mut daemon = receiver.daemon(&["--pin-dir", pins.to_str().unwrap()]);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 3");
    let allocations = |request: &Value| points(request, "memscope.allocations").is_some();
    eventually("its allocations are sent", || {
        receiver.last_metrics().is_some_and(|one| allocations(&one))
    });
    daemon.signal(libc::SIGUSR1);
    assert_eq!(daemon.wait().code(), Some(75), "{}", daemon.log());
    let all = receiver.metrics();
    let before = all.last().unwrap();
    let mut next = daemon.successor();
    eventually("its allocations are sent by the next daemon", || {
        receiver.metrics().iter().skip(all.len()).any(allocations)
    });
    let after = receiver.last_metrics().unwrap();
    let earliest = |request: &Value, name: &str| {
        let (_, points) = points(request, name).unwrap();
        let each = points.iter();
        let began = each.map(|point| nanoseconds(&point["start_time_unix_nano"]));
        began.min().unwrap()
    };
    for name in ["memscope.allocations", "memscope.dropped_records"] {
        assert_eq!(earliest(&after, name), earliest(before, name), "{name}");
    }
    let own = "memscope.daemon.cpu";
    assert!(earliest(&after, own) > earliest(before, own));
    next.stop();
}
