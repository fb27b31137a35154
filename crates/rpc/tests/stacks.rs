//! Stacks on the wire.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, Server, as_user};
use memscope_ledger::report::{FrameKind, StackReport, StackRow, Tally};
use memscope_proto::v1::{self, StackGrouping, StackMetric, StackUnit};
use memscope_rpc::Moment;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_tests::limits::{Met, constant};
use std::collections::HashSet;
use tonic::Code;

const PLAIN: usize = 30;

fn serve(plain: usize) -> Server {
    let mut process = fake::process(11, ADA);
    process.stacks = plain;
    Server::start(FakeDaemon::with([process]), as_user(ADA))
}

fn view(metric: StackMetric) -> Option<v1::StackView> {
    Some(v1::StackView {
        metric: metric.into(),
        ..Default::default()
    })
}

fn a_minute_ago() -> Option<v1::Moment> {
    ago(60_000_000_000)
}

fn ago(ns: u64) -> Option<v1::Moment> {
    Some(v1::Moment {
        moment: Some(v1::moment::Moment::AgoNs(ns)),
    })
}

async fn ask(server: &Server, request: v1::StacksRequest) -> v1::StacksResponse {
    let request = v1::StacksRequest { pid: 11, ..request };
    let answer = server.client().await.stacks(request).await;
    answer.unwrap().into_inner()
}

fn bytes(amount: Option<v1::Amount>) -> u64 {
    amount.unwrap_or_default().bytes
}

fn live(amounts: &Option<v1::StackAmounts>) -> u64 {
    bytes(amounts.as_ref().unwrap().live)
}

/// The frames of a row with their strings looked up: kind, name, file, line.
fn frames(answer: &v1::StacksResponse, row: &v1::StackRow) -> Vec<(i32, String, String, u32)> {
    let string = |place: u32| answer.strings[place as usize].clone();
    row.frames
        .iter()
        .map(|place| {
            let frame = &answer.frames[*place as usize];
            (
                frame.kind,
                string(frame.name),
                string(frame.file),
                frame.line,
            )
        })
        .collect()
}

fn expected(row: &StackRow) -> Vec<(i32, String, String, u32)> {
    let frames = row.stack.frames.iter();
    frames
        .map(|frame| {
            let kind = match frame.kind {
                FrameKind::Python => v1::FrameKind::Python,
                FrameKind::Native => v1::FrameKind::Native,
            };
            (
                kind.into(),
                frame.name.to_string(),
                frame.file.to_string(),
                frame.line,
            )
        })
        .collect()
}

fn amount(tally: Tally) -> Option<v1::Amount> {
    Some(v1::Amount {
        count: tally.count,
        bytes: tally.bytes,
    })
}

fn told(plain: usize) -> StackReport {
    fake::stacks(11, ADA, plain, false)
}

#[tokio::test]
async fn every_stack_arrives_and_names_travel_once() {
    let server = serve(PLAIN);
    let answer = ask(&server, v1::StacksRequest::default()).await;
    let report = told(PLAIN);
    let living: Vec<_> = report
        .rows
        .iter()
        .filter(|row| row.live.bytes > 0)
        .collect();
    assert_eq!(answer.rows.len(), living.len());
    for (row, told) in answer.rows.iter().zip(living) {
        assert_eq!(frames(&answer, row), expected(told));
        assert_eq!(row.device, told.device);
        assert_eq!(row.truncated, told.stack.truncated);
        assert_eq!(row.missing.as_deref(), told.stack.missing);
        let amounts = row.amounts.unwrap();
        assert_eq!(amounts.live, amount(told.live));
        assert_eq!(amounts.peak, amount(told.peak));
        assert_eq!(amounts.allocated, amount(told.allocated));
        assert_eq!(amounts.before, None);
    }
    assert_eq!(answer.strings[0], "");
    let strings: HashSet<_> = answer.strings.iter().collect();
    assert_eq!(strings.len(), answer.strings.len());
    assert_eq!(
        (answer.metric(), answer.unit()),
        (StackMetric::Live, StackUnit::Bytes)
    );
    assert_eq!(answer.by(), StackGrouping::Stack);
    // Only stacks of which nothing is live are not listed.
    assert_eq!((answer.omitted, live(&answer.others)), (0, 0));
    assert_eq!(bytes(answer.others.unwrap().allocated), 100 << 20);
    assert_eq!(answer.devices.len(), 3);
    assert_eq!(answer.devices[0].device, Some(0));
    assert_eq!(live(&answer.devices[0].missing), 10 << 20);
    assert_eq!(live(&answer.devices[1].truncated), 5 << 20);
    assert_eq!(answer.coverage[0].code, "stacks_reduced");
}

