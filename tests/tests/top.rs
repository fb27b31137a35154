//! `memscope-ctl top` on a real terminal: what a person sees and does, by keys alone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Daemon, Terminal, Torch, Value, eventually, number, tool};

const LEAKED: u64 = 2_000_000;
const STEPS: u64 = 130;

/// A program with a leak, which has come to rest.
fn leaky(daemon: &Daemon) -> Torch {
    let mut torch = Torch::start(&[]);
    torch.ask("train 5");
    daemon.attach(torch.pid(), "trace");
    torch.tell(&format!("leak {STEPS} {LEAKED} 10"));
    assert_eq!(torch.hear()["held"], STEPS);
    torch
}

fn command(daemon: &Daemon, words: &str) -> String {
    let (program, socket) = (tool("memscope-ctl"), daemon.socket());
    format!(
        "{} --socket {} {words}",
        program.display(),
        socket.display()
    )
}

fn mib(bytes: &Value) -> String {
    format!("{:.2} MiB", number(bytes) as f64 / f64::from(1 << 20))
}

/// The line that grows: its file without folders, and its number.
fn place(line: &Value) -> String {
    let file = line["line"]["file"].as_str().unwrap();
    let file = file.rsplit('/').next().unwrap();
    format!("{file}:{}", line["line"]["line"])
}

/// From `top` to the line that leaks and what holds it; each number is that of `leaks --json`.
fn walk(columns: u32, lines: u32) {
    let daemon = Daemon::start();
    let mut torch = leaky(&daemon);
    let pid = torch.pid_text();
    let answer = daemon.json(&["leaks", "--pid", &pid]);
    let line = &answer["lines"][0];
    assert_eq!(line["verdict"], "growing", "{answer:#}");
    let place = place(line);

    let terminal = Terminal::open(columns, lines);
    terminal.type_line(&command(&daemon, "top"));
    let grows = |row: &str| row.contains(&pid) && row.contains("GROWS");
    let mut processes =
        terminal.wait_for("a process that grows", |screen| screen.lines().any(grows));
    assert!(processes.contains("[1 processes]"), "{processes}");
    let row = processes.lines().find(|row| grows(row)).unwrap();
    assert!(
        row.contains(&pid) && row.contains("agent.py"),
        "{processes}"
    );
    if columns > 100 {
        // The column needs one answer more than the chart, and the answers come in any order.
        processes = terminal.wait_for("the course in both places", |screen| {
            screen.contains("in the last") && screen.contains("COURSE")
        });
    }

    terminal.press(&["Enter"]);
    let leaks = terminal.wait(&place);
    assert!(leaks.contains("[5 leaks]"), "{leaks}");
    let row = leaks
        .lines()
        .find(|row| row.contains("growing") && row.contains(&place));
    let row = row.unwrap_or_else(|| panic!("no row of {place}:\n{leaks}"));
    for number in [&line["live_bytes"], &line["growth_bytes"]] {
        assert!(row.contains(&mib(number)), "{}: {row}", mib(number));
    }
    let step = line["growth_bytes_per_step"].as_f64().unwrap() / f64::from(1 << 20);
    assert!(row.contains(&format!("+{step:.2} MiB")), "{step}: {row}");
    let sure = line["confidence"].as_f64().unwrap() * 100.0;
    assert!(row.contains(&format!("{sure:.0} %")), "{row}");

    // The terminal's clipboard gets the whole path.
    terminal.press(&["y"]);
    terminal.wait("copied ");
    let copied = format!(
        "{}:{}",
        line["line"]["file"].as_str().unwrap(),
        line["line"]["line"]
    );
    assert_eq!(terminal.tmux(&["show-buffer"]).trim_end(), copied);

    terminal.press(&["Enter"]);
    let holder = &answer["holders"][0];
    let container = holder["container"].as_str().unwrap();
    let of_line = terminal.wait(&format!("list {container} ({STEPS} elements)"));
    assert!(of_line.contains("Held by"), "{of_line}");
    assert!(
        of_line.contains(&format!("grew by {}", mib(&line["growth_bytes"]))),
        "{of_line}"
    );
    // Shown with --nocapture: the captures in docs/top.md are these.
    println!("{processes}\n{leaks}\n{of_line}");
    // The stack ends beneath what the small window shows: the cursor goes there.
    terminal.press(&["End"]);
    let frame = &answer["groups"][0]["frames"];
    let outermost = frame.as_array().unwrap().last().unwrap();
    let at = format!(
        "{}:{}",
        outermost["file"].as_str().unwrap(),
        outermost["line"]
    );
    terminal.press(&["y"]);
    eventually("the clipboard has the outermost frame", || {
        terminal.tmux(&["show-buffer"]).trim_end() == at
    });

    terminal.press(&["Escape"]);
    terminal.wait("GREW BY");
    terminal.press(&["Escape"]);
    terminal.wait("ALLOCATED");
    terminal.press(&["q"]);
    terminal.wait_for_prompt();
    torch.finish();
}

#[test]
fn the_walk_of_a_first_user_in_a_small_window() {
    walk(80, 24);
}

