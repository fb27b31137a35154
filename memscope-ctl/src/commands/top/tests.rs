//! The view without a terminal and without a daemon: keys and answers in, a screen out.

#![allow(clippy::unwrap_used)]

use super::ask::{Answer, Ask, Heard, Trouble};
use super::model::{Effect, Key, Model, Now, Options, View};
use super::view::{Palette, draw};
use memscope_proto::v1;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// A name that would clear the screen, write to the clipboard and turn the direction of writing, if it reached a terminal.
const HOSTILE: &str = "py\u{1b}[2J\u{1b}]52;c;AAAA\u{7}\u{202e}\r\nthon";

const START: u64 = 1_790_000_000_000_000_000;

fn now(ms: u64) -> Now {
    Now {
        ms,
        unix_ns: START + ms * 1_000_000,
    }
}

fn options() -> Options {
    Options {
        pids: Vec::new(),
        interval_ms: 1000,
        recording: None,
    }
}

fn process(pid: u32, allocated: u64) -> v1::Process {
    v1::Process {
        handle: pid,
        facts: Some(v1::ProcessFacts {
            pid,
            start_ticks: 7,
            comm: HOSTILE.to_owned(),
            cmdline: vec![
                "/usr/bin/python3".to_owned(),
                format!("/job/train{pid}.py"),
                HOSTILE.to_owned(),
            ],
            ..v1::ProcessFacts::default()
        }),
        state: v1::ProcessState::Attached.into(),
        allocated_bytes: Some(allocated),
        reserved_bytes: Some(2 * allocated),
        known_from_unix_ns: Some(START - 600_000_000_000),
        ..v1::Process::default()
    }
}

fn list(pids: &[(u32, u64)]) -> Answer {
    Answer::List(v1::ListResponse {
        processes: pids
            .iter()
            .map(|(pid, held)| process(*pid, *held))
            .collect(),
    })
}

fn code(file: &str, line: u32) -> v1::CodeLine {
    v1::CodeLine {
        file: file.to_owned(),
        line,
        name: "<module>".to_owned(),
    }
}

fn leaks(pid: u32) -> Answer {
    let line = v1::LeakLine {
        device: Some(0),
        line: Some(code("/job/train.py", 18)),
        verdict: v1::Verdict::Growing.into(),
        confidence: Some(0.86),
        growing_groups: 1,
        stacks: 1,
        live_count: 160,
        live_bytes: 320 << 20,
        growth_bytes: 314 << 20,
        growth_bytes_per_s: 5e6,
        growth_bytes_per_step: Some(f64::from(2 << 20)),
        ..v1::LeakLine::default()
    };
    let steady = v1::LeakLine {
        line: Some(code(HOSTILE, 7)),
        verdict: v1::Verdict::Steady.into(),
        live_bytes: 1 << 30,
        ..v1::LeakLine::default()
    };
    let mut frames = vec![code("/v/site-packages/torch/nn.py", 3); 5];
    frames.push(code("/job/train.py", 18));
    Answer::Leaks(v1::LeaksResponse {
        pid,
        as_of: START,
        process: Some(process(pid, 1 << 30)),
        growing_groups: 1,
        growing_lines: 1,
        growing_bytes: 314 << 20,
        watched_ns: 8_500_000_000,
        groups: vec![v1::LeakGroup {
            device: line.device,
            line: line.line.clone(),
            frames,
            examples: vec![0x7000_0000, 0x7000_1000],
            size_bytes: 2 << 20,
            ..v1::LeakGroup::default()
        }],
        lines: vec![line, steady],
        ..v1::LeaksResponse::default()
    })
}

fn holders(pid: u32) -> Answer {
    Answer::Holders(v1::HoldersResponse {
        pid,
        holders: vec![v1::Holder {
            path: "__main__.history[*]".to_owned(),
            container: Some("__main__.history".to_owned()),
            kind: Some("list".to_owned()),
            length: Some(201),
            blocks: Some(v1::Amount {
                count: 160,
                bytes: 320 << 20,
            }),
            way: vec![v1::HolderStep {
                part: "__main__".to_owned(),
                kind: HOSTILE.to_owned(),
                file: "/job/train.py".to_owned(),
                ..v1::HolderStep::default()
            }],
            ..v1::Holder::default()
        }],
        ..v1::HoldersResponse::default()
    })
}

