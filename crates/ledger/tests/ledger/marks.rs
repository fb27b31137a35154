//! Which marks are kept, how many there were, and which one a name means.

use crate::common::{MS, P, as_of, attached, event};
use memscope_ledger::event::{Body, EventId, Level, Mark, MarkKind, MarkSource};
use memscope_ledger::{Ledger, find_mark};
use memscope_proto::v1;
use memscope_proto::v1::MarksResponse;
use memscope_tests::limits::{Met, constant};

struct Told {
    ledger: Ledger,
    number: u64,
}

impl Told {
    fn new() -> Told {
        Told {
            ledger: attached(Level::Trace, true, 0),
            number: 0,
        }
    }

    fn mark(&mut self, source: MarkSource, kind: MarkKind, name: &str) -> u64 {
        self.number += 1;
        let mut told = event(
            P,
            self.number * MS,
            Body::Mark(Box::new(Mark {
                kind,
                source,
                name: name.into(),
                ..Mark::default()
            })),
        );
        told.id = EventId {
            epoch: 1,
            sequence: self.number,
        };
        told.tid = 77;
        self.ledger.apply(&told);
        self.number
    }

    fn report(&self) -> MarksResponse {
        let question = v1::MarksRequest {
            include_framework: true,
            ..v1::MarksRequest::default()
        };
        let as_of = as_of((self.number + 1) * MS);
        self.ledger.ask(&[P], as_of, &question).unwrap()
    }

    fn names(&self, name: &str) -> Result<u64, String> {
        let report = self.report();
        find_mark(&report.marks, name).map(|mark| mark.event.unwrap().sequence)
    }
}

fn count(report: &MarksResponse, origin: v1::MarkOrigin) -> (u64, u64) {
    let of = report.counts.iter().find(|o| o.origin() == origin).unwrap();
    (of.count, of.kept)
}

#[test]
fn a_name_means_its_last_mark_and_a_number_an_earlier_one() {
    let mut told = Told::new();
    let first = told.mark(MarkSource::Outside, MarkKind::Instant, "new data set");
    let other = told.mark(MarkSource::Memscope, MarkKind::Begin, "evaluation");
    told.mark(MarkSource::Memscope, MarkKind::End, "");
    let second = told.mark(MarkSource::Outside, MarkKind::Instant, "new data set");
    assert_eq!(told.names("new data set"), Ok(second));
    assert_eq!(told.names("new data set#1"), Ok(first));
    assert_eq!(told.names("new data set#2"), Ok(second));
    assert_eq!(told.names("evaluation"), Ok(other));
    assert!(
        told.names("new data set#3")
            .unwrap_err()
            .contains("#1 to #2")
    );
    assert!(told.names("nothing").unwrap_err().contains("no mark"));
    let report = told.report();
    // Ends of ranges have no name and are not kept as marks.
    assert_eq!(report.marks.len(), 3);
    assert_eq!(report.marks[1].tid, Some(77));
    assert_eq!(report.marks[1].nth, Some(1));
    assert_eq!(report.marks[2].nth, Some(2));
    assert_eq!(count(&report, v1::MarkOrigin::People), (2, 2));
    assert_eq!(count(&report, v1::MarkOrigin::Program), (1, 1));
}

/// PyTorch's own names contain a number sign, which is part of the name.
#[test]
fn a_number_sign_may_belong_to_the_name() {
    let mut told = Told::new();
    let step = told.mark(
        MarkSource::RecordFunction,
        MarkKind::Begin,
        "ProfilerStep#7",
    );
    told.mark(MarkSource::Memscope, MarkKind::Instant, "ProfilerStep");
    assert_eq!(told.names("ProfilerStep#7"), Ok(step));
}

#[test]
fn frequent_names_do_not_push_out_a_rare_one() {
    let mut told = Told::new();
    let by_program = told.mark(MarkSource::Nvtx, MarkKind::Instant, "new data set");
    let by_person = told.mark(MarkSource::Outside, MarkKind::Instant, "look here");
    for _ in 0..5_000 {
        told.mark(MarkSource::Backward, MarkKind::Begin, "");
        told.mark(
            MarkSource::RecordFunction,
            MarkKind::Begin,
            "Optimizer.step#Adam.step",
        );
        told.mark(MarkSource::RecordFunction, MarkKind::Begin, "forward");
        told.mark(MarkSource::Nvtx, MarkKind::Begin, "loss");
    }
    assert_eq!(told.names("new data set"), Ok(by_program));
    assert_eq!(told.names("look here"), Ok(by_person));
    let last = told.number - 2;
    assert_eq!(told.names("Optimizer.step#Adam.step"), Ok(last));
    // The marks of a name are counted further although its first ones are forgotten.
    assert_eq!(told.names("Optimizer.step#Adam.step#5000"), Ok(last));
    let early = told.names("Optimizer.step#Adam.step#12").unwrap_err();
    assert!(early.contains("#4937 to #5000"), "{early}");
    let report = told.report();
    assert_eq!(count(&report, v1::MarkOrigin::Framework), (10_000, 128));
    assert_eq!(count(&report, v1::MarkOrigin::Program), (10_001, 129));
    assert_eq!(count(&report, v1::MarkOrigin::People), (1, 1));
}

#[test]
fn the_list_is_bounded_and_what_is_not_known_is_not_claimed() {
    let mut told = Told::new();
    for number in 0..3_000 {
        told.mark(
            MarkSource::Nvtx,
            MarkKind::Begin,
            &format!("batch {number}"),
        );
    }
    let report = told.report();
    assert_eq!(count(&report, v1::MarkOrigin::Program), (3_000, 1_024));
    assert!(told.names("batch 0").is_err());
    assert_eq!(told.names("batch 2999"), Ok(3_000));
    // The earlier mark with this name is forgotten, so the number of the new one is not known.
    let again = told.mark(MarkSource::Nvtx, MarkKind::Begin, "batch 0");
    assert_eq!(told.names("batch 0"), Ok(again));
    assert!(told.names("batch 0#1").is_err());
    let report = told.report();
    assert_eq!(find_mark(&report.marks, "batch 0").unwrap().nth, None);
    Met {
        what: "marks of one origin",
        most: constant("crates/ledger/src/state/marks.rs", "KEPT"),
        beyond: "the oldest of the name that has the most go",
        told: "the answer has their count beside the list",
        test: "the_list_is_bounded_and_what_is_not_known_is_not_claimed",
    }
    .is_told();
}

#[test]
fn a_mark_stands_in_the_step_that_it_was_made_in() {
    let mut told = Told::new();
    let mut sim = crate::common::Sim::new(crate::common::Mode::Calibrated);
    // With a block there is a device with levels.
    sim.alloc(0, 0, 1000);
    sim.feed(&mut told.ledger);
    told.number = 1_000;
    for step in 0..4 {
        told.mark(MarkSource::Memscope, MarkKind::Step, "");
        if step == 2 {
            told.mark(MarkSource::Outside, MarkKind::Instant, "here");
        }
    }
    let report = told.report();
    let row = |name: &str| report.marks.iter().find(|row| row.name == name);
    // Three steps have ended before it.
    assert_eq!(row("here").unwrap().step, Some(4));
    assert_eq!(row("").unwrap().step, Some(1));
}
