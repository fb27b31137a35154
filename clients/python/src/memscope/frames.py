"""What the tables of a `memscope.session.Session` consist of: `TABLES` has each column with its type and meaning.

Units are suffixes: ``_bytes``, ``_ns`` (nanoseconds), ``_per_s``. Times are ``timestamp[ns, UTC]``; ``_boot_ns`` are nanoseconds of
the machine's boot time, as in events and in memscope-ctl's answers. Addresses and identities of stacks are ``uint64``. What is not
known is null, never 0.

The functions make such tables of the messages of `memscope.v1`. They need pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ._extras import need

if TYPE_CHECKING:
    from . import v1

__all__ = ["TABLES", "Column", "coverage_of", "schema"]


class Column(NamedTuple):
    """A column of a table."""

    #: Its name, with the unit as a suffix.
    name: str
    #: Its type: one of Arrow's, or ``time`` for ``timestamp[ns, UTC]``.
    type: str
    #: What it says.
    what: str


def _columns(text: str) -> tuple[Column, ...]:
    """A column in each line: name, type, meaning."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return tuple(Column(*(part.strip() for part in line.split("|"))) for line in lines)


#: The columns of each table, by the name of the method that gives it.
TABLES: dict[str, tuple[Column, ...]] = {
    "processes": _columns(
        """
        pid | uint32 | process id
        comm | string | short name
        command | string | command line, its words joined by spaces
        state | string | attached, detached, exited, replaced or given_up
        level | string | depth of observation that was asked for
        allocated_bytes | uint64 | handed out on all devices
        reserved_bytes | uint64 | held from the driver on all devices
        lost_records | uint64 | records lost so far
        events | uint64 | events applied so far
        growing_lines | uint64 | lines of the program that are known to keep more and more memory
        growth_bytes_per_s | double | what they grow by in a second
        growth_bytes_per_step | double | what they grow by in a step
        verdict | string | growing, too_early, nothing_read or steady, until its end if it has ended; null where it was not judged
        confidence | double | the share of such growths that go on
        container | string | name of its container
        pod | string | name of its pod
        namespace | string | namespace of that pod
        job | string | what the processes of its distributed program have in common
        rank | uint32 | rank in that program
        world_size | uint32 | processes of that program
        known_from | time | the first moment that can be asked for
        attached_boot_ns | uint64 | when it was attached
        ended_boot_ns | uint64 | when it ended
        """
    ),
    "devices": _columns(
        """
        kind | string | cuda, npu or hip
        name | string | what the process's environment calls the device, else its number
        total_bytes | uint64 | memory of the device
        free_bytes | uint64 | free memory of the device, seen in the last 15 s
        unexplained_bytes | uint64 | in use on the device and held by none of the processes
        pid | uint32 | a process that uses it
        comm | string | its short name
        device | int32 | ordinal of the device within the process
        allocated_bytes | uint64 | handed out in the process
        held_bytes | uint64 | held from the driver by the process
        context_bytes | uint64 | used by the driver for the process beside that
        at_least | bool | held_bytes may be too small
        allocated_at_least | bool | allocated_bytes may be too small
        """
    ),
    "stats": _columns(
        """
        device | int32 | ordinal of the device within the process
        device_kind | string | cuda, npu or hip
        source | string | where allocated and reserved bytes come from: pool or driver
        allocated_bytes | uint64 | handed out
        reserved_bytes | uint64 | taken from the driver for the pool
        peak_allocated_bytes | uint64 | largest allocated_bytes since the attach
        peak_reserved_bytes | uint64 | largest reserved_bytes since the attach
        baseline_bytes | uint64 | the part of allocated_bytes that was there before the attach
        requested_bytes | uint64 | what blocks were asked for, before rounding: live ones, and those that a stream still uses
        pending_free_bytes | uint64 | freed by the program and still used by a stream
        live_blocks | uint64 | live blocks that are known
        segments | uint64 | segments that are known
        driver_bytes | uint64 | live allocations from the driver that were seen to come
        direct_bytes | uint64 | the part of these that is not the pool's
        total_bytes | uint64 | memory of the device
        free_bytes | uint64 | free memory of the device when it was last seen
        context_bytes | uint64 | used by the driver for the process beside what it held
        alloc_count | uint64 | blocks that came since the attach
        free_count | uint64 | blocks that went since the attach
        oom_count | uint64 | reports of no memory
        peak | time | when the peak was reached last
        """
    ),
    "segments": _columns(
        """
        device | int32 | ordinal of the device within the process
        address | uint64 | where it begins
        size_bytes | uint64 | its size
        allocated_bytes | uint64 | its blocks that are handed out
        pending_free_bytes | uint64 | its blocks that are freed by the program and still used by a stream
        free_bytes | uint64 | free room in it
        blocks | uint64 | pieces that it is divided into, free ones included
        stream | uint64 | raw stream
        large | bool | of the large pool
        pool_first | uint64 | first half of the private pool's id
        pool_second | uint64 | second half of it
        expandable | bool | made of mapped chunks
        seen | bool | seen to come; else put together from blocks that were seen
        """
    ),
    "blocks": _columns(
        """
        device | int32 | ordinal of the device within the process
        segment_address | uint64 | where its segment begins
        address | uint64 | where it begins
        size_bytes | uint64 | its size, rounded
        requested_bytes | uint64 | the size that was asked for
        state | string | active, pending_free, or inactive: free room
        stream | uint64 | raw stream
        large | bool | of the large pool
        pool_first | uint64 | first half of the private pool's id
        pool_second | uint64 | second half of it
        since | time | when it came
        """
    ),
    "events": _columns(
        """
        time | time | when
        action | string | alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot or oom
        device | int32 | ordinal of the device within the process
        address | uint64 | of the block or segment
        size_bytes | uint64 | the size that was asked for, or of the segment
        device_free_bytes | uint64 | with oom: free memory of the device
        stream | uint64 | raw stream
        pool_first | uint64 | first half of the private pool's id
        pool_second | uint64 | second half of it
        tid | uint32 | thread
        time_boot_ns | uint64 | when
        """
    ),
    "listen": _columns(
        """
        time | time | when
        pid | uint32 | process id; unknown for events of the machine
        tid | uint32 | thread
        kind | string | what happened, as memscope-ctl events calls it
        action | string | of trace: what the allocator did; of mark: what it is
        device | int32 | ordinal of the device within the process
        address | uint64 | of the block, segment or call
        size_bytes | int64 | its size; of report negative when the block went
        total_allocated_bytes | uint64 | the allocator's total of allocated bytes after it
        total_reserved_bytes | uint64 | the allocator's total of reserved bytes after it
        stream | uint64 | raw stream
        stack_id | uint64 | identity of the Python stack within the process
        name | string | of mark: its name; of call: the function
        lost_before | uint64 | records of the process that had been lost by then
        missed | uint64 | events just before this one that this reader was too slow for
        sequence | uint64 | number of its record in the journal
        time_boot_ns | uint64 | when
        """
    ),
    "stacks": _columns(
        """
        device | int32 | ordinal of the device within the process
        function | string | function, where stacks are summed up by function or line
        file | string | source file
        line | uint32 | line
        missing | string | why there are no frames, as no_python or not_taken
        stacks | uint64 | how many stacks it is in
        live_bytes | uint64 | live, of stacks whose innermost frame it is
        live_count | uint64 | how many blocks these are
        peak_bytes | uint64 | live when the device's allocated bytes were largest since the attach
        peak_count | uint64 | how many blocks these were
        allocated_bytes | uint64 | all that came since the attach
        allocated_count | uint64 | how many blocks these were
        before_bytes | uint64 | live at the earlier moment, where one was given
        before_count | uint64 | how many blocks these were
        total_live_bytes | uint64 | live, of stacks that it is anywhere in
        total_peak_bytes | uint64 | of those, live at the peak
        total_allocated_bytes | uint64 | of those, all that came since the attach
        """
    ),
    "call_stacks": _columns(
        """
        device | int32 | ordinal of the device within the process
        frames | list<string> | function, file and line of each frame, innermost first
        truncated | bool | some frames are missing
        missing | string | why there are no frames, as no_python or not_taken
        live_bytes | uint64 | live
        live_count | uint64 | how many blocks these are
        peak_bytes | uint64 | live when the device's allocated bytes were largest since the attach
        peak_count | uint64 | how many blocks these were
        allocated_bytes | uint64 | all that came since the attach
        allocated_count | uint64 | how many blocks these were
        before_bytes | uint64 | live at the earlier moment, where one was given
        before_count | uint64 | how many blocks these were
        """
    ),
    "leaks": _columns(
        """
        device | int32 | ordinal of the device within the process
        source | string | pool, driver or host
        function | string | function of the program's own line that allocated the blocks
        file | string | its file
        line | uint32 | its line
        verdict | string | growing, undecided or steady
        confidence | double | how sure that is, 0 to 1
        groups | uint64 | groups of blocks that are folded into it
        growing_groups | uint64 | those of them that grow
        smallest_bytes | uint64 | size of its smallest blocks
        largest_bytes | uint64 | size of its largest blocks
        live_count | uint64 | blocks that live now
        live_bytes | uint64 | their bytes
        growth_bytes | uint64 | what the floors of its growing groups rose by while they were watched
        growth_bytes_per_s | double | rise of those floors
        growth_bytes_per_step | double | growth in a step
        growth_bytes_per_step_low | double | lower end of its interval of 95 %
        growth_bytes_per_step_high | double | upper end of its interval of 95 %
        first_step | uint64 | the step in which it began
        oldest_age_ns | uint64 | age of the oldest live block
        looks_like_kept_graph | bool | as an autograd graph does that is kept
        reason | string | why it is judged so
        """
    ),
    "owners": _columns(
        """
        category | string | weights, gradients, optimizer_state, buffers, activations, or another
        device | int32 | ordinal of the device within the process
        owner | string | who has it, as Python would write it, or the line that allocated it
        kind | string | type of the module, the optimizer or the holder
        name | string | name of the parameter or buffer below owner
        key | string | what of an optimizer's state it is
        labels | list<string> | labels that the program gave these blocks, the outermost first
        model | string | of what the autograd graph has saved: the way to the outermost module
        module | string | the module below model
        count | uint64 | blocks
        bytes | uint64 | their bytes
        unsure_bytes | uint64 | the part of which a second reading did not show the same
        place | string | function, file and line that allocated the largest block
        address | uint64 | address of the largest block
        evidence | string | object, rule, none or allocator
        """
    ),
    "steps": _columns(
        """
        step | uint64 | number, from 1
        steps | uint64 | how many steps the row tells of, the last one with that number
        from | time | begin
        to | time | end
        device | int32 | ordinal of the device within the process
        source | string | pool or driver
        min_allocated_bytes | uint64 | smallest allocated bytes: the floor
        max_allocated_bytes | uint64 | largest allocated bytes: the peak
        end_allocated_bytes | uint64 | allocated bytes at its end
        max_reserved_bytes | uint64 | largest reserved bytes
        reserved_at_max_bytes | uint64 | reserved bytes when most was allocated
        end_reserved_bytes | uint64 | reserved bytes at its end
        allocs | uint64 | allocations
        frees | uint64 | frees
        allocated_bytes | uint64 | what the level rose by, summed up
        freed_bytes | uint64 | what the level fell by, summed up
        from_boot_ns | uint64 | begin
        to_boot_ns | uint64 | end
        """
    ),
    "timeline": _columns(
        """
        device | int32 | ordinal of the device within the process
        source | string | pool or driver
        from | time | begin of the interval
        to | time | its end
        min_allocated_bytes | uint64 | smallest allocated bytes in it
        max_allocated_bytes | uint64 | largest allocated bytes in it
        min_reserved_bytes | uint64 | smallest reserved bytes in it
        max_reserved_bytes | uint64 | largest reserved bytes in it
        allocs | uint64 | allocations in it
        frees | uint64 | frees in it
        from_boot_ns | uint64 | begin of the interval
        to_boot_ns | uint64 | its end
        """
    ),
    "cell": _columns(
        """
        device | int32 | ordinal of the device within the process
        line | uint32 | line of the cell, the innermost one that is in the stack
        code | string | what stands there
        place | string | of what no line of the cell allocated: function, file and line, or why that is not known
        came_bytes | uint64 | what came while the cell ran
        came_count | uint64 | how many blocks these were
        went_bytes | uint64 | what went while the cell ran, of what this line allocated then or before
        went_count | uint64 | how many blocks these were
        left_bytes | int64 | how much more lives after the cell than before: came_bytes less went_bytes, and what was found
        peak_bytes | uint64 | live when most was allocated, where that was while the cell ran and the most since the attach
        """
    ),
    "marks": _columns(
        """
        time | time | when
        name | string | its name
        nth | uint64 | which of its name it is, from 1
        kind | string | instant, begin or step
        source | string | what it was made with
        origin | string | people, program or framework
        tid | uint32 | the thread that made it
        step | uint64 | the step that it was made in
        time_boot_ns | uint64 | when
        sequence | uint64 | number of its record in the journal
        """
    ),
}


