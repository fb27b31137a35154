//! Events that are encoded as records are decoded to the same events.

use memscope_ledger::event::{
    Body, Call, CallOp, CoverageNote, Domain, Event, EventId, HalFacts, HalModule, HalPage,
    HalSpace, Layer, Mark, MarkKind, MarkSource, PoolOom, PoolReport, PoolTrace, ProcessHandle,
    Region, RegionChange, Shed, ShedPart, StackRef, StackSeen, TraceAction, Vendor,
};
use memscope_log::records::{DaemonRecord, Decoder, Outcome, SiteDefined, Stamp, encode};
use proptest::prelude::*;
use std::sync::Arc;

fn stack() -> impl Strategy<Value = StackRef> {
    prop_oneof![
        Just(StackRef::NotTaken),
        Just(StackRef::NoPython),
        Just(StackRef::Busy),
        Just(StackRef::Unreadable),
        Just(StackRef::NotSampled),
        (5..1u64 << 58).prop_map(StackRef::Id),
    ]
}

fn hal_facts() -> impl Strategy<Value = HalFacts> {
    let space = prop_oneof![
        Just(HalSpace::Svm),
        Just(HalSpace::Device),
        Just(HalSpace::Host),
        Just(HalSpace::Dvpp),
    ];
    let page = prop_oneof![
        Just(HalPage::Normal),
        Just(HalPage::Huge),
        Just(HalPage::Giant),
    ];
    let memory = proptest::option::of(0..8u8);
    (0..1024u16, space, page, any::<u8>(), memory).prop_map(
        |(device, space, page, module, memory)| HalFacts {
            device,
            space,
            page,
            module: HalModule(module),
            created: memory.is_some(),
            memory,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    let bytes = 0..1u64 << 60;
    let report = (
        0..64i32,
        any::<u64>(),
        any::<i64>(),
        bytes.clone(),
        bytes.clone(),
    )
        .prop_map(|(device, ptr, size, total_allocated, total_reserved)| {
            Body::Report(PoolReport {
                device,
                ptr,
                size,
                total_allocated,
                total_reserved,
            })
        });
    let oom = (0..64i32, bytes.clone(), bytes.clone(), bytes.clone()).prop_map(
        |(device, size, total_allocated, total_reserved)| {
            Body::Oom(PoolOom {
                device,
                size,
                total_allocated,
                total_reserved,
            })
        },
    );
    let ops = [
        CallOp::Alloc,
        CallOp::Free,
        CallOp::HostAlloc,
        CallOp::HostFree,
        CallOp::MemInfo,
        CallOp::ArrayFree,
    ];
    let call = (
        proptest::sample::select(ops.to_vec()),
        proptest::option::of(0..64i32),
        any::<i32>(),
        (bytes.clone(), bytes.clone(), bytes.clone(), bytes.clone()),
        proptest::option::of(bytes),
        (0..1000u32, proptest::option::of(hal_facts())),
    )
        .prop_map(
            |(op, device, status, (ptr, size, handle, extra), stream, (nested, hal))| {
                let cuda = hal.is_none() && nested % 2 == 0;
                // In these calls of CUDA's the record has the context in the place of `extra`.
                let in_context = cuda && matches!(op, CallOp::Alloc | CallOp::HostAlloc);
                Body::Call(Call {
                    function: Arc::from(if cuda { "cuMemAlloc_v2" } else { "halMemAlloc" }),
                    layer: Layer::Driver,
                    vendor: if cuda { Vendor::Cuda } else { Vendor::Ascend },
                    op,
                    status,
                    // The device comes from the word of flags, if it names one.
                    device: hal.map_or(device, |hal| {
                        let host = hal.space == HalSpace::Host;
                        (!host).then_some(i32::from(hal.device)).or(device)
                    }),
                    ptr,
                    size,
                    stream,
                    handle,
                    extra: if hal.is_some() || in_context {
                        0
                    } else {
                        extra
                    },
                    context: if in_context { extra } else { 0 },
                    of_host: nested % 3 == 0,
                    hal,
                    nested,
                    duration_ns: extra / 2,
                })
            },
        );
    let mark = ("[a-z\"\\n ]{0,20}", any::<u64>()).prop_map(|(name, range)| {
        Body::Mark(Box::new(Mark {
            kind: MarkKind::Step,
            source: MarkSource::Mstx,
            range,
            name: Arc::from(name),
            cut: false,
        }))
    });
    let said = prop_oneof![
        Just(Body::Detached),
        Just(Body::Launches { count: 7 }),
        Just(Body::Shed(Shed {
            part: ShedPart::Stacks,
            held_bytes: 3 << 20,
            limit_bytes: 2 << 20,
        })),
        Just(Body::Attached(Box::default())),
        Just(Body::Coverage(CoverageNote {
            code: "c".into(),
            text: "t".into()
        })),
        Just(Body::Stack(Box::new(StackSeen {
            id: 256,
            frames: vec![(0x1000, 0)],
            ..StackSeen::default()
        }))),
    ];
    let numbers = (any::<u64>(), 0..1u64 << 62, any::<u64>(), any::<u64>());
    let region = (0..5u8, 0..64i32, numbers, any::<(u64, u32)>()).prop_map(
        |(what, device, (ptr, size, handle, heap), (domain, untold))| {
            let device = Some(device);
            let change = match what {
                0 => RegionChange::HeapCame {
                    device,
                    ptr,
                    size,
                    handle,
                },
                1 => RegionChange::HeapWent { handle },
                2 => RegionChange::Came {
                    device,
                    ptr,
                    size,
                    handle,
                    heap,
                },
                3 => RegionChange::Went { ptr },
                _ => RegionChange::WentByHandle { handle },
            };
            Body::Region(Region {
                domain,
                change,
                untold,
            })
        },
    );
    let domain = (any::<u64>(), "[a-zé]{0,31}").prop_map(|(handle, name)| {
        let name = Arc::from(name);
        Body::Domain(Domain { handle, name })
    });
    prop_oneof![report, oom, call, mark, said, region, domain]
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        body in body(),
        stack in stack(),
        (process, tid, time_ns, lost_before, sampling) in (1..99u32, any::<u32>(), any::<u64>(), any::<u64>(), 0..32u8),
    ) {
        let event = Event {
            id: EventId { epoch: 9, sequence: 2 },
            time_ns,
            process: ProcessHandle(process),
            tid,
            lost_before,
            stack,
            sampling,
            body,
        };
        let mut decoder = Decoder::new(9);
        let cuda = matches!(&event.body, Body::Call(call) if call.vendor == Vendor::Cuda);
        let site = DaemonRecord::SiteDefined(SiteDefined {
            site: 3,
            function: if cuda { "cuMemAlloc_v2" } else { "halMemAlloc" }.into(),
            layer: Some(Layer::Driver),
            vendor: Some(if cuda { Vendor::Cuda } else { Vendor::Ascend }),
            op: Some(CallOp::Alloc),
            library: String::new(),
            offset: 0,
        });
        let stamp = Stamp { process: ProcessHandle(0), tid: 0, time_ns: 0, lost_before: 0 };
        decoder.decode(&site.encode(stamp).unwrap());
        let record = encode(&event, 3).unwrap().unwrap();
        let Outcome::Decoded(read) = decoder.decode(&record) else {
            panic!("not an event");
        };
        prop_assert_eq!(read, event);
    }
}

#[test]
fn what_only_probes_tell_has_no_record() {
    let event = |body| Event {
        id: EventId::default(),
        time_ns: 1,
        process: ProcessHandle(1),
        tid: 1,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    };
    assert!(
        encode(&event(Body::Forked { child: 1 }), 0)
            .unwrap()
            .is_none()
    );
    let facts = Body::Attached(Box::default());
    assert!(encode(&event(facts), 0).unwrap().is_some());
}

proptest! {
    #[test]
    fn an_entry_of_the_trace_is_decoded_as_it_was(
        number in 0..9i32,
        device in prop::option::of(0..9i32),
        (addr, size, stream) in (any::<u64>(), 0..u64::MAX / 4, any::<u64>()),
        block_size in prop::option::of(0..u64::MAX / 4),
        totals in prop::option::of((u64::MAX / 4..u64::MAX / 2, 0..u64::MAX / 4)),
        pool in prop::option::of((any::<u64>(), any::<u64>())),
    ) {
        use TraceAction::*;
        let actions = [
            Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap, Snapshot, Oom,
        ];
        let action = actions[number as usize];
        // Without the block's size the total after an allocation is not known.
        let totals = totals.filter(|_| action != Alloc || block_size.is_some());
        let trace = PoolTrace {
            action,
            allocator: 7,
            device,
            addr,
            size,
            stream,
            block_size,
            total_allocated: totals.map(|totals| totals.0),
            total_reserved: totals.map(|totals| totals.1),
            pool,
        };
        let event = Event {
            id: EventId { epoch: 1, sequence: 1 },
            time_ns: 3,
            process: ProcessHandle(1),
            tid: 4,
            lost_before: 0,
            stack: StackRef::Id(0x1234),
            sampling: 0,
            body: Body::Trace(trace),
        };
        let record = encode(&event, 0).unwrap().unwrap();
        let Outcome::Decoded(read) = Decoder::new(1).decode(&record) else {
            panic!("not an event");
        };
        prop_assert_eq!(read, event);
    }
}
