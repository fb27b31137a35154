//! The tables. What the comments here say is what the page about the archive says.

use crate::table::{Record, Table, Time, table};

table! {
    /// The columns that all tables have: when it was, on which node, and whose process it is.
    Whose "" {
        /// Version of the table.
        schema_version: i64,
        /// When it was; of answers the moment that they describe.
        time: Time,
        /// Host name of the node.
        node: String,
        /// The machine: a hash of its machine id, so that nodes with one name are told apart.
        machine: String,
        /// Boot id of the node.
        boot: String,
        /// Number of the batch that brought the row, within the spool of its file's name.
        batch: i64,
        /// Which journal of memscoped: boot-time nanoseconds of its start.
        epoch: i64,
        /// memscoped's number for the process, unique within `epoch`. Null for what is of no process,
        /// or where it is not known of which one.
        process: i64,
        /// Process id.
        pid: i64,
        /// When the process was started, clock ticks since boot.
        start_ticks: i64,
        /// Real user id.
        uid: i64,
        /// Short name of the process.
        comm: String,
        /// What the processes of one distributed program have in common, as `slurm:1234.0`.
        job_id: String,
        /// Name of the job, as whoever started it gave it.
        job_name: String,
        /// Slurm: number of the job.
        slurm_job: String,
        /// Slurm: the step of the job.
        slurm_step: String,
        /// Kubernetes: namespace of the pod.
        namespace: String,
        /// Kubernetes: name of the pod.
        pod: String,
        /// Name of the container, or its id.
        container: String,
        /// Rank of the process in its program, from 0.
        rank: i64,
        /// Its rank among the processes on the same machine, from 0.
        local_rank: i64,
        /// Processes of that program.
        world_size: i64,
    }
}

table! {
    /// A line of a program that was found to leak, or what became of it.
    FindingRow "findings" {
        /// Number of the finding within the process, from 1.
        number: i64,
        /// `standing` when it was found, `withdrawn` when it is no longer so, `over` if it was neither told as withdrawn nor stands any more, as when the process ended.
        state: String,
        /// Number of the event in the journal. Null where there was none.
        sequence: i64,
        /// Ordinal of the device within the process.
        device: i64,
        /// What kind of memory: `pool`, `driver` or `host`.
        space: String,
        /// Bytes that live.
        live_bytes: i64,
        /// Growth, bytes per second.
        growth_bytes_per_s: f64,
        /// Growth per step, bytes.
        growth_bytes_per_step: f64,
        /// The step in which it began.
        first_step: i64,
        /// How sure that is, 0 to 1.
        confidence: f64,
        /// File of the line that allocates it.
        file: String,
        /// The line, from 1.
        line: i64,
        /// Its function.
        function: String,
        /// Why, in a sentence.
        reason: String,
    }
}

table! {
    /// How far one device's memory went within one step of a program.
    StepRow "steps" {
        /// Number, from 1. It begins anew where `step_source` changes.
        step: i64,
        /// What tells where a step ends: `named`, `mark`, `profiler`, `optimizer`, `backward` or `pattern`.
        step_source: String,
        /// Begin, boot-time nanoseconds.
        from_boot_ns: i64,
        /// End, boot-time nanoseconds.
        to_boot_ns: i64,
        /// Ordinal of the device within the process.
        device: i64,
        /// Where the numbers come from: `pool`, `driver` or `host`.
        source: String,
        /// Smallest allocated bytes.
        min_allocated_bytes: i64,
        /// Largest allocated bytes.
        max_allocated_bytes: i64,
        /// Allocated bytes at its end.
        end_allocated_bytes: i64,
        /// Largest reserved bytes.
        max_reserved_bytes: i64,
        /// Reserved bytes at its end.
        end_reserved_bytes: i64,
        /// Allocations.
        allocs: i64,
        /// Frees.
        frees: i64,
        /// What the level rose by, summed up, bytes.
        allocated_bytes: i64,
        /// What the level fell by, summed up, bytes.
        freed_bytes: i64,
    }
}

table! {
    /// What a process held on a device when a batch was closed, and its peaks since the attach. One row of each process and device has `ended`: it is of after its end.
    PeakRow "peaks" {
        /// The process has ended or is not traced any more: these are its last numbers.
        ended: bool,
        /// Where the process stands: `attached`, `detached`, `exited` or `replaced`.
        state: String,
        /// Ordinal of the device within the process.
        device: i64,
        /// Where the numbers come from: `pool`, `driver` or `host`.
        source: String,
        /// Bytes handed out.
        allocated_bytes: i64,
        /// Bytes held from the driver.
        reserved_bytes: i64,
        /// Largest `allocated_bytes` since the attach; null at level `read`, which shows moments only.
        peak_allocated_bytes: i64,
        /// Largest `reserved_bytes` since the attach; null at level `read`.
        peak_reserved_bytes: i64,
        /// When `peak_allocated_bytes` was reached last.
        peak_time: Time,
        /// The part of `allocated_bytes` that was there before the attach.
        baseline_bytes: i64,
        /// Blocks that came since the attach; null where level `segments` does not show the pool, and at level `read`.
        alloc_count: i64,
        /// Blocks that went since the attach; null where level `segments` does not show the pool, and at level `read`.
        free_count: i64,
        /// Allocations that failed because the device was full; null where level `segments` does not show the pool, and at level `read`.
        oom_count: i64,
        /// Memory of the device.
        total_bytes: i64,
        /// Records of the process that were lost so far.
        lost_records: i64,
    }
}

