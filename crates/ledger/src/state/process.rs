//! One traced process: the fold of its events.
//!
//! Owns: its state from the attach on, until it is forgotten. Refuses: events after its end, which
//! leave the last state as it stood.

use crate::config::LedgerConfig;
use crate::event::{
    AllocatorFacts, Backend, Body, Call, CallOp, DeviceTotal, Event, Level, Placement,
    ProcessFacts, ProcessHandle, ReadingCost, Vendor,
};
use crate::growth::group::Groups;
use crate::notes::Notes;
use crate::report::{AsOf, ProcessState, ProcessSummary, RegionPool, Source};
use crate::state::device::{Device, Devices, Watch};
use crate::state::driver::Driver;
use crate::state::given_back;
use crate::state::gone::Gone;
use crate::state::labels::Labels;
use crate::state::loss::Loss;
use crate::state::marks::Marks;
use crate::state::pool::Pool;
use crate::state::pool::reading::Readings;
use crate::state::regions::RegionBook;
use crate::state::scene::Scene;
use crate::state::stacks::{self, Stacks};
use crate::steps::Steps;
use serde::{Deserialize, Serialize};

/// Code of the note that says that, for a time, stacks are recorded only in part.
const REDUCED: &str = "stacks_reduced";
/// Maximum number of children whose process ids are kept for the coverage note.
const CHILDREN: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) handle: ProcessHandle,
    pub(crate) facts: ProcessFacts,
    pub(crate) state: ProcessState,
    pub(crate) attached_ns: u64,
    pub(crate) ended_ns: Option<u64>,
    pub(crate) last_ns: u64,
    pub(crate) events: u64,
    pub(crate) loss: Loss,
    pub(crate) backend: Backend,
    pub(crate) allocator: AllocatorFacts,
    pub(crate) placement: Placement,
    /// Vendor of the devices that it uses, once a call or a library has shown it.
    pub(crate) vendor: Option<Vendor>,
    /// A pool-level way in is live, or was live and has reported events.
    pub(crate) pool_way_in: bool,
    /// The first probes in the pool came later than those that the attach placed, in a library that was loaded meanwhile.
    #[serde(default)]
    pub(crate) pool_came_later: bool,
    pub(crate) notes: Notes,
    /// Process ids of the first children that are not attached, and the number of all of these.
    pub(crate) children: (Vec<u32>, u64),
    pub(crate) devices: Devices,
    pub(crate) groups: Groups,
    pub(crate) pool: Pool,
    pub(crate) driver: Driver,
    pub(crate) regions: RegionBook,
    pub(crate) stacks: Stacks,
    pub(crate) steps: Steps,
    pub(crate) marks: Marks,
    #[serde(default)]
    pub(crate) labels: Labels,
    pub(crate) readings: Readings,
    /// What the last reading cost: its duration, bytes and attempts.
    pub(crate) reading_cost: Option<ReadingCost>,
    /// What was given up because the daemon's memory was short.
    #[serde(default)]
    pub(crate) shed: Gone,
}

impl Process {
    /// An event about the block at this address comes soon.
    pub(crate) fn prefetch(&self, addr: u64) {
        self.pool.blocks.prefetch(addr);
    }

    /// The state of a process that is attached by this event.
    pub(crate) fn new(config: &LedgerConfig, event: &Event, facts: &ProcessFacts) -> Process {
        let mut pool = Pool::default();
        pool.blind_until(event.time_ns);
        Process {
            handle: event.process,
            facts: facts.clone(),
            state: ProcessState::Attached,
            attached_ns: event.time_ns,
            ended_ns: None,
            last_ns: event.time_ns,
            events: 1,
            loss: Loss::new(event.time_ns, event.lost_before),
            backend: Backend::default(),
            allocator: AllocatorFacts::default(),
            placement: Placement::default(),
            vendor: None,
            pool_way_in: false,
            pool_came_later: false,
            notes: Notes::default(),
            children: (Vec::new(), 0),
            devices: Devices::new(config.trace_entries),
            groups: Groups::new(event.time_ns, config.leak_window_ns, config.leak_groups),
            pool,
            driver: Driver::default(),
            regions: RegionBook::default(),
            stacks: Stacks::default(),
            steps: Steps::new(event.time_ns),
            marks: Marks::default(),
            labels: Labels::default(),
            readings: Readings::default(),
            reading_cost: None,
            shed: Gone::default(),
        }
    }

