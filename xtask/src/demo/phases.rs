//! Runs several commands at the same time, each with a log of its own, and shows their progress in one line. When they are given up, what
//! they have started is ended with them.

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// Time between two lines where there is no terminal, on which one could be overwritten.
const SELDOM: Duration = Duration::from_secs(20);
/// Time between two updates of the line.
const TICK: Duration = Duration::from_millis(200);
/// Number of lines that are shown of the log of a failed command.
const LINES: usize = 40;

/// One command that runs.
struct Phase {
    name: &'static str,
    log: PathBuf,
    running: Child,
    took: Option<Duration>,
}

/// Runs all commands at the same time, each writing to `folder/NAME.log`. Returns how long each took. When one
/// fails, the others are ended and the end of its log is shown. Ctrl-C ends all of them.
pub fn side_by_side(
    folder: &Path,
    commands: Vec<(&'static str, Command)>,
) -> Result<Vec<(&'static str, Duration)>> {
    let interrupted = Interrupted::notice();
    side_by_side_until(folder, commands, || interrupted.is_true())
}

/// The same, until somebody wants it to end.
fn side_by_side_until(
    folder: &Path,
    commands: Vec<(&'static str, Command)>,
    is_to_end: impl Fn() -> bool,
) -> Result<Vec<(&'static str, Duration)>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let began = Instant::now();
    let mut phases = Running(Vec::new());
    for (name, mut command) in commands {
        let log = folder.join(format!("{}.log", name.replace(' ', "-")));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let words = process::words(&command);
        let running = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // It starts others in turn, as pip and rustc, which have to end with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start: {words}"))?;
        eprintln!("{name}: begun; what it says is in {}", log.display());
        phases.0.push(Phase {
            name,
            log,
            running,
            took: None,
        });
    }
    let shown = std::io::stderr().is_terminal();
    let mut said = began;
    loop {
        std::thread::sleep(TICK);
        if shown {
            eprint!("\r\x1b[K");
        }
        if is_to_end() {
            bail!("interrupted");
        }
        for phase in phases.0.iter_mut().filter(|phase| phase.took.is_none()) {
            let Some(status) = phase.running.try_wait()? else {
                continue;
            };
            phase.took = Some(began.elapsed());
            if !status.success() {
                let text = fs::read_to_string(&phase.log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let end = &lines[lines.len().saturating_sub(LINES)..];
                bail!(
                    "{}: {status}; the end of {}:\n{}",
                    phase.name,
                    phase.log.display(),
                    end.join("\n")
                );
            }
            eprintln!("{}: done after {} s", phase.name, began.elapsed().as_secs());
        }
        let mut running = phases
            .0
            .iter()
            .filter(|phase| phase.took.is_none())
            .peekable();
        if running.peek().is_none() {
            break;
        }
        let under_way = || -> String {
            let states: Vec<String> = running.map(Phase::state).collect();
            format!("{} s  {}", began.elapsed().as_secs(), states.join("  |  "))
        };
        if shown {
            eprint!("{}", under_way());
            std::io::stderr().flush()?;
        } else if said.elapsed() >= SELDOM {
            eprintln!("{}", under_way());
            said = Instant::now();
        }
    }
    if shown {
        eprint!("\r\x1b[K");
    }
    Ok(phases
        .0
        .iter()
        .map(|phase| (phase.name, phase.took.unwrap_or_default()))
        .collect())
}

impl Phase {
    /// Its name and the last line of its log, shortened.
    fn state(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let end = String::from_utf8_lossy(&text[text.len().saturating_sub(400)..]).into_owned();
        let last = end
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let last: String = last.trim().chars().take(28).collect();
        format!("{}: {last}", self.name)
    }
}

/// All phases. Those that still run when this is dropped are killed, with all that they have started.
struct Running(Vec<Phase>);

impl Drop for Running {
    fn drop(&mut self) {
        for phase in self.0.iter_mut().filter(|phase| phase.took.is_none()) {
            // SAFETY: no memory; the command leads its group and has not been waited for, so the number is that group's.
            unsafe { libc::kill(-(phase.running.id() as i32), libc::SIGKILL) };
            let _ = phase.running.wait();
        }
    }
}

/// Signals by which a user or a terminal ends this program. The terminal does not send them to commands in groups of their own.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Whether one of those signals came.
static CAME: AtomicBool = AtomicBool::new(false);

/// While this lives, such a signal is noticed and does not end this program at once.
struct Interrupted([libc::sighandler_t; 3]);

impl Interrupted {
    fn notice() -> Interrupted {
        extern "C" fn came(_: i32) {
            CAME.store(true, Ordering::Relaxed);
        }
        Interrupted(ENDING.map(|signal| {
            // SAFETY: the handler only stores into an atomic variable, which is allowed at any moment.
            let before = unsafe { libc::signal(signal, came as *const () as libc::sighandler_t) };
            if before == libc::SIG_IGN {
                // SAFETY: no memory; who started this program does not want it to end by this signal.
                unsafe { libc::signal(signal, before) };
            }
            before
        }))
    }

    fn is_true(&self) -> bool {
        CAME.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        for (signal, before) in ENDING.into_iter().zip(self.0) {
            // SAFETY: what is set is what was set before.
            unsafe { libc::signal(signal, before) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    /// The lines of a command that starts another one, which would take long and whose number it writes into a file.
    fn starts_another(number: &Path) -> Command {
        let number = number.display();
        shell(&format!(
            "sleep 1000 & echo $! > {number}.new; mv {number}.new {number}; wait"
        ))
    }

    /// The process with the number in a file has ended, or does so soon.
    fn has_ended(number: &Path) -> bool {
        let number = fs::read_to_string(number).unwrap();
        let stat = PathBuf::from(format!("/proc/{}/stat", number.trim()));
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            match fs::read_to_string(&stat) {
                // Whoever has to wait for it may not have done so.
                Ok(text) if !text.contains(") Z ") => std::thread::sleep(TICK),
                _ => return true,
            }
        }
        false
    }

    #[test]
    fn what_a_command_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let fails = format!(
            "until [ -e {} ]; do sleep 0.02; done; exit 3",
            number.display()
        );
        let commands = vec![("waits", starts_another(&number)), ("fails", shell(&fails))];
        let message = side_by_side(folder.path(), commands).unwrap_err();
        assert!(message.to_string().contains("exit status: 3"), "{message}");
        assert!(has_ended(&number));
    }

    #[test]
    fn all_end_when_the_user_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let commands = vec![("waits", starts_another(&number))];
        let message = side_by_side_until(folder.path(), commands, || number.exists()).unwrap_err();
        assert_eq!(message.to_string(), "interrupted");
        assert!(has_ended(&number));
    }

    #[test]
    fn what_fails_says_what_it_said_and_ends_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("ended");
        let wait = format!("trap 'exit 0' TERM; sleep 1000; touch {}", mark.display());
        let result = side_by_side(
            folder.path(),
            vec![
                ("waits", shell(&wait)),
                ("fails", shell("echo no disk >&2; exit 3")),
            ],
        );
        let message = result.unwrap_err().to_string();
        assert!(message.contains("fails: exit status: 3"), "{message}");
        assert!(message.contains("no disk"), "{message}");
        assert!(!mark.exists());
    }

    #[test]
    fn all_are_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one");
        let two = folder.path().join("two");
        // Each waits for the other: they run at the same time, or they never end.
        let meet = |mine: &Path, other: &Path| {
            shell(&format!(
                "touch {}; until [ -e {} ]; do sleep 0.02; done",
                mine.display(),
                other.display()
            ))
        };
        let took = side_by_side(
            folder.path(),
            vec![("a", meet(&one, &two)), ("b", meet(&two, &one))],
        )
        .unwrap();
        assert_eq!(took.iter().map(|it| it.0).collect::<Vec<_>>(), ["a", "b"]);
    }
}