fn stacks(pid: u32, by: v1::StackGrouping) -> Answer {
    let amounts = Some(v1::StackAmounts {
        live: Some(v1::Amount {
            count: 4,
            bytes: 4 << 20,
        }),
        ..v1::StackAmounts::default()
    });
    Answer::Stacks(v1::StacksResponse {
        pid,
        as_of: START,
        by: by.into(),
        strings: ["", "f", HOSTILE, "/job/train.py"]
            .map(str::to_owned)
            .into(),
        frames: vec![
            v1::StackFrame {
                kind: v1::FrameKind::Python.into(),
                name: 1,
                file: 3,
                line: 18,
            },
            v1::StackFrame {
                kind: v1::FrameKind::Python.into(),
                name: 2,
                file: 2,
                line: 5,
            },
        ],
        rows: vec![v1::StackRow {
            frames: vec![1, 0],
            amounts,
            ..v1::StackRow::default()
        }],
        groups: vec![v1::StackGroup {
            frame: Some(0),
            own: amounts,
            stacks: 1,
            ..v1::StackGroup::default()
        }],
        devices: vec![v1::StackDevice {
            device: Some(0),
            amounts,
            stacks: 1,
            ..v1::StackDevice::default()
        }],
        ..v1::StacksResponse::default()
    })
}

/// An answer of the right kind, or a refusal.
fn answer(ask: &Ask, pids: &[(u32, u64)], refuse: bool) -> Answer {
    if refuse {
        return Answer::Refused(format!("it cannot be told: {HOSTILE}"));
    }
    match ask {
        Ask::List => list(pids),
        Ask::Devices => Answer::Devices(v1::DevicesResponse {
            as_of: START,
            devices: vec![v1::MachineDevice {
                kind: Some("cuda".to_owned()),
                name: Some(HOSTILE.to_owned()),
                total_bytes: Some(24 << 30),
                unexplained_bytes: Some(191 << 20),
                holders: pids
                    .iter()
                    .map(|(pid, held)| v1::DeviceHolder {
                        process: Some(process(*pid, *held)),
                        held_bytes: Some(*held),
                        ..v1::DeviceHolder::default()
                    })
                    .collect(),
                ..v1::MachineDevice::default()
            }],
            ..v1::DevicesResponse::default()
        }),
        Ask::Stats(pid) => Answer::Stats(v1::StatsResponse {
            pid: *pid,
            as_of: START,
            devices: vec![v1::DeviceStats {
                device: Some(0),
                allocated_bytes: Some(u64::from(*pid) << 20),
                ..v1::DeviceStats::default()
            }],
            ..v1::StatsResponse::default()
        }),
        Ask::Course(pid) => Answer::Course(v1::FluctuationResponse {
            pid: *pid,
            devices: vec![v1::DeviceFluctuation {
                device: Some(0),
                overall: Some(v1::Interval::default()),
                intervals: (0..200)
                    .map(|level| v1::Interval {
                        max_allocated_bytes: level,
                        ..v1::Interval::default()
                    })
                    .collect(),
                ..v1::DeviceFluctuation::default()
            }],
            ..v1::FluctuationResponse::default()
        }),
        Ask::Verdict(pid) | Ask::Leaks(pid) | Ask::Held(pid) => leaks(*pid),
        Ask::Owners(pid, _) | Ask::Why(pid, _, _) => Answer::Owners(v1::OwnersResponse {
            pid: *pid,
            as_of: START,
            owners: vec![v1::Owner {
                category: "weights".to_owned(),
                owner: HOSTILE.to_owned(),
                address: 4096,
                place: "/job/train.py:18 in f".to_owned(),
                ..v1::Owner::default()
            }],
            ..v1::OwnersResponse::default()
        }),
        Ask::Lines { pid, .. } => stacks(*pid, v1::StackGrouping::OwnLine),
        Ask::Stacks(pid, _) => stacks(*pid, v1::StackGrouping::Stack),
        Ask::Steps(pid) => Answer::Steps(v1::StepsResponse {
            pid: *pid,
            as_of: START,
            rows: (1..50)
                .map(|step| v1::StepRow {
                    step,
                    device: Some(0),
                    min_allocated_bytes: step << 20,
                    max_allocated_bytes: (step + 5) << 20,
                    ..v1::StepRow::default()
                })
                .collect(),
            ..v1::StepsResponse::default()
        }),
        Ask::Holders(pid, _) => holders(*pid),
    }
}