table! {
    /// What one stack of a program held: the largest ones once an hour, and when the process has ended. The row with `others` is the sum of all stacks that have no row.
    StackRow "stacks" {
        /// The process has ended: what lived at its end, and at its peak.
        ended: bool,
        /// Place among the stacks, from 1: by what lives, in rows with `ended` by what lived at the peak. Null in the row with `others`.
        place: i64,
        /// This row is the sum of all stacks that have no row of their own.
        others: bool,
        /// Ordinal of the device within the process. Null in the row with `others`, which is of all devices.
        device: i64,
        /// The stack, innermost first, a line for each frame: `function file:line`.
        frames: String,
        /// Function of the innermost frame.
        function: String,
        /// File of the innermost frame.
        file: String,
        /// Line of the innermost frame.
        line: i64,
        /// Why there are no frames.
        missing: String,
        /// Outer frames were cut off, or one could not be read.
        truncated: bool,
        /// Bytes that live.
        live_bytes: i64,
        /// Blocks that live.
        live_blocks: i64,
        /// Bytes that lived when the device's allocated bytes were largest.
        peak_bytes: i64,
        /// Blocks that lived then.
        peak_blocks: i64,
        /// Bytes of all that came since the attach.
        allocated_bytes: i64,
        /// Blocks of all that came since the attach.
        allocated_blocks: i64,
    }
}

table! {
    /// Allocations that failed because a device was full, as the framework reported them: those between two looks of the archive.
    OomRow "ooms" {
        /// Number of allocations that failed in that time.
        count: i64,
        /// When the archive had looked before. Null: it had not.
        since: Time,
        /// Ordinal of the device within the process.
        device: i64,
        /// All since the attach, these included.
        oom_count: i64,
        /// Bytes handed out at `time`.
        allocated_bytes: i64,
        /// Bytes held from the driver at `time`.
        reserved_bytes: i64,
        /// Largest bytes handed out since the attach.
        peak_allocated_bytes: i64,
    }
}

table! {
    /// A snapshot that memscoped took by itself, as when memory ran out, with its file.
    SnapshotRow "snapshots" {
        /// memscoped's number for it.
        snapshot: i64,
        /// The trigger that took it: `oom`, or another condition.
        trigger: String,
        /// What happened, in a sentence.
        reason: String,
        /// Ordinal of the device on which it happened, within the process.
        device: i64,
        /// Format of the file: `memory-viz`, `json`, `perfetto` or `html`.
        format: String,
        /// Size of the file in bytes.
        file_bytes: i64,
        /// The file. Null if it was larger than the archive takes, which a row in `gaps` tells.
        content: Vec<u8>,
        /// What was there before the attach was not known, and is not in it.
        without_baseline: bool,
    }
}

table! {
    /// An event of the journal, where all events were wanted.
    EventRow "events" {
        /// Number of the event in the journal.
        sequence: i64,
        /// What happened, in a word: a name of the fields of `Event.body` in `event.proto`.
        kind: String,
        /// When, boot-time nanoseconds.
        boot_ns: i64,
        /// Thread id.
        tid: i64,
        /// Identity of the Python stack within the process, in hexadecimal.
        stack_id: String,
        /// Records of the process that had been lost before.
        lost_before: i64,
        /// Ordinal of the device within the process, where the kind has one.
        device: i64,
        /// Address, where the kind has one.
        address: i64,
        /// Bytes, where the kind has them; negative where a block went.
        size_bytes: i64,
        /// The event as memscope-ctl shows it with --json.
        body: String,
    }
}

table! {
    /// Something that is not in the archive, or may be missing in it, and why.
    GapRow "gaps" {
        /// Name of the table that lacks it.
        of_table: String,
        /// Why: `not_connected` (the archive or memscoped did not run), `missed` (the archive was too slow for the stream of events), `no_room` (too many events waited),
        /// `dropped` (the spool was full), `forgotten` (memscoped did not keep it for long enough),
        /// `number_taken` (another process has its process id by now, or it is traced anew, and memscoped answers about the later one),
        /// `renumbered` (a step that overlaps one that is written already), `too_large`.
        reason: String,
        /// How many rows are missing. Null: it is not known, or it may be none.
        missing: i64,
        /// Begin of the time that it is about.
        from_time: Time,
        /// End of that time.
        to_time: Time,
        /// First number that may be missing: of an event, or of a step.
        from_number: i64,
        /// Last number that may be missing.
        to_number: i64,
        /// The file that was dropped, as it would have been named in the archive.
        object: String,
    }
}

/// All tables.
pub const TABLES: &[Table] = &[
    FindingRow::TABLE,
    StepRow::TABLE,
    PeakRow::TABLE,
    StackRow::TABLE,
    OomRow::TABLE,
    SnapshotRow::TABLE,
    EventRow::TABLE,
    GapRow::TABLE,
];
