//! Questions about stacks: reads and checks the question, and compares two moments.

mod answer;

pub(crate) use answer::{grouping, stacks};

use crate::daemon::Moment;
use crate::refusal::invalid;
use crate::{Daemon, Refusal, Wanted};
use memscope_export::stacks::{self, Metric, Unit, View};
use memscope_ledger::Who;
use memscope_ledger::report::{StackReport, attached_anew};
use memscope_proto::v1;

/// A question about the stacks of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) view: View,
    /// The answer has the numbers of all metrics, whichever is shown first.
    of_all_metrics: bool,
    device: Option<i32>,
    at: Option<Moment>,
    from: Option<Moment>,
}

impl Question {
    pub(crate) fn new(
        view: Option<v1::StackView>,
        at: Option<Moment>,
        from: Option<Moment>,
    ) -> Result<Question, Refusal> {
        let wire = view.unwrap_or_default();
        let view = View {
            metric: metric(wire.metric)?,
            unit: unit(wire.unit)?,
        };
        if view.metric == Metric::Growth && from.is_none() {
            return Err(no_earlier("growth"));
        }
        Ok(Question {
            view,
            of_all_metrics: false,
            device: wire.device,
            at,
            from,
        })
    }

    /// Kind of the answer, by which coverage notes are judged.
    pub(crate) fn kind(self) -> memscope_ledger::Answer {
        match self.view.metric {
            _ if self.of_all_metrics => memscope_ledger::Answer::StacksOverTime,
            Metric::Peak | Metric::Allocated => memscope_ledger::Answer::StacksOverTime,
            Metric::Live | Metric::Growth => memscope_ledger::Answer::Stacks,
        }
    }

    /// Checks that a differential export names an earlier moment. Such an export does not use the metric.
    fn differential(self) -> Result<Question, Refusal> {
        match self.from {
            None => Err(no_earlier("a difference")),
            Some(_) => Ok(self),
        }
    }

    /// Asks the daemon for one or two reports, the later moment first. `may_see` is applied to both reports.
    pub(crate) async fn ask(
        self,
        daemon: &dyn Daemon,
        pid: u32,
        wanted: &Wanted,
        may_see: impl Fn(Who) -> Result<(), Refusal>,
    ) -> Result<Answer, Refusal> {
        let mut later = daemon.stacks(pid, self.at, wanted).await?;
        may_see(later.process.who())?;
        let earlier = match self.from {
            None => None,
            Some(from) => {
                let earlier = daemon.stacks(pid, Some(from), wanted).await?;
                may_see(earlier.process.who())?;
                in_order(&later, &earlier)?;
                let (one, other) = (
                    (&earlier.process, earlier.as_of),
                    (&later.process, later.as_of),
                );
                later.coverage.extend(attached_anew(one, other));
                Some(earlier)
            }
        };
        Ok(Answer {
            later,
            earlier,
            device: self.device,
        })
    }
}

/// The daemon's reports of one or two moments.
pub(crate) struct Answer {
    later: StackReport,
    earlier: Option<StackReport>,
    device: Option<i32>,
}

impl Answer {
    /// The coverage notes of both reports.
    pub(crate) fn notes(&self) -> Vec<v1::CoverageNote> {
        let earlier = self.earlier.iter().flat_map(|report| &report.coverage);
        self.later.coverage.iter().chain(earlier).cloned().collect()
    }

    /// One report of one or both moments, with each stack once. Takes long where there are many stacks.
    pub(crate) fn report(mut self) -> StackReport {
        if let Some(device) = self.device {
            let reports = [Some(&mut self.later), self.earlier.as_mut()];
            for report in reports.into_iter().flatten() {
                report.rows.retain(|row| row.device == Some(device));
            }
        }
        match &self.earlier {
            Some(earlier) => stacks::compare(&self.later, earlier),
            None => stacks::merged(self.later),
        }
    }
}