def schema(name: str) -> Any:
    """The ``pyarrow.Schema`` of the table with this name; each field's metadata says what it means."""
    arrow = need("pyarrow", "a table")
    types = {
        "time": arrow.timestamp("ns", tz="UTC"),
        "double": arrow.float64(),
        "bool": arrow.bool_(),
        "list<string>": arrow.list_(arrow.string()),
    }
    return arrow.schema(
        [
            arrow.field(
                column.name,
                types.get(column.type) or getattr(arrow, column.type)(),
                metadata={"what": column.what},
            )
            for column in TABLES[name]
        ]
    )


def coverage_of(table: Any) -> list[dict[str, Any]]:
    """What limits the numbers of a table: notes with ``code``, ``text``, ``affects`` and ``lower_bound``."""
    told = (table.schema.metadata or {}).get(b"memscope")
    return list(json.loads(told)["coverage"]) if told else []


def made(name: str, rows: Iterable[tuple[Any, ...]], answer: Any = None) -> Any:
    """A table with this name of rows whose values are in the order of its columns. What `answer` says of itself goes with it."""
    arrow = need("pyarrow", "a table")
    wanted = schema(name)
    columns = list(zip(*rows)) or [()] * len(wanted)
    arrays = [arrow.array(values, type=field.type) for values, field in zip(columns, wanted)]
    if answer is not None:
        wanted = wanted.with_metadata({"memscope": json.dumps(_said(answer))})
    return arrow.Table.from_arrays(arrays, schema=wanted)


