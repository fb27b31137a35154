//! Why a process is attached, and processes that wait for it.

use std::collections::{HashSet, VecDeque};

use memscope_ledger::event::CoverageNote;
use memscope_rpc::{AttachOptions, Caller};
use serde::{Deserialize, Serialize};

/// Most processes that wait to be followed: as many as can be traced at a time.
pub(super) const LONGEST_QUEUE: usize = memscope_common::SLOTS as usize;

/// How a process came to be attached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cause {
    pub(super) options: AttachOptions,
    pub(super) rule: Option<u64>,
    pub(super) children: bool,
    /// Whether to attach even if no device library is mapped yet.
    pub(super) wait: bool,
    pub(super) generation: u32,
    /// Where its children are attached as well: from which moment on (boot time, nanoseconds), if that is before its probes are live.
    /// What it has forked by then is looked for.
    pub(super) forks_since_ns: Option<u64>,
    /// Coverage note about what happened before the probes were live.
    pub(super) late: Option<CoverageNote>,
}

/// A process that is to be attached because a traced one led to it: as its parent, or as what it was before it executed another image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Followed {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    /// The traced process that led to it.
    pub(super) from: u32,
    /// User of that process, whose share of the tracer's time this takes.
    pub(super) uid: u32,
    pub(super) caller: Caller,
    pub(super) cause: Cause,
}

/// Processes that wait to be followed, because their users' share of the tracer's time was used up when they came. Those that have waited
/// longest come first.
#[derive(Default)]
pub(super) struct Waiting(VecDeque<Followed>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Followed> {
        self.0.iter()
    }

    /// Lets a process wait, unless it does so already. Says whether there was room for it.
    pub(super) fn push(&mut self, next: Followed) -> bool {
        let mut all = self.0.iter();
        if all.any(|one| (one.pid, one.start_ticks) == (next.pid, next.start_ticks)) {
            return true;
        }
        let has_room = self.0.len() < LONGEST_QUEUE;
        if has_room {
            self.0.push_back(next);
        }
        has_room
    }

    /// Takes the process that has waited longest, of those whose users may have the time now. A user without any keeps nobody else back.
    pub(super) fn next(&mut self, may_have_time: impl Fn(u32) -> bool) -> Option<Followed> {
        let at = self.0.iter().position(|one| may_have_time(one.uid))?;
        self.0.remove(at)
    }

    /// Lets only those wait for which this says so.
    pub(super) fn retain(&mut self, keep: impl FnMut(&mut Followed) -> bool) {
        self.0.retain_mut(keep);
    }

    /// Takes out these processes, and those that only wait because one of these led to them.
    pub(super) fn take_out(&mut self, pids: &HashSet<u32>) -> Vec<Followed> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (out, stay) = all.partition(|one| pids.contains(&one.pid) || pids.contains(&one.from));
        self.0 = stay;
        Vec::from(out)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use memscope_ledger::event::Level;
    use memscope_rpc::StackKinds;
    use proptest::prelude::*;

    use super::super::share::Shares;
    use super::*;

    #[test]
    fn a_process_waits_once() {
        let mut waiting = Waiting::default();
        for (pid, from) in [(2, 1), (2, 1), (3, 1), (2, 3)] {
            assert!(waiting.push(one(pid, from, 0)));
        }
        let pids: Vec<u32> = waiting.all().map(|one| one.pid).collect();
        assert_eq!(pids, [2, 3]);
    }

    fn one(pid: u32, from: u32, uid: u32) -> Followed {
        let options = AttachOptions {
            level: Level::Segments,
            read_every: None,
            stacks: StackKinds::NONE,
            step_name: None,
            launches: false,
            kernels: false,
            accesses: false,
            stack_budget: None,
        };
        Followed {
            pid,
            start_ticks: 0,
            from,
            uid,
            caller: Caller::root(),
            cause: Cause {
                options,
                rule: None,
                children: true,
                wait: true,
                generation: 0,
                forks_since_ns: None,
                late: None,
            },
        }
    }

    /// What is done with those that wait.
    #[derive(Debug, Clone)]
    enum Step {
        Push(u32, u32, u32),
        Next(HashSet<u32>),
        TakeOut(HashSet<u32>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let few = || prop::collection::hash_set(0..6_u32, 0..3);
        let step = prop_oneof![
            3 => (0..6_u32, 0..6_u32, 0..4_u32).prop_map(|(pid, from, uid)| Step::Push(pid, from, uid)),
            2 => few().prop_map(Step::Next),
            1 => few().prop_map(Step::TakeOut),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn they_are_those_of_a_plain_list(steps in steps()) {
            let mut waiting = Waiting::default();
            let mut list: Vec<(u32, u32, u32)> = Vec::new();
            let short = |one: &Followed| (one.pid, one.from, one.uid);
            for step in steps {
                match step {
                    Step::Push(pid, from, uid) => {
                        prop_assert!(waiting.push(one(pid, from, uid)));
                        if list.iter().all(|entry| entry.0 != pid) {
                            list.push((pid, from, uid));
                        }
                    }
                    Step::Next(users) => {
                        let mut expected = None;
                        for (at, (_, _, uid)) in list.iter().enumerate() {
                            if users.contains(uid) {
                                expected = Some(list.remove(at));
                                break;
                            }
                        }
                        let next = waiting.next(|uid| users.contains(&uid));
                        prop_assert_eq!(next.as_ref().map(short), expected);
                    }
                    Step::TakeOut(pids) => {
                        let mut expected = Vec::new();
                        let mut stay = Vec::new();
                        for entry in list {
                            match pids.iter().any(|pid| *pid == entry.0 || *pid == entry.1) {
                                true => expected.push(entry),
                                false => stay.push(entry),
                            }
                        }
                        list = stay;
                        let out: Vec<_> = waiting.take_out(&pids).iter().map(short).collect();
                        prop_assert_eq!(out, expected);
                    }
                }
                prop_assert_eq!(waiting.all().map(short).collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(waiting.is_empty(), list.is_empty());
            }
        }
    }

    #[test]
    fn a_queue_that_is_full_takes_no_more() {
        let mut waiting = Waiting::default();
        for pid in 0..LONGEST_QUEUE as u32 {
            assert!(waiting.push(one(pid, 1, 7)));
        }
        let further = LONGEST_QUEUE as u32;
        assert!(!waiting.push(one(further, 1, 7)));
        assert!(waiting.next(|_| true).is_some());
        assert!(waiting.push(one(further, 1, 7)));
    }

    /// Others always want something, so that there is never a moment in which nobody does.
    #[test]
    fn all_are_followed_although_others_never_rest() {
        let (attach, order) = (Duration::from_millis(10), Duration::from_millis(1));
        let mut shares = Shares::default();
        let mut waiting = Waiting::default();
        let began = Instant::now();
        let mut now = began;
        shares.took(7, Duration::from_secs(10), now);
        for pid in 0..500 {
            waiting.push(one(pid, 1, 7));
        }
        while !waiting.is_empty() {
            now += order;
            if waiting.next(|uid| shares.has_time(uid, now)).is_some() {
                now += attach;
                shares.took(7, attach, now);
            }
            let took = now.duration_since(began);
            assert!(
                took < Duration::from_secs(30),
                "some still wait after {took:?}"
            );
        }
        // No more than their share: 15 seconds of work take 30, and two of them may be owed.
        let took = now.duration_since(began);
        assert!(took > Duration::from_secs(25), "{took:?}");
    }
}
