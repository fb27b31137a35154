//! What packages are made of: completions that bash loads, man pages that mandoc and man accept, and the packages themselves, which
//! dpkg, lintian and rpm judge. `cargo xtask packages` installs them; here nothing is installed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memscope_tests::{TempDir, root, scratch, tool, xtask};

const PROGRAMS: [&str; 3] = ["memscoped", "memscope-ctl", "memscope-archive"];

/// Runs a program; what it printed, standard error included.
#[track_caller]
fn run(command: &mut Command) -> (Output, String) {
    let output = command
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap_or_else(|error| {
            let program = command.get_program().to_string_lossy();
            panic!("{program} does not start ({error}); `cargo xtask setup --packages` installs it")
        });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    (output, said)
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (output, said) = run(command);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// What bash offers after these words.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let script = "source <(\"$1\" completions bash)
        function=$(complete -p memscope-ctl | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
        shift
        COMP_WORDS=(memscope-ctl \"$@\")
        COMP_CWORD=$#
        \"$function\" memscope-ctl \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let said = succeeds(
        Command::new("bash")
            .args(["--norc", "-c", script, "bash"])
            .arg(tool("memscope-ctl"))
            .args(words),
    );
    said.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let commands: BTreeSet<String> = set(&["stats", "status"]);
    assert_eq!(offered(&["stat"]), commands);
    assert_eq!(offered(&["attach", "--launch"]), set(&["--launches"]));
    assert!(offered(&["attach", "--level", ""]).contains("segments"));
    assert_eq!(offered(&["nothing-like-this"]), set(&[""]));
}

#[test]
fn other_shells_have_completions_that_name_every_command() {
    let help = succeeds(Command::new(tool("memscope-ctl")).arg("--help"));
    assert!(help.contains("\n  holders"), "{help}");
    for shell in ["zsh", "fish"] {
        let text = succeeds(Command::new(tool("memscope-ctl")).args(["completions", shell]));
        for command in ["attach", "holders", "check-leaks", "completions"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    let (output, said) = run(Command::new(tool("memscope-ctl")).args(["completions", "csh"]));
    assert_eq!(output.status.code(), Some(2), "{said}");
}

/// A tree like that of `/usr/share` with what all programs write.
fn share() -> TempDir {
    let folder = scratch();
    for program in PROGRAMS {
        succeeds(
            Command::new(tool(program))
                .arg("--write-pages")
                .arg(folder.path())
                .arg("2026-11-26"),
        );
    }
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A program, or one of its commands, as its own help describes it.
struct Described {
    /// The program, and the words of the command.
    words: Vec<String>,
    help: String,
}

impl Described {
    /// A program and all its commands, but `help`.
    fn all(program: &str) -> Vec<Described> {
        let mut left = vec![vec![program.to_owned()]];
        let mut all = Vec::new();
        while let Some(words) = left.pop() {
            let help = succeeds(Command::new(tool(program)).args(&words[1..]).arg("--help"));
            let commands = help
                .split("\nCommands:\n")
                .nth(1)
                .and_then(|after| after.split("\n\n").next());
            let names = commands
                .into_iter()
                .flat_map(str::lines)
                .filter_map(|line| {
                    let name = line.strip_prefix("  ")?;
                    (!name.starts_with(' ')).then(|| name.split_whitespace().next())?
                });
            for name in names.filter(|name| *name != "help") {
                left.push([&words[..], &[name.to_owned()]].concat());
            }
            all.push(Described { words, help });
        }
        all
    }

    /// The options, short and long. Their lines are indented by at most six columns; descriptions are by more.
    fn options(&self) -> BTreeSet<String> {
        let lines = self.help.lines().filter(|line| {
            let trimmed = line.trim_start();
            trimmed.starts_with('-') && line.len() - trimmed.len() <= 6
        });
        lines
            .flat_map(|line| line.trim_start().split(", "))
            .filter_map(|part| part.split([' ', '[', '=']).next())
            .filter(|word| word.starts_with('-'))
            .map(str::to_owned)
            .collect()
    }

    /// The options of its man page.
    fn options_of_page(&self, share: &Path) -> BTreeSet<String> {
        let section = if self.words[0] == "memscope-ctl" {
            1
        } else {
            8
        };
        let file = share.join(format!(
            "man/man{section}/{}.{section}",
            self.words.join("-")
        ));
        let page = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let lines = page.lines().filter(|line| line.starts_with("\\fB\\-"));
        lines
            .flat_map(|line| line.split("\\fB").skip(1))
            .filter_map(|part| part.split("\\fR").next())
            .map(|word| word.replace("\\-", "-"))
            .collect()
    }

    /// The options that bash completes.
    fn options_of_bash(&self, share: &Path) -> BTreeSet<String> {
        let file = share
            .join("bash-completion/completions")
            .join(&self.words[0]);
        let text = std::fs::read_to_string(file).unwrap();
        let mut case = self.words[0].replace('-', "__");
        for word in &self.words[1..] {
            case += &format!("__subcmd__{}", word.replace('-', "__subcmd__"));
        }
        let after = text.split(&format!("        {case})\n")).nth(1);
        let options = after
            .and_then(|after| after.split('"').nth(1))
            .unwrap_or_else(|| panic!("bash does not know {case}"));
        options
            .split(' ')
            .filter(|word| word.starts_with('-'))
            .map(str::to_owned)
            .collect()
    }
}

/// Pages and completions are made of what a program knows of its command line, so they have all that there is today, and
/// nothing that a program had once.
#[test]
fn every_option_of_every_command_is_in_its_page_and_its_completions() {
    let share = share();
    for (program, least, known) in [
        ("memscoped", 1, "--journal-mib"),
        ("memscope-ctl", 30, "--children"),
        ("memscope-archive", 1, "--spool-mib"),
    ] {
        let all = Described::all(program);
        assert!(all.len() >= least, "{program}: {} commands", all.len());
        let options: BTreeSet<String> = all.iter().flat_map(Described::options).collect();
        assert!(options.contains(known), "{program}: {options:?}");
        for one in &all {
            let words = one.words.join(" ");
            assert_eq!(
                one.options_of_page(share.path()),
                one.options(),
                "man {words}"
            );
            assert_eq!(
                one.options_of_bash(share.path()),
                one.options(),
                "bash {words}"
            );
        }
        for (file, before) in [
            (format!("zsh/vendor-completions/_{program}"), "--"),
            (format!("fish/vendor_completions.d/{program}.fish"), "-l "),
        ] {
            let text = std::fs::read_to_string(share.path().join(&file)).unwrap();
            let long = options
                .iter()
                .filter_map(|option| option.strip_prefix("--"));
            for option in long {
                assert!(
                    text.contains(&format!("{before}{option}")),
                    "{file}: {option}"
                );
            }
        }
        let section = if program == "memscope-ctl" {
            "man1"
        } else {
            "man8"
        };
        let pages = names(&share.path().join("man").join(section));
        let pages = pages.iter().filter(|page| {
            let after = page.strip_prefix(program);
            after.is_some_and(|after| after.starts_with(['.', '-']))
        });
        assert_eq!(pages.count(), all.len(), "{program}: pages of no command");
    }
}

#[test]
fn man_shows_each_page() {
    let share = share();
    let pages = share.path().join("man/man1");
    let names = names(&pages);
    let files: Vec<PathBuf> = names
        .iter()
        .map(|name| pages.join(name))
        .chain(["memscoped", "memscope-archive"].map(|program| {
            let page = format!("man/man8/{program}.8");
            share.path().join(page)
        }))
        .collect();
    let (_, said) = run(Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(&files));
    // clap_mangen begins each list of commands with a paragraph that is empty.
    let others: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains("WARNING: skipping paragraph macro"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    for (file, words) in [
        ("man1/memscope-ctl-attach.1", "--children"),
        ("man8/memscoped.8", "--journal-mib"),
        ("man8/memscope-archive.8", "--spool-mib"),
    ] {
        let text = succeeds(
            Command::new("man")
                .args(["--warnings", "-l"])
                .arg(share.path().join("man").join(file))
                .env("MANPAGER", "cat")
                .env("MANWIDTH", "100"),
        );
        assert!(text.contains(words) && text.contains("SYNOPSIS"), "{text}");
        assert!(!text.contains("warning:"), "{text}");
    }
}

/// Makes packages of the programs of this build, which are stripped, as those of users are.
struct Packages {
    folder: TempDir,
}

impl Packages {
    fn make() -> Packages {
        let folder = scratch();
        let programs = folder.path().join("programs");
        std::fs::create_dir(&programs).unwrap();
        for program in PROGRAMS {
            succeeds(
                Command::new("strip")
                    .arg("-o")
                    .arg(programs.join(program))
                    .arg(tool(program)),
            );
        }
        let packages = Packages { folder };
        packages.again("one");
        packages
    }

    fn again(&self, name: &str) {
        let programs = self.folder.path().join("programs");
        let output = self.folder.path().join(name);
        let words = [
            "dist",
            "--packages",
            "--quick",
            "--programs",
            programs.to_str().unwrap(),
            "--output",
        ];
        let (ended, said, errors) = xtask(&[&words[..], &[output.to_str().unwrap()]].concat());
        assert!(ended.status.success(), "{said}{errors}");
    }

    fn file(&self, name: &str, end: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        let file = names(&folder).into_iter().find(|file| file.ends_with(end));
        folder.join(file.unwrap_or_else(|| panic!("no {end} in {}", folder.display())))
    }
}

#[test]
fn packages_are_complete_and_the_same_each_time() {
    let packages = Packages::make();
    packages.again("two");
    for end in [".deb", ".rpm"] {
        let [one, two] =
            ["one", "two"].map(|name| std::fs::read(packages.file(name, end)).unwrap());
        assert!(one == two, "two runs give different bytes: {end}");
    }
    let (deb, rpm) = (packages.file("one", ".deb"), packages.file("one", ".rpm"));
    let in_deb = succeeds(Command::new("dpkg-deb").arg("--contents").arg(&deb));
    let in_rpm = succeeds(Command::new("rpm").args(["-qpl"]).arg(&rpm));
    for path in [
        "/usr/bin/memscoped",
        "/usr/bin/memscope-ctl",
        "/usr/bin/memscope-archive",
        "/usr/lib/systemd/system/memscoped.service",
        "/usr/lib/systemd/system/memscope-archive.service",
        "/usr/lib/systemd/system-generators/memscope-generator",
        "/usr/lib/sysusers.d/memscope.conf",
        "/usr/lib/sysusers.d/memscope-archive.conf",
        "/etc/memscope/memscoped.toml",
        "/usr/share/bash-completion/completions/memscope-ctl",
        "/usr/share/bash-completion/completions/memscope-archive",
        "/usr/share/fish/vendor_completions.d/memscoped.fish",
        "/usr/share/man/man1/memscope-ctl-attach.1.gz",
        "/usr/share/man/man8/memscoped.8.gz",
        "/usr/share/man/man8/memscope-archive.8.gz",
        "/usr/share/memscope/prometheus/memscope.rules.yml",
        "/usr/share/memscope/grafana/node.json",
        "/usr/share/doc/memscope/third-party.txt.gz",
    ] {
        let ends = |list: &str| {
            list.lines()
                .any(|line| line.trim_start_matches('.').ends_with(path))
        };
        assert!(ends(&in_deb), "{path}: {in_deb}");
        assert!(ends(&in_rpm), "{path}: {in_rpm}");
    }
    let owners: BTreeSet<&str> = in_deb
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(owners, BTreeSet::from(["root/root"]));
    assert_eq!(
        succeeds(Command::new("rpm").args(["-qpc"]).arg(&rpm)).trim(),
        "/etc/memscope/memscoped.toml"
    );
    let needs = succeeds(Command::new("rpm").args(["-qp", "--requires"]).arg(&rpm));
    assert!(needs.contains("libc.so.6(GLIBC_2."), "{needs}");
    assert_eq!(
        least_glibc(&deb),
        least_glibc_of_symbols(),
        "Depends of {}",
        deb.display()
    );
}

/// The version of libc6 that the package asks for.
fn least_glibc(deb: &Path) -> String {
    let depends = succeeds(
        Command::new("dpkg-deb")
            .args(["--field"])
            .arg(deb)
            .arg("Depends"),
    );
    let libc = depends
        .split(", ")
        .find(|one| one.starts_with("libc6 "))
        .unwrap();
    libc.split(">= ")
        .nth(1)
        .unwrap()
        .trim_end_matches(')')
        .to_owned()
}

/// The newest version of a symbol of glibc that a program needs, as objdump tells of them and sort orders them.
fn least_glibc_of_symbols() -> String {
    let script = "for program; do objdump -T \"$program\"; done | grep -o 'GLIBC_2[0-9.]*' | sort -uV | tail -n 1";
    let said = succeeds(
        Command::new("sh")
            .args(["-c", script, "sh"])
            .args(PROGRAMS.map(tool)),
    );
    said.trim().trim_start_matches("GLIBC_").to_owned()
}

#[test]
fn lintian_finds_nothing() {
    let packages = Packages::make();
    let said = succeeds(
        Command::new("lintian")
            .args(["--fail-on", "error,warning", "--tag-display-limit", "0"])
            .arg(packages.file("one", ".deb")),
    );
    let tags: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with(['E', 'W']))
        .collect();
    assert!(tags.is_empty(), "{said}");
}

#[test]
fn old_kernels_get_one_more_capability() {
    let generator = root().join("deploy/packages/memscope-generator");
    for (release, is_old) in [
        ("5.15.0-91-generic", true),
        ("6.1.0-18-amd64", true),
        ("6.5.13", true),
        // As far as these lack a later mend, memscoped uses perf events there as well.
        ("6.6-rc1", true),
        ("6.6.0", true),
        ("6.8.0-31-generic", true),
        ("6.9.12", true),
        ("6.10-rc1", false),
        ("6.10.0", false),
        ("6.12.48+deb13-amd64", false),
        ("7.0.0", false),
    ] {
        let folder = scratch();
        let uname = folder.path().join("uname");
        std::fs::write(&uname, format!("#!/bin/sh\necho {release}\n")).unwrap();
        std::fs::set_permissions(&uname, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!(
            "{}:{}",
            folder.path().display(),
            std::env::var("PATH").unwrap()
        );
        let units = folder.path().join("units");
        succeeds(Command::new(&generator).arg(&units).env("PATH", path));
        let drop_in = units.join("memscoped.service.d/50-before-6.6.conf");
        assert_eq!(drop_in.symlink_metadata().is_ok(), is_old, "{release}");
    }
}