#[tokio::test]
async fn what_is_listed_and_the_others_are_all() {
    let server = serve(PLAIN);
    for by in [
        StackGrouping::Stack,
        StackGrouping::Function,
        StackGrouping::File,
        StackGrouping::Line,
        StackGrouping::OwnLine,
    ] {
        for limit in [1, 7, 0] {
            let request = v1::StacksRequest {
                by: by.into(),
                limit,
                ..Default::default()
            };
            let answer = ask(&server, request).await;
            let listed = answer.rows.len() + answer.groups.len();
            assert!(limit == 0 || listed == limit as usize, "{listed}");
            let rows: u64 = answer.rows.iter().map(|row| live(&row.amounts)).sum();
            let groups: u64 = answer.groups.iter().map(|group| live(&group.own)).sum();
            let all: u64 = answer.devices.iter().map(|one| live(&one.amounts)).sum();
            assert_eq!(rows + groups + live(&answer.others), all);
            assert_eq!(limit == 0, answer.omitted == 0);
            assert!(answer.rows.is_empty() != (by == StackGrouping::Stack));
        }
    }
}

#[tokio::test]
async fn sums_count_a_recursive_stack_once() {
    let server = serve(0);
    let request = v1::StacksRequest {
        by: StackGrouping::Function.into(),
        cumulative: true,
        ..Default::default()
    };
    let answer = ask(&server, request).await;
    let name = |group: &v1::StackGroup| {
        let frame = &answer.frames[group.frame? as usize];
        Some(answer.strings[frame.name as usize].as_str())
    };
    let visit = answer.groups.iter().find(|g| name(g) == Some("visit"));
    let visit = visit.unwrap();
    assert_eq!((live(&visit.own), live(&visit.total)), (5 << 20, 5 << 20));
    assert_eq!((visit.stacks, visit.device), (1, Some(1)));
    let lost = answer
        .groups
        .iter()
        .find(|g| g.missing.as_deref() == Some("lost"));
    assert_eq!(live(&lost.unwrap().own), 1 << 20);
    assert!(lost.unwrap().frame.is_none());
}

