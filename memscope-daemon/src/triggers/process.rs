//! State of the triggers for one process.

use memscope_ledger::Ledger;
use memscope_ledger::event::ProcessHandle;
use memscope_ledger::report::{Baseline, Gauge, Hidden};
use memscope_rpc::{Condition, Metric};
use serde::{Deserialize, Serialize};

use super::edge::{Crossing, Edge};
use super::firing::Firing;
use super::growth::{Growth, Risen};
use super::words::share;
use memscope_units::bytes;

/// How long a level that was above at the attach waits for a reading of the baseline, in nanoseconds.
const READING_NS: u64 = 60_000_000_000;
/// How long levels may wait for an event that gives them exactly, in nanoseconds.
const EXACT_NS: u64 = 100_000_000;

/// State of the triggers for one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ProcessTriggers {
    handle: ProcessHandle,
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    pub(super) uids: [u32; 3],
    attached_ns: u64,
    /// What nothing tells of it.
    #[serde(default)]
    pub(super) hidden: Hidden,
    /// Number of failed requests seen so far, by device.
    ooms: Vec<(i32, u64)>,
    devices: Vec<Levels>,
    watches: Vec<Watch>,
    /// Whether some of the triggers need levels.
    looks_at_levels: bool,
    /// Whether some of them need allocated bytes, which change with every block.
    looks_at_allocated: bool,
    /// Whether levels have to be judged although they did not change.
    look_again: bool,
    /// Whether some of them need steps.
    #[serde(default)]
    looks_at_steps: bool,
}

/// The levels of one device when they were last checked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Levels {
    device: i32,
    allocated: Option<u64>,
    reserved: Option<u64>,
    /// Since when they wait for an event that gives them exactly.
    inexact_since: Option<u64>,
}

/// One trigger in this process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Watch {
    trigger: u64,
    condition: Condition,
    devices: Vec<(i32, State)>,
    /// When it last fired without being paused.
    last_ns: Option<u64>,
    paused: u64,
    /// Steps that the process had made when this was looked at last.
    #[serde(default)]
    steps: Option<u64>,
}

/// State of a trigger for one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum State {
    Level(Edge),
    /// The edge, and the worst moment since levels were last exact.
    Fragments(Edge, Option<Fragments>),
    Growth(Growth),
}

/// A moment at which a pool took more memory although it had free room.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Fragments {
    share: u64,
    free: u64,
    reserved: u64,
    taken: u64,
}

impl ProcessTriggers {
    pub(super) fn new(handle: ProcessHandle, attached_ns: u64) -> ProcessTriggers {
        ProcessTriggers {
            handle,
            pid: 0,
            start_ticks: 0,
            uids: [0; 3],
            attached_ns,
            hidden: Hidden::default(),
            ooms: Vec::new(),
            devices: Vec::new(),
            watches: Vec::new(),
            looks_at_levels: false,
            looks_at_allocated: false,
            look_again: false,
            looks_at_steps: false,
        }
    }

    /// Sets the triggers that watch this process. Triggers that stay keep their state.
    pub(super) fn watch(&mut self, triggers: &[(u64, Condition)]) {
        self.watches
            .retain(|w| triggers.iter().any(|(number, _)| *number == w.trigger));
        for (trigger, condition) in triggers {
            if self.watches.iter().all(|w| w.trigger != *trigger) {
                self.look_again = true;
                self.watches.push(Watch {
                    trigger: *trigger,
                    condition: *condition,
                    devices: Vec::new(),
                    last_ns: None,
                    paused: 0,
                    steps: None,
                });
            }
        }
        let any = |looks: fn(&Metric) -> bool| triggers.iter().any(|(_, c)| looks(&c.metric));
        self.looks_at_levels = any(|metric| *metric != Metric::Oom && !metric.is_of_steps());
        self.looks_at_steps = any(Metric::is_of_steps);
        self.looks_at_allocated =
            any(|metric| matches!(metric, Metric::Allocated { .. } | Metric::Growth { .. }));
    }

