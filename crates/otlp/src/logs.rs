//! From findings and reports of memory that ran out to log records.

use crate::attributes::{attributes, double, text, whole};
use crate::scope;
use memscope_metrics::Labels;
use memscope_proto::v1;
use memscope_units::{bytes, duration};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::time::Duration;

/// Most frames of a stack that are told.
const FRAMES: usize = 64;
/// Where pages of the book are.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/questions/");

/// What is new about a finding.
#[derive(Clone, Debug, PartialEq)]
pub enum FindingNews {
    /// A line of the program keeps more and more memory.
    Reported,
    /// At its growth, the device is full soon.
    Filling {
        /// Time until then.
        seconds: f64,
    },
    /// It is no longer so.
    Ended {
        /// Why, in a sentence.
        reason: String,
    },
}

/// An allocation that failed because the device was full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Ordinal of the device within the process; `None`: not known.
    pub device: Option<i32>,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes that the process's allocator had handed out; `None`: not known.
    pub allocated_bytes: Option<u64>,
    /// Bytes that it had taken from the driver; `None`: not known.
    pub reserved_bytes: Option<u64>,
    /// How often it has happened in this process since the last record about it, this time included.
    pub times: u64,
}

/// The record about a finding: whose process it is, as labels tell it, and the stack that allocates the memory, innermost first.
#[must_use]
pub fn finding(
    news: &FindingNews,
    labels: &Labels,
    finding: &v1::Finding,
    stack: &[v1::CodeLine],
) -> LogRecord {
    let whose = whose(labels);
    let place = place(&finding.file, finding.line, &finding.name);
    let (severity, event, headline) = match news {
        FindingNews::Reported => (
            SeverityNumber::Warn,
            "memscope.finding.reported",
            format!(
                "memory keeps growing at {place}: {} in {whose}",
                rate(finding)
            ),
        ),
        FindingNews::Filling { seconds } => {
            let left = Duration::try_from_secs_f64(*seconds).unwrap_or_default();
            let headline = format!(
                "the device is full in {}: memory keeps growing at {place}, {} in {whose}",
                duration(left),
                rate(finding)
            );
            (SeverityNumber::Error, "memscope.finding.filling", headline)
        }
        FindingNews::Ended { reason } => (
            SeverityNumber::Info,
            "memscope.finding.ended",
            format!("memory no longer grows at {place} in {whose}: {reason}"),
        ),
    };
    let mut all = attributes(labels);
    all.extend(whole("memscope.finding.number", finding.number));
    all.extend(device(finding.device));
    all.push(text("memscope.space", finding.space.as_str()));
    all.extend(whole("memscope.finding.live_bytes", finding.live_bytes));
    let per_second = finding.growth_bytes_per_s;
    all.push(double(
        "memscope.finding.growth_bytes_per_second",
        per_second,
    ));
    let per_step = finding.growth_bytes_per_step;
    all.extend(per_step.map(|rate| double("memscope.finding.growth_bytes_per_step", rate)));
    let first = finding.first_step;
    all.extend(first.and_then(|step| whole("memscope.finding.first_step", step)));
    let sure = finding.confidence;
    all.extend(sure.map(|sure| double("memscope.finding.confidence", sure)));
    let reason = match news {
        FindingNews::Ended { reason } => reason,
        FindingNews::Reported | FindingNews::Filling { .. } => &finding.reason,
    };
    all.push(text("memscope.finding.reason", reason.as_str()));
    if let FindingNews::Filling { seconds } = news {
        all.push(double("memscope.to_full_seconds", *seconds));
    }
    all.extend(code(&finding.file, finding.line, &finding.name));
    all.extend(stacktrace(stack));
    let next = format!("memscope-ctl leaks {}", value(labels, "pid"));
    all.push(text("memscope.command", next));
    all.push(text("memscope.link", format!("{PAGES}leaks.md")));
    record(severity, event, headline, all)
}

