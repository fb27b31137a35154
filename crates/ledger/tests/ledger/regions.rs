//! Pools that report their own memory through mstx, compared with a plain model: a list of what was registered.

use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::{Answer, Ledger, inexact};
use memscope_proto::v1::{RegionPool, RegionsOnDevice};
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;
use std::sync::Arc;

const ATB: u64 = 0x700;

struct Pools {
    ledger: Ledger,
    time: u64,
}

impl Pools {
    fn new(from_start: bool) -> Pools {
        Pools {
            ledger: attached_as(Level::Segments, from_start, SECOND, Backend::Unknown),
            time: SECOND,
        }
    }

    fn say(&mut self, body: Body) {
        self.time += 1000;
        self.ledger.apply(&event(P, self.time, body));
    }

    fn domain(&mut self, handle: u64, name: &str) {
        self.say(Body::Domain(Domain {
            handle,
            name: Arc::from(name),
        }));
    }

    fn region(&mut self, domain: u64, change: RegionChange) {
        self.say(Body::Region(Region {
            domain,
            change,
            untold: 0,
        }));
    }

    fn came(&mut self, domain: u64, ptr: u64, size: u64, handle: u64, heap: u64) {
        self.region(
            domain,
            RegionChange::Came {
                device: Some(0),
                ptr,
                size,
                handle,
                heap,
            },
        );
    }

    fn heap(&mut self, domain: u64, ptr: u64, size: u64, handle: u64) {
        self.region(
            domain,
            RegionChange::HeapCame {
                device: Some(0),
                ptr,
                size,
                handle,
            },
        );
    }

    fn pools(&self) -> Vec<RegionPool> {
        stats(&self.ledger).region_pools
    }

    fn only(&self) -> (RegionPool, RegionsOnDevice) {
        let [pool] = <[RegionPool; 1]>::try_from(self.pools()).unwrap();
        let [row] = <[RegionsOnDevice; 1]>::try_from(pool.devices.clone()).unwrap();
        (pool, row)
    }

    fn notes(&self) -> Vec<String> {
        let notes = stats(&self.ledger).coverage.into_iter();
        notes
            .map(|note| note.code)
            .filter(|code| code.starts_with("regions"))
            .collect()
    }
}

#[test]
fn regions_of_a_heap() {
    let mut p = Pools::new(true);
    p.domain(ATB, "atb");
    p.heap(ATB, 0x1000, 64 * MIB, 9);
    p.came(ATB, 0x1000, 4 * MIB, 1, 9);
    p.came(ATB, 0x1000, 4 * MIB, 2, 9);
    p.came(ATB, 0x9000, 8 * MIB, 3, 9);
    let (pool, row) = p.only();
    assert_eq!(pool.title, "ATB");
    assert_eq!((row.count, row.bytes), (3, 16 * MIB), "two at one address");
    assert_eq!(row.heap_bytes, Some(64 * MIB));
    p.region(ATB, RegionChange::WentByHandle { handle: 1 });
    p.region(ATB, RegionChange::WentByHandle { handle: 1 });
    p.region(ATB, RegionChange::Went { ptr: 0x1000 });
    let (pool, row) = p.only();
    assert_eq!((row.count, row.bytes), (1, 8 * MIB));
    assert_eq!(pool.orphan_free_count, 1);
    assert_eq!((row.alloc_count, row.free_count), (3, 2));
    // When a heap is given back, so are the regions in it.
    p.came(ATB, 0xf000, 512, 0, 0);
    p.region(ATB, RegionChange::HeapWent { handle: 9 });
    let (_, row) = p.only();
    assert_eq!((row.count, row.bytes, row.heap_bytes), (1, 512, Some(0)));
    assert_eq!(row.peak_bytes, 16 * MIB);
    assert!(p.notes().is_empty());
    // Regions are not counted in the numbers of a device.
    assert!(stats(&p.ledger).devices.is_empty());
}

#[test]
fn frameworks_tell_their_sums_and_leave_the_rest_unset() {
    let mut p = Pools::new(true);
    p.domain(1, "mindsporeMemPool");
    p.came(1, 0x1000, 512, 0x7fff_1234, 0x7fff_5678);
    p.heap(1, 0x1000, 2 * MIB, 0);
    p.came(1, 0x2000, 1024, 0x7fff_1234, 0x7fff_5678);
    p.heap(1, 0x2000, 4 * MIB, 0);
    let (pool, row) = p.only();
    assert_eq!(pool.title, "MindSpore");
    assert_eq!((row.count, row.bytes), (2, 1536), "garbage is no handle");
    assert_eq!(row.heap_bytes, Some(4 * MIB), "a sum, not a summand");
    p.region(1, RegionChange::Went { ptr: 0x1000 });
    p.heap(1, 0x1000, 4 * MIB, 0);
    p.region(1, RegionChange::HeapWent { handle: 0x1000 });
    let (_, row) = p.only();
    assert_eq!((row.count, row.heap_bytes), (1, Some(4 * MIB)));
    // An allocation that failed has no address.
    p.came(1, 0, 77, 0, 0);
    p.region(1, RegionChange::Went { ptr: 0 });
    assert_eq!(p.only().1, row);
}

