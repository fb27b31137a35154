//! The Helm chart: rendered by Helm's own library, and validated against the schemas of Kubernetes and of the Prometheus operator.
//! `cargo xtask setup --packages` installs both.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{piped, root, scratch, tool, xtask};
use serde_json::{Value, json};

fn installed(name: &str) -> PathBuf {
    let path = root().join("target/chart").join(name);
    assert!(
        path.exists(),
        "{} is missing; `cargo xtask setup --packages` installs it",
        path.display()
    );
    path
}

/// Runs a script with this input; what it printed, or what it said of a failure.
fn run(program: &Path, words: &[&Path], input: &str) -> Result<String, String> {
    let output = piped(Command::new(program).args(words), input);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// What Helm makes of the chart with these values.
fn rendered(values: &Value) -> Result<Value, String> {
    let script = root().join("tests/chart/render.py");
    let chart = root().join("deploy/helm/memscope");
    let values = values.to_string();
    let words = [&*script, &*chart, Path::new(&values)];
    let text = run(&installed("python/bin/python"), &words, "")?;
    Ok(serde_json::from_str(&text).unwrap())
}

fn validated(manifests: &str) -> Result<String, String> {
    let script = root().join("tests/chart/validate.py");
    run(&installed("python/bin/python"), &[&script], manifests)
}

fn manifests() -> String {
    std::fs::read_to_string(root().join("deploy/kubernetes/memscope.yaml")).unwrap()
}

#[test]
fn the_plain_manifests_are_what_the_chart_gives() {
    let (output, said, errors) = xtask(&["chart", "--check"]);
    assert!(output.status.success(), "{said}{errors}");
}

#[test]
fn kubernetes_knows_every_field() {
    let said = validated(&manifests()).unwrap();
    let mut words = said.split_whitespace();
    assert_eq!(words.next(), Some("1.30"), "{said}");
    assert!(words.clone().count() > 5, "{said}");
    // An account, settings, a network policy and the daemon set.
    assert_eq!(words.next_back(), Some("4"), "{said}");
    let wrong = manifests().replace("hostPID: true", "hostPid: true");
    let error = validated(&wrong).unwrap_err();
    assert!(error.contains("hostPid"), "{error}");
}

#[test]
fn the_prometheus_operator_takes_its_kinds() {
    let all = json!({"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}});
    let all = rendered(&all).unwrap();
    let python = installed("python/bin/python");
    let list = |change: &str| {
        let script = scratch();
        let file = script.path().join("list.py");
        let text = format!(
            "import json, sys, yaml\nmanifests = list(yaml.safe_load_all(sys.stdin))\n{change}\nprint(json.dumps(manifests))\n"
        );
        std::fs::write(&file, text).unwrap();
        let text: Vec<&str> = ["podmonitor", "prometheusrule"]
            .iter()
            .map(|name| {
                all["rendered"][format!("memscope/templates/{name}.yaml")]
                    .as_str()
                    .unwrap()
            })
            .collect();
        run(&python, &[&file], &text.join("\n---\n")).unwrap()
    };
    let validate = |manifests: &str| {
        let script = root().join("tests/chart/validate.mjs");
        run(Path::new("node"), &[&script, &installed("node")], manifests)
    };
    assert_eq!(validate(&list("")).unwrap().trim(), "2");
    let wrong = list("manifests[0]['spec']['podMetricsEndpoints'][0]['interval'] = 'often'");
    assert!(validate(&wrong).unwrap_err().contains("interval"));
    // Labels of memscoped's own pod must not be on processes that are in none.
    let monitors: Value = serde_json::from_str(&list("")).unwrap();
    let relabelings = &monitors[0]["spec"]["podMetricsEndpoints"][0]["relabelings"];
    let dropped = json!({"action": "labeldrop", "regex": "namespace|pod|container"});
    assert_eq!(relabelings[0], dropped, "{relabelings:#}");
}

#[test]
fn helm_has_nothing_to_say_against_it() {
    let made = rendered(&json!({})).unwrap();
    assert_eq!(made["findings"]["errors"], json!([]), "{made:#}");
    // An icon is recommended; there is none.
    let messages = made["findings"]["messages"].as_array().unwrap();
    let others: Vec<&Value> = messages
        .iter()
        .filter(|message| message["error"] != "icon is recommended")
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    // What only the Prometheus operator and Grafana know is left out unless it is wanted.
    for name in ["podmonitor", "prometheusrule", "dashboards"] {
        let manifest = &made["rendered"][format!("memscope/templates/{name}.yaml")];
        assert_eq!(manifest.as_str().unwrap_or_default().trim(), "", "{name}");
    }
}

/// A network policy that forbids what the settings ask for would look like a fault of memscoped.
#[test]
fn the_network_policy_lets_pass_what_the_settings_ask_for() {
    let policy = |settings: Value| {
        let tls = json!({"secretName": "memscoped"});
        let made = rendered(&json!({"settings": settings, "tls": tls})).unwrap();
        let policy = &made["rendered"]["memscope/templates/networkpolicy.yaml"];
        policy.as_str().unwrap().to_owned()
    };
    let usual = policy(json!({"journal-mib": 256}));
    assert!(usual.contains("policyTypes: [Ingress, Egress]"), "{usual}");
    let pushes = policy(json!({"otlp-endpoint": "http://collector:4317"}));
    assert!(pushes.contains("policyTypes: [Ingress]"), "{pushes}");
    let listens = policy(json!({"listen": ["0.0.0.0:9465", "[::]:9466"]}));
    for port in ["port: metrics", "port: 9465", "port: 9466"] {
        assert!(listens.contains(port), "{listens}");
    }
}

/// A rule whose `from` is an empty list lets everybody in, so that a list without entries must give no rule.
#[test]
fn who_lets_nobody_fetch_metrics_gets_no_rule_for_them() {
    let with = |values: Value| {
        let made = rendered(&values).unwrap();
        let policy = &made["rendered"]["memscope/templates/networkpolicy.yaml"];
        let policy = policy.as_str().unwrap().to_owned();
        validated(&policy).unwrap();
        policy
    };
    let usual = with(json!({}));
    assert!(usual.contains("port: metrics"), "{usual}");
    let none = with(json!({"metrics": {"from": []}}));
    assert!(none.contains("ingress: []"), "{none}");
    assert!(!none.contains("from:"), "{none}");
    // Who may come to the ports of `listen` is another matter.
    let listens = with(json!({
        "metrics": {"from": []},
        "settings": {"listen": ["0.0.0.0:9465"]},
        "tls": {"secretName": "memscoped"},
    }));
    assert!(listens.contains("port: 9465"), "{listens}");
    assert!(!listens.contains("port: metrics"), "{listens}");
    assert!(!listens.contains("from:"), "{listens}");
}

/// Without its certificates memscoped would not start at all.
#[test]
fn whoever_listens_has_certificates_and_a_port() {
    let made = rendered(&json!({
        "settings": {"listen": ["0.0.0.0:9465", "[::]:9466"]},
        "tls": {"secretName": "memscoped-certificates", "clientCrl": "clients.crl"},
    }))
    .unwrap();
    let template = |name: &str| {
        let manifest = &made["rendered"][format!("memscope/templates/{name}.yaml")];
        manifest.as_str().unwrap().to_owned()
    };
    let settings = template("configmap");
    for line in [
        r#"tls-cert = "/etc/memscope-tls/tls.crt""#,
        r#"tls-key = "/etc/memscope-tls/tls.key""#,
        r#"tls-client-ca = "/etc/memscope-tls/ca.crt""#,
        r#"tls-client-crl = "/etc/memscope-tls/clients.crl""#,
    ] {
        assert!(settings.contains(line), "{line}: {settings}");
    }
    let daemon = template("daemonset");
    for line in [
        "containerPort: 9465",
        "containerPort: 9466",
        "mountPath: /etc/memscope-tls",
        "secretName: memscoped-certificates",
    ] {
        assert!(daemon.contains(line), "{line}: {daemon}");
    }
    let all: Vec<String> = made["rendered"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(path, _)| path.ends_with(".yaml"))
        .filter_map(|(_, manifest)| Some(manifest.as_str()?.trim().to_owned()))
        .filter(|manifest| !manifest.is_empty())
        .collect();
    validated(&all.join("\n---\n")).unwrap();
}

/// Kubernetes refuses a container with two ports of one name.
#[test]
fn a_port_at_two_addresses_is_one_port() {
    let made = rendered(&json!({
        "settings": {"listen": ["127.0.0.1:9465", "[::1]:9465", "[::1]:9466"]},
        "tls": {"secretName": "memscoped"},
    }))
    .unwrap();
    for (name, begin, ports) in [
        (
            "daemonset",
            "- name: listen-",
            vec!["- name: listen-9465", "- name: listen-9466"],
        ),
        (
            "daemonset",
            "containerPort: ",
            vec![
                "containerPort: 9464",
                "containerPort: 9465",
                "containerPort: 9466",
            ],
        ),
        (
            "networkpolicy",
            "port: ",
            vec!["port: metrics", "port: 9465", "port: 9466"],
        ),
    ] {
        let manifest = &made["rendered"][format!("memscope/templates/{name}.yaml")];
        let manifest = manifest.as_str().unwrap();
        let lines = manifest.lines().map(str::trim);
        let found: Vec<&str> = lines.filter(|line| line.starts_with(begin)).collect();
        assert_eq!(found, ports, "{manifest}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for (values, word) in [
        (json!({"metrics": {"port": 70000}}), "port"),
        (json!({"kernelBefore6.6": true}), "kernelBefore6.6"),
        (
            json!({"podMonitor": {"enabled": true}, "metrics": {"enabled": false}}),
            "metrics.enabled",
        ),
        (
            json!({"settings": {"listen": ["0.0.0.0:9465"]}}),
            "settings.listen needs tls.secretName",
        ),
        // What the chart sets by itself would silently go before what is said.
        (
            json!({"settings": {"metrics": "127.0.0.1:9464"}}),
            "settings.metrics is set by the chart: say metrics.address and metrics.port",
        ),
        (
            json!({"settings": {"metrics-for-everybody": false}}),
            "settings.metrics-for-everybody is set by the chart: say metrics.enabled",
        ),
        (
            json!({"settings": {"state-dir": "/var/lib/other"}}),
            "settings.state-dir is set by the chart: say paths.state",
        ),
        (
            json!({"settings": {"pod-logs": "/var/log/other"}}),
            "settings.pod-logs is set by the chart: say paths.podLogs",
        ),
        (
            json!({"settings": {"pod-volumes": "/pods"}}),
            "settings.pod-volumes is set by the chart: say paths.podVolumes",
        ),
        (
            json!({
                "settings": {"listen": ["0.0.0.0:9465"], "tls-client-ca": "/etc/ca.crt"},
                "tls": {"secretName": "memscoped"},
            }),
            "settings.tls-client-ca is set by the chart: say tls.clientCa",
        ),
        (json!({"metrics": {"address": ""}}), "address"),
    ] {
        let error = rendered(&values).unwrap_err();
        assert!(error.contains(word), "{values}: {error}");
    }
}

#[test]
fn metrics_are_where_the_values_say() {
    for (metrics, line) in [
        (json!({}), r#"metrics = "0.0.0.0:9464""#),
        (
            json!({"address": "127.0.0.1", "port": 9999}),
            r#"metrics = "127.0.0.1:9999""#,
        ),
        (json!({"address": "::"}), r#"metrics = "[::]:9464""#),
        (json!({"address": "[::1]"}), r#"metrics = "[::1]:9464""#),
    ] {
        let made = rendered(&json!({"metrics": metrics})).unwrap();
        let manifest = &made["rendered"]["memscope/templates/configmap.yaml"];
        let manifest = manifest.as_str().unwrap();
        assert!(manifest.contains(line), "{line}: {manifest}");
    }
    // Who wants none of the chart's may say a place.
    let settings = json!({"metrics": "127.0.0.1:9400"});
    let made = rendered(&json!({"metrics": {"enabled": false}, "settings": settings})).unwrap();
    let manifest = made["rendered"]["memscope/templates/configmap.yaml"].as_str();
    assert!(manifest.unwrap().contains(r#"metrics = "127.0.0.1:9400""#));
}

#[test]
fn memscoped_takes_the_settings() {
    let values = json!({"settings": {
        "journal-mib": 512,
        "retention": 60,
        "snapshot-when": ["allocated > 70GiB", "growth > 2GiB in 10m"],
        "memory": "1GiB",
    }, "attach": [
        {"name": "training", "namespace": ["team-a", "ml-*"], "pod-labels": {"app.kubernetes.io/name": "llama-*"}, "stack-budget": 5},
        {"user": 1000, "launches": true, "level": "blocks"},
        {"level": "segments"},
    ], "paths": {"podVolumes": "/var/lib/kubelet/pods"}});
    let made = rendered(&values).unwrap();
    let manifest = made["rendered"]["memscope/templates/configmap.yaml"]
        .as_str()
        .unwrap();
    let settings: Vec<&str> = manifest
        .split("memscoped.toml: |\n")
        .nth(1)
        .unwrap()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    assert!(settings.contains(&"journal-mib = 512"), "{settings:#?}");
    let folder = scratch();
    let file = folder.path().join("memscoped.toml");
    std::fs::write(&file, settings.join("\n")).unwrap();
    let output = Command::new(tool("memscoped"))
        .arg("--check-config")
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Four of ours, and five that the chart adds.
    assert!(
        said.contains("9 settings, 3 entries [[attach]], no mistake"),
        "{said}"
    );
    let daemon = made["rendered"]["memscope/templates/daemonset.yaml"].as_str();
    assert!(daemon.unwrap().contains("path: /var/lib/kubelet/pods"));
}

#[test]
fn the_container_may_do_what_the_unit_may() {
    let unit = std::fs::read_to_string(root().join("deploy/memscoped.service")).unwrap();
    let mut unit: Vec<&str> = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .unwrap()
        .split(' ')
        .map(|name| name.strip_prefix("CAP_").unwrap())
        // It gives the socket to a group, and the image has none.
        .filter(|name| *name != "CHOWN")
        .collect();
    let manifests = manifests();
    let mut container: Vec<&str> = manifests
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "add:")
        .skip(1)
        .map_while(|line| line.strip_prefix("- "))
        .collect();
    unit.sort_unstable();
    container.sort_unstable();
    assert_eq!(container, unit);
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = std::fs::read_to_string(root().join("deploy/helm/memscope/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        chart.contains(&format!("\nversion: {version}\n")),
        "{chart}"
    );
    assert!(
        chart.contains(&format!("\nappVersion: \"{version}\"\n")),
        "{chart}"
    );
}
