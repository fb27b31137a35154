//! Tests with files: real ones of PyTorch's, the same ones damaged, and some that only an attacker would make.
#![allow(clippy::unwrap_used)]

use super::*;
use memscope_pickle::State;
use proptest::prelude::*;

/// Snapshots of PyTorch 2.11.0 on the simulated device: a dictionary in every protocol, and the older list of
/// segments. Three blocks of 700, 2100 and 2800 bytes are held in a segment; another is free.
const REAL: [(&str, &[u8]); 5] = [
    (
        "2",
        include_bytes!("../../tests/snapshots/snapshot-2.pickle"),
    ),
    (
        "3",
        include_bytes!("../../tests/snapshots/snapshot-3.pickle"),
    ),
    (
        "4",
        include_bytes!("../../tests/snapshots/snapshot-4.pickle"),
    ),
    (
        "5",
        include_bytes!("../../tests/snapshots/snapshot-5.pickle"),
    ),
    (
        "list",
        include_bytes!("../../tests/snapshots/segments-4.pickle"),
    ),
];

fn read(bytes: &[u8]) -> Result<SnapshotFile, FileError> {
    read_file(Path::new("s"), bytes).map(|kept| kept.unwrap())
}

fn refused(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

fn sizes(kept: &SnapshotFile) -> Vec<(u64, Option<u64>, State)> {
    let blocks = kept.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.map(|b| (b.size, b.requested, b.state)).collect()
}

#[test]
fn real_files_say_what_is_held() {
    for (name, bytes) in REAL {
        let kept = read(bytes).unwrap();
        let held = kept.segments.iter().flat_map(|segment| &segment.blocks);
        let mut asked: Vec<_> = held
            .filter(|block| block.state == State::Active)
            .map(|block| (block.size, block.requested, block.born_ns.is_some()))
            .collect();
        asked.sort_unstable();
        let traced = name != "list";
        let wanted = [(700, 1024), (2100, 2560), (2800, 3072)];
        let wanted = wanted.map(|(asked, size)| (size, Some(asked), traced));
        assert_eq!(asked, wanted, "{name}");
        assert_eq!(kept.as_of_ns.is_some(), traced, "{name}");
        assert!(kept.image.is_none());
        let total: u64 = kept.segments.iter().map(|segment| segment.size).sum();
        let blocks: u64 = sizes(&kept).iter().map(|(size, ..)| size).sum();
        assert_eq!(total, blocks, "{name}: blocks fill their segments");
    }
}

#[test]
fn a_file_cut_anywhere_ends_early() {
    for (name, bytes) in REAL {
        assert_eq!(refused(&bytes[..0]), "it is empty");
        for end in 1..bytes.len() {
            let said = refused(&bytes[..end]);
            assert!(said.contains("ends early, after"), "{name}: {end}: {said}");
        }
    }
}

/// The same dictionary as a trigger of memscope's writes it as JSON.
const DOCUMENT: &str = r#"{"segments": [{"device": 1, "address": 4096, "total_size": 2048, "stream": 5, "blocks":
    [{"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated"},
     {"address": 4608, "size": 1536, "requested_size": 0, "state": "inactive", "frames": []}]}],
  "device_traces": [[], [{"action": "free_completed", "addr": 4096, "time_us": 6},
     {"action": "alloc", "addr": 4096, "size": 500, "stream": 5, "time_us": 7, "frames": [{"line": 1}]},
     {"action": "oom", "device_free": 9, "size": 1, "time_us": 9}]],
  "allocator_settings": {"roundup_power2_divisions": {"1": 0}},
  "memscope": {"version": "0.1.0", "pid": 7, "start_ticks": 8, "generation": 2, "image": 3, "attached_unix_ns": 6, "as_of_unix_ns": 10000,
     "coverage": [{"code": "c", "text": "t"}]}}"#;

