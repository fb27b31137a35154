//! Jobs and containers: a policy attaches each step and each container by itself, and everybody calls them by their names. Slurm and
//! podman are real ones, with ports and folders of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Daemon, LONG, TempDir, Value, eventually, metrics_of, number, root, scratch, sim, until,
};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that ends when it is dropped.
struct Service(Child);

impl Service {
    fn start(command: &mut Command) -> Service {
        let command = command.stdin(Stdio::null());
        Service(
            command.spawn().unwrap_or_else(|error| {
                panic!("{command:?}: {error} (cargo xtask setup --workloads)")
            }),
        )
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: sends a signal to a child that was not waited for.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// A port of this machine that is free now.
fn port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// A cluster of one machine.
struct Cluster {
    // The order is that in which they end.
    _node: Service,
    _controller: Service,
    _munge: Service,
    folder: TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let folder = scratch();
        let at = |name: &str| folder.path().join(name);
        // munged trusts no folder that others can write to.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["munge", "state", "spool"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let key: Vec<u8> = (0..1024u32)
            .map(|at| (at * 7 + std::process::id()) as u8)
            .collect();
        std::fs::write(at("munge/key"), key).unwrap();
        std::fs::set_permissions(at("munge/key"), std::fs::Permissions::from_mode(0o400)).unwrap();
        let socket = at("munge/socket");
        let mut munge = Command::new("munged");
        munge.args(["--force", "--foreground", "--num-threads", "2"]);
        for (option, file) in [
            ("--key-file", "munge/key"),
            ("--socket", "munge/socket"),
            ("--pid-file", "munge/pid"),
            ("--seed-file", "munge/seed"),
            ("--log-file", "munge/log"),
        ] {
            munge.arg(option).arg(at(file));
        }
        let munge = Service::start(munge.stderr(file(&at("munge/said"))));
        eventually("munged listens", || socket.exists());

        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        let place = folder.path().display();
        let text = format!(
            "ClusterName=e2e{pid}\n\
             SlurmctldHost={host}(127.0.0.1)\n\
             SlurmUser=root\nSlurmdUser=root\n\
             SlurmctldPort={}\nSlurmdPort={}\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={}\n\
             StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\n\
             SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/slurmd.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\nSlurmdParameters=config_overrides\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
             PartitionName=all Nodes={host} Default=YES State=UP OverSubscribe=FORCE:4\n",
            port(),
            port(),
            socket.display(),
            pid = std::process::id(),
        );
        std::fs::write(at("slurm.conf"), text).unwrap();
        let mut controller = Command::new("slurmctld");
        controller.arg("-D").arg("-f").arg(at("slurm.conf"));
        controller
            .stdout(Stdio::null())
            .stderr(file(&at("slurmctld.log")));
        let mut node = Command::new("slurmd");
        node.arg("-D").arg("-f").arg(at("slurm.conf"));
        node.stdout(Stdio::null()).stderr(file(&at("slurmd.log")));
        let cluster = Cluster {
            _controller: Service::start(&mut controller),
            _node: Service::start(&mut node),
            _munge: munge,
            folder,
        };
        until(LONG, "the node is idle", || {
            let mut ask = cluster.command("sinfo");
            ask.args(["-h", "-o", "%T"]);
            let (_, said, _) = asked(ask);
            (said.trim() == "idle").then_some(())
        });
        cluster
    }

    /// One of Slurm's commands, for this cluster.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    /// What the services have logged.
    fn logs(&self) -> String {
        let read =
            |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        format!("{}\n{}", read("slurmctld.log"), read("slurmd.log"))
    }
}

/// Runs a program that answers at once: its status, and what it printed.
fn asked(mut command: Command) -> (std::process::ExitStatus, String, String) {
    let said = command.stdin(Stdio::null()).output();
    let said = said.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (said.status, text(&said.stdout), text(&said.stderr))
}

impl Drop for Cluster {
    /// What a test that failed has left running ends with the cluster.
    fn drop(&mut self) {
        let ask = |name: &str, arguments: &[&str]| {
            let mut command = self.command(name);
            command.args(arguments);
            asked(command).1
        };
        let jobs = ask("squeue", &["-h", "-o", "%i"]);
        for job in jobs.split_whitespace() {
            ask("scancel", &["--full", "--signal", "KILL", job]);
        }
        let deadline = std::time::Instant::now() + LONG;
        while !ask("squeue", &["-h", "-o", "%i"]).trim().is_empty()
            && std::time::Instant::now() < deadline
        {
            std::thread::yield_now();
        }
    }
}

fn file(path: &Path) -> std::fs::File {
    std::fs::File::create(path).unwrap()
}

/// A script that runs `job.py` with a word on the simulated device. It sets the environment by itself: the shells and Slurm's own
/// programs must not load the device's libraries.
fn task(folder: &Path) -> String {
    let command = sim().script(&root().join("tests/workloads/job.py"));
    let mut text = "#!/bin/sh\nexec env".to_owned();
    let quoted = |value: &std::ffi::OsStr| format!("'{}'", value.to_str().unwrap());
    for (name, value) in command.get_envs() {
        text.push_str(&format!(
            " {}={}",
            name.to_str().unwrap(),
            quoted(value.unwrap())
        ));
    }
    for (name, value) in [
        ("E2E_SAY", folder.to_owned()),
        ("E2E_GO", folder.join("go")),
    ] {
        text.push_str(&format!(" {name}={}", quoted(value.as_os_str())));
    }
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        text.push_str(&format!(" {}", quoted(word)));
    }
    text.push_str(" \"$@\"\n");
    let file = folder.join("task.sh");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().to_owned()
}

