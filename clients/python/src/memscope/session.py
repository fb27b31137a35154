"""Memory of processes as Arrow tables: of a running daemon, a recording, or a snapshot of PyTorch's.

::

    import memscope

    with memscope.open() as session:                  # the daemon on this machine
        session.stats(4242).table                     # a pyarrow.Table
        session.timeline(4242)                        # shows itself in a notebook
    with memscope.open("run.memscope") as session:    # a recording; no daemon needs to run
        session.blocks().to_pandas()

`memscope.frames.TABLES` says what columns each table has. It needs grpcio, protobuf and pyarrow; pictures need matplotlib.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._errors import ConfigError, DaemonError
from ._extras import need
from ._replay import Replayer

if TYPE_CHECKING:
    from . import v1
    from .client import Daemon
    from .views import Frame, View

__all__ = ["Session", "open"]

#: Intervals of a timeline, unless told otherwise.
INTERVALS = 400
#: Seconds that a memscoped has to read a recording, unless told otherwise.
PATIENCE = 300.0
#: Seconds after which a memscoped that reads a recording is asked anew whether it has read it.
_ONE_TRY = 5.0


def open(
    source: str | os.PathLike[str] | None = None,
    *,
    strict: bool = False,
    timeout: float = PATIENCE,
) -> Session:
    """Opens what memory can be asked of.

    ``source`` is nothing (the daemon at the socket that MEMSCOPE_SOCKET names, else at the usual one), a daemon's address
    (the path of its socket, ``unix:PATH``, or ``HOST:PORT``, where MEMSCOPE_TLS_CERT, MEMSCOPE_TLS_KEY and
    MEMSCOPE_TLS_CA name the files for TLS), a recording (a file or a directory, or ``recording:PATH``), or a snapshot that
    PyTorch pickled. For files a memscoped is started, which ends with the session; ``timeout`` is how long it may read.

    With ``strict``, answers whose numbers are not all exact are refused.

    Raises `ExtraMissingError` where a package is missing, and `DaemonError` where nothing can be asked.
    """
    need("grpc", "memscope.open()")
    need("google.protobuf", "memscope.open()")
    need("pyarrow", "memscope.open()")
    from . import _connection, client

    if source is None:
        return Session(client.connect(strict=strict), None)
    text = os.fspath(source)
    if text.startswith("unix:"):
        return Session(client.connect(text[len("unix:") :], strict=strict), None)
    path = text[len("recording:") :] if text.startswith("recording:") else text
    if path == text and _connection.is_host(text):
        return Session(client.connect(text, strict=strict), None)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise DaemonError(
            f"{path} cannot be opened: {error.strerror or error}",
            "name a daemon's socket, HOST:PORT, a recording or a snapshot of PyTorch's; nothing means the daemon on this machine",
            code="no_recording",
        ) from error
    if path == text and stat.S_ISSOCK(mode):
        return Session(client.connect(path, strict=strict), None)
    replayer = Replayer(path, seconds=timeout, answers=_answers)
    try:
        return Session(client.connect(replayer.socket, strict=strict), replayer)
    except BaseException:
        replayer.close()
        raise


def _answers(socket: str) -> bool:
    """Whether a memscoped answers there. It has a socket before it has read the recording."""
    from . import client

    try:
        with client.connect(socket) as daemon:
            daemon.status(timeout=_ONE_TRY)
    except DaemonError:
        return False
    return True


def _moment(at: str | v1.Moment | None) -> v1.Moment | None:
    """A moment as memscope-ctl's ``--at`` writes it, except ages and dates."""
    from . import v1

    if at is None or isinstance(at, v1.Moment):
        return at
    kind, _, rest = at.partition(":")
    if at == "peak":
        return v1.Moment(peak=v1.Peak())
    if kind == "mark" and rest:
        return v1.Moment(mark=rest)
    if kind in ("event", "step", "peak") and rest.isdecimal():
        number = int(rest)
        if kind == "event":
            return v1.Moment(event=number)
        return v1.Moment(step=number) if kind == "step" else v1.Moment(peak=v1.Peak(device=number))
    if at.isdecimal():
        return v1.Moment(unix_ns=int(at))
    raise ConfigError(
        f"{at!r} is no moment",
        "write peak, peak:DEVICE, mark:NAME, step:NUMBER, event:NUMBER or nanoseconds since 1970, or give a v1.Moment",
    )


