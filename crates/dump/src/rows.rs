//! Turns the ledger's events into rows: the reverse of [`crate::events`].
//!
//! Owns: the numbers of rows and allocations, which block an address names, and the pairing of the two events (an entry
//! of the allocator's trace, then its report, on one thread) that describe one allocation. Refuses: to write one
//! allocation twice, and events that a dump has no row for, which it counts.
//!
//! A row gets its ID when its first event comes, but may be written a little later. So rows are not in the order of
//! their IDs, as in msMemScope's own files.

mod operators;
mod pools;
mod scene;

pub use scene::{Rows, Stacks};

use crate::attr::Attr;
use crate::events::SYSTEM_MARK;
use crate::row::{Device, Row};
use memscope_ledger::event::{
    Body, Call, CallOp, Event, HalSpace, HeldPart, Launch, Level, Mark, MarkKind, PoolTrace,
    TraceAction, Vendor,
};
use scene::{Block, Half, Reading, Scene, SceneProcess, Sums, attr_of, begun, device};
use std::collections::HashSet;

/// Most launches of one event that become rows. An event has the value of a counter; if the counter was read seldom,
/// there are more, and those are counted as left out.
const MOST_LAUNCHES: u64 = 1000;

/// For how long a free is remembered at least, in nanoseconds. A reading comes after the moment that it describes, for
/// a large pool seconds after it.
const FREES_KEPT_NS: u64 = 60_000_000_000;

/// With fewer remembered frees than these, old ones stay.
const FREES_KEPT: usize = 1 << 16;

impl Rows {
    /// Begins without any events.
    pub fn new() -> Rows {
        Rows::default()
    }

    /// Number of events that a dump has no row for, and of launches beyond the limit.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes an event, and calls `tell` with each row that is complete now.
    pub fn apply(&mut self, event: &Event, stacks: &Stacks<'_>, tell: &mut dyn FnMut(Row)) {
        if let Body::Clock { unix_ns } = event.body {
            self.apart_ns = i128::from(unix_ns) - i128::from(event.time_ns);
            return;
        }
        let mut process = self.processes.remove(&event.process).unwrap_or_default();
        // PyTorch holds the device's lock from the trace's entry of an allocation or free until its report. So the
        // report is the thread's next event about a block; only entries about segments and completed frees may come
        // between.
        let half = match &event.body {
            Body::Report(_) | Body::Oom(_) => process.halves.remove(&event.tid),
            Body::Trace(trace) if begins(trace.action) => {
                let half = process.halves.remove(&event.tid);
                half.and_then(|half| half.row)
                    .into_iter()
                    .for_each(&mut *tell);
                None
            }
            _ => None,
        };
        let mut scene = Scene {
            rows: self,
            event,
            stacks,
            tell,
        };
        scene.event(&mut process, half);
        self.processes.insert(event.process, process);
    }

    /// Takes the attach of a process whose events up to here are missing: how many launches there were is not known.
    pub fn apply_late(&mut self, attached: &Event, stacks: &Stacks<'_>, tell: &mut dyn FnMut(Row)) {
        self.apply(attached, stacks, tell);
        if let Some(process) = self.processes.get_mut(&attached.process) {
            process.launches = None;
        }
    }

    /// Calls `tell` with the rows that still wait for an event, in the order of their IDs.
    pub fn finish(mut self, tell: &mut dyn FnMut(Row)) {
        let halves = self.processes.values_mut().flat_map(|p| p.halves.drain());
        let mut rows: Vec<Row> = halves.filter_map(|(_, half)| half.row).collect();
        rows.sort_by_key(|row| row.id);
        rows.into_iter().for_each(tell);
    }

