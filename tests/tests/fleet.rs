//! Many nodes: real daemons with real PyTorch in them, at a Unix socket and at a TCP port, asked at once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::certificates::{Authority, ServerFiles, Time};
use memscope_tests::{Asking, Daemon, LONG, SHORT, Said, Torch, number, scratch, until};

/// Where a daemon's log says that it listens.
fn port_of(daemon: &Daemon) -> String {
    until(SHORT, "the daemon says where it listens", || {
        let log = daemon.log();
        let (_, rest) = log.split_once("listening on ")?;
        rest.split_once(' ').map(|(address, _)| address.to_owned())
    })
}

/// A daemon that listens at a TCP port, and the holders of two certificates: `ops` may control it, `look` may see.
struct Far {
    daemon: Daemon,
    address: String,
    /// The certificates and keys.
    folder: tempfile::TempDir,
}

impl Far {
    fn start() -> Far {
        let folder = scratch();
        let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
        let files = ServerFiles::write(folder.path(), &servers, &clients);
        let daemon = Daemon::with(&files.listening());
        let address = port_of(&daemon);
        let far = Far {
            daemon,
            address,
            folder,
        };
        for (name, role) in [("ops", &["memscope:control"][..]), ("look", &[])] {
            let issued = clients.client(name, role, Time::Now);
            std::fs::write(far.at(&format!("{name}.pem")), &issued.certificate).unwrap();
            std::fs::write(far.at(&format!("{name}.key")), &issued.key).unwrap();
        }
        std::fs::write(far.at("ca.pem"), servers.certificate()).unwrap();
        far
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// What is said to the holder of this certificate.
    fn as_whom(&self, name: &str, words: &[&str]) -> Said {
        let tls = [
            "--tls-cert",
            &self.at(&format!("{name}.pem")),
            "--tls-key",
            &self.at(&format!("{name}.key")),
            "--tls-ca",
            &self.at("ca.pem"),
        ];
        Asking::new([&tls[..], words].concat()).ask()
    }
}

#[test]
fn what_the_holder_of_a_certificate_made_bears_its_name() {
    let far = Far::start();
    let ops = |words: &[&str]| {
        let said = far.as_whom("ops", &[&["--connect", &far.address][..], words].concat());
        assert_eq!(said.code, 0, "{said}");
        said
    };
    ops(&["attach", "--comm", "by-certificate"]);
    far.daemon.ctl(&["attach", "--comm", "by-a-user"]).text();
    // Root has this trigger from the start.
    ops(&["trigger", "add", "oom"]);
    let made = [
        (far.daemon.json(&["status"]), "rules", ["status"].as_slice()),
        (
            far.daemon.json(&["trigger", "list"]),
            "triggers",
            &["trigger", "list"],
        ),
    ];
    for (answer, list, words) in made {
        let made = answer[list].as_array().unwrap();
        let (certified, users): (Vec<_>, Vec<_>) =
            made.iter().partition(|one| !one["certificate"].is_null());
        assert_eq!((certified.len(), users.len()), (1, 1), "{answer:#}");
        assert_eq!(certified[0]["certificate"], "ops", "{answer:#}");
        assert_eq!(number(&users[0]["uid"]), 0, "{answer:#}");
        let said = far.daemon.ctl(words);
        let table = said.text();
        assert!(!table.contains(&u32::MAX.to_string()), "{table}");
        let row = table.lines().find(|line| line.contains(" ops "));
        assert!(row.is_some(), "{table}");
    }
}

#[test]
fn ranks_of_one_job_on_two_nodes_and_a_node_that_is_gone() {
    let here = Daemon::start();
    let node = Far::start();
    let (far, address) = (&node.daemon, &node.address);
    let at = |name: &str| node.at(name);
    let as_whom = |name: &str, words: &[&str]| node.as_whom(name, words);
    let list = format!(
        "# two nodes, and one that is gone\nhere unix:{}\nfar {address}\ngone 127.0.0.1:1\n",
        here.socket().display()
    );
    std::fs::write(at("nodes"), list).unwrap();
    let nodes = at("nodes");
    let fleet = |words: &[&str]| as_whom("look", &[&["--fleet", &nodes][..], words].concat());

    let (mut first, mut second) = (Torch::rank("0", "3"), Torch::rank("1", "3"));
    for torch in [&mut first, &mut second] {
        torch.ask("train 5");
    }
    here.attach(first.pid(), "trace");
    let attach =
        |whom: &str, pid: &str| as_whom(whom, &["--connect", address, "attach", "--pid", pid]);
    let refused = attach("look", &second.pid_text());
    assert_eq!(refused.code, 5, "{refused}");
    assert!(refused.errors.contains("control"), "{refused}");
    let attached = attach("ops", &second.pid_text());
    assert_eq!(attached.code, 0, "{attached}");
    let steps = 130;
    first.tell(&format!("leak {steps} 1500000 10 3"));
    second.tell(&format!("leak {steps} 1500000 10"));
    first.hear();
    second.hear();

    let ps = fleet(&["ps"]);
    assert_eq!(ps.code, 7, "one node did not answer: {ps}");
    for words in [
        "here",
        "far",
        "torchrun:one-job",
        "1 node of 3 did not answer",
    ] {
        assert!(
            format!("{}{}", ps.output, ps.errors).contains(words),
            "{words}: {ps}"
        );
    }
    let leaks = fleet(&["--json", "leaks"]).document();
    assert_eq!(number(&leaks["unanswered"]), 1, "{leaks:#}");
    let nodes = leaks["nodes"].as_array().unwrap();
    for (node, name) in nodes.iter().zip(["here", "far", "gone"]) {
        assert_eq!(node["node"], name);
    }
    assert!(!nodes[2]["error"].is_null() && nodes[2]["answer"].is_null());
    // The same answer that the node gives when it is asked alone, but for what depends on the moment, as ages do.
    let alone = far.json(&["leaks", &second.pid_text()]);
    let of_far = &nodes[1]["answer"][0];
    for field in ["pid", "growing_bytes", "growing_lines", "growing_groups"] {
        assert_eq!(
            of_far[field], alone[field],
            "{field}: {of_far:#}\n{alone:#}"
        );
    }
    assert_eq!(number(&of_far["growing_lines"]), 1, "{of_far:#}");
    for field in ["line", "live_bytes", "growth_bytes", "verdict"] {
        assert_eq!(
            of_far["lines"][0][field], alone["lines"][0][field],
            "{field}"
        );
    }

    let ranks = until(LONG, "the rank that grows stands out", || {
        let answer = fleet(&["--json", "ranks"]).document();
        let odd = answer["jobs"][0]["judgement"]["odd"].as_array()?.clone();
        (!odd.is_empty()).then_some(answer)
    });
    let job = &ranks["jobs"][0];
    assert_eq!(job["job"], "torchrun:one-job");
    assert_eq!(
        (&job["missing"][0]["from"], &job["missing"][0]["to"]),
        (&2.into(), &2.into())
    );
    let odd = job["judgement"]["odd"].as_array().unwrap();
    assert_eq!((odd.len(), &odd[0]["rank"]), (1, &1.into()), "{ranks:#}");
    for (rank, torch) in job["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .zip([&mut first, &mut second])
    {
        let told = torch.ask("totals");
        let own = number(&told["devices"][0]["allocated"]);
        assert_eq!(number(&rank["allocated_bytes"]), own, "{rank:#} {told}");
    }
    let words = fleet(&["ranks"]).output;
    assert!(words.contains("rank 1 (far, pid"), "{words}");
    assert!(words.contains("agent.py:546"), "{words}");
}
