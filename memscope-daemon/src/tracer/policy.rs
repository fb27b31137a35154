//! Attaches what the policy wants.
//!
//! A program that is started is compared with the entries when the kernel reports its exec, before it has run for long; so is what a
//! process becomes that an entry had attached and that executes another program. What changes
//! later (a library that is loaded, a process that is moved into another control group) is found by a search, once a second.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use memscope_log::records::DaemonRecord;
use memscope_rpc::{AttachOptions, Caller, Refusal};

use super::Tracer;
use super::cause::Cause;
use super::ruling::{InForce, Judged, Looks, Wanted};
use super::traced::Traced;
use crate::policy::Policy;

/// Time after which a process that no entry wanted is looked at again, although nothing about it seems to have changed: what it maps
/// if it has run, and what others say of it.
const JUDGED: Duration = Duration::from_secs(10);
/// Shortest time between two searches.
const SEARCH: Duration = Duration::from_secs(1);
/// A search that takes long is followed by a pause of so many times its length, so that searches take 5 % of a processor at most.
const PAUSE: u32 = 20;

impl Tracer {
    /// Lets a policy count from now on. Entries that were `before`, in this daemon or in an earlier one, keep their numbers. Processes
    /// that the policy before had attached are judged anew: one that no entry wants any more is detached, one that is to
    /// be watched otherwise is attached anew.
    pub(super) fn enforce(&mut self, policy: Policy, mut before: Vec<InForce>) {
        let had: Vec<u64> = before.iter().map(|one| one.id).collect();
        let mut same = before.len() == policy.entries.len();
        let mut numbers = Vec::new();
        for (at, entry) in policy.entries.iter().enumerate() {
            same &= before.get(at).is_some_and(|one| one.entry == *entry);
            numbers.push(
                match before
                    .iter_mut()
                    .find(|one| one.entry == *entry && one.id > 0)
                {
                    // Of two equal entries each keeps a number of its own.
                    Some(one) => (std::mem::take(&mut one.id), one.attached),
                    None => {
                        self.next_rule += 1;
                        (self.next_rule - 1, 0)
                    }
                },
            );
        }
        self.ruling.policy = policy;
        self.ruling.numbers = numbers;
        self.ruling.judged.clear();
        self.ruling.others.forget();
        if !same {
            self.judge_anew(&had);
        }
        self.configure();
        self.search_by_policy();
        self.save();
    }

    /// Judges processes that one of these rules had attached, or is to attach as what they have executed.
    fn judge_anew(&mut self, had: &[u64]) {
        let attached = self.traced.values();
        let attached =
            attached.filter(|traced| traced.rule.is_some_and(|rule| had.contains(&rule)));
        let pids: Vec<u32> = attached.map(|traced| traced.pid).collect();
        for pid in pids {
            let wanted = self.ruling.decide(pid);
            let Some(traced) = self.traced.get_mut(&pid) else {
                continue;
            };
            let same = wanted
                .as_ref()
                .filter(|wanted| wanted.options == traced.options);
            if let Some(wanted) = same {
                traced.rule = self.ruling.numbers.get(wanted.at).map(|(id, _)| *id);
                continue;
            }
            tracing::info!(pid, "no longer traced as before: the policy has changed");
            self.end(pid, DaemonRecord::Detached);
            if let Some(wanted) = wanted {
                self.attach_by_policy(pid, wanted);
            }
        }
        // Those that have executed another image and wait were attached by these rules as well.
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut changed = Vec::new();
        waiting.retain(|one| {
            if !one.cause.rule.is_some_and(|rule| had.contains(&rule)) {
                return true;
            }
            let wanted = self.ruling.decide(one.pid);
            let same = wanted.as_ref();
            let same = same.filter(|wanted| wanted.options == one.cause.options);
            let Some(same) = same else {
                changed.push((one.pid, wanted));
                return false;
            };
            one.cause.rule = self.ruling.numbers.get(same.at).map(|(id, _)| *id);
            true
        });
        self.waiting = waiting;
        for (pid, wanted) in changed {
            if let Some(wanted) = wanted {
                self.attach_by_policy(pid, wanted);
            }
        }
        self.forget_ended();
    }

