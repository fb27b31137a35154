//! The answer to `marks`.

use super::event::{mark_kind, mark_source};
use super::{coverage, event_id};
use memscope_ledger::report::{MarkOrigin, MarkRow, MarksReport};
use memscope_proto::v1;

/// The last `limit` marks (0: all), those that PyTorch makes by itself only if they are wanted.
pub(crate) fn marks(report: MarksReport, limit: usize, framework: bool) -> v1::MarksResponse {
    let wanted = |row: &MarkRow| framework || row.mark.origin() != MarkOrigin::Framework;
    let mut marks: Vec<v1::NamedMoment> = report
        .marks
        .into_iter()
        .filter(wanted)
        .map(moment)
        .collect();
    if limit > 0 {
        marks = marks.split_off(marks.len().saturating_sub(limit));
    }
    v1::MarksResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: event_id(report.as_of),
        lost_records: report.process.lost_records,
        marks,
        counts: report
            .origins
            .into_iter()
            .map(|of| v1::MarkCount {
                origin: origin(of.origin).into(),
                count: of.count,
                kept: of.kept,
            })
            .collect(),
        process: Some(super::process::process(report.process)),
        coverage: coverage(report.coverage),
    }
}

fn moment(row: MarkRow) -> v1::NamedMoment {
    let mark = row.mark;
    v1::NamedMoment {
        event: Some(v1::EventId {
            epoch: mark.event.epoch,
            sequence: mark.event.sequence,
        }),
        time_boot_ns: mark.time_ns,
        time_unix_ns: (row.unix_ns != 0).then_some(row.unix_ns),
        cut: mark.cut,
        nth: mark.nth,
        tid: (mark.tid != 0).then_some(mark.tid),
        kind: mark_kind(mark.kind).into(),
        source: mark_source(mark.source).into(),
        origin: origin(mark.origin()).into(),
        step: row.step,
        name: mark.name.to_string(),
    }
}

fn origin(origin: MarkOrigin) -> v1::MarkOrigin {
    match origin {
        MarkOrigin::People => v1::MarkOrigin::People,
        MarkOrigin::Program => v1::MarkOrigin::Program,
        MarkOrigin::Framework => v1::MarkOrigin::Framework,
    }
}
