//! The answer to `devices`: what all processes hold on each device, and how much of the used memory none of them holds.
//!
//! Owns: the rule by which two processes use the same device: it is known of both which device it is, or both name it by the same UUID, or
//! by the same number among the same devices. Refuses: to give a sum as exact where the part of one process is not known.

use super::affects::{Affects, Answer, effect};
use super::coverage::notes;
use super::list::brief;
use super::question::Question;
use crate::Ledger;
use crate::event::{Hardware, ProcessHandle};
use crate::report::{AsOf, ProcessState, Source};
use crate::state::device::Device;
use crate::state::process::Process;
use memscope_proto::v1;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Environment variables on which the meaning of a device's number depends: which devices there are, and their order.
const AMONG: [&str; 2] = [GIVEN, "CUDA_DEVICE_ORDER"];

/// What says which of the machine's devices a container was given.
const GIVEN: &str = "NVIDIA_VISIBLE_DEVICES";

/// How processes name a device: its kind (unless it is known which device it is: nothing tells the kind at level `read`), its name, and if the
/// name is a number, among which devices: the values of the variables in [`AMONG`], the container and the job. What is on an unknown device
/// has no name, and there the process stands: two processes may mean two devices.
type Key = (Option<&'static str>, Option<String>, Vec<String>);

/// What is known of a device: what it is, its total bytes, its free bytes with the boot time at which they were seen, and the
/// processes that hold memory on it.
#[derive(Default)]
struct Seen {
    kind: Option<&'static str>,
    hardware: Option<Hardware>,
    total: Option<u64>,
    kept_by_driver: Option<u64>,
    free: Option<(u64, u64)>,
    /// Boot time in nanoseconds at which what one of the processes holds changed last.
    changed_ns: u64,
    holders: Vec<v1::DeviceHolder>,
    /// What another row has may be on this device.
    others: bool,
}

impl Question for v1::DevicesRequest {
    type Reply = v1::DevicesResponse;
    const KIND: Option<Answer> = Some(Answer::Stats);

    fn pid(&self) -> Option<u32> {
        None
    }

    fn answer(
        &self,
        ledger: &Ledger,
        of: &[ProcessHandle],
        as_of: AsOf,
    ) -> Option<v1::DevicesResponse> {
        let mut devices: BTreeMap<Key, Seen> = BTreeMap::new();
        let mut coverage: Vec<v1::CoverageNote> = Vec::new();
        let processes = of.iter().filter_map(|handle| ledger.process(*handle));
        for process in processes.filter(|process| process.state == ProcessState::Attached) {
            let mut limits = notes(process);
            limits.retain(|note| spoils(note, HELD).is_some());
            for row in process.visible_devices() {
                let seen = devices.entry(key(process, row)).or_default();
                seen.kind = seen.kind.or(kind(process));
                seen.hardware = row.hardware().cloned();
                seen.holders.push(holder(process, row, &limits));
                seen.changed_ns = seen.changed_ns.max(row.held_changed_ns);
                if seen.total.is_none() {
                    (seen.total, seen.kept_by_driver) = (row.size(), row.kept_by_driver());
                }
                if row.free_at(as_of.boot_ns).is_some() {
                    let newest = |(_, when): &(u64, u64)| *when;
                    seen.free = seen
                        .free
                        .into_iter()
                        .chain(row.free_bytes)
                        .max_by_key(newest);
                }
            }
            limits.retain(|note| !coverage.contains(note));
            coverage.extend(limits);
        }
        // What a process held is free once it has ended.
        let processes = of.iter().filter_map(|handle| ledger.process(*handle));
        let ended = [ProcessState::Exited, ProcessState::Replaced];
        for process in processes.filter(|process| ended.contains(&process.state)) {
            for row in process.visible_devices() {
                if let Some(seen) = devices.get_mut(&key(process, row)) {
                    seen.changed_ns = seen.changed_ns.max(process.ended_ns.unwrap_or(0));
                }
            }
        }
        let mut devices: Vec<_> = devices.into_iter().collect();
        devices.sort_by(|((_, a, of_a), one), ((_, b, of_b), other)| {
            (one.kind, a, of_a).cmp(&(other.kind, b, of_b))
        });
        let unsure: Vec<bool> = (0..devices.len())
            .map(|at| may_be_another(&devices, at))
            .collect();
        for ((_, seen), unsure) in devices.iter_mut().zip(unsure) {
            seen.others = unsure;
        }
        Some(v1::DevicesResponse {
            as_of: as_of.unix_ns,
            as_of_boot_ns: as_of.boot_ns,
            devices: devices.into_iter().map(device).collect(),
            coverage,
        })
    }

    fn coverage(reply: &v1::DevicesResponse) -> &[v1::CoverageNote] {
        &reply.coverage
    }
}

/// The kinds of numbers that held bytes consist of.
const HELD: &[Affects] = &[Affects::Totals, Affects::Driver];

/// Whether a note makes numbers of these kinds inexact (`Some`), and whether they can then only be too small.
fn spoils(note: &v1::CoverageNote, kinds: &[Affects]) -> Option<bool> {
    let effect = effect(&note.code);
    let spoils = effect.affects.iter().any(|kind| kinds.contains(kind));
    spoils.then_some(effect.lower_bound)
}

/// Whether another row may be of the same device: its processes name the device in another way, and for one of the two it is not known which
/// device it is.
fn may_be_another(devices: &[(Key, Seen)], at: usize) -> bool {
    let ((_, name, among), seen) = &devices[at];
    let mut others = devices.iter().enumerate().filter(|(other, _)| *other != at);
    others.any(|(_, ((_, other_name, other_among), other))| {
        let other_kinds = seen.kind.is_some() && other.kind.is_some() && seen.kind != other.kind;
        let both_known = seen.hardware.is_some() && other.hardware.is_some();
        // The rows of what is on an unknown device count as that already.
        let named = name.is_some() && other_name.is_some();
        // A number is that of another kind's list where the kind is not known.
        let alike = seen.kind == other.kind
            && among == other_among
            && is_number(name) == is_number(other_name);
        let apart = other_kinds || both_known || alike && seen.hardware == other.hardware;
        named && !apart
    })
}

/// Whether it is a number, which means a device only among certain devices.
fn is_number(name: &Option<String>) -> bool {
    name.as_ref().is_none_or(|name| name.parse::<u32>().is_ok())
}

/// The kind of a process's devices, once a call or a library has shown it.
fn kind(process: &Process) -> Option<&'static str> {
    process.vendor.map(|vendor| vendor.device_kind())
}

