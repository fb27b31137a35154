//! Metrics: what is handed out is what `stats` says, and real Prometheus and Alertmanager make of it what the rules and dashboards in
//! `deploy/` promise.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::{Met, constant};
use memscope_tests::nvml::Machine;
use memscope_tests::{
    Daemon, LONG, Program, SHORT, Torch, Value, device, eventually, get, json, metrics_address,
    number, piped, root, scratch, until,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const STEP_MS: u64 = 50;

/// A daemon with metrics, on a machine with one device of 16 GiB of which this much is used.
fn daemon(used: u64) -> (Machine, Daemon) {
    let machine = Machine::new(&[used]);
    let daemon = machine.daemon(&["--metrics", "127.0.0.1:0"]);
    (machine, daemon)
}

/// Samples by name and labels. What is written has one form, so splitting it is enough.
fn samples(address: &str) -> BTreeMap<String, f64> {
    let (code, head, body) = get(address, "/metrics").unwrap();
    assert_eq!(code, 200, "{head}\n{body}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

fn of<'a>(samples: &'a BTreeMap<String, f64>, name: &str, pid: u32) -> Option<(&'a str, f64)> {
    let begin = format!("{name}{{pid=\"{pid}\"");
    let found = samples
        .iter()
        .find(|(series, _)| series.starts_with(&begin));
    found.map(|(series, value)| (series.as_str(), *value))
}

#[test]
fn metrics_are_what_stats_says_and_tell_whose_a_process_is() {
    let (_machine, daemon) = daemon(2 * GIB);
    let address = metrics_address(&daemon);
    let mut torch = Torch::start(&[
        ("RANK", "3"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "8"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_NAME", "a \"name\"\\with\nall"),
    ]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 5");
    torch.ask("oom 2");
    let told = torch.ask("totals");
    let stats = daemon.stats(torch.pid());
    let now = device(&stats, 0).clone();
    // What is handed out is at most a second old.
    let found = until(SHORT, "metrics of this moment", || {
        let all = samples(&address);
        let allocated = of(&all, "memscope_allocated_bytes", torch.pid())?.1;
        (allocated == number(&now["allocated_bytes"]) as f64).then_some(all)
    });
    for (metric, field) in [
        ("memscope_reserved_bytes", "reserved_bytes"),
        ("memscope_peak_allocated_bytes", "peak_allocated_bytes"),
        ("memscope_peak_reserved_bytes", "peak_reserved_bytes"),
        ("memscope_baseline_bytes", "baseline_bytes"),
        ("memscope_live_blocks", "live_blocks"),
        ("memscope_allocations_total", "alloc_count"),
        ("memscope_frees_total", "free_count"),
        ("memscope_out_of_memory_total", "oom_count"),
    ] {
        let (series, value) =
            of(&found, metric, torch.pid()).unwrap_or_else(|| panic!("{metric}: {found:#?}"));
        assert_eq!(value, number(&now[field]) as f64, "{series}");
        assert!(
            series.contains(r#"job_id="slurm:77.0",rank="3",device="0""#),
            "{series}"
        );
    }
    let of_torch = &told["devices"]
        .as_array()
        .map_or(told.clone(), |all| all[0].clone());
    assert_eq!(
        number(&now["allocated_bytes"]),
        number(&of_torch["allocated"]),
        "{told}"
    );
    let (series, _) = of(&found, "memscope_process", torch.pid()).unwrap();
    for label in [
        r#"program="agent.py""#,
        r#"level="trace""#,
        r#"local_rank="1""#,
        r#"world_size="8""#,
        r#"slurm_job="77",slurm_step="0""#,
        r#"job_name="a \"name\"\\with\nall""#,
    ] {
        assert!(series.contains(label), "{label} in {series}");
    }
    let limit = format!(
        "hw_gpu_memory_limit_bytes{{hw_type=\"gpu\",hw_vendor=\"cuda\",hw_id=\"{}\"}}",
        Machine::uuid(0)
    );
    assert_eq!(found[&limit], 16.0 * GIB as f64);
    let process = daemon.process(torch.pid()).unwrap();
    assert_eq!(process["workload"]["job"], "slurm:77.0", "{process:#}");
    assert_eq!(process["workload"]["world_size"], 8, "{process:#}");
    let shown = daemon.ctl(&["ps"]);
    assert!(shown.output.contains("slurm:77.0"), "{shown}");

    // Prometheus's own judge of what metrics should look like.
    let text = get(&address, "/metrics").unwrap().2;
    // It reads the older form, which has no end mark and no units.
    let text: String = text
        .lines()
        .filter(|line| *line != "# EOF" && !line.starts_with("# UNIT"))
        .map(|line| format!("{line}\n"))
        .collect();
    // `cargo xtask setup --prometheus` installs it.
    let mut lint = Command::new("promtool");
    let said = piped(lint.args(["check", "metrics"]), &text);
    let complaints = String::from_utf8_lossy(&said.stderr).into_owned();
    // In the older form the text about a counter would stand under its whole name.
    let of_form = |line: &&str| line.ends_with("_total no help text");
    let serious = complaints.lines().filter(|line| !of_form(line));
    assert_eq!(serious.collect::<Vec<_>>(), Vec::<&str>::new());

    let pid = torch.pid();
    torch.kill();
    eventually("only counters are left of a process that has ended", || {
        let all = samples(&address);
        of(&all, "memscope_allocated_bytes", pid).is_none()
            && of(&all, "memscope_out_of_memory_total", pid).is_some_and(|(_, value)| value == 2.0)
    });
}

/// Behind a gap in the scrapes the counter has no value of five minutes ago. It must not count from zero then. After a start of memscoped
/// it does, also where it was more before.
#[test]
fn a_gap_in_the_scrapes_is_no_failure() {
    let firing = r#"ALERTS{alertname="MemscopeOutOfMemory"}"#;
    let checks = [
        ("1m", format!("count({firing})"), 1),
        ("10m", format!("count({firing})"), 0),
        // From then on until the next failure, with the gap in between.
        ("26m", format!("count(count_over_time({firing}[18m]))"), 0),
        ("28m", format!("count({firing})"), 1),
        ("34m", format!("count({firing})"), 0),
        // It begins anew at 36 minutes, and is what it was a minute later.
        ("36m30s", format!("count({firing})"), 0),
        ("37m15s", format!("count({firing})"), 1),
        ("43m", format!("count({firing})"), 0),
    ];
    let checks = checks.map(|(at, expr, value)| {
        json!({"eval_time": at, "expr": format!("{expr} or vector(0)"), "exp_samples": [{"labels": "{}", "value": value}]})
    });
    let rules = root().join("deploy/prometheus/memscope.rules.yml");
    let series = r#"memscope_out_of_memory_total{instance="n",program="p",pid="1",device="0"}"#;
    let test = json!({
        "rule_files": [rules],
        "evaluation_interval": "15s",
        "tests": [{
            "interval": "15s",
            "input_series": [{"series": series, "values": "3x40 stale _x4 3x60 4x36 0x3 4x30"}],
            "promql_expr_test": checks,
        }],
    });
    let folder = scratch();
    let file = folder.path().join("rules.yml");
    // JSON is YAML.
    std::fs::write(&file, test.to_string()).unwrap();
    let mut promtool = Command::new("promtool");
    let said = promtool
        .args(["test", "rules"])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    let said_all = format!("{}{errors}", String::from_utf8_lossy(&said.stdout));
    assert!(said.status.success(), "{said_all}");
}

#[test]
fn the_door_of_metrics_opens_for_metrics_only() {
    let (_machine, daemon) = daemon(GIB);
    let address = metrics_address(&daemon);
    for (path, code) in [
        ("/metrics", 200),
        ("/", 404),
        ("/metrics/", 404),
        ("/metrics?x=1", 200),
        ("/../etc/passwd", 404),
    ] {
        assert_eq!(get(&address, path).unwrap().0, code, "{path}");
    }
    for (request, expected) in [
        (
            "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
            "405",
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
            "4",
        ),
        (
            format!(
                "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
                "x".repeat(100_000)
            ),
            "4",
        ),
        ("\x16\x03\x01 no http\r\n\r\n".to_owned(), "400"),
    ] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(SHORT)).unwrap();
        // It may be closed before everything is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        let code = answer.split(' ').nth(1).unwrap_or_default();
        // What is too large may be cut off before the answer is read; what is small is answered.
        let may_be_cut_off = request.len() > 1000;
        assert!(
            may_be_cut_off && answer.is_empty() || code.starts_with(expected),
            "{request:.60} {answer}"
        );
    }
    // Whoever only holds connections keeps nobody out.
    let mut idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    assert_eq!(get(&address, "/metrics").unwrap().0, 200);
    idle[0].set_read_timeout(Some(SHORT)).unwrap();
    let oldest = idle[0].read(&mut [0; 64]);
    assert!(matches!(oldest, Ok(0)), "the oldest is closed: {oldest:?}");
    drop(idle);
    Met {
        what: "connections that fetch metrics",
        most: constant("memscope-daemon/src/metrics/http.rs", "MOST_CONNECTIONS"),
        beyond: "the oldest is closed",
        told: "to whoever is at its other end",
        test: "the_door_of_metrics_opens_for_metrics_only",
    }
    .is_told();
    assert_eq!(daemon.ctl(&["status"]).code, 0);

    // An address that others reach has to be wanted.
    let refused = Daemon::launch(&[], &["--metrics", "0.0.0.0:0"]);
    let mut refused = refused;
    assert!(!refused.wait().success());
    assert!(
        refused.log().contains("--metrics-for-everybody"),
        "{}",
        refused.log()
    );
}

/// Prometheus or Alertmanager, with an address of its own.
struct Service {
    _program: Program,
    address: String,
}

impl Service {
    fn start(name: &str, ready: &str, arguments: impl FnOnce(&str) -> Vec<String>) -> Service {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let address = free.to_string();
        let mut command = Command::new(name);
        command.args(arguments(&address));
        let program = Program::start(name, command);
        until(LONG, &format!("{name} is ready"), || {
            get(&address, ready)
                .ok()
                .filter(|(code, _, _)| *code == 200)
        });
        Service {
            _program: program,
            address,
        }
    }

    fn json(&self, path: &str) -> Value {
        let (code, _, body) = get(&self.address, path).unwrap();
        assert_eq!(code, 200, "{path}: {body}");
        serde_json_from(&body)
    }

    /// The result of a query at this moment.
    fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let answer = self.json(&format!("/api/v1/query?query={encoded}"));
        answer["data"]["result"].as_array().unwrap().clone()
    }
}

fn serde_json_from(text: &str) -> Value {
    // The body may come in chunks; the document is what is between the first and the last brace.
    let chunks: String = text
        .split("\r\n")
        .filter(|line| u32::from_str_radix(line, 16).is_err())
        .collect();
    chunks
        .parse()
        .unwrap_or_else(|error| panic!("{error}: {chunks}"))
}

/// Expressions of the rules.
fn rules(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let expressions = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    expressions.map(str::to_owned).collect()
}

/// Expressions of the dashboards, with everything chosen.
fn panels(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: Value = text.parse().unwrap();
        let name = |variable: &Value| format!("${}", variable["name"].as_str().unwrap());
        let variables: Vec<String> = dashboard["templating"]["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(name)
            .collect();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let mut expression = target["expr"]
                    .as_str()
                    .unwrap()
                    .replace("$__rate_interval", "10s");
                for variable in &variables {
                    expression = expression.replace(variable, ".*");
                }
                found.push(expression);
            }
        }
    }
    found
}

