//! Findings: growth that is worth an alert. A finding is reported once, in the log, to readers of events and in the
//! journal, and withdrawn when the growth has ended.
//!
//! Owns: what was reported. Checks from time to time, and less often the longer a check takes. Refuses: to judge
//! growth, which the ledger's answer to `leaks` does.

use memscope_ledger::event::{Body, Event, EventId, Finding, ProcessHandle, StackRef};
use memscope_ledger::report::{AsOf, ProcessState};
use memscope_log::records::DaemonRecord;
use memscope_proto::v1::{CodeLine, GivenBack, LeakLine, LeaksRequest, Source, Verdict};

use super::state::{Findings, Keeper};
use super::watching::{Key, Said};

/// Shortest time between two checks, in nanoseconds.
const PAUSE_NS: u64 = 2_000_000_000;
/// Checks may take one part in this many of the keeper's processor time. Time for which it waits for a processor does not count: on a busy
/// machine a check would be followed by minutes without one, in which what was found stands although it has long ended.
const SHARE: u32 = 20;
/// Number of checks without growth after which a finding is withdrawn.
const PATIENCE: u32 = 3;
/// Most findings of a process at a time.
const MOST: usize = 20;

impl Findings {
    /// Forgets what was reported of a process that is no longer traced.
    pub(super) fn forget(&mut self, process: ProcessHandle) {
        self.said.remove(&process);
    }

    /// Notes which event has reported a finding.
    pub(super) fn reported(&mut self, event: &Event, finding: &Finding) {
        let said = self.said.get_mut(&event.process);
        let known = said.and_then(|(_, said)| {
            said.iter_mut()
                .find(|one| one.finding.number == finding.number)
        });
        if let Some(known) = known {
            (known.sequence, known.time_ns) = (event.id.sequence, event.time_ns);
        }
    }

    /// The findings of a process that have to be reported or withdrawn now.
    fn news(
        &mut self,
        process: ProcessHandle,
        lines: &[LeakLine],
        given_back: &[GivenBack],
    ) -> Vec<Finding> {
        let (numbers, said) = self.said.entry(process).or_default();
        // The growth of a line that stands beside others is a part of the growth that is reported for them.
        let growing = |line: &&LeakLine| line.verdict() == Verdict::Growing && !line.beside;
        let found: Vec<(Key, Finding)> = lines
            .iter()
            .filter(growing)
            .map(|line| (key(line), finding(line)))
            .collect();
        let mut news = Vec::new();
        for one in said.iter_mut() {
            let now = found.iter().find(|(key, _)| *key == one.key);
            let still = now.is_some();
            if let Some((_, now)) = now {
                // Clients that ask later get the growth of now.
                one.finding = Finding {
                    number: one.finding.number,
                    ..now.clone()
                };
            }
            one.missing = if still { 0 } else { one.missing + 1 };
            let back = given_back.iter().find(|back| key_of(back) == one.key);
            one.given_back = match back {
                Some(_) if !still => one.given_back + 1,
                _ => 0,
            };
            let reason = match back {
                _ if still => continue,
                // Memory that was given back is no pause in the growth. But a program that ends gives all of it back just before, and
                // its finding was right: so it must still be there at the next check.
                Some(_) if one.given_back < 2 && one.missing < PATIENCE => continue,
                Some(back) => {
                    one.missing = PATIENCE;
                    healed(back)
                }
                None if one.missing >= PATIENCE => "it has not grown any more".to_owned(),
                None => continue,
            };
            news.push(Finding {
                withdrawn: true,
                reason,
                ..one.finding.clone()
            });
        }
        said.retain(|one| one.missing < PATIENCE);
        for (key, mut finding) in found {
            if said.len() >= MOST || said.iter().any(|one| one.key == key) {
                continue;
            }
            *numbers += 1;
            finding.number = *numbers;
            news.push(finding.clone());
            said.push(Said {
                key,
                finding,
                missing: 0,
                given_back: 0,
                // The event that reports it has these.
                sequence: 0,
                time_ns: 0,
            });
        }
        news
    }
}