/// How a process names one of its devices.
fn key(process: &Process, row: &Device) -> Key {
    if let Some(hardware) = row.hardware() {
        return (None, Some(hardware.name().to_owned()), Vec::new());
    }
    let kind = kind(process);
    let value = |wanted: &str| {
        let found = process.facts.environment.iter();
        let found = found.clone().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let list = process
        .vendor
        .and_then(|vendor| value(vendor.facts().visible_devices));
    let Some(ordinal) = row.ordinal else {
        return (kind, None, vec![format!("{:020}", process.handle.0)]);
    };
    let place = usize::try_from(ordinal).unwrap_or(usize::MAX);
    let named = list.and_then(|list| list.split(',').nth(place));
    let name = named.map_or_else(|| ordinal.to_string(), |name| name.trim().to_owned());
    let name = Some(name);
    // A UUID means the same device in every process, a number does not.
    if !is_number(&name) {
        return (kind, name, Vec::new());
    }
    let variables = AMONG.iter();
    let mut among: Vec<String> = variables
        .map(|variable| value(variable).unwrap_or_default().to_owned())
        .collect();
    // A container that was given all devices has the machine's own numbers.
    let whose = process.facts.workload();
    let given_all = value(GIVEN) == Some("all");
    among.extend(whose.container_id.filter(|_| !given_all));
    among.extend(whose.slurm_job);
    (kind, name, among)
}

fn holder(process: &Process, row: &Device, limits: &[v1::CoverageNote]) -> v1::DeviceHolder {
    let doubtful = |kinds: &[Affects]| {
        let mut limits = limits.iter();
        limits.any(|note| spoils(note, kinds) == Some(false))
    };
    let exact = |bytes: Option<u64>| bytes.filter(|_| !doubtful(HELD));
    let held = process.held_bytes(row);
    // Where that is not known, it is at least what was seen to come from the driver.
    let seen = Some(row.driver.held().bytes).filter(|bytes| *bytes > 0);
    // What a pool has handed out is its own total, whatever is known of the driver's calls.
    let handed_out = match process.source_of(row) {
        Source::Pool => &[Affects::Totals],
        Source::Driver => HELD,
    };
    // Allocations on an unknown device may be on this one.
    let somewhere = |row: &&Device| row.ordinal.is_none() && row.driver.held().bytes > 0;
    let rows = process.visible_devices();
    let elsewhere = row.ordinal.is_some() && rows.iter().any(somewhere);
    let at_least = elsewhere || held.is_none() || !limits.is_empty();
    let lower_bound = |note: &v1::CoverageNote| spoils(note, handed_out) == Some(true);
    v1::DeviceHolder {
        process: Some(brief(process.summary())),
        ordinal: row.ordinal,
        allocated_bytes: process
            .allocated_bytes(row)
            .filter(|_| !doubtful(handed_out)),
        held_bytes: exact(held.or(seen)),
        context_bytes: exact(row.context_bytes),
        at_least,
        allocated_at_least: match process.source_of(row) {
            Source::Pool => limits.iter().any(lower_bound),
            Source::Driver => at_least,
        },
    }
}

fn device(((_, name, _), mut seen): (Key, Seen)) -> v1::MachineDevice {
    seen.holders
        .sort_by_key(|holder| Reverse(holder.held_bytes));
    // Where what one of them holds is not known, the sum of the others is a lower bound. What records say may be anything, so the sum
    // must not overflow.
    let known = seen.holders.iter().filter_map(|holder| holder.held_bytes);
    let held = known.reduce(u64::saturating_add);
    let is_unknown = |holder: &v1::DeviceHolder| holder.at_least || holder.held_bytes.is_none();
    let at_least = seen.others || seen.holders.iter().any(is_unknown);
    let contexts = seen
        .holders
        .iter()
        .filter_map(|holder| holder.context_bytes);
    let context = contexts.reduce(u64::saturating_add);
    let known = held.map(|held| {
        let beside = context
            .unwrap_or(0)
            .saturating_add(seen.kept_by_driver.unwrap_or(0));
        held.saturating_add(beside)
    });
    let free = seen.free.map(|(free, _)| free);
    // What was free before one of the processes took or gave back memory is not compared with what they hold now.
    let still_free = seen.free.filter(|(_, when)| *when >= seen.changed_ns);
    let used = seen.total.zip(still_free);
    let used = used.and_then(|(total, (free, _))| total.checked_sub(free));
    v1::MachineDevice {
        kind: seen.kind.map(str::to_owned),
        // A negative difference shows that something else changed meanwhile, so no difference is given.
        unexplained_bytes: used
            .zip(known)
            .and_then(|(used, known)| used.checked_sub(known)),
        context_bytes: context,
        driver_reserved_bytes: seen.kept_by_driver,
        total_bytes: seen.total,
        free_bytes: free,
        held_bytes: held,
        at_least,
        hardware: seen.hardware.map(Into::into),
        name,
        holders: seen.holders,
    }
}
