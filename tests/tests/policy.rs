//! What is attached by itself: entries `[[attach]]` of the configuration file.

#![allow(clippy::unwrap_used)]

use memscope_tests::{
    Asking, BpfFs, Calls, Daemon, Group, Library, NOBODY, Program, Torch, assert_totals, compared,
    coverage, device, eventually, executable, find, held, json, number, public, scratch, sim, tool,
};
use std::path::PathBuf;

/// A configuration file of a test's own.
struct Configuration {
    folder: tempfile::TempDir,
}

impl Configuration {
    fn with(text: &str) -> Configuration {
        let all = Configuration { folder: scratch() };
        all.write(text);
        all
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("memscoped.toml")
    }

    /// Puts another file in its place, as an editor does.
    fn write(&self, text: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, self.path()).unwrap();
    }

    fn daemon(&self, more: &[&str]) -> Daemon {
        let path = self.path();
        Daemon::with(&[&["--config", path.to_str().unwrap()], more].concat())
    }
}

/// A job id that no other test and no other run of this one uses: conditions on it meet only what this test starts.
fn job(number: u32) -> String {
    format!("{}{number:02}", std::process::id())
}

/// A PyTorch process of this job.
fn torch_of(job: &str, word: &str) -> Torch {
    let mut command = sim().python("agent.py");
    command.arg(word).env("SLURM_JOB_ID", job);
    Torch::from_command(command)
}

/// A program that calls the runtime, of this job.
fn calls_of(job: &str, word: &str) -> Calls {
    let mut command = sim().native(executable("calls.c", Library::Runtime));
    command.arg(word).env("SLURM_JOB_ID", job);
    Calls::from_command(command)
}

/// Level at which a process is traced now.
fn level(daemon: &Daemon, pid: u32) -> Option<String> {
    let process = daemon
        .process(pid)
        .filter(|process| process["state"] == "attached")?;
    process["level"].as_str().map(str::to_owned)
}

#[track_caller]
fn wait_for_level(daemon: &Daemon, pid: u32, wanted: &str) {
    eventually(
        &format!("process {pid} is traced at level {wanted}"),
        || {
            level(daemon, pid).as_deref() == Some(wanted)
                && number(&daemon.stats(pid)["placement"]["sites"]) > 0
        },
    );
}

/// The policy's rules as `status` lists them: number, scope, how many each has attached.
fn rules(daemon: &Daemon) -> Vec<(u64, String, u64)> {
    let status = daemon.json(&["status"]);
    let rules = status["rules"].as_array().unwrap();
    let own = rules.iter().filter(|rule| rule["policy"] == true);
    own.map(|rule| {
        let scope = rule["scope"].as_str().unwrap().to_owned();
        (number(&rule["rule"]), scope, number(&rule["attached"]))
    })
    .collect()
}

/// Has the daemon read its configuration again, and waits until it has said so.
#[track_caller]
fn read_again(daemon: &Daemon, said: &str) {
    let count = |daemon: &Daemon| daemon.log().matches(said).count();
    let before = count(daemon);
    daemon.signal(libc::SIGHUP);
    eventually(&format!("the daemon says {said:?}"), || {
        count(daemon) > before
    });
}

#[test]
fn a_job_is_followed_from_its_first_allocation() {
    let job = job(1);
    let configuration = Configuration::with(&format!(
        r#"
        [[attach]]
        name = "not these"
        job = "slurm:{job}*"
        arguments = "*secret*"
        level = "off"

        [[attach]]
        name = "training"
        job = "slurm:{job}*"
        command = "python*"
        stacks = "all"
        "#
    ));
    let daemon = configuration.daemon(&[]);
    let mut torch = torch_of(&job, "train");
    let mut secret = torch_of(&job, "secret");
    let mut stranger = torch_of(&format!("9{job}"), "train");
    let pid = torch.pid();
    wait_for_level(&daemon, pid, "trace");
    for one in [&mut torch, &mut secret, &mut stranger] {
        one.ask("init");
        one.ask("alloc first 3000000");
    }
    let told = torch.ask("totals");
    let stats = daemon.stats(pid);
    assert_totals(&stats, &told);
    assert_eq!(
        number(&device(&stats, 0)["alloc_count"]),
        1,
        "it was there before the first one: {stats:#}"
    );
    let answer = compared(&daemon, &mut torch);
    assert_eq!(answer["exported"], answer["own"], "{answer:#}");
    assert_eq!(daemon.process(secret.pid()), None);
    assert_eq!(daemon.process(stranger.pid()), None);
    assert_eq!(
        rules(&daemon)
            .into_iter()
            .map(|(_, scope, attached)| (scope, attached))
            .collect::<Vec<_>>(),
        [
            (
                format!("policy not these: job=slurm:{job}* arguments=*secret*"),
                0
            ),
            (
                format!("policy training: job=slurm:{job}* command=python*"),
                1
            ),
        ]
    );
    let said = daemon.ctl(&["status"]);
    let status = said.text();
    assert!(
        status.contains("policy not these") && status.contains("off"),
        "{status}"
    );
}

