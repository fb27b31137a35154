//! Text and JSON of `check-leaks`, `inefficient`, `compare` and `import`.

use super::super::export::Made as Exported;
use super::args::{CheckLeaks, Compare, CompareLevel, Inefficient};
use crate::render::table::{Column, table};
use crate::units::{bytes, grouped, plain};
use memscope_dump::Device;
use memscope_dump::compare::Difference;
use memscope_dump::inefficient::{Finding, Kind, Report as InefficientReport};
use memscope_dump::leaks::{Leak, Report, Verdict};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn address(ptr: Option<u64>) -> Option<String> {
    ptr.map(|ptr| format!("{ptr:#018x}"))
}

fn address_text(ptr: Option<u64>) -> String {
    address(ptr).unwrap_or_else(crate::units::unknown)
}

/// A device in JSON: its number or word, or null for none.
fn device(device: Device) -> Option<String> {
    (device != Device::None).then(|| device.to_string())
}

/// The line beneath a table that does not show everything.
fn left_out(all: usize, limit: usize, what: &str) -> String {
    if limit == 0 || all <= limit {
        return String::new();
    }
    format!(
        " and {} {what} left out (--limit 0 shows all)\n",
        grouped((all - limit) as u64)
    )
}

fn shown(limit: usize) -> usize {
    if limit == 0 { usize::MAX } else { limit }
}

// ---- check-leaks

fn found(verdict: &Verdict) -> &[Leak] {
    match verdict {
        Verdict::Leaks(leaks) => leaks,
        _ => &[],
    }
}

/// Number of leaked blocks on all devices together.
pub(super) fn leaked_blocks(report: &Report) -> usize {
    report
        .devices
        .iter()
        .map(|one| found(&one.verdict).len())
        .sum()
}

fn sum(leaks: &[Leak]) -> u64 {
    leaks
        .iter()
        .fold(0, |sum, leak| sum.saturating_add(leak.size))
}

#[derive(Serialize)]
struct LeaksDocument {
    file: String,
    mark: String,
    start_index: usize,
    devices: Vec<DeviceDocument>,
}

#[derive(Serialize)]
struct DeviceDocument {
    device: Option<String>,
    marks: usize,
    verdict: &'static str,
    leaked_bytes: Option<u64>,
    leaks: Vec<LeakDocument>,
}

#[derive(Serialize)]
struct LeakDocument {
    id: u64,
    ptr: Option<String>,
    size_bytes: u64,
}

/// The JSON document of `check-leaks`.
pub(super) fn leaks_document(request: &CheckLeaks, report: &Report) -> impl Serialize + use<> {
    let devices = report.devices.iter().map(|one| {
        let leaks = found(&one.verdict);
        DeviceDocument {
            device: device(one.device),
            marks: one.marks,
            verdict: match &one.verdict {
                Verdict::Leaks(leaks) if leaks.is_empty() => "no_leaks",
                Verdict::Leaks(_) => "leaks",
                Verdict::TooFewMarks => "too_few_marks",
                Verdict::StartBeyondEnd { .. } => "start_beyond_end",
            },
            leaked_bytes: matches!(one.verdict, Verdict::Leaks(_)).then(|| sum(leaks)),
            leaks: leaks
                .iter()
                .map(|leak| LeakDocument {
                    id: leak.id,
                    ptr: address(leak.ptr),
                    size_bytes: leak.size,
                })
                .collect(),
        }
    });
    LeaksDocument {
        file: path(&request.file),
        mark: request.mark.clone(),
        start_index: request.start_index,
        devices: devices.collect(),
    }
}

/// The lines that msMemScope itself prints, and a sum for each device.
pub(super) fn leaks(report: &Report) -> String {
    let mut text = String::new();
    for one in &report.devices {
        for line in one.messages().into_iter().chain(one.log()) {
            text.push_str(&plain(&line));
            text.push('\n');
        }
        let leaks = found(&one.verdict);
        if !leaks.is_empty() {
            text.push_str(&format!(
                "{} in {} on device {}\n",
                bytes(sum(leaks)),
                count(leaks.len(), "block"),
                one.device
            ));
        }
    }
    text
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number as u64))
}

// ---- inefficient

#[derive(Serialize)]
struct FindingsDocument {
    /// The dump; null where a process was asked about.
    file: Option<String>,
    pid: Option<u32>,
    output: Option<String>,
    min_size_bytes: u64,
    idle_threshold: u64,
    accesses: u64,
    lost_records: Option<u64>,
    known_from_unix_ns: Option<u64>,
    warnings: Vec<String>,
    peaks: Vec<PeakDocument>,
    blocks: Vec<FindingDocument>,
}

