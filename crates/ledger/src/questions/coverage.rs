//! Coverage notes: what limits the numbers of an answer.
//!
//! Owns: the notes that follow from the state, beside those that came as events. Refuses: numbers that
//! reports already have, except in the notes' sentences; and which numbers a note makes inexact, which `affects` says.

use crate::event::{CoverageNote, Level, ShedPart};
use crate::questions::words;
use crate::report::{RegionPool, Source};
use crate::state::device::{Device, Refusal};
use crate::state::pool::reading::MOST;
use crate::state::process::Process;
use memscope_proto::v1;

/// Codes of the notes of a process that comes from another tool's file.
const IMPORTED: [&str; 2] = ["imported", "imported_snapshot"];

/// All notes of a process: those that the daemon made, then those that follow from the state. Where both have the same
/// code, the note from the state is used, because it has the numbers.
pub(crate) fn notes(process: &Process) -> Vec<v1::CoverageNote> {
    let mut all = process.notes.clone();
    let mut say = |code: &str, text: String| {
        all.take(&CoverageNote {
            code: code.to_owned(),
            text,
        });
    };
    from_late_probes(process, &mut say);
    from_attach(process, &mut say);
    from_loss(process, &mut say);
    from_readings(process, &mut say);
    from_found(process, &mut say);
    from_pool(process, &mut say);
    from_driver(process, &mut say);
    from_regions(process, &mut say);
    from_memory(process, &mut say);
    let (first, count) = &process.children;
    if *count > 0 {
        let mut pids: Vec<String> = first.iter().map(u32::to_string).collect();
        if *count > first.len() as u64 {
            pids.push("…".to_owned());
        }
        // Only the first are listed, and all of these may be followed by now.
        let pids = match first.is_empty() {
            true => String::new(),
            false => format!(" (pid {})", pids.join(", ")),
        };
        say(
            "forked",
            format!("{count} children were forked and are not followed here{pids}"),
        );
    }
    all.all().into_iter().map(Into::into).collect()
}