/// The record about memory that ran out, with the stack of whoever asked for it, innermost first.
#[must_use]
pub fn out_of_memory(labels: &Labels, oom: &OutOfMemory, stack: &[v1::CodeLine]) -> LogRecord {
    let mut headline = format!("out of memory: {} asked for ", whose(labels));
    headline.push_str(&bytes(oom.requested_bytes));
    if let Some(device) = oom.device {
        headline.push_str(&format!(" on device {device}"));
    }
    if let Some(reserved) = oom.reserved_bytes {
        headline.push_str(&format!(" and held {}", bytes(reserved)));
    }
    let mut all = attributes(labels);
    all.extend(device(oom.device));
    for (key, value) in [
        ("memscope.requested_bytes", Some(oom.requested_bytes)),
        ("memscope.allocated_bytes", oom.allocated_bytes),
        ("memscope.reserved_bytes", oom.reserved_bytes),
        ("memscope.times", Some(oom.times)),
    ] {
        all.extend(value.and_then(|value| whole(key, value)));
    }
    if let Some(own) = stack.first() {
        all.extend(code(&own.file, own.line, &own.name));
    }
    all.extend(stacktrace(stack));
    all.push(text("memscope.command", "memscope-ctl snapshots"));
    all.push(text("memscope.link", format!("{PAGES}snapshots.md")));
    let event = "memscope.out_of_memory";
    record(SeverityNumber::Error, event, headline, all)
}

/// The request that tells of these records.
#[must_use]
pub fn logs_request(log_records: Vec<LogRecord>, resource: &Resource) -> ExportLogsServiceRequest {
    let of_scope = ScopeLogs {
        scope: Some(scope()),
        log_records,
        ..ScopeLogs::default()
    };
    let of_resource = ResourceLogs {
        resource: Some(resource.clone()),
        scope_logs: vec![of_scope],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![of_resource],
    }
}

/// A record; the caller fills in when it was.
fn record(
    severity: SeverityNumber,
    event: &str,
    headline: String,
    attributes: Vec<KeyValue>,
) -> LogRecord {
    let words = severity.as_str_name();
    LogRecord {
        severity_number: severity.into(),
        severity_text: words.trim_start_matches("SEVERITY_NUMBER_").to_owned(),
        event_name: event.to_owned(),
        body: Some(AnyValue {
            value: Some(Value::StringValue(headline)),
        }),
        attributes,
        ..LogRecord::default()
    }
}

/// Value of a label; empty where it is not there.
fn value<'a>(labels: &'a Labels, wanted: &str) -> &'a str {
    let found = labels.iter().find(|(name, _)| *name == wanted);
    found.map_or("", |(_, value)| value)
}

/// Whose it is, in words.
fn whose(labels: &Labels) -> String {
    format!(
        "{} (pid {})",
        value(labels, "program"),
        value(labels, "pid")
    )
}

