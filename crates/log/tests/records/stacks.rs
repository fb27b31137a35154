//! Records of stacks: frames of both kinds, and pieces of stacks that are unwound in user space.

use crate::common::*;
use memscope_common::*;
use memscope_ledger::event::*;
use memscope_log::records::{DaemonRecord, Decoder, Outcome, stack_copy};

fn stack(flags: u8, python: &[(u64, u64)], natives: &[u64]) -> Vec<u8> {
    let mut words = Vec::new();
    for (code, instruction) in python {
        words.extend([*code, *instruction]);
    }
    words.extend(natives);
    let mut head = header::<RecordHeader>(KIND_STACK);
    head.len = (STACK_HEAD + words.len() * 8) as u16;
    head.flags = flags;
    head.stack = 1234;
    let mut record = as_bytes(&head).to_vec();
    record.extend((python.len() as u32).to_ne_bytes());
    record.extend((natives.len() as u32).to_ne_bytes());
    for word in words {
        record.extend(word.to_ne_bytes());
    }
    record
}

fn seen(record: &[u8]) -> StackSeen {
    match Decoder::new(1).decode(record) {
        Outcome::Decoded(event) => match event.body {
            Body::Stack(seen) => *seen,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_of_both_kinds() {
    let python = [
        (0x1000, 5),
        (0x2000 | FRAME_ENTRY, 6),
        (0x3000 | FRAME_ENTRY, 7),
    ];
    let wanted = StackSeen {
        id: 1234,
        frames: vec![(0x1000, 5), (0x2000, 6), (0x3000, 7)],
        entries: vec![1, 2],
        natives: vec![70, 80, 90],
        ..StackSeen::default()
    };
    assert_eq!(seen(&stack(0, &python, &[70, 80, 90])), wanted);
    // The address of an entered function is exact, all others are return addresses behind their call.
    let entered = seen(&stack(STACK_AT_ENTRY, &python, &[70, 80, 90]));
    assert_eq!(entered.natives, [71, 80, 90]);
    assert!(seen(&stack(STACK_AT_ENTRY, &[], &[])).natives.is_empty());
    let flags = |flags| {
        let seen = seen(&stack(flags, &python, &[]));
        (seen.truncated, seen.unfinished)
    };
    assert_eq!(flags(STACK_TRUNCATED), (true, false));
    assert_eq!(flags(STACK_BROKEN), (true, false));
    assert_eq!(flags(STACK_UNFINISHED), (false, true));
}

#[test]
fn a_record_is_as_long_as_its_frames() {
    let whole = stack(0, &[(0x1000, 5)], &[70, 80]);
    for (at, count) in [
        (STACK_HEAD - 8, 2u32),
        (STACK_HEAD - 4, 1),
        (STACK_HEAD - 8, u32::MAX),
    ] {
        let mut record = whole.clone();
        record[at..at + 4].copy_from_slice(&count.to_ne_bytes());
        let outcome = Decoder::new(1).decode(&record);
        assert!(matches!(outcome, Outcome::Malformed(_)), "{outcome:?}");
    }
}

#[test]
fn a_piece_of_a_stack() {
    let mut record = StackCopyRecord {
        header: header::<StackCopyRecord>(KIND_STACK_COPY),
        pc: 1,
        sp: 0x7010,
        bp: 3,
        base: 0x7000,
        len: STACK_PAGE as u64,
        bytes: [7; STACK_COPY_PAGES * STACK_PAGE],
    };
    record.header.stack = 55;
    let copy = stack_copy(as_bytes(&record)).unwrap();
    assert_eq!((copy.process, copy.stack), (ProcessHandle(8), 55));
    assert_eq!(
        (copy.pc, copy.sp, copy.bp, copy.base),
        (1, 0x7010, 3, 0x7000)
    );
    assert_eq!(copy.bytes, [7; STACK_PAGE]);
    record.len = u64::MAX;
    assert_eq!(stack_copy(as_bytes(&record)), None);
    record.len = 0;
    assert!(stack_copy(as_bytes(&record)).unwrap().bytes.is_empty());
    assert_eq!(stack_copy(&as_bytes(&record)[..4096]), None);
    assert_eq!(stack_copy(&stack(0, &[], &[])), None);
}

#[test]
fn what_the_daemon_finds_out_is_written_and_read() {
    let records = [
        DaemonRecord::Stack(Box::new(StackSeen {
            id: 7,
            natives: vec![1, 2, u64::MAX],
            truncated: true,
            completes: true,
            ..StackSeen::default()
        })),
        DaemonRecord::Native(NativeName {
            address: 9,
            module: "/lib/libx.so".into(),
            offset: 0x40,
            build_id: "00ff".to_owned(),
            functions: vec![NativeFunction {
                name: "f<int>(char)".into(),
                file: "x.cpp".into(),
                line: 3,
            }],
        }),
    ];
    for record in records {
        let bytes = record.encode(stamp(8)).unwrap();
        assert_eq!(DaemonRecord::decode(&bytes).unwrap(), Some(record));
    }
    // The longest stack fits without being cut.
    let longest = DaemonRecord::Stack(Box::new(StackSeen {
        natives: vec![u64::MAX >> 17; MOST_NATIVE],
        ..StackSeen::default()
    }));
    let bytes = longest.encode(stamp(8)).unwrap();
    assert_eq!(DaemonRecord::decode(&bytes).unwrap(), Some(longest));
}