#[test]
fn what_torch_npu_tells_better_is_not_told_again() {
    let mut p = Pools::new(true);
    p.domain(1, "msleaks");
    p.domain(2, "ptaWorkspace");
    p.came(1, 0x1000, 512, 0, 0);
    p.came(2, 0x9000, 4096, 0, 0);
    assert_eq!(p.pools().len(), 2, "nothing else tells of them");
    p.say(Body::Placed(Box::new(Placement {
        pool_seen: true,
        ..Placement::default()
    })));
    p.came(1, 0x2000, 512, 0, 0);
    assert_eq!(p.only().0.title, "torch_npu's workspaces");
    p.say(Body::Workspace(Workspace {
        device: Some(0),
        ptr: 0x9000,
        size: 4096,
    }));
    assert!(p.pools().is_empty());
    // The pool of another domain stays.
    p.domain(3, "mine");
    p.came(3, 0x1000, 1, 0, 0);
    assert_eq!(p.only().0.title, "mine");
}

#[test]
fn a_domain_from_before_has_no_name() {
    let mut p = Pools::new(false);
    p.heap(0x44, 0x1000, MIB, 5);
    p.came(0x44, 0x1000, 512, 6, 5);
    let (pool, row) = p.only();
    assert_eq!(pool.domain, None);
    assert!(pool.title.contains("0x44"));
    assert_eq!((row.count, row.heap_bytes), (1, None), "a sum or a summand");
    assert_eq!(
        p.notes(),
        ["regions_baseline_unknown", "regions_domain_unknown"]
    );
    p.domain(0x44, "atb");
    assert_eq!(p.only().0.title, "ATB");
    assert_eq!(p.notes(), ["regions_baseline_unknown"]);
}

#[test]
fn a_library_that_came_late_matters_where_pools_speak() {
    let mut p = Pools::new(true);
    let text = "libms_tools_ext.so was loaded after the attach".to_owned();
    p.say(Body::Coverage(CoverageNote {
        code: "regions_baseline_unknown".to_owned(),
        text,
    }));
    assert!(p.notes().is_empty());
    p.domain(1, "atb");
    p.came(1, 0x1000, 512, 6, 5);
    assert_eq!(p.notes(), ["regions_baseline_unknown"]);
}

#[test]
fn the_domain_without_a_handle() {
    let mut p = Pools::new(true);
    p.came(0, 0x1000, 512, 0, 0);
    assert_eq!(p.only().0.title, "global");
    // Without a tool all domains have the handle 0.
    p.domain(0, "atb");
    assert_eq!(p.only().0.domain, None);
    assert_eq!(p.notes(), ["regions_domain_unknown"]);
    let mut late = Pools::new(false);
    late.came(0, 0x1000, 512, 0, 0);
    assert_eq!(late.only().0.domain, None);
}

#[test]
fn regions_that_were_not_told_of_are_said() {
    let mut p = Pools::new(true);
    p.domain(ATB, "atb");
    p.say(Body::Region(Region {
        domain: ATB,
        change: RegionChange::Went { ptr: 0x1000 },
        untold: 7,
    }));
    let [pool] = <[RegionPool; 1]>::try_from(p.pools()).unwrap();
    assert_eq!((pool.untold_count, pool.orphan_free_count), (7, 1));
    assert_eq!(p.notes(), ["regions_untold"]);
}

/// Nothing reads what such a pool holds, so nothing puts it right after a loss.
#[test]
fn a_loss_leaves_regions_inexact() {
    let mut p = Pools::new(true);
    let lose = |p: &mut Pools, count| {
        p.time += 1000;
        let mut told = event(P, p.time, Body::Lost);
        told.lost_before = count;
        p.ledger.apply(&told);
    };
    lose(&mut p, 1);
    assert!(p.notes().is_empty(), "there is no such pool");
    p.domain(ATB, "atb");
    p.came(ATB, 0x1000, 4 * MIB, 1, 0);
    assert_eq!(p.notes(), ["regions_inexact_after_loss"]);
    let notes = stats(&p.ledger).coverage;
    let spoils = |answer| {
        let mut notes = inexact(answer, &notes).into_iter();
        notes.any(|note| note.code == "regions_inexact_after_loss")
    };
    assert!(spoils(Answer::Stats) && !spoils(Answer::Leaks));
}