/// Answers everything that is due, until nothing is.
fn settle(model: &mut Model, pids: &[(u32, u64)], at: Now) {
    for _ in 0..20 {
        let due = model.due(at);
        if due.is_empty() {
            return;
        }
        for ask in due {
            let answer = answer(&ask, pids, false);
            model.heard(Heard::Answer(ask, Box::new(answer)), at);
        }
    }
}

fn screen(model: &mut Model, width: u16, height: u16, at: Now) -> String {
    model.resize(width, height);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let palette = Palette { has_colours: true };
    terminal
        .draw(|frame| draw(model, at, palette, frame.buffer_mut()))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_owned());
        cells.collect::<String>()
    });
    let lines: Vec<String> = lines.collect();
    let text = lines.join("\n");
    for letter in text.chars() {
        let is_hostile = letter.is_control() && letter != '\n' || letter == '\u{202e}';
        assert!(!is_hostile, "{letter:?} in\n{text}");
    }
    text
}

fn press(model: &mut Model, keys: &str, at: Now) -> Option<Effect> {
    let mut effect = None;
    for letter in keys.chars() {
        let key = match letter {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Esc,
            'v' => Key::Down,
            '^' => Key::Up,
            '(' => Key::Left,
            ')' => Key::Right,
            letter => Key::Char(letter),
        };
        effect = model.key(key, at);
    }
    effect
}

const TWO: [(u32, u64); 2] = [(41, 1 << 20), (42, 2 << 20)];

#[test]
fn from_a_process_to_the_line_and_what_holds_it() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    let text = screen(&mut model, 80, 24, now(0));
    assert!(
        text.contains("[1 processes]") && text.contains("GROWS 86 %"),
        "{text}"
    );
    press(&mut model, "v\n", now(1));
    settle(&mut model, &TWO, now(1));
    let text = screen(&mut model, 80, 24, now(1));
    assert!(text.contains("[5 leaks]"), "{text}");
    assert!(text.contains("pid 42 py"), "{text}");
    assert!(text.contains("train.py:18 (<module>)"), "{text}");
    assert!(
        text.contains("314.00 MiB") && text.contains("+2.00 MiB"),
        "{text}"
    );
    press(&mut model, "\n", now(2));
    settle(&mut model, &TWO, now(2));
    let text = screen(&mut model, 80, 24, now(2));
    assert!(
        text.contains("list __main__.history (201 elements)"),
        "{text}"
    );
    assert!(
        text.contains("… 3 in torch") && text.contains("/job/train.py:18"),
        "{text}"
    );
    press(&mut model, "l", now(3));
    let text = screen(&mut model, 80, 24, now(3));
    assert_eq!(text.matches("torch/nn.py:3").count(), 5, "{text}");
    // The last line is that of the program; its place can be copied.
    model.key(Key::End, now(3));
    let copied = Effect::Copy("/job/train.py:18".to_owned());
    assert_eq!(press(&mut model, "y", now(3)), Some(copied));
    assert!(screen(&mut model, 80, 24, now(3)).contains("copied /job/train.py:18"));
    press(&mut model, "\u{1b}\u{1b}", now(4));
    assert_eq!(model.view(), View::Processes);
}

#[test]
fn the_cursor_stays_on_its_process() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    // By the column of allocated bytes, upside down: the smaller one first.
    press(&mut model, ">>>>r", now(1));
    press(&mut model, "v", now(1));
    let under = |model: &Model| {
        let shown = model.shown();
        shown.page.rows[shown.cursor.unwrap()].pid
    };
    assert_eq!(under(&model), Some(42));
    let three = [(7, 1), (41, 1 << 20), (42, 2 << 20)];
    settle(&mut model, &three, now(2_000));
    assert_eq!(under(&model), Some(42));
    // Its row has gone: the cursor is where it was.
    settle(&mut model, &[(7, 1)], now(4_000));
    assert_eq!(under(&model), Some(7));
}