    /// Whether nothing tells of what a trigger with this metric waits for.
    pub(super) fn hides(&self, metric: Metric) -> bool {
        match metric {
            Metric::Oom => self.hidden.ooms,
            Metric::Allocated { .. } | Metric::Fragmentation { .. } | Metric::Growth { .. } => {
                self.hidden.allocated
            }
            Metric::Reserved { .. } => self.hidden.reserved,
            Metric::Step { .. } | Metric::Every { .. } => false,
        }
    }

    pub(super) fn looks_at_levels(&self) -> bool {
        self.looks_at_levels
    }

    /// Checks whether a step has ended for which some trigger waits.
    pub(super) fn look_at_steps(&mut self, ledger: &Ledger, due: &mut Vec<Firing>) {
        if !self.looks_at_steps {
            return;
        }
        let count = ledger.steps_so_far(self.handle);
        for watch in &mut self.watches {
            if !watch.condition.metric.is_of_steps() {
                continue;
            }
            // What has passed before the trigger came is none of its steps. The count begins again where another source of
            // steps is found, and may be lower then.
            let before = watch.steps.replace(count).unwrap_or(count).min(count);
            let ended = match watch.condition.metric {
                Metric::Step { number } => (before < number && number <= count).then_some(number),
                Metric::Every { steps } => {
                    (before / steps < count / steps).then_some(count / steps * steps)
                }
                _ => None,
            };
            let Some(step) = ended else {
                continue;
            };
            let late = match count - step {
                0 => String::new(),
                late => format!(" ({late} more had ended when that was known)"),
            };
            let reason = format!("step {step} has ended{late}");
            due.push(watch.fires(self.handle, None, reason));
        }
    }

    /// Checks the levels of a device. `exact`: the event gave the levels as they stay until the next call of the
    /// allocator.
    pub(super) fn look(
        &mut self,
        gauge: Gauge,
        now_ns: u64,
        exact: bool,
        ledger: &Ledger,
        due: &mut Vec<Firing>,
    ) {
        let place = self.devices.iter().position(|d| d.device == gauge.device);
        let new = Levels {
            device: gauge.device,
            allocated: gauge.allocated_bytes,
            reserved: gauge.reserved_bytes,
            inexact_since: None,
        };
        let Some(levels) = place.and_then(|place| self.devices.get_mut(place)) else {
            self.devices.push(Levels {
                inexact_since: (!exact).then_some(now_ns),
                ..new
            });
            if exact {
                self.judge(new, now_ns, ledger, due);
            }
            return;
        };
        let before = *levels;
        let is_same = before.reserved == new.reserved
            && (before.allocated == new.allocated || !self.looks_at_allocated);
        if is_same && (before.inexact_since.is_none() || !exact) {
            levels.allocated = new.allocated;
            return;
        }
        *levels = new;
        if !exact {
            levels.inexact_since = before.inexact_since.or(Some(now_ns));
        }
        self.note_fragments(&before, &new);
        if exact {
            self.judge(new, now_ns, ledger, due);
        } else {
            self.note_fall(&new);
        }
    }

    /// Whether the levels of a device changed by a segment, and the event of the block that it was made for has not come.
    pub(super) fn waits_for_block(&self, device: i32) -> bool {
        let mut levels = self.devices.iter();
        levels.any(|levels| levels.device == device && levels.inexact_since.is_some())
    }

    /// Takes in a fall of reserved bytes at once: only a rise has to wait for the event of its block.
    fn note_fall(&mut self, now: &Levels) {
        let Some(reserved) = now.reserved else {
            return;
        };
        for watch in &mut self.watches {
            if let Metric::Reserved { above } = watch.condition.metric
                && watch.is_for(now.device)
                && let State::Level(edge) = watch.state(now.device)
            {
                edge.fall(reserved, above);
            }
        }
    }

    /// Takes note if the pool took more from the driver, that is, if its free room was of no use for the request.
    fn note_fragments(&mut self, before: &Levels, now: &Levels) {
        let (Some(allocated), Some(reserved), Some(after)) =
            (before.allocated, before.reserved, now.reserved)
        else {
            return;
        };
        let free = reserved.saturating_sub(allocated);
        let taken = after.saturating_sub(reserved);
        if taken == 0 || reserved == 0 {
            return;
        }
        let moment = Fragments {
            share: (u128::from(free) * 10_000 / u128::from(reserved)) as u64,
            free,
            reserved,
            taken,
        };
        for watch in &mut self.watches {
            let Metric::Fragmentation {
                above,
                reserved_above,
            } = watch.condition.metric
            else {
                continue;
            };
            // A request that is larger than all free room did not fail to be served because of fragmentation.
            let is_excused = taken > free && moment.share > above;
            if is_excused || reserved <= reserved_above || !watch.is_for(now.device) {
                continue;
            }
            if let State::Fragments(_, worst) = watch.state(now.device)
                && worst.is_none_or(|worst| worst.share < moment.share)
            {
                *worst = Some(moment);
            }
        }
    }

