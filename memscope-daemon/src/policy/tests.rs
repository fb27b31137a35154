use super::*;
use memscope_ledger::event::{Level, ProcessFacts};
use memscope_tests::limits::{Met, constant};
use std::path::PathBuf;

const POD: &str = "1a2b3c4d-0000-1111-2222-333344445555";

fn read(text: &str) -> Result<Policy, String> {
    let table: toml::Table = text.parse().unwrap();
    Policy::read(table.get("attach").unwrap()).map_err(|error| error.to_string())
}

fn policy(text: &str) -> Policy {
    read(text).unwrap()
}

fn nowhere() -> Places {
    Places {
        pod_logs: PathBuf::from("/no/such/folder"),
        pod_volumes: PathBuf::from("/no/such/folder"),
    }
}

/// A program of user 1000, with this name, command line, control group and environment.
fn program(comm: &str, line: &str, group: &str, environment: &[(&str, &str)]) -> ProcessFacts {
    ProcessFacts {
        // No process has this pid, so nothing is read of one.
        pid: u32::MAX,
        uids: [1000; 3],
        comm: comm.to_owned(),
        cmdline: line.split(' ').map(str::to_owned).collect(),
        cgroup: Some(group.to_owned()),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..ProcessFacts::default()
    }
}

/// The entry that decides about a program that maps these files.
fn decided(policy: &Policy, facts: &ProcessFacts, mapped: &[&str]) -> Option<usize> {
    let places = nowhere();
    let candidate = Candidate::with(facts.clone(), &places).mapping(mapped);
    policy.decide(&candidate).map(|(at, _)| at)
}

#[test]
fn each_condition_by_itself() {
    let trainer = program(
        "python3",
        "/opt/venv/bin/python3.11 -u train.py --epochs 3",
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_1",
        &[("SLURM_JOB_NAME", "llama"), ("SLURM_PROCID", "1")],
    );
    let mapped = ["libc.so.6", "libcuda.so.1", "libtorch_cuda.so"];
    for (condition, meets) in [
        ("user = 1000", true),
        ("user = [0, 1000]", true),
        ("user = \"root\"", false),
        ("user = [\"root\", 1000]", true),
        ("cgroup = \"/system.slice\"", true),
        ("cgroup = \"/system.slice/\"", true),
        ("cgroup = \"/system\"", false),
        ("cgroup = \"/system.slice/slurmstepd.scope/job_*\"", true),
        ("cgroup = \"/system.slice/slurmstepd.scope/job_4\"", false),
        ("cgroup = \"/\"", true),
        ("cgroup = \"*/step_0\"", true),
        ("job = \"slurm:*\"", true),
        ("job = \"slurm:42.0\"", true),
        ("job = \"torchrun:*\"", false),
        ("job-name = [\"bert\", \"lla*\"]", true),
        ("job-name = \"bert\"", false),
        ("container = \"*\"", false),
        ("namespace = \"*\"", false),
        ("pod = \"*\"", false),
        ("pod-labels = { app = \"*\" }", false),
        ("command = \"python3\"", true),
        ("command = \"python3.11\"", true),
        ("command = \"python*\"", true),
        ("command = \"train.py\"", false),
        ("arguments = \"*train.py*\"", true),
        ("arguments = \"train.py\"", false),
        ("library = \"libtorch_cuda.so*\"", true),
        ("library = \"libascendcl.so*\"", false),
        ("", true),
    ] {
        let one = policy(&format!("[[attach]]\n{condition}"));
        let expected = meets.then_some(0);
        assert_eq!(decided(&one, &trainer, &mapped), expected, "{condition}");
        // All conditions have to be met.
        let both = policy(&format!(
            "[[attach]]\nlevel = \"blocks\"\nuser = 7\n{}",
            condition.replace("user", "#")
        ));
        assert_eq!(decided(&both, &trainer, &mapped), None, "{condition}");
    }
    // Nothing said: whatever uses a device.
    let all = policy("[[attach]]");
    assert_eq!(decided(&all, &trainer, &["libc.so.6"]), None);
    assert!(all.entries[0].conditions.need_a_library());
    let of_user = policy("[[attach]]\nuser = 1000");
    assert_eq!(decided(&of_user, &trainer, &["libc.so.6"]), Some(0));
    assert!(!of_user.entries[0].conditions.need_a_library());
}