#[test]
fn a_window_that_is_too_small_says_so() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    assert!(screen(&mut model, 20, 5, now(0)).contains("window too small"));
    for view in '1'..='6' {
        press(&mut model, &view.to_string(), now(1));
        settle(&mut model, &TWO, now(1));
        for (width, height) in [(1, 1), (40, 10), (80, 24), (200, 60), (500, 200)] {
            screen(&mut model, width, height, now(1));
        }
    }
}

#[test]
fn a_large_window_has_more_columns_and_the_course() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    let small = screen(&mut model, 80, 24, now(0));
    let large = screen(&mut model, 200, 60, now(0));
    assert!(
        !small.contains("COURSE") && large.contains("COURSE"),
        "{small}\n{large}"
    );
    assert!(large.contains("pid 41, device 0: 0 B to 199 B"), "{large}");
    for view in [
        "[2 devices]",
        "[3 owners]",
        "[4 stacks]",
        "[5 leaks]",
        "[6 steps]",
    ] {
        model.key(Key::Tab, now(1));
        settle(&mut model, &TWO, now(1));
        let text = screen(&mut model, 200, 60, now(1));
        assert!(text.contains(view), "{text}");
        assert!(!text.contains("Waiting"), "{text}");
    }
}

#[test]
fn a_pause_freezes_what_is_shown_and_looks_back() {
    let mut model = Model::new(options(), now(0));
    for second in 0..5 {
        settle(&mut model, &[(41, second << 20)], now(second * 1000));
    }
    press(&mut model, " ", now(4_500));
    settle(&mut model, &[(41, 99 << 20)], now(9_000));
    let text = screen(&mut model, 80, 24, now(9_500));
    assert!(text.contains("paused for 5 s"), "{text}");
    // What the view has seen since is later than the pause: there is nothing to look at.
    press(&mut model, ")", now(9_500));
    let text = screen(&mut model, 80, 24, now(9_500));
    assert!(text.contains("paused for 5 s"), "{text}");
    press(&mut model, "((", now(9_500));
    let text = screen(&mut model, 80, 24, now(9_500));
    assert!(text.contains("looking back at"), "{text}");
    // Of stacks the daemon is asked, at that moment.
    press(&mut model, "4", now(9_600));
    let due = model.due(now(9_600));
    let asked = due.iter().find_map(|ask| match ask {
        Ask::Lines { at, .. } => *at,
        _ => None,
    });
    assert_eq!(asked, Some(now(3_000).unix_ns), "{due:?}");
    // Why a block was for what it was is of that moment as well.
    press(&mut model, "3", now(9_600));
    settle(&mut model, &TWO, now(9_600));
    press(&mut model, "\n", now(9_600));
    let due = model.due(now(9_600));
    let asked = due.iter().find_map(|ask| match ask {
        Ask::Why(_, _, at) => *at,
        _ => None,
    });
    assert_eq!(asked, Some(now(3_000).unix_ns), "{due:?}");
    for ask in due {
        let answer = answer(&ask, &TWO, false);
        model.heard(Heard::Answer(ask, Box::new(answer)), now(9_600));
    }
    let text = screen(&mut model, 80, 24, now(9_600));
    assert!(!text.contains("Waiting"), "{text}");
    press(&mut model, "\u{1b}((((((", now(9_600));
    let text = screen(&mut model, 80, 24, now(9_600));
    assert!(text.contains("39 s ago"), "{text}");
    press(&mut model, " ", now(9_700));
    assert!(!screen(&mut model, 80, 24, now(9_700)).contains("looking back"));
}

