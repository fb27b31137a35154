//! `fluctuation`: how the pools of a process breathe.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::moment;
use crate::process::Process;
use crate::render::table::{Column, table};
use crate::render::{CourseKnown, coverage, device, heading};
use crate::session::Session;
use crate::units::{
    bytes, grouped, in_nanoseconds, moment as at, nanoseconds, parse_duration, rate,
};
use memscope_proto::v1;
use std::time::Duration;

/// Show how the pools of a process breathe over a window of time.
#[derive(Debug, clap::Args)]
pub(crate) struct Fluctuation {
    #[command(flatten)]
    pub(crate) process: Process,
    /// How far back to look, 0s for all that is kept.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) window: Duration,
    /// Beginning of the window (`-5m`, a time, `event:NUMBER`, `step:NUMBER`, `mark:NAME`, `peak`). The journal is read for it, down to
    /// single events; without --from and --to the answer comes from what is kept at hand.
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with = "window")]
    pub(crate) from: Option<v1::Moment>,
    /// End of the window, instead of now.
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with = "window")]
    pub(crate) to: Option<v1::Moment>,
    /// Into how many intervals to cut it, at most: without --from and --to one is no shorter than the buckets that are kept.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) intervals: u32,
}

impl Run for Fluctuation {
    fn check(&self, _: &Session) -> Result<(), Failure> {
        moment::in_order(self.from.as_ref(), self.to.as_ref())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let question = v1::FluctuationRequest {
            pid: client.choose(self.process.pid()).await?,
            window_ns: in_nanoseconds(self.window),
            intervals: self.intervals,
            from: self.from.clone(),
            to: self.to.clone(),
            ..v1::FluctuationRequest::default()
        };
        let answer = client
            .ask(question, async |mut rpc, request| {
                rpc.fluctuation(request).await
            })
            .await?;
        session.show(&answer, text)
    }
}

fn text(answer: &v1::FluctuationResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if answer.devices.is_empty() {
        text.push_str("Nothing was seen on any device yet.\n");
    }
    for one in &answer.devices {
        let overall = one.overall.unwrap_or_default();
        let known = CourseKnown::of(one.source(), &answer.coverage);
        text.push_str(&format!(
            "\nDevice {} ({}): allocated {} to {}, swing {}, floor {}\n",
            device(one.device),
            one.source(),
            known.lowest(bytes(overall.min_allocated_bytes)),
            known.highest(bytes(overall.max_allocated_bytes)),
            known.compared(format!("{:.1} %", one.swing * 100.0)),
            known.compared(rate(one.floor_slope_bytes_per_s)),
        ));
        if let Some(first) = one
            .intervals
            .first()
            .filter(|first| first.detail_ns.is_some())
        {
            let before_ns = answer.as_of_boot_ns.saturating_sub(first.from_boot_ns);
            text.push_str(&format!(
                "From {} on:\n",
                at(answer.as_of.saturating_sub(before_ns))
            ));
        }
        text.push_str(&intervals(&one.intervals, answer.as_of_boot_ns, known));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn intervals(intervals: &[v1::Interval], now: u64, known: CourseKnown) -> String {
    let head = [
        Column::Right("FROM"),
        Column::Right("MIN ALLOCATED"),
        Column::Right("MAX ALLOCATED"),
        Column::Right("MIN RESERVED"),
        Column::Right("MAX RESERVED"),
        Column::Right("ALLOCS"),
        Column::Right("FREES"),
    ];
    // Within a window of a few microseconds an age says nothing, so there the intervals are counted from its beginning.
    let window = intervals.first().filter(|first| first.detail_ns.is_some());
    let from = |interval: &v1::Interval| match window {
        Some(first) => format!(
            "+{}",
            nanoseconds(interval.from_boot_ns.saturating_sub(first.from_boot_ns))
        ),
        None => format!(
            "-{}",
            nanoseconds(now.saturating_sub(interval.from_boot_ns))
        ),
    };
    let rows = intervals.iter().map(|interval| {
        vec![
            from(interval),
            known.lowest(bytes(interval.min_allocated_bytes)),
            known.highest(bytes(interval.max_allocated_bytes)),
            known.lowest(bytes(interval.min_reserved_bytes)),
            known.highest(bytes(interval.max_reserved_bytes)),
            known.count(grouped(interval.allocs)),
            known.count(grouped(interval.frees)),
        ]
    });
    table(&head, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_in_which_something_is_missing_are_lower_bounds() {
        let interval = v1::Interval {
            min_allocated_bytes: 40 << 20,
            max_allocated_bytes: 480 << 20,
            ..v1::Interval::default()
        };
        let shown = |coverage| {
            text(&v1::FluctuationResponse {
                coverage,
                devices: vec![v1::DeviceFluctuation {
                    device: Some(1),
                    source: v1::Source::Driver.into(),
                    overall: Some(interval),
                    swing: 0.917,
                    intervals: vec![interval],
                    ..v1::DeviceFluctuation::default()
                }],
                ..v1::FluctuationResponse::default()
            })
        };
        let exact = shown(vec![]);
        assert!(
            exact.contains("allocated 40.00 MiB to 480.00 MiB, swing 91.7 %"),
            "{exact}"
        );
        let late = shown(vec![v1::CoverageNote {
            code: "totals_unknown".to_owned(),
            affects: vec!["totals".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        }]);
        let said =
            "allocated at least 40.00 MiB to at least 480.00 MiB, swing unknown, floor unknown";
        assert!(late.contains(said), "{late}");
        assert!(!late.contains("  40.00 MiB"), "{late}");
        // What was not seen may have been lower and higher.
        let lost = shown(vec![v1::CoverageNote {
            code: "records_lost".to_owned(),
            affects: vec!["history".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        }]);
        let said =
            "allocated at most 40.00 MiB to at least 480.00 MiB, swing unknown, floor unknown";
        assert!(lost.contains(said), "{lost}");
    }
}
