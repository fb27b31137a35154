//! Steps as KempnerForge's memory monitor logs them: what is allocated at the end of a step, the peak since the last
//! report, what is reserved, and what the device has.
//!
//! There, the monitor is a part of the program, and begins a new peak at each report: the peak is never below what was allocated
//! when it began.

use crate::render::CourseKnown;
use memscope_proto::v1;

/// Bytes of what the monitor calls a GB.
const GB: f64 = (1_u64 << 30) as f64;

/// What is known of a device when a step ends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Report {
    step: u64,
    allocated: u64,
    peak: u64,
    reserved: u64,
}

/// The lines of the last reports on a device, at most `last` (0: all), one for each `every` steps. `total` is what the
/// device has, if that is known.
pub(super) fn lines(
    answer: &v1::StepsResponse,
    device: Option<i32>,
    every: u64,
    last: usize,
    total: Option<u64>,
) -> Vec<String> {
    let reports = reports(&answer.rows, device, every);
    let mut rows = answer.rows.iter();
    let source = rows
        .find(|row| row.device == device)
        .map(v1::StepRow::source);
    let known = CourseKnown::of(source.unwrap_or_default(), &answer.coverage);
    let first = match last {
        0 => 0,
        last => reports.len().saturating_sub(last),
    };
    let reports = reports[first..].iter();
    reports.map(|report| line(report, total, known)).collect()
}

fn reports(rows: &[v1::StepRow], device: Option<i32>, every: u64) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    // The monitor does not report in the middle of its interval.
    let rows = rows.iter();
    for row in rows.filter(|row| row.device == device && row.steps == every) {
        if let Some(before) = reports.last().copied() {
            // In between nothing was allocated or freed.
            let silent = (before.step + every..row.step).step_by(every as usize);
            reports.extend(silent.map(|step| Report {
                step,
                peak: before.allocated,
                ..before
            }));
        }
        let before = reports.last().map_or(0, |before| before.allocated);
        reports.push(Report {
            step: row.step,
            allocated: row.end_allocated_bytes,
            peak: row.max_allocated_bytes.max(before),
            reserved: row.end_reserved_bytes,
        });
    }
    reports
}

fn line(report: &Report, total: Option<u64>, known: CourseKnown) -> String {
    let gb = |bytes: u64| format!("{:.1}GB", bytes as f64 / GB);
    let whole = match total.filter(|total| *total > 0) {
        Some(total) => {
            let share = report.peak as f64 / total as f64 * 100.0;
            let share = known.compared(format!("{share:.0}%"));
            format!("{} total ({share})", gb(total))
        }
        None => "total not known".to_owned(),
    };
    format!(
        "[step {}] GPU mem: {} allocated, {} peak, {} reserved / {whole}",
        report.step,
        known.level(gb(report.allocated)),
        known.highest(gb(report.peak)),
        known.level(gb(report.reserved)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, steps: u64, max: u64, end: u64) -> v1::StepRow {
        v1::StepRow {
            step,
            steps,
            device: Some(0),
            max_allocated_bytes: max << 30,
            end_allocated_bytes: end << 30,
            end_reserved_bytes: 10 << 30,
            ..v1::StepRow::default()
        }
    }

    #[test]
    fn a_peak_is_never_below_what_it_began_with() {
        // After a step that only frees, its levels are all lower than the one that it began with.
        let rows = [row(1, 1, 3, 2), row(2, 1, 1, 1), row(5, 1, 4, 0)];
        let peaks: Vec<(u64, u64)> = reports(&rows, Some(0), 1)
            .iter()
            .map(|report| (report.step, report.peak >> 30))
            .collect();
        // Steps 3 and 4 had no event.
        assert_eq!(peaks, [(1, 3), (2, 2), (3, 1), (4, 1), (5, 4)]);
        assert!(reports(&rows, Some(1), 1).is_empty());
    }

    #[test]
    fn only_whole_intervals_are_reported() {
        let rows = [row(10, 10, 3, 2), row(20, 10, 1, 1), row(25, 5, 9, 9)];
        let mut answer = v1::StepsResponse {
            rows: rows.to_vec(),
            ..v1::StepsResponse::default()
        };
        let said = lines(&answer, Some(0), 10, 1, Some(80 << 30));
        assert_eq!(
            said,
            ["[step 20] GPU mem: 1.0GB allocated, 2.0GB peak, 10.0GB reserved / 80.0GB total (2%)"]
        );
        let unknown = lines(&answer, Some(0), 10, 0, None);
        assert_eq!(unknown.len(), 2);
        assert!(unknown[0].ends_with("10.0GB reserved / total not known"));
        answer.coverage.push(v1::CoverageNote {
            code: "records_lost".to_owned(),
            affects: vec!["history".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        });
        let said = lines(&answer, Some(0), 10, 1, Some(80 << 30));
        let end = "1.0GB allocated, at least 2.0GB peak, 10.0GB reserved / 80.0GB total (unknown)";
        assert!(said[0].ends_with(end), "{said:?}");
    }
}
