//! A running program with a conversation over its standard input and output.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::wait::{LONG, until};

/// A running program. It speaks in lines, each a JSON document. Its process group is killed when this
/// is dropped.
pub struct Program {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<String>>,
    status: Option<ExitStatus>,
}

/// Has the program die with the thread that starts it, in a process group of its own.
pub(crate) fn tied(command: &mut Command) -> &mut Command {
    command.process_group(0);
    // SAFETY: between fork and exec, calls prctl and nothing else.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// Kills a process group that `child` leads.
pub(crate) fn kill_group(child: &Child) {
    // SAFETY: no memory; the child is not yet waited for, so the number is its own.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
}

/// Collects what a stream brings until it ends.
pub(crate) fn collect(mut stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&text);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            into.lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    });
    text
}

impl Program {
    /// Starts it.
    pub fn start(name: &str, mut command: Command) -> Program {
        tied(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        let output = child.stdout.take().unwrap();
        let errors = collect(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Program {
            name: name.to_owned(),
            child,
            input,
            lines,
            errors,
            status: None,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process id as the command line takes it.
    pub fn pid_text(&self) -> String {
        self.child.id().to_string()
    }

    /// What it wrote to standard error so far.
    pub fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// Sends a line.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the input is closed");
        if let Err(error) = writeln!(input, "{line}").and_then(|()| input.flush()) {
            self.fail(&format!("does not take {line:?}: {error}"));
        }
    }

    /// The next line, within `limit`.
    #[track_caller]
    pub fn hear_within(&mut self, limit: Duration) -> Value {
        match self.lines.recv_timeout(limit) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(document) => document,
                Err(error) => self.fail(&format!("says {line:?}: {error}")),
            },
            Err(RecvTimeoutError::Timeout) => self.fail(&format!("says nothing within {limit:?}")),
            Err(RecvTimeoutError::Disconnected) => self.fail("has ended"),
        }
    }

    /// The next line.
    #[track_caller]
    pub fn hear(&mut self) -> Value {
        self.hear_within(LONG)
    }

    /// Reads lines of text until one that begins with this.
    #[track_caller]
    pub fn hear_until(&mut self, beginning: &str) -> String {
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(line) if line.starts_with(beginning) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.fail(&format!("does not say {beginning:?} within {LONG:?}"))
                }
                Err(RecvTimeoutError::Disconnected) => self.fail("has ended"),
            }
        }
    }

    /// A line that has come already.
    pub fn heard(&mut self) -> Option<Value> {
        serde_json::from_str(&self.lines.try_recv().ok()?).ok()
    }

    /// Sends a line and waits for the answer, which must not be an error.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Value {
        let answer = self.try_ask(line);
        if let Some(error) = answer.get("error") {
            self.fail(&format!("answers {line:?} with {error}"));
        }
        answer
    }

    /// Sends a line and waits for the answer.
    #[track_caller]
    pub fn try_ask(&mut self, line: &str) -> Value {
        self.tell(line);
        self.hear()
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "{} ({}) {what}\nits errors:\n{}",
            self.name,
            self.child.id(),
            self.errors()
        );
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory; the child is not yet waited for, so the number is its own.
        let result = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(result, 0, "cannot signal {}", self.name);
    }

    /// Kills it with -9 and waits for its end.
    pub fn kill(&mut self) {
        kill_group(&self.child);
        let status = self.wait();
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "{}: {status}",
            self.name
        );
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let child = &mut self.child;
        let status = until(LONG, "the program ends", || child.try_wait().unwrap());
        self.status = Some(status);
        status
    }

    /// Closes its input, upon which it ends; it must do so with 0.
    #[track_caller]
    pub fn finish(&mut self) {
        self.input = None;
        let status = self.wait();
        if !status.success() {
            self.fail(&format!("ended with {status}"));
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status.is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.status.is_none() {
            kill_group(&self.child);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let errors = self.errors();
            if !errors.is_empty() {
                eprintln!("---- {} said:\n{errors}", self.name);
            }
        }
    }
}

/// Runs a command to its end; kills it and panics after `limit`. Gives status, output and errors.
#[track_caller]
pub(crate) fn run(mut command: Command, limit: Duration) -> (ExitStatus, String, String) {
    tied(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut output = child.stdout.take().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let writer = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            kill_group(&child);
            let _ = child.wait();
            let said = reader.join().unwrap_or_default();
            panic!("hangs: no end within {limit:?}: {command:?}\nit said: {said}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    (
        status,
        writer.join().unwrap_or_default(),
        reader.join().unwrap_or_default(),
    )
}