/// Checks that both reports are of the same memory image, and that `earlier` is not after `later`.
fn in_order(later: &StackReport, earlier: &StackReport) -> Result<(), Refusal> {
    if !later.process.has_the_image_of(&earlier.process) {
        return Err(invalid(
            format!(
                "at the first moment, process {} was another one, or had not executed its program yet",
                later.process.facts.pid
            ),
            "`memscope-ctl ps` says since when a process is traced",
        ));
    }
    if earlier.as_of.boot_ns > later.as_of.boot_ns {
        return Err(invalid(
            "the first moment lies after the second",
            "exchange them: growth is from the earlier one to the later one",
        ));
    }
    Ok(())
}

/// Reads the question of an export of stacks. `differences`: whether the format can show a comparison; one that cannot has all
/// metrics in it.
pub(crate) fn exported(
    differences: bool,
    request: &v1::ExportRequest,
    (at, from): (Option<Moment>, Option<Moment>),
) -> Result<Question, Refusal> {
    let question = Question {
        of_all_metrics: !differences,
        ..Question::new(request.view, at, from)?
    };
    if !request.differential {
        return Ok(question);
    }
    if !differences {
        return Err(invalid(
            "that format has no differences",
            "ask for growth, or for a flame graph or folded text",
        ));
    }
    question.differential()
}

fn no_earlier(what: &str) -> Refusal {
    invalid(
        format!("{what} is since an earlier moment, and none is named"),
        "name one, as in --from -5m",
    )
}

fn metric(number: i32) -> Result<Metric, Refusal> {
    match v1::StackMetric::try_from(number) {
        Ok(v1::StackMetric::Live | v1::StackMetric::Unspecified) => Ok(Metric::Live),
        Ok(v1::StackMetric::Peak) => Ok(Metric::Peak),
        Ok(v1::StackMetric::Allocated) => Ok(Metric::Allocated),
        Ok(v1::StackMetric::Growth) => Ok(Metric::Growth),
        Err(_) => Err(invalid(
            format!("metric {number} is not known"),
            "live, peak, allocated and growth are",
        )),
    }
}

fn unit(number: i32) -> Result<Unit, Refusal> {
    match v1::StackUnit::try_from(number) {
        Ok(v1::StackUnit::Bytes | v1::StackUnit::Unspecified) => Ok(Unit::Bytes),
        Ok(v1::StackUnit::Count) => Ok(Unit::Count),
        Err(_) => Err(invalid(
            format!("unit {number} is not known"),
            "bytes and count are",
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn two_moments_of_one_program_in_order() {
        let (now, before) = (fake::stacks(7, 0, 1, false), fake::stacks(7, 0, 1, true));
        assert!(in_order(&now, &before).is_ok());
        assert!(in_order(&now, &now).is_ok());
        let word = |result: Result<(), Refusal>| result.unwrap_err().to_string();
        assert!(word(in_order(&before, &now)).contains("lies after"));
        let mut other = before.clone();
        other.process.facts.generation += 1;
        assert!(word(in_order(&now, &other)).contains("another one"));
        let mut other = before;
        other.process.facts.start_ticks += 1;
        assert!(word(in_order(&now, &other)).contains("another one"));
    }

    /// A profile has the peak and all allocations in it, also where live blocks are shown first. A flame graph has one metric.
    #[test]
    fn an_export_depends_on_every_metric_that_it_has() {
        use memscope_ledger::Answer;
        for (differences, kind) in [(true, Answer::Stacks), (false, Answer::StacksOverTime)] {
            let request = v1::ExportRequest::default();
            let asked = exported(differences, &request, (None, None)).unwrap();
            assert_eq!(asked.kind(), kind);
        }
    }

    #[test]
    fn calls_on_one_line_are_one_stack() {
        let answer = |device| {
            let mut later = fake::stacks(7, 0, 3, false);
            let like = later.rows.clone();
            later.rows.extend(like);
            Answer {
                later,
                earlier: None,
                device,
            }
            .report()
        };
        let once = fake::stacks(7, 0, 3, false);
        let all = answer(None);
        assert_eq!(all.rows.len(), once.rows.len());
        assert_eq!(all.rows[0].live.bytes, once.rows[0].live.bytes * 2);
        assert!(answer(Some(1)).rows.iter().all(|row| row.device == Some(1)));
    }
}
