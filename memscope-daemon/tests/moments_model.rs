//! Questions about earlier moments, over random records of several processes in a journal that rotates. Each answer
//! is what a fold of all events says; everything else is refused. A loud process gives way to the quiet ones.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_daemon::courses::{Asked, Courses};
use memscope_daemon::replay::{
    Bounds, NotThere, ReplayError, Replayed, Until, replay, replay_until,
};
use memscope_ledger::course::{DeviceCourse, DeviceLevel, Level};
use memscope_ledger::event::*;
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome, encode};
use memscope_log::{ClockPair, Config, Folded, Journal, LeftJournal};
use memscope_proto::v1::{LeaksRequest, StatsRequest};
use proptest::prelude::*;
use std::path::Path;

const EPOCH: u64 = 5;
const UNIX_ZERO: u64 = 1_000_000_000_000_000_000;
/// How often events are of each process, as weights: one process is loud, one is quiet.
const SHARES: [u64; 3] = [1, 12, 150];

/// Random numbers that are the same in each run with the same seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) % below
    }

    /// Text that cannot be compressed much, so that it fills the journal.
    fn text(&mut self) -> String {
        (0..12_000)
            .map(|_| char::from(b'a' + self.next(26) as u8))
            .collect()
    }
}

/// A journal, the ledger folded from what was appended, and all events.
struct World {
    journal: Journal,
    decoder: Decoder,
    ledger: Ledger,
    events: Vec<Event>,
    noise: Noise,
    /// Live blocks of each process.
    live: [Vec<(u64, u64)>; 3],
    next_block: u64,
    /// The newest event at which each process was refused, and the oldest at which it was answered.
    refused: [u64; 3],
    answered: [u64; 3],
    /// What is kept of the courses over all questions.
    courses: Courses,
    budget: u64,
}

fn config() -> LedgerConfig {
    LedgerConfig {
        trace_entries: 100,
        ..LedgerConfig::default()
    }
}

fn sizes(total_bytes: u64) -> Config {
    let clock = ClockPair {
        boot_ns: 1,
        unix_ns: UNIX_ZERO + 1,
    };
    Config {
        segment_bytes: 256 << 10,
        total_bytes,
        ..Config::new(EPOCH, [7; 16], clock)
    }
}

impl World {
    fn new(dir: &Path, seed: u64, total_bytes: u64) -> World {
        let sizes = sizes(total_bytes);
        let mut ledger = Ledger::new(config());
        ledger.apply(&event(
            0,
            1,
            0,
            Body::Clock {
                unix_ns: UNIX_ZERO + 1,
            },
        ));
        World {
            journal: Journal::create(dir, sizes).unwrap(),
            decoder: Decoder::new(EPOCH),
            ledger,
            events: Vec::new(),
            noise: Noise(seed),
            live: Default::default(),
            next_block: 0,
            refused: [0; 3],
            answered: [u64::MAX; 3],
            // In every second case so little that courses have to give way to one another.
            courses: Courses::new(budget(seed)),
            budget: budget(seed),
        }
    }

    /// Notes whether a process is in the answer about a moment.
    fn note(&mut self, process: u32, number: u64, replayed: &Replayed) {
        let of = process as usize - 1;
        match replayed.not_there(40 + process) {
            Some(gone) => {
                let moment = UNIX_ZERO + number * 1_000_000;
                let is_later = gone.known_from_unix_ns.is_none_or(|from| from > moment);
                assert!(is_later, "it is refused although it is known");
                self.refused[of] = self.refused[of].max(number);
            }
            None => self.answered[of] = self.answered[of].min(number),
        }
    }

    /// Does what the keeper does: first the journal, then the ledger.
    fn append(&mut self, process: u32, body: Body) {
        let number = self.events.len() as u64 + 1;
        let record = encode(&event(number, number * 1_000_000, process, body), 0)
            .unwrap()
            .unwrap();
        let state = Folded {
            decoder: &self.decoder,
            ledger: &self.ledger,
        };
        self.journal.append(&record, 0, Some(state)).unwrap();
        let Outcome::Decoded(event) = self.decoder.decode(&record) else {
            panic!("a record of ours");
        };
        self.ledger.apply(&event);
        self.events.push(event);
    }