    /// Builds what a checkpoint does not have.
    pub(crate) fn restored(&mut self) {
        self.stacks.index_contents();
        self.groups.restored();
        self.steps.restored();
        self.pool.recount_requested(&mut self.devices);
    }

    /// Takes in what NVML says of one of its devices.
    fn device_total(&mut self, told: &DeviceTotal, time_ns: u64) {
        if self.devices.contradict(told) {
            self.devices.disown(told);
            return;
        }
        let device = Some(told.device);
        // What it holds changes all the time, and the context hardly ever: so they are told apart now.
        let rows = self.devices.sorted();
        let row = rows.into_iter().find(|row| row.ordinal == device);
        let held = row.and_then(|row| self.held_bytes(row));
        // What the driver keeps of stream-ordered memory that was freed is told by nobody, and is no context.
        let is_here = |row: &Device| row.ordinal.is_none() || row.ordinal == device;
        let is_async = |row: &Device| row.driver.stream_ordered || row.driver.async_pool.count > 0;
        let kept = |row: &Device| is_here(row) && is_async(row);
        let kept = self.devices.iter().any(kept);
        let context = told.process_bytes.zip(held).filter(|_| !kept);
        let row = self.devices.at(device);
        if row.ordinal != device {
            // There are too many devices, and nobody can tell of which of the unknown ones this would be.
            return;
        }
        row.nvml = Some(told.clone());
        row.context_bytes = context.and_then(|(all, held)| all.checked_sub(held));
        if let Some(free) = told.free_bytes {
            row.free_bytes = Some((free, time_ns));
        }
    }

