"""What came and went while a piece of code ran in this process, and the peak within it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _drawing, client, frames, v1, views
from ._errors import DaemonError

if TYPE_CHECKING:
    from .session import Session

#: Events that carry the allocator's totals.
_KINDS = ["report", "trace", "mark"]
#: Seconds within which the stream of events must have told everything that happened before the end.
_PATIENCE = 30.0
#: What the path of a library's file has in it.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
#: What Python calls the files of code that a person typed. `<string>` is also what a dataclass generates: methods with two underscores.
_TYPED = ("<ipython-input-", "<python-input-", "<stdin>", "<console>", "<string>")


class _Frame(NamedTuple):
    name: str
    file: str
    line: int
    is_python: bool = True

    def is_own(self) -> bool:
        """Whether it is a line of Python of the program itself: neither of an installed package nor of Python's own library. The rule is
        that of `is_own` in crates/units, whose table of cases the tests go through."""
        if not self.is_python or not self.line:
            return False
        if self.file.startswith("<"):
            is_generated = self.file.startswith("<string>") and self.name.startswith("__")
            return not is_generated and self.file.startswith(_TYPED)
        return not any(part in self.file for part in _LIBRARIES)


#: A device and the frames of a stack, innermost first; and why there are none.
Stack = tuple[Any, tuple[_Frame, ...], Any]


class _Peaks:
    """Reads the stream of events beside the code, and keeps the largest total of each device."""

    def __init__(self, session: Session, pid: int) -> None:
        # A connection of its own: when that is closed, the stream ends, whatever the thread is doing.
        self._daemon = client.connect(session.daemon.path)
        self._stream = self._daemon.events(pid, kinds=_KINDS)
        self._changed = threading.Condition()
        self._last = 0
        self._begin: int | None = None
        self.largest: dict[int, int] = {}
        self.missed = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._read, name="memscope-cell", daemon=True)
        self._thread.start()

    def begin(self, sequence: int) -> None:
        """Events with larger numbers count from now on."""
        with self._changed:
            self._begin = sequence
            self._changed.notify_all()

    def end(self, reached: int) -> bool:
        """Ends it when it has read the event with this number; false if that did not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= reached or self._is_over, _PATIENCE)
            is_whole = self._last >= reached
        self.close()
        return is_whole

    def close(self) -> None:
        """Ends the stream."""
        self.begin(self._begin or 0)
        self._daemon.close()
        self._thread.join()

    def _read(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._begin is not None)
        begin = self._begin or 0
        try:
            for event in self._stream:
                kind, sequence = event.WhichOneof("body"), event.id.sequence
                with self._changed:
                    if sequence > begin:
                        self.missed += event.missed
                        self._count(event, kind)
                    self._last = max(self._last, sequence)
                    self._changed.notify_all()
        except DaemonError:
            # The connection was closed, or it broke. What is missing then is noticed by `end`.
            pass
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _count(self, event: v1.Event, kind: str | None) -> None:
        if kind == "report":
            device, total = event.report.device, event.report.total_allocated_bytes
        elif kind == "trace" and event.trace.HasField("total_allocated_bytes") and event.trace.HasField("device"):
            device, total = event.trace.device, event.trace.total_allocated_bytes
        else:
            return
        self.largest[device] = max(self.largest.get(device, 0), total)


def _by_stack(session: Session, pid: int) -> tuple[dict[Stack, tuple[int, ...]], int]:
    """Bytes and blocks of each stack, allocated and live, and bytes at the peak; and how many stacks are left out."""
    found: dict[Stack, tuple[int, ...]] = {}
    omitted = 0
    # What only came, or only lives, is in one of the answers.
    for metric in (v1.STACK_METRIC_ALLOCATED, v1.STACK_METRIC_LIVE):
        view = v1.StackView(metric=metric, unit=v1.STACK_UNIT_BYTES)
        answer = session.daemon.stacks(pid, view=view, by=v1.STACK_GROUPING_STACK)
        omitted = max(omitted, answer.omitted)
        strings = answer.strings
        named = [
            _Frame(strings[one.name], strings[one.file], one.line, one.kind != v1.FRAME_KIND_NATIVE) for one in answer.frames
        ]
        for row in answer.rows:
            device = row.device if row.HasField("device") else None
            missing = row.missing if row.HasField("missing") else None
            amounts = row.amounts
            numbers = (
                amounts.allocated.bytes,
                amounts.allocated.count,
                amounts.live.bytes,
                amounts.live.count,
                amounts.peak.bytes,
            )
            if metric == v1.STACK_METRIC_LIVE and amounts.allocated.count:
                # The answer before had this row.
                continue
            key = device, tuple(named[index] for index in row.frames), missing
            # A stack of which frames are missing may be in several rows, and so may one whose code was compiled anew.
            earlier = found.get(key)
            found[key] = tuple(map(sum, zip(earlier, numbers))) if earlier else numbers
    return found, omitted


