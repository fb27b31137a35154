//! Snapshots of a made-up allocator, by its trace or a part of it: at the end the ledger has the segments and blocks of the snapshot, whatever
//! of the trace is there.
#![allow(clippy::unwrap_used)]

use memscope_ledger::event::{Body, Event, ProcessHandle, TraceAction};
use memscope_ledger::report::{AsOf, BlockState, FrameKind, SnapshotReport};
use memscope_ledger::{Answer, Ledger, LedgerConfig};
use memscope_pickle::events::{About, Counts, import};
use memscope_pickle::{Doubts, LeftOut, NotASnapshot, Pickle, doubts};
use memscope_proto::v1::StatsRequest;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A value as Python has it.
#[derive(Clone, Debug)]
enum Python {
    Number(u64),
    Text(&'static str),
    Bool(bool),
    List(Vec<Python>),
    Dict(Vec<(&'static str, Python)>),
}
use Python::{Bool, Dict, List, Number, Text};

/// Writes a value as `pickle.dump` does with protocol 2, but for its memo.
fn write(value: &Python, into: &mut Vec<u8>) {
    let text = |text: &str, into: &mut Vec<u8>| {
        into.push(b'X');
        into.extend((text.len() as u32).to_le_bytes());
        into.extend(text.as_bytes());
    };
    match value {
        Number(number) => {
            into.extend([0x8a, 9]);
            into.extend(number.to_le_bytes());
            into.push(0);
        }
        Text(word) => text(word, into),
        Bool(is) => into.push(if *is { 0x88 } else { 0x89 }),
        List(all) => {
            into.extend(b"](");
            all.iter().for_each(|one| write(one, into));
            into.push(b'e');
        }
        Dict(all) => {
            into.extend(b"}(");
            for (key, one) in all {
                text(key, into);
                write(one, into);
            }
            into.push(b'u');
        }
    }
}

fn pickled(value: &Python) -> Vec<u8> {
    let mut bytes = vec![0x80, 2];
    write(value, &mut bytes);
    bytes.push(b'.');
    bytes
}

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    requested: u64,
    pending: bool,
    line: u64,
}

struct Segment {
    size: u64,
    large: bool,
}

/// An allocator by PyTorch's rules, for one device.
#[derive(Default)]
struct Allocator {
    segments: BTreeMap<u64, Segment>,
    blocks: BTreeMap<u64, Block>,
    trace: Vec<Python>,
    /// Allocated and reserved bytes after each entry of the trace.
    levels: Vec<(u64, u64)>,
    now_us: u64,
    /// What it adds to a request before it rounds it: 32 bytes in torch_npu.
    padding: u64,
    /// Where its addresses begin: those of a process's devices are all different.
    begins: u64,
    next: u64,
}

impl Allocator {
    fn tell(&mut self, action: &'static str, addr: u64, size: u64, line: u64) {
        self.now_us += 3;
        self.trace.push(Dict(vec![
            ("action", Text(action)),
            ("addr", Number(addr)),
            ("size", Number(size)),
            ("stream", Number(0)),
            ("time_us", Number(1_700_000_000_000_000 + self.now_us)),
            ("frames", frames(line)),
        ]));
        let live = self.blocks.values().filter(|block| !block.pending);
        let reserved = self.segments.values().map(|segment| segment.size);
        self.levels
            .push((live.map(|block| block.size).sum(), reserved.sum()));
    }

    /// Free rooms of a segment, by address.
    fn rooms(&self, at: u64, segment: &Segment) -> Vec<(u64, u64)> {
        let mut rooms = Vec::new();
        let mut from = at;
        let end = at + segment.size;
        for (addr, block) in self.blocks.range(at..end) {
            if *addr > from {
                rooms.push((from, addr - from));
            }
            from = addr + block.size;
        }
        if end > from {
            rooms.push((from, end - from));
        }
        rooms
    }

    fn alloc(&mut self, requested: u64, line: u64) {
        let rounded = (requested + self.padding).next_multiple_of(512);
        let large = rounded > 1 << 20;
        let fitting = self
            .segments
            .iter()
            .filter(|(_, segment)| segment.large == large);
        let rooms = fitting.flat_map(|(at, segment)| self.rooms(*at, segment));
        let best = rooms
            .filter(|(_, size)| *size >= rounded)
            .min_by_key(|(at, size)| (*size, *at));
        let (at, room) = best.unwrap_or_else(|| {
            let size = match large {
                false => 2 << 20,
                true if rounded < 10 << 20 => 20 << 20,
                true => rounded.next_multiple_of(2 << 20),
            };
            self.next += 1;
            let at = self.begins + (self.next << 30);
            self.segments.insert(at, Segment { size, large });
            self.tell("segment_alloc", at, size, line);
            (at, size)
        });
        let left = room - rounded;
        let is_cut = if large { left > 1 << 20 } else { left >= 512 };
        let block = Block {
            size: if is_cut { rounded } else { room },
            requested,
            pending: false,
            line,
        };
        self.blocks.insert(at, block);
        self.tell("alloc", at, requested, line);
    }

    fn free(&mut self, number: usize, later: bool) {
        let live = self.blocks.iter().filter(|(_, block)| !block.pending);
        let all: Vec<(u64, u64)> = live.map(|(at, block)| (*at, block.requested)).collect();
        let Some((at, requested)) = all.get(number % all.len().max(1)).copied() else {
            return;
        };
        self.blocks.get_mut(&at).unwrap().pending = true;
        self.tell("free_requested", at, requested, 1);
        if !later {
            self.complete(at);
        }
    }

    fn complete(&mut self, at: u64) {
        let gone = self.blocks.remove(&at).unwrap();
        self.tell("free_completed", at, gone.requested, 2);
    }

    fn empty(&mut self) {
        let free = |(at, segment): (&u64, &Segment)| {
            self.blocks
                .range(*at..at + segment.size)
                .next()
                .is_none()
                .then_some(*at)
        };
        let gone: Vec<u64> = self.segments.iter().filter_map(free).collect();
        for at in gone {
            let segment = self.segments.remove(&at).unwrap();
            self.tell("segment_free", at, segment.size, 3);
        }
    }

    fn segments(&self, device: u64) -> Vec<Python> {
        let segment = |(at, segment): (&u64, &Segment)| {
            let held = self
                .blocks
                .range(*at..at + segment.size)
                .map(|(addr, block)| {
                    let state = if block.pending {
                        "active_pending_free"
                    } else {
                        "active_allocated"
                    };
                    (
                        *addr,
                        block.size,
                        state,
                        block.requested,
                        frames(block.line),
                    )
                });
            let free = self.rooms(*at, segment).into_iter();
            let free = free.map(|(addr, size)| (addr, size, "inactive", 0, List(Vec::new())));
            let mut all: Vec<_> = held.chain(free).collect();
            all.sort_by_key(|one| one.0);
            let block = |(addr, size, state, requested, frames)| {
                Dict(vec![
                    ("address", Number(addr)),
                    ("size", Number(size)),
                    ("requested_size", Number(requested)),
                    ("state", Text(state)),
                    ("frames", frames),
                ])
            };
            Dict(vec![
                ("device", Number(device)),
                ("address", Number(*at)),
                ("total_size", Number(segment.size)),
                ("stream", Number(0)),
                (
                    "segment_type",
                    Text(if segment.large { "large" } else { "small" }),
                ),
                ("is_expandable", Bool(false)),
                ("blocks", List(all.into_iter().map(block).collect())),
            ])
        };
        self.segments.iter().map(segment).collect()
    }

    /// The newest entries of the trace, as a ring of so many has them.
    fn trace(&self, most: usize) -> Python {
        List(self.trace[self.trace.len().saturating_sub(most)..].to_vec())
    }
}

fn frames(line: u64) -> Python {
    let frame = |name, line| {
        Dict(vec![
            ("filename", Text("train.py")),
            ("line", Number(line)),
            ("name", Text(name)),
        ])
    };
    List(vec![frame("step", line + 1), frame("<module>", 9)])
}

struct Told {
    ledger: Ledger,
    events: Vec<Event>,
    counts: Counts,
}

fn told(bytes: &[u8]) -> Result<Told, NotASnapshot> {
    let pickle = Pickle::read(bytes).map_err(|_| ()).unwrap();
    let about = About {
        name: "made-up.pickle",
        written_ns: 5_000_000_000,
    };
    let mut ledger = Ledger::new(LedgerConfig::default());
    let mut events = Vec::new();
    let mut take = |event: Event| {
        ledger.apply(&event);
        events.push(event);
        Ok::<(), NotASnapshot>(())
    };
    let counts = import(&pickle, &about, &mut take)?;
    Ok(Told {
        ledger,
        events,
        counts,
    })
}

impl Told {
    fn codes(&self) -> Vec<String> {
        let notes = self.ledger.coverage(ProcessHandle(1)).unwrap();
        notes.into_iter().map(|note| note.code).collect()
    }

    fn snapshot(&self) -> SnapshotReport {
        self.ledger
            .snapshot(ProcessHandle(1), AsOf::default())
            .unwrap()
    }
}

/// Segments and blocks by device: address, size, requested size, state and line of the stack's innermost frame.
type Picture = BTreeMap<(i32, u64), (u64, Vec<(u64, u64, u64, BlockState, u32)>)>;

fn picture(told: &Told) -> Picture {
    let report = told.snapshot();
    let mut all = Picture::new();
    for segment in &report.segments {
        let blocks = segment
            .blocks
            .iter()
            .filter(|block| block.state != BlockState::Inactive);
        let block = |block: &memscope_ledger::report::SnapshotBlock| {
            let frames = report.stacks.get(block.stack as usize);
            let line = frames
                .and_then(|stack| stack.frames.first())
                .map_or(0, |frame| frame.line);
            (
                block.addr,
                block.size,
                block.requested.unwrap_or(0),
                block.state,
                line,
            )
        };
        let entry = (segment.size, blocks.map(block).collect());
        all.insert((segment.device, segment.addr), entry);
    }
    all
}

/// The same from the made-up allocators.
fn real(allocators: &[Allocator]) -> Picture {
    let mut all = Picture::new();
    for (device, allocator) in (0i32..).zip(allocators) {
        for (at, segment) in &allocator.segments {
            let blocks = allocator.blocks.range(*at..at + segment.size);
            let block = |(addr, block): (&u64, &Block)| {
                let state = match block.pending {
                    true => BlockState::PendingFree,
                    false => BlockState::Active,
                };
                (
                    *addr,
                    block.size,
                    block.requested,
                    state,
                    block.line as u32 + 1,
                )
            };
            all.insert((device, *at), (segment.size, blocks.map(block).collect()));
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, u64),
    Free(usize, bool),
    Complete(usize),
    Empty,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let size = prop_oneof![
        1..5_000u64,
        (1..20u64).prop_map(|size| size * 512),
        1..3_000_000u64,
        1..40_000_000u64,
    ];
    let step = prop_oneof![
        6 => (size, 1..40u64).prop_map(|(size, line)| Step::Alloc(size, line)),
        5 => (0..1000usize, prop::bool::weighted(0.2)).prop_map(|(number, later)| Step::Free(number, later)),
        2 => (0..1000usize).prop_map(Step::Complete),
        1 => Just(Step::Empty),
    ];
    prop::collection::vec((0..3usize, step), 0..400)
}

fn run(steps: &[(usize, Step)]) -> [Allocator; 3] {
    run_padded(steps, 0)
}

fn run_padded(steps: &[(usize, Step)], padding: u64) -> [Allocator; 3] {
    let mut all = [0x7e00_0000_0000, 0x7f00_0000_0000, 0x7f80_0000_0000].map(|begins| Allocator {
        begins,
        padding,
        ..Allocator::default()
    });
    for (device, step) in steps {
        let one = &mut all[*device];
        match *step {
            Step::Alloc(size, line) => one.alloc(size, line),
            Step::Free(number, later) => one.free(number, later),
            Step::Complete(number) => {
                let pending = one.blocks.iter().filter(|(_, block)| block.pending);
                let all: Vec<u64> = pending.map(|(at, _)| *at).collect();
                if let Some(at) = all.get(number % all.len().max(1)) {
                    one.complete(*at);
                }
            }
            Step::Empty => one.empty(),
        }
    }
    all
}

/// What is judged of a snapshot's traces.
fn judged(value: &Python) -> Vec<Doubts> {
    let pickle = Pickle::read(&pickled(value)[..]).map_err(|_| ()).unwrap();
    let all = doubts(&pickle).unwrap().into_iter();
    all.map(|(_, doubts)| doubts).collect()
}

fn snapshot(all: &[Allocator], most: usize) -> Python {
    let segments = (0u64..)
        .zip(all)
        .flat_map(|(device, one)| one.segments(device));
    Dict(vec![
        ("segments", List(segments.collect())),
        (
            "device_traces",
            List(all.iter().map(|one| one.trace(most)).collect()),
        ),
    ])
}

/// The same pickle without the times of those entries of its traces of which `goes` says so by their number.
fn without_times(value: &Python, goes: &dyn Fn(usize) -> bool) -> Python {
    let mut value = value.clone();
    let Dict(all) = &mut value else {
        return value;
    };
    let traces = all.iter_mut().find(|(key, _)| *key == "device_traces");
    let Some((_, List(traces))) = traces else {
        return value;
    };
    for trace in traces {
        let List(entries) = trace else {
            continue;
        };
        for (number, entry) in entries.iter_mut().enumerate() {
            if let Dict(keys) = entry
                && goes(number)
            {
                keys.retain(|(key, _)| *key != "time_us");
            }
        }
    }
    value
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// torch_npu writes no times; other files may lack them in part.
    #[test]
    fn without_times_the_end_the_counts_and_the_peaks_are_the_same(
        steps in steps(),
        most in prop_oneof![Just(usize::MAX), 0..300usize],
        lacking in prop_oneof![Just((0, usize::MAX)), (0..20usize, 1..300usize)],
    ) {
        let all = run(&steps);
        let whole = snapshot(&all, most);
        let bare = without_times(&whole, &|number| number >= lacking.0 && number < lacking.1);
        let [whole, bare] = [whole, bare].map(|one| told(&pickled(&one)).unwrap());
        prop_assert_eq!(picture(&bare), real(&all));
        let stats = |told: &Told| {
            let stats = told.ledger.ask(&[ProcessHandle(1)], AsOf::default(), &StatsRequest::default());
            let rows = stats.unwrap().devices.into_iter();
            let rows = rows.map(|row| (
                row.device, row.allocated_bytes, row.reserved_bytes, row.peak_allocated_bytes, row.peak_reserved_bytes,
                (row.live_blocks, row.alloc_count, row.free_count, row.requested_bytes, row.segments),
            ));
            rows.collect::<Vec<_>>()
        };
        prop_assert_eq!(stats(&bare), stats(&whole));
        prop_assert!(bare.events.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
        let codes = bare.codes();
        prop_assert!(!codes.iter().any(|code| code == "import_times_moved"), "{:?}", codes);
        let longest = all.iter().map(|one| one.trace.len().min(most)).max().unwrap_or(0);
        let lacks = longest.min(lacking.1) > lacking.0;
        prop_assert_eq!(codes.iter().any(|code| code == "import_times_unknown"), lacks);
    }

    #[test]
    fn the_end_is_what_the_snapshot_says_whatever_of_the_trace_is_there(
        steps in steps(),
        most in prop_oneof![Just(usize::MAX), 0..300usize],
    ) {
        let all = run(&steps);
        let told = told(&pickled(&snapshot(&all, most))).unwrap();
        prop_assert_eq!(picture(&told), real(&all));
        let judged = judged(&snapshot(&all, most));
        prop_assert!(judged.iter().all(Doubts::is_reserved_known), "{:?}", judged);
        let codes = told.codes();
        prop_assert!(!codes.iter().any(|code| code == "import_contradictions"), "{:?}", codes);
        prop_assert!(!codes.iter().any(|code| code.starts_with("reading_")), "{:?}", codes);
        let entries: usize = all.iter().map(|one| one.trace.len().min(most)).sum();
        prop_assert_eq!(told.counts.entries, entries as u64);
        let stats = told.ledger.ask(&[ProcessHandle(1)], AsOf::default(), &StatsRequest::default());
        for row in stats.unwrap().devices {
            let one = &all[row.device.unwrap() as usize];
            let live = || one.blocks.values().filter(|block| !block.pending);
            prop_assert_eq!(row.allocated_bytes, Some(live().map(|block| block.size).sum()));
            let reserved: u64 = one.segments.values().map(|segment| segment.size).sum();
            prop_assert_eq!(row.reserved_bytes, Some(reserved));
        }
        // In between the times never go back.
        prop_assert!(told.events.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
    }

    #[test]
    fn at_each_entry_of_a_whole_trace_the_totals_are_the_allocators(
        steps in steps(),
        padding in prop_oneof![Just(0), Just(32)],
    ) {
        let all = run_padded(&steps, padding);
        let told = told(&pickled(&snapshot(&all, usize::MAX))).unwrap();
        // Where no block that is left tells how the allocator rounds, nothing is too large.
        let is_known = !told.codes().contains(&"import_padding_unknown".to_owned());
        let agrees = |ours: u64, theirs: u64| if is_known { ours == theirs } else { ours <= theirs };
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut done = [0; 3];
        for event in &told.events {
            ledger.apply(event);
            let Body::Trace(trace) = event.body else {
                continue;
            };
            let device = trace.device.unwrap();
            let done = &mut done[device as usize];
            let (allocated, reserved) = all[device as usize].levels[*done];
            *done += 1;
            let mut levels = ledger.levels(ProcessHandle(1));
            let level = levels.find(|level| level.device == Some(device)).unwrap().level.unwrap();
            prop_assert!(agrees(level.allocated, allocated), "{} {}", level.allocated, allocated);
            prop_assert_eq!(level.reserved, reserved);
        }
        let stats = told.ledger.ask(&[ProcessHandle(1)], AsOf::default(), &StatsRequest::default());
        for row in stats.unwrap().devices {
            let levels = &all[row.device.unwrap() as usize].levels;
            let peak = levels.iter().map(|level| level.0).max();
            prop_assert!(agrees(row.peak_allocated_bytes.unwrap(), peak.unwrap()), "{:?} {:?}", row, peak);
        }
    }

    #[test]
    fn damaged_snapshots_end_in_an_answer_or_an_error(
        steps in steps(),
        cut in any::<prop::sample::Index>(),
        harm in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let whole = pickled(&snapshot(&run(&steps), 200));
        let mut harmed = whole.clone();
        harmed[harm.0.index(whole.len())] = harm.1;
        for bytes in [&whole[..cut.index(whole.len())], &harmed] {
            let Ok(pickle) = Pickle::read(bytes) else {
                continue;
            };
            let about = About { name: "x", written_ns: 1 };
            let mut ledger = Ledger::new(LedgerConfig::default());
            let mut take = |event: Event| {
                ledger.apply(&event);
                Ok::<(), NotASnapshot>(())
            };
            let _ = import(&pickle, &about, &mut take);
        }
    }
}

/// The 512 bytes of a tensor are a block of 1024 in torch_npu, of which one is left to tell.
#[test]
fn blocks_that_went_are_as_large_as_torch_npus_rules_make_them() {
    let mut one = Allocator {
        padding: 32,
        ..Allocator::default()
    };
    for _ in 0..1000 {
        one.alloc(512, 7);
    }
    let peak = |told: &Told| {
        let stats = StatsRequest::default();
        let stats = told
            .ledger
            .ask(&[ProcessHandle(1)], AsOf::default(), &stats);
        stats.unwrap().devices[0].peak_allocated_bytes
    };
    for left in [1, 0] {
        while one.blocks.len() > left {
            one.free(0, false);
        }
        let told = told(&pickled(&snapshot(std::slice::from_ref(&one), usize::MAX))).unwrap();
        let unknown = told.codes().contains(&"import_padding_unknown".to_owned());
        match left {
            0 => assert_eq!((peak(&told), unknown), (Some(512_000), true)),
            _ => assert_eq!((peak(&told), unknown), (Some(1_024_000), false)),
        }
    }
}

/// At level `blocks` memscope's own trace has the sizes of the blocks, which are not rounded again.
#[test]
fn sizes_that_are_rounded_already_stay() {
    let mut one = Allocator::default();
    for _ in 0..3 {
        one.alloc(1024, 7);
    }
    one.free(0, false);
    for block in one.blocks.values_mut() {
        block.requested = 512;
    }
    let note = vec![("code", Text("level_blocks")), ("text", Text("rounded"))];
    let Dict(mut all) = snapshot(std::slice::from_ref(&one), usize::MAX) else {
        return;
    };
    let memscope = vec![("coverage", List(vec![Dict(note)]))];
    all.push(("memscope", Dict(memscope)));
    let told = told(&pickled(&Dict(all))).unwrap();
    let stats = StatsRequest::default();
    let stats = told
        .ledger
        .ask(&[ProcessHandle(1)], AsOf::default(), &stats);
    let row = stats.unwrap().devices.remove(0);
    assert_eq!(row.peak_allocated_bytes, Some(3 * 1024));
    assert_eq!(row.allocated_bytes, Some(2 * 1024));
    assert_eq!(row.requested_bytes, Some(2 * 512));
}

#[test]
fn a_snapshot_without_a_trace_is_of_the_moment_of_its_file() {
    let mut one = Allocator::default();
    one.alloc(3_000_000, 7);
    one.alloc(900, 8);
    let told = told(&pickled(&List(one.segments(0)))).unwrap();
    assert_eq!(told.counts.begun_ns, 4_999_999_999);
    assert!(told.codes().contains(&"import_time_of_file".to_owned()));
    assert_eq!(picture(&told), real(&[one]));
}

/// What memscope wrote beside a snapshot: a file without a trace is of the moment that it says, and what limited the numbers limits them still.
#[test]
fn a_snapshot_of_memscopes_keeps_its_moment_and_what_limits_it() {
    const AS_OF: u64 = 1_700_000_000_000_000_000;
    let mut one = Allocator::default();
    one.alloc(3_000_000, 7);
    let note = |code, text| Dict(vec![("code", Text(code)), ("text", Text(text))]);
    let written = |trace| {
        let coverage = List(vec![
            note("baseline_not_read", "what was there before was not read"),
            note("imported_snapshot", ""),
        ]);
        let memscope = vec![("as_of_unix_ns", Number(AS_OF)), ("coverage", coverage)];
        let all = vec![
            ("segments", List(one.segments(0))),
            ("device_traces", trace),
            ("memscope", Dict(memscope)),
        ];
        told(&pickled(&Dict(all))).unwrap()
    };
    let ended_ns = |told: &Told| {
        let ended = told.events.last().unwrap();
        assert!(matches!(ended.body, Body::Detached), "{ended:?}");
        ended.time_ns
    };
    let bare = written(List(Vec::new()));
    assert_eq!((bare.counts.begun_ns, ended_ns(&bare)), (AS_OF - 1, AS_OF));
    let codes = bare.codes();
    assert!(
        !codes.contains(&"import_time_of_file".to_owned()),
        "{codes:?}"
    );
    assert!(codes.contains(&"import_no_trace".to_owned()), "{codes:?}");
    assert!(codes.contains(&"imported_snapshot".to_owned()), "{codes:?}");
    let coverage = bare.snapshot().coverage;
    let notes = memscope_ledger::inexact(Answer::Picture, &coverage);
    let why: Vec<&str> = notes.iter().map(|note| note.code.as_str()).collect();
    assert_eq!(why, ["baseline_not_read"]);
    // It does so at earlier moments, too, such as the peak.
    let codes = bare.events.iter().map(|event| match &event.body {
        Body::Coverage(note) => note.code.as_str(),
        Body::Held(_) => "held",
        _ => "",
    });
    let codes: Vec<&str> = codes.filter(|code| !code.is_empty()).collect();
    assert_eq!(
        codes[..3],
        ["baseline_not_read", "imported_snapshot", "held"]
    );
    // The trace ends before the moment of the snapshot.
    let traced = written(List(vec![one.trace(usize::MAX)]));
    assert!(traced.counts.begun_ns > AS_OF && ended_ns(&traced) > AS_OF);
}

#[test]
fn a_trace_that_contradicts_the_snapshot_is_told_and_the_end_is_right() {
    let mut one = Allocator::default();
    one.alloc(3_000_000, 7);
    one.alloc(900, 8);
    one.free(1, false);
    one.alloc(5_000, 8);
    // A free of what was never there, and an allocation of what is not there at the end.
    one.tell("free_completed", 0x1234, 99, 1);
    one.tell("alloc", 0x99_0000, 512, 1);
    one.tell("no_such_action", 1, 1, 1);
    let told = told(&pickled(&snapshot(std::slice::from_ref(&one), usize::MAX))).unwrap();
    let codes = told.codes();
    assert!(
        codes.contains(&"import_contradictions".to_owned()),
        "{codes:?}"
    );
    assert!(
        codes.contains(&"import_rows_left_out".to_owned()),
        "{codes:?}"
    );
    assert_eq!(picture(&told), real(&[one]));
}

impl Allocator {
    /// The trace as PyTorch has it where `skip_actions` names these actions.
    fn skip(&mut self, actions: &[&str]) {
        self.trace.retain(|entry| {
            let Dict(entry) = entry else { return true };
            !entry.iter().any(|(key, value)| {
                *key == "action" && matches!(value, Text(action) if actions.contains(action))
            })
        });
    }
}

/// A program that hands out one after the other, in an old segment and in a new one.
fn several() -> Allocator {
    let mut one = Allocator::default();
    one.alloc(3_000_000, 7);
    one.trace.clear();
    for _ in 0..3 {
        one.alloc(50_000_000, 8);
        one.free(1, false);
    }
    one.alloc(4_000_000, 9);
    one.empty();
    one
}

/// Blocks that were handed out twice without an end between, and others like it, prove which entries are left out. That is said, and
/// nothing of levels.
#[test]
fn kinds_of_entries_that_are_left_out_are_named() {
    use LeftOut::{Allocations, Completions, Frees, Requests, Segments};
    let frees = ["free_requested", "free_completed"];
    let segments = ["segment_alloc", "segment_free"];
    for (skipped, left_out, code) in [
        (
            &["alloc"][..],
            &[Allocations][..],
            "import_actions_left_out",
        ),
        (&frees, &[Frees], "import_actions_left_out"),
        (&frees[1..], &[Completions], "import_actions_left_out"),
        (&frees[..1], &[Requests], "import_requests_left_out"),
        (&segments, &[Segments], "import_segments_left_out"),
    ] {
        let mut one = several();
        one.skip(skipped);
        let one = [one];
        let doubts = judged(&snapshot(&one, usize::MAX)).remove(0);
        assert_eq!(doubts.left_out, left_out);
        assert_eq!((doubts.contradictions, doubts.moved), (0, 0), "{skipped:?}");
        let blocks = [&[Requests][..], &[Segments]].contains(&left_out);
        assert_eq!(doubts.is_course_known(), blocks, "{skipped:?}");
        assert_eq!(doubts.is_reserved_known(), left_out == [Requests]);
        let told = told(&pickled(&snapshot(&one, usize::MAX))).unwrap();
        let codes = told.codes();
        assert!(codes.iter().any(|is| is == code), "{skipped:?}: {codes:?}");
        assert!(!codes.iter().any(|is| is == "import_contradictions"));
        let no_levels = codes.iter().any(|is| is == "import_actions_left_out");
        assert_eq!(no_levels, !blocks, "{skipped:?}: {codes:?}");
        assert_eq!(picture(&told), real(&one), "{skipped:?}");
    }
}

/// Where no stream was waited for, completed frees tell all that requested ones do.
#[test]
fn the_peak_is_right_without_requested_frees() {
    let mut one = several();
    let highest = one.levels.iter().map(|level| level.0).max();
    one.skip(&["free_requested"]);
    let told = told(&pickled(&snapshot(&[one], usize::MAX))).unwrap();
    let ask = StatsRequest::default();
    let stats = told
        .ledger
        .ask(&[ProcessHandle(1)], AsOf::default(), &ask)
        .unwrap();
    assert_eq!(stats.devices[0].peak_allocated_bytes, highest);
    let coverage = told.snapshot().coverage;
    let why = memscope_ledger::inexact(Answer::Stats, &coverage);
    let codes: Vec<&str> = why.iter().map(|note| note.code.as_str()).collect();
    assert_eq!(codes, ["imported_snapshot"]);
}

/// memscope writes no segments at level `blocks`, and a note says that already.
#[test]
fn what_memscope_says_of_its_segments_is_not_said_again() {
    let mut one = several();
    one.skip(&["segment_alloc", "segment_free"]);
    let note = vec![("code", Text("level_blocks")), ("text", Text("rounded"))];
    let Dict(mut all) = snapshot(&[one], usize::MAX) else {
        return;
    };
    let memscope = vec![("coverage", List(vec![Dict(note)]))];
    all.push(("memscope", Dict(memscope)));
    let all = Dict(all);
    assert!(!judged(&all)[0].is_reserved_known());
    let codes = told(&pickled(&all)).unwrap().codes();
    for code in ["import_segments_left_out", "import_no_segments"] {
        assert!(!codes.iter().any(|is| is == code), "{codes:?}");
    }
}

/// A recording without entries of segments may be right: all segments were there. That is said, and nothing is withheld.
#[test]
fn segments_that_may_be_left_out_are_told() {
    let mut one = Allocator::default();
    one.alloc(30_000_000, 7);
    one.free(0, false);
    one.trace.clear();
    one.alloc(3_000_000, 8);
    let whole = snapshot(&[one], usize::MAX);
    assert!(judged(&whole)[0].is_reserved_known());
    let codes = told(&pickled(&whole)).unwrap().codes();
    assert!(
        codes.iter().any(|code| code == "import_no_segments"),
        "{codes:?}"
    );
}

/// A recording that went on with `enabled="state"` has its newest entry in place of its oldest.
#[test]
fn a_trace_whose_times_go_backwards_has_no_course() {
    let mut one = Allocator::default();
    one.alloc(30_000_000, 7);
    one.trace.clear();
    one.alloc(10_000_000, 7);
    one.free(1, false);
    one.now_us += 100;
    one.alloc(40_000_000, 8);
    let newest = one.trace.split_off(one.trace.len() - 2);
    one.trace = newest
        .into_iter()
        .chain(std::mem::take(&mut one.trace))
        .collect();
    let whole = snapshot(std::slice::from_ref(&one), usize::MAX);
    let doubts = judged(&whole).remove(0);
    assert_eq!((doubts.moved, doubts.contradictions), (4, 0));
    assert!(!doubts.is_course_known());
    let told = told(&pickled(&whole)).unwrap();
    assert!(told.codes().iter().any(|code| code == "import_times_moved"));
    assert_eq!(picture(&told), real(&[one]));
}

/// The trace of PyTorch 2.11 names no pools; the segments of the snapshot do.
#[test]
fn segments_of_a_private_pool_are_its_from_their_coming_on() {
    let mut one = Allocator::default();
    one.alloc(13_000_000, 7);
    let private = |one: &Allocator| {
        let mut segments = one.segments(0);
        for segment in &mut segments {
            let Dict(segment) = segment else { continue };
            segment.push(("segment_pool_id", List(vec![Number(0), Number(1)])));
        }
        let traces = List(vec![one.trace(usize::MAX)]);
        let told = told(&pickled(&Dict(vec![
            ("segments", List(segments)),
            ("device_traces", traces),
        ])));
        told.unwrap()
    };
    let came = |told: &Told| {
        let pools = told.events.iter().filter_map(|event| match &event.body {
            Body::Trace(trace) if trace.action == TraceAction::SegmentAlloc => Some(trace.pool),
            _ => None,
        });
        pools.collect::<Vec<_>>()
    };
    let is_unknown = |told: &Told| told.codes().iter().any(|code| code == "pool_ids_unknown");
    let told = private(&one);
    assert_eq!(came(&told), [Some((0, 1))]);
    let segments = told.snapshot().segments;
    assert_eq!((segments[0].pool, segments[0].pool_told), ((0, 1), true));
    assert!(!is_unknown(&told));
    // Of one that is gone at the end nobody says whose it was.
    one.free(0, false);
    one.empty();
    assert_eq!(came(&private(&one)), [None]);
}

#[test]
fn segments_that_cannot_be_are_refused() {
    let refused = |value: &Python| told(&pickled(value)).err().unwrap().to_string();
    let block = |addr, size| {
        Dict(vec![
            ("address", Number(addr)),
            ("size", Number(size)),
            ("state", Text("inactive")),
        ])
    };
    let segment = |device, addr, size, blocks| {
        let all = vec![
            ("device", Number(device)),
            ("address", Number(addr)),
            ("total_size", Number(size)),
            ("blocks", List(blocks)),
        ];
        List(vec![Dict(all)])
    };
    assert!(refused(&Number(7)).contains("no list \"segments\""));
    assert!(refused(&segment(0, 100, 50, vec![block(100, 51)])).contains("outside"));
    assert!(
        refused(&segment(0, 100, 50, vec![block(100, 30), block(120, 10)]))
            .contains("over another")
    );
    assert!(refused(&segment(0, u64::MAX, 50, vec![])).contains("last address"));
    assert!(refused(&segment(1 << 40, 100, 50, vec![])).contains("no machine"));
    assert!(refused(&segment(0, 100, 50, vec![block(100, 0)])).contains("no size"));
    let List(mut twice) = segment(0, 100, 50, vec![]) else {
        return;
    };
    twice.extend(twice.clone());
    assert!(refused(&List(twice)).contains("overlap"));
    // Undone, this one would join the segment behind its end.
    let List(mut grows) = segment(0, 4096, 4096, vec![]) else {
        return;
    };
    let Some(Dict(all)) = grows.first_mut() else {
        return;
    };
    all.push(("is_expandable", Bool(true)));
    let unmap = |size| {
        let unmap = vec![
            ("action", Text("segment_unmap")),
            ("addr", Number(8192)),
            ("size", Number(size)),
        ];
        let traces = List(vec![List(vec![Dict(unmap)])]);
        Dict(vec![
            ("segments", List(grows.clone())),
            ("device_traces", traces),
        ])
    };
    assert!(told(&pickled(&unmap(4096))).is_ok());
    assert!(refused(&unmap(u64::MAX)).contains("last address"));
}

/// A hostile file: two thousand blocks have two thousand lists of frames, and every frame is one dictionary of a hundred thousand
/// entries. It is read once: if each list had it searched anew, this test would not end in hours.
#[test]
fn a_frame_that_is_in_many_stacks_is_read_once() {
    const LISTS: u32 = 2000;
    let text = |text: &str, into: &mut Vec<u8>| {
        write(&Text(Box::leak(text.to_owned().into_boxed_str())), into)
    };
    let mut bytes = vec![0x80, 2];
    // The frame, which is remembered at place 0, and is no part of the snapshot by itself.
    bytes.extend(b"}r\0\0\0\0(");
    for number in 0..100_000u32 {
        bytes.push(b'J');
        bytes.extend(number.to_le_bytes());
        bytes.push(b'N');
    }
    bytes.extend(b"u](}(");
    for (key, value) in [("address", 4096), ("total_size", u64::from(LISTS) * 512)] {
        text(key, &mut bytes);
        write(&Number(value), &mut bytes);
    }
    text("blocks", &mut bytes);
    bytes.extend(b"](");
    for number in 0..LISTS {
        bytes.extend(b"}(");
        for (key, value) in [("size", 512), ("requested_size", 500)] {
            text(key, &mut bytes);
            write(&Number(value), &mut bytes);
        }
        text("state", &mut bytes);
        text("active_allocated", &mut bytes);
        text("frames", &mut bytes);
        bytes.extend(b"](");
        // Each list has another number of frames, so that no two are alike.
        bytes.extend(b"h\0".repeat(600 + number as usize % 400));
        bytes.extend(b"eu");
    }
    // What is on the stack below the list is nobody's.
    bytes.extend(b"eue.");
    let told = told(&bytes).unwrap();
    assert_eq!(told.snapshot().segments[0].blocks.len(), LISTS as usize);
}

/// A text of a pickle is there once, however often it is referred to. If each annotation had its own copy of this name, a file of
/// 17 MiB would take 32 GiB.
#[test]
fn long_names_of_annotations_are_cut_and_not_copied() {
    const ANNOTATIONS: usize = 2000;
    let name: &'static str = Box::leak("é".repeat(8 << 20).into_boxed_str());
    let mut bytes = b"\x80\x02}(".to_vec();
    write(&Text("segments"), &mut bytes);
    bytes.extend(b"]");
    write(&Text("external_annotations"), &mut bytes);
    bytes.extend(b"](");
    for number in 0..ANNOTATIONS {
        bytes.extend(b"}(");
        write(&Text("name"), &mut bytes);
        match number {
            0 => {
                write(&Text(name), &mut bytes);
                bytes.extend(b"q\0");
            }
            _ => bytes.extend(b"h\0"),
        }
        write(&Text("stage"), &mut bytes);
        write(&Text("START"), &mut bytes);
        write(&Text("time_us"), &mut bytes);
        write(&Number(1_700_000_000_000_000 + number as u64), &mut bytes);
        bytes.extend(b"u");
    }
    bytes.extend(b"eu.");
    let told = told(&bytes).unwrap();
    let marks = told.events.iter().filter_map(|event| match &event.body {
        Body::Mark(mark) => Some(mark),
        _ => None,
    });
    let lens: Vec<(usize, bool)> = marks.map(|mark| (mark.name.len(), mark.cut)).collect();
    assert_eq!(lens, [(1024, true); ANNOTATIONS]);
}

/// The same of frames: each has a line of its own, and all have one name.
#[test]
fn long_names_of_frames_are_cut_and_not_copied() {
    const FRAMES: u64 = 1000;
    let name: &'static str = Box::leak("é".repeat(8 << 20).into_boxed_str());
    let mut bytes = b"\x80\x02](}(".to_vec();
    for (key, value) in [("address", 4096), ("total_size", 512)] {
        write(&Text(key), &mut bytes);
        write(&Number(value), &mut bytes);
    }
    write(&Text("blocks"), &mut bytes);
    bytes.extend(b"](}(");
    for (key, value) in [("size", 512), ("requested_size", 500)] {
        write(&Text(key), &mut bytes);
        write(&Number(value), &mut bytes);
    }
    write(&Text("state"), &mut bytes);
    write(&Text("active_allocated"), &mut bytes);
    write(&Text("frames"), &mut bytes);
    bytes.extend(b"](");
    for line in 1..=FRAMES {
        bytes.extend(b"}(");
        for key in ["name", "filename"] {
            write(&Text(key), &mut bytes);
            match (line, key) {
                (1, "name") => {
                    write(&Text(name), &mut bytes);
                    bytes.extend(b"q\0");
                }
                _ => bytes.extend(b"h\0"),
            }
        }
        write(&Text("line"), &mut bytes);
        write(&Number(line), &mut bytes);
        bytes.extend(b"u");
    }
    bytes.extend(b"eueue.");
    let told = told(&bytes).unwrap();
    let named = told.events.iter().filter_map(|event| match &event.body {
        Body::Code(code) => Some((code.name.len(), code.file.len())),
        _ => None,
    });
    assert_eq!(named.collect::<Vec<_>>(), [(4096, 4096); FRAMES as usize]);
}

/// PyTorch's recorder has frames of compiled code among those of Python unless it is told `stacks="python"`.
#[test]
fn frames_of_compiled_code_are_told_from_those_of_python() {
    const DEFAULT: &str = "_PyEval_EvalFrameDefault";
    let real = [
        ("torch::unwind::unwind()", "??", 0),
        ("cfunction_call", "/p/Objects/methodobject.c", 542),
        ("bad", "/srv/train.py", 5),
        (DEFAULT, "/p/Python/ceval.c", 4769),
        ("<module>", "/srv/train.py", 10),
        (DEFAULT, "/p/Python/ceval.c", 4769),
        ("_PyEval_EvalFrame", "/p/Include/pycore_ceval.h", 73),
        ("_start", "??", 0),
    ];
    let python = [("bad", "/srv/train", 5), ("<module>", "<stdin>", 1)];
    let compiled = [("run", "/p/engine.cpp", 9), (DEFAULT, "/p/ceval.c", 3)];
    let list = |frames: &[(&'static str, &'static str, u64)]| {
        let frame = |&(name, file, line): &(&'static str, &'static str, u64)| {
            Dict(vec![
                ("filename", Text(file)),
                ("line", Number(line)),
                ("name", Text(name)),
            ])
        };
        List(frames.iter().map(frame).collect())
    };
    let block = |addr, frames| {
        Dict(vec![
            ("address", Number(addr)),
            ("size", Number(512)),
            ("requested_size", Number(512)),
            ("state", Text("active_allocated")),
            ("frames", frames),
        ])
    };
    let segment = Dict(vec![
        ("device", Number(0)),
        ("address", Number(4096)),
        ("total_size", Number(1536)),
        ("stream", Number(0)),
        ("segment_type", Text("small")),
        ("is_expandable", Bool(false)),
        (
            "blocks",
            List(vec![
                block(4096, list(&real)),
                block(4608, list(&python)),
                block(5120, list(&compiled)),
            ]),
        ),
    ]);
    let file = Dict(vec![
        ("segments", List(vec![segment])),
        ("device_traces", List(Vec::new())),
    ]);
    let report = told(&pickled(&file)).unwrap().snapshot();
    let frames = |place: usize| -> Vec<(FrameKind, String, u32)> {
        let stack = &report.stacks[report.segments[0].blocks[place].stack as usize];
        let frames = stack.frames.iter();
        frames
            .map(|frame| (frame.kind, frame.name.to_string(), frame.line))
            .collect()
    };
    use FrameKind::{Native, Python as OfPython};
    let wanted = |all: &[(FrameKind, &str, u32)]| -> Vec<(FrameKind, String, u32)> {
        let owned = |&(kind, name, line): &(FrameKind, &str, u32)| (kind, name.to_owned(), line);
        all.iter().map(owned).collect()
    };
    // The interpreter's own function is left out where the frames that it executes are there.
    assert_eq!(
        frames(0),
        wanted(&[
            (Native, "torch::unwind::unwind()", 0),
            (Native, "cfunction_call", 542),
            (OfPython, "bad", 5),
            (OfPython, "<module>", 10),
            (Native, DEFAULT, 4769),
            (Native, "_PyEval_EvalFrame", 73),
            (Native, "_start", 0),
        ])
    );
    assert_eq!(
        frames(1),
        wanted(&[(OfPython, "bad", 5), (OfPython, "<module>", 1)])
    );
    assert_eq!(
        frames(2),
        wanted(&[(Native, "run", 9), (Native, DEFAULT, 3)])
    );
}