#[derive(Serialize)]
struct PeakDocument {
    pid: Option<u32>,
    device: Option<String>,
    pool: &'static str,
    peak_bytes: u64,
    without_bytes: u64,
}

#[derive(Serialize)]
struct FindingDocument {
    id: u64,
    pid: Option<u32>,
    device: Option<String>,
    pool: &'static str,
    ptr: Option<String>,
    size_bytes: u64,
    types: Vec<&'static str>,
    unused_ns: u64,
    first_used_by: Option<String>,
    last_used_by: Option<String>,
    stack: Vec<String>,
}

fn types(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.word()).collect()
}

/// The JSON document of `inefficient`.
pub(super) fn findings_document(
    request: &Inefficient,
    report: &InefficientReport,
    made: Option<&Exported>,
) -> impl Serialize + use<> {
    FindingsDocument {
        file: request.file.as_deref().map(path),
        pid: request.pid,
        output: request.output.as_deref().map(path),
        min_size_bytes: request.min_size,
        idle_threshold: request.idle_threshold,
        accesses: report.accesses,
        lost_records: made.map(|made| made.lost_records),
        known_from_unix_ns: made.and_then(|made| made.known_from_unix_ns),
        warnings: made.map_or_else(Vec::new, |made| made.warnings.clone()),
        peaks: report
            .peaks
            .iter()
            .map(|one| PeakDocument {
                pid: one.pid,
                device: device(one.device),
                pool: one.pool.word(),
                peak_bytes: one.bytes,
                without_bytes: one.without_bytes,
            })
            .collect(),
        blocks: report
            .findings
            .iter()
            .map(|one| FindingDocument {
                id: one.id,
                pid: one.pid,
                device: device(one.device),
                pool: one.pool.word(),
                ptr: address(one.ptr),
                size_bytes: one.size,
                types: types(&one.kinds),
                unused_ns: one.unused_ns,
                first_used_by: one.used_by[0].as_deref().map(str::to_owned),
                last_used_by: one.used_by[1].as_deref().map(str::to_owned),
                stack: one.stack.lines().map(str::to_owned).collect(),
            })
            .collect(),
    }
}

/// Blocks that one line of the program has allocated, and with which the same is wrong.
struct Alike<'a> {
    blocks: Vec<&'a Finding>,
    bytes: u64,
    /// Bytes × nanoseconds in which they were held and not used.
    wasted: u128,
}

/// Frames of the program that are shown of a stack.
const FRAMES: usize = 2;

/// The program's own innermost frames of a stack as it stands in a dump, with files without their folders: `train.py:18 (loss) <
/// train.py:40 (step)`. If none is the program's, the innermost one; empty if there is none.
pub(super) fn line(stack: &str) -> String {
    let own: Vec<String> = stack
        .lines()
        .filter(|line| {
            let function = line.rsplit_once("): ").map_or("", |(_, function)| function);
            memscope_units::is_own(function, line)
        })
        .take(FRAMES)
        .map(frame)
        .collect();
    match own.as_slice() {
        [] => stack.lines().next().map(frame).unwrap_or_default(),
        own => own.join(" < "),
    }
}

/// A frame, which stands in a dump as `/path/train.py(18): loss`, as it is shown everywhere else: `train.py:18 (loss)`.
fn frame(line: &str) -> String {
    let file = line.rsplit_once('/').map_or(line, |(_, file)| file);
    let parts = file.split_once('(').and_then(|(name, rest)| {
        let (number, function) = rest.split_once("): ")?;
        Some(format!("{name}:{number} ({function})"))
    });
    parts.unwrap_or_else(|| file.to_owned())
}