fn key(line: &LeakLine) -> Key {
    Key::of(
        line.device,
        line.source(),
        line.line.as_ref(),
        line.largest_bytes,
        line.stack,
    )
}

fn key_of(back: &GivenBack) -> Key {
    Key::of(
        back.device,
        back.source(),
        back.line.as_ref(),
        back.size_bytes(),
        back.stack,
    )
}

impl Key {
    fn of(
        device: Option<i32>,
        source: Source,
        line: Option<&CodeLine>,
        size: u64,
        stack: Option<u32>,
    ) -> Key {
        // The size of blocks of several sizes is their mean, which changes with each block.
        let is_by_size = line.is_none() && stack.is_none();
        Key {
            device,
            source: source.into(),
            line: line.map(|frame| (frame.file.clone(), frame.line)),
            size: if is_by_size { size } else { 0 },
            stack,
        }
    }
}

/// The reason for withdrawing a finding most of whose memory was given back.
fn healed(back: &GivenBack) -> String {
    let mut text = format!("{} bytes were given back", back.bytes);
    if let Some(step) = back.step {
        text.push_str(&format!(" up to step {step}"));
    }
    match back.reserved_unused_bytes {
        Some(0) => text.push_str(", and the pool has returned them"),
        Some(unused) => text.push_str(&format!(
            "; the pool still reserves {unused} bytes that nothing uses"
        )),
        None => {}
    }
    text
}

fn finding(grows: &LeakLine) -> Finding {
    let line = grows.line.as_ref();
    Finding {
        device: grows.device,
        space: grows.source().to_string(),
        live_bytes: grows.live_bytes,
        growth_bytes_per_s: grows.growth_bytes_per_s,
        growth_bytes_per_step: grows.growth_bytes_per_step,
        first_step: grows.first_step,
        confidence: grows.confidence,
        file: line.map(|frame| frame.file.clone()).unwrap_or_default(),
        line: line.map_or(0, |frame| frame.line),
        name: line.map(|frame| frame.name.clone()).unwrap_or_default(),
        reason: grows.reason.clone(),
        ..Finding::default()
    }
}

impl Keeper {
    /// Has the hub know what an earlier daemon has reported of a process and not withdrawn: that is not reported again, and whoever asks now
    /// or listens from now on is told of it all the same.
    pub(super) fn stand_again(&self, process: ProcessHandle) {
        let Some((_, said)) = self.findings.said.get(&process) else {
            return;
        };
        for one in said {
            let event = Event {
                id: EventId {
                    epoch: self.epoch,
                    sequence: one.sequence,
                },
                time_ns: one.time_ns,
                process,
                tid: 0,
                lost_before: 0,
                stack: StackRef::NotTaken,
                sampling: 0,
                body: Body::Finding(Box::new(one.finding.clone())),
            };
            self.hub.publish(&self.item(event));
        }
    }

    /// Judges a process that is no longer traced, and whose last records were read: what it did until then changes no more.
    pub(super) fn judge_ended(&self, process: ProcessHandle) {
        use ProcessState::{Detached, Exited, Replaced};
        let summary = self.ledger.summary(process);
        // Nothing is known of what was given up, and what is attached is judged again and again.
        let has_ended =
            summary.is_some_and(|one| matches!(one.state, Detached | Exited | Replaced));
        let report = has_ended.then(|| {
            self.ledger
                .ask(&[process], self.as_of(), &LeaksRequest::default())
        });
        if let Some(report) = report.flatten() {
            self.hub
                .judged(process, report.process_verdict(), report.confidence());
        }
    }