def _said(answer: Any) -> dict[str, Any]:
    """The moment of an answer, what was lost by then, and what limits it."""
    fields = answer.DESCRIPTOR.fields_by_name
    said = {name: getattr(answer, name) for name in ("pid", "as_of", "lost_records") if name in fields}
    said["coverage"] = [
        {
            "code": note.code,
            "text": note.text,
            "affects": list(note.affects),
            "lower_bound": note.lower_bound,
        }
        for note in (answer.coverage if "coverage" in fields else ())
    ]
    return said


def _known(message: Any, field: str) -> Any:
    """The value of an optional field; None if it is not there."""
    return getattr(message, field) if message.HasField(field) else None


def _pool(message: Any) -> tuple[int | None, int | None]:
    """Both halves of a private pool's id; None if it is not known."""
    pool = _known(message, "pool")
    return (None, None) if pool is None else (pool.first, pool.second)


def word(enum: Any, value: int) -> str | None:
    """The word of an enumeration's value, without what all of them begin with; None for what is not said."""
    names = enum.keys()
    beginning = names[0][: -len("UNSPECIFIED")]
    if value == 0 or value not in enum.values():
        return None
    return str(enum.Name(value))[len(beginning) :].lower()


def _clock(answer: Any) -> int:
    """What is added to boot time to have the time since 1970, by the clock of an answer."""
    return int(answer.as_of) - int(answer.as_of_boot_ns)