    /// A program was started: attaches it if the policy wants it.
    pub(super) fn started(&mut self, pid: u32) {
        self.ruling.judged.remove(&pid);
        if self.ruling.is_empty() {
            return;
        }
        match self.ruling.decide(pid) {
            Some(wanted) => self.attach_by_policy(pid, wanted),
            None => self.leave(pid, false),
        }
    }

    /// How a process that has executed another image is to be attached, and by which rule: as before, or as the policy wants it now where an
    /// entry of it had attached the process. `None`: the policy wants it no more.
    pub(super) fn judged_again(
        &mut self,
        pid: u32,
        rule: Option<u64>,
        options: &AttachOptions,
    ) -> Option<(AttachOptions, Option<u64>)> {
        let Some(rule) = rule.filter(|rule| self.ruling.has(*rule)) else {
            return Some((options.clone(), rule));
        };
        let Some(wanted) = self.ruling.decide_again(pid, rule) else {
            self.leave(pid, false);
            return None;
        };
        let (id, _) = *self.ruling.numbers.get(wanted.at)?;
        if id != rule {
            self.ruling.count_attached(Some(id));
        }
        Some((wanted.options, Some(id)))
    }

    /// Searches for processes that the policy wants and that no report of the kernel told of.
    pub(super) fn search_by_policy(&mut self) {
        let began = Instant::now();
        if self.ruling.is_empty() || began < self.ruling.next_search {
            return;
        }
        let from = crate::clock::of_this_thread();
        let found = self.ruling.others.look(began);
        let again = began >= self.ruling.judge_again;
        if again {
            self.ruling.judge_again = began + JUDGED;
            self.forget_let_be();
            let there: HashSet<u32> = found.iter().map(|(pid, _)| *pid).collect();
            self.ruling.judged.retain(|pid, _| there.contains(pid));
        }
        let changes = self.ruling.policy.looks_at_what_changes();
        let by_group = self.ruling.policy.looks_at_groups();
        let own = std::process::id();
        for (pid, has_run) in found {
            if pid == own || self.traced.contains_key(&pid) || self.was_let_be(pid) {
                continue;
            }
            if let Some(judged) = self.ruling.judged.get_mut(&pid) {
                judged.again |= has_run;
                // Others may move it into another control group, and say something new of its container.
                let may_differ = match again {
                    true => judged.again || by_group,
                    false if !changes => false,
                    false if has_run => judged.looks != Looks::of(pid),
                    false => by_group && judged.looks.group != Looks::group_of(pid),
                };
                if !may_differ {
                    continue;
                }
            }
            self.pulse.beat();
            self.started(pid);
        }
        let took = crate::clock::of_this_thread().saturating_sub(from);
        self.ruling.next_search = Instant::now() + SEARCH.max(took * PAUSE);
    }

    /// Remembers that no entry wants a process as it is. `again`: it is to be looked at again even if it does not run.
    fn leave(&mut self, pid: u32, again: bool) {
        let looks = Looks::of(pid);
        self.ruling.judged.insert(pid, Judged { looks, again });
    }

    fn attach_by_policy(&mut self, pid: u32, wanted: Wanted) {
        let Wanted { at, options, waits } = wanted;
        let Some((id, _)) = self.ruling.numbers.get(at).copied() else {
            return;
        };
        let cause = Cause {
            options,
            rule: Some(id),
            children: false,
            wait: waits,
            generation: 0,
            forks_since_ns: None,
            late: None,
        };
        match self.attach_one(Caller::root(), pid, cause) {
            Ok(_) => {
                // What it executed meanwhile may be another entry's, which has counted it.
                let is_its = |traced: &Traced| traced.rule == Some(id);
                if self.traced.get(&pid).is_some_and(is_its) {
                    self.ruling.count_attached(Some(id));
                }
            }
            Err(error) => {
                // Most of those that are refused have ended, or use no device.
                tracing::debug!(pid, rule = id, error = %error.what(), "matched, not attached");
                if !matches!(
                    error,
                    Refusal::NoSuchProcess { .. } | Refusal::DiedDuringAttach { .. }
                ) {
                    self.leave(pid, true);
                }
            }
        }
    }
}