    /// Takes one event of a process that has not ended.
    pub(crate) fn apply(&mut self, event: &Event) {
        self.events += 1;
        // A reading is of an earlier moment and says nothing about losses.
        let lost = !matches!(event.body, Body::Held(_) | Body::ReadingCost(_))
            && self.loss.hear(event.lost_before, event.time_ns);
        if lost {
            self.records_lost(event.time_ns);
        }
        self.last_ns = self.last_ns.max(event.time_ns);
        let watch = self.watch();
        let missed_none = self.saw_all_memory();
        let mut scene = Scene {
            devices: &mut self.devices,
            groups: &mut self.groups,
            stack: self.stacks.index(event.stack, event.sampling),
            stacks: &mut self.stacks,
            steps: &mut self.steps,
            time_ns: event.time_ns,
            tid: event.tid,
            labels: self.labels.of(event.tid),
            nothing_missed: missed_none && self.pool_way_in,
            pool_came_later: self.pool_came_later,
        };
        while lost && let Some(turn) = scene.steps.end_was_lost(scene.stacks) {
            self.pool.turn(&mut scene, turn);
        }
        match &event.body {
            Body::Trace(trace) => self.pool.trace(&mut scene, &mut self.driver, trace),
            Body::Report(report) => self.pool.report(&mut scene, &mut self.driver, report),
            Body::Oom(oom) => self.pool.oom(&mut scene, oom),
            Body::Workspace(workspace) => self.driver.workspace(&mut scene, workspace),
            Body::Domain(domain) => self.regions.domain(domain),
            Body::Region(region) => {
                let from_start = self.facts.from_start;
                self.regions
                    .apply(region, from_start, self.pool_way_in, &mut |_| {});
            }
            Body::Call(call) => {
                self.vendor = Some(call.vendor);
                let before = given_back::before(scene.devices, &self.driver, call, watch);
                let taken = self.driver.call(&mut scene, call);
                if let Some((addr, end)) = taken {
                    self.pool.clear_range(&mut scene, addr, end);
                }
                let (driver, time_ns) = (&self.driver, event.time_ns);
                untold_segments(scene.devices, driver, call, taken, watch);
                given_back::after(scene.devices, driver, before, call, missed_none, time_ns);
            }
            Body::Attached(facts) => self.facts = (**facts).clone(),
            Body::Placed(placement) => {
                // torch_npu's library may be loaded after that of an allocator that it then replaces. The probes in the
                // first one are removed, but what they reported still counts.
                let was_placed = self.placement != Placement::default();
                if placement.pool_seen && !self.pool_way_in && was_placed {
                    self.pool_came_later = true;
                }
                let told = self.pool_way_in && self.pool.seen();
                self.pool_way_in = placement.pool_seen || told;
                if placement.pool_seen && !self.placement.pool_seen {
                    self.pool.blind_until(event.time_ns);
                }
                let paths = placement.libraries.iter().map(String::as_str);
                self.vendor = self.vendor.or_else(|| Vendor::of_libraries(paths));
                self.facts.level = placement.level.or(self.facts.level);
                let before = std::mem::replace(&mut self.placement, (**placement).clone());
                self.placement.operators = before.operators.max(placement.operators);
                let told = before.before_first_memory;
                self.placement.before_first_memory = told.or(self.placement.before_first_memory);
            }
            Body::Detached => self.end(ProcessState::Detached, event.time_ns),
            Body::Exited => self.end(ProcessState::Exited, event.time_ns),
            Body::Replaced => self.end(ProcessState::Replaced, event.time_ns),
            Body::Forked { child } => {
                self.children.1 += 1;
                if self.children.0.len() < CHILDREN {
                    self.children.0.push(*child);
                }
            }
            Body::Coverage(note) => {
                if note.code == REDUCED {
                    self.groups.reduce(event.time_ns, !note.text.is_empty());
                }
                self.note(note);
            }
            Body::Backend(backend) => self.backend = backend.clone(),
            Body::Allocator(facts) => self.allocator = (**facts).clone(),
            Body::RunsOn(places) => self.devices.run_on(&places.devices),
            Body::DeviceTotal(told) => self.device_total(told, event.time_ns),
            Body::Held(part) => {
                // The reading may be of a moment long past, but it changes the state now.
                scene.time_ns = self.last_ns;
                let taken = self.readings.take(part);
                self.pool
                    .take_reading(&mut scene, &mut self.driver, part.device, taken, watch);
            }
            Body::Stack(seen) => self.stacks.seen(seen),
            Body::Code(name) => self.stacks.named(name),
            Body::Native(name) => self.stacks.native(name),
            Body::CodeDied { code } => self.stacks.died(*code, event.id.sequence),
            Body::ReadingCost(cost) => self.reading_cost = Some(*cost),
            Body::Mark(mark) => {
                if let Some((addr, label)) = self.labels.take(mark, event.tid) {
                    self.pool.label(addr, |set| self.labels.with(set, &label));
                }
                if Labels::is_one(mark) {
                    return;
                }
                self.marks.take(mark, event);
                let wanted = self.facts.step_name.as_deref();
                let ends = self.placement.function_ends;
                let turn =
                    scene
                        .steps
                        .mark(mark, wanted, ends, scene.stacks, scene.stack, event.tid);
                self.pool.turn(&mut scene, turn);
            }
            // A finding follows from earlier events and changes nothing.
            Body::Finding(_) => {}
            Body::Shed(shed) => self.shed(shed, event.time_ns),
            // Of two threads that told it at once, the one with the smaller number may come last.
            Body::Launches { count } => {
                scene.steps.launches = scene.steps.launches.max(Some(*count));
            }
            // Who uses which memory changes nothing of what is held.
            Body::Operator(_) | Body::Launch(_) => {}
            // The count of lost records is in the header and has been taken above.
            Body::Lost => {}
            // A pair of clock readings belongs to the machine, and the ledger has taken it.
            Body::Clock { .. } => {}
        }
        let brings_memory = matches!(
            event.body,
            Body::Trace(_) | Body::Report(_) | Body::Call(_) | Body::Held(_) | Body::Workspace(_)
        );
        if brings_memory {
            // Where the pool cannot be seen, stacks have what was taken from the driver, as where there is no pool.
            let no_pool = self.source() != Source::Pool || self.is_pool_hidden();
            for row in self.devices.iter_mut() {
                row.note_peak(event);
                let held = row.driver.held().bytes;
                row.note_held(event, held);
                let of_driver = no_pool || row.ordinal.is_none();
                if of_driver && held == row.driver.peak_bytes {
                    let level = stacks::Level {
                        bytes: held,
                        of_driver: true,
                        ..stacks::Level::default()
                    };
                    self.stacks.level(row.ordinal, level);
                }
            }
        }
    }