def processes(answer: v1.ListResponse) -> Any:
    """A row for each process."""
    from . import v1

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.processes:
            facts, whose = one.facts, one.workload
            yield (
                facts.pid,
                facts.comm,
                " ".join(facts.cmdline),
                word(v1.ProcessState, one.state),
                word(v1.Level, facts.level),
                _known(one, "allocated_bytes"),
                _known(one, "reserved_bytes"),
                one.lost_records,
                one.events,
                _known(one, "growing_lines"),
                _known(one, "growth_bytes_per_s"),
                _known(one, "growth_bytes_per_step"),
                word(v1.ProcessVerdict, one.verdict),
                _known(one, "confidence"),
                *(_known(whose, name) for name in ("container", "pod", "namespace", "job", "rank", "world_size")),
                _known(one, "known_from_unix_ns"),
                one.attached_boot_ns,
                _known(one, "ended_boot_ns"),
            )

    return made("processes", rows(), answer)


def devices(answer: v1.DevicesResponse) -> Any:
    """A row for each device of the machine and each process that uses it; without processes there is a row of its own."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.devices:
            names = ("kind", "name", "total_bytes", "free_bytes", "unexplained_bytes")
            beginning = tuple(_known(one, name) for name in names)
            for holder in one.holders:
                yield (
                    *beginning,
                    holder.process.facts.pid,
                    holder.process.facts.comm,
                    _known(holder, "ordinal"),
                    _known(holder, "allocated_bytes"),
                    _known(holder, "held_bytes"),
                    _known(holder, "context_bytes"),
                    holder.at_least,
                    holder.allocated_at_least,
                )
            if not one.holders:
                yield (*beginning, *([None] * 8))

    return made("devices", rows(), answer)


def stats(answer: v1.StatsResponse) -> Any:
    """A row for each device of a process."""
    from . import v1

    optional = (
        "allocated_bytes",
        "reserved_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "baseline_bytes",
        "requested_bytes",
        "pending_free_bytes",
    )
    codes = {note.code for note in answer.coverage}
    is_read, is_hidden = "level_read" in codes, "level_segments" in codes

    def told(one: v1.DeviceStats, name: str) -> Any:
        """A number, and None where the level does not show it."""
        return None if is_read and name.startswith("peak_") else _known(one, name)

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.devices:
            yield (
                _known(one, "device"),
                _known(one, "device_kind"),
                word(v1.Source, one.source),
                *(told(one, name) for name in optional),
                None if is_hidden else one.live_blocks,
                _known(one, "segments"),
                one.driver.bytes,
                one.direct.bytes if one.HasField("direct") else None,
                _known(one, "total_bytes"),
                _known(one, "free_bytes"),
                _known(one, "context_bytes"),
                # What comes and goes, and allocations that fail, nothing tells of.
                None if is_read or is_hidden else one.alloc_count,
                None if is_read or is_hidden else one.free_count,
                None if is_read or "oom_unseen" in codes else one.oom_count,
                told(one, "peak_unix_ns"),
            )

    return made("stats", rows(), answer)


class SnapshotRead:
    """The parts of a snapshot, put together."""

    def __init__(self, parts: Iterable[v1.SnapshotPart]) -> None:
        self.header: v1.SnapshotHeader | None = None
        self.segments: list[v1.Segment] = []
        self.trace: list[v1.TraceEntry] = []
        is_whole = False
        for part in parts:
            kind = part.WhichOneof("part")
            if kind == "header":
                self.header = part.header
            elif kind == "segments":
                self.segments.extend(part.segments.segments)
            elif kind == "trace":
                self.trace.extend(part.trace.entries)
            elif kind == "end":
                is_whole = True
        if not is_whole or self.header is None:
            from ._errors import DaemonError

            raise DaemonError("the snapshot ended before it was whole", "ask again", code="failed")

    def _by_segment(self) -> Iterator[tuple[v1.Segment, list[v1.Block]]]:
        """Each segment once, with all of its blocks."""
        whole: tuple[v1.Segment, list[v1.Block]] | None = None
        for segment in self.segments:
            if segment.continued and whole is not None:
                whole[1].extend(segment.blocks)
                continue
            if whole is not None:
                yield whole
            whole = segment, list(segment.blocks)
        if whole is not None:
            yield whole

    def segments_table(self) -> Any:
        """A row for each segment."""
        from . import v1

        states = (v1.BLOCK_STATE_ACTIVE, v1.BLOCK_STATE_PENDING_FREE, v1.BLOCK_STATE_INACTIVE)

        def rows() -> Iterator[tuple[Any, ...]]:
            for segment, blocks in self._by_segment():
                yield (
                    segment.device,
                    segment.address,
                    segment.size_bytes,
                    *(sum(b.size_bytes for b in blocks if b.state == state) for state in states),
                    len(blocks),
                    segment.stream,
                    segment.large,
                    *_pool(segment),
                    segment.expandable,
                    segment.seen,
                )

        return made("segments", rows(), self.header)

    def blocks_table(self) -> Any:
        """A row for each block, and for each piece of free room in a segment."""
        from . import v1

        words = {state: word(v1.BlockState, state) for state in v1.BlockState.values()}
        clock = _clock(self.header)

        def rows() -> Iterator[tuple[Any, ...]]:
            for segment, blocks in self._by_segment():
                ends = segment.stream, segment.large, *_pool(segment)
                for block in blocks:
                    since = _known(block, "since_boot_ns")
                    requested = _known(block, "requested_bytes")
                    if block.state == v1.BLOCK_STATE_INACTIVE and not requested:
                        requested = None
                    yield (
                        segment.device,
                        segment.address,
                        block.address,
                        block.size_bytes,
                        requested,
                        words.get(block.state),
                        *ends,
                        None if since is None else since + clock,
                    )

        return made("blocks", rows(), self.header)

    def trace_table(self) -> Any:
        """A row for each thing that the allocator did, as far back as it is kept."""
        from . import v1

        words = {action: word(v1.TraceAction, action) for action in v1.TraceAction.values()}

        def rows() -> Iterator[tuple[Any, ...]]:
            for one in self.trace:
                is_oom = one.action == v1.TRACE_ACTION_OOM
                yield (
                    one.time_unix_ns,
                    words.get(one.action),
                    one.device,
                    None if is_oom else one.address,
                    one.size_bytes,
                    one.address if is_oom else None,
                    one.stream,
                    *_pool(one),
                    one.tid or None,
                    one.time_boot_ns,
                )

        return made("events", rows(), self.header)


def listen(events: Iterable[v1.Event]) -> Any:
    """A row for each event of a stream."""
    return made("listen", (_event(event) for event in events))


def _event(event: v1.Event) -> tuple[Any, ...]:
    from . import v1

    kind = event.WhichOneof("body")
    body: Any = getattr(event, kind) if kind else event
    fields = body.DESCRIPTOR.fields_by_name if kind else {}

    def of(name: str) -> Any:
        field = fields.get(name)
        if field is None:
            return None
        return _known(body, name) if field.has_presence else getattr(body, name)

    action = None
    if kind == "trace":
        action = word(v1.TraceAction, event.trace.action)
    elif kind == "mark":
        action = word(v1.MarkKind, event.mark.kind)
    is_oom = kind == "trace" and event.trace.action == v1.TRACE_ACTION_OOM
    return (
        _known(event, "time_unix_ns"),
        _known(event, "pid"),
        event.tid or None,
        kind,
        action,
        of("device"),
        None if is_oom else of("address"),
        of("size_bytes"),
        of("total_allocated_bytes"),
        of("total_reserved_bytes"),
        of("stream"),
        _known(event, "stack_id"),
        of("name") if kind == "mark" else of("function"),
        event.lost_before,
        event.missed,
        event.id.sequence,
        event.time_boot_ns,
    )


def _amounts(answer: v1.StacksResponse, amounts: v1.StackAmounts) -> tuple[Any, ...]:
    # What has no earlier amount had nothing at that moment, if one was asked about at all.
    before = amounts.before if answer.HasField("from_unix_ns") else None
    return (
        amounts.live.bytes,
        amounts.live.count,
        amounts.peak.bytes,
        amounts.peak.count,
        amounts.allocated.bytes,
        amounts.allocated.count,
        None if before is None else before.bytes,
        None if before is None else before.count,
    )


def stacks(answer: v1.StacksResponse) -> Any:
    """A row for each line, function or file. What is left out of the answer is one row, whose ``missing`` is ``not_listed``."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for group in answer.groups:
            name = file = line = None
            if group.HasField("frame"):
                frame = answer.frames[group.frame]
                name = answer.strings[frame.name] or None
                file = answer.strings[frame.file] or None
                line = frame.line or None
            yield (
                _known(group, "device"),
                name,
                file,
                line,
                _known(group, "missing"),
                group.stacks,
                *_amounts(answer, group.own),
                group.total.live.bytes,
                group.total.peak.bytes,
                group.total.allocated.bytes,
            )
        if answer.omitted:
            yield (None, None, None, None, "not_listed", None, *_amounts(answer, answer.others), None, None, None)

    return made("stacks", rows(), answer)