#[test]
fn what_is_kept_has_a_bound() {
    let mut p = Pools::new(true);
    p.domain(ATB, "atb");
    for handle in 1..1000 {
        p.came(ATB, 0x1000, 1, handle, 7);
    }
    assert_eq!(p.only().1.count, 64);
    // Since a free may be missing, a region at the same address replaces all others there.
    p.say(Body::Region(Region {
        domain: ATB,
        change: RegionChange::WentByHandle { handle: 1 },
        untold: 1,
    }));
    p.came(ATB, 0x1000, 1, 5000, 7);
    assert_eq!(p.only().1.count, 1);
    for device in 0..1000 {
        let change = RegionChange::Came {
            device: Some(device),
            ptr: 0x10_0000 + u64::from(device.unsigned_abs()) * 16,
            size: 1,
            handle: 0,
            heap: 7,
        };
        p.region(ATB, change);
    }
    let rows = p.pools()[0].devices.clone();
    assert!(rows.len() <= 257, "{}", rows.len());
    assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 1001);
    p.heap(ATB, 0x1000, 1, 7);
    p.region(ATB, RegionChange::HeapWent { handle: 7 });
    let rows = p.pools()[0].devices.clone();
    assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 0);
    let kept = p.ledger.kept(P).unwrap();
    assert!(kept.allocations < 10, "{kept:?}");
    Met {
        what: "regions at one address",
        most: constant("crates/ledger/src/state/regions.rs", "AT_ONE"),
        beyond: "a further one replaces one of them",
        told: "the count of the pool is that of what is kept",
        test: "what_is_kept_has_a_bound",
    }
    .is_told();
}

/// A region that was registered and not given back.
#[derive(Clone, Debug)]
struct Known {
    ptr: u64,
    size: u64,
    device: i32,
    handle: u64,
    heap: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Came(Known),
    Went(u64),
    WentByHandle(u64),
    Heap(u64, u64, i32),
    HeapWent(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let known = (1..9u64, 1..5000u64, 0..2, 0..6u64, 0..4u64).prop_map(
        |(ptr, size, device, handle, heap)| Known {
            ptr: ptr * 16,
            size,
            device,
            handle,
            heap,
        },
    );
    prop_oneof![
        6 => known.prop_map(Step::Came),
        2 => (1..9u64).prop_map(|ptr| Step::Went(ptr * 16)),
        2 => (1..6u64).prop_map(Step::WentByHandle),
        1 => (1..4u64, 1..9000u64, 0..2).prop_map(|(handle, size, device)| Step::Heap(handle, size, device)),
        1 => (1..4u64).prop_map(Step::HeapWent),
    ]
}

proptest! {
    #[test]
    fn as_a_plain_list(steps in proptest::collection::vec(step(), 0..120)) {
        let mut p = Pools::new(true);
        p.domain(ATB, "atb");
        let mut live: Vec<Known> = Vec::new();
        let mut heaps: Vec<(u64, u64, i32)> = Vec::new();
        let mut orphans = 0;
        for step in steps {
            match step {
                Step::Came(new) => {
                    live.retain(|old| {
                        let same_handle = new.handle != 0 && old.handle == new.handle;
                        let nameless = new.handle == 0 || old.handle == 0;
                        !(same_handle || old.ptr == new.ptr && nameless)
                    });
                    let device = Some(new.device);
                    let (ptr, size, handle, heap) = (new.ptr, new.size, new.handle, new.heap);
                    p.region(ATB, RegionChange::Came { device, ptr, size, handle, heap });
                    live.push(new);
                }
                Step::Went(ptr) => {
                    match live.iter().rposition(|old| old.ptr == ptr) {
                        Some(at) => drop(live.remove(at)),
                        None => orphans += 1,
                    }
                    p.region(ATB, RegionChange::Went { ptr });
                }
                Step::WentByHandle(handle) => {
                    match live.iter().position(|old| old.handle == handle) {
                        Some(at) => drop(live.remove(at)),
                        None => orphans += 1,
                    }
                    p.region(ATB, RegionChange::WentByHandle { handle });
                }
                Step::Heap(handle, size, device) => {
                    heaps.retain(|old| old.0 != handle);
                    heaps.push((handle, size, device));
                    p.region(ATB, RegionChange::HeapCame { device: Some(device), ptr: handle << 20, size, handle });
                }
                Step::HeapWent(handle) => {
                    if heaps.iter().any(|heap| heap.0 == handle) {
                        live.retain(|old| old.heap != handle);
                    }
                    heaps.retain(|old| old.0 != handle);
                    p.region(ATB, RegionChange::HeapWent { handle });
                }
            }
            let pools = p.pools();
            let pool = pools.first().unwrap();
            prop_assert_eq!(pool.orphan_free_count, orphans);
            for device in 0..2 {
                let row = pool.devices.iter().find(|row| row.device == Some(device)).cloned().unwrap_or_default();
                let own: Vec<&Known> = live.iter().filter(|l| l.device == device).collect();
                prop_assert_eq!(row.count, own.len() as u64);
                prop_assert_eq!(row.bytes, own.iter().map(|l| l.size).sum::<u64>());
                prop_assert!(row.peak_bytes >= row.bytes);
                let heap: u64 = heaps.iter().filter(|h| h.2 == device).map(|h| h.1).sum();
                prop_assert_eq!(row.heap_bytes.unwrap_or(0), heap);
            }
        }
    }
}