/// An address may be another block's by the time when somebody asks about it.
#[test]
fn in_a_pause_another_block_is_not_explained_in_place_of_the_one_that_is_shown() {
    let answer = |category: &str| {
        Box::new(Answer::Owners(v1::OwnersResponse {
            explained: vec![v1::OwnerExplained {
                owner: Some(v1::Owner {
                    category: category.to_owned(),
                    owner: HOSTILE.to_owned(),
                    ..v1::Owner::default()
                }),
                why: vec!["a module has it".to_owned()],
                ..v1::OwnerExplained::default()
            }],
            ..v1::OwnersResponse::default()
        }))
    };
    let shown = |category: &str| {
        let mut model = Model::new(options(), now(0));
        settle(&mut model, &TWO, now(0));
        press(&mut model, "3", now(1));
        settle(&mut model, &TWO, now(1));
        press(&mut model, " \n", now(2));
        let due = model.due(now(60_000));
        let why = due.into_iter().find(|ask| matches!(ask, Ask::Why(..)));
        let why = why.unwrap();
        assert_eq!(why, Ask::Why(41, 4096, None));
        model.heard(Heard::Answer(why, answer(category)), now(60_000));
        screen(&mut model, 80, 24, now(60_000))
    };
    let text = shown("weights");
    assert!(text.contains("a module has it"), "{text}");
    let text = shown("activations");
    assert!(
        text.contains("what is there now is for something else"),
        "{text}"
    );
    assert!(!text.contains("a module has it"), "{text}");
}

/// A page that was open before the pause keeps its explanation.
#[test]
fn a_pause_keeps_the_explanation_that_is_shown() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    press(&mut model, "3", now(1));
    settle(&mut model, &TWO, now(1));
    press(&mut model, "\n", now(2));
    settle(&mut model, &TWO, now(2));
    press(&mut model, " ", now(3));
    let due = model.due(now(3));
    assert!(
        !due.iter().any(|ask| matches!(ask, Ask::Why(..))),
        "{due:?}"
    );
    let text = screen(&mut model, 80, 24, now(3));
    assert!(!text.contains("Waiting"), "{text}");
}

#[test]
fn the_cursor_passes_rows_of_devices_with_one_name() {
    let mut model = Model::new(options(), now(0));
    press(&mut model, "2", now(0));
    let device = v1::MachineDevice {
        kind: Some("cuda".to_owned()),
        name: Some("0".to_owned()),
        ..v1::MachineDevice::default()
    };
    for ask in model.due(now(0)) {
        let answer = match ask {
            Ask::Devices => Answer::Devices(v1::DevicesResponse {
                devices: vec![device.clone(); 2],
                ..v1::DevicesResponse::default()
            }),
            _ => answer(&ask, &TWO, false),
        };
        model.heard(Heard::Answer(ask, Box::new(answer)), now(0));
    }
    assert_eq!(model.shown().page.rows.len(), 4);
    for row in 1..4 {
        press(&mut model, "v", now(0));
        assert_eq!(model.shown().cursor, Some(row));
    }
}

#[test]
fn a_daemon_that_is_slow_or_gone_is_told_of() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    assert!(!model.due(now(1_000)).is_empty());
    assert!(
        model.due(now(1_100)).is_empty(),
        "nothing is asked twice at a time"
    );
    let text = screen(&mut model, 80, 24, now(5_000));
    assert!(text.contains("no answer for 5 s"), "{text}");
    let trouble = Trouble {
        what: "the connection broke".to_owned(),
    };
    model.heard(Heard::Lost(Ask::List, trouble), now(6_000));
    let text = screen(&mut model, 80, 24, now(8_000));
    assert!(
        text.contains("memscoped is gone since 2 s, trying again"),
        "{text}"
    );
    assert!(text.contains("train41.py"), "what was known stays: {text}");
    assert!(model.due(now(8_000)).is_empty());
    model.heard(Heard::Reached, now(9_000));
    settle(&mut model, &TWO, now(9_000));
    let text = screen(&mut model, 80, 24, now(9_000));
    assert!(!text.contains("gone"), "{text}");
}

#[test]
fn a_recording_stands_still_and_has_moments() {
    let recording = Options {
        recording: Some("run.mscope".to_owned()),
        ..options()
    };
    let mut model = Model::new(recording, now(0));
    settle(&mut model, &TWO, now(0));
    assert!(model.due(now(60_000)).is_empty(), "nothing is asked again");
    press(&mut model, "4(", now(1));
    let text = screen(&mut model, 80, 24, now(1));
    assert!(text.contains("recording run.mscope"), "{text}");
    let due = model.due(now(1));
    let asked = due.iter().find_map(|ask| match ask {
        Ask::Lines { at, .. } => *at,
        _ => None,
    });
    let asked = asked.unwrap();
    assert!((START - 600_000_000_000..START).contains(&asked), "{asked}");
}

