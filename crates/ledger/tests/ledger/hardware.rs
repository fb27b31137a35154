//! Which device of the machine a process means by a number, and which processes use the same one.

use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1;

const A: ProcessHandle = ProcessHandle(1);
const B: ProcessHandle = ProcessHandle(2);

fn gpu(name: &str) -> Hardware {
    Hardware {
        uuid: format!("GPU-{name}"),
        mig_uuid: None,
        pci_address: None,
    }
}

fn part(name: &str, of: &str) -> Hardware {
    Hardware {
        mig_uuid: Some(format!("MIG-{name}")),
        ..gpu(of)
    }
}

/// A process with its control group and environment.
type Started<'a> = (ProcessHandle, &'a str, &'a [(&'a str, &'a str)]);

/// A ledger in which these processes are attached.
fn with(processes: &[Started<'_>]) -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default());
    for (process, cgroup, environment) in processes {
        let mut facts = facts(process.0, Level::Segments, true);
        facts.cgroup = Some((*cgroup).to_owned());
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        facts.environment = environment.iter().map(pair).collect();
        ledger.apply(&event(*process, SECOND, Body::Attached(facts)));
    }
    ledger
}

fn alloc(ledger: &mut Ledger, process: ProcessHandle, device: i32, ptr: u64, size: u64) {
    let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, ptr, size) else {
        unreachable!()
    };
    one.device = Some(device);
    ledger.apply(&event(process, 2 * SECOND, Body::Call(one)));
}

fn runs(ledger: &mut Ledger, process: ProcessHandle, devices: &[Hardware]) {
    let devices = devices.to_vec();
    ledger.apply(&event(
        process,
        3 * SECOND,
        Body::RunsOn(RunsOn { devices }),
    ));
}

fn told(ledger: &mut Ledger, process: ProcessHandle, device: i32, hardware: Hardware) {
    let told = DeviceTotal {
        device,
        total_bytes: 1000,
        free_bytes: Some(300),
        hardware: Some(hardware),
        ..DeviceTotal::default()
    };
    ledger.apply(&event(process, 3 * SECOND, Body::DeviceTotal(told)));
}

fn devices(ledger: &Ledger, of: &[ProcessHandle]) -> Vec<v1::MachineDevice> {
    let answer = ledger.ask(of, as_of(4 * SECOND), &v1::DevicesRequest {});
    answer.unwrap().devices
}

/// Names, held bytes and numbers of holders.
fn rows(ledger: &Ledger) -> Vec<(String, Option<u64>, usize)> {
    let devices = devices(ledger, &[A, B]).into_iter();
    devices
        .map(|one| (one.name.unwrap(), one.held_bytes, one.holders.len()))
        .collect()
}

fn names(ledger: &Ledger, process: ProcessHandle) -> Vec<Option<String>> {
    let one = v1::StatsRequest { pid: process.0 };
    let answer = ledger.ask(&[process], as_of(4 * SECOND), &one).unwrap();
    let name = |told: v1::Hardware| told.mig_uuid.unwrap_or(told.uuid);
    let devices = answer.devices.into_iter();
    devices.map(|device| device.hardware.map(name)).collect()
}

fn row(name: &str, held: u64, holders: usize) -> (String, Option<u64>, usize) {
    (name.to_owned(), Some(held), holders)
}

