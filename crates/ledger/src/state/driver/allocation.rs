//! One allocation from runtime or driver, and how it enters and leaves the counters.
//!
//! Owns: the operations that keep an allocation, its device's counters and its group consistent. Refuses: addresses and
//! handles, which `driver` and `vmm` keep.

use crate::event::{HalFacts, HalPage};
use crate::report::{DriverBytes, Holder, Space};
use crate::state::device::DriverDevice;
use crate::state::distribution::Recorder;
use crate::state::driver::component::told;
use crate::state::membership::{GroupKey, Membership};
use crate::state::scene::Scene;
use crate::state::series::Series;
use crate::state::stacks::StackIndex;
use crate::state::step_levels::StepLevels;
use serde::{Deserialize, Serialize};

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Plain,
    Async,
    Managed,
    Physical,
}

/// One live allocation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Allocation {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) device: Option<i32>,
    pub(crate) stream: Option<u64>,
    /// It is memory of the framework's pool.
    pub(crate) pooled: bool,
    /// It is a workspace of torch_npu.
    pub(crate) workspace: bool,
    /// Attributes with which Ascend's driver was asked for it.
    pub(crate) hal: Option<HalFacts>,
    pub(crate) born_ns: u64,
    pub(crate) stack: StackIndex,
    pub(crate) place: Membership,
    /// The context that it goes with, see `Home`.
    #[serde(default)]
    pub(crate) context: u64,
    /// How many peaks its device had had when it came.
    #[serde(default)]
    peaks: u64,
}

fn part(device: &mut DriverDevice, kind: Kind) -> &mut DriverBytes {
    match kind {
        Kind::Plain => &mut device.plain,
        Kind::Async => &mut device.async_pool,
        Kind::Managed => &mut device.managed,
        Kind::Physical => &mut device.physical,
    }
}

/// Counts one more of a kind.
fn came(device: &mut DriverDevice, kind: Kind, bytes: u64) {
    device.stream_ordered |= kind == Kind::Async;
    add(part(device, kind), bytes);
}

/// Counts one more.
pub(crate) fn add(to: &mut DriverBytes, bytes: u64) {
    to.count += 1;
    to.bytes = to.bytes.saturating_add(bytes);
}

/// Counts one less.
pub(crate) fn take(from: &mut DriverBytes, bytes: u64) {
    from.count = from.count.saturating_sub(1);
    from.bytes = from.bytes.saturating_sub(bytes);
}

impl Allocation {
    /// Makes a new allocation and counts it.
    pub(crate) fn enter(
        scene: &mut Scene<'_>,
        kind: Kind,
        size: u64,
        device: Option<i32>,
        stream: Option<u64>,
        hal: Option<HalFacts>,
    ) -> Allocation {
        let mut new = Allocation {
            kind,
            size,
            device,
            stream,
            pooled: false,
            workspace: false,
            hal,
            born_ns: scene.time_ns,
            stack: scene.stack,
            place: Membership::NOWHERE,
            context: 0,
            peaks: scene.stacks.peaks(device),
        };
        scene.stacks.came(device, new.stack, size, true);
        new.place = scene.groups.join(scene.time_ns, new.group());
        let row = scene.devices.driver(device);
        came(row, kind, size);
        row.components.came(told(hal), size);
        row.alloc_count += 1;
        row.sizes.record(size);
        row.note_level(scene.time_ns, 1, 0);
        new
    }

    /// Takes the allocation out of the counters. Only if its free was `seen` is it counted as a free.
    pub(crate) fn leave(self, scene: &mut Scene<'_>, seen: bool) {
        scene.groups.leave(scene.time_ns, self.place, self.size);
        let row = scene.devices.driver(self.device);
        take(part(row, self.kind), self.size);
        if self.pooled {
            take(&mut row.pooled, self.size);
        } else {
            row.components.went(self.holder(), self.size);
            scene.stacks.went(self.device, self.stack, self.size);
        }
        if seen {
            row.free_count += 1;
            row.lifetimes
                .record(scene.time_ns.saturating_sub(self.born_ns));
        }
        row.note_level(scene.time_ns, 0, u64::from(seen));
    }

    /// Who holds it, where that is known.
    pub(crate) fn holder(&self) -> Option<(Holder, HalPage)> {
        if self.workspace {
            let page = self.hal.map(|hal| hal.page).unwrap_or_default();
            return Some((Holder::Workspace, page));
        }
        told(self.hal)
    }

    /// Marks it as a workspace of torch_npu.
    pub(crate) fn serve_as_workspace(&mut self, scene: &mut Scene<'_>) {
        if !self.workspace && !self.pooled {
            let row = scene.devices.driver(self.device);
            row.components.went(self.holder(), self.size);
            self.workspace = true;
            row.components.came(self.holder(), self.size);
        }
    }

    /// Marks it as memory of the framework's pool on `device`. That is also evidence of the device that it is on.
    pub(crate) fn claim(&mut self, scene: &mut Scene<'_>, device: i32) {
        if self.pooled {
            return;
        }
        scene.groups.moves(scene.time_ns, self.place);
        self.place = Membership::NOWHERE;
        // From now on the pool's blocks count its bytes.
        let (old, stack) = (self.device, self.stack);
        let lowers = scene.stacks.never_was(old, stack, self.size, self.peaks);
        let old = scene.devices.driver(self.device);
        old.components.went(self.holder(), self.size);
        if self.device != Some(device) {
            let old = scene.devices.driver(self.device);
            take(part(old, self.kind), self.size);
            if lowers {
                old.peak_bytes = old.peak_bytes.saturating_sub(self.size);
            }
            old.alloc_count = old.alloc_count.saturating_sub(1);
            old.note_level(scene.time_ns, 0, 0);
            if old.alloc_count == 0 {
                // Nothing but the pool's memory was ever counted there.
                old.peak_bytes = 0;
                old.sizes = Recorder::default();
                old.series = Series::default();
                old.step = StepLevels::default();
            }
            self.device = Some(device);
            let new = scene.devices.driver(self.device);
            came(new, self.kind, self.size);
            new.alloc_count += 1;
            new.sizes.record(self.size);
            new.note_level(scene.time_ns, 1, 0);
        }
        self.pooled = true;
        add(&mut scene.devices.driver(self.device).pooled, self.size);
    }

    fn group(&self) -> GroupKey {
        GroupKey {
            device: self.device,
            space: Space::Driver,
            stream: self.stream,
            size: self.size,
            stack: self.stack,
        }
    }
}