    /// What a daemon that is killed leaves on the disk, in another directory, and a daemon that goes on with it. With `torn` it was
    /// writing a batch just then.
    fn killed(&mut self, into: &Path, total_bytes: u64, torn: bool) {
        let left = self.journal.epoch_dir().to_path_buf();
        let epoch_dir = into.join(left.file_name().unwrap());
        std::fs::create_dir_all(&epoch_dir).unwrap();
        for entry in std::fs::read_dir(&left).unwrap() {
            let path = entry.unwrap().path();
            // The threads that write checkpoints and segments anew go on; a file may get its name meanwhile.
            let _ = std::fs::copy(&path, epoch_dir.join(path.file_name().unwrap()));
        }
        if torn {
            let segments = std::fs::read_dir(&epoch_dir).unwrap();
            let segments = segments.map(|entry| entry.unwrap().path());
            let newest =
                segments.filter(|path| path.extension().is_some_and(|ending| ending == "msj"));
            let newest = newest.max().unwrap();
            let mut bytes = std::fs::read(&newest).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            let end = used.next_multiple_of(8);
            bytes.resize(bytes.len().max(end + 32), 0);
            bytes.copy_within(128..160, end);
            std::fs::write(&newest, bytes).unwrap();
        }
        let journal = LeftJournal::open(into, sizes(total_bytes)).unwrap();
        let replayed = replay(journal.epoch_dir(), config()).unwrap();
        assert!(!replayed.begins_late && replayed.warnings.is_empty());
        assert_eq!(
            replayed.decoder.next_sequence(),
            self.events.len() as u64 + 1
        );
        let newest = Until::Event(self.events.len() as u64);
        let (end, naive) = (replayed.end, self.naive(newest));
        assert_eq!(told(&replayed.ledger, end, &[]), told(&naive, end, &[]));
        self.journal = journal.reopen(replayed.decoder.next_sequence()).unwrap();
        assert_eq!(self.journal.next_sequence(), self.events.len() as u64 + 1);
        (self.decoder, self.ledger) = (replayed.decoder, replayed.ledger);
    }

    fn attach(&mut self, process: u32) {
        let facts = ProcessFacts {
            pid: 40 + process,
            from_start: true,
            ..ProcessFacts::default()
        };
        self.append(process, Body::Attached(Box::new(facts)));
        let placed = Placement {
            pool_seen: true,
            ..Placement::default()
        };
        self.append(process, Body::Placed(Box::new(placed)));
    }

    fn step(&mut self) {
        let turn = self.noise.next(SHARES.iter().sum());
        let process = match turn {
            0 => 0,
            turn if turn <= SHARES[1] => 1,
            _ => 2,
        };
        let handle = process as u32 + 1;
        if self.noise.next(25) == 0 {
            let text = self.noise.text();
            // Another allocator would be another source of all numbers.
            let settings = Some(AllocatorSettings {
                text,
                ..AllocatorSettings::default()
            });
            let facts = AllocatorFacts {
                settings,
                ..AllocatorFacts::default()
            };
            return self.append(handle, Body::Allocator(Box::new(facts)));
        }
        self.report(process);
    }

    /// A block of a process comes or goes.
    fn report(&mut self, process: usize) {
        let live = &mut self.live[process];
        let goes = live.len() > 60 || (!live.is_empty() && self.noise.next(3) == 0);
        let (ptr, size) = if goes {
            let at = self.noise.next(live.len() as u64) as usize;
            let (ptr, size) = live.swap_remove(at);
            (ptr, -(size as i64))
        } else {
            self.next_block += 1;
            let size = 512 * (1 + self.noise.next(40));
            let ptr = 0x7f00_0000_0000 + (self.next_block << 20);
            live.push((ptr, size));
            (ptr, size as i64)
        };
        let device = device_of(ptr);
        let of_device = live.iter().filter(|block| device_of(block.0) == device);
        let report = PoolReport {
            device,
            ptr,
            size,
            total_allocated: of_device.map(|block| block.1).sum(),
            total_reserved: (1 << 30) + ((self.events.len() as u64 / 100) << 20),
        };
        self.append(process as u32 + 1, Body::Report(report));
    }