#[test]
fn a_triggers_json_says_whose_it_is_and_when_blocks_came() {
    let kept = read(DOCUMENT.as_bytes()).unwrap();
    let image = kept.image.unwrap();
    assert_eq!((image.pid, image.start_ticks, image.generation), (7, 8, 2));
    assert_eq!((image.number, kept.attached_ns), (Some(3), Some(6)));
    assert_eq!(kept.as_of_ns, Some(10_000));
    assert_eq!(kept.coverage.len(), 1);
    assert_eq!(
        sizes(&kept),
        [
            (512, Some(500), State::Active),
            (1536, Some(0), State::Inactive)
        ]
    );
    assert_eq!(kept.segments[0].blocks[0].born_ns, Some(7000));
    assert_eq!((kept.traced_from_ns, kept.has_births), (Some(6000), false));
    // A trace that never dropped an entry has all that came; one without an allocation may lack them all.
    let whole = DOCUMENT.replace("\"pid\": 7", "\"trace_dropped\": 0, \"pid\": 7");
    assert!(read(whole.as_bytes()).unwrap().has_births);
    let skipped = DOCUMENT.replace("\"alloc\"", "\"free_requested\"");
    let skipped = read(skipped.as_bytes()).unwrap();
    assert_eq!((skipped.traced_from_ns, skipped.has_births), (None, false));
    // The list of segments alone.
    let list = &DOCUMENT[DOCUMENT.find('[').unwrap()..DOCUMENT.find(",\n  \"device").unwrap()];
    let alone = read(list.as_bytes()).unwrap();
    assert_eq!(sizes(&alone), sizes(&kept));
    assert!(alone.image.is_none() && alone.as_of_ns.is_none());
}