#[test]
fn one_number_of_two_processes_that_run_elsewhere_is_not_one_device() {
    let mut ledger = with(&[(A, "/", &[]), (B, "/", &[])]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    alloc(&mut ledger, B, 0, 0x1000, 20);
    assert_eq!(
        rows(&ledger),
        [row("0", 120, 2)],
        "nothing tells them apart"
    );
    // Each has chosen a device of its own after it was started.
    runs(&mut ledger, A, &[gpu("a")]);
    runs(&mut ledger, B, &[gpu("b")]);
    assert_eq!(rows(&ledger), [row("GPU-a", 100, 1), row("GPU-b", 20, 1)]);
    assert!(devices(&ledger, &[A, B]).iter().all(|one| !one.at_least));
}

#[test]
fn two_numbers_of_one_device_are_one_device() {
    let visible: &[(&str, &str)] = &[("CUDA_VISIBLE_DEVICES", "1")];
    let mut ledger = with(&[(A, "/", &[]), (B, "/", visible)]);
    alloc(&mut ledger, A, 1, 0x1000, 100);
    alloc(&mut ledger, B, 0, 0x1000, 20);
    told(&mut ledger, A, 1, gpu("b"));
    let open = devices(&ledger, &[A, B]);
    assert_eq!(open.len(), 2, "of B nothing is told");
    assert!(
        open.iter().all(|one| one.at_least),
        "B's may be the same one"
    );
    told(&mut ledger, B, 0, gpu("b"));
    assert_eq!(rows(&ledger), [row("GPU-b", 120, 2)]);
    let one = devices(&ledger, &[A, B]).remove(0);
    assert_eq!(one.unexplained_bytes, Some(1000 - 300 - 120));
    assert_eq!(one.hardware.unwrap().uuid, "GPU-b");
    assert!(!one.at_least);
}

#[test]
fn jobs_and_containers_have_numbers_of_their_own() {
    let id = |digit: &str| format!("/docker/{}", digit.repeat(64));
    let (one, other) = (id("a"), id("b"));
    let zero: &[(&str, &str)] = &[("CUDA_VISIBLE_DEVICES", "0")];
    let job = |number| [("CUDA_VISIBLE_DEVICES", "0"), ("SLURM_JOB_ID", number)];
    let (first, second) = (job("7"), job("8"));
    let all: &[(&str, &str)] = &[("NVIDIA_VISIBLE_DEVICES", "all")];
    for (processes, apart) in [
        ([(A, one.as_str(), zero), (B, other.as_str(), zero)], true),
        ([(A, one.as_str(), zero), (B, one.as_str(), zero)], false),
        ([(A, one.as_str(), all), (B, other.as_str(), all)], false),
        ([(A, "/", &first[..]), (B, "/", &second[..])], true),
        ([(A, "/", &first[..]), (B, "/", &first[..])], false),
    ] {
        let mut ledger = with(&processes);
        alloc(&mut ledger, A, 0, 0x1000, 100);
        alloc(&mut ledger, B, 0, 0x1000, 20);
        let found = rows(&ledger);
        match apart {
            true => assert_eq!(found.len(), 2, "{processes:?}: {found:?}"),
            false => assert_eq!(found, [row("0", 120, 2)], "{processes:?}"),
        }
        // They can still be the same one.
        let open = devices(&ledger, &[A, B]);
        assert!(
            open.iter().all(|one| one.at_least == apart),
            "{processes:?}"
        );
    }
}

#[test]
fn parts_of_a_device_are_devices() {
    let mut ledger = with(&[(A, "/", &[]), (B, "/", &[])]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    alloc(&mut ledger, B, 0, 0x1000, 20);
    told(&mut ledger, A, 0, part("1", "a"));
    runs(&mut ledger, B, &[part("2", "a")]);
    assert_eq!(rows(&ledger), [row("MIG-1", 100, 1), row("MIG-2", 20, 1)]);
    let hardware = devices(&ledger, &[A, B]).remove(1).hardware.unwrap();
    assert_eq!(hardware.uuid, "GPU-a");
    assert_eq!(hardware.mig_uuid.as_deref(), Some("MIG-2"));
}

#[test]
fn where_it_runs_tells_a_number_only_if_there_is_one() {
    let mut ledger = with(&[(A, "/", &[])]);
    alloc(&mut ledger, A, 3, 0x1000, 100);
    alloc(&mut ledger, A, 5, 0x2000, 100);
    runs(&mut ledger, A, &[gpu("a"), gpu("b")]);
    assert_eq!(names(&ledger, A), [None, None], "which is which?");

    let mut ledger = with(&[(A, "/", &[])]);
    runs(&mut ledger, A, &[gpu("a")]);
    assert_eq!(names(&ledger, A), []);
    alloc(&mut ledger, A, 3, 0x1000, 100);
    runs(&mut ledger, A, &[gpu("a"), gpu("c")]);
    assert_eq!(names(&ledger, A), [None], "a context without memory");
    runs(&mut ledger, A, &[gpu("a")]);
    assert_eq!(names(&ledger, A), [Some("GPU-a".to_owned())]);
    // The next one that it uses is what is left.
    alloc(&mut ledger, A, 5, 0x2000, 100);
    let both = [Some("GPU-a".to_owned()), Some("GPU-b".to_owned())];
    assert_eq!(names(&ledger, A), [both[0].clone(), None]);
    runs(&mut ledger, A, &[gpu("b"), gpu("a")]);
    assert_eq!(names(&ledger, A), both);
    // A number that it had is one that it keeps.
    runs(&mut ledger, A, &[]);
    assert_eq!(names(&ledger, A), both);
}

#[test]
fn what_cannot_be_true_of_a_number_is_not_believed() {
    let mut ledger = with(&[(A, "/", &[])]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    // The environment of its start says so.
    told(&mut ledger, A, 0, gpu("a"));
    let free = |ledger: &Ledger| devices(ledger, &[A])[0].free_bytes;
    assert_eq!(names(&ledger, A), [Some("GPU-a".to_owned())]);
    assert_eq!(free(&ledger), Some(300));
    runs(&mut ledger, A, &[gpu("b")]);
    assert_eq!(names(&ledger, A), [Some("GPU-b".to_owned())]);
    assert_eq!(free(&ledger), None, "that was the other one's");
    told(&mut ledger, A, 0, gpu("a"));
    assert_eq!(free(&ledger), None);
    told(&mut ledger, A, 0, gpu("b"));
    assert_eq!(free(&ledger), Some(300));

    // It is told before it uses any device.
    let mut ledger = with(&[(A, "/", &[])]);
    told(&mut ledger, A, 0, gpu("a"));
    runs(&mut ledger, A, &[gpu("b")]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    told(&mut ledger, A, 0, gpu("a"));
    assert_eq!((names(&ledger, A), free(&ledger)), (vec![None], None));

    let mut ledger = with(&[(A, "/", &[])]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    runs(&mut ledger, A, &[gpu("b"), gpu("c")]);
    told(&mut ledger, A, 0, gpu("a"));
    assert_eq!((names(&ledger, A), free(&ledger)), (vec![None], None));
}

/// At level `read` no call shows the vendor, so the kind of device is not known.
#[test]
fn a_process_that_is_only_read_uses_the_same_device() {
    let mut ledger = with(&[(A, "/", &[])]);
    let facts = facts(B.0, Level::Read, false);
    ledger.apply(&event(B, SECOND, Body::Attached(facts)));
    ledger.apply(&event(B, SECOND, Body::Placed(Box::default())));
    alloc(&mut ledger, A, 0, 0x1000, 100);
    let part = HeldPart {
        at_ns: 2 * SECOND,
        device: 0,
        allocator: 0,
        part: 0,
        parts: 1,
        total_allocated: 0,
        total_reserved: 4096,
        segments: vec![HeldSegment {
            addr: 0x10_0000,
            size: 4096,
            ..HeldSegment::default()
        }],
    };
    ledger.apply(&event(B, 2 * SECOND, Body::Held(Box::new(part))));
    let open = devices(&ledger, &[A, B]);
    assert_eq!(open.len(), 2, "nothing tells what B's is");
    assert!(open.iter().all(|one| one.at_least), "{open:?}");
    told(&mut ledger, A, 0, gpu("a"));
    let open = devices(&ledger, &[A, B]);
    assert!(open.iter().all(|one| one.at_least), "{open:?}");
    told(&mut ledger, B, 0, gpu("a"));
    assert_eq!(rows(&ledger), [row("GPU-a", 4196, 2)]);
    let one = devices(&ledger, &[A, B]).remove(0);
    assert_eq!((one.kind.as_deref(), one.at_least), (Some("cuda"), true));
}

/// The driver keeps stream-ordered memory after its free, and nobody tells how much of it: it must not look like its context.
#[test]
fn what_the_driver_keeps_of_stream_ordered_memory_is_no_context() {
    for on in [Some(0), None] {
        let mut ledger = with(&[(A, "/", &[])]);
        alloc(&mut ledger, A, 0, 0x1000, 100);
        let told = |ledger: &mut Ledger, process_bytes| {
            let told = DeviceTotal {
                total_bytes: 1000,
                free_bytes: Some(300),
                process_bytes: Some(process_bytes),
                ..DeviceTotal::default()
            };
            ledger.apply(&event(A, 3 * SECOND, Body::DeviceTotal(told)));
        };
        let known = |ledger: &Ledger| {
            let mut devices = devices(ledger, &[A]).into_iter();
            devices.find(|one| one.name.is_some()).unwrap()
        };
        told(&mut ledger, 130);
        assert_eq!(known(&ledger).context_bytes, Some(30));
        for (op, at_ns, size) in [
            (CallOp::AsyncAlloc, 2 * SECOND, 500),
            (CallOp::AsyncFree, 3 * SECOND, 0),
        ] {
            let Body::Call(mut one) = call("cudaMallocAsync", op, 0x9000, size) else {
                unreachable!()
            };
            one.device = on;
            ledger.apply(&event(A, at_ns, Body::Call(one)));
        }
        told(&mut ledger, 630);
        let one = known(&ledger);
        assert_eq!(one.context_bytes, None, "{on:?}");
        assert_eq!(
            (one.held_bytes, one.unexplained_bytes),
            (Some(100), Some(600))
        );
    }
}

/// Two processes may mean two devices by what nobody knows.
#[test]
fn unknown_devices_of_two_processes_are_not_one() {
    let mut ledger = with(&[(A, "/", &[]), (B, "/", &[])]);
    for process in [A, B] {
        let one = call("cudaMalloc", CallOp::Alloc, 0x1000, 100);
        ledger.apply(&event(process, 2 * SECOND, one));
        let mut asked = call("cudaMemGetInfo", CallOp::MemInfo, 0, 1000);
        if let Body::Call(asked) = &mut asked {
            asked.extra = 500;
        }
        ledger.apply(&event(process, 2 * SECOND, asked));
    }
    let devices = devices(&ledger, &[A, B]);
    assert_eq!(devices.len(), 2, "{devices:?}");
    for one in devices {
        assert_eq!((one.name, one.held_bytes), (None, Some(100)));
        assert_eq!((one.free_bytes, one.unexplained_bytes), (None, None));
    }
}

/// What a process at level `segments` was seen to take is a lower bound, and so is the sum with it.
#[test]
fn what_was_seen_of_a_hidden_pool_is_a_lower_bound() {
    let mut ledger = with(&[(A, "/", &[])]);
    let late = facts(B.0, Level::Segments, false);
    ledger.apply(&event(B, SECOND, Body::Attached(late)));
    ledger.apply(&event(B, SECOND, Body::Backend(Backend::Native)));
    alloc(&mut ledger, A, 0, 0x1000, 100);
    told(&mut ledger, A, 0, gpu("a"));
    told(&mut ledger, B, 0, gpu("a"));
    alloc(&mut ledger, B, 0, 0x1000, 30);
    let one = devices(&ledger, &[A, B]).remove(0);
    let holders: Vec<_> = one
        .holders
        .iter()
        .map(|holder| (holder.held_bytes, holder.at_least))
        .collect();
    assert_eq!(holders, [(Some(100), false), (Some(30), true)]);
    assert_eq!((one.held_bytes, one.at_least), (Some(130), true));
    // Where only frees were seen, nothing is known, and the rest is still a lower bound.
    let free = call("cudaFree", CallOp::Free, 0x1000, 0);
    ledger.apply(&event(B, 3 * SECOND, free));
    let one = devices(&ledger, &[A, B]).remove(0);
    assert_eq!((one.held_bytes, one.at_least), (Some(100), true));
}

/// Without a pool, what a process has handed out is what was seen to come from the driver, and as exact as that.
#[test]
fn what_was_there_before_an_attach_without_a_pool_is_in_no_number() {
    let mut ledger = with(&[(A, "/", &[])]);
    let late = facts(B.0, Level::Trace, false);
    ledger.apply(&event(B, SECOND, Body::Attached(late)));
    ledger.apply(&event(B, SECOND, Body::Backend(Backend::Uncached)));
    alloc(&mut ledger, A, 0, 0x1000, 100);
    alloc(&mut ledger, B, 0, 0x1000, 30);
    for of in [A, B] {
        told(&mut ledger, of, 0, gpu("a"));
    }
    let one = devices(&ledger, &[A, B]).remove(0);
    let holders: Vec<_> = one
        .holders
        .iter()
        .map(|holder| (holder.allocated_bytes, holder.allocated_at_least))
        .collect();
    assert_eq!(holders, [(Some(100), false), (Some(30), true)]);
}

/// What was free before a process took or gave back memory says nothing of what others use now.
#[test]
fn what_nobody_explains_is_of_one_moment() {
    let mut ledger = with(&[(A, "/", &[]), (B, "/", &[])]);
    alloc(&mut ledger, A, 0, 0x1000, 100);
    alloc(&mut ledger, B, 0, 0x1000, 20);
    told(&mut ledger, A, 0, gpu("a"));
    told(&mut ledger, B, 0, gpu("a"));
    let unexplained = |ledger: &Ledger| devices(ledger, &[A, B])[0].unexplained_bytes;
    assert_eq!(unexplained(&ledger), Some(1000 - 300 - 120));
    assert_eq!(ledger.free_is_old(A), []);
    let free = call("cudaFree", CallOp::Free, 0x1000, 0);
    ledger.apply(&event(A, 4 * SECOND, free));
    assert_eq!(unexplained(&ledger), None);
    assert_eq!(ledger.free_is_old(A), [Some(0)]);
    assert_eq!(ledger.free_is_old(B), [], "B has changed nothing");
    // Another that is asked later tells of all.
    let Body::Call(mut asked) = call("cudaMemGetInfo", CallOp::MemInfo, 0, 1000) else {
        unreachable!()
    };
    (asked.device, asked.extra) = (Some(0), 400);
    ledger.apply(&event(B, 4 * SECOND, Body::Call(asked)));
    assert_eq!(unexplained(&ledger), Some(1000 - 400 - 20));
    ledger.apply(&event(A, 5 * SECOND, Body::Exited));
    assert_eq!(unexplained(&ledger), None, "what A had is free since");
}