#[test]
fn a_changed_policy_counts_at_once() {
    let job = job(2);
    let at = |level: &str| format!("[[attach]]\njob = \"slurm:{job}\"\nlevel = \"{level}\"\n");
    let configuration = Configuration::with(&at("segments"));
    let daemon = configuration.daemon(&[]);
    let mut torch = torch_of(&job, "train");
    torch.ask("init");
    torch.ask("alloc kept 3000000");
    let pid = torch.pid();
    wait_for_level(&daemon, pid, "segments");
    let handle = |daemon: &Daemon| number(&daemon.process(pid).unwrap()["handle"]);
    let first = handle(&daemon);

    // The same policy changes nothing, also where something else is in the file.
    configuration.write(&format!("journal-mib = 32\n{}", at("segments")));
    read_again(&daemon, "1 entry [[attach]] count");
    let numbers = rules(&daemon);
    assert_eq!((handle(&daemon), numbers.len()), (first, 1));

    configuration.write(&at("trace"));
    read_again(&daemon, "1 entry [[attach]] count");
    wait_for_level(&daemon, pid, "trace");
    assert_ne!(rules(&daemon)[0].0, numbers[0].0, "it is another entry");
    let told = torch.ask("totals");
    assert_totals(&daemon.stats(pid), &told);

    // A mistake leaves everything as it is, and is told.
    let second = handle(&daemon);
    configuration.write(&at("everything"));
    read_again(&daemon, "is wrong, so the policy is as before");
    let said = daemon.ctl(&["status"]);
    let status = said.text();
    assert!(status.contains("everything"), "{status}");
    assert_eq!(
        (handle(&daemon), level(&daemon, pid).as_deref()),
        (second, Some("trace"))
    );

    configuration.write(&at("off"));
    read_again(&daemon, "1 entry [[attach]] count");
    eventually("it is let go", || {
        daemon.process(pid).unwrap()["state"] == "detached"
    });

    configuration.write("");
    read_again(&daemon, "0 entries [[attach]] count");
    assert_eq!(rules(&daemon), []);
    torch.ask("alloc more 1000000");
    assert_eq!(level(&daemon, pid), None);
}