#[tokio::test]
async fn growth_is_since_the_earlier_moment_and_may_be_negative() {
    let server = serve(PLAIN);
    let request = v1::StacksRequest {
        from: a_minute_ago(),
        view: view(StackMetric::Growth),
        ..Default::default()
    };
    let answer = ask(&server, request).await;
    assert_eq!(answer.from_unix_ns, Some(answer.as_of - 60_000_000_000));
    let growth = |row: &v1::StackRow| {
        let amounts = row.amounts.unwrap();
        i128::from(bytes(amounts.live)) - i128::from(bytes(amounts.before))
    };
    let growths: Vec<_> = answer.rows.iter().map(growth).collect();
    assert!(growths.is_sorted_by(|one, next| one >= next), "{growths:?}");
    assert_eq!(growths[0], 1500 << 20);
    assert_eq!(growths.last(), Some(&-(8 << 20)));
    let last = frames(&answer, answer.rows.last().unwrap());
    assert_eq!(last[0].1, "warm_up");

    for request in [
        v1::StacksRequest {
            pid: 11,
            view: view(StackMetric::Growth),
            ..Default::default()
        },
        v1::StacksRequest {
            pid: 11,
            by: 77,
            ..Default::default()
        },
        v1::StacksRequest {
            pid: 11,
            view: Some(v1::StackView {
                unit: 9,
                ..Default::default()
            }),
            ..Default::default()
        },
    ] {
        let error = server.client().await.stacks(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
}

/// Each answer takes a second here, which is more than there is between the two ages.
#[tokio::test]
async fn ages_that_are_nearly_equal_are_in_order() {
    let server = serve(PLAIN);
    let second = 1_000_000_000;
    let request = |from_ns, at_ns| v1::StacksRequest {
        pid: 11,
        from: ago(from_ns),
        at: ago(at_ns),
        view: view(StackMetric::Growth),
        ..Default::default()
    };
    ask(&server, request(60 * second + 1, 60 * second)).await;
    ask(&server, request(60 * second, 60 * second)).await;
    let asked = std::mem::take(&mut *server.daemon.asked.lock().unwrap());
    let [Some(Moment::Boot(at)), Some(Moment::Boot(from)), ..] = asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(at - from, 1, "the ages are counted back from one moment");
    let wrong = request(60 * second, 60 * second + 1);
    let error = server.client().await.stacks(wrong).await.unwrap_err();
    assert!(error.message().contains("lies after"), "{error}");
}

#[tokio::test]
async fn one_device_and_blocks_instead_of_bytes() {
    let server = serve(PLAIN);
    let request = v1::StacksRequest {
        view: Some(v1::StackView {
            unit: StackUnit::Count.into(),
            device: Some(1),
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = ask(&server, request).await;
    assert_eq!(answer.devices.len(), 1);
    assert_eq!(answer.rows.len(), 2);
    assert!(answer.rows.iter().all(|row| row.device == Some(1)));
    assert_eq!(answer.unit(), StackUnit::Count);
}

/// The client accepts messages up to 4 MiB, gRPC's default.
#[tokio::test]
async fn an_answer_stays_small_however_many_stacks_there_are() {
    let server = serve(40_000);
    let answer = ask(&server, v1::StacksRequest::default()).await;
    assert!(answer.rows.len() > 5_000, "{}", answer.rows.len());
    assert!(answer.omitted > 20_000, "{}", answer.omitted);
    let rows: u64 = answer.rows.iter().map(|row| live(&row.amounts)).sum();
    let all: u64 = answer.devices.iter().map(|one| live(&one.amounts)).sum();
    assert_eq!(rows + live(&answer.others), all);
    // The largest stacks are in the answer.
    let least = live(&answer.rows.last().unwrap().amounts);
    assert!(least >= 1 << 20);
    let first = live(&answer.rows[0].amounts);
    assert_eq!(first, 2000 << 20);
    Met {
        what: "bytes of an answer about stacks",
        most: constant("crates/rpc/src/stacks/answer.rs", "MOST_BYTES"),
        beyond: "the smallest rows are one",
        told: "`omitted` and `others` of the answer",
        test: "an_answer_stays_small_however_many_stacks_there_are",
    }
    .is_told();
}

async fn file(server: &Server, request: v1::ExportRequest) -> Vec<u8> {
    let request = v1::ExportRequest { pid: 11, ..request };
    let mut chunks = server
        .client()
        .await
        .export(request)
        .await
        .unwrap()
        .into_inner();
    let mut bytes = Vec::new();
    loop {
        let chunk = chunks.message().await.unwrap().unwrap();
        if chunk.content.is_empty() {
            return bytes;
        }
        bytes.extend(chunk.content);
    }
}

#[tokio::test]
async fn every_format_is_written() {
    let server = serve(PLAIN);
    let all: u64 = told(PLAIN).rows.iter().map(|row| row.live.bytes).sum();
    for (format, begins) in [
        (v1::ExportFormat::Flamegraph, &b"<?xml"[..]),
        (v1::ExportFormat::Folded, b"[device 0];"),
        (v1::ExportFormat::Pprof, &[0x1f, 0x8b]),
        (v1::ExportFormat::Speedscope, b"{\"$schema\""),
    ] {
        let request = v1::ExportRequest {
            format: format.into(),
            ..Default::default()
        };
        let bytes = file(&server, request).await;
        assert!(bytes.starts_with(begins), "{format:?}");
        if format == v1::ExportFormat::Folded {
            let text = String::from_utf8(bytes).unwrap();
            let numbers = text.lines().map(|line| line.rsplit_once(' ').unwrap().1);
            assert_eq!(numbers.map(|n| n.parse::<u64>().unwrap()).sum::<u64>(), all);
        }
    }
    let request = v1::ExportRequest {
        format: v1::ExportFormat::Folded.into(),
        from: a_minute_ago(),
        differential: true,
        ..Default::default()
    };
    let text = String::from_utf8(file(&server, request).await).unwrap();
    let warm_up = text.lines().find(|line| line.contains("warm_up")).unwrap();
    assert_eq!(
        warm_up,
        "[device 0];warm_up (/home/ada/train.py:7) 8388608 0"
    );
}

#[tokio::test]
async fn exports_that_make_no_sense() {
    let server = serve(1);
    let refused = |request: v1::ExportRequest| {
        let server = &server;
        async move {
            let request = v1::ExportRequest { pid: 11, ..request };
            let error = server.client().await.export(request).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            error.message().to_owned()
        }
    };
    let growth = v1::ExportRequest {
        format: v1::ExportFormat::Folded.into(),
        view: view(StackMetric::Growth),
        ..Default::default()
    };
    assert!(refused(growth).await.contains("--from"));
    let difference = v1::ExportRequest {
        format: v1::ExportFormat::Flamegraph.into(),
        differential: true,
        ..Default::default()
    };
    assert!(refused(difference).await.contains("--from"));
    let pprof = v1::ExportRequest {
        format: v1::ExportFormat::Pprof.into(),
        from: a_minute_ago(),
        differential: true,
        ..Default::default()
    };
    assert!(refused(pprof).await.contains("has no differences"));
}