/// Bytes × nanoseconds as MiB × seconds.
fn mib_seconds(wasted: u128) -> String {
    let value = wasted as f64 / f64::from(1 << 20) / 1e9;
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

/// Sums by type, what the peak would be, and the blocks: by the line that allocated them, or each of them where no line is known.
pub(super) fn findings(
    request: &Inefficient,
    report: &InefficientReport,
    made: Option<&Exported>,
) -> String {
    let findings = &report.findings;
    let mut text = String::new();
    for kind in Kind::ALL {
        let of = findings.iter().filter(|one| one.kinds.contains(&kind));
        let (number, size) = of.fold((0, 0_u64), |(number, size), one| {
            (number + 1, size.saturating_add(one.size))
        });
        if number > 0 {
            text.push_str(&format!(
                "{}: {} in {}\n",
                kind.word(),
                bytes(size),
                count(number, "block")
            ));
        }
    }
    for peak in report
        .peaks
        .iter()
        .filter(|one| one.without_bytes < one.bytes)
    {
        text.push_str(&format!(
            "Most at a time on device {}: {} in {}; if no block came early or went late, {}\n",
            peak.device,
            bytes(peak.bytes),
            peak.pool.word(),
            bytes(peak.without_bytes)
        ));
    }
    if findings.is_empty() {
        text.push_str("No block is inefficient.\n");
    } else if findings.iter().any(|one| !one.stack.is_empty()) {
        text.push('\n');
        text.push_str(&by_line(request, findings));
    } else {
        text.push('\n');
        text.push_str(&by_block(request, findings));
    }
    if let Some(out) = &request.output {
        text.push_str(&format!("Written to {}\n", plain(&path(out))));
    }
    let lost = made.map_or(0, |made| made.lost_records);
    if lost > 0 {
        text.push_str(&format!(
            "{} records were lost: a block whose use is among them may be called inefficient although it is not.\n",
            grouped(lost)
        ));
    }
    if let Some(from) = made.and_then(|made| made.known_from_unix_ns) {
        text.push_str(&format!(
            "The older part of the journal is gone: this begins at {}.\n",
            crate::units::moment(from)
        ));
    }
    text.push_str(&made.map_or_else(String::new, Exported::unread));
    text
}

fn by_line(request: &Inefficient, findings: &[Finding]) -> String {
    let mut alike: BTreeMap<(String, Vec<Kind>), Alike<'_>> = BTreeMap::new();
    for one in findings {
        let mut kinds = one.kinds.clone();
        kinds.sort_unstable();
        let entry = alike.entry((line(&one.stack), kinds)).or_insert(Alike {
            blocks: Vec::new(),
            bytes: 0,
            wasted: 0,
        });
        entry.blocks.push(one);
        entry.bytes = entry.bytes.saturating_add(one.size);
        entry.wasted += u128::from(one.size) * u128::from(one.unused_ns);
    }
    let mut alike: Vec<_> = alike.into_iter().collect();
    alike.sort_by_key(|((line, _), one)| (Reverse(one.wasted), line.clone()));
    let head = [
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Right("MIB x S"),
        Column::Left("WHAT"),
        Column::Left("LINE"),
        Column::Left("USED BY"),
    ];
    let rows = alike
        .iter()
        .take(shown(request.limit))
        .map(|((line, kinds), one)| {
            let what: Vec<&str> = kinds.iter().map(|kind| in_a_word(*kind)).collect();
            vec![
                grouped(one.blocks.len() as u64),
                bytes(one.bytes),
                mib_seconds(one.wasted),
                what.join(", "),
                match line.as_str() {
                    "" => crate::units::unknown(),
                    line => plain(line),
                },
                plain(&users(one, kinds)),
            ]
        });
    let mut text = table(&head, rows.collect());
    text.push_str(&left_out(alike.len(), request.limit, "further lines"));
    text.push_str("MIB x S: size of each block × the time for which it was held and not used because of that\n");
    text
}

/// A kind in a word that leaves room for the line.
fn in_a_word(kind: Kind) -> &'static str {
    match kind {
        Kind::EarlyAllocation => "early",
        Kind::LateDeallocation => "late",
        Kind::TemporaryIdleness => "idle",
    }
}

/// The operators that used blocks first, if they came early, or else last.
fn users(alike: &Alike<'_>, kinds: &[Kind]) -> String {
    let (which, word) = match kinds {
        [Kind::EarlyAllocation] => (0, "first"),
        _ => (1, "last"),
    };
    let mut names: Vec<&str> = alike
        .blocks
        .iter()
        .filter_map(|block| block.used_by[which].as_deref())
        .map(|name| name.strip_prefix("aten::").unwrap_or(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => crate::units::unknown(),
        [only] => format!("{word} {only}"),
        [first, rest @ ..] => format!("{word} {first} and {} more", rest.len()),
    }
}

fn by_block(request: &Inefficient, findings: &[Finding]) -> String {
    let mut largest: Vec<&Finding> = findings.iter().collect();
    largest.sort_by_key(|one| (Reverse(one.size), one.id));
    let head = [
        Column::Right("ID"),
        Column::Right("PID"),
        Column::Right("DEVICE"),
        Column::Left("POOL"),
        Column::Right("SIZE"),
        Column::Left("ADDRESS"),
        Column::Left("WHAT"),
    ];
    let rows = largest.iter().take(shown(request.limit)).map(|one| {
        vec![
            one.id.to_string(),
            one.pid
                .map_or_else(crate::units::unknown, |pid| pid.to_string()),
            one.device.to_string(),
            one.pool.word().to_owned(),
            bytes(one.size),
            address_text(one.ptr),
            types(&one.kinds).join(", "),
        ]
    });
    let mut text = table(&head, rows.collect());
    text.push_str(&left_out(findings.len(), request.limit, "smaller blocks"));
    text
}

// ---- compare

#[derive(Serialize)]
struct DifferencesDocument {
    base: String,
    compare: String,
    level: &'static str,
    output: Option<String>,
    entries: Vec<DifferenceDocument>,
}

#[derive(Serialize)]
struct DifferenceDocument {
    event: String,
    name: String,
    device: Option<String>,
    base_bytes: Option<u64>,
    compare_bytes: Option<u64>,
    difference_bytes: i128,
}

fn level(level: CompareLevel) -> &'static str {
    match level {
        CompareLevel::Op => "op",
        CompareLevel::Kernel => "kernel",
    }
}