#[test]
fn what_somebody_detached_stays_detached() {
    let job = job(3);
    let configuration = Configuration::with(&format!(
        "[[attach]]\njob = \"slurm:{job}\"\nlevel = \"segments\"\n"
    ));
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let mut daemon = configuration.daemon(&["--pin-dir", pins.to_str().unwrap()]);
    let detached = calls_of(&job, "detached");
    let kept = calls_of(&job, "kept");
    wait_for_level(&daemon, detached.pid(), "segments");
    wait_for_level(&daemon, kept.pid(), "segments");
    daemon.detach(detached.pid());
    let number_of_rule = rules(&daemon)[0].0;
    daemon
        .ctl(&["detach", "--rule", &number_of_rule.to_string()])
        .refused(
            2,
            &["configuration file", "systemctl reload", "detach --pid"],
        );

    // Whoever is started later is found by a search that also meets the one that was detached.
    let searched = |daemon: &Daemon, word: &str| {
        let mut idle = sim().native(executable("late.c", Library::None));
        idle.arg(word).env("SLURM_JOB_ID", &job);
        let mut late = Program::start("a later process", idle);
        late.hear();
        let pid = late.pid();
        eventually("it is followed", || daemon.process(pid).is_some());
        let stats = daemon.stats(pid);
        assert_eq!(stats["process"]["from_start"], true, "{stats:#}");
        assert_eq!(level(daemon, detached.pid()), None, "{word}");
        late
    };
    let mut first = searched(&daemon, "first");
    // The next daemon knows it, too.
    daemon.signal(libc::SIGUSR1);
    daemon.wait();
    let next = daemon.successor();
    assert_eq!(rules(&next)[0].0, number_of_rule);
    assert_eq!(level(&next, kept.pid()).as_deref(), Some("segments"));
    let mut second = searched(&next, "second");
    // Who asks for it gets it.
    next.attach(detached.pid(), "segments");
    assert_eq!(level(&next, detached.pid()).as_deref(), Some("segments"));

    // Those that wait for a device are not among the others.
    let said = next.ctl(&["ps"]);
    let shown = said.text();
    assert!(!shown.contains(&first.pid_text()), "{shown}");
    assert!(
        shown.contains("2 processes are followed and have loaded no library"),
        "{shown}"
    );
    let said = next.ctl(&["ps", "--waiting"]);
    let shown = said.text();
    assert!(
        shown.contains(&first.pid_text()) && shown.contains(&second.pid_text()),
        "{shown}"
    );
    // And when they have ended, nothing is kept of them.
    let ended = first.pid();
    first.finish();
    eventually("it is forgotten", || next.process(ended).is_none());
    second.finish();
}

/// A daemon without a policy, and two programs of a job, of which the first was traced and has been detached.
fn one_of_two_detached(job: &str) -> (Configuration, Daemon, Calls, Calls) {
    let configuration = Configuration::with("");
    let daemon = configuration.daemon(&[]);
    let detached = calls_of(job, "detached");
    let other = calls_of(job, "other");
    daemon.attach(detached.pid(), "segments");
    daemon.detach(detached.pid());
    (configuration, daemon, detached, other)
}

/// Also where nothing would have attached it again at that time.
#[test]
fn what_was_detached_before_there_was_a_policy_stays_detached() {
    let job = job(9);
    let (configuration, daemon, mut detached, mut other) = one_of_two_detached(&job);
    configuration.write(&format!(
        "[[attach]]\njob = \"slurm:{job}\"\nlevel = \"segments\"\n"
    ));
    read_again(&daemon, "1 entry [[attach]] count");
    wait_for_level(&daemon, other.pid(), "segments");
    // A search meets those with lower process ids first.
    assert_eq!(level(&daemon, detached.pid()), None);
    other.finish();
    detached.finish();
}

/// Nor does a user who may not see it have it traced again, by asking for all of its name.
#[test]
fn what_was_detached_is_not_another_users_to_attach() {
    let job = job(10);
    let (configuration, daemon, mut detached, mut other) = one_of_two_detached(&job);
    daemon.open_to_all();
    let folder = scratch();
    let ctl = public(folder.path(), &tool("memscope-ctl"));
    let socket = daemon.socket();
    let as_nobody = [
        &NOBODY[..],
        &[ctl.to_str().unwrap(), "--socket", socket.to_str().unwrap()],
    ]
    .concat();
    let name = std::fs::read_to_string(format!("/proc/{}/comm", detached.pid())).unwrap();
    let asked = Asking::raw(&as_nobody, ["--json", "attach", "--comm", name.trim_end()]);
    assert_eq!(asked.ask().json()["processes"], json!([]));
    configuration.write(&format!(
        "[[attach]]\njob = \"slurm:{job}\"\nlevel = \"segments\"\n"
    ));
    read_again(&daemon, "1 entry [[attach]] count");
    wait_for_level(&daemon, other.pid(), "segments");
    // This is answered when the search that found the other one has ended.
    daemon.json(&["status"]);
    assert_eq!(level(&daemon, detached.pid()), None);
    other.finish();
    detached.finish();
}