/// A line of a program, in words.
fn place(file: &str, line: u32, function: &str) -> String {
    if file.is_empty() {
        return "a line that is not known".to_owned();
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    match function.is_empty() {
        true => format!("{name}:{line}"),
        false => format!("{name}:{line} ({function})"),
    }
}

/// How fast a finding grows, in words.
fn rate(finding: &v1::Finding) -> String {
    match finding.growth_bytes_per_step {
        Some(rate) => format!("+{} a step", bytes(rate.max(0.0) as u64)),
        None => {
            let rate = finding.growth_bytes_per_s;
            format!("+{} a second", bytes(rate.max(0.0) as u64))
        }
    }
}

fn device(device: Option<i32>) -> Option<KeyValue> {
    whole("memscope.device", u64::try_from(device?).ok()?)
}

/// File, number and function of a line, as far as they are known.
fn code(file: &str, line: u32, function: &str) -> Vec<KeyValue> {
    let mut all = Vec::new();
    if !file.is_empty() {
        all.push(text("code.file.path", file));
    }
    if line > 0 {
        all.extend(whole("code.line.number", line.into()));
    }
    if !function.is_empty() {
        all.push(text("code.function.name", function));
    }
    all
}

/// A stack as Python writes it, the innermost frame last; `None` without one.
fn stacktrace(stack: &[v1::CodeLine]) -> Option<KeyValue> {
    if stack.is_empty() {
        return None;
    }
    let mut written = "Traceback (most recent call last):\n".to_owned();
    if let Some(more) = stack.len().checked_sub(FRAMES).filter(|more| *more > 0) {
        written.push_str(&format!("  [{more} more frames]\n"));
    }
    for frame in stack.iter().take(FRAMES).rev() {
        let v1::CodeLine { file, line, name } = frame;
        written.push_str(&format!("  File \"{file}\", line {line}, in {name}\n"));
    }
    Some(text("code.stacktrace", written))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn line(line: u32) -> v1::CodeLine {
        v1::CodeLine {
            file: "/srv/a.py".to_owned(),
            line,
            name: "f".to_owned(),
        }
    }

    fn leak() -> v1::Finding {
        v1::Finding {
            number: 3,
            device: Some(0),
            space: "pool".to_owned(),
            live_bytes: 7,
            growth_bytes_per_s: 2048.0,
            file: "/srv/a.py".to_owned(),
            line: 8,
            name: "f".to_owned(),
            reason: "so".to_owned(),
            ..v1::Finding::default()
        }
    }

    fn labels() -> Labels {
        vec![("pid", "7".to_owned()), ("program", "a.py".to_owned())]
    }

    fn body(record: &LogRecord) -> String {
        match record.body.clone().unwrap().value.unwrap() {
            Value::StringValue(text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn attribute(record: &LogRecord, wanted: &str) -> Option<Value> {
        let mut all = record.attributes.iter();
        all.find(|one| one.key == wanted)?.value.clone()?.value
    }

    #[test]
    fn a_finding_is_told_with_its_line_and_what_to_type_next() {
        let told = finding(
            &FindingNews::Reported,
            &labels(),
            &leak(),
            &[line(8), line(20)],
        );
        assert_eq!(
            body(&told),
            "memory keeps growing at a.py:8 (f): +2.00 KiB a second in a.py (pid 7)"
        );
        assert_eq!((told.severity_number, &*told.severity_text), (13, "WARN"));
        let words = |text: &str| Some(Value::StringValue(text.to_owned()));
        assert_eq!(
            attribute(&told, "memscope.command"),
            words("memscope-ctl leaks 7")
        );
        assert_eq!(
            attribute(&told, "code.line.number"),
            Some(Value::IntValue(8))
        );
        assert_eq!(
            attribute(&told, "code.stacktrace"),
            words(
                "Traceback (most recent call last):\n  File \"/srv/a.py\", line 20, in f\n  File \"/srv/a.py\", line 8, in f\n"
            )
        );
        // What is not known is not there.
        for unknown in ["confidence", "growth_bytes_per_step", "first_step"] {
            assert_eq!(
                attribute(&told, &format!("memscope.finding.{unknown}")),
                None
            );
        }
        let mut keys: Vec<&str> = told.attributes.iter().map(|one| &*one.key).collect();
        keys.sort_unstable();
        let before = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), before, "no attribute is there twice");
        let news = FindingNews::Filling { seconds: 90.0 };
        let filling = finding(&news, &labels(), &leak(), &[]);
        assert_eq!(filling.severity_number, 17);
        assert!(
            body(&filling).starts_with("the device is full in 1"),
            "{}",
            body(&filling)
        );
        assert_eq!(attribute(&filling, "code.stacktrace"), None);
        let news = FindingNews::Ended {
            reason: "it was given back".to_owned(),
        };
        let ended = finding(&news, &labels(), &leak(), &[]);
        assert_eq!(ended.severity_number, 9);
        assert!(body(&ended).ends_with("it was given back"));
    }

    #[test]
    fn memory_that_ran_out_is_told_with_what_was_asked_for() {
        let oom = OutOfMemory {
            device: Some(1),
            requested_bytes: 2 << 30,
            allocated_bytes: None,
            reserved_bytes: Some(1 << 30),
            times: 1,
        };
        let stack: Vec<v1::CodeLine> = (1..=100).map(line).collect();
        let told = out_of_memory(&labels(), &oom, &stack);
        assert_eq!(
            body(&told),
            "out of memory: a.py (pid 7) asked for 2.00 GiB on device 1 and held 1.00 GiB"
        );
        assert_eq!(attribute(&told, "memscope.allocated_bytes"), None);
        let Some(Value::StringValue(stack)) = attribute(&told, "code.stacktrace") else {
            panic!("no stack")
        };
        assert!(stack.contains("[36 more frames]") && stack.ends_with("line 1, in f\n"));
    }

    /// The pages that records name are there.
    #[test]
    fn links_lead_somewhere() {
        let told = [
            finding(&FindingNews::Reported, &labels(), &leak(), &[]),
            out_of_memory(&labels(), &OutOfMemory::default(), &[]),
        ];
        for record in told {
            let Some(Value::StringValue(link)) = attribute(&record, "memscope.link") else {
                panic!("no link")
            };
            let page = link.split_once("/blob/main/").unwrap().1;
            let page = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
            assert!(std::path::Path::new(&page).exists(), "{page}");
        }
    }
}