/// What the task with this word and rank has said.
fn told(folder: &Path, word: &str, rank: u32) -> Value {
    until(LONG, "the task has allocated", || {
        let text = std::fs::read_to_string(folder.join(format!("{word}-{rank}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    })
}

/// A daemon with this policy and metrics.
fn daemon(folder: &Path, policy: &str) -> Daemon {
    let path = folder.join("memscoped.toml");
    std::fs::write(&path, policy).unwrap();
    let path = path.to_str().unwrap();
    Daemon::with(&["--config", path, "--metrics", "127.0.0.1:0"])
}

/// The daemon has numbers of a process, and they are what PyTorch told.
#[track_caller]
fn assert_told(daemon: &Daemon, pid: u32, told: &Value) {
    let stats = daemon.stats(pid);
    let device = &stats["devices"][0];
    assert_eq!(device["allocated_bytes"], told["allocated"], "{stats:#}");
    assert_eq!(device["reserved_bytes"], told["reserved"], "{stats:#}");
    assert_eq!(
        number(&device["alloc_count"]),
        1,
        "it was there before the first one: {stats:#}"
    );
}

/// The processes that have memory, each with its entry in `ps`.
fn listed(daemon: &Daemon) -> Vec<Value> {
    let all = daemon.json(&["ps"]);
    let all = all["processes"].as_array().unwrap().iter();
    let at_work = all.filter(|one| one["state"] == "attached" && one["waits_for_device"] == false);
    at_work.cloned().collect()
}

#[test]
fn each_step_of_a_job_is_attached_by_itself_and_has_its_names() {
    let cluster = Cluster::start();
    let folder = scratch();
    let name = format!("llama-{}", std::process::id());
    let policy = format!("[[attach]]\nname = \"jobs\"\njob = \"slurm:*\"\njob-name = \"{name}\"\n");
    let daemon = daemon(folder.path(), &policy);
    let task = task(folder.path());
    let script = folder.path().join("job.sh");
    std::fs::write(
        &script,
        format!("#!/bin/sh\nsrun -n 2 {task} first &\nsrun -n 1 --overlap {task} second &\nwait\n"),
    )
    .unwrap();
    let mut batch = cluster.command("sbatch");
    batch.args(["-J", &name, "-n", "2", "--overcommit", "--parsable", "-o"]);
    batch.arg(folder.path().join("output")).arg(&script);
    let (status, job, errors) = asked(batch);
    assert!(status.success(), "{errors}\n{}", cluster.logs());
    let job = job.trim().to_owned();

    let mut steps = Vec::new();
    for (word, ranks) in [("first", 2), ("second", 1)] {
        for rank in 0..ranks {
            let told = told(folder.path(), word, rank);
            let pid = u32::try_from(number(&told["pid"])).unwrap();
            eventually("the step is attached", || {
                listed(&daemon)
                    .iter()
                    .any(|one| number(&one["pid"]) == u64::from(pid))
            });
            assert_told(&daemon, pid, &told);
            let process = daemon.process(pid).unwrap();
            let workload = &process["workload"];
            let step = workload["slurm_step"].as_str().unwrap().to_owned();
            assert_eq!(workload["slurm_job"], job, "{process:#}");
            assert_eq!(
                workload["job"],
                format!("slurm:{job}.{step}"),
                "{process:#}"
            );
            assert_eq!(workload["job_name"], name, "{process:#}");
            assert_eq!(number(&workload["rank"]), u64::from(rank), "{process:#}");
            assert_eq!(
                number(&workload["world_size"]),
                u64::from(ranks),
                "{process:#}"
            );
            assert_eq!(workload["rank_from"], "SLURM_PROCID", "{process:#}");
            steps.push((word, step));
        }
    }
    assert_eq!(steps[0].1, steps[1].1, "one step has both ranks");
    assert_ne!(
        steps[0].1, steps[2].1,
        "the other step has a number of its own"
    );
    assert_eq!(
        listed(&daemon).len(),
        3,
        "the shells of the job are not among them"
    );

    // The same names in what people read, in the comparison of ranks, and in metrics.
    let said = daemon.ctl(&["ps"]);
    let shown = said.text();
    for (_, step) in &steps {
        assert!(shown.contains(&format!("slurm:{job}.{step}")), "{shown}");
    }
    let metrics = metrics_of(&daemon);
    for (_, step) in &steps {
        let label = format!("job_id=\"slurm:{job}.{step}\"");
        assert!(metrics.contains(&label), "{label}: {metrics}");
    }
    assert!(!metrics.contains("slurm_script"), "{metrics}");
    let ranks = daemon.json(&["ranks"]);
    let jobs = ranks["jobs"].as_array().unwrap();
    let of_first = jobs
        .iter()
        .find(|one| one["job"] == format!("slurm:{job}.{}", steps[0].1));
    assert!(of_first.is_some(), "{ranks:#}");

    // Another job is none of the policy's.
    let mut srun = cluster.command("srun");
    srun.args(["-n", "1", "--overcommit", "-J", "another", &task, "other"]);
    srun.stdout(Stdio::null()).stderr(Stdio::null());
    let srun = Service::start(&mut srun);
    let told = told(folder.path(), "other", 0);
    assert_eq!(
        daemon.process(u32::try_from(number(&told["pid"])).unwrap()),
        None
    );

    std::fs::write(folder.path().join("go"), "").unwrap();
    eventually("the steps have ended", || listed(&daemon).is_empty());
    drop(srun);
    until(LONG, "the job is over", || {
        let mut ask = cluster.command("squeue");
        ask.args(["-h", "-o", "%i"]);
        let (_, said, _) = asked(ask);
        said.trim().is_empty().then_some(())
    });
}

#[test]
fn a_container_is_attached_by_its_name() {
    let folder = scratch();
    let name = format!("memscope-e2e-{}", std::process::id());
    let policy = format!("[[attach]]\ncontainer = \"{name}\"\nlevel = \"trace\"\n");
    let daemon = daemon(folder.path(), &policy);
    let task = task(folder.path());
    let mut podman = Podman::of(&folder);
    let mut command = podman.command();
    command.args(["run", "--name", &name, "--network", "none", "--rm"]);
    // The processes of the container may have fewer files and processes than a test, whose limits may be above the machine's.
    command.args([
        "--ulimit",
        "nofile=20000:20000",
        "--ulimit",
        "nproc=1000:1000",
    ]);
    let place = folder.path().display().to_string();
    command.args(["-v", &format!("{place}:{place}")]);
    command.args(["-e", "RANK=2", "-e", "WORLD_SIZE=4", "--rootfs", "/:O"]);
    command.args([&task, "boxed"]);
    command
        .stdout(Stdio::null())
        .stderr(file(&folder.path().join("podman.log")));
    podman.name = Some(name.clone());
    let container = Service::start(&mut command);
    let told = told(folder.path(), "boxed", 2);
    let process = until(Duration::from_secs(20), "the container is attached", || {
        listed(&daemon).into_iter().next()
    });
    let pid = u32::try_from(number(&process["pid"])).unwrap();
    assert_told(&daemon, pid, &told);
    assert_eq!(process["namespace_pid"], told["pid"], "{process:#}");
    let workload = &process["workload"];
    assert_eq!(workload["container"], name, "{process:#}");
    assert_eq!(workload["container_runtime"], "podman", "{process:#}");
    assert_eq!(number(&workload["rank"]), 2, "{process:#}");
    let mut ask = podman.command();
    ask.args(["inspect", "--format", "{{.Id}}", &name]);
    let (status, id, errors) = asked(ask);
    assert!(status.success(), "{errors}");
    assert_eq!(workload["container_id"], id.trim(), "{process:#}");
    let label = format!("container=\"{name}\"");
    let metrics = metrics_of(&daemon);
    assert!(metrics.contains(&label), "{metrics}");
    std::fs::write(folder.path().join("go"), "").unwrap();
    eventually("the container has ended", || listed(&daemon).is_empty());
    drop(container);
}

/// podman with storage of this test's own.
struct Podman {
    storage: PathBuf,
    /// A container that is removed at the end.
    name: Option<String>,
}

impl Podman {
    fn of(folder: &TempDir) -> Podman {
        Podman {
            storage: folder.path().join("podman"),
            name: None,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(self.storage.join("root"));
        command.arg("--runroot").arg(self.storage.join("run"));
        command.arg("--tmpdir").arg(self.storage.join("tmp"));
        command.args([
            "--runtime",
            "runc",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "none",
        ]);
        command
    }

    /// Whether a process has this storage among its arguments.
    fn is_at_work(&self) -> bool {
        let storage = self.storage.to_string_lossy();
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.into_iter().any(|process| {
            let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&*storage)
        })
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let mut command = self.command();
            command.args(["rm", "--force", "--time", "0", "--ignore", name]);
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        // podman mounts its storage on itself, also when it cleans up after a container, which it does by itself and after it has ended.
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.is_at_work() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let storage = self.storage.join("root/overlay");
        let storage = std::ffi::CString::new(storage.into_os_string().into_encoded_bytes());
        if let Ok(storage) = storage {
            // SAFETY: the name ends with a zero byte.
            while unsafe { libc::umount2(storage.as_ptr(), libc::MNT_DETACH) } == 0 {}
        }
    }
}