#[test]
fn the_next_daemon_follows_its_own_configuration() {
    let job = job(4);
    let entry = |name: &str, level: &str| {
        format!(
            "[[attach]]\njob = \"slurm:{job}\"\narguments = \"*{name}*\"\nlevel = \"{level}\"\n"
        )
    };
    let all = format!(
        "{}{}{}",
        entry("same", "trace"),
        entry("more", "segments"),
        entry("gone", "trace")
    );
    let configuration = Configuration::with(&all);
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let mut daemon = configuration.daemon(&["--pin-dir", pins.to_str().unwrap()]);
    let mut same = torch_of(&job, "same");
    let mut more = torch_of(&job, "more");
    let mut gone = torch_of(&job, "gone");
    for one in [&mut same, &mut more, &mut gone] {
        one.ask("init");
        one.ask("alloc kept 3000000");
    }
    wait_for_level(&daemon, same.pid(), "trace");
    wait_for_level(&daemon, more.pid(), "segments");
    wait_for_level(&daemon, gone.pid(), "trace");
    let handle = number(&daemon.process(same.pid()).unwrap()["handle"]);
    let numbers = rules(&daemon);
    daemon.signal(libc::SIGUSR1);
    daemon.wait();
    same.ask("alloc meanwhile 5000000");
    configuration.write(&format!(
        "{}{}",
        entry("more", "trace"),
        entry("same", "trace")
    ));
    let next = daemon.successor();
    let process = next.process(same.pid()).unwrap();
    assert_eq!(number(&process["handle"]), handle, "it is traced on");
    let told = same.ask("totals");
    assert_totals(&next.stats(same.pid()), &told);
    wait_for_level(&next, more.pid(), "trace");
    let told = more.ask("totals");
    assert_totals(&next.stats(more.pid()), &told);
    assert_eq!(next.process(gone.pid()).unwrap()["state"], "detached");
    let rules = rules(&next);
    assert_eq!(rules.len(), 2);
    assert_eq!(
        rules[1].0, numbers[0].0,
        "an entry that stays keeps its number"
    );
    assert_eq!(rules[1].2, 1);
    assert!(numbers.iter().all(|(number, _, _)| *number != rules[0].0));
}

#[test]
fn what_a_process_becomes_is_found_within_a_search() {
    let group = Group::start();
    let program = executable("calls.c", Library::Runtime);
    // The path of the group is that of a process in it.
    let mut in_group = Calls::from_command(group.command(sim().native(&program)));
    let outer = Group::outer_of(in_group.pid());
    let library = sim()
        .runtime()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let job = job(5);
    let configuration = Configuration::with(&format!(
        r#"
        [[attach]]
        cgroup = "{outer}"
        level = "segments"
        [[attach]]
        job = "slurm:{job}"
        library = "{library}"
        level = "segments"
        "#
    ));
    let daemon = configuration.daemon(&[]);
    wait_for_level(&daemon, in_group.pid(), "segments");

    // A library comes later.
    let mut idle = sim().native(executable("late.c", Library::None));
    idle.env("SLURM_JOB_ID", &job);
    let mut late = Program::start("the late process", idle);
    late.hear();
    late.ask(&format!("load {}", sim().runtime().display()));
    wait_for_level(&daemon, late.pid(), "segments");
    assert_eq!(late.ask("malloc 4321")["result"], 0);
    assert_eq!(held(&daemon.stats(late.pid())), (1, 4321));
    late.finish();

    // A process is moved into the group.
    let mut moved = Calls::start(&[]);
    assert_eq!(daemon.process(moved.pid()), None);
    group.take(moved.pid());
    wait_for_level(&daemon, moved.pid(), "segments");
    let pid = moved.pid();
    moved.call("cudaMalloc a 4096");
    assert_eq!(held(&daemon.stats(pid)), (1, 4096));

    // A program is started in it.
    let mut started = Calls::from_command(group.command(sim().native(&program)));
    wait_for_level(&daemon, started.pid(), "segments");
    let listed = daemon.json(&["ps"]);
    assert!(find(&listed["processes"], "pid", started.pid()).is_some());
    for calls in [&mut in_group, &mut moved, &mut started] {
        calls.finish();
    }
}