class Measured:
    """A piece of code of this process, between `__init__` and `end`."""

    def __init__(self, session: Session, pid: int) -> None:
        self._session, self._pid = session, pid
        self._peaks = _Peaks(session, pid)
        try:
            self._stacks, self._omitted = _by_stack(session, pid)
            self._before = session.daemon.stats(pid)
        except BaseException:
            self._peaks.close()
            raise
        self._peaks.begin(self._before.as_of_event.sequence)

    def give_up(self) -> None:
        """Ends it without an answer."""
        self._peaks.close()

    def end(self, name: str, file: str, has_run: bool, line_text: Callable[[int], str]) -> views.View:
        """What it did. `file` is what Python calls the code's file, `has_run` says whether it may have run before, `line_text` gives a
        line of it, and `name` is what the moment of its end is called in memscope's timeline."""
        daemon, pid = self._session.daemon, self._pid
        try:
            stacks, omitted = _by_stack(self._session, pid)
            after = daemon.stats(pid)
            mark = daemon.mark(pid, name=name)
        except BaseException:
            self._peaks.close()
            raise
        is_whole = self._peaks.end(mark.event.sequence)
        summary, at_peak = self._totals(after, is_whole)
        if max(omitted, self._omitted):
            summary.append(_left_out(max(omitted, self._omitted)))
        rows, found_bytes, unknown = self._rows(stacks, None if has_run else file, file, line_text, at_peak, omitted)
        if unknown:
            summary.append(
                f"{unknown:,} stacks were not in the answer before the code ran: what came through them in it is in no row"
            )
        if found_bytes:
            summary.append(f"{found_bytes:,} bytes were found that nobody saw come: they are in left_bytes only")
        table = frames.made("cell", rows, after)
        shown = ("line", "code", "place", "came_bytes", "came_count", "went_bytes", "left_bytes", "peak_bytes")
        return views.View(name, table, shown=shown, summary=summary, draw=_drawing.cell)

    def _totals(self, after: v1.StatsResponse, is_whole: bool) -> tuple[list[str], set[Any]]:
        """Sentences on each device, and the devices whose peak since the attach was in this code."""
        begin = self._before.as_of_event.sequence
        earlier = {one.device: one for one in self._before.devices if one.HasField("device")}
        lost = after.lost_records - self._before.lost_records
        said: list[str] = []
        at_peak: set[Any] = set()
        for one in after.devices:
            if not one.HasField("device") or not one.HasField("allocated_bytes"):
                continue
            device, now = one.device, one.allocated_bytes
            there = device in earlier and earlier[device].HasField("allocated_bytes")
            before = earlier[device].allocated_bytes if there else 0
            # Of a peak that was only reached again, the stacks say what they held when it was reached first.
            is_new = device not in earlier or one.peak_allocated_bytes > earlier[device].peak_allocated_bytes
            if one.HasField("peak_event") and one.peak_event > begin and is_new:
                at_peak.add(device)
                peak, how = one.peak_allocated_bytes, "exact, and the most since the attach"
            else:
                peak = max(before, now, self._peaks.largest.get(device, 0))
                how = "exact"
                if self._peaks.missed:
                    how = f"at least: {self._peaks.missed:,} events came too fast for this kernel to read"
                elif not is_whole:
                    how = "at least: not all events came in time"
            # Only what tells of each allocation knows how much there was between two readings.
            if after.level not in (v1.LEVEL_BLOCKS, v1.LEVEL_TRACE):
                how = f"at least: level {frames.word(v1.Level, after.level)} does not tell of single blocks"
            if lost:
                how = f"at least: {lost:,} records were lost meanwhile"
            said.append(
                f"device {device}: {before:,} bytes before, {now:,} after ({now - before:+,}), peak {peak:,} ({how})"
            )
        if not said:
            said.append("no memory of a device is known of this process")
        return said, at_peak

    def _rows(
        self,
        stacks: dict[Stack, tuple[int, ...]],
        new_file: str | None,
        file: str,
        line_text: Callable[[int], str],
        at_peak: set[Any],
        omitted: int,
    ) -> tuple[list[tuple[Any, ...]], int, int]:
        """The rows, how many bytes more than before live that were not seen to come, and of how many stacks it is not known what they
        had before."""
        found_bytes = unknown = 0
        sums: dict[tuple[Any, int | None, str | None], list[int]] = {}
        nothing = (0, 0, 0, 0, 0)
        for key in stacks.keys() | self._stacks.keys():
            if omitted and key not in stacks:
                # It may be one of those that did not fit into the answer: nothing is known of what it did.
                continue
            # What was not in the answer before may not have had room in it, but for lines of code that had not run before.
            is_new = any(frame.file == new_file for frame in key[1])
            if self._omitted and key not in self._stacks and not is_new:
                unknown += 1
                continue
            now, before = stacks.get(key, nothing), self._stacks.get(key, nothing)
            came, came_count = max(0, now[0] - before[0]), max(0, now[1] - before[1])
            left, left_count = now[2] - before[2], now[3] - before[3]
            # What a reading or a baseline found lives and was never seen to come. More than came can be left then, and nothing is
            # known to have gone.
            went, went_count = max(0, came - left), max(0, came_count - left_count)
            found_bytes += max(0, left - came)
            device, found, missing = key
            line = next((frame.line for frame in found if frame.file == file), None)
            place = None if line else _elsewhere(found, missing)
            row = sums.setdefault((device, line, place), [0] * 6)
            numbers = (came, came_count, went, went_count, left, now[4])
            for index, value in enumerate(numbers):
                row[index] += value
        rows: list[tuple[Any, ...]] = []
        for (device, line, place), (came, came_count, went, went_count, left, peak) in sums.items():
            if came or went or left:
                text = line_text(line).strip() if line else None
                known_peak = peak if device in at_peak else None
                rows.append((device, line, text, place, came, came_count, went, went_count, left, known_peak))
        return sorted(rows, key=lambda row: (row[1] is None, row[1] or 0, -row[4])), found_bytes, unknown