#[test]
fn the_first_entry_that_matches_decides() {
    let policy = policy(
        r#"
        [[attach]]
        name = "not the notebooks"
        arguments = "*ipykernel*"
        level = "off"
        [[attach]]
        name = "training"
        command = "python*"
        arguments = "*train*"
        level = "trace"
        stacks = "all"
        stack-budget = 5
        [[attach]]
        command = "python*"
        level = "segments"
        "#,
    );
    let notebook = program("python3", "python3 -m ipykernel train", "/", &[]);
    let training = program("python3", "python3 train.py", "/", &[]);
    let serving = program("python3", "python3 serve.py", "/", &[]);
    let shell = program("bash", "bash train.sh", "/", &[]);
    let decided = |facts| decided(&policy, facts, &[]);
    assert_eq!(decided(&notebook), Some(0));
    assert!(policy.entries[0].options.is_none(), "it is left alone");
    assert_eq!(decided(&training), Some(1));
    assert_eq!(decided(&serving), Some(2));
    assert_eq!(decided(&shell), None);
    let options = policy.entries[1].options.clone().unwrap();
    assert_eq!(options.level, Level::Trace);
    assert!(options.stacks.python && options.stacks.native);
    assert!((options.stack_budget.unwrap().fraction() - 0.05).abs() < 1e-9);
    assert_eq!(
        policy.entries[2].options.as_ref().unwrap().stack_budget,
        None
    );
    assert_eq!(
        policy.entries[0].scope(),
        "policy not the notebooks: arguments=*ipykernel*"
    );
    assert_eq!(policy.entries[2].scope(), "policy: command=python*");
}

#[test]
fn pods_by_what_the_machine_says() {
    let folder = tempfile::tempdir().unwrap();
    let places = Places {
        pod_logs: folder.path().join("logs/pods"),
        pod_volumes: folder.path().join("kubelet"),
    };
    std::fs::create_dir_all(places.pod_logs.join(format!("team-a_trainer-0_{POD}"))).unwrap();
    let volume = places
        .pod_volumes
        .join(POD)
        .join("volumes/kubernetes.io~downward-api/podinfo");
    std::fs::create_dir_all(&volume).unwrap();
    let labels = "app=\"trainer\"\napp.kubernetes.io/part-of=\"llama-3.1\"\n";
    std::fs::write(volume.join("labels"), labels).unwrap();
    let group = format!("/kubepods/burstable/pod{POD}/{}", "a".repeat(64));
    // What a program claims is not what counts.
    let claims = [("POD_NAMESPACE", "team-b"), ("HOSTNAME", "other-0")];
    let facts = program("python3", "python3 train.py", &group, &claims);
    for (condition, meets) in [
        ("namespace = \"team-a\"", true),
        ("namespace = \"team-b\"", false),
        ("namespace = [\"x\", \"team-*\"]", true),
        ("pod = \"trainer-*\"", true),
        ("pod = \"other-*\"", false),
        ("pod-labels = { app = \"train*\" }", true),
        ("pod-labels = { app = \"trainer\", tier = \"*\" }", false),
        (
            "pod-labels = { \"app.kubernetes.io/part-of\" = \"llama-*\" }",
            true,
        ),
        ("container = \"aaaa*\"", true),
    ] {
        let policy = policy(&format!("[[attach]]\n{condition}"));
        let candidate = Candidate::with(facts.clone(), &places);
        assert_eq!(policy.decide(&candidate).is_some(), meets, "{condition}");
    }
    // A file beside it is no pod's.
    let stranger = program(
        "python3",
        "python3",
        &group.replace("1a2b", "0000"),
        &claims,
    );
    let policy = policy("[[attach]]\npod-labels = { app = \"*\" }");
    assert_eq!(policy.decide(&Candidate::with(stranger, &places)), None);
}