def call_stacks(answer: v1.StacksResponse) -> Any:
    """A row for each stack. What is left out of the answer is one row, whose ``missing`` is ``not_listed``."""
    named = [_frame(answer, frame) for frame in answer.frames]

    def rows() -> Iterator[tuple[Any, ...]]:
        for row in answer.rows:
            yield (
                _known(row, "device"),
                [named[index] for index in row.frames],
                row.truncated,
                _known(row, "missing"),
                *_amounts(answer, row.amounts),
            )
        if answer.omitted:
            yield (None, None, None, "not_listed", *_amounts(answer, answer.others))

    return made("call_stacks", rows(), answer)


def _frame(answer: v1.StacksResponse, frame: v1.StackFrame) -> str:
    name, file = answer.strings[frame.name] or "?", answer.strings[frame.file] or "?"
    return f"{name} {file}:{frame.line}" if frame.line else f"{name} {file}"


def leaks(answer: v1.LeaksResponse) -> Any:
    """A row for each line of the program, growing ones first."""
    from . import v1

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.lines:
            line = one.line if one.HasField("line") else None
            yield (
                _known(one, "device"),
                word(v1.Source, one.source),
                None if line is None else line.name,
                None if line is None else line.file,
                None if line is None else line.line,
                word(v1.Verdict, one.verdict),
                _known(one, "confidence"),
                one.groups,
                one.growing_groups,
                one.smallest_bytes,
                one.largest_bytes,
                one.live_count,
                one.live_bytes,
                one.growth_bytes,
                one.growth_bytes_per_s,
                _known(one, "growth_bytes_per_step"),
                _known(one, "growth_bytes_per_step_low"),
                _known(one, "growth_bytes_per_step_high"),
                _known(one, "first_step"),
                one.oldest_age_ns,
                one.looks_like_kept_graph,
                one.reason or None,
            )

    return made("leaks", rows(), answer)