    /// The fold of all events up to a moment.
    fn naive(&self, until: Until) -> Ledger {
        let mut ledger = Ledger::new(config());
        ledger.apply(&event(
            0,
            1,
            0,
            Body::Clock {
                unix_ns: UNIX_ZERO + 1,
            },
        ));
        for event in &self.events {
            let is_over = match until {
                Until::Boot(ns) => event.time_ns > ns,
                Until::Unix(ns) => event.time_ns + UNIX_ZERO > ns,
                Until::Event(number) => event.id.sequence > number,
            };
            if is_over {
                break;
            }
            ledger.apply(event);
        }
        ledger
    }

    /// A random moment, in one of its three forms.
    fn moment(&mut self) -> (u64, Until) {
        let number = 1 + self.noise.next(self.events.len() as u64);
        let ns = number * 1_000_000 + self.noise.next(1_000_000);
        let until = match self.noise.next(3) {
            0 => Until::Boot(ns),
            1 => Until::Unix(UNIX_ZERO + ns),
            _ => Until::Event(number),
        };
        (number, until)
    }
}

/// What the courses may take a part of, in bytes.
fn budget(seed: u64) -> u64 {
    match seed % 2 {
        0 => 100 << 10,
        _ => 64 << 20,
    }
}

/// Blocks are on two devices in turn.
fn device_of(ptr: u64) -> i32 {
    ((ptr >> 20) & 1) as i32
}