/// All notes of a process for a snapshot: also says on which devices it was put together from events without a reading,
/// and what has no place in it.
pub(crate) fn of_picture(process: &Process) -> Vec<v1::CoverageNote> {
    let mut all = notes(process);
    let unread: Vec<String> = process
        .devices
        .iter()
        .filter(|row| row.pool.seen && !row.pool.is_read(process.watch()))
        .map(|row| words::device(row.ordinal))
        .collect();
    if process.source() == Source::Pool && !process.is_pool_hidden() && !unread.is_empty() {
        let note = CoverageNote {
            code: "layout_not_read".to_owned(),
            text: format!(
                "the allocator's structures were not read since the last event on {}: segments, their streams and \
                 pools, and requested sizes are put together from what was seen",
                unread.join(", ")
            ),
        };
        all.push(note.into());
    }
    if process.source() == Source::Driver {
        let placed = process.driver.vmm.placed();
        let unmapped = placed.unmapped.iter();
        let bytes = unmapped.fold(0u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let mut parts = Vec::new();
        if bytes > 0 {
            parts.push(format!(
                "{} of physical memory are mapped at no address, so they are among the sums and in no segment",
                memscope_units::bytes(bytes)
            ));
        }
        if placed.again > 0 {
            parts.push(format!(
                "physical memory is mapped at {} more addresses; it is shown at its first one only",
                placed.again
            ));
        }
        if !parts.is_empty() {
            let note = CoverageNote {
                code: "physical_not_shown".to_owned(),
                text: parts.join("; "),
            };
            all.push(note.into());
        }
    }
    all
}

/// What was given up because the daemon's memory was short, and what found no room in the ledger.
fn from_memory(process: &Process, say: &mut impl FnMut(&str, String)) {
    for shed in process.shed.all() {
        let what = match shed.part {
            ShedPart::Trace => "the allocator's trace is not kept any more",
            ShedPart::History => {
                "the course of levels begins anew after it was given up, and nothing is watched for growth any more"
            }
            ShedPart::Stacks => {
                "stacks that were known before are gone, and what they allocated is listed as a stack that was lost"
            }
            ShedPart::Process => {
                "nothing is kept of what the process held, and it is not traced any more"
            }
        };
        say(
            shed.part.code(),
            format!(
                "memscoped's memory was short ({} were kept of this process, and all together may take {}): {what}",
                memscope_units::bytes(shed.held_bytes),
                memscope_units::bytes(shed.limit_bytes),
            ),
        );
    }
    if process.devices.refused() > 0 {
        say(
            "devices_full",
            format!(
                "the process names too many devices: {} times something on another one was counted to an unknown device",
                process.devices.refused()
            ),
        );
    }
    if process.stacks.nameless > 0 {
        say(
            "names_full",
            format!(
                "{} times code came into stacks for whose name there was no room",
                process.stacks.nameless
            ),
        );
    }
    if process.regions.refused() > 0 {
        say(
            "regions_full",
            format!(
                "the process reports memory in too many domains: {} reports in further ones are in no number",
                process.regions.refused()
            ),
        );
    }
    if process.labels.refused() > 0 {
        say(
            "labels_full",
            format!(
                "the program gives its memory more labels than are kept: {} times one was left out",
                process.labels.refused()
            ),
        );
    }
    if process.driver.failures_refused() > 0 {
        say(
            "failures_full",
            format!(
                "calls fail in too many ways: {} failed calls are not listed",
                process.driver.failures_refused()
            ),
        );
    }
}

fn from_regions(process: &Process, say: &mut impl FnMut(&str, String)) {
    let pools = process.region_pools();
    let titles = |pools: &[&RegionPool]| {
        let titles: Vec<String> = pools.iter().map(|pool| pool.title()).collect();
        titles.join(", ")
    };
    let all: Vec<&RegionPool> = pools.iter().collect();
    if all.is_empty() {
        // The daemon makes this note for a library that was loaded after the attach. No pool reported anything, so
        // nothing can be missing, and the note is withdrawn.
        say("regions_baseline_unknown", String::new());
    } else if !process.facts.from_start {
        say(
            "regions_baseline_unknown",
            format!(
                "pools tell of themselves through mstx ({}): what they had before the attach is not known",
                titles(&all)
            ),
        );
    }
    if all.iter().any(|pool| pool.domain.is_none()) {
        let own = if process.pool_way_in {
            ", which may be torch_npu's own memory once more"
        } else {
            ""
        };
        say(
            "regions_domain_unknown",
            format!(
                "regions of memory are told of in a domain of mstx that was made before the attach or without a tool, so \
                 that its name is not known{own}"
            ),
        );
    }
    if !all.is_empty() && process.loss.records() > 0 {
        say(
            "regions_inexact_after_loss",
            format!(
                "records were lost, and some of them may have told of regions of {}: what these pools hold may be off by what \
                 was lost",
                titles(&all)
            ),
        );
    }
    let untold: Vec<&RegionPool> = pools.iter().filter(|pool| pool.untold_count > 0).collect();
    if !untold.is_empty() {
        let count: u64 = untold.iter().map(|pool| pool.untold_count).sum();
        say(
            "regions_untold",
            format!(
                "{count} regions are missing in the numbers of {}: calls named more than are told of",
                titles(&untold)
            ),
        );
    }
}

/// A library with a pool that is loaded after the attach has its probes when the daemon has learned of it. What the pool handed out
/// before them and had not taken back shows in its first total, or in a reading.
fn from_late_probes(process: &Process, say: &mut impl FnMut(&str, String)) {
    let devices = process.visible_devices().into_iter();
    let missed = devices.filter_map(|row| {
        let bytes = row.pool.missed.filter(|bytes| *bytes > 0)?;
        let bytes = memscope_units::bytes(bytes);
        Some(format!("{bytes} on {}", words::device(row.ordinal)))
    });
    let missed: Vec<String> = missed.collect();
    if !missed.is_empty() {
        say(
            "probed_late",
            format!(
                "{} were allocated before the probes were in the allocator's library, which came later than the attach: \
                 what came and went until then is not known",
                missed.join(", ")
            ),
        );
    }
}

fn from_attach(process: &Process, say: &mut impl FnMut(&str, String)) {
    if process.saw_all_memory() {
        return;
    }
    if process.source() == Source::Driver {
        say(
            "driver_baseline_unknown",
            "memory taken from the runtime or driver before the attach is not in these numbers"
                .to_owned(),
        );
        return;
    }
    let mut parts = Vec::new();
    let mut known = Vec::new();
    let mut any_unknown = false;
    for row in process.visible_devices() {
        let read = &row.pool.read;
        if read.count > 0 {
            if read.baseline_blocks > 0 {
                known.push(blocks_on(row, read.baseline_blocks, read.baseline_bytes));
            }
            continue;
        }
        match row.pool.totals.baseline() {
            Some(0) => {}
            Some(bytes) => parts.push(format!(
                "{} on {}",
                memscope_units::bytes(bytes),
                words::device(row.ordinal)
            )),
            None => any_unknown |= row.ordinal.is_some(),
        }
    }
    if process.pool_came_later {
        // What its first event did not explain is told as `probed_late`.
        known.clear();
        parts.clear();
    }
    if !known.is_empty() {
        say(
            "baseline_read",
            format!(
                "{} were there before the attach; their ages are not known",
                known.join(", ")
            ),
        );
    }
    if process.facts.level == Some(Level::Read) {
        return;
    }
    // A file that was imported says itself that it has the pool only.
    if !IMPORTED.iter().any(|code| process.notes.has(code)) {
        say(
            "direct_baseline_unknown",
            "memory taken from the runtime or driver beside the pool before the attach is not in these numbers"
                .to_owned(),
        );
    }
    if !parts.is_empty() {
        say(
            "attached_late",
            format!(
                "{} were allocated before the attach; their blocks are not known",
                parts.join(", ")
            ),
        );
    } else if any_unknown || !process.pool.seen() {
        let text = match process.is_pool_hidden() {
            true => {
                "what was allocated before the attach is not known at level segments; attach at blocks or trace to know it"
            }
            false => {
                "what was allocated before the attach is not known until the pool's next event"
            }
        };
        say("attached_late", text.to_owned());
    }
    if any_unknown || !process.pool.seen() {
        let text = match process.is_pool_hidden() {
            true => {
                "how much is handed out and reserved is not known at level segments; attach at blocks or trace to know it"
            }
            false => {
                "how much is handed out is not known on every device until the pool's next event"
            }
        };
        say("totals_unknown", text.to_owned());
    }
}

fn from_loss(process: &Process, say: &mut impl FnMut(&str, String)) {
    let lost = process.loss.records();
    if lost > 0 {
        say(
            "records_lost",
            format!(
                "{lost} records were lost in {} gaps",
                process.loss.gap_count()
            ),
        );
    }
    if lost > 0 && process.labels.any() {
        say(
            "labels_lost",
            "records were lost, and labels may be among them: some blocks may lack a label, or have one that was over; \
             ranges that were open at a loss label nothing after it"
                .to_owned(),
        );
    }
    if process.steps.may_lack_some() {
        say(
            "steps_inexact_after_loss",
            "records were lost after the first step, and some of them may have told of steps: how many steps there were, their \
             numbers, and what comes per step may be off"
                .to_owned(),
        );
    }
    let (mut resyncs, mut gone, mut overhang) = (0, 0, 0);
    // Without a reading since the loss, nothing proves that the lost records changed nothing.
    let mut unread = false;
    for row in process.devices.iter() {
        // A reading settles all that came before it.
        let (settled_resyncs, settled_gone) = row.pool.read.settled;
        resyncs += row.pool.resync_count.saturating_sub(settled_resyncs);
        gone += row.pool.found_gone.saturating_sub(settled_gone);
        overhang += row.pool.totals.overhang();
        unread |= row.pool.seen && row.pool.read.until_ns <= process.pool.lost_by;
    }
    unread &= lost > 0;
    let driver_gone = process.driver.found_gone();
    if lost > 0 || driver_gone > 0 {
        // Where there is a pool, the totals are its own and do not depend on these allocations.
        let code = match process.source() {
            Source::Driver => "totals_inexact_after_loss",
            Source::Pool => "driver_inexact_after_loss",
        };
        let gone = match driver_gone {
            0 => String::new(),
            gone => format!(", and {gone} turned out to have been freed unseen"),
        };
        say(
            code,
            format!(
                "allocations and frees of the runtime and the driver may be missing{gone}: sums of these \
                 allocations may be off by what was lost"
            ),
        );
    }
    if process.source() == Source::Driver {
        return;
    }
    let (blocks, bytes) = process.pool.stayed_by_place();
    if blocks > 0 {
        let bytes = memscope_units::bytes(bytes);
        say(
            "stayed_by_place",
            format!(
                "{bytes} in {blocks} blocks were at the same addresses with the same sizes before and after records were \
                 lost: whether they are the same blocks no reading can tell, and their stacks and ages may be those of \
                 earlier ones"
            ),
        );
    }
    if resyncs + gone + overhang == 0 && !unread {
        return;
    }
    let mut text = format!(
        "the allocator's totals were taken over {resyncs} times where they differed, and {gone} \
         blocks turned out to have been freed unseen: which blocks live is not exactly known"
    );
    if overhang > 0 {
        text.push_str(&format!(
            "; blocks of {} listed as live must be gone",
            memscope_units::bytes(overhang)
        ));
    }
    let suspects = process.pool.suspects();
    if suspects > 0 {
        text.push_str(&format!(
            "; {suspects} blocks that lived at the last loss are not confirmed since"
        ));
    }
    say("inexact_after_loss", text);
}

/// So many blocks of a device, in words.
fn blocks_on(row: &Device, blocks: u64, bytes: u64) -> String {
    let (bytes, device) = (memscope_units::bytes(bytes), words::device(row.ordinal));
    format!("{bytes} in {blocks} blocks on {device}")
}

/// Blocks that a reading shows and that were not seen to come.
fn from_found(process: &Process, say: &mut impl FnMut(&str, String)) {
    // Nothing was lost there, and the file says what it has of a block.
    if IMPORTED.iter().any(|code| process.notes.has(code)) {
        return;
    }
    let mut found = Vec::new();
    let mut mixed = false;
    for row in process.visible_devices() {
        let read = &row.pool.read;
        mixed |= read.is_mixed();
        if read.found_blocks > 0 {
            found.push(blocks_on(row, read.found_blocks, read.found_bytes));
        }
    }
    if found.is_empty() {
        return;
    }
    let (when, what) = match (process.facts.level, mixed) {
        (Some(Level::Read), _) => ("between two readings", "which stacks allocated them is"),
        (_, true) => (
            "while records were lost, or were there before the attach",
            "their ages and stacks are",
        ),
        (_, false) => ("while records were lost", "their ages and stacks are"),
    };
    say(
        "came_unseen",
        format!("{} came {when}: {what} not known", found.join(", ")),
    );
}

/// Notes on readings that were refused. They last until a later reading is taken over.
fn from_readings(process: &Process, say: &mut impl FnMut(&str, String)) {
    let refused = |row: &crate::state::device::Device| row.pool.read.refusal.is_some();
    let is_old = process.notes.has("reading_failed") || process.devices.iter().any(refused);
    let was_read = |row: &crate::state::device::Device| row.pool.read.count > 0;
    let is_old = is_old && process.devices.iter().any(was_read);
    if process.facts.level == Some(Level::Read) && is_old {
        say(
            "totals_old",
            "what is handed out and reserved was so at the last reading that succeeded".to_owned(),
        );
    }
    let incomplete =
        format!("did not come in all its parts, or has more than {MOST} blocks and free rooms,");
    for (refusal, code, why) in [
        (
            Refusal::TooOld,
            "reading_too_old",
            "was older than what is known of its events without a hole",
        ),
        (
            Refusal::Contradicted,
            "reading_contradicted",
            "did not agree with the allocator's totals",
        ),
        (Refusal::Incomplete, "reading_incomplete", &incomplete),
    ] {
        let devices: Vec<String> = process
            .devices
            .iter()
            .filter(|row| row.pool.read.refusal == Some(refusal))
            .map(|row| words::device(row.ordinal))
            .collect();
        if !devices.is_empty() {
            say(
                code,
                format!(
                    "the last reading of the blocks on {} {why} and was not taken over",
                    devices.join(", ")
                ),
            );
        }
    }
}

fn from_pool(process: &Process, say: &mut impl FnMut(&str, String)) {
    if process.facts.level == Some(Level::Read) {
        let between = "at level read nothing is seen but what each reading shows: blocks that came and \
                       went between two readings, peaks, failed calls, and memory that the pool does \
                       not hold are not in these numbers; the age of a block is known to within the \
                       time between readings";
        say("level_read", between.to_owned());
        if process.source() == Source::Pool
            && !process.devices.iter().any(|row| row.pool.read.count > 0)
        {
            say(
                "totals_unknown",
                "nothing has been read yet: what the process holds is not known".to_owned(),
            );
        }
    }
    if process.is_pool_hidden() {
        say(
            "level_segments",
            "at level segments the blocks inside the framework's pool are not seen, so that a snapshot has none of them"
                .to_owned(),
        );
    }
    if process.facts.level == Some(Level::Blocks) && process.source() == Source::Pool {
        let blind = "at level blocks the trace has rounded sizes, neither streams nor segments, and a free \
                     that waits for a stream looks done; the blocks and segments of a snapshot of now are \
                     read from the allocator's structures, those of an earlier moment are put together \
                     from what was seen";
        say("level_blocks", blind.to_owned());
    }
    if process.hides_ooms() {
        let (blind, better) = match process.facts.level {
            Some(Level::Read | Level::Segments) => (
                "at this level no failed allocation of the pool is seen",
                "level trace shows it",
            ),
            _ => (
                "the functions that are probed at this level report no failed allocation, as torch_npu has none for it",
                "level trace shows it",
            ),
        };
        say(
            "oom_unseen",
            format!(
                "{blind}: how often memory ran out is not known, and a trigger for oom does not fire; {better}"
            ),
        );
    }
    if process.devices.iter().any(|row| row.pool.totals.is_open()) {
        say(
            "rounded_size_unknown",
            "the rounded size of some blocks is not known until the allocator's next total"
                .to_owned(),
        );
    }
    let traced = || process.devices.iter().filter(|row| row.pool.traced);
    let untold: u64 = process
        .devices
        .iter()
        .map(|row| row.pool.unsized_count)
        .sum();
    if untold > 0 {
        say(
            "sizes_untold",
            format!(
                "the rounded sizes of blocks were not told {untold} times: peaks may have been higher"
            ),
        );
    }
    let untold: usize = traced().map(|row| row.pool.untold_segments()).sum();
    if untold > 0 {
        say(
            "pool_ids_unknown",
            format!(
                "{untold} segments came of which this version's trace does not tell whether they are a \
                 private pool's; files that have no word for that show them as the default pool's"
            ),
        );
    }
    // Totals are what the records say, and these may say anything.
    let unknown = traced().map(|row| row.pool.unknown_bytes());
    let unknown = unknown.fold(0, u64::saturating_add);
    if unknown > 0 {
        say(
            "segments_unknown",
            format!(
                "{} of the allocator's segments are not known one by one",
                memscope_units::bytes(unknown)
            ),
        );
    }
    let (unplaced, asked) = process.pool.unplaced();
    if unplaced > 0 {
        say(
            "pool_device_unknown",
            format!(
                "{unplaced} entries of the allocator's trace name no device and are not in these numbers"
            ),
        );
    }
    if asked > 0 {
        say(
            "snapshot_device_unknown",
            format!(
                "{asked} entries of the allocator's trace say that the program took a snapshot, and not of which \
                 device; they are missing in the trace"
            ),
        );
    }
    if process.groups.refused() > 0 {
        say(
            "leak_groups_full",
            format!(
                "{} blocks are not watched by their exact size, or not with all that their stack allocates: there are \
                 too many different sizes and stacks",
                process.groups.refused()
            ),
        );
    }
}

fn from_driver(process: &Process, say: &mut impl FnMut(&str, String)) {
    let unknown = process
        .devices
        .iter()
        .filter(|row| row.ordinal.is_none())
        .map(|row| row.driver.held().bytes)
        .fold(0, u64::saturating_add);
    if unknown > 0 {
        say(
            "device_unknown",
            format!(
                "{} are on a device for which there is no evidence yet",
                memscope_units::bytes(unknown)
            ),
        );
    }
    if process.driver.ipc_opened() > 0 {
        say(
            "ipc_import",
            format!(
                "{} times memory of another process was opened; its size is not known and it is \
                 in no sum",
                process.driver.ipc_opened()
            ),
        );
    }
    let (made, live) = process.driver.arrays();
    if made > 0 {
        say(
            "array_alloc",
            format!("{made} arrays were made and {live} live; their sizes are not known"),
        );
    }
    if process.driver.vmm.unknown() > 0 {
        say(
            "vmm_unknown",
            format!(
                "{} releases or unmaps were of physical memory that was not seen to come",
                process.driver.vmm.unknown()
            ),
        );
    }
}
