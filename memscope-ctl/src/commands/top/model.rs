//! What the view knows and where the person is in it: keys and answers in, a page out.
//!
//! Owns: which page is shown, the cursor, order, filter, pause and the look back, which questions are due. Refuses: clocks, terminals and
//! sockets: the time is told with each call, so everything here can be tested without them.

use super::ask::{Answer, Ask, Heard};
use super::history::{Answers, History, Seen};
use super::page::{Opens, Page, Row};
use super::pages::{devices, leaks, line, owners, processes, stacks, steps};
use crate::client::all;
use crate::units::{grouped, plain};
use memscope_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The views, in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    Processes,
    Devices,
    Owners,
    Stacks,
    Leaks,
    Steps,
}

impl View {
    pub(super) const ALL: [View; 6] = [
        View::Processes,
        View::Devices,
        View::Owners,
        View::Stacks,
        View::Leaks,
        View::Steps,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            View::Processes => "processes",
            View::Devices => "devices",
            View::Owners => "owners",
            View::Stacks => "stacks",
            View::Leaks => "leaks",
            View::Steps => "steps",
        }
    }

    /// Whether it is about one process.
    const fn is_of_one(self) -> bool {
        !matches!(self, View::Processes | View::Devices)
    }

    /// Whether the daemon can be asked about an earlier moment.
    const fn has_moments(self) -> bool {
        matches!(self, View::Owners | View::Stacks)
    }
}

/// A page that somebody can be at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    View(View),
    /// A line that grows, by its key.
    Line(String),
    /// The stacks of a line, by its key.
    Stacks(String),
    /// A use of memory, by its key.
    Owner(String),
}

/// What somebody has done at a place.
#[derive(Clone, Debug, Default)]
struct Spot {
    /// Key of the row with the cursor.
    key: String,
    /// Where that row was last, for when it goes.
    index: usize,
    /// The column that rows are ordered by; without it they are in the order of the answer.
    sort: Option<usize>,
    is_reversed: bool,
    filter: String,
}

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Esc,
    Backspace,
    Tab,
    BackTab,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// What the model cannot do itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Suspend,
    Redraw,
    /// Give the terminal this text for its clipboard.
    Copy(String),
}

/// The time, as whoever calls has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    /// Milliseconds of a clock that never goes back.
    pub(super) ms: u64,
    /// Nanoseconds since 1970.
    pub(super) unix_ns: u64,
}

/// What somebody started the view with.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The processes; all if there is none.
    pub(super) pids: Vec<u32>,
    /// Time between two questions, milliseconds.
    pub(super) interval_ms: u64,
    /// The name of the recording that is asked, where it is one: it stands still.
    pub(super) recording: Option<String>,
}

/// The present is not shown.
#[derive(Clone)]
struct Pause {
    since: Now,
    /// What was known when it began; what was asked first after that is added.
    frozen: Answers,
    /// The earlier moment that is looked at, nanoseconds since 1970.
    at: Option<u64>,
}

/// When a question was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at_ms: u64,
    is_under_way: bool,
}

/// Whether the daemon answers.
enum Link {
    Well,
    /// It cannot be reached since then; the text says why.
    Gone {
        since_ms: u64,
        why: String,
    },
}

/// Questions that may be under way at the same time.
const AT_ONCE: usize = 16;
/// Time after which answers to questions that nobody asks any more are forgotten, milliseconds.
const FORGOTTEN_AFTER_MS: u64 = 120_000;
/// Time between two questions that cost the daemon or the process much, milliseconds.
const SLOWLY_MS: u64 = 10_000;
/// Time between two questions that cost the daemon something, milliseconds.
const OFTEN_MS: u64 = 2_000;
/// Moments of the journal, before those that the view has seen itself, to which the arrow keys lead.
const STEPS_BACK: u64 = 60;
/// Time for which a message is shown, milliseconds.
const SHOWN_FOR_MS: u64 = 5_000;
/// Time without an answer after which that is said, milliseconds.
const LATE_MS: u64 = 3_000;
/// Rows above and below the cursor whose processes are asked about in addition to those in the window.
const AROUND: usize = 8;
/// Characters of a filter.
const LONGEST_FILTER: usize = 60;
/// Intervals of a process's course: what the widest window shows.
const INTERVALS: u32 = 200;

/// Everything.
pub(super) struct Model {
    options: Options,
    /// Width and height of the window.
    size: (u16, u16),
    answers: Answers,
    asked: BTreeMap<Ask, Asked>,
    history: History,
    /// From the view down to the page that is shown; never empty.
    trail: Vec<Place>,
    spots: BTreeMap<Place, Spot>,
    /// The process that pages about one are of.
    subject: Option<u32>,
    pause: Option<Pause>,
    link: Link,
    /// When anything was heard from the daemon last, milliseconds.
    heard_ms: u64,
    /// The filter is being written.
    is_filtering: bool,
    /// Frames and lines of libraries are shown.
    has_libraries: bool,
    has_help: bool,
    message: Option<(String, u64)>,
}