    fn records_lost(&mut self, time_ns: u64) {
        let first = self.pool.lost_by == 0;
        self.pool.records_lost(time_ns);
        self.labels.records_lost();
        self.steps.records_lost();
        for row in self.devices.iter_mut() {
            if first {
                row.pool.first_loss();
            }
            row.pool.totals.records_lost();
        }
    }

    /// A process has been attached that may be a child of this one: it is not among those that are not followed.
    pub(crate) fn child_attached(&mut self, child: u32) {
        let (listed, count) = &mut self.children;
        let all_listed = *count <= listed.len() as u64;
        let place = listed.iter().position(|pid| *pid == child);
        if let Some(place) = place {
            listed.remove(place);
        }
        if place.is_some() || !all_listed {
            *count = count.saturating_sub(1);
        }
    }

    /// Takes a note on what limits the numbers. It may also come after the end of the process.
    pub(crate) fn note(&mut self, note: &crate::event::CoverageNote) {
        self.notes.take(note);
    }

    /// Ends the process: its state stays as it is from now on.
    pub(crate) fn end(&mut self, state: ProcessState, time_ns: u64) {
        // What is given up after its end stays ended at that time.
        if state == ProcessState::GivenUp {
            self.state = state;
            self.ended_ns.get_or_insert(time_ns);
        } else if self.state == ProcessState::Attached {
            self.state = state;
            self.ended_ns = Some(time_ns);
        }
    }

    /// The moment that an answer describes: now, or the end of a process that has ended.
    pub(crate) fn moment(&self, as_of: AsOf) -> u64 {
        let now = as_of.boot_ns.max(self.last_ns);
        self.ended_ns
            .map_or(now, |ended| now.min(ended.max(self.last_ns)))
    }

    /// Where the process' pool-level numbers come from.
    pub(crate) fn source(&self) -> Source {
        match self.backend {
            Backend::Native => Source::Pool,
            Backend::Uncached | Backend::MallocAsync | Backend::Other(_) => Source::Driver,
            Backend::Unknown if self.pool.seen() || self.pool_way_in => Source::Pool,
            Backend::Unknown => Source::Driver,
        }
    }

    /// How the process is watched.
    pub(crate) fn watch(&self) -> Watch {
        Watch {
            attached_ns: self.attached_ns,
            level: self.facts.level,
            lost: self.loss.records(),
        }
    }

    /// See [`crate::Ledger::wants_reading`].
    pub(crate) fn wants_reading(&self) -> bool {
        if self.facts.level == Some(Level::Read) {
            return true;
        }
        let incomplete = |row: &Device| {
            let pool = &row.pool;
            pool.seen
                && (!pool.is_traced(self.watch())
                    || pool.unsized_count > pool.read.sized
                    || pool.untold_segments() > 0
                    || pool.unknown_bytes() > 0)
        };
        self.source() == Source::Pool
            && !self.is_pool_hidden()
            && self.devices.iter().any(incomplete)
    }