def owners(answer: v1.OwnersResponse) -> Any:
    """A row for each use of memory. What is left out of the answer is one row, whose category is ``not_listed``."""
    from . import v1

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.owners:
            yield (
                one.category,
                _known(one, "device"),
                one.owner or None,
                one.kind or None,
                one.name or None,
                one.key or None,
                list(one.labels),
                one.model or None,
                one.module or None,
                one.blocks.count,
                one.blocks.bytes,
                one.unsure.bytes,
                one.place or None,
                one.address or None,
                word(v1.OwnerEvidence, one.evidence),
            )
        if answer.more:
            yield ("not_listed", *([None] * 9), answer.more_bytes, *([None] * 4))

    return made("owners", rows(), answer)


def steps(answer: v1.StepsResponse) -> Any:
    """A row for each step and device."""
    from . import v1

    clock = _clock(answer)

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.rows:
            yield (
                one.step,
                one.steps,
                one.from_boot_ns + clock,
                one.to_boot_ns + clock,
                _known(one, "device"),
                word(v1.Source, one.source),
                one.min_allocated_bytes,
                one.max_allocated_bytes,
                one.end_allocated_bytes,
                one.max_reserved_bytes,
                one.reserved_at_max_bytes,
                one.end_reserved_bytes,
                one.allocs,
                one.frees,
                one.allocated_bytes,
                one.freed_bytes,
                one.from_boot_ns,
                one.to_boot_ns,
            )

    return made("steps", rows(), answer)