    fn judge(&mut self, levels: Levels, now_ns: u64, ledger: &Ledger, due: &mut Vec<Firing>) {
        let (handle, attached_ns) = (self.handle, self.attached_ns);
        let is_awaited = || {
            now_ns.saturating_sub(attached_ns) < READING_NS
                && ledger.baseline(handle) == Some(Baseline::Awaited)
        };
        for watch in &mut self.watches {
            if !watch.is_for(levels.device) {
                continue;
            }
            match watch.judge(&levels, now_ns, is_awaited) {
                Verdict::Quiet => {}
                Verdict::Again => self.look_again = true,
                Verdict::Fires(reason) => {
                    due.push(watch.fires(handle, Some(levels.device), reason));
                }
            }
        }
    }

    /// Counts each failed request once, although two events may report it.
    pub(super) fn out_of_memory(&mut self, size: u64, ledger: &Ledger, due: &mut Vec<Firing>) {
        for gauge in ledger.gauges(self.handle) {
            let device = gauge.device;
            let place = self.ooms.iter().position(|(known, _)| *known == device);
            let place = place.unwrap_or_else(|| {
                self.ooms.push((device, 0));
                self.ooms.len() - 1
            });
            let Some((_, seen)) = self.ooms.get_mut(place) else {
                continue;
            };
            if gauge.oom_count <= *seen {
                continue;
            }
            *seen = gauge.oom_count;
            for watch in &mut self.watches {
                if watch.condition.metric == Metric::Oom && watch.is_for(device) {
                    let reason = format!(
                        "ran out of memory on device {device}: a request of {} failed",
                        bytes(size)
                    );
                    due.push(watch.fires(self.handle, Some(device), reason));
                }
            }
        }
    }

    pub(super) fn tick(&mut self, now_ns: u64, ledger: &Ledger, due: &mut Vec<Firing>) {
        self.look_at_steps(ledger, due);
        if !self.looks_at_levels() {
            return;
        }
        let again = std::mem::take(&mut self.look_again);
        let is_late = |levels: &Levels| {
            levels
                .inexact_since
                .is_some_and(|since| now_ns.saturating_sub(since) > EXACT_NS)
        };
        if again || self.devices.iter().any(is_late) {
            for gauge in ledger.gauges(self.handle) {
                self.look(gauge, now_ns, true, ledger, due);
            }
        }
        if again {
            for levels in self.devices.clone() {
                self.judge(levels, now_ns, ledger, due);
            }
        }
        for watch in &mut self.watches {
            for at in 0..watch.devices.len() {
                let Some((device, State::Growth(growth))) = watch.devices.get_mut(at) else {
                    continue;
                };
                let device = *device;
                if let Some(risen) = growth.advance(now_ns) {
                    let reason = grew(device, risen);
                    due.push(watch.fires(self.handle, Some(device), reason));
                }
            }
        }
    }

    /// Marks a firing that comes too soon after the last one of the same trigger in this process.
    pub(super) fn pause(&mut self, firing: &mut Firing, now_ns: u64, pause_ns: u64) {
        let Some(watch) = self
            .watches
            .iter_mut()
            .find(|w| w.trigger == firing.trigger)
        else {
            return;
        };
        let is_soon = |last: u64| now_ns.saturating_sub(last) < pause_ns;
        if watch.last_ns.is_some_and(is_soon) {
            watch.paused += 1;
            firing.paused = Some(watch.paused);
        } else {
            firing.last_before_ns = watch.last_ns.replace(now_ns);
            firing.paused_before = std::mem::take(&mut watch.paused);
        }
    }

