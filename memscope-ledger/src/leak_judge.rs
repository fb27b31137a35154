//! How a row of floors is judged: from step to step where steps are known, else by time.
//!
//! Owns: which of the two it is, and what is told in either case. Refuses: groups; `leaks` has them.

use crate::floor::WindowClock;
use crate::group::UNIT;
use crate::process::Process;
use crate::report::{LeakQuery, StepSource, Verdict};
use crate::trend::{self, Scale};
use crate::verdict;
use crate::words;

/// Steps that a growth must have lasted, unless asked otherwise.
const SURE_AFTER: u64 = 100;
/// Without a step for this long, and for so many times the usual, time is what is judged by.
const STALE_NS: u64 = 30_000_000_000;
const STALE_STEPS: u64 = 20;
/// Allocations in a pattern that counts as a step.
const ENOUGH_IN_A_PATTERN: usize = 4;
/// Ends of steps needed to judge by them.
const ENOUGH_TICKS: u64 = 4;

/// Steps to judge by.
pub(crate) struct StepAxis {
    pub(crate) clock: WindowClock,
    pub(crate) ticks_per_step: f64,
    sure_after: u64,
    pub(crate) step_ns: Option<u64>,
}

/// What a row of floors counts.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// Blocks.
    Blocks,
    /// Units of bytes.
    Units,
}

/// What a row of floors says.
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) growth: u32,
    pub(crate) reason: String,
    /// When the growth began, as far as that is told by time.
    pub(crate) since_ns: u64,
    pub(crate) confidence: Option<f64>,
    /// Blocks per step.
    pub(crate) per_step: Option<[f64; 3]>,
    pub(crate) first_step: Option<u64>,
}

/// Whether steps are there to judge by.
pub(crate) fn step_axis(
    process: &Process,
    now: u64,
    q: &LeakQuery,
    step_ns: Option<u64>,
) -> Option<StepAxis> {
    let steps = &process.steps;
    let (_, ticks_per_step) = steps.count(&process.stacks)?;
    let stale = STALE_NS.max(step_ns.unwrap_or(0).saturating_mul(STALE_STEPS));
    let sure_after = match q.sure_after_steps {
        0 => SURE_AFTER,
        steps => steps,
    };
    // A pattern of an allocation or two is no measure for how long something was watched, and one of many passes
    // may be several steps: until it has come often enough, time is the measure.
    let short = steps.source == StepSource::Pattern
        && steps
            .pattern
            .cycles()
            .is_none_or(|(cycles, period)| cycles < sure_after || period < ENOUGH_IN_A_PATTERN);
    if short || steps.ticks < ENOUGH_TICKS || now.saturating_sub(steps.last_ns) > stale {
        return None;
    }
    Some(StepAxis {
        clock: process.groups.ticks(),
        ticks_per_step: ticks_per_step.max(1e-9),
        sure_after,
        step_ns,
    })
}

/// Judges rows.
pub(crate) struct Judge<'a> {
    pub(crate) process: &'a Process,
    pub(crate) now: u64,
    /// Windows of time.
    pub(crate) clock: WindowClock,
    pub(crate) steps: Option<StepAxis>,
}

impl Judge<'_> {
    /// By steps where they are known, else by time. `floors` gives the row for a clock of steps, or for time.
    pub(crate) fn judge(
        &self,
        device: Option<i32>,
        bytes: f64,
        amount: Amount,
        floors: impl Fn(Option<&WindowClock>) -> Vec<u32>,
    ) -> Judgement {
        let Some(axis) = &self.steps else {
            let judged = verdict::judge(&floors(None));
            let windows = self
                .clock
                .width_ns()
                .saturating_mul(judged.from_window as u64);
            return Judgement {
                verdict: judged.verdict,
                growth: judged.growth,
                reason: format!(
                    "{} (watched {})",
                    judged.reason,
                    words::duration(self.now.saturating_sub(self.clock.start_ns()))
                ),
                since_ns: self.clock.start_ns().saturating_add(windows),
                confidence: None,
                per_step: None,
                first_step: None,
            };
        };
        let row = floors(Some(&axis.clock));
        let steps = axis.clock.width_ns() as f64 / axis.ticks_per_step;
        let scale = Scale {
            steps,
            sure_after: axis.sure_after,
            urgent: false,
            amount: match amount {
                Amount::Blocks => trend::blocks,
                Amount::Units => |units| words::bytes(u64::from(units) * UNIT),
            },
            above_falls: match amount {
                Amount::Blocks => 2,
                // Sums of random sizes wander.
                Amount::Units => 4,
            },
            rises: match amount {
                Amount::Blocks => 4,
                // One block that is made anew and larger now and then may be a batch that is to grow.
                Amount::Units => 12,
            },
        };
        let mut judged = trend::judge(&row, scale);
        let per_step = judged.slope.map(|slope| slope / steps);
        let [_, middle, _] = per_step;
        if judged.verdict == Verdict::Undecided
            && self.is_full_within(device, middle * bytes, axis.sure_after)
        {
            judged = trend::judge(
                &row,
                Scale {
                    urgent: true,
                    ..scale
                },
            );
        }
        let first_tick = (judged.first_window as u64).saturating_mul(axis.clock.width_ns());
        let first_step = (first_tick as f64 / axis.ticks_per_step).floor() as u64 + 1;
        let grown = judged.growth > 0;
        let back = judged.windows as f64 * steps * axis.step_ns.unwrap_or(0) as f64;
        Judgement {
            verdict: judged.verdict,
            growth: judged.growth,
            reason: judged.reason,
            since_ns: self.now.saturating_sub(back as u64),
            confidence: judged.confidence.filter(|_| grown),
            per_step: grown.then_some(per_step),
            first_step: grown.then_some(first_step),
        }
    }

    /// Whether so much growth fills the device before it would be called one.
    fn is_full_within(&self, device: Option<i32>, bytes_per_step: f64, steps: u64) -> bool {
        let rows = self.process.devices.iter();
        let mut free = rows
            .filter(|row| row.ordinal == device)
            .filter_map(|row| row.free_at(self.now));
        let growth = bytes_per_step * steps as f64;
        growth > 0.0 && free.any(|free| (free as f64) < growth)
    }
}