/// The JSON document of `compare`: all entries, in the order of the alignment.
pub(super) fn differences_document(
    request: &Compare,
    differences: &[Difference],
) -> impl Serialize + use<> {
    DifferencesDocument {
        base: path(&request.base),
        compare: path(&request.compare),
        level: level(request.level),
        output: request.output.as_deref().map(path),
        entries: differences
            .iter()
            .map(|one| DifferenceDocument {
                event: one.event.clone(),
                name: one.name.clone(),
                device: device(one.device),
                base_bytes: one.base,
                compare_bytes: one.compare,
                difference_bytes: one.bytes(),
            })
            .collect(),
    }
}

/// The entries that differ, the largest difference first.
pub(super) fn differences(request: &Compare, differences: &[Difference]) -> String {
    let number = |of: fn(&Difference) -> bool| differences.iter().filter(|one| of(one)).count();
    let mut text = format!(
        "{} in both, {} only in {}, {} only in {}\n",
        grouped(number(|one| one.base.is_some() && one.compare.is_some()) as u64),
        grouped(number(|one| one.compare.is_none()) as u64),
        plain(&path(&request.base)),
        grouped(number(|one| one.base.is_none()) as u64),
        plain(&path(&request.compare)),
    );
    let mut largest: Vec<&Difference> = differences.iter().filter(|one| one.bytes() != 0).collect();
    largest.sort_by_key(|one| Reverse(one.bytes().abs()));
    if largest.is_empty() {
        text.push_str("No operator or kernel differs in memory.\n");
    } else {
        text.push('\n');
        let head = [
            Column::Right("DEVICE"),
            Column::Right("BASE"),
            Column::Right("COMPARE"),
            Column::Right("DIFFERENCE"),
            Column::Left("NAME"),
        ];
        let side = |size: Option<u64>| size.map_or_else(|| "not there".to_owned(), bytes);
        let rows = largest.iter().take(shown(request.limit)).map(|one| {
            let difference = one.bytes();
            let sign = if difference < 0 { '-' } else { '+' };
            let size = u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX);
            vec![
                one.device.to_string(),
                side(one.base),
                side(one.compare),
                format!("{sign}{}", bytes(size)),
                plain(&one.name),
            ]
        });
        text.push_str(&table(&head, rows.collect()));
        text.push_str(&left_out(
            largest.len(),
            request.limit,
            "smaller differences",
        ));
    }
    if let Some(out) = &request.output {
        text.push_str(&format!("Written to {}\n", plain(&path(out))));
    }
    text
}

// ---- import

/// A recording that memscoped made, as it describes it in JSON.
#[derive(Deserialize, Serialize)]
pub(super) struct Made {
    recording: String,
    rows: u64,
    rows_left_out: u64,
    events: u64,
    processes: u64,
}

/// Says what was made, and how to ask it.
pub(super) fn made(made: &Made) -> String {
    let recording = plain(&made.recording);
    let mut text = format!(
        "{} rows became {} events of {} in {recording}\n",
        grouped(made.rows),
        grouped(made.events),
        if made.processes == 1 {
            "1 process".to_owned()
        } else {
            format!("{} processes", grouped(made.processes))
        },
    );
    if made.rows_left_out > 0 {
        text.push_str(&format!(
            "{} rows have no event: the coverage of each answer says which\n",
            grouped(made.rows_left_out)
        ));
    }
    text.push_str(&format!(
        "Ask it: memscope-ctl --recording {recording} stats\n"
    ));
    text
}