    /// Where one device's numbers come from. No pool is on an unknown device, unless it cannot be seen: then what the driver
    /// gave there may be its segments.
    pub(crate) fn source_of(&self, device: &Device) -> Source {
        if device.ordinal.is_none() && !self.is_pool_hidden() {
            Source::Driver
        } else {
            self.source()
        }
    }

    /// Whether there is a pool, and nothing tells of its allocations that fail: the level shows none of them, or what is probed reports none,
    /// because torch_npu has no function for it beside `record_trace`.
    pub(crate) fn hides_ooms(&self) -> bool {
        let is_only_read = self.facts.level == Some(Level::Read) && self.source() == Source::Pool;
        if is_only_read || self.is_pool_hidden() {
            return true;
        }
        let ways = &self.placement.ways;
        ways.iter().any(|way| memscope_vendors::is_report(way))
            && !ways.iter().any(|way| memscope_vendors::tells_oom(way))
    }

    /// Whether there is a pool, but the level is too low to see into it.
    pub(crate) fn is_pool_hidden(&self) -> bool {
        self.source() == Source::Pool
            && self.facts.level == Some(Level::Segments)
            && !self.pool.seen()
    }

    /// Devices on which something happened, by ordinal, unknown last.
    pub(crate) fn visible_devices(&self) -> Vec<&Device> {
        let mut rows = self.devices.sorted();
        rows.retain(|row| row.is_seen());
        rows
    }

    /// Whether its memory is followed from the first byte on: nothing was there before the attach.
    pub(crate) fn saw_all_memory(&self) -> bool {
        let told = self.placement.before_first_memory;
        told.unwrap_or(self.facts.from_start)
    }

    /// See [`crate::Ledger::uses_devices_itself`].
    pub(crate) fn uses_devices_itself(&self) -> bool {
        let allocated = |row: &Device| row.pool.alloc_count + row.driver.alloc_count > 0;
        !self.devices.runs_on.is_empty() || self.devices.iter().any(allocated)
    }

    /// Pools that report their own memory through mstx.
    pub(crate) fn region_pools(&self) -> Vec<RegionPool> {
        let workspaces = self.driver.workspaces_seen;
        self.regions
            .report(self.facts.from_start, self.pool_way_in, workspaces)
    }

    /// Bytes handed out on a device, where known.
    pub(crate) fn allocated_bytes(&self, device: &Device) -> Option<u64> {
        match self.source_of(device) {
            Source::Driver => Some(device.driver.held().bytes),
            Source::Pool => device
                .pool
                .totals
                .allocated()
                .or(self.zero_if_unseen(device)),
        }
    }

    /// Bytes held from the driver on a device, where known.
    pub(crate) fn reserved_bytes(&self, device: &Device) -> Option<u64> {
        match self.source_of(device) {
            Source::Driver => Some(device.driver.held().bytes),
            Source::Pool if self.is_pool_hidden() => {
                self.saw_all_memory().then_some(device.driver.held().bytes)
            }
            Source::Pool => device.pool.reserved.or(self.zero_if_unseen(device)),
        }
    }

    /// Bytes that the framework's pool has on a device and has not handed out. Some of it may be in pieces that are too small for what comes.
    pub(crate) fn spare_bytes(&self, device: &Device) -> Option<u64> {
        if self.source_of(device) != Source::Pool || self.is_pool_hidden() {
            return None;
        }
        let reserved = self.reserved_bytes(device)?;
        Some(reserved.saturating_sub(self.allocated_bytes(device)?))
    }

    /// Bytes that it has from the driver on a device: its framework's pool, and what was taken outside it.
    pub(crate) fn held_bytes(&self, device: &Device) -> Option<u64> {
        match self.source_of(device) {
            // Where the pool cannot be seen, its reserved bytes are all that was taken from the driver.
            Source::Pool if !self.is_pool_hidden() => {
                let driver = &device.driver;
                let reserved = self.reserved_bytes(device)?;
                // An allocator of a private pool may have more from the driver than it gives to the pool as segments.
                let pool = reserved.max(driver.pooled.bytes);
                Some(pool.saturating_add(driver.direct().bytes))
            }
            _ => self.reserved_bytes(device),
        }
    }