#[test]
fn what_can_change_while_a_process_runs() {
    for (text, changes, by_others) in [
        ("user = 0", false, false),
        ("command = \"x\"", false, false),
        ("cgroup = \"/x\"", true, true),
        ("job = \"slurm:*\"", true, true),
        ("pod-labels = { a = \"b\" }", true, true),
        ("library = \"x\"", true, false),
        ("", true, false),
    ] {
        let policy = policy(&format!("[[attach]]\n{text}"));
        assert_eq!(policy.looks_at_what_changes(), changes, "{text}");
        assert_eq!(policy.looks_at_groups(), by_others, "{text}");
    }
    assert!(policy("[[attach]]\nlevel = \"off\"").is_empty());
    assert!(!policy("[[attach]]").is_empty());
}

#[test]
fn what_is_wrong_is_named() {
    for (text, words) in [
        ("attach = \"all\"", &["[[attach]]"][..]),
        ("attach = [1]", &["[[attach]]"]),
        ("[attach]\nuser = 0", &["[[attach]]"]),
        ("[[attach]]\nusr = 0", &["entry 1", "usr", "user"]),
        (
            "[[attach]]\n[[attach]]\nname = \"x\"\nlevel = \"all\"",
            &["entry 2", "\"x\"", "all", "blocks"],
        ),
        (
            "[[attach]]\nuser = \"no-such-user-here\"",
            &["no-such-user-here", "number"],
        ),
        ("[[attach]]\nuser = []", &["user", "empty"]),
        ("[[attach]]\nuser = -1", &["entry 1"]),
        ("[[attach]]\ncommand = \"\"", &["command fits nothing"]),
        ("[[attach]]\ncommand = []", &["command fits nothing"]),
        (
            "[[attach]]\ncgroup = \"slurm\"",
            &["cgroup \"slurm\"", "/proc/PID/cgroup"],
        ),
        ("[[attach]]\npod-labels = { \"\" = \"x\" }", &["pod-labels"]),
        ("[[attach]]\nstack-sample = \"3MiB\"", &["power of two"]),
        ("[[attach]]\nstack-sample = \"much\"", &["stack-sample"]),
        ("[[attach]]\nstack-depth = 5000", &["5000 frames"]),
        (
            "[[attach]]\nstack-budget = 0",
            &["stack-budget", "percentage"],
        ),
        ("[[attach]]\nstack-budget = 101", &["stack-budget"]),
        ("[[attach]]\nevery = \"10s\"", &["level read"]),
        (
            "[[attach]]\nlevel = \"read\"\nevery = \"1ms\"",
            &["too short", "200ms"],
        ),
        (
            "[[attach]]\nlevel = \"segments\"\naccesses = true",
            &["level blocks or trace"],
        ),
        (
            "[[attach]]\nlevel = \"off\"\nstacks = \"none\"",
            &["leaves processes alone"],
        ),
    ] {
        let said = read(text).unwrap_err();
        for word in words {
            assert!(said.contains(word), "{text}: {word}: {said}");
        }
    }
    let many = "[[attach]]\n".repeat(MOST_ENTRIES + 1);
    assert!(read(&many).unwrap_err().contains("at most 64"));
    assert_eq!(
        policy(&"[[attach]]\n".repeat(MOST_ENTRIES)).entries.len(),
        MOST_ENTRIES
    );
    Met {
        what: "entries of the policy",
        most: constant("memscope-daemon/src/policy/mod.rs", "MOST_ENTRIES"),
        beyond: "the configuration is refused",
        told: "the error, with the number",
        test: "what_is_wrong_is_named",
    }
    .is_told();
    let read_level = policy("[[attach]]\nlevel = \"read\"").entries[0]
        .options
        .clone()
        .unwrap();
    assert_eq!(read_level.read_every, Some(memscope_proto::READ_EVERY));
}