#[test]
fn the_walk_of_a_first_user_in_a_large_window() {
    walk(200, 60);
}

/// The line settings of the terminal are what they were.
#[track_caller]
fn assert_given_back(terminal: &Terminal) {
    terminal.wait_for_prompt();
    // The shell has settings of its own while it waits for a line, so a command is asked.
    terminal.type_line("clear; stty -a; echo asked-$((40 + 2))");
    let screen = terminal.wait("asked-42");
    let settings: Vec<&str> = screen.split_whitespace().collect();
    for setting in ["icanon", "echo", "isig"] {
        assert!(settings.contains(&setting), "{setting}: {screen}");
    }
    let cursor = terminal.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]);
    assert_eq!(cursor.trim(), "1 0");
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let daemon = Daemon::start();
    let terminal = Terminal::open(80, 24);
    let top = command(&daemon, "top");
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        terminal.type_line(&top);
        terminal.wait("[1 processes]");
        let program = terminal.program();
        // SAFETY: a signal to a program of this test's own.
        assert_eq!(unsafe { libc::kill(program, signal) }, 0);
        assert_given_back(&terminal);
    }
    for key in ["q", "C-c"] {
        terminal.type_line(&top);
        terminal.wait("No process is traced");
        terminal.press(&[key]);
        assert_given_back(&terminal);
    }
    // Stopped by Ctrl-Z, it leaves the terminal to the shell, and goes on in the foreground.
    terminal.type_line(&top);
    terminal.wait("[1 processes]");
    terminal.press(&["C-z"]);
    terminal.wait("Stopped");
    assert_given_back(&terminal);
    terminal.type_line("fg");
    terminal.wait("[1 processes]");
    terminal.press(&["q"]);
    assert_given_back(&terminal);
}

#[test]
fn a_daemon_that_ends_is_missed_and_found_again() {
    let mut daemon = Daemon::start();
    let terminal = Terminal::open(100, 30);
    terminal.type_line(&command(&daemon, "top --interval 200ms"));
    terminal.wait("No process is traced");
    // It is there and does not answer.
    daemon.signal(libc::SIGSTOP);
    terminal.wait("no answer for ");
    terminal.press(&["2"]);
    terminal.wait("[2 devices]");
    daemon.signal(libc::SIGCONT);
    terminal.wait_for("an answer", |screen| !screen.contains("no answer"));
    daemon.kill();
    terminal.wait("memscoped is gone");
    let _again = daemon.successor();
    terminal.wait_for("that it is found again", |screen| {
        !screen.contains("is gone")
    });
    terminal.tmux(&["resize-window", "-x", "30", "-y", "8"]);
    terminal.wait("window too small");
    terminal.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    terminal.wait("[2 devices]");
    terminal.press(&["q"]);
    terminal.wait_for_prompt();
}

/// `watch` takes what its table leaves of the window for the course.
#[test]
fn watch_fills_the_window() {
    let daemon = Daemon::start();
    let mut torch = leaky(&daemon);
    let pid = torch.pid_text();
    let terminal = Terminal::open(120, 30);
    terminal.type_line(&command(&daemon, "watch"));
    let screen = terminal.wait_for("growth and a tall course", |screen| {
        let bars = screen.lines().filter(|line| line.contains('█')).count();
        screen.contains(" MiB/step") && bars >= 5
    });
    for column in ["ALLOCS/S", "STEPS/S", "GROWS BY", "FULL IN"] {
        assert!(screen.contains(column), "{column}: {screen}");
    }
    let row = screen.lines().find(|line| line.contains(&pid));
    let row = row.unwrap_or_else(|| panic!("no row of {pid}:\n{screen}"));
    assert!(row.contains(" MiB/step"), "{screen}");
    let title = format!("{pid} device 0, ");
    assert!(screen.contains(&title), "{screen}");
    terminal.press(&["C-c"]);
    terminal.wait_for_prompt();
    torch.finish();
}

/// A recording is walked through likewise, and its stacks at earlier moments.
#[test]
fn a_recording_stands_still() {
    let mut daemon = Daemon::start();
    let mut torch = leaky(&daemon);
    let pid = torch.pid_text();
    let answer = daemon.json(&["leaks", "--pid", &pid]);
    daemon.stop();
    torch.finish();
    let terminal = Terminal::open(120, 40);
    let (program, recording) = (tool("memscope-ctl"), daemon.recording());
    let words = format!(
        "{} --recording {} top",
        program.display(),
        recording.display()
    );
    terminal.type_line(&words);
    terminal.wait(&pid);
    terminal.press(&["5"]);
    let leaks = terminal.wait(&place(&answer["lines"][0]));
    assert!(
        leaks.contains(&mib(&answer["lines"][0]["growth_bytes"])),
        "{leaks}"
    );
    terminal.press(&["4"]);
    terminal.wait("at its end (← earlier)");
    terminal.press(&["Left"]);
    terminal.wait("→ later");
    terminal.wait_for("the stacks of that moment", |screen| {
        screen.contains("Device 0: live")
    });
    terminal.press(&["q"]);
    terminal.wait_for_prompt();
}