/// The script of a job is a shell that becomes the program: the entries decide about what it is then.
#[test]
fn what_a_shell_becomes_is_judged_anew() {
    let (left, finer, not_named) = (job(6), job(7), job(8));
    let program = executable("calls.c", Library::Runtime);
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let configuration = Configuration::with(&format!(
        r#"
        [[attach]]
        job = "slurm:{left}"
        command = "{name}"
        level = "off"

        [[attach]]
        job = "slurm:{finer}"
        command = "{name}"
        level = "segments"

        [[attach]]
        job = ["slurm:{left}", "slurm:{finer}"]
        level = "trace"

        [[attach]]
        job = "slurm:{not_named}"
        command = "bash"
        level = "trace"
        "#
    ));
    let daemon = configuration.daemon(&[]);
    // It says something only once it is the program.
    let attached = || -> Vec<u64> {
        let rules = rules(&daemon).into_iter();
        rules.map(|(_, _, count)| count).collect()
    };
    let shell_of = |job: &str| {
        let before: u64 = attached().iter().sum();
        let mut command = sim().native("/bin/bash");
        command
            .args(["-c", "read -r && exec \"$0\""])
            .arg(&program)
            .env("SLURM_JOB_ID", job);
        let shell = Program::start("a shell", command);
        let pid = shell.pid();
        // An attach is counted when it is complete.
        eventually("the shell is attached", || {
            attached().iter().sum::<u64>() > before
        });
        assert_eq!(level(&daemon, pid).as_deref(), Some("trace"));
        shell
    };
    for (job, wanted) in [
        (&left, None),
        (&finer, Some("segments")),
        (&not_named, None),
    ] {
        let mut shell = shell_of(job);
        let pid = shell.pid();
        shell.tell("go on");
        shell.hear();
        match wanted {
            Some(wanted) => wait_for_level(&daemon, pid, wanted),
            None => eventually("the program is let be", || level(&daemon, pid).is_none()),
        }
        assert_eq!(shell.ask("cudaMalloc a 4096")["result"], 0);
        assert_eq!(level(&daemon, pid).as_deref(), wanted);
        shell.finish();
    }
    assert_eq!(attached(), [0, 1, 2, 1]);
}

#[test]
fn a_wrong_policy_does_not_start() {
    let configuration = Configuration::with("[[attach]]\nusers = 0\n");
    let path = configuration.path();
    let tool = tool("memscoped");
    for check in [&["--check-config"][..], &[]] {
        let mut command = std::process::Command::new(&tool);
        command.arg("--config").arg(&path).args(check);
        let said = command.output().unwrap();
        assert_eq!(said.status.code(), Some(2));
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        for word in ["memscoped.toml", "entry 1", "users", "`user`"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    configuration.write("[[attach]]\nuser = 0\n[[attach]]\nlevel = \"off\"\n");
    let mut command = std::process::Command::new(&tool);
    let said = command
        .arg("--config")
        .arg(&path)
        .arg("--check-config")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("0 settings, 2 entries [[attach]], no mistake"),
        "{said}"
    );
}

/// At its first instruction a program has neither an interpreter nor a library of a device, and it gets probes and stacks when they come.
#[test]
fn attached_at_the_first_instruction() {
    use std::os::unix::process::CommandExt;
    let daemon = Daemon::start();
    let mut command = sim().python("agent.py");
    // SAFETY: between fork and exec; one system call, after which the exec stops.
    unsafe {
        command.pre_exec(|| {
            let failed = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0;
            failed
                .then(std::io::Error::last_os_error)
                .map_or(Ok(()), Err)
        });
    }
    let mut torch = Program::start("a process that was just started", command);
    let pid = i32::try_from(torch.pid()).unwrap();
    let mut status = 0;
    // SAFETY: waits for the stop of a child of this thread.
    let stopped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert!(
        stopped == pid && libc::WIFSTOPPED(status),
        "it stops at its exec"
    );
    daemon.json(&["attach", "--pid", &torch.pid_text(), "--wait"]);
    assert_eq!(daemon.stats(torch.pid())["placement"]["sites"], 0);
    // SAFETY: lets the child that this thread stopped go on.
    let gone = unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    assert_eq!(gone, 0);
    assert_eq!(torch.hear()["ready"], true);
    torch.ask("init");
    torch.ask("alloc kept 3000000");
    let stats = daemon.stats(torch.pid());
    assert_eq!(stats["process"]["from_start"], true, "{stats:#}");
    assert!(!coverage(&stats).contains(&"no_python_stacks"), "{stats:#}");
    assert_totals(&stats, &torch.ask("totals"));
    let top = daemon.json(&["stacks", "--pid", &torch.pid_text()]);
    assert!(top.to_string().contains("agent.py"), "{top:#}");
}