#[test]
fn json_that_is_no_snapshot_is_refused_with_its_place() {
    for (text, words) in [
        ("{", "line 1"),
        ("{}", "segments"),
        ("[7]", "line 1"),
        (r#"{"segments": [{"address": -5}]}"#, "line 1"),
        (r#"{"segments": {}}"#, "line 1"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains(words), "{text}: {why}");
    }
    // Deep nesting is refused in unknown parts as well as in known ones.
    for deep in ["{\"other\": ", "{\"segments\": "] {
        let deep = deep.to_owned() + &"[".repeat(1_000_000);
        assert!(matches!(read(deep.as_bytes()), Err(FileError::Json(_))));
    }
    let state = DOCUMENT.replace("inactive", "gone");
    assert_eq!(
        refused(state.as_bytes()),
        "it holds no snapshot: segment 0 block 1 has a state that is not known"
    );
    for end in 1..DOCUMENT.len() {
        assert!(matches!(
            read(&DOCUMENT.as_bytes()[..end]),
            Err(FileError::Json(_))
        ));
    }
}

fn key(name: &str) -> Vec<u8> {
    [&[0x8c, name.len() as u8], name.as_bytes()].concat()
}

/// Opcodes that recall one entry of the memo many times.
fn recalled(place: u8, times: usize) -> Vec<u8> {
    [b'h', place].repeat(times)
}

/// Bytes of the texts of all notes.
fn copied(kept: &SnapshotFile) -> usize {
    let notes = kept.coverage.iter().map(|note| {
        let affects: usize = note.affects.iter().map(String::len).sum();
        note.code.len() + note.text.len() + affects
    });
    notes.sum()
}

/// A pickle may refer again and again to one value.
#[test]
fn a_small_file_does_not_become_a_large_state() {
    let number = |name: &str| [&key(name)[..], b"K\x01"].concat();
    let block = [
        &b"}("[..],
        &number("size"),
        &key("state"),
        &key("inactive"),
        b"uq\x00",
    ]
    .concat();
    let segment = |blocks: &[u8]| {
        let numbers = [number("address"), number("total_size"), key("blocks")].concat();
        [&b"}("[..], &numbers, b"](", blocks, b"eu"].concat()
    };
    let list = |segments: &[u8]| [b"\x80\x04](", segments, b"e."].concat();
    let whole = segment(&block);
    assert_eq!(read(&list(&whole)).unwrap().segments.len(), 1);
    let many = segment(&[block.clone(), recalled(0, 500_000)].concat());
    let said = refused(&list(&many));
    assert!(
        said.contains("segment 0 block 1 is there more than once"),
        "{said}"
    );
    let many = [&whole[..], b"q\x01", &recalled(1, 500_000)].concat();
    let said = refused(&list(&many));
    assert!(said.contains("segment 1 is there more than once"), "{said}");

    // Entries of traces, and traces.
    let with = |name: &str, value: &[u8]| {
        let segments = [&key("segments")[..], b"]", &key(name)].concat();
        [b"\x80\x04}(", &segments[..], value, b"u."].concat()
    };
    let entries = [b"](}q\x00", &recalled(0, 500_000)[..], b"e"].concat();
    for traces in [
        [b"](", &entries[..], b"e"].concat(),
        [&b"](](}eq\x00"[..], &recalled(0, 500_000), b"e"].concat(),
    ] {
        let said = refused(&with("device_traces", &traces));
        assert!(said.contains("more than once"), "{said}");
    }
    // Texts of memscope's notes, which are copied.
    let text = [&b"X\x00\x00\x10\x00"[..], &[b'x'; 1 << 20], b"q\x00"].concat();
    let note = [&b"}("[..], &key("code"), &text, &key("text"), b"h\x00u"].concat();
    let notes = [
        note,
        [&b"}("[..], &key("code"), b"h\x00", &key("text"), b"h\x00u"]
            .concat()
            .repeat(500_000),
    ];
    let notes = [&b"}"[..], &key("coverage"), b"](", &notes.concat(), b"es"].concat();
    let kept = read(&with("memscope", &notes)).unwrap();
    assert!(copied(&kept) < 1 << 20);

    // The kinds of numbers that a note affects: one long text many times, short ones without end, and the note again and again.
    let words = [key("code"), key("c"), key("text"), key("t"), key("affects")].concat();
    let kinds = |first: &[u8], times| {
        let list = [b"](", first, &recalled(0, times), b"e"].concat();
        let note = [b"}(", &words[..], &list, b"uq\x01", &recalled(1, 9)].concat();
        let notes = [&b"}"[..], &key("coverage"), b"](", &note, b"es"].concat();
        read(&with("memscope", &notes)).unwrap()
    };
    let short = [&key("totals")[..], b"q\x00"].concat();
    for kept in [kinds(&text, 20), kinds(&short, 500_000)] {
        assert_eq!(kept.coverage.len(), 10);
        assert!(copied(&kept) < 1 << 20);
        assert!(kept.coverage.iter().all(|note| note.affects.len() <= 16));
    }
}

/// A note says whether the numbers that it affects can only be too small. Files of older versions do not say it.
#[test]
fn a_note_of_a_pickle_is_the_one_of_the_json() {
    let document = |said: &str| {
        let note = format!(r#"{{"code": "c", "text": "t", "affects": ["totals"]{said}}}"#);
        format!(r#"{{"segments": [], "memscope": {{"coverage": [{note}]}}}}"#)
    };
    let pickle = |said: &[u8]| {
        let words = [key("code"), key("c"), key("text"), key("t")].concat();
        let affects = [&key("affects")[..], b"](", &key("totals"), b"e"].concat();
        let note = [&b"}("[..], &words, &affects, said, b"u"].concat();
        let notes = [&b"}"[..], &key("coverage"), b"](", &note, b"es"].concat();
        let segments = [&key("segments")[..], b"]", &key("memscope")].concat();
        [&b"\x80\x04}("[..], &segments, &notes, b"u."].concat()
    };
    let flag = |value: u8| [key("lower_bound"), vec![value]].concat();
    for (json, flag, lower_bound) in [
        (r#", "lower_bound": true"#, flag(0x88), true),
        (r#", "lower_bound": false"#, flag(0x89), false),
        ("", Vec::new(), false),
    ] {
        let notes = [
            read(document(json).as_bytes()).unwrap().coverage,
            read(&pickle(&flag)).unwrap().coverage,
        ];
        assert_eq!(notes[0], notes[1], "{json}");
        assert_eq!(notes[1][0].lower_bound, lower_bound, "{json}");
        assert_eq!(notes[1][0].affects, ["totals"], "{json}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damage_is_read_or_refused(
        which in 0..REAL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = REAL[which].1.to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(Some(kept)) = read_file(Path::new("s"), &bytes[..]) {
            compare(&kept, &kept, true);
            compare(&kept, &kept, false);
        }
    }

    #[test]
    fn damaged_json_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = DOCUMENT.as_bytes().to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(Some(kept)) = read_file(Path::new("s"), &bytes[..]) {
            compare(&kept, &kept, true);
        }
    }
}

/// A hostile file: a block whose stack is a thousand times the same frame, whose name has 16 MiB. It would take 16 GiB if each line had its
/// own text, and the same again for each block with another stack.
#[test]
fn frames_share_a_text_that_is_cut() {
    let text = |text: &str| {
        let len = (text.len() as u32).to_le_bytes();
        [&b"X"[..], &len, text.as_bytes()].concat()
    };
    let mut bytes = b"\x80\x02](}(".to_vec();
    for (key, value) in [("address", 4096u32), ("total_size", 1024)] {
        bytes.extend(text(key));
        bytes.push(b'J');
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(text("blocks"));
    bytes.extend(b"](");
    for block in 0..2 {
        bytes.extend(b"}(");
        bytes.extend(text("size"));
        bytes.extend(b"M\x00\x02");
        bytes.extend(text("state"));
        bytes.extend(text("active_allocated"));
        bytes.extend(text("frames"));
        bytes.extend(b"](");
        if block == 0 {
            bytes.extend(b"}q\x00(");
            bytes.extend(text("name"));
            bytes.extend(text(&"é".repeat(8 << 20)));
            bytes.push(b'u');
        }
        bytes.extend(b"h\x00".repeat(1000 + block));
        bytes.extend(b"eu");
    }
    bytes.extend(b"eue.");
    let kept = read(&bytes).unwrap();
    // Both blocks have the frame 1001 times: it is one stack.
    let [first] = &kept.stacks[..] else {
        panic!("{} stacks", kept.stacks.len());
    };
    assert_eq!(first.len(), 1001);
    assert_eq!(first[0].len(), 4096 + " ()".len());
    assert!(
        first
            .iter()
            .all(|line| std::sync::Arc::ptr_eq(line, &first[0]))
    );
}

/// A hostile file: many frames, each a dictionary of its own, that have one name. Each would have a copy of it.
#[test]
fn frames_of_their_own_share_a_text() {
    let name = [&b"X\x00\x10\x00\x00"[..], &[b'n'; 4096], b"q\x00"].concat();
    let frame = |name: &[u8]| [&b"}("[..], &key("name"), name, b"u"].concat();
    let line = |line: u8| [b"h\x00", &key("line")[..], &[b'K', line]].concat();
    let others = [frame(&line(1)), frame(&line(2)), frame(&line(1))].concat();
    let frames = [frame(&name), frame(b"h\x00").repeat(999), others].concat();
    let number = |name: &str| [&key(name)[..], b"K\x01"].concat();
    let state = [key("state"), key("inactive"), key("frames")].concat();
    let block = [&b"}("[..], &number("size"), &state, b"](", &frames, b"eu"].concat();
    let numbers = [number("address"), number("total_size"), key("blocks")].concat();
    let segment = [&b"}("[..], &numbers, b"](", &block, b"eu"].concat();
    let file = [b"\x80\x04](", &segment[..], b"e."].concat();
    let kept = read(&file).unwrap();
    let [stack] = &kept.stacks[..] else {
        panic!("{} stacks", kept.stacks.len());
    };
    let (alike, [one, two, again]) = stack.split_at(1000) else {
        panic!("{} frames", stack.len());
    };
    let is_same = std::sync::Arc::ptr_eq;
    assert_eq!(alike[0].len(), 4096 + " ()".len());
    assert!(alike.iter().all(|line| is_same(line, &alike[0])));
    assert!(one.ends_with(" (:1)") && two.ends_with(" (:2)") && is_same(one, again));

    // Lines that say something else each need room.
    let pickle = Pickle::read(&file[..]).unwrap();
    let room = alike[0].len() + one.len() + two.len();
    let within = |room| viz::of_pickle_within(Path::new("s"), &pickle, room);
    assert_eq!(within(room).unwrap().stacks, kept.stacks);
    let said = within(room - 1).unwrap_err().to_string();
    assert!(
        said.contains(&format!("more than {} bytes", room - 1)),
        "{said}"
    );
}