#[test]
fn a_filter_keeps_the_rows_that_have_its_text() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    press(&mut model, "/TRAIN42\n", now(1));
    assert_eq!(model.shown().page.rows.len(), 1);
    assert!(screen(&mut model, 80, 24, now(1)).contains("only rows with \"TRAIN42\""));
    press(&mut model, "\u{1b}", now(1));
    assert_eq!(model.shown().page.rows.len(), 2);
}

#[test]
fn without_colours_everything_is_said_in_words() {
    let mut model = Model::new(options(), now(0));
    settle(&mut model, &TWO, now(0));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let palette = Palette { has_colours: false };
    terminal
        .draw(|frame| draw(&model, now(0), palette, frame.buffer_mut()))
        .unwrap();
    let plain = ratatui::style::Color::Reset;
    let cells = terminal.backend().buffer().content().iter();
    assert!(
        cells
            .clone()
            .all(|cell| cell.fg == plain && cell.bg == plain)
    );
}

#[derive(Clone, Debug)]
enum Happens {
    Key(Key),
    Answers { refuse: bool, pids: Vec<u32> },
    Lost,
    Reached,
    Time(u64),
    Size(u16, u16),
}

fn happens() -> impl Strategy<Value = Happens> {
    let keys = vec![
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Enter,
        Key::Esc,
        Key::Backspace,
        Key::Tab,
        Key::BackTab,
        Key::Interrupt,
        Key::Suspend,
        Key::Redraw,
    ];
    let letters: Vec<char> = "123456<>/rl[] y?jkgGqtx\u{1b}".chars().collect();
    prop_oneof![
        6 => prop_oneof![
            prop::sample::select(keys),
            prop::sample::select(letters).prop_map(Key::Char),
        ].prop_map(Happens::Key),
        3 => (prop::bool::weighted(0.2), prop::collection::vec(1_u32..9, 0..6))
            .prop_map(|(refuse, pids)| Happens::Answers { refuse, pids }),
        1 => Just(Happens::Lost),
        1 => Just(Happens::Reached),
        2 => (0_u64..20_000).prop_map(Happens::Time),
        1 => (0_u16..250, 0_u16..80).prop_map(|(width, height)| Happens::Size(width, height)),
    ]
}

proptest! {
    /// Whatever is pressed and answered, in whatever order: nothing panics, and the cursor is on a row where there is one.
    #[test]
    fn keys_and_answers_in_any_order(
        is_recording in prop::bool::weighted(0.2),
        all in prop::collection::vec(happens(), 0..60),
    ) {
        let recording = is_recording.then(|| "run.mscope".to_owned());
        let mut model = Model::new(Options { recording, ..options() }, now(0));
        let (mut ms, mut size) = (0, (80, 24));
        for one in all {
            match one {
                Happens::Key(key) => {
                    model.key(key, now(ms));
                }
                Happens::Answers { refuse, pids } => {
                    let pids: Vec<(u32, u64)> = pids.iter().map(|pid| (*pid, 1 << *pid)).collect();
                    for ask in model.due(now(ms)) {
                        let answer = answer(&ask, &pids, refuse);
                        model.heard(Heard::Answer(ask, Box::new(answer)), now(ms));
                    }
                }
                Happens::Lost => {
                    let trouble = Trouble { what: HOSTILE.to_owned() };
                    model.heard(Heard::Lost(Ask::List, trouble), now(ms));
                }
                Happens::Reached => model.heard(Heard::Reached, now(ms)),
                Happens::Time(passed) => ms += passed,
                Happens::Size(width, height) => size = (width.max(1), height.max(1)),
            }
            let shown = model.shown();
            let rows = shown.page.rows.len();
            prop_assert_eq!(shown.cursor.is_some(), rows > 0);
            prop_assert!(shown.cursor.is_none_or(|cursor| cursor < rows));
            screen(&mut model, size.0, size.1, now(ms));
        }
    }
}