def timeline(answer: v1.FluctuationResponse) -> Any:
    """A row for each interval and device."""
    from . import v1

    clock = _clock(answer)

    def rows() -> Iterator[tuple[Any, ...]]:
        for device in answer.devices:
            for one in device.intervals:
                yield (
                    _known(device, "device"),
                    word(v1.Source, device.source),
                    one.from_boot_ns + clock,
                    one.to_boot_ns + clock,
                    one.min_allocated_bytes,
                    one.max_allocated_bytes,
                    one.min_reserved_bytes,
                    one.max_reserved_bytes,
                    one.allocs,
                    one.frees,
                    one.from_boot_ns,
                    one.to_boot_ns,
                )

    return made("timeline", rows(), answer)


def marks(answer: v1.MarksResponse) -> Any:
    """A row for each moment that has a name."""
    from . import v1

    def rows() -> Iterator[tuple[Any, ...]]:
        for one in answer.marks:
            yield (
                _known(one, "time_unix_ns"),
                one.name,
                _known(one, "nth"),
                word(v1.MarkKind, one.kind),
                word(v1.MarkSource, one.source),
                word(v1.MarkOrigin, one.origin),
                _known(one, "tid"),
                _known(one, "step"),
                one.time_boot_ns,
                one.event.sequence,
            )

    return made("marks", rows(), answer)