    /// Checks all traced processes, if it is time.
    pub(super) fn look_for_findings(&mut self, now: u64) {
        if now < self.findings.next_ns || self.watched.is_empty() {
            return;
        }
        let began = crate::clock::of_this_thread();
        let next = self.decoder.next_sequence();
        if self.findings.nothing_before == Some(next) {
            self.findings.next_ns = now + PAUSE_NS;
            self.hub.judged_at(now);
            return;
        }
        let mut nothing = true;
        // Ask for all lines: a line that is no longer among the largest may grow all the same.
        let query = LeaksRequest::default();
        let as_of = AsOf {
            boot_ns: now,
            ..AsOf::default()
        };
        // What has ended is watched until the tracer lets go of it, and nobody would ever withdraw what is found of it then.
        let is_there = |process: &ProcessHandle| {
            let known = self.ledger.summary(*process);
            known.is_some_and(|known| known.state == ProcessState::Attached)
        };
        let processes: Vec<(ProcessHandle, u32)> = self
            .watched
            .iter()
            .filter(|(process, _)| is_there(process))
            .map(|(process, watched)| (*process, watched.pid))
            .collect();
        for (process, pid) in processes {
            let Some(report) = self.ledger.ask(&[process], as_of, &query) else {
                continue;
            };
            nothing &= report.lines.is_empty() && report.given_back.is_empty();
            self.hub
                .judged(process, report.process_verdict(), report.confidence());
            for finding in self
                .findings
                .news(process, &report.lines, &report.given_back)
            {
                if finding.withdrawn {
                    tracing::info!(
                        pid,
                        number = finding.number,
                        file = %finding.file,
                        line = finding.line,
                        reason = %finding.reason,
                        "no longer grows",
                    );
                } else {
                    tracing::warn!(
                        pid,
                        number = finding.number,
                        device = finding.device,
                        file = %finding.file,
                        line = finding.line,
                        live_bytes = finding.live_bytes,
                        bytes_per_s = finding.growth_bytes_per_s.round(),
                        reason = %finding.reason,
                        "memory keeps growing",
                    );
                }
                self.append(process, &DaemonRecord::Finding(finding));
            }
            let (_, standing) = self.findings.said.entry(process).or_default();
            nothing &= standing.is_empty();
            for one in standing {
                self.hub.renew(process, &one.finding);
            }
        }
        // What was found is an event itself, and looked at again.
        self.findings.nothing_before = nothing.then_some(next);
        self.save_watching();
        self.hub.judged_at(now);
        let took = crate::clock::of_this_thread().saturating_sub(began);
        let pause = u64::try_from((took * SHARE).as_nanos()).unwrap_or(u64::MAX);
        self.findings.next_ns = crate::clock::boot_ns().saturating_add(PAUSE_NS.max(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: ProcessHandle = ProcessHandle(1);

    fn line(number: u32, size: u64, verdict: Verdict) -> LeakLine {
        LeakLine {
            device: Some(0),
            source: Source::Pool.into(),
            line: (number > 0).then(|| CodeLine {
                name: "f".into(),
                file: "a.py".into(),
                line: number,
            }),
            verdict: verdict.into(),
            confidence: Some(0.9),
            groups: 1,
            growing_groups: 1,
            stacks: 1,
            smallest_bytes: size,
            largest_bytes: size,
            live_count: 1,
            live_bytes: 100,
            growth_bytes: 100,
            growth_bytes_per_s: 10.0,
            growth_bytes_per_step: Some(2.0),
            first_step: Some(7),
            reason: "so".to_owned(),
            ..LeakLine::default()
        }
    }

    #[test]
    fn said_once_and_withdrawn_when_it_heals() {
        let mut findings = Findings::default();
        let growing = [
            line(3, 512, Verdict::Growing),
            line(4, 512, Verdict::Undecided),
        ];
        let news = findings.news(P, &growing, &[]);
        assert_eq!(news.len(), 1);
        assert_eq!(
            (news[0].number, news[0].line, news[0].live_bytes),
            (1, 3, 100)
        );
        assert_eq!(news[0].growth_bytes_per_step, Some(2.0));
        for _ in 0..10 {
            assert!(findings.news(P, &growing, &[]).is_empty());
        }
        // One check without growth does not withdraw it.
        assert!(findings.news(P, &[], &[]).is_empty());
        assert!(findings.news(P, &growing, &[]).is_empty());
        let quiet: Vec<Finding> = (0..PATIENCE)
            .flat_map(|_| findings.news(P, &[], &[]))
            .collect();
        assert_eq!(quiet.len(), 1);
        assert!(quiet[0].withdrawn && quiet[0].number == 1);
        // When the line grows again, that is another finding.
        assert_eq!(findings.news(P, &growing, &[])[0].number, 2);
        findings.forget(P);
        assert_eq!(findings.news(P, &growing, &[])[0].number, 1);
    }

    #[test]
    fn without_a_line_sizes_are_told_apart_and_there_is_an_end() {
        let mut findings = Findings::default();
        let lines: Vec<LeakLine> = (1..100)
            .map(|n| line(0, n * 512, Verdict::Growing))
            .collect();
        assert_eq!(findings.news(P, &lines, &[]).len(), MOST);
        assert!(findings.news(P, &lines, &[]).is_empty());
    }

    #[test]
    fn a_stack_whose_blocks_have_several_sizes_is_one_finding() {
        let mut findings = Findings::default();
        let of = |stack: u32, mean: u64| LeakLine {
            stack: Some(stack),
            ..line(0, mean, Verdict::Growing)
        };
        assert_eq!(findings.news(P, &[of(7, 4096)], &[]).len(), 1);
        // With each block that leaks the mean is another.
        for mean in 4097..4110 {
            let news = findings.news(P, &[of(7, mean)], &[]);
            assert!(news.is_empty(), "{news:?}");
        }
        // A second stack and blocks of one size are told apart from it, also where the sizes are alike.
        let all = [of(7, 4096), of(8, 4096), line(0, 4096, Verdict::Growing)];
        assert_eq!(findings.news(P, &all, &[]).len(), 2);
        let back = GivenBack {
            size_bytes: None,
            stack: Some(7),
            ..given_back(0)
        };
        assert!(
            findings
                .news(P, &all[1..], std::slice::from_ref(&back))
                .is_empty()
        );
        let news = findings.news(P, &all[1..], &[back]);
        assert_eq!(news.len(), 1);
        assert!(news[0].withdrawn && news[0].number == 1);
    }

    fn given_back(number: u32) -> GivenBack {
        GivenBack {
            device: Some(0),
            source: Source::Pool.into(),
            size_bytes: Some(512),
            bytes: 51_200,
            last_boot_ns: 77,
            step: Some(210),
            first_step: Some(7),
            reserved_unused_bytes: Some(2_097_152),
            line: line(number, 512, Verdict::Steady).line,
            stack: None,
        }
    }

    #[test]
    fn what_was_given_back_is_withdrawn_at_the_second_check_and_says_so() {
        let mut findings = Findings::default();
        let growing = [line(3, 512, Verdict::Growing)];
        assert_eq!(findings.news(P, &growing, &[given_back(3)]).len(), 1);
        assert!(
            findings.news(P, &growing, &[given_back(3)]).is_empty(),
            "it grows again"
        );
        assert!(findings.news(P, &[], &[given_back(4)]).is_empty());
        let first = findings.news(P, &[], &[given_back(3)]);
        assert!(first.is_empty(), "the program may be about to end");
        let news = findings.news(P, &[], &[given_back(3)]);
        assert_eq!(news.len(), 1);
        assert!(news[0].withdrawn);
        assert_eq!(
            news[0].reason,
            "51200 bytes were given back up to step 210; the pool still reserves 2097152 bytes that nothing uses"
        );
        assert!(findings.news(P, &[], &[given_back(3)]).is_empty(), "once");
    }

    #[test]
    fn what_stands_beside_another_is_no_finding() {
        let mut findings = Findings::default();
        let beside = LeakLine {
            beside: true,
            ..line(0, 512, Verdict::Growing)
        };
        let news = findings.news(P, &[line(3, 512, Verdict::Growing), beside], &[]);
        assert_eq!(news.len(), 1);
        assert_eq!(news[0].line, 3);
    }
}