fn event(sequence: u64, time_ns: u64, process: u32, body: Body) -> Event {
    Event {
        id: EventId {
            epoch: EPOCH,
            sequence,
        },
        time_ns,
        process: ProcessHandle(process),
        tid: 1,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

/// All answers about all processes that are there.
fn told(ledger: &Ledger, as_of: AsOf, left_out: &[NotThere]) -> Vec<String> {
    let mut processes = ledger.processes();
    processes.retain(|one| !left_out.iter().any(|gone| gone.process == one.handle));
    let mut told = vec![format!("{processes:?}")];
    for process in processes {
        let of = process.handle;
        told.push(format!(
            "{:?}",
            ledger.ask(&[of], as_of, &StatsRequest::default())
        ));
        told.push(format!("{:?}", ledger.snapshot(of, as_of)));
        told.push(format!(
            "{:?}",
            ledger.ask(&[of], as_of, &LeaksRequest::default())
        ));
    }
    told
}

fn says_that_it_is_damaged(ledger: &Ledger) -> bool {
    let codes = ["recording_damaged", "journal_begins_late"];
    ledger.processes().iter().all(|process| {
        let notes = ledger.coverage(process.handle).unwrap();
        notes.iter().any(|note| codes.contains(&note.code.as_str()))
    })
}

/// Looks at random windows of each process, and compares them with what a fold of all events says of every interval.
fn look_at_windows(world: &mut World, dir: &Path) {
    let newest = world.events.len() as u64;
    for process in (1..=3).map(ProcessHandle) {
        let plain = PlainCourse::new(world, process);
        for _ in 0..3 {
            let mut edge = || match world.noise.next(5) {
                0 => world.noise.next(newest * 1_000_000),
                _ => world.noise.next(newest) * 1_000_000,
            };
            let (one, other) = (edge(), edge());
            let asked = Asked {
                process,
                pid: 40 + process.0,
                window: (one.min(other), one.max(other)),
                intervals: 1 + world.noise.next(300),
                until_ns: newest * 1_000_000,
                last: newest,
            };
            let found = world.courses.find(dir, &config(), &asked, &Bounds::NONE);
            let Some(found) = found.unwrap() else {
                continue;
            };
            assert!(
                found.notes.iter().all(|note| note.code == "course_coarse"),
                "{:?}",
                found.notes
            );
            let has_coarse = !found.notes.is_empty();
            for course in &found.courses {
                let is_coarse = course.intervals.iter().any(|one| one.detail_ns != Some(0));
                assert!(has_coarse || !is_coarse);
                plain.check(world, &asked, course);
            }
            let seen = plain.devices(asked.window);
            let told = found.courses.iter().filter_map(|one| one.device);
            assert_eq!(told.collect::<Vec<_>>(), seen, "{asked:?}");
            assert!(world.courses.bytes() <= world.budget / 4);
        }
    }
}

/// What a process had after each of its events, by device.
struct PlainCourse {
    process: ProcessHandle,
    samples: Vec<(u64, DeviceLevel)>,
}

impl PlainCourse {
    fn new(world: &World, process: ProcessHandle) -> PlainCourse {
        let mut ledger = world.naive(Until::Event(0));
        let mut samples = Vec::new();
        for event in &world.events {
            ledger.apply(event);
            if event.process == process {
                samples.extend(ledger.levels(process).map(|level| (event.time_ns, level)));
            }
        }
        PlainCourse { process, samples }
    }

    /// The devices of which something was known by the end of a window.
    fn devices(&self, window: (u64, u64)) -> Vec<i32> {
        let by_then = self.samples.iter().filter(|(ns, _)| *ns <= window.1);
        let mut devices: Vec<i32> = by_then.filter_map(|(_, level)| level.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn check(&self, world: &World, asked: &Asked, told: &DeviceCourse) {
        let samples: Vec<_> = self
            .samples
            .iter()
            .filter(|(_, level)| level.device == told.device)
            .collect();
        for pair in told.intervals.windows(2) {
            let is_coarse = pair[0].detail_ns != Some(0);
            assert!(
                pair[0].to_boot_ns == pair[1].from_boot_ns || is_coarse,
                "{pair:?}"
            );
        }
        for interval in &told.intervals {
            let (from, to) = (interval.from_boot_ns, interval.to_boot_ns);
            let is_coarse = interval.detail_ns != Some(0);
            let is_last = to == asked.window.1.min(asked.until_ns) && !is_coarse;
            let begun = samples.partition_point(|(ns, _)| *ns < from);
            let ended = samples.partition_point(|(ns, _)| *ns < to || (is_last && *ns == to));
            let before = begun.checked_sub(1).map(|at| samples[at].1);
            let within = &samples[begun..ended];
            let mut levels: Vec<Level> =
                within.iter().filter_map(|(_, level)| level.level).collect();
            if is_coarse || within.first().is_none_or(|(ns, _)| *ns > from) {
                levels.extend(before.and_then(|level| level.level));
            }
            let all = |of: fn(&Level) -> u64| {
                let all = levels.iter().map(of);
                (all.clone().min().unwrap(), all.max().unwrap())
            };
            let allocated = (interval.min_allocated_bytes, interval.max_allocated_bytes);
            let reserved = (interval.min_reserved_bytes, interval.max_reserved_bytes);
            assert_eq!(
                allocated,
                all(|level| level.allocated),
                "{interval:?} {asked:?}"
            );
            assert_eq!(
                reserved,
                all(|level| level.reserved),
                "{interval:?} {asked:?}"
            );
            let last = ended.checked_sub(1).map(|at| samples[at].1).unwrap();
            let counted = |of: fn(&DeviceLevel) -> u64| of(&last) - before.as_ref().map_or(0, of);
            assert_eq!(
                interval.allocs,
                counted(|level| level.allocs),
                "{interval:?}"
            );
            assert_eq!(interval.frees, counted(|level| level.frees), "{interval:?}");
            if !is_coarse {
                assert_eq!(
                    interval.last_allocated_bytes,
                    Some(last.level.unwrap().allocated)
                );
                assert_eq!(
                    interval.last_reserved_bytes,
                    Some(last.level.unwrap().reserved)
                );
            }
        }
        // What `stats` says of the window's last moment.
        let Some(end) = told.intervals.last().filter(|one| one.detail_ns == Some(0)) else {
            return;
        };
        let ledger = world.naive(Until::Boot(end.to_boot_ns));
        let stats = ledger.ask(&[self.process], AsOf::default(), &StatsRequest::default());
        let row = stats
            .unwrap()
            .devices
            .into_iter()
            .find(|row| row.device == told.device)
            .unwrap();
        assert_eq!(row.allocated_bytes, end.last_allocated_bytes);
        assert_eq!(row.reserved_bytes, end.last_reserved_bytes);
    }
}

/// Asks about random moments. Returns the numbers of the events that were refused, and of those that were answered.
fn look_back(world: &mut World, dir: &Path, damaged: bool) -> (Vec<u64>, Vec<u64>) {
    let (mut refused, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let (number, until) = world.moment();
        match replay_until(dir, config(), until, None) {
            Ok(replayed) => {
                answered.push(number);
                // From where on a process is known cannot be told once a file is damaged.
                for process in (1..=3).filter(|_| !damaged) {
                    world.note(process, number, &replayed);
                }
                let Replayed {
                    ledger,
                    end,
                    left_out,
                    ..
                } = replayed;
                let naive = world.naive(until);
                let is_right = told(&ledger, end, &left_out) == told(&naive, end, &left_out);
                for process in (1..=3).filter(|_| !damaged) {
                    let pid = Some(40 + process);
                    let alone = replay_until(dir, config(), until, pid).unwrap();
                    let others = [1, 2, 3].map(ProcessHandle);
                    let others: Vec<NotThere> = others
                        .into_iter()
                        .filter(|one| *one != ProcessHandle(process))
                        .map(|process| NotThere {
                            process,
                            pid: 0,
                            known_from_unix_ns: None,
                        })
                        .chain(alone.left_out.iter().copied())
                        .collect();
                    assert_eq!(alone.end, end);
                    let told = |ledger| told(ledger, end, &others);
                    assert_eq!(told(&alone.ledger), told(&naive), "{until:?} of {pid:?}");
                }
                assert!(is_right || damaged, "{until:?} is not as it was");
                assert!(
                    is_right || says_that_it_is_damaged(&ledger),
                    "{until:?} is not as it was, and nothing says so"
                );
            }
            Err(ReplayError::TooEarly { .. }) => {
                refused.push(number);
                for process in 0..3 {
                    world.refused[process] = world.refused[process].max(number);
                }
            }
            Err(error) => assert!(damaged, "{error}"),
        }
    }
    (refused, answered)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_moment_is_as_it_was_or_is_refused(
        seed: u64,
        steps in 200usize..6_000,
        harm in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(dir.path(), seed, 1 << 20);
        let epoch_dir = world.journal.epoch_dir().to_path_buf();
        for process in 1..=3 {
            world.attach(process);
        }
        for _ in 0..steps {
            world.step();
        }
        // Ask while the journal is being written.
        look_at_windows(&mut world, &epoch_dir);
        let (refused, answered) = look_back(&mut world, &epoch_dir, false);
        // Only the oldest moments are refused.
        prop_assert!(refused.iter().max() <= answered.iter().min() || answered.is_empty());
        let newest = world.events.len() as u64;
        prop_assert!(replay_until(&epoch_dir, config(), Until::Event(newest), None).is_ok());

        // An export of the journal gives the same, and so does what the next run finds.
        let export = dir.path().join("export.mscope");
        memscope_log::Recording::open(&epoch_dir).unwrap().export(&export).unwrap();
        // How much of the past is left depends on how busy the machine is; that the oldest part goes is for the test of a loud process.
        world.journal.settle().unwrap();
        look_back(&mut world, &export, false);
        look_at_windows(&mut world, &export);
        look_at_windows(&mut world, &epoch_dir);
        for _ in 0..100 {
            world.step();
        }
        look_at_windows(&mut world, &epoch_dir);
        (world.refused, world.answered) = ([0; 3], [u64::MAX; 3]);
        look_back(&mut world, &epoch_dir, false);
        for (refused, answered) in world.refused.iter().zip(world.answered) {
            prop_assert!(*refused < answered, "{:?} {:?}", world.refused, world.answered);
        }

        // Change one byte somewhere.
        let mut files: Vec<_> = std::fs::read_dir(&epoch_dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let file = &files[harm.0.index(files.len())];
        let mut bytes = std::fs::read(file).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        bytes[harm.1.index(used)] ^= harm.2;
        std::fs::write(file, &bytes).unwrap();
        look_back(&mut world, &epoch_dir, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_journal_that_was_left_is_gone_on_with(
        seed: u64,
        kills in prop::collection::vec((1usize..1_500, any::<bool>()), 1..5),
        steps in 1usize..1_500,
    ) {
        const BYTES: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::new(&dir.path().join("first"), seed, BYTES);
        for process in 1..=3 {
            world.attach(process);
        }
        for (number, (steps, torn)) in kills.into_iter().enumerate() {
            for _ in 0..steps {
                world.step();
            }
            world.killed(&dir.path().join(number.to_string()), BYTES, torn);
            let epoch_dir = world.journal.epoch_dir().to_path_buf();
            look_at_windows(&mut world, &epoch_dir);
        }
        for _ in 0..steps {
            world.step();
        }
        let epoch_dir = world.journal.epoch_dir().to_path_buf();
        look_back(&mut world, &epoch_dir, false);
        let newest = world.events.len() as u64;
        prop_assert!(replay_until(&epoch_dir, config(), Until::Event(newest), None).is_ok());
        world.journal.settle().unwrap();
        prop_assert_eq!(world.journal.unshared(), None);
        look_back(&mut world, &epoch_dir, false);
        let warnings = replay(&epoch_dir, config()).unwrap().warnings;
        prop_assert!(warnings.is_empty(), "{:?}", warnings);
        let taken: u64 = std::fs::read_dir(&epoch_dir)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        prop_assert!(taken <= BYTES + BYTES / 2, "{}", taken);
    }
}

/// The number of the oldest event at which a process can be asked about.
fn known_from(world: &World, dir: &Path, process: u32) -> u64 {
    let is_known = |number: &u64| {
        let replayed = replay_until(dir, config(), Until::Event(*number), Some(40 + process));
        replayed.is_ok_and(|replayed| replayed.not_there(40 + process).is_none())
    };
    let newest = world.events.len() as u64;
    let mut known = newest;
    let mut unknown = 0;
    while unknown + 1 < known {
        let middle = unknown.midpoint(known);
        if is_known(&middle) {
            known = middle;
        } else {
            unknown = middle;
        }
    }
    known
}

/// Until the checkpoint of a segment has its name, what is in the segment is read with the segment before it.
#[test]
fn what_a_new_segment_has_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    // With this number the courses have room enough.
    let mut world = World::new(dir.path(), 1, 4 << 20);
    let epoch_dir = world.journal.epoch_dir().to_path_buf();
    let segments = || {
        let files = std::fs::read_dir(&epoch_dir).unwrap();
        let paths = files.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|ending| ending == "msj"))
            .count()
    };
    world.attach(1);
    // The checkpoint gets its name when the journal is used the next time.
    while segments() < 2 {
        world.report(0);
    }
    let newest = world.events.len() as u64;
    let asked = Asked {
        process: ProcessHandle(1),
        pid: 41,
        window: (0, newest * 1_000_000),
        intervals: 20,
        until_ns: newest * 1_000_000,
        last: newest,
    };
    let plain = PlainCourse::new(&world, asked.process);
    let look = |world: &World| {
        let found = world
            .courses
            .find(&epoch_dir, &config(), &asked, &Bounds::NONE);
        let found = found.unwrap().unwrap();
        assert_eq!(found.courses.len(), 2);
        for course in &found.courses {
            plain.check(world, &asked, course);
        }
    };
    look(&world);
    world.journal.settle().unwrap();
    look(&world);
}

#[test]
fn a_loud_process_does_not_push_out_a_quiet_ones_past() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 3, 4 << 20);
    for process in 1..=3 {
        world.attach(process);
    }
    for number in 0..20_000 {
        world.step();
        if number % 100 == 0 {
            world.journal.settle().unwrap();
        }
    }
    world.journal.settle().unwrap();
    assert_eq!(world.journal.unshared(), None);
    let epoch_dir = world.journal.epoch_dir().to_path_buf();
    let newest = world.events.len() as u64;
    let pasts = [1, 2, 3].map(|process| newest - known_from(&world, &epoch_dir, process));
    // The loud process makes 150 of 163 records, the second one 12. Each keeps at least what fits into a third of the
    // journal.
    assert!(pasts[1] > 3 * pasts[2], "{pasts:?}");
    assert!(pasts[0] > 3 * pasts[2], "{pasts:?}");
    // A recording of the journal says the same.
    let export = dir.path().join("export.mscope");
    let recording = memscope_log::Recording::open(&epoch_dir).unwrap();
    recording.export(&export).unwrap();
    for process in 1..=3 {
        let from = |path| known_from(&world, path, process);
        assert_eq!(from(&export), from(&epoch_dir));
    }
    let whole = replay(&export, config()).unwrap();
    let naive = world.naive(Until::Event(newest));
    assert_eq!(
        told(&whole.ledger, whole.end, &[]),
        told(&naive, whole.end, &[])
    );
}