#[test]
fn prometheus_raises_the_alert_of_a_planted_leak_with_its_line() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (_machine, daemon) = daemon(15 * GIB);
    // The disk is too small for its journal.
    let without_journal = Daemon::on_a_disk_of("512k", &["--metrics", "127.0.0.1:0"]);
    let targets = [
        metrics_address(&daemon),
        metrics_address(&without_journal),
        "127.0.0.1:1".to_owned(),
    ];
    std::fs::write(
        at("alertmanager.yml"),
        "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n",
    )
    .unwrap();
    let alertmanager = Service::start("prometheus-alertmanager", "/-/ready", |address| {
        vec![
            format!("--config.file={}", at("alertmanager.yml")),
            format!("--storage.path={}", at("alertmanager")),
            format!("--web.listen-address={address}"),
            "--cluster.listen-address=".to_owned(),
        ]
    });
    let rules_file = root().join("deploy/prometheus/memscope.rules.yml");
    let configuration = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: ['{}']\nalerting:\n  alertmanagers:\n    - static_configs:\n        - targets: ['{}']\nscrape_configs:\n  - job_name: memscope\n    static_configs:\n      - targets: {targets:?}\n",
        rules_file.display(),
        alertmanager.address,
    );
    std::fs::write(at("prometheus.yml"), configuration).unwrap();
    let prometheus = Service::start("prometheus", "/-/ready", |address| {
        vec![
            format!("--config.file={}", at("prometheus.yml")),
            format!("--storage.tsdb.path={}", at("prometheus")),
            format!("--web.listen-address={address}"),
        ]
    });

    let job = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29501"),
    ];
    let mut leaky = Torch::start(&job);
    let mut clean = Torch::start(&[("RANK", "1"), job[1], job[2], job[3]]);
    for torch in [&mut leaky, &mut clean] {
        torch.ask("train 5");
        daemon.attach(torch.pid(), "trace");
    }
    // Of what is watched less closely, something is not known.
    let coarse = Torch::start(&[]);
    daemon.attach(coarse.pid(), "segments");
    clean.ask("oom 1");
    leaky.tell(&format!("leak 1200 1500000 {STEP_MS}"));
    clean.tell(&format!("leak 1200 1500000 {STEP_MS} 3"));

    let alert = until(
        Duration::from_secs(120),
        "Alertmanager has the leak",
        || {
            let alerts = alertmanager.json("/api/v2/alerts");
            let found = alerts
                .as_array()?
                .iter()
                .find(|alert| alert["labels"]["alertname"] == "MemscopeLeak");
            found.cloned()
        },
    );
    let labels = &alert["labels"];
    assert_eq!(labels["pid"], leaky.pid_text(), "{alert:#}");
    assert_eq!(
        (&labels["program"], &labels["function"]),
        (&Value::from("agent.py"), &Value::from("leak"))
    );
    let script = std::fs::read_to_string(root().join("tests/workloads/agent.py")).unwrap();
    let planted = script
        .lines()
        .position(|line| line.contains("held.append(torch.empty(int(size)"))
        .unwrap()
        + 1;
    assert_eq!(
        labels["line"],
        format!("workloads/agent.py:{planted}"),
        "{alert:#}"
    );
    let runbook = alert["annotations"]["runbook"].as_str().unwrap();
    let command = format!("memscope-ctl leaks {}", leaky.pid());
    assert!(runbook.contains(&command), "{runbook}");
    let said = daemon.ctl(&["leaks", &leaky.pid_text()]);
    assert!(
        said.output.contains(&format!("agent.py:{planted}")),
        "what the runbook says to type: {said}"
    );

    // Every expression, of rules and dashboards. Those that have no data tell of what is not so here.
    let mut expressions: BTreeSet<String> = rules(&rules_file).into_iter().collect();
    expressions.extend(panels(&root().join("deploy/grafana")));
    assert!(expressions.len() > 30, "{expressions:#?}");
    let silent = BTreeSet::from([
        "increase(memscope_lost_records_total[5m]) > 0".to_owned(),
        "memscope_fragmentation_ratio > 0.4 and on (instance, pid, device) memscope_reserved_bytes > 4 * 1024 * 1024 * 1024".to_owned(),
    ]);
    let mut left = expressions.clone();
    let mut last = BTreeSet::new();
    let deadline = std::time::Instant::now() + LONG;
    while last != silent {
        left.retain(|expression| prometheus.query(expression).is_empty());
        last.clone_from(&left);
        assert!(
            std::time::Instant::now() < deadline,
            "without data: {:#?}",
            left.difference(&silent)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let firing = |name: &str| prometheus.query(&format!("ALERTS{{alertname=\"{name}\"}}"));
    for (alert, pid) in [
        ("MemscopeOutOfMemory", clean.pid()),
        ("MemscopeFullSoon", leaky.pid()),
    ] {
        let found = until(SHORT, alert, || {
            Some(firing(alert)).filter(|found| !found.is_empty())
        });
        assert_eq!(found[0]["metric"]["pid"], pid.to_string(), "{found:#?}");
    }
    let leaks: BTreeSet<String> = firing("MemscopeLeak")
        .iter()
        .map(|one| one["metric"]["pid"].to_string())
        .collect();
    assert_eq!(
        leaks,
        BTreeSet::from([format!("\"{}\"", leaky.pid())]),
        "the clean rank is not accused"
    );
}