    /// 0 if nothing was missed and no pool event has named the device; else `None`. A lost record may have been the first
    /// that names it.
    pub(crate) fn zero_if_unseen(&self, device: &Device) -> Option<u64> {
        let nothing_missed = self.saw_all_memory() && self.pool_way_in && self.loss.records() == 0;
        (nothing_missed && !device.pool.seen).then_some(0)
    }

    /// The process as an entry in the list of all processes.
    pub(crate) fn summary(&self) -> ProcessSummary {
        let mut rows = self.visible_devices();
        if self.source() == Source::Pool && !self.is_pool_hidden() {
            // What is held on an unknown device may be the pool's, and would then be counted twice.
            rows.retain(|row| row.ordinal.is_some());
        }
        let sum = |bytes: &dyn Fn(&Device) -> Option<u64>| {
            rows.iter()
                .try_fold(0u64, |sum, row| Some(sum.saturating_add(bytes(row)?)))
                .filter(|_| !rows.is_empty() || self.is_sum_of_nothing_zero())
                .filter(|_| self.proves_totals() && self.state != ProcessState::GivenUp)
        };
        ProcessSummary {
            handle: self.handle,
            facts: self.facts.clone(),
            state: self.state,
            attached_ns: self.attached_ns,
            ended_ns: self.ended_ns,
            allocated_bytes: sum(&|row| self.allocated_bytes(row)),
            reserved_bytes: sum(&|row| self.reserved_bytes(row)),
            lost_records: self.loss.records(),
            events: self.events,
            waits_for_device: self.waits_for_device(),
        }
    }

    /// Whether it is traced from its start on and has loaded no library of a device so far. At level `read` nobody can tell.
    pub(crate) fn waits_for_device(&self) -> bool {
        self.facts.from_start
            && self.placement.sites == 0
            && self.vendor.is_none()
            && !self.pool.seen()
            && self.facts.level != Some(Level::Read)
    }

    /// Whether it has ended and nobody will ask for it: it has loaded no library of a device, or used none before it executed another image.
    pub(crate) fn is_nothing_to_keep(&self) -> bool {
        let is_unused = self.visible_devices().is_empty() && self.loss.records() == 0;
        let is_nothing =
            self.waits_for_device() || self.state == ProcessState::Replaced && is_unused;
        self.ended_ns.is_some() && is_nothing
    }

    /// Whether the sums can be shown. The list has no room for coverage notes, so a sum over driver calls is shown only
    /// if no call can have been missed.
    fn proves_totals(&self) -> bool {
        let missed =
            !self.saw_all_memory() || self.loss.records() > 0 || self.driver.found_gone() > 0;
        self.source() == Source::Pool || !missed
    }

    /// Whether the sums are zero if no device is known: only if nothing can have been missed.
    fn is_sum_of_nothing_zero(&self) -> bool {
        self.saw_all_memory() && (self.source() == Source::Driver || self.pool_way_in)
    }
}

/// Removes segments of a reading that a driver call takes back. Without a trace only the driver's calls show that they
/// are gone.
fn untold_segments(
    devices: &mut Devices,
    driver: &Driver,
    call: &Call,
    taken: Option<(u64, u64)>,
    watch: Watch,
) {
    let is_free = matches!(call.op, CallOp::Free | CallOp::AsyncFree) && call.status == 0;
    // What lives at this address after its free came while the free was under way, and is not what was freed.
    let successor = driver.born_at(call.ptr);
    if !is_free && taken.is_none() {
        return;
    }
    for row in devices.iter_mut() {
        if row.pool.is_traced(watch) || row.pool.read.count == 0 {
            continue;
        }
        match taken {
            Some((addr, end)) => row.pool.segments.cut(addr, end),
            // The reading shows the one that came.
            None if successor.is_some_and(|born_ns| born_ns < row.pool.read.until_ns) => {}
            None => row.pool.segments.remove(call.ptr),
        }
    }
}
