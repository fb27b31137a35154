//! Tables of the ledger that are full: what found no room is counted, and said.

use crate::common::calls::{Calls, plain};
use crate::common::*;
use memscope_ledger::event::*;
use memscope_tests::limits::{Met, constant};

/// The text of a note; `None` if it is not said.
fn note(c: &Calls, code: &str) -> Option<String> {
    let mut notes = stats(&c.ledger).coverage.into_iter();
    notes.find(|note| note.code == code).map(|note| note.text)
}

fn say(c: &mut Calls, body: Body) {
    c.time += 1000;
    c.ledger.apply(&event(P, c.time, body));
}

#[test]
fn calls_that_fail_in_too_many_ways() {
    let mut c = plain();
    for status in 1..=2000 {
        assert_eq!(note(&c, "failures_full").is_some(), status > 1025);
        c.send(CallOp::Alloc, |call| call.status = status);
    }
    assert_eq!(stats(&c.ledger).failures.len(), 1024);
    let said = note(&c, "failures_full").unwrap();
    assert!(said.contains("976 failed calls"), "{said}");
    Met {
        what: "kinds of failed calls: function and status",
        most: constant("crates/ledger/src/state/driver/mod.rs", "FAILURE_KINDS"),
        beyond: "failures of further kinds are counted and not listed",
        told: "`failures_full` in coverage",
        test: "calls_that_fail_in_too_many_ways",
    }
    .is_told();
}

#[test]
fn memory_that_is_reported_in_too_many_domains() {
    let mut c = plain();
    for domain in 1..=300 {
        let change = RegionChange::Came {
            device: Some(0),
            ptr: 4096,
            size: 512,
            handle: 1,
            heap: 0,
        };
        say(
            &mut c,
            Body::Region(Region {
                domain,
                change,
                untold: 0,
            }),
        );
        assert_eq!(note(&c, "regions_full").is_some(), domain > 256);
    }
    assert_eq!(stats(&c.ledger).region_pools.len(), 256);
    let said = note(&c, "regions_full").unwrap();
    assert!(said.contains("44 reports"), "{said}");
    Met {
        what: "domains of mstx in which a process reports memory",
        most: constant("crates/ledger/src/state/regions.rs", "DOMAINS"),
        beyond: "reports in further ones are counted, and are in no number",
        told: "`regions_full` in coverage",
        test: "memory_that_is_reported_in_too_many_domains",
    }
    .is_told();
}

/// A stack of frames of Python code at these addresses.
fn stack(id: u64, codes: impl Iterator<Item = u64>) -> Body {
    Body::Stack(Box::new(StackSeen {
        id,
        frames: codes.map(|code| (code, 0)).collect(),
        ..StackSeen::default()
    }))
}

#[test]
fn code_that_is_too_much_to_be_named() {
    const MOST: u64 = 1 << 20;
    let mut c = plain();
    for id in 0..MOST / 1024 {
        say(&mut c, stack(id, id * 1024..(id + 1) * 1024));
    }
    assert_eq!(note(&c, "names_full"), None);
    say(&mut c, stack(MOST, MOST..MOST + 7));
    let said = note(&c, "names_full").unwrap();
    assert!(said.starts_with("7 times"), "{said}");
    // Compiled code has a table of its own, as large.
    let name = |address| {
        Body::Native(Box::new(NativeName {
            address,
            ..NativeName::default()
        }))
    };
    (0..MOST).for_each(|address| say(&mut c, name(address)));
    let said = note(&c, "names_full").unwrap();
    assert!(said.starts_with("7 times"), "{said}");
    (0..MOST + 5).for_each(|address| say(&mut c, name(address)));
    let said = note(&c, "names_full").unwrap();
    assert!(said.starts_with("12 times"), "{said}");
    let most = constant("crates/ledger/src/state/stacks.rs", "MOST_CODES");
    assert!(most.starts_with("`1 << 20`"), "{most}");
    Met {
        what: "code objects of a process, and addresses of compiled code",
        most,
        beyond: "frames of further ones have no name",
        told: "`names_full` in coverage",
        test: "code_that_is_too_much_to_be_named",
    }
    .is_told();
}

#[test]
fn dead_code_that_waits_for_its_name() {
    const MOST: u64 = 1 << 16;
    let mut c = plain();
    for id in 0..=MOST / 1024 {
        say(&mut c, stack(id, id * 1024..(id + 1) * 1024));
    }
    for code in 0..MOST + 3 {
        c.time += 1000;
        let mut died = event(P, c.time, Body::CodeDied { code });
        died.id.sequence = code + 1;
        c.ledger.apply(&died);
    }
    let said = note(&c, "names_full").unwrap();
    assert!(said.starts_with("3 times"), "{said}");
    let most = constant("crates/ledger/src/state/stacks.rs", "MOST_DEAD");
    assert!(most.starts_with("`1 << 16`"), "{most}");
    Met {
        what: "dead code objects of a process that wait for their names",
        most,
        beyond: "frames of further ones have no name",
        told: "`names_full` in coverage",
        test: "dead_code_that_waits_for_its_name",
    }
    .is_told();
}

#[test]
fn stacks_that_find_no_room() {
    const MOST: u64 = 1 << 18;
    let mut c = plain();
    for id in 0..MOST + 2 {
        say(&mut c, stack(id, id % 1000..id % 1000 + 1 + id / 1000));
    }
    for id in [0, MOST - 1, MOST, MOST + 1] {
        let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, (id + 1) << 12, 512) else {
            unreachable!()
        };
        one.device = Some(0);
        c.time += 1000;
        c.ledger.apply(&Event {
            stack: StackRef::Id(id),
            ..event(P, c.time, Body::Call(one))
        });
    }
    let report = c.ledger.stacks(P, as_of(0)).unwrap();
    let lost = report
        .rows
        .iter()
        .filter(|row| row.stack.missing == Some("lost"));
    let lost: u64 = lost.map(|row| row.live.count).sum();
    assert_eq!((report.rows.len(), lost), (3, 2));
    let most = constant("crates/ledger/src/state/stacks.rs", "MOST");
    assert!(most.starts_with("`1 << 18`"), "{most}");
    Met {
        what: "different stacks of a process",
        most,
        beyond: "what further ones allocate counts to a stack that is lost",
        told: "the row `lost` in `stacks`",
        test: "stacks_that_find_no_room",
    }
    .is_told();
}

/// With each change of a process's code all its stacks with frames of compiled code come again under other identities.
#[test]
fn identities_of_stacks_that_are_seen_again_and_again() {
    const MOST: u64 = 1 << 20;
    const STACKS: u64 = 2_000;
    let mut c = plain();
    for id in 0..600 * STACKS {
        let seen = StackSeen {
            id,
            natives: vec![0x7000_0000 + id % STACKS],
            ..StackSeen::default()
        };
        say(&mut c, Body::Stack(Box::new(seen)));
    }
    let named = |id| !c.ledger.frames(P, StackRef::Id(id)).is_empty();
    assert!((599 * STACKS..600 * STACKS).all(named), "those in use");
    assert!(!named(0));
    let kept = c.ledger.kept(P).unwrap().identities as u64;
    assert!(kept <= MOST, "{kept}");
    let most = constant("crates/ledger/src/state/stacks.rs", "MOST_IDENTITIES");
    assert!(most.starts_with("`1 << 20`"), "{most}");
    Met {
        what: "identities of a process's stacks",
        most,
        beyond: "the half that was seen longest ago is forgotten; the programs have given these stacks others since",
        told: "nothing is missing",
        test: "identities_of_stacks_that_are_seen_again_and_again",
    }
    .is_told();
}
