//! Writes down what is traced, when it has changed.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use memscope_site::FileIdentity;

use super::kept::{FILE, FORMAT, Kept, KeptProcess, write};
use super::traced::AtOnce;
use super::{Order, TraceState, Tracer};
use crate::keeper::Command;
use crate::probe::calibrate::Layout;
use crate::probe::links::{Link, detach_all};
use crate::probe::load::Program;

/// Longest time for which attaches wait for others that are written down with them.
const TOGETHER: Duration = Duration::from_millis(100);

/// Longest time for which a change is not on disk that nobody waits for.
const SAVE: Duration = Duration::from_secs(1);

impl Tracer {
    /// The next order, or that there was none for the time until the next round. Attaches are written down before they are answered; those
    /// that come one right after the other together, since each time takes the disk some milliseconds.
    pub(super) fn next_order(
        &mut self,
        orders: &Receiver<Order>,
    ) -> Result<Order, RecvTimeoutError> {
        if let Some(oldest) = self.unsaved.first() {
            let is_time = oldest.since.elapsed() >= TOGETHER;
            match orders.try_recv() {
                Ok(order) if !is_time => return Ok(order),
                Ok(order) => {
                    self.save_attached();
                    return Ok(order);
                }
                Err(_) => self.save_attached(),
            }
        }
        orders.recv_timeout(self.pause())
    }

    /// Writes down what was attached, and then answers.
    pub(super) fn save_attached(&mut self) {
        let attached = std::mem::take(&mut self.unsaved);
        if attached.is_empty() {
            return;
        }
        self.save();
        for one in attached {
            match one.outcome {
                Ok(outcome) => self.answer_attach(outcome, one.reply),
                // The client may be gone.
                Err(refusal) => drop(one.reply.send(Err(refusal))),
            }
        }
    }

    /// Writes what has changed since the last time, at most once a second.
    pub(super) fn save_sometimes(&mut self) {
        if self.keeping.looked.elapsed() >= SAVE {
            self.save();
            self.remove_unneeded(None);
        }
    }

    /// Removes the probes of processes whose trace is proven that are not needed any more: those on reports, and the one on
    /// completed frees where another tells of them. That is written down first: a daemon that takes over must not
    /// rely on probes that are gone. On a disk that takes nothing they stay. `proven`: the process of which that is new.
    pub(super) fn remove_unneeded(&mut self, proven: Option<u32>) {
        let mut removed = Vec::new();
        for traced in self.traced.values_mut() {
            if traced.trace == TraceState::Proven {
                let told = traced.at_once == AtOnce::Told;
                let unneeded = |link: &mut Link| {
                    let program = link.program();
                    program.is_report() || told && program == Program::TraceCompleted
                };
                let links: Vec<Link> = traced.links.extract_if(.., unneeded).collect();
                removed.push((traced.pid, links));
            }
        }
        removed.retain(|(pid, links)| !links.is_empty() || proven == Some(*pid));
        if removed.is_empty() {
            return;
        }
        self.save();
        for (pid, links) in removed {
            if !self.keeping.failed {
                let beat = || self.pulse.beat();
                let _paused = self.remover.pause(beat);
                detach_all(links, beat);
                self.say_settled(pid);
                self.note(pid, "both_ways", "");
                self.say_placed(pid);
            } else if let Some(traced) = self.traced.get_mut(&pid) {
                traced.links.extend(links);
            }
        }
    }

    /// Tells the keeper, where no completed free is told twice any more.
    pub(super) fn say_settled(&self, pid: u32) {
        if let Some(traced) = self.traced.get(&pid)
            && traced.at_once == AtOnce::Told
            && !traced.has_completed()
        {
            let process = traced.handle;
            let _ = self.keeper.send(Command::FreesSettled { process });
        }
    }

    /// Writes what has changed. After an attach or a detach this comes before the answer.
    pub(super) fn save(&mut self) {
        self.keeping.looked = Instant::now();
        let kept = self.kept();
        let bytes = match serde_json::to_vec(&kept) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "what is traced could not be put into words");
                return;
            }
        };
        if bytes == self.keeping.written {
            self.keeping.failed = false;
            return;
        }
        match write(&self.keeping.state_dir, &bytes) {
            Ok(()) => {
                self.keeping.written = bytes;
                self.keeping.failed = false;
            }
            Err(error) => {
                if !self.keeping.failed {
                    tracing::error!(
                        %error,
                        path = %self.keeping.state_dir.join(FILE).display(),
                        "what is traced could not be written down: after a crash memscoped would not know of it"
                    );
                }
                self.keeping.failed = true;
            }
        }
    }

    fn kept(&self) -> Kept {
        let mut layouts: Vec<(FileIdentity, Layout)> = self
            .layouts
            .iter()
            .map(|(file, layout)| (file.clone(), *layout))
            .collect();
        layouts.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut let_be: Vec<(u32, u64)> = self
            .let_be
            .iter()
            .map(|(pid, start)| (*pid, *start))
            .collect();
        let_be.sort_unstable();
        let executed = self.waiting.all().filter(|one| one.pid == one.from);
        Kept {
            format: FORMAT,
            boot_id: self.keeping.boot_id.clone(),
            epoch: self.keeping.epoch,
            stopped: self.keeping.stopped,
            pins: self.kernel.pins().map(|pins| pins.dir().to_owned()),
            shapes: self.keeping.shapes.clone(),
            since: Some(self.keeping.since),
            next_handle: self.next_handle,
            next_rule: self.next_rule,
            rules: self.rules.clone(),
            policy: self.ruling.in_force(),
            let_be,
            sites: self.sites.all(),
            layouts,
            processes: self.traced.values().map(KeptProcess::of).collect(),
            waiting: executed.cloned().collect(),
        }
    }
}
