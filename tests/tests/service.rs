//! What is for the service manager: the files in `deploy/`, and what the daemon tells systemd.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memscope_tests::certificates::{Authority, ServerFiles};
use memscope_tests::{Daemon, TempDir, eventually, root, scratch, tool};

/// Ten times the exposure that the unit may have at most, as `systemd-analyze security` counts it.
const THRESHOLD: &str = "--threshold=20";

fn deploy(name: &str) -> PathBuf {
    root().join("deploy").join(name)
}

/// Runs one of systemd's programs, which works without systemd being the first process.
#[track_caller]
fn systemd(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    // Nothing of this is for a pager.
    command
        .args(arguments)
        .env("SYSTEMD_PAGER", "")
        .env("LC_ALL", "C");
    command.output().unwrap_or_else(|error| {
        panic!(
            "{program} does not start ({error}): Debian's package systemd has it; `cargo xtask setup --systemd` installs it"
        )
    })
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_unit_exposes_little() {
    for unit in ["memscoped.service", "memscope-archive.service"] {
        let unit = deploy(unit);
        let words = [
            "security",
            "--offline=true",
            THRESHOLD,
            unit.to_str().unwrap(),
        ];
        let output = systemd("systemd-analyze", &words);
        assert!(
            output.status.success(),
            "the unit exposes more than it may:\n{}",
            said(&output)
        );
        assert!(
            said(&output).contains("Overall exposure level"),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn the_unit_of_the_archive_has_no_mistakes() {
    let folder = scratch();
    let unit = std::fs::read_to_string(deploy("memscope-archive.service")).unwrap();
    assert!(
        unit.contains("\nExecStart=/usr/bin/memscope-archive\n"),
        "{unit}"
    );
    // An option would go before what the file of settings says.
    assert!(
        unit.contains("\nEnvironment=MEMSCOPE_ARCHIVE_SPOOL=/var/lib/memscope-archive\n"),
        "{unit}"
    );
    let program = tool("memscope-archive");
    let here = unit.replace("/usr/bin/memscope-archive", program.to_str().unwrap());
    let copy = folder.path().join("memscope-archive.service");
    std::fs::write(&copy, here).unwrap();
    let output = systemd("systemd-analyze", &["verify", copy.to_str().unwrap()]);
    let said = said(&output);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("memscope-archive"))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_user_of_the_archive_is_made() {
    let folder = scratch();
    let place = folder.path().join("usr/lib/sysusers.d");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::create_dir_all(folder.path().join("etc")).unwrap();
    std::fs::copy(
        deploy("memscope-archive.sysusers.conf"),
        place.join("memscope-archive.conf"),
    )
    .unwrap();
    let at = format!("--root={}", folder.path().display());
    let output = systemd("systemd-sysusers", &[&at]);
    assert!(output.status.success(), "{}", said(&output));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let users = read("etc/passwd");
    assert!(
        users
            .lines()
            .any(|line| line.starts_with("memscope-archive:")),
        "{users}"
    );
    let groups = read("etc/group");
    assert!(
        groups
            .lines()
            .any(|line| line.starts_with("memscope:") && line.ends_with(":memscope-archive")),
        "{groups}"
    );
}

#[test]
fn the_unit_has_no_mistakes() {
    // The program that it starts must be there.
    let folder = scratch();
    let unit = std::fs::read_to_string(deploy("memscoped.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/memscoped "), "{unit}");
    // systemd runs no further command of a reload after one that failed, so a wrong configuration ends nothing.
    let reloads: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ExecReload="))
        .collect();
    assert_eq!(reloads.len(), 2, "{reloads:?}");
    assert_eq!(reloads[0], "/usr/bin/memscoped --check-config");
    assert!(reloads[1].contains("kill -USR1"), "{reloads:?}");
    let here = unit.replace("/usr/bin/memscoped", tool("memscoped").to_str().unwrap());
    let copy = folder.path().join("memscoped.service");
    std::fs::write(&copy, here).unwrap();
    let more = folder.path().join("memscoped.service.d");
    std::fs::create_dir(&more).unwrap();
    for drop_in in ["memscoped-before-6.6.conf", "memscoped-network.conf"] {
        std::fs::copy(deploy(drop_in), more.join(drop_in)).unwrap();
    }
    let output = systemd("systemd-analyze", &["verify", copy.to_str().unwrap()]);
    // What concerns other units of this machine does not matter; it names theirs.
    let said = said(&output);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("memscoped"))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_group_is_made() {
    let folder = scratch();
    let place = folder.path().join("usr/lib/sysusers.d");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::create_dir_all(folder.path().join("etc")).unwrap();
    std::fs::copy(
        deploy("memscope.sysusers.conf"),
        place.join("memscope.conf"),
    )
    .unwrap();
    let at = format!("--root={}", folder.path().display());
    let output = systemd("systemd-sysusers", &[&at]);
    assert!(output.status.success(), "{}", said(&output));
    let groups = std::fs::read_to_string(folder.path().join("etc/group")).unwrap();
    assert!(
        groups.lines().any(|line| line.starts_with("memscope:")),
        "{groups}"
    );
}

/// A socket that stands for systemd's, and a daemon that is told of it. The daemon must give a sign of life each second.
struct Told {
    socket: UnixDatagram,
    folder: TempDir,
    daemon: Daemon,
}

impl Told {
    fn start() -> Told {
        let folder = scratch();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let variable = |name: &str, value: &Path| format!("{name}={}", value.display());
        let prefix = [
            "env",
            &variable("NOTIFY_SOCKET", &path),
            "WATCHDOG_USEC=1000000",
            &variable("MEMSCOPE_TEST_PANIC", folder.path()),
        ];
        let daemon = Daemon::wrapped(&prefix, &[]);
        Told {
            socket,
            folder,
            daemon,
        }
    }

    /// The next message, if one has come.
    fn next(&self) -> Option<String> {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    }

    #[track_caller]
    fn waits_for(&self, wanted: &str) {
        eventually(&format!("the daemon says {wanted}"), || {
            self.next().is_some_and(|said| said == wanted)
        });
    }

    /// How often the daemon has logged that this thread does not go on.
    fn missed(&self, thread: &str) -> usize {
        let log = self.daemon.log();
        let missed =
            |line: &&str| line.contains("a thread has not gone on for") && line.contains(thread);
        log.lines().filter(missed).count()
    }

    /// A thread hangs, so that there are no signs of life for some looks at it; then it goes on, and there are.
    #[track_caller]
    fn hangs(&self, thread: &str) {
        let file = self.folder.path().join(format!("{thread}-hangs"));
        // On a busy machine it may have stood still before, and may go on once more before it sees the file.
        let before = self.missed(thread);
        std::fs::write(&file, "").unwrap();
        eventually("it is noticed", || self.missed(thread) > before + 2);
        // What was said before that.
        while self.next().is_some() {}
        eventually("it is noticed again and again", || {
            self.missed(thread) > before + 6
        });
        assert_eq!(self.next(), None, "{}", self.daemon.log());
        std::fs::remove_file(&file).unwrap();
        for _ in 0..3 {
            self.waits_for("WATCHDOG=1");
        }
    }
}

#[test]
fn the_watchdog_is_fed_as_long_as_both_threads_go_on() {
    let mut told = Told::start();
    assert_eq!(told.next().as_deref(), Some("READY=1"));
    for _ in 0..3 {
        told.waits_for("WATCHDOG=1");
    }
    told.hangs("keeper");
    told.hangs("tracer");
    told.daemon.stop();
    told.waits_for("STOPPING=1");
}

#[test]
fn where_nobody_wants_to_know_nothing_is_said() {
    let daemon = Daemon::wrapped(
        &["env", "-u", "NOTIFY_SOCKET", "WATCHDOG_USEC=1000000"],
        &[],
    );
    assert!(!daemon.log().contains("cannot be told"), "{}", daemon.log());
}

#[test]
fn a_configuration_file_is_read_and_checked() {
    let folder = scratch();
    let file = folder.path().join("memscoped.toml");
    let path = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let program = tool("memscoped");
        let output = std::process::Command::new(program)
            .args(["--check-config", "--config", path])
            .output()
            .unwrap();
        (output.status.code(), said(&output))
    };
    let (code, words) = check("journal-mib = 1024\nmetrics = \"127.0.0.1:0\"\n");
    assert_eq!(
        (code, words.contains("2 settings, no mistake")),
        (Some(0), true),
        "{words}"
    );
    let (code, words) = check("journal-mb = 1024\n");
    assert_eq!(
        (code, words.contains("\"journal-mb\" is no setting")),
        (Some(2), true),
        "{words}"
    );
    // What a start would refuse, a reload must not find right.
    let (code, words) = check("metrics = \"0.0.0.0:0\"\n");
    assert_eq!(
        (code, words.contains("--metrics-for-everybody")),
        (Some(2), true),
        "{words}"
    );
    let (code, words) = check(&format!("socket = {path:?}\n"));
    assert_eq!(
        (code, words.contains("is no socket")),
        (Some(2), true),
        "{words}"
    );
    let (code, words) = check(
        "listen = [\"127.0.0.1:0\"]\ntls-cert = \"/no\"\ntls-key = \"/no\"\ntls-client-ca = \"/no\"\n",
    );
    assert_eq!((code, words.contains("/no")), (Some(2), true), "{words}");
    // With files that are right: nothing serves yet, and nothing is begun.
    let authority = Authority::new("clients");
    let files = ServerFiles::write(folder.path(), &authority, &authority);
    let listening = |listed: &str| {
        format!(
            "listen = [\"127.0.0.1:0\"]\ntls-cert = {:?}\ntls-key = {:?}\ntls-client-ca = {:?}\ntls-client-crl = {listed:?}\n",
            files.certificate, files.key, files.client_ca
        )
    };
    let (code, words) = check(&listening(files.client_crl.to_str().unwrap()));
    assert_eq!(
        (code, words.contains("5 settings, no mistake")),
        (Some(0), true),
        "{words}"
    );
    let twice = listening(files.client_crl.to_str().unwrap())
        .replace("127.0.0.1:0", "127.0.0.1:9465\", \"0.0.0.0:9465");
    let (code, words) = check(&twice);
    assert_eq!(
        (code, words.contains("taken already")),
        (Some(2), true),
        "{words}"
    );
    let wrong = files.client_ca.to_str().unwrap();
    let (code, words) = check(&listening(wrong));
    assert_eq!(
        (code, words.contains("certificate revocation lists")),
        (Some(2), true),
        "{words}"
    );

    check("journal-mib = 0\nsnapshots-keep = 3\n");
    let daemon = Daemon::with(&["--config", path]);
    assert_eq!(daemon.json(&["status"])["journal"]["state"], "off");
    assert!(
        daemon.log().contains("the configuration was read"),
        "{}",
        daemon.log()
    );
    // What is on the command line goes before the file.
    let other = Daemon::with(&["--config", path, "--journal-mib", "16"]);
    assert_eq!(other.json(&["status"])["journal"]["state"], "writing");
}
