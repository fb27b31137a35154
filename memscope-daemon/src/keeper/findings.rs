//! What is worth an alert: said once in the log, to readers of events and in the journal, and withdrawn when it has healed.
//!
//! Owns: what was said. Looks from time to time, and the less often the longer a look takes. Refuses: to judge; the ledger's
//! answer to `leaks` does.

use std::collections::HashMap;

use memscope_decode::DaemonRecord;
use memscope_ledger::event::{Finding, ProcessHandle};
use memscope_ledger::report::{AsOf, GivenBack, LeakGroup, LeakQuery, Space, Verdict};

use super::Keeper;

/// Time between two looks.
const PAUSE_NS: u64 = 2_000_000_000;
/// A look may take this share of the keeper's time.
const SHARE: u64 = 100;
/// Looks without it before a finding is withdrawn.
const PATIENCE: u32 = 3;
/// Most findings of a process at a time.
const MOST: usize = 20;

/// What makes two groups one finding: a line is told of once, whatever the sizes of its blocks and the ways to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    device: Option<i32>,
    space: Space,
    line: Option<(String, u32)>,
    /// Where no line is known.
    size: u64,
}

struct Said {
    key: Key,
    finding: Finding,
    /// Looks since it was so last.
    missing: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Findings {
    said: HashMap<ProcessHandle, (u64, Vec<Said>)>,
    next_ns: u64,
}

impl Findings {
    /// A process is gone, and what was said of it.
    pub(super) fn forget(&mut self, process: ProcessHandle) {
        self.said.remove(&process);
    }

    /// What has to be said of a process now.
    fn news(
        &mut self,
        process: ProcessHandle,
        groups: &[LeakGroup],
        given_back: &[GivenBack],
    ) -> Vec<Finding> {
        let (numbers, said) = self.said.entry(process).or_default();
        let mut found: Vec<(Key, Finding)> = Vec::new();
        // What stands beside others is a part of what is told of them.
        let growing = |group: &&LeakGroup| group.verdict == Verdict::Growing && !group.beside;
        for group in groups.iter().filter(growing) {
            let key = key(group);
            match found.iter_mut().find(|(known, _)| *known == key) {
                Some((_, finding)) => join(finding, group),
                None => found.push((key, finding(group))),
            }
        }
        let mut news = Vec::new();
        for one in said.iter_mut() {
            let still = found.iter().any(|(key, _)| *key == one.key);
            one.missing = if still { 0 } else { one.missing + 1 };
            let back = given_back.iter().find(|back| key_of(back) == one.key);
            let reason = match back {
                _ if still => continue,
                // That is no pause.
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
            });
        }
        news
    }
}

fn key(group: &LeakGroup) -> Key {
    let line = group.line.as_ref();
    Key {
        device: group.device,
        space: group.space,
        line: line.map(|frame| (frame.file.to_string(), frame.line)),
        size: if line.is_some() { 0 } else { group.size_bytes },
    }
}

fn key_of(back: &GivenBack) -> Key {
    let line = back.line.as_ref();
    Key {
        device: back.device,
        space: back.space,
        line: line.map(|frame| (frame.file.to_string(), frame.line)),
        size: if line.is_some() { 0 } else { back.size_bytes },
    }
}

/// Why a finding is withdrawn of which most was given back.
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

fn finding(group: &LeakGroup) -> Finding {
    let line = group.line.as_ref();
    Finding {
        device: group.device,
        space: match group.space {
            Space::Pool => "pool",
            Space::Driver => "driver",
            Space::Host => "host",
        }
        .to_owned(),
        live_bytes: group.live_bytes,
        growth_bytes_per_s: group.growth_bytes_per_s,
        growth_bytes_per_step: group.growth_bytes_per_step.map(|[_, middle, _]| middle),
        first_step: group.first_step,
        confidence: group.confidence,
        file: line.map(|frame| frame.file.to_string()).unwrap_or_default(),
        line: line.map_or(0, |frame| frame.line),
        name: line.map(|frame| frame.name.to_string()).unwrap_or_default(),
        reason: group.reason.clone(),
        ..Finding::default()
    }
}

/// Another group of the same line.
fn join(finding: &mut Finding, group: &LeakGroup) {
    finding.live_bytes = finding.live_bytes.saturating_add(group.live_bytes);
    finding.growth_bytes_per_s += group.growth_bytes_per_s;
    let step = group.growth_bytes_per_step.map(|[_, middle, _]| middle);
    finding.growth_bytes_per_step = match (finding.growth_bytes_per_step, step) {
        (Some(sum), Some(more)) => Some(sum + more),
        (known, more) => known.or(more),
    };
    finding.first_step = match (finding.first_step, group.first_step) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    finding.confidence = match (finding.confidence, group.confidence) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
}