    /// Takes back that a trigger rests, since no snapshot was taken for this firing.
    pub(super) fn not_taken(&mut self, firing: &Firing) {
        let watch = self
            .watches
            .iter_mut()
            .find(|watch| watch.trigger == firing.trigger);
        if let Some(watch) = watch {
            watch.last_ns = firing.last_before_ns;
            watch.paused += firing.paused_before;
        }
    }
}

/// Result of judging a level.
enum Verdict {
    Quiet,
    /// The level cannot be judged yet.
    Again,
    Fires(String),
}

impl Watch {
    fn is_for(&self, device: i32) -> bool {
        self.condition.device.is_none_or(|only| only == device)
    }

    fn state(&mut self, device: i32) -> &mut State {
        let place = self.devices.iter().position(|(known, _)| *known == device);
        let place = place.unwrap_or_else(|| {
            let state = match self.condition.metric {
                // Fragmentation is judged at single moments, so no level can have been above before.
                Metric::Fragmentation { .. } => State::Fragments(Edge::Armed, None),
                Metric::Growth { above, within_ns } => State::Growth(Growth::new(above, within_ns)),
                Metric::Oom
                | Metric::Allocated { .. }
                | Metric::Reserved { .. }
                | Metric::Step { .. }
                | Metric::Every { .. } => State::Level(Edge::New),
            };
            self.devices.push((device, state));
            self.devices.len() - 1
        });
        &mut self.devices[place].1
    }

    fn judge(
        &mut self,
        levels: &Levels,
        now_ns: u64,
        is_awaited: impl FnOnce() -> bool,
    ) -> Verdict {
        let device = levels.device;
        let (name, level, above) = match self.condition.metric {
            Metric::Oom | Metric::Step { .. } | Metric::Every { .. } => return Verdict::Quiet,
            Metric::Allocated { above } => ("allocated", levels.allocated, above),
            Metric::Reserved { above } => ("reserved", levels.reserved, above),
            Metric::Fragmentation { above, .. } => {
                return match self.state(device) {
                    State::Fragments(edge, worst) => match worst.take() {
                        Some(moment) if edge.step(moment.share, above) == Crossing::Rose => {
                            Verdict::Fires(fragmented(device, &moment))
                        }
                        _ => Verdict::Quiet,
                    },
                    _ => Verdict::Quiet,
                };
            }
            Metric::Growth { .. } => {
                return match (levels.allocated, self.state(device)) {
                    (Some(level), State::Growth(growth)) => growth
                        .note(now_ns, level)
                        .map_or(Verdict::Quiet, |risen| Verdict::Fires(grew(device, risen))),
                    _ => Verdict::Quiet,
                };
            }
        };
        let (Some(level), State::Level(edge)) = (level, self.state(device)) else {
            return Verdict::Quiet;
        };
        match edge.step(level, above) {
            Crossing::Quiet => Verdict::Quiet,
            Crossing::Rose => Verdict::Fires(format!(
                "{name} rose above {} on device {device}: {}",
                bytes(above),
                bytes(level)
            )),
            // While the blocks are still being read, a snapshot would be incomplete.
            Crossing::WasAbove if is_awaited() => Verdict::Again,
            Crossing::WasAbove => {
                edge.fire();
                Verdict::Fires(format!(
                    "{name} is above {} on device {device}, and was so when it was looked at first: {}",
                    bytes(above),
                    bytes(level)
                ))
            }
        }
    }

    fn fires(&self, process: ProcessHandle, device: Option<i32>, reason: String) -> Firing {
        Firing {
            trigger: self.trigger,
            condition: self.condition,
            process,
            device,
            reason,
            paused: None,
            paused_before: 0,
            last_before_ns: None,
        }
    }
}

fn fragmented(device: i32, moment: &Fragments) -> String {
    format!(
        "the pool took {} more on device {device} although {} of it lay free: {} of {}",
        bytes(moment.taken),
        share(moment.share),
        bytes(moment.free),
        bytes(moment.reserved)
    )
}

fn grew(device: i32, risen: Risen) -> String {
    format!(
        "the floor of allocated on device {device} rose by {}: from {} to {}",
        bytes(risen.to.saturating_sub(risen.from)),
        bytes(risen.from),
        bytes(risen.to)
    )
}