def _own(found: tuple[_Frame, ...]) -> _Frame:
    """The innermost frame of the program's own, else the innermost line of Python, else the innermost one."""
    python = next((one for one in found if one.is_python and one.line), found[0])
    return next((one for one in found if one.is_own()), python)


def _elsewhere(found: tuple[_Frame, ...], missing: Any) -> str:
    """Where a stack is that does not come through the code."""
    if not found:
        return f"({missing or 'no frames'})"
    name, file, line, _ = _own(found)
    return f"{name} {file}:{line}" if file and line else name or file


def by_own_line(session: Session, pid: int) -> views.View:
    """Live memory of a process by the lines of cells and of modules that are no libraries."""
    stacks, omitted = _by_stack(session, pid)
    sums: dict[tuple[Any, Any, Any, Any, Any], list[int]] = {}
    for (device, found, missing), (allocated, allocated_count, live, live_count, peak) in stacks.items():
        # Code that is no Python has no file or no line.
        place = (*(word or None for word in _own(found)[:3]), None) if found else (None, None, None, missing)
        row = sums.setdefault((device, *place), [0] * 6)
        for index, value in enumerate((1, live, live_count, peak, allocated, allocated_count)):
            row[index] += value
    rows = [
        (*place, *row[:4], None, *row[4:], *([None] * 5))
        for place, row in sorted(sums.items(), key=lambda one: -one[1][1])
        if row[1]
    ]
    shown = ("device", "function", "file", "line", "missing", "live_bytes", "live_count", "allocated_bytes")
    summary = [_left_out(omitted)] if omitted else []
    table = frames.made("stacks", rows, session.daemon.stats(pid))
    return views.View(f"what process {pid} holds", table, shown=shown, summary=summary, draw=_drawing.stacks)


def _left_out(omitted: int) -> str:
    return f"{omitted:,} stacks did not fit into the answer: what they allocated is in no row"