impl Keeper {
    /// Looks at all traced processes, if it is time.
    pub(super) fn look_for_findings(&mut self, now: u64) {
        if now < self.findings.next_ns || self.watched.is_empty() {
            return;
        }
        // All of them: what is not among the largest any more has not stopped.
        let query = LeakQuery::default();
        let as_of = AsOf {
            boot_ns: now,
            ..AsOf::default()
        };
        let processes: Vec<(ProcessHandle, u32)> = self
            .watched
            .iter()
            .map(|(process, watched)| (*process, watched.pid))
            .collect();
        for (process, pid) in processes {
            let Some(report) = self.ledger.leaks(process, as_of, &query) else {
                continue;
            };
            for finding in self
                .findings
                .news(process, &report.groups, &report.given_back)
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
        }
        let took = crate::clock::boot_ns().saturating_sub(now);
        self.findings.next_ns = now + PAUSE_NS.max(took.saturating_mul(SHARE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memscope_ledger::report::{Frame, FrameKind};

    const P: ProcessHandle = ProcessHandle(1);

    fn group(line: u32, size: u64, verdict: Verdict) -> LeakGroup {
        LeakGroup {
            device: Some(0),
            space: Space::Pool,
            stream: None,
            size_bytes: size,
            live_count: 1,
            live_bytes: 100,
            growth_count: 1,
            growth_bytes: 100,
            growth_bytes_per_s: 10.0,
            oldest_age_ns: 0,
            newest_age_ns: 0,
            verdict,
            confidence: Some(0.9),
            growth_bytes_per_step: Some([1.0, 2.0, 3.0]),
            first_step: Some(7),
            freed: (0, 0),
            beside: false,
            frames: Vec::new(),
            line: (line > 0).then(|| Frame {
                kind: FrameKind::Python,
                name: "f".into(),
                file: "a.py".into(),
                line,
            }),
            reason: "so".to_owned(),
            examples: Vec::new(),
        }
    }

    #[test]
    fn said_once_and_withdrawn_when_it_heals() {
        let mut findings = Findings::default();
        let growing = [
            group(3, 512, Verdict::Growing),
            group(3, 1024, Verdict::Growing),
            group(4, 512, Verdict::Undecided),
        ];
        let news = findings.news(P, &growing, &[]);
        assert_eq!(news.len(), 1);
        assert_eq!(
            (news[0].number, news[0].line, news[0].live_bytes),
            (1, 3, 200)
        );
        assert_eq!(news[0].growth_bytes_per_step, Some(4.0));
        for _ in 0..10 {
            assert!(findings.news(P, &growing, &[]).is_empty());
        }
        // A look without it is no healing.
        assert!(findings.news(P, &[], &[]).is_empty());
        assert!(findings.news(P, &growing, &[]).is_empty());
        let quiet: Vec<Finding> = (0..PATIENCE)
            .flat_map(|_| findings.news(P, &[], &[]))
            .collect();
        assert_eq!(quiet.len(), 1);
        assert!(quiet[0].withdrawn && quiet[0].number == 1);
        // Again: another one.
        assert_eq!(findings.news(P, &growing, &[])[0].number, 2);
        findings.forget(P);
        assert_eq!(findings.news(P, &growing, &[])[0].number, 1);
    }

    #[test]
    fn without_a_line_sizes_are_told_apart_and_there_is_an_end() {
        let mut findings = Findings::default();
        let groups: Vec<LeakGroup> = (1..100)
            .map(|n| group(0, n * 512, Verdict::Growing))
            .collect();
        assert_eq!(findings.news(P, &groups, &[]).len(), MOST);
        assert!(findings.news(P, &groups, &[]).is_empty());
    }

    fn given_back(line: u32) -> GivenBack {
        GivenBack {
            device: Some(0),
            space: Space::Pool,
            size_bytes: 512,
            bytes: 51_200,
            last_ns: 77,
            step: Some(210),
            first_step: Some(7),
            reserved_unused_bytes: Some(2_097_152),
            line: group(line, 512, Verdict::Steady).line,
        }
    }

    #[test]
    fn what_was_given_back_is_withdrawn_at_once_and_says_so() {
        let mut findings = Findings::default();
        let growing = [group(3, 512, Verdict::Growing)];
        assert_eq!(findings.news(P, &growing, &[given_back(3)]).len(), 1);
        assert!(
            findings.news(P, &growing, &[given_back(3)]).is_empty(),
            "it grows again"
        );
        assert!(findings.news(P, &[], &[given_back(4)]).is_empty());
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
        let beside = LeakGroup {
            beside: true,
            ..group(0, 512, Verdict::Growing)
        };
        let news = findings.news(P, &[group(3, 512, Verdict::Growing), beside], &[]);
        assert_eq!(news.len(), 1);
        assert_eq!(news[0].line, 3);
    }
}
