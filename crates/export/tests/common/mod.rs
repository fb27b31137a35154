//! Reports to export.
#![allow(dead_code)] // each test program uses a part of it

pub mod course;
pub mod stacks;

use memscope_ledger::event::{CoverageNote, EventId, ProcessFacts, ProcessHandle, TraceAction};
use memscope_ledger::report::*;

/// An address as the CUDA driver returns them: it needs more than 32 bits.
pub const BASE: u64 = 0x7f3c_a000_0000;

pub fn process(environment: &[(&str, &str)]) -> ProcessSummary {
    ProcessSummary {
        handle: ProcessHandle(1),
        facts: ProcessFacts {
            pid: 4242,
            image: Some(12345),
            comm: "python \"quoted\" ünï".to_owned(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..ProcessFacts::default()
        },
        state: ProcessState::Attached,
        attached_ns: 0,
        ended_ns: None,
        allocated_bytes: None,
        reserved_bytes: None,
        lost_records: 3,
        events: 10,
        waits_for_device: false,
    }
}

pub fn block(addr: u64, size: u64, requested: Option<u64>, state: BlockState) -> SnapshotBlock {
    SnapshotBlock {
        addr,
        size,
        requested,
        state,
        since_ns: 0,
        stack: 0,
        labels: 0,
    }
}

pub fn entry(action: TraceAction, device: i32, addr: u64, size: u64) -> SnapshotTrace {
    SnapshotTrace {
        action,
        device,
        addr,
        size,
        reported: false,
        stream: 0,
        pool: None,
        time_ns: 5,
        unix_ns: 1_700_000_000_123_456_789,
        tid: 9,
        stack: 0,
    }
}

/// Two devices, every state and every action; consistent as PyTorch's viewers want it.
pub fn report() -> SnapshotReport {
    use BlockState::{Active, Inactive, PendingFree};
    let segment = |device, addr, size, blocks| SnapshotSegment {
        device,
        addr,
        size,
        stream: 0,
        large: true,
        pool: (0, 0),
        pool_told: true,
        expandable: false,
        seen: true,
        blocks,
    };
    let far = BASE + (1 << 30);
    SnapshotReport {
        process: process(&[
            ("RANK", "0"),
            ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128"),
        ]),
        as_of: AsOf {
            boot_ns: 6,
            unix_ns: 1_700_000_001_000_000_000,
            event: EventId::default(),
        },
        segments: vec![
            segment(
                0,
                BASE,
                20 << 20,
                vec![
                    block(BASE, 2 << 20, Some((2 << 20) - 100), Active),
                    block(BASE + (2 << 20), 1 << 20, None, Active),
                    block(BASE + (3 << 20), 1 << 20, Some(1 << 20), PendingFree),
                    block(BASE + (4 << 20), 16 << 20, None, Inactive),
                ],
            ),
            SnapshotSegment {
                large: false,
                expandable: true,
                pool: (0, 1 << 33),
                pool_told: true,
                stream: 0x5555_0000_1234,
                seen: false,
                ..segment(
                    2,
                    far,
                    2 << 20,
                    vec![
                        block(far, 512, Some(4), Active),
                        block(far + 512, (2 << 20) - 512, None, Inactive),
                    ],
                )
            },
        ],
        unmapped: Vec::new(),
        trace: vec![
            entry(TraceAction::SegmentAlloc, 0, BASE, 20 << 20),
            entry(TraceAction::Alloc, 0, BASE, (2 << 20) - 100),
            SnapshotTrace {
                stream: 0x5555_0000_1234,
                pool: Some((0, 1)),
                ..entry(TraceAction::SegmentMap, 2, far, 2 << 20)
            },
            entry(TraceAction::Alloc, 0, BASE + (2 << 20), 1 << 20),
            entry(TraceAction::Alloc, 0, BASE + (3 << 20), 1 << 20),
            entry(TraceAction::Alloc, 2, far, 4),
            entry(TraceAction::Alloc, 0, BASE + (4 << 20), 600),
            entry(TraceAction::FreeRequested, 0, BASE + (4 << 20), 600),
            entry(TraceAction::FreeCompleted, 0, BASE + (4 << 20), 600),
            entry(TraceAction::Oom, 0, 123_456, 90 << 30),
            entry(TraceAction::FreeRequested, 0, BASE + (3 << 20), 1 << 20),
            entry(TraceAction::Snapshot, 0, 0, 3 << 20),
        ],
        allocator: Default::default(),
        trace_dropped: 7,
        stacks: Vec::new(),
        labels: vec![Vec::new()],
        coverage: vec![
            CoverageNote {
                code: "attached_late".to_owned(),
                text: "Attached late.".to_owned(),
            }
            .into(),
        ],
    }
}

/// `segments` of 1000 blocks, and `entries` of alloc and free, on 8 devices.
pub fn large(segments: u64, entries: u64) -> SnapshotReport {
    let segments = (0..segments).map(|n| {
        let addr = BASE + n * (1 << 21);
        SnapshotSegment {
            device: (n % 8) as i32,
            addr,
            size: 1000 * 512,
            stream: 0,
            large: false,
            pool: (0, 0),
            pool_told: true,
            expandable: false,
            seen: true,
            blocks: (0..1000)
                .map(|n| block(addr + n * 512, 512, Some(500), BlockState::Active))
                .collect(),
        }
    });
    let trace = (0..entries).map(|n| SnapshotTrace {
        pool: Some((0, 0)),
        ..entry(
            [
                TraceAction::Alloc,
                TraceAction::FreeRequested,
                TraceAction::FreeCompleted,
            ][(n % 3) as usize],
            (n % 8) as i32,
            BASE + n / 3 * 512,
            500,
        )
    });
    SnapshotReport {
        segments: segments.collect(),
        trace: trace.collect(),
        ..report()
    }
}