    fn unix_ns(&self, boot_ns: u64) -> u64 {
        let ns = (i128::from(boot_ns) + self.apart_ns).max(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Whether the allocator's report may follow such an entry of the trace.
fn begins(action: TraceAction) -> bool {
    matches!(
        action,
        TraceAction::Alloc | TraceAction::FreeRequested | TraceAction::Oom
    )
}

impl Scene<'_> {
    fn event(&mut self, process: &mut SceneProcess, half: Option<Half>) {
        match &self.event.body {
            Body::Attached(facts) => {
                process.pid = (facts.pid > 0).then_some(facts.pid);
                process.pools.from_start = facts.from_start;
                process.is_read = facts.level == Some(Level::Read);
                process.launches = Some(0);
                let row = self.row(process, "SYSTEM", "START_TRACE");
                (self.tell)(row);
            }
            Body::Detached => {
                let row = self.row(process, "SYSTEM", "STOP_TRACE");
                (self.tell)(row);
            }
            Body::Exited | Body::Replaced => {
                let row = self.row(process, "CLEAN_UP", "PROC_EXIT");
                (self.tell)(row);
            }
            Body::Mark(mark) => self.mark(process, mark),
            Body::Launches { count } => self.launches(process, *count),
            Body::Launch(launch) => self.launch(process, launch),
            Body::Operator(operator) => self.operator(process, operator),
            Body::Call(call) => self.call(process, call),
            Body::Report(report) => {
                let sums = process.sums.entry(Some(report.device)).or_default();
                sums.allocated = Some(report.total_allocated);
                sums.reserved = Some(report.total_reserved);
                let (frees, size) = (report.size < 0, report.size.unsigned_abs());
                let told = self.same(half, |half| {
                    (half.device, half.ptr, half.frees) == (report.device, report.ptr, frees)
                });
                match told {
                    // The entry of the trace had everything, so its row is written already.
                    Some(Half { row: None, .. }) => {}
                    Some(Half { row: Some(row), .. }) => {
                        let place = (report.device, report.ptr);
                        if let Some(block) = process.live.get_mut(&place) {
                            block.size = size;
                        }
                        let attr = attr_of(&row, size, process.sums[&Some(report.device)]);
                        (self.tell)(Row { attr, ..row });
                    }
                    None if size > 0 => {
                        let row = self.block(process, report.device, report.ptr, size, frees);
                        let attr = attr_of(&row, size, process.sums[&Some(report.device)]);
                        (self.tell)(Row { attr, ..row });
                    }
                    None => {}
                }
            }
            Body::Trace(trace) => self.trace(process, trace),
            Body::Oom(oom) => {
                // If the thread's last entry in the trace was the same out-of-memory, its row is written already.
                if self.same(half, |half| half.ptr == 0).is_none() {
                    self.oom(process, Some(oom.device), oom.size);
                }
            }
            Body::Held(part) => self.held(process, part),
            Body::Placed(placement) => process.pools.pool_seen |= placement.pool_seen,
            Body::Domain(domain) => process.pools.book.domain(domain),
            Body::Region(region) => self.region(process, region),
            Body::Workspace(workspace) => self.workspace(process, workspace),
            _ => self.rows.left_out += 1,
        }
    }

    /// Returns the thread's last entry of the trace if it is about the same allocation or free as this event. Otherwise
    /// its row, if it still waits, is written as it is.
    fn same(&mut self, half: Option<Half>, same: impl FnOnce(&Half) -> bool) -> Option<Half> {
        let half = half?;
        if same(&half) {
            return Some(half);
        }
        if let Some(row) = half.row {
            (self.tell)(row);
        }
        None
    }

    fn row(&mut self, process: &SceneProcess, event: &str, event_type: &str) -> Row {
        self.rows.last_id += 1;
        let stack = (self.stacks)(self.event.process, self.event.stack);
        Row {
            id: self.rows.last_id,
            event: event.to_owned(),
            event_type: event_type.to_owned(),
            timestamp: self.rows.unix_ns(self.event.time_ns),
            pid: process.pid,
            tid: (self.event.tid > 0).then_some(self.event.tid),
            python_stack: stack.unwrap_or_default(),
            ..Row::default()
        }
    }

    /// A row of a block of the pool, without its size and sums.
    fn block(
        &mut self,
        process: &mut SceneProcess,
        ordinal: i32,
        ptr: u64,
        size: u64,
        frees: bool,
    ) -> Row {
        let place = (ordinal, ptr);
        let allocation = if frees {
            let now_ns = self.event.time_ns;
            process.freed.insert(place, now_ns);
            if process.freed.len() >= process.prune_at {
                let is_new = |at_ns: u64| now_ns.saturating_sub(at_ns) <= FREES_KEPT_NS;
                process.freed.retain(|_, at_ns| is_new(*at_ns));
                process.prune_at = FREES_KEPT.max(2 * process.freed.len());
            }
            let gone = process.live.remove(&place);
            gone.map(|block| block.allocation)
        } else {
            let block = self.came(size, Some(ordinal));
            process.live.insert(place, block);
            Some(block.allocation)
        };
        let mut row = self.row(process, if frees { "FREE" } else { "MALLOC" }, "PTA");
        row.device = device(Some(ordinal));
        row.ptr = Some(ptr);
        row.attr = begun(allocation, ptr);
        row
    }

    fn came(&mut self, size: u64, device: Option<i32>) -> Block {
        self.rows.last_allocation += 1;
        Block {
            allocation: self.rows.last_allocation,
            size,
            device,
            host: false,
        }
    }

    fn trace(&mut self, process: &mut SceneProcess, trace: &PoolTrace) {
        let frees = match trace.action {
            TraceAction::Alloc => false,
            TraceAction::FreeRequested => true,
            TraceAction::Oom => {
                self.oom(process, trace.device, trace.size);
                let half = Half {
                    device: trace.device.unwrap_or(0),
                    ptr: 0,
                    frees: false,
                    row: None,
                };
                process.halves.insert(self.event.tid, half);
                return;
            }
            TraceAction::Snapshot => return self.snapshot(process, trace.device),
            // The row of a free is made when the free is requested; segments have rows of the driver.
            _ => return,
        };
        let Some(ordinal) = trace.device else {
            self.rows.left_out += 1;
            return;
        };
        let held = process.live.get(&(ordinal, trace.addr));
        let exact = trace
            .block_size
            .or(held.filter(|_| frees).map(|block| block.size));
        let size = exact.unwrap_or(trace.size);
        let row = self.block(process, ordinal, trace.addr, size, frees);
        let sums = process.sums.entry(Some(ordinal)).or_default();
        let complete = exact.is_some() && trace.total_allocated.is_some();
        sums.allocated = trace.total_allocated.or(sums.allocated);
        sums.reserved = trace.total_reserved.or(sums.reserved);
        let attr = attr_of(&row, size, *sums);
        let mut row = Some(Row { attr, ..row });
        if complete && let Some(row) = row.take() {
            (self.tell)(row);
        }
        let half = Half {
            device: ordinal,
            ptr: trace.addr,
            frees,
            row,
        };
        process.halves.insert(self.event.tid, half);
    }

    fn call(&mut self, process: &mut SceneProcess, call: &Call) {
        if call.status != 0 {
            return;
        }
        let (frees, host, ptr) = match call.op {
            // Ascend's driver has one function for memory of the device and of the host.
            CallOp::Alloc if of_host(call) => (false, true, call.ptr),
            CallOp::Alloc | CallOp::AsyncAlloc | CallOp::ManagedAlloc => (false, false, call.ptr),
            CallOp::Free | CallOp::AsyncFree => (true, false, call.ptr),
            CallOp::Create => (false, of_host(call), call.handle),
            CallOp::Release => (true, false, call.handle),
            CallOp::HostRegister if !call.is_page_locked() => return,
            CallOp::HostAlloc | CallOp::HostRegister => (false, true, call.ptr),
            CallOp::HostFree | CallOp::HostUnregister => (true, true, call.ptr),
            CallOp::MemInfo => {
                let sums = process.sums.entry(call.device).or_default();
                sums.total = Some((call.size, call.extra));
                return;
            }
            _ => {
                self.rows.left_out += 1;
                return;
            }
        };
        if ptr == 0 {
            return;
        }
        let ordinal = if host { None } else { call.device };
        let (block, known) = if frees {
            let gone = process.driver.remove(&ptr);
            let unknown = Block {
                allocation: 0,
                size: call.size,
                device: ordinal,
                host,
            };
            (gone.unwrap_or(unknown), gone.is_some())
        } else {
            let mut block = self.came(call.size, ordinal);
            block.host = host;
            process.driver.insert(ptr, block);
            (block, true)
        };
        // Size and kind of memory are taken from the allocation, where it is known.
        let (size, host) = (block.size, block.host);
        let sums = process.sums.entry(block.device).or_default();
        sums.driver = match (frees, known) {
            (false, _) => sums.driver.saturating_add(size),
            (true, true) => sums.driver.saturating_sub(size),
            (true, false) => sums.driver,
        };
        let used = sums.driver;
        let event_type = match (host, call.vendor) {
            (true, Vendor::Ascend) => "HOST_PINNED",
            _ => "HAL",
        };
        let mut row = self.row(process, if frees { "FREE" } else { "MALLOC" }, event_type);
        row.device = if host {
            Device::Cpu
        } else {
            device(block.device)
        };
        row.ptr = Some(ptr);
        row.attr = begun(known.then_some(block.allocation), ptr).with("size", size);
        if host {
            row.attr.push("pinned", "true");
        }
        row.attr.push("used", used.to_string());
        if let (Some(hal), false) = (&call.hal, frees) {
            let owner = format!("CANN@{}", hal.module.dump_name());
            row.attr.push("owner", owner);
            if !host {
                row.attr.push("page_type", hal.page.name());
                let made = if hal.created { "create" } else { "alloc" };
                row.attr.push("alloc_type", made);
            }
        } else if call.op == CallOp::Create {
            row.attr.push("alloc_type", "create");
        }
        (self.tell)(row);
    }

    fn mark(&mut self, process: &SceneProcess, mark: &Mark) {
        let (event, kind, name) = match (mark.name.strip_prefix(SYSTEM_MARK), mark.kind) {
            (Some(rest), _) => {
                let (kind, name) = rest.split_once(' ').unwrap_or((rest, ""));
                ("SYSTEM", kind, name)
            }
            (None, MarkKind::Step) => ("SYSTEM", "STEP", &*mark.name),
            (None, MarkKind::Begin) => ("MSTX", "Range_start", &*mark.name),
            (None, MarkKind::End) => ("MSTX", "Range_end", &*mark.name),
            (None, MarkKind::Instant) => ("MSTX", "Mark", &*mark.name),
        };
        let mut row = self.row(process, event, kind);
        row.name = (!name.is_empty()).then(|| name.to_owned());
        // In a dump a mark belongs to a device, here it belongs to a process. We name the first device, on which most
        // things happen.
        row.device = device(process.sums.keys().flatten().next().copied());
        (self.tell)(row);
    }

    fn launches(&mut self, process: &mut SceneProcess, count: u64) {
        // The first count of a process whose beginning is missing tells only where counting goes on.
        let Some(before) = process.launches.replace(count) else {
            return;
        };
        // Of two threads that told it at once, the one with the smaller number may come last.
        process.launches = Some(before.max(count));
        let news = count.saturating_sub(before);
        self.rows.left_out += news.saturating_sub(MOST_LAUNCHES);
        for _ in 0..news.min(MOST_LAUNCHES) {
            self.tell_launch(process, None);
        }
    }

    /// A launch that is told. Those that were lost are counted all the same, and get their rows with the next count.
    fn launch(&mut self, process: &mut SceneProcess, launch: &Launch) {
        process.launches = process.launches.map(|count| count.saturating_add(1));
        let name = launch.kernel.as_ref().unwrap_or(&launch.function);
        self.tell_launch(process, Some(name.to_string()));
    }

    fn tell_launch(&mut self, process: &SceneProcess, name: Option<String>) {
        let mut row = self.row(process, "KERNEL_LAUNCH", "KERNEL_LAUNCH");
        row.name = name;
        row.device = device(process.sums.keys().flatten().next().copied());
        (self.tell)(row);
    }

    fn oom(&mut self, process: &SceneProcess, ordinal: Option<i32>, size: u64) {
        let mut row = self.row(process, "OOM_DETAIL", "OOM_TRIGGER");
        row.device = device(ordinal);
        row.attr = Attr::new().with("req_size", size);
        (self.tell)(row);
    }

    fn snapshot(&mut self, process: &SceneProcess, ordinal: Option<i32>) {
        let mut row = self.row(process, "SNAPSHOT", "SNAPSHOT");
        row.device = device(ordinal);
        let sums = process.sums.get(&ordinal).copied().unwrap_or_default();
        for (name, value) in [
            ("reserved", sums.reserved),
            ("allocated", sums.allocated),
            ("total", sums.total.map(|(total, _)| total)),
            ("free", sums.total.map(|(_, free)| free)),
        ] {
            if let Some(value) = value {
                row.attr.push(name, value.to_string());
            }
        }
        (self.tell)(row);
    }

    /// Writes rows for the blocks of a reading whose allocation was not seen, and, where only readings tell of blocks, for
    /// those that are gone.
    fn held(&mut self, process: &mut SceneProcess, part: &HeldPart) {
        let sums = process.sums.entry(Some(part.device)).or_default();
        sums.allocated.get_or_insert(part.total_allocated);
        sums.reserved.get_or_insert(part.total_reserved);
        for segment in &part.segments {
            for &(addr, size, _, pending) in &segment.blocks {
                let place = (part.device, addr);
                let went = process.freed.get(&place);
                if pending || went.is_some_and(|went| *went >= part.at_ns) {
                    continue;
                }
                match process.live.get(&place) {
                    Some(block) if process.is_read && block.size != size => {
                        self.gone(process, part, addr);
                    }
                    Some(_) => continue,
                    None => {}
                }
                let mut row = self.block(process, part.device, addr, size, false);
                row.attr = attr_of(&row, size, sums_of(part)).with("shadow", "true");
                row.timestamp = self.rows.unix_ns(part.at_ns);
                (self.tell)(row);
            }
        }
        if process.is_read {
            self.lacking(process, part);
        }
    }

    /// Writes the frees of the blocks that a reading no longer has, when its last part has come.
    fn lacking(&mut self, process: &mut SceneProcess, part: &HeldPart) {
        let begun = process.readings.remove(&part.device);
        let mut reading = match begun {
            _ if part.part == 0 => Reading {
                at_ns: part.at_ns,
                next: 0,
                blocks: HashSet::new(),
            },
            Some(begun) if (begun.at_ns, begun.next) == (part.at_ns, part.part) => begun,
            _ => return,
        };
        let blocks = part.segments.iter().flat_map(|segment| &segment.blocks);
        let held = blocks.filter(|(_, _, _, pending)| !pending);
        reading.blocks.extend(held.map(|(addr, ..)| addr));
        reading.next += 1;
        if reading.next < part.parts {
            process.readings.insert(part.device, reading);
            return;
        }
        let live = process.live.keys();
        let lacks =
            |(device, addr): &&(i32, u64)| *device == part.device && !reading.blocks.contains(addr);
        let mut gone: Vec<u64> = live.filter(lacks).map(|(_, addr)| *addr).collect();
        gone.sort_unstable();
        for addr in gone {
            self.gone(process, part, addr);
        }
    }

    /// Writes the free of a block that a reading does not have any more. When it was freed is not known; by then it was.
    fn gone(&mut self, process: &mut SceneProcess, part: &HeldPart, addr: u64) {
        let place = (part.device, addr);
        let size = process.live.get(&place).map_or(0, |block| block.size);
        let mut row = self.block(process, part.device, addr, size, true);
        // The next reading may have another block there, and be of a moment before this one came.
        process.freed.remove(&place);
        row.attr = attr_of(&row, size, sums_of(part));
        row.timestamp = self.rows.unix_ns(part.at_ns);
        (self.tell)(row);
    }
}

/// The sums that a reading tells.
fn sums_of(part: &HeldPart) -> Sums {
    Sums {
        allocated: Some(part.total_allocated),
        reserved: Some(part.total_reserved),
        ..Sums::default()
    }
}

/// Whether the driver was asked for memory of the host.
fn of_host(call: &Call) -> bool {
    call.hal.is_some_and(|hal| hal.space == HalSpace::Host)
}