/// What is drawn: the page with its rows in order, and the cursor.
pub(super) struct Shown {
    pub(super) page: Page,
    /// Index of the row with the cursor; `None` where there are no rows.
    pub(super) cursor: Option<usize>,
    /// The column that rows are ordered by, and whether they stand upside down.
    pub(super) sort: Option<usize>,
    pub(super) is_reversed: bool,
}

impl Model {
    pub(super) fn new(options: Options, now: Now) -> Model {
        let is_still = options.recording.is_some();
        Model {
            options,
            size: (80, 24),
            answers: Answers::new(),
            asked: BTreeMap::new(),
            history: History::default(),
            trail: vec![Place::View(View::Processes)],
            spots: BTreeMap::new(),
            subject: None,
            pause: is_still.then(|| Pause {
                since: now,
                frozen: Answers::new(),
                at: None,
            }),
            link: Link::Well,
            heard_ms: now.ms,
            is_filtering: false,
            has_libraries: false,
            has_help: false,
            message: None,
        }
    }

    /// The window has another size now.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        self.size = (width, height);
    }

    pub(super) fn has_help(&self) -> bool {
        self.has_help
    }

    fn place(&self) -> Place {
        self.trail
            .last()
            .cloned()
            .unwrap_or(Place::View(View::Processes))
    }

    /// The view in the bar: that of the page, or of the page from which it was opened.
    pub(super) fn view(&self) -> View {
        let views = self.trail.iter().rev();
        let mut views = views.filter_map(|place| match place {
            Place::View(view) => Some(*view),
            _ => None,
        });
        views.next().unwrap_or(View::Processes)
    }

    fn spot(&self) -> Spot {
        self.spots.get(&self.place()).cloned().unwrap_or_default()
    }

    fn with_spot(&mut self, change: impl FnOnce(&mut Spot)) {
        change(self.spots.entry(self.place()).or_default());
    }

    /// The earlier moment that is looked at.
    fn at(&self) -> Option<u64> {
        self.pause.as_ref().and_then(|pause| pause.at)
    }

    // What is known.

    /// The answer that is shown for a question.
    fn answer(&self, ask: &Ask) -> Option<&Answer> {
        let is_of_moment = match ask {
            Ask::Owners(_, at)
            | Ask::Why(_, _, at)
            | Ask::Stacks(_, at)
            | Ask::Lines { at, .. } => at.is_some(),
            _ => false,
        };
        let answers = match &self.pause {
            _ if is_of_moment => &self.answers,
            None => &self.answers,
            Some(Pause {
                at: None, frozen, ..
            }) => frozen,
            Some(Pause { at: Some(at), .. }) if self.options.recording.is_none() => {
                &self.history.at(*at)?.answers
            }
            Some(pause) => &pause.frozen,
        };
        answers.get(ask).map(Arc::as_ref)
    }

    /// Why there is no answer of the kind that was expected.
    fn missing(&self, ask: &Ask) -> String {
        match self.answer(ask) {
            Some(Answer::Refused(why)) => why.clone(),
            _ if self.at().is_some() && !self.view().has_moments() => {
                "Of that moment nothing is known here: this view has not been open then. Owners (3) and stacks (4) ask the daemon about it."
                    .to_owned()
            }
            _ => "Waiting for the answer …".to_owned(),
        }
    }

    /// The list of processes; of a moment that the view has not seen, the last one from before the look back.
    fn listed(&self) -> Option<&v1::ListResponse> {
        let frozen = || self.pause.as_ref()?.frozen.get(&Ask::List).map(Arc::as_ref);
        match self.answer(&Ask::List).or_else(frozen)? {
            Answer::List(list) => Some(list),
            _ => None,
        }
    }

    /// The processes that are shown, in the order of the daemon.
    fn processes(&self) -> Vec<&v1::Process> {
        let Some(list) = self.listed() else {
            return Vec::new();
        };
        let pids = match self.options.pids.is_empty() {
            true => all(&list.processes),
            false => self.options.pids.clone(),
        };
        let pid = |process: &v1::Process| process.facts.as_ref().map(|facts| facts.pid);
        let is_shown = |process: &&v1::Process| pid(process).is_some_and(|pid| pids.contains(&pid));
        // A process that has ended stands back for one that has its number now.
        let mut shown: BTreeMap<u32, &v1::Process> = BTreeMap::new();
        for process in list.processes.iter().filter(is_shown) {
            if let Some(pid) = pid(process) {
                shown.insert(pid, process);
            }
        }
        shown.into_values().collect()
    }

    /// The process that pages about one are of: the chosen one, else the first.
    fn subject(&self) -> Option<u32> {
        let processes = self.processes();
        let mut pids = processes
            .iter()
            .filter_map(|one| Some(one.facts.as_ref()?.pid));
        self.subject.or_else(|| pids.next())
    }

    // What is shown.

    fn page(&self) -> Page {
        match self.place() {
            Place::View(View::Processes) => self.processes_page(),
            Place::View(View::Devices) => match self.answer(&Ask::Devices) {
                Some(Answer::Devices(answer)) => devices::page(answer),
                _ => Page::only("devices", self.missing(&Ask::Devices)),
            },
            place => match self.subject() {
                Some(pid) => self.page_of(pid, &place),
                None => match self.listed() {
                    Some(_) => Page::only("no process", self.no_process()),
                    None => Page::only("", self.missing(&Ask::List)),
                },
            },
        }
    }

    fn no_process(&self) -> String {
        let pids: Vec<String> = self.options.pids.iter().map(u32::to_string).collect();
        match pids.is_empty() {
            true => processes::page(&[]).nothing,
            false => format!(
                "None of these is traced: {}. Follow it: sudo memscope-ctl attach --pid PID.",
                pids.join(", ")
            ),
        }
    }

    fn processes_page(&self) -> Page {
        if self.answer(&Ask::List).is_none() {
            return Page::only("processes", self.missing(&Ask::List));
        }
        let processes = self.processes();
        let known = processes.iter().map(|process| {
            let pid = process.facts.as_ref().map_or(0, |facts| facts.pid);
            processes::Known {
                process,
                stats: match self.answer(&Ask::Stats(pid)) {
                    Some(Answer::Stats(answer)) => Some(answer),
                    _ => None,
                },
                course: match self.answer(&Ask::Course(pid)) {
                    Some(Answer::Course(answer)) => Some(answer),
                    _ => None,
                },
                verdict: match self.answer(&Ask::Verdict(pid)) {
                    Some(Answer::Leaks(answer)) => Some(answer),
                    _ => None,
                },
            }
        });
        let mut page = processes::page(&known.collect::<Vec<_>>());
        if page.rows.is_empty() {
            page.nothing = self.no_process();
        }
        page
    }

    fn page_of(&self, pid: u32, place: &Place) -> Page {
        let lines = Ask::Lines {
            pid,
            any: self.has_libraries && !matches!(place, Place::Stacks(_)),
            at: self.at(),
        };
        let only = |ask: &Ask| Page::only(format!("pid {pid}"), self.missing(ask));
        let leaks = Ask::Leaks(pid);
        let owners = Ask::Owners(pid, self.at());
        match place {
            Place::View(View::Owners) => match self.answer(&owners) {
                Some(Answer::Owners(answer)) => owners::page(answer),
                _ => only(&owners),
            },
            Place::Owner(key) => match self.answer(&owners) {
                Some(Answer::Owners(answer)) => {
                    let why = self.why(pid, answer, key);
                    let explained = match why.as_ref().and_then(|why| self.answer(why)) {
                        Some(Answer::Owners(explained)) => Ok(explained),
                        _ => Err(why.map_or_else(String::new, |why| self.missing(&why))),
                    };
                    owners::why(answer, key, explained, self.at().is_some())
                }
                _ => only(&owners),
            },
            Place::View(View::Stacks) => match self.answer(&lines) {
                Some(Answer::Stacks(answer)) => stacks::page(answer, self.has_libraries),
                _ => only(&lines),
            },
            Place::Stacks(key) => {
                // The line may be one of a library, which only the answer for any line has.
                let found = [false, true].map(|any| Ask::Lines {
                    pid,
                    any,
                    at: self.at(),
                });
                let whole = Ask::Stacks(pid, self.at());
                let Some(Answer::Stacks(answer)) = self.answer(&whole) else {
                    return only(&whole);
                };
                let pages = found.iter().filter_map(|ask| match self.answer(ask)? {
                    Answer::Stacks(lines) => {
                        Some(stacks::of_line(lines, key, answer, self.has_libraries))
                    }
                    _ => None,
                });
                let mut pages: Vec<Page> = pages.collect();
                let with_rows = pages.iter().position(|page| !page.rows.is_empty());
                match pages.is_empty() {
                    true => only(&lines),
                    false => pages.swap_remove(with_rows.unwrap_or(0)),
                }
            }
            Place::View(View::Leaks) => match self.answer(&leaks) {
                Some(Answer::Leaks(answer)) => {
                    let held = match self.answer(&Ask::Held(pid)) {
                        Some(Answer::Leaks(held)) => Some(held),
                        _ => None,
                    };
                    leaks::page(answer, held)
                }
                _ => only(&leaks),
            },
            Place::Line(key) => match self.answer(&leaks) {
                Some(Answer::Leaks(answer)) => match line::find(answer, key) {
                    Some(line) => {
                        let ask = Ask::Holders(pid, line::examples(answer, line));
                        let held = self.latest_holders(pid, &ask);
                        let held = held.ok_or_else(|| match self.no_objects(&ask) {
                            Some(why) => why,
                            None => self.missing(&ask),
                        });
                        line::page(answer, line, held, self.has_libraries)
                    }
                    None => Page::only(
                        format!("pid {pid}"),
                        "It is not there any more (Esc goes back).",
                    ),
                },
                _ => only(&leaks),
            },
            Place::View(View::Steps) => match self.answer(&Ask::Steps(pid)) {
                Some(Answer::Steps(answer)) => steps::page(answer),
                _ => only(&Ask::Steps(pid)),
            },
            Place::View(View::Processes | View::Devices) => Page::default(),
        }
    }

    /// Why nothing can be asked about holders.
    fn no_objects(&self, ask: &Ask) -> Option<String> {
        match ask {
            Ask::Holders(_, addresses) if addresses.is_empty() => {
                Some("no address of its blocks is known".to_owned())
            }
            _ => None,
        }
    }

    /// The answer for these addresses; while they change with each answer, the one for some of the same blocks.
    fn latest_holders(&self, pid: u32, ask: &Ask) -> Option<&v1::HoldersResponse> {
        if let Some(Answer::Holders(answer)) = self.answer(ask) {
            return Some(answer);
        }
        let Ask::Holders(_, wanted) = ask else {
            return None;
        };
        let is_like = |one: &&Ask| match one {
            Ask::Holders(of, addresses) => {
                *of == pid && addresses.iter().any(|address| wanted.contains(address))
            }
            _ => false,
        };
        let like = self.asked.keys().filter(is_like);
        let mut known = like.filter_map(|ask| match self.answer(ask)? {
            Answer::Holders(answer) => Some(answer),
            _ => None,
        });
        known.next()
    }

    /// The question why the largest block of a use is what it is.
    fn why(&self, pid: u32, answer: &v1::OwnersResponse, key: &str) -> Option<Ask> {
        let owner = answer
            .owners
            .iter()
            .find(|owner| owners::key(owner) == key)?;
        let address = (owner.address != 0).then_some(owner.address)?;
        Some(Ask::Why(pid, address, self.at()))
    }

    /// The page as it is drawn.
    pub(super) fn shown(&self) -> Shown {
        let spot = self.spot();
        let mut page = self.page();
        page.filter(&spot.filter);
        if let Some(column) = spot.sort {
            page.sort(column);
        }
        if spot.is_reversed {
            page.rows.reverse();
        }
        let found = page.rows.iter().position(|row| row.key == spot.key);
        let cursor = match page.rows.len() {
            0 => None,
            all => Some(found.unwrap_or(spot.index).min(all - 1)),
        };
        // The course of the process under the cursor, in large.
        if let (Place::View(View::Processes), Some(row)) = (self.place(), cursor)
            && let Some(pid) = page.rows.get(row).and_then(|row| row.pid)
            && let Some(Answer::Course(course)) = self.answer(&Ask::Course(pid))
        {
            page.charts = processes::charts(course);
        }
        Shown {
            page,
            cursor,
            sort: spot.sort,
            is_reversed: spot.is_reversed,
        }
    }

    fn row_under_cursor(shown: &Shown) -> Option<&Row> {
        shown.page.rows.get(shown.cursor?)
    }

    /// Notes where the cursor is, so that it stays with its row when rows change places.
    fn settle(&mut self) {
        let shown = self.shown();
        let Some(row) = Model::row_under_cursor(&shown) else {
            return;
        };
        let (key, index) = (row.key.clone(), shown.cursor.unwrap_or_default());
        self.with_spot(|spot| {
            spot.key = key;
            spot.index = index;
        });
    }

    // What is said at the lower edge.

    /// The line about the state: what is wrong, what is paused, what was done.
    pub(super) fn status(&self, now: Now) -> Vec<String> {
        let mut parts = Vec::new();
        let since = |then: u64| now.ms.saturating_sub(then) / 1000;
        match &self.link {
            Link::Gone { since_ms, why } => parts.push(format!(
                "memscoped is gone since {} s, trying again: {}",
                since(*since_ms),
                plain(why)
            )),
            Link::Well => {
                let first = self.asked.values().filter(|asked| asked.is_under_way);
                let first = first.map(|asked| asked.at_ms).min();
                let is_late = first.is_some_and(|first| now.ms.saturating_sub(first) >= LATE_MS);
                if is_late && now.ms.saturating_sub(self.heard_ms) >= LATE_MS {
                    parts.push(format!("no answer for {} s", since(self.heard_ms)));
                }
            }
        }
        match (&self.options.recording, &self.pause) {
            (Some(name), pause) => {
                let at = pause.as_ref().and_then(|pause| pause.at);
                let moment = match at {
                    Some(at) if self.view().has_moments() => {
                        format!("at {} (→ later)", crate::units::moment(at))
                    }
                    _ if self.view().has_moments() => "at its end (← earlier)".to_owned(),
                    _ => "at its end; owners (3) and stacks (4) go back by ←".to_owned(),
                };
                parts.push(format!("recording {}, {moment}", plain(name)));
            }
            (None, Some(Pause { at: Some(at), .. })) => {
                let ago = now.unix_ns.saturating_sub(*at) / 1_000_000_000;
                let ago = crate::units::duration(std::time::Duration::from_secs(ago));
                parts.push(format!(
                    "looking back at {}, {ago} ago (← → move, space: now)",
                    crate::units::moment(*at)
                ));
            }
            (None, Some(pause)) => parts.push(format!(
                "paused for {} s (← looks back, space goes on)",
                since(pause.since.ms)
            )),
            (None, None) => {}
        }
        let spot = self.spot();
        if self.is_filtering {
            parts.push(format!(
                "filter: {}▏(Enter keeps it, Esc shows all)",
                plain(&spot.filter)
            ));
        } else if !spot.filter.is_empty() {
            parts.push(format!(
                "only rows with \"{}\" (Esc shows all)",
                plain(&spot.filter)
            ));
        }
        if let Some((message, until)) = &self.message
            && now.ms < *until
        {
            parts.push(message.clone());
        }
        parts
    }

    fn say(&mut self, message: impl Into<String>, now: Now) {
        self.message = Some((message.into(), now.ms + SHOWN_FOR_MS));
    }

    // Keys.

    /// A key was pressed.
    pub(super) fn key(&mut self, key: Key, now: Now) -> Option<Effect> {
        match key {
            Key::Interrupt => return Some(Effect::Quit),
            Key::Suspend => return Some(Effect::Suspend),
            Key::Redraw => return Some(Effect::Redraw),
            _ => {}
        }
        if self.has_help {
            self.has_help = false;
            return (key == Key::Char('q')).then_some(Effect::Quit);
        }
        let effect = match self.is_filtering {
            true => {
                self.filter_key(key);
                None
            }
            false => self.command(key, now),
        };
        self.settle();
        effect
    }

    fn filter_key(&mut self, key: Key) {
        match key {
            Key::Char(letter) if !letter.is_control() => self.with_spot(|spot| {
                if spot.filter.chars().count() < LONGEST_FILTER {
                    spot.filter.push(letter);
                }
            }),
            Key::Backspace => self.with_spot(|spot| {
                spot.filter.pop();
            }),
            Key::Enter => self.is_filtering = false,
            Key::Esc => {
                self.is_filtering = false;
                self.with_spot(|spot| spot.filter.clear());
            }
            Key::Up => self.move_by(-1),
            Key::Down => self.move_by(1),
            _ => {}
        }
    }

    fn command(&mut self, key: Key, now: Now) -> Option<Effect> {
        let page = isize::from(self.size.1.saturating_sub(8).max(1).cast_signed());
        match key {
            Key::Char('q') => return Some(Effect::Quit),
            Key::Char('?') => self.has_help = true,
            Key::Char(digit @ '1'..='6') => {
                let index = digit as usize - '1' as usize;
                self.go_to(View::ALL.get(index).copied().unwrap_or(View::Processes));
            }
            Key::Tab | Key::BackTab => {
                let all = View::ALL.len();
                let by = if key == Key::Tab { 1 } else { all - 1 };
                let index = View::ALL.iter().position(|view| *view == self.view());
                let next = (index.unwrap_or(0) + by) % all;
                self.go_to(View::ALL.get(next).copied().unwrap_or(View::Processes));
            }
            Key::Up | Key::Char('k') => self.move_by(-1),
            Key::Down | Key::Char('j') => self.move_by(1),
            Key::PageUp => self.move_by(-page),
            Key::PageDown => self.move_by(page),
            Key::Home | Key::Char('g') => self.move_by(isize::MIN),
            Key::End | Key::Char('G') => self.move_by(isize::MAX),
            Key::Enter => self.open(now),
            Key::Esc if !self.spot().filter.is_empty() => {
                self.with_spot(|spot| spot.filter.clear());
            }
            Key::Esc | Key::Backspace => self.back(),
            Key::Char('/') => self.is_filtering = true,
            Key::Char('<') => self.sort_by(false, now),
            Key::Char('>') => self.sort_by(true, now),
            Key::Char('r') => {
                self.with_spot(|spot| spot.is_reversed = !spot.is_reversed);
            }
            Key::Char('l') => {
                self.has_libraries = !self.has_libraries;
                self.say(
                    match self.has_libraries {
                        true => "libraries are shown (l hides them)",
                        false => "libraries are hidden (l shows them)",
                    },
                    now,
                );
            }
            Key::Char('[') => self.next_process(false, now),
            Key::Char(']') => self.next_process(true, now),
            Key::Char(' ') => self.toggle_pause(now),
            Key::Left => self.look(false, now),
            Key::Right => self.look(true, now),
            Key::Char('y') => return self.copy(now),
            _ => {}
        }
        None
    }

    /// Shows a view. One about a single process is about the one under the cursor, if there is one.
    fn go_to(&mut self, view: View) {
        if let (Place::View(View::Processes | View::Devices), true) =
            (self.place(), view.is_of_one())
        {
            let shown = self.shown();
            if let Some(pid) = Model::row_under_cursor(&shown).and_then(|row| row.pid) {
                self.choose(pid);
            }
        }
        for place in &self.trail {
            if !matches!(place, Place::View(_)) {
                self.spots.remove(place);
            }
        }
        self.trail = vec![Place::View(view)];
    }

    /// Another process is looked at: what was marked in the pages of the one before is not there.
    fn choose(&mut self, pid: u32) {
        if self.subject() != Some(pid) {
            for view in View::ALL.into_iter().filter(|view| view.is_of_one()) {
                if let Some(spot) = self.spots.get_mut(&Place::View(view)) {
                    spot.key.clear();
                    spot.index = 0;
                }
            }
        }
        self.subject = Some(pid);
    }

    fn next_process(&mut self, forward: bool, now: Now) {
        if !self.view().is_of_one() {
            return;
        }
        let processes = self.processes();
        let pids = processes
            .iter()
            .filter_map(|one| Some(one.facts.as_ref()?.pid));
        let pids: Vec<u32> = pids.collect();
        let Some(here) = pids.iter().position(|pid| Some(*pid) == self.subject()) else {
            return;
        };
        let next = match forward {
            true => here + 1,
            false => here + pids.len() - 1,
        } % pids.len();
        let view = self.view();
        if let Some(pid) = pids.get(next) {
            self.choose(*pid);
            self.go_to(view);
            self.say(
                format!("process {} of {}", next + 1, grouped(pids.len() as u64)),
                now,
            );
        }
    }

    fn open(&mut self, now: Now) {
        let shown = self.shown();
        let Some(row) = Model::row_under_cursor(&shown) else {
            return;
        };
        let (key, pid) = (row.key.clone(), row.pid);
        let place = match row.opens {
            None => {
                let message = match row.location {
                    Some(_) => "there is nothing further to open; y copies the line's place",
                    None => "there is nothing further to open",
                };
                self.say(message, now);
                return;
            }
            Some(Opens::Leaks) => {
                if let Some(pid) = pid {
                    self.choose(pid);
                }
                Place::View(View::Leaks)
            }
            Some(Opens::Line) => Place::Line(key),
            Some(Opens::Stacks) => Place::Stacks(key),
            Some(Opens::Owner) => Place::Owner(key),
        };
        if place == Place::View(View::Leaks) {
            self.trail.retain(|one| *one != place);
        }
        self.trail.push(place);
    }

    fn back(&mut self) {
        if self.trail.len() > 1
            && let Some(left) = self.trail.pop()
            && !matches!(left, Place::View(_))
        {
            self.spots.remove(&left);
        }
    }

    fn move_by(&mut self, by: isize) {
        let shown = self.shown();
        let Some(cursor) = shown.cursor else {
            return;
        };
        let index = cursor
            .saturating_add_signed(by)
            .min(shown.page.rows.len() - 1);
        if let Some(row) = shown.page.rows.get(index) {
            let key = row.key.clone();
            self.with_spot(|spot| {
                spot.key = key;
                spot.index = index;
            });
        }
    }

    fn sort_by(&mut self, next: bool, now: Now) {
        let shown = self.shown();
        let columns = &shown.page.columns;
        let named = |index: &usize| columns.get(*index).is_some_and(|one| !one.title.is_empty());
        let all: Vec<usize> = (0..columns.len()).filter(named).collect();
        // The order of the answer is one of the orders, before the first column.
        let here = shown
            .sort
            .and_then(|sort| all.iter().position(|one| *one == sort));
        let here = here.map_or(0, |here| here + 1);
        let count = all.len() + 1;
        let there = if next { here + 1 } else { here + count - 1 } % count;
        let sort = there
            .checked_sub(1)
            .and_then(|there| all.get(there).copied());
        let title = sort
            .and_then(|sort| columns.get(sort))
            .map(|column| column.title);
        let message = match title {
            Some(title) => format!("in the order of {title} (r turns it round)"),
            None => "in the daemon's order".to_owned(),
        };
        self.with_spot(|spot| {
            spot.sort = sort;
            spot.is_reversed = false;
        });
        self.say(message, now);
    }

    fn copy(&mut self, now: Now) -> Option<Effect> {
        let shown = self.shown();
        match Model::row_under_cursor(&shown).and_then(|row| row.location.clone()) {
            Some(location) => {
                self.say(
                    format!("copied {location} (if the terminal allows it)"),
                    now,
                );
                Some(Effect::Copy(location))
            }
            None => {
                self.say("this row has no place in the sources to copy", now);
                None
            }
        }
    }

    fn toggle_pause(&mut self, now: Now) {
        if self.options.recording.is_some() {
            self.say(
                "a recording stands still; ← and → go through its moments",
                now,
            );
            return;
        }
        self.pause = match self.pause {
            Some(_) => None,
            None => Some(Pause {
                since: now,
                frozen: self.answers.clone(),
                at: None,
            }),
        };
    }

    /// The moments to which the arrow keys lead, oldest first.
    fn moments(&self) -> Vec<u64> {
        let mut moments = self.history.moments();
        if self.view().has_moments() {
            let known_from = self.known_from();
            let until = match &self.options.recording {
                Some(_) => self.ends_at(),
                None => moments
                    .first()
                    .copied()
                    .or(self.pause.as_ref().map(|pause| pause.since.unix_ns)),
            };
            if let (Some(from), Some(until)) = (known_from, until)
                && from < until
            {
                let passed = until - from;
                let back = (0..STEPS_BACK).map(|step| from + passed / STEPS_BACK * step);
                moments = back.chain(moments).collect();
            }
        }
        moments
    }

    fn known_from(&self) -> Option<u64> {
        let subject = self.subject()?;
        let processes = self.processes();
        let mut processes = processes.iter();
        let is_it =
            |one: &&&v1::Process| one.facts.as_ref().is_some_and(|facts| facts.pid == subject);
        processes.find(is_it)?.known_from_unix_ns
    }

    /// The end of a recording.
    fn ends_at(&self) -> Option<u64> {
        match self.answer(&Ask::Stats(self.subject()?))? {
            Answer::Stats(answer) => Some(answer.as_of),
            _ => None,
        }
    }

    /// Goes to an earlier moment, or to a later one.
    fn look(&mut self, later: bool, now: Now) {
        if self.pause.is_none() {
            self.say("space pauses; then ← looks back", now);
            return;
        }
        if self.options.recording.is_some() && !self.view().has_moments() {
            self.say(
                "owners (3) and stacks (4) can be asked about earlier moments of a recording",
                now,
            );
            return;
        }
        let moments = self.moments();
        let since = self.pause.as_ref().map(|pause| pause.since.unix_ns);
        let here = self.at();
        // A recording has no present: its end is later than every moment.
        let from = match (here, &self.options.recording) {
            (Some(at), _) => at,
            (None, Some(_)) => u64::MAX,
            (None, None) => since.unwrap_or(u64::MAX),
        };
        let there = match later {
            false => moments.iter().rev().find(|moment| **moment < from),
            true => moments.iter().find(|moment| **moment > from),
        };
        let is_past = |moment: &u64| since.is_none_or(|since| *moment <= since);
        match (there.copied(), later) {
            (None, false) => self.say("nothing earlier is known", now),
            (there, _) => {
                let there =
                    there.filter(|moment| self.options.recording.is_some() || is_past(moment));
                if let Some(pause) = &mut self.pause {
                    pause.at = there;
                }
            }
        }
    }

    // Questions and answers.

    /// What the page needs, and how often: milliseconds, `None` for once.
    fn wants(&self) -> Vec<(Ask, Option<u64>)> {
        let interval = self.options.interval_ms;
        let often = interval.max(OFTEN_MS);
        let slowly = interval.max(SLOWLY_MS);
        let mut wants = vec![(Ask::List, Some(interval))];
        let at = self.at();
        match self.place() {
            Place::View(View::Processes) => {
                for pid in self.pids_in_window() {
                    wants.push((Ask::Stats(pid), Some(interval)));
                    wants.push((Ask::Course(pid), Some(interval)));
                    wants.push((Ask::Verdict(pid), Some(slowly)));
                }
            }
            Place::View(View::Devices) => wants.push((Ask::Devices, Some(interval))),
            place => {
                if let Some(pid) = self.subject() {
                    self.wants_of(pid, &place, at, [interval, often, slowly], &mut wants);
                }
            }
        }
        if self.options.recording.is_some() {
            // The end of the recording is known from it.
            wants.extend(self.subject().map(|pid| (Ask::Stats(pid), None)));
            for (_, every) in &mut wants {
                *every = None;
            }
        }
        wants
    }

    fn wants_of(
        &self,
        pid: u32,
        place: &Place,
        at: Option<u64>,
        [interval, often, slowly]: [u64; 3],
        wants: &mut Vec<(Ask, Option<u64>)>,
    ) {
        // An earlier moment does not change.
        let unless_past = |every: u64| at.is_none().then_some(every);
        let any = self.has_libraries;
        match place {
            Place::View(View::Owners) => wants.push((Ask::Owners(pid, at), unless_past(slowly))),
            Place::Owner(key) => {
                let owners = Ask::Owners(pid, at);
                if let Some(Answer::Owners(answer)) = self.answer(&owners)
                    && let Some(why) = self.why(pid, answer, key)
                {
                    let is_past = matches!(why, Ask::Why(_, _, Some(_)));
                    wants.push((why, (!is_past).then_some(slowly)));
                }
                wants.push((owners, unless_past(slowly)));
            }
            Place::View(View::Stacks) => {
                wants.push((Ask::Lines { pid, any, at }, unless_past(often)));
            }
            Place::Stacks(_) => {
                // The line may be one of a library, which only the answer for any line has.
                let lines = [false, true].map(|any| Ask::Lines { pid, any, at });
                wants.extend(lines.map(|ask| (ask, unless_past(often))));
                wants.push((Ask::Stacks(pid, at), unless_past(often)));
            }
            Place::View(View::Leaks) => {
                wants.push((Ask::Leaks(pid), Some(often)));
                wants.push((Ask::Held(pid), Some(slowly)));
            }
            Place::Line(key) => {
                let leaks = Ask::Leaks(pid);
                if let Some(Answer::Leaks(answer)) = self.answer(&leaks)
                    && let Some(line) = line::find(answer, key)
                {
                    let addresses = line::examples(answer, line);
                    if !addresses.is_empty() {
                        wants.push((Ask::Holders(pid, addresses), Some(slowly)));
                    }
                }
                wants.push((leaks, Some(often)));
            }
            Place::View(View::Steps) => wants.push((Ask::Steps(pid), Some(interval))),
            Place::View(View::Processes | View::Devices) => {}
        }
    }

    /// The processes whose rows are in the window, or just outside of it.
    fn pids_in_window(&self) -> Vec<u32> {
        let shown = self.shown();
        let around = usize::from(self.size.1) + AROUND;
        let cursor = shown.cursor.unwrap_or_default();
        let begin = cursor.saturating_sub(around);
        let rows = shown.page.rows.iter().skip(begin).take(2 * around + 1);
        let mut pids: Vec<u32> = rows.filter_map(|row| row.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The questions that are due now. Whoever calls asks them, and tells what is heard.
    pub(super) fn due(&mut self, now: Now) -> Vec<Ask> {
        // While nobody answers, nothing is asked but whether somebody does.
        if matches!(self.link, Link::Gone { .. }) {
            return Vec::new();
        }
        let under_way = self
            .asked
            .values()
            .filter(|asked| asked.is_under_way)
            .count();
        let mut room = AT_ONCE.saturating_sub(under_way);
        let mut due = Vec::new();
        for (ask, every) in self.wants() {
            let is_due = match self.asked.get(&ask) {
                None => true,
                Some(asked) if asked.is_under_way => false,
                Some(asked) => {
                    every.is_some_and(|every| now.ms.saturating_sub(asked.at_ms) >= every)
                }
            };
            if is_due && room > 0 {
                room -= 1;
                let asked = Asked {
                    at_ms: now.ms,
                    is_under_way: true,
                };
                self.asked.insert(ask.clone(), asked);
                due.push(ask);
            }
        }
        due
    }

    /// A question could not be asked, and is due again.
    pub(super) fn not_asked(&mut self, ask: &Ask) {
        self.asked.remove(ask);
    }

    /// Something was heard from the daemon.
    pub(super) fn heard(&mut self, heard: Heard, now: Now) {
        match heard {
            Heard::Reached => {
                self.link = Link::Well;
                self.heard_ms = now.ms;
                // What was under way is lost.
                self.asked.retain(|_, asked| !asked.is_under_way);
            }
            Heard::Lost(ask, trouble) => {
                self.asked.remove(&ask);
                if let Link::Well = self.link {
                    self.link = Link::Gone {
                        since_ms: now.ms,
                        why: trouble.what,
                    };
                }
            }
            Heard::Answer(ask, answer) => {
                self.heard_ms = now.ms;
                if let Some(asked) = self.asked.get_mut(&ask) {
                    asked.is_under_way = false;
                }
                let answer = Arc::new(*answer);
                if let Some(pause) = &mut self.pause {
                    let frozen = pause.frozen.entry(ask.clone());
                    frozen.or_insert_with(|| Arc::clone(&answer));
                }
                let is_list = ask == Ask::List;
                self.answers.insert(ask, answer);
                if is_list {
                    self.forget(now);
                    if self.options.recording.is_none() {
                        self.history.push(Seen {
                            unix_ns: now.unix_ns,
                            answers: self.answers.clone(),
                        });
                    }
                }
            }
        }
        self.settle();
    }

    /// Forgets answers that no page has needed for a while.
    fn forget(&mut self, now: Now) {
        if self.options.recording.is_some() {
            return;
        }
        let wanted: Vec<Ask> = self.wants().into_iter().map(|(ask, _)| ask).collect();
        self.asked.retain(|ask, asked| {
            let is_old = now.ms.saturating_sub(asked.at_ms) > FORGOTTEN_AFTER_MS;
            asked.is_under_way || !is_old || wanted.contains(ask)
        });
        let asked = &self.asked;
        self.answers
            .retain(|ask, _| asked.contains_key(ask) || wanted.contains(ask));
    }
}

/// The question about a process's course that fills the widest window.
pub(super) fn course_question(pid: u32, interval_ms: u64) -> v1::FluctuationRequest {
    let interval_ns = interval_ms.saturating_mul(1_000_000);
    v1::FluctuationRequest {
        pid,
        window_ns: interval_ns.saturating_mul(u64::from(INTERVALS)).max(1),
        intervals: INTERVALS,
        ..v1::FluctuationRequest::default()
    }
}