class Session:
    """A daemon, or a memscoped that replays a recording, with its answers as tables. `open` makes one.

    Where a method takes ``pid`` it may be left out if there is only one process. ``at`` is a moment, as memscope-ctl writes it
    (``"peak"``, ``"mark:NAME"``, ``"step:12"``, ``"event:345"``, nanoseconds since 1970) or a ``v1.Moment``; nothing means now,
    or the end of the recording. ``daemon`` answers everything else.
    """

    def __init__(self, daemon: Daemon, replayer: Replayer | None) -> None:
        #: The `memscope.client.Daemon` that is asked.
        self.daemon = daemon
        self._replayer = replayer

    def close(self) -> None:
        """Ends the connection, and the memscoped that was started for it. May be called again."""
        self.daemon.close()
        if self._replayer is not None:
            self._replayer.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        what = "a recording" if self._replayer else "a daemon"
        return f"<memscope.session.Session of {what} at {self.daemon.path}>"

    def _pid(self, pid: int | None) -> int:
        if pid is not None:
            return pid
        pids = [one.facts.pid for one in self.daemon.list().processes]
        if len(set(pids)) == 1:
            return pids[0]
        there = ", ".join(str(one) for one in pids[:10]) + (", …" if len(pids) > 10 else "")
        raise ConfigError(
            f"there are {len(pids)} processes: {there}" if pids else "no process is there that you may see",
            "name one: pid=…" if pids else "attach one: memscope-ctl attach --pid PID",
        )

    def processes(self) -> Frame:
        """The processes that are or were traced."""
        from . import frames, views

        table = frames.processes(self.daemon.list())
        shown = ("pid", "comm", "state", "level", "allocated_bytes", "reserved_bytes", "verdict", "lost_records")
        return views.Frame("processes", table, shown=shown)

    def devices(self) -> Frame:
        """What all processes that are traced hold, by device of the machine."""
        from . import frames, views

        shown = ("kind", "name", "total_bytes", "free_bytes", "pid", "comm", "allocated_bytes", "held_bytes")
        return views.Frame("devices", frames.devices(self.daemon.devices()), shown=shown)

    def stats(self, pid: int | None = None) -> Frame:
        """What a process holds, by device."""
        from . import frames, views

        pid = self._pid(pid)
        shown = (
            "device",
            "source",
            "allocated_bytes",
            "reserved_bytes",
            "peak_allocated_bytes",
            "pending_free_bytes",
            "live_blocks",
            "total_bytes",
        )
        return views.Frame(f"what process {pid} holds", frames.stats(self.daemon.stats(pid)), shown=shown)

    def _snapshot(self, pid: int, at: str | v1.Moment | None) -> Any:
        from . import frames

        return frames.SnapshotRead(self.daemon.snapshot(pid, at=_moment(at)))

    def segments(self, pid: int | None = None, *, at: str | v1.Moment | None = None) -> Frame:
        """The segments of the pool."""
        from . import views

        pid = self._pid(pid)
        shown = ("device", "address", "size_bytes", "allocated_bytes", "free_bytes", "blocks", "stream", "large")
        return views.Frame(f"segments of process {pid}", self._snapshot(pid, at).segments_table(), shown=shown)

    def blocks(self, pid: int | None = None, *, at: str | v1.Moment | None = None) -> View:
        """The blocks of the pool, free room included. Drawn: the largest segments, with what lies in them."""
        from . import _drawing, views

        pid = self._pid(pid)
        shown = ("device", "address", "size_bytes", "requested_bytes", "state", "stream", "since")
        table = self._snapshot(pid, at).blocks_table()
        return views.View(f"blocks of process {pid}", table, shown=shown, draw=_drawing.blocks)

    def events(self, pid: int | None = None, *, at: str | v1.Moment | None = None) -> Frame:
        """What the framework's allocator did, as far back as the daemon keeps it. `listen` tells what happens from now on."""
        from . import views

        pid = self._pid(pid)
        snapshot = self._snapshot(pid, at)
        dropped = snapshot.header.trace_dropped
        summary = [f"{dropped:,} earlier events are not kept any more"] if dropped else []
        shown = ("time", "action", "device", "address", "size_bytes", "stream", "tid")
        return views.Frame(f"events of process {pid}", snapshot.trace_table(), shown=shown, summary=summary)

    def listen(
        self,
        pid: int | None = None,
        *,
        kinds: Sequence[str] = (),
        count: int | None = None,
        seconds: float | None = None,
    ) -> Frame:
        """Events as they happen: so many, or those of so many seconds, whichever ends first. One of both must be given."""
        from . import frames, views

        if count is None and seconds is None:
            raise ConfigError("a stream of events has no end", "say count=… or seconds=…")
        stream = self.daemon.events(pid, kinds=list(kinds), timeout=seconds)
        found: list[v1.Event] = []
        try:
            while count is None or len(found) < count:
                found.append(next(stream))
        except StopIteration:
            pass
        except DaemonError as error:
            if error.code != "timeout":
                raise
        finally:
            stream.close()
        shown = ("time", "pid", "kind", "action", "device", "address", "size_bytes", "stack_id", "name")
        missed = sum(event.missed for event in found)
        summary = [f"{missed:,} events were missed, because this reader was too slow"] if missed else []
        return views.Frame("events", frames.listen(found), shown=shown, summary=summary)

    def stacks(
        self,
        pid: int | None = None,
        *,
        by: str = "own_line",
        metric: str = "live",
        at: str | v1.Moment | None = None,
        since: str | v1.Moment | None = None,
        limit: int | None = None,
    ) -> View:
        """Whose memory it is. ``by``: own_line (what a library allocates counts for the program's line that called it), line,
        function, file, or stack. ``metric``, which the rows are ordered by and drawn with: live, peak, allocated, or growth since
        the moment ``since``."""
        from . import _drawing, frames, v1, views

        grouping = _chosen(v1.StackGrouping, by, "by")
        chosen = _chosen(v1.StackMetric, metric, "metric")
        pid = self._pid(pid)
        answer = self.daemon.stacks(
            pid,
            at=_moment(at),
            from_=_moment(since),
            view=v1.StackView(metric=chosen, unit=v1.STACK_UNIT_BYTES),
            by=grouping,
            limit=limit,
        )
        is_whole = grouping == v1.STACK_GROUPING_STACK
        beginning = ("device", "frames") if is_whole else ("device", "function", "file", "line")
        shown = (*beginning, "missing", "live_bytes", "live_count", "peak_bytes", "allocated_bytes")
        if since is not None:
            shown = (*shown, "before_bytes")
        view = views.View(
            f"{metric} memory of process {pid} by {by.replace('_', ' ')}",
            (frames.call_stacks if is_whole else frames.stacks)(answer),
            shown=shown,
            draw=_drawing.call_stacks if is_whole else _drawing.stacks,
        )
        view.metric = f"{metric}_bytes"
        return view

    def leaks(self, pid: int | None = None, *, include_steady: bool = False, limit: int | None = None) -> View:
        """Which lines of the program keep more and more memory, and how that is known."""
        from . import _drawing, frames, views

        pid = self._pid(pid)
        answer = self.daemon.leaks(pid, include_steady=include_steady, limit=limit)
        summary = [f"{answer.growing_lines:,} lines grow, by {answer.growing_bytes:,} bytes so far"]
        if answer.steps.evidence:
            summary.append(f"steps: {answer.steps.evidence}")
        if answer.omitted_lines:
            summary.append(f"{answer.omitted_lines:,} lines are left out")
        shown = (
            "verdict",
            "confidence",
            "function",
            "file",
            "line",
            "live_bytes",
            "growth_bytes",
            "growth_bytes_per_step",
            "first_step",
            "reason",
        )
        return views.View(
            f"leaks of process {pid}", frames.leaks(answer), shown=shown, summary=summary, draw=_drawing.leaks
        )

    def owners(
        self,
        pid: int | None = None,
        *,
        at: str | v1.Moment | None = None,
        rule_set: str | None = None,
        limit: int | None = None,
    ) -> View:
        """What memory is for. It is read from the process's Python objects, so not of a recording or an ended process."""
        from . import _drawing, frames, views

        pid = self._pid(pid)
        answer = self.daemon.owners(pid, at=_moment(at), rule_set=rule_set, limit=limit)
        shown = ("category", "device", "owner", "kind", "name", "count", "bytes", "place")
        return views.View(
            f"what memory of process {pid} is for", frames.owners(answer), shown=shown, draw=_drawing.owners
        )

    def steps(self, pid: int | None = None, *, limit: int | None = None, every: int | None = None) -> View:
        """How far memory went in each step."""
        from . import _drawing, frames, views

        pid = self._pid(pid)
        answer = self.daemon.steps(pid, limit=limit, every=every)
        evidence = answer.summary.evidence
        shown = (
            "step",
            "device",
            "from",
            "min_allocated_bytes",
            "max_allocated_bytes",
            "end_allocated_bytes",
            "allocs",
            "frees",
        )
        return views.View(
            f"steps of process {pid}",
            frames.steps(answer),
            shown=shown,
            summary=[evidence] if evidence else [],
            draw=_drawing.steps,
        )

    def marks(self, pid: int | None = None, *, include_framework: bool = False) -> Frame:
        """The moments that have a name."""
        from . import frames, views

        pid = self._pid(pid)
        table = frames.marks(self.daemon.marks(pid, include_framework=include_framework))
        shown = ("time", "name", "nth", "kind", "source", "step")
        return views.Frame(f"marks of process {pid}", table, shown=shown)

    def timeline(
        self,
        pid: int | None = None,
        *,
        window_ns: int | None = None,
        from_boot_ns: int | None = None,
        to_boot_ns: int | None = None,
        intervals: int = INTERVALS,
    ) -> View:
        """How allocated and reserved memory went, as the smallest and the largest value of each interval, with steps and marks.

        ``window_ns`` is how far back to look; ``from_boot_ns`` and ``to_boot_ns`` are a window, for daemons that know it.
        """
        from . import _drawing, frames, v1, views

        pid = self._pid(pid)
        asked: dict[str, Any] = {"window_ns": window_ns, "intervals": intervals}
        window = {"from_boot_ns": from_boot_ns, "to_boot_ns": to_boot_ns}
        for name, value in window.items():
            if value is None:
                continue
            if name not in v1.FluctuationRequest.DESCRIPTOR.fields_by_name:
                raise ConfigError(
                    f"{name} is not known to this package's daemon", "window_ns=… looks back from the end"
                )
            asked[name] = value
        table = frames.timeline(self.daemon.fluctuation(pid, **asked))
        shown = (
            "device",
            "from",
            "to",
            "min_allocated_bytes",
            "max_allocated_bytes",
            "max_reserved_bytes",
            "allocs",
            "frees",
        )
        view = views.View(f"memory of process {pid}", table, shown=shown, draw=_drawing.timeline)
        view.step_ends = [row.to_boot_ns for row in self.daemon.steps(pid).rows]
        view.marks = [(one.time_boot_ns, one.name) for one in self.daemon.marks(pid).marks]
        return view


def _chosen(enum: Any, word: str, argument: str) -> Any:
    """The value of an enumeration by its word."""
    names = enum.keys()
    beginning = names[0][: -len("UNSPECIFIED")]
    if word == "unspecified" or beginning + word.upper() not in names:
        there = ", ".join(name[len(beginning) :].lower() for name in names[1:])
        raise ConfigError(f"{argument}={word!r} is not known", f"there is: {there}")
    return enum.Value(beginning + word.upper())
