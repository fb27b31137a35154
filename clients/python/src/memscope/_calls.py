"""A method for each of the daemon's calls. Made by `cargo xtask clients` from proto/memscope/v1; do not edit."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from . import v1
from ._connection import Connection
from .v1 import memscope_pb2_grpc
from .v1 import trigger_pb2_grpc


class Calls(Connection):
    """The calls. Each has the fields of its request as arguments; what is left out is not said."""

    def __init__(self, path: str, *, strict: bool) -> None:
        super().__init__(path, strict=strict)
        self._memscope = memscope_pb2_grpc.MemscopeStub(self.channel)
        self._triggers = trigger_pb2_grpc.TriggersStub(self.channel)

    def attach(
        self,
        pid: v1.PidScope | int | None = None,
        *,
        comm: str | None = None,
        cgroup: str | None = None,
        all: bool | None = None,
        level: v1.Level.ValueType | None = None,
        read_every_ns: int | None = None,
        stacks: v1.Stacks.ValueType | None = None,
        stack_depth: int | None = None,
        stack_sample_bytes: int | None = None,
        step_name: str | None = None,
        launches: bool | None = None,
        accesses: bool | None = None,
        kernels: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.AttachResponse:
        """Starts to trace processes; returns once the probes of those that run already are live.

        * pid: One process, by its process id; this makes no rule.
        * comm: Every process with this short name (at most 15 bytes, as in /proc/PID/comm).
        * cgroup: Every process in this control group or below it, a path beneath the cgroup root.
        * all: Every process that maps a device library; the value must be true.
        * level: Depth; unspecified means the richest.
        * read_every_ns: At level read: nanoseconds between two readings; absent or 0 reads when something is asked only.
        * stacks: Stacks of allocations; unspecified means Python's.
        * stack_depth: Most frames of a stack, of Python and of compiled code each, 1 to 1024; 0: 1024.
        * stack_sample_bytes: A stack is taken of one allocation in so many bytes, a power of two up to 2^31: an allocation of a share of that is taken with that probability. 0 and 1: of every allocation.
        * step_name: Marks with this name tell where a step ends; `*` stands for any text. Empty: what is found by itself.
        * launches: Kernel launches are counted: a trap for each.
        * accesses: It is followed which operators of PyTorch use which blocks: two traps for each operator.
        * kernels: Each launch of a kernel is an event with the kernel's name: a trap and a record for each. On CUDA only; elsewhere launches have no names.
        """
        return self._ask(
            self._memscope.Attach,
            v1.AttachRequest,
            {
                "pid": {"pid": pid} if isinstance(pid, int) else pid,
                "comm": comm,
                "cgroup": cgroup,
                "all": all,
                "level": level,
                "read_every_ns": read_every_ns,
                "stacks": stacks,
                "stack_depth": stack_depth,
                "stack_sample_bytes": stack_sample_bytes,
                "step_name": step_name,
                "launches": launches,
                "accesses": accesses,
                "kernels": kernels,
            },
            timeout,
        )

    def detach(
        self,
        pid: int | None = None,
        *,
        rule: int | None = None,
        all: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.DetachResponse:
        """Stops tracing processes, or ends a rule.

        * pid: One process, by its process id.
        * rule: One rule, by its number, with the processes that it attached.
        * all: Every rule and process of the caller (of everyone for root); the value must be true.
        """
        return self._ask(
            self._memscope.Detach,
            v1.DetachRequest,
            {
                "pid": pid,
                "rule": rule,
                "all": all,
            },
            timeout,
        )

    def list(
        self,
        *,
        timeout: float | None = 30.0,
    ) -> v1.ListResponse:
        """Lists the processes that the caller may see, ended ones until their retention is over."""
        return self._ask(
            self._memscope.List,
            v1.ListRequest,
            {
            },
            timeout,
        )

    def stats(
        self,
        pid: int,
        *,
        timeout: float | None = 30.0,
    ) -> v1.StatsResponse:
        """Answers what a process holds now, after every record made before the question was applied.

        * pid: Id of the process that is asked about, as the daemon sees it.
        """
        return self._ask(
            self._memscope.Stats,
            v1.StatsRequest,
            {
                "pid": pid,
            },
            timeout,
        )

    def devices(
        self,
        *,
        timeout: float | None = 30.0,
    ) -> v1.DevicesResponse:
        """Answers what all processes that the caller may see hold, by device, and how much of each device nobody explains."""
        return self._ask(
            self._memscope.Devices,
            v1.DevicesRequest,
            {
            },
            timeout,
        )

    def leaks(
        self,
        pid: int,
        *,
        min_age_ns: int | None = None,
        include_steady: bool | None = None,
        limit: int | None = None,
        sure_after_steps: int | None = None,
        holders: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.LeaksResponse:
        """Answers which live blocks keep growing in number.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * min_age_ns: Only blocks at least this old, nanoseconds.
        * include_steady: Also groups that do not grow.
        * limit: At most so many groups, largest growth first; 0 means all, up to 5,000 and to what an answer has room for.
        * sure_after_steps: Steps that a growth must have lasted before it is called one; 0 means 100.
        * holders: Also which Python objects keep the blocks of the growing groups alive. The process's objects are read for that, where something grows.
        """
        return self._ask(
            self._memscope.Leaks,
            v1.LeaksRequest,
            {
                "pid": pid,
                "min_age_ns": min_age_ns,
                "include_steady": include_steady,
                "limit": limit,
                "sure_after_steps": sure_after_steps,
                "holders": holders,
            },
            timeout,
        )

    def fluctuation(
        self,
        pid: int,
        *,
        window_ns: int | None = None,
        intervals: int | None = None,
        from_boot_ns: int | None = None,
        to_boot_ns: int | None = None,
        from_: v1.Moment | None = None,
        to: v1.Moment | None = None,
        timeout: float | None = 30.0,
    ) -> v1.FluctuationResponse:
        """Answers how the pools of a process breathed over a window of time.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * window_ns: How far back to look, nanoseconds; 0 means all that is kept.
        * intervals: Into how many intervals to cut it at most, 10,000 or fewer; 0 means 20. They begin and end where the course that is kept has its buckets: half a second wide for the last four minutes, else a 512th of the time that was watched. With a window that is given by its two ends the intervals cover that window exactly, and all of them are equally wide.
        * from_boot_ns: Beginning of the window, boot-time nanoseconds. Without it (and without `from`) the window is `window_ns`.
        * to_boot_ns: End of the window, boot-time nanoseconds; if it is not there, the moment of the answer. What lies behind the moment of the answer is left out.
        * from_: The same as moments, of which an event, a step or a mark is one, too. They count where the numbers above are not there.
        * to: 
        """
        return self._ask(
            self._memscope.Fluctuation,
            v1.FluctuationRequest,
            {
                "pid": pid,
                "window_ns": window_ns,
                "intervals": intervals,
                "from_boot_ns": from_boot_ns,
                "to_boot_ns": to_boot_ns,
                "from": from_,
                "to": to,
            },
            timeout,
        )

    def steps(
        self,
        pid: int,
        *,
        limit: int | None = None,
        survivors: int | None = None,
        every: int | None = None,
        timeout: float | None = 30.0,
    ) -> v1.StepsResponse:
        """Answers which steps a process had, and how far memory went in each.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * limit: At most so many rows, the last ones; 0 means all that are kept.
        * survivors: Also the blocks that outlived their step, at most so many, the first ones.
        * every: So many steps make a row; 0 means one.
        """
        return self._ask(
            self._memscope.Steps,
            v1.StepsRequest,
            {
                "pid": pid,
                "limit": limit,
                "survivors": survivors,
                "every": every,
            },
            timeout,
        )

    def mark(
        self,
        pid: int,
        *,
        name: str | None = None,
        step: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.MarkResponse:
        """Names the present moment of a process.

        * pid: Id of the process whose moment is named, as the daemon sees it.
        * name: The name, at most 128 bytes.
        * step: A step of the process ends with it, and the next one begins.
        """
        return self._ask(
            self._memscope.Mark,
            v1.MarkRequest,
            {
                "pid": pid,
                "name": name,
                "step": step,
            },
            timeout,
        )

    def marks(
        self,
        pid: int,
        *,
        limit: int | None = None,
        include_framework: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.MarksResponse:
        """Answers which moments of a process have a name.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * limit: At most so many, the last ones; 0: all that are kept.
        * include_framework: Also those that PyTorch makes by itself.
        """
        return self._ask(
            self._memscope.Marks,
            v1.MarksRequest,
            {
                "pid": pid,
                "limit": limit,
                "include_framework": include_framework,
            },
            timeout,
        )

    def snapshot(
        self,
        pid: int,
        *,
        at: v1.Moment | None = None,
        stacks: bool | None = None,
        timeout: float | None = None,
    ) -> Generator[v1.SnapshotPart, None, None]:
        """Streams the segments, blocks and trace of a process: a header, segments, stacks if asked for, trace, an end.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * at: The moment to describe; now, if it is not there.
        * stacks: Also the stacks that the blocks come from.
        """
        return self._listen(
            self._memscope.Snapshot,
            v1.SnapshotRequest,
            {
                "pid": pid,
                "at": at,
                "stacks": stacks,
            },
            timeout,
        )

    def stacks(
        self,
        pid: int,
        *,
        at: v1.Moment | None = None,
        from_: v1.Moment | None = None,
        view: v1.StackView | None = None,
        by: v1.StackGrouping.ValueType | None = None,
        cumulative: bool | None = None,
        limit: int | None = None,
        timeout: float | None = 30.0,
    ) -> v1.StacksResponse:
        """Answers whose memory it is: by stack, function, file or line.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * at: The moment to describe; now, if it is not there.
        * from_: An earlier moment to compare with; growth needs one.
        * view: What is shown; live bytes of all devices, if it is not there.
        * by: By what stacks are summed up.
        * cumulative: Sums in order of `total`, the stacks that they are anywhere in; else of `own`.
        * limit: At most so many rows; 0: as many as an answer takes (3 MiB).
        """
        return self._ask(
            self._memscope.Stacks,
            v1.StacksRequest,
            {
                "pid": pid,
                "at": at,
                "from": from_,
                "view": view,
                "by": by,
                "cumulative": cumulative,
                "limit": limit,
            },
            timeout,
        )

    def export(
        self,
        pid: int,
        *,
        format: v1.ExportFormat.ValueType | None = None,
        at: v1.Moment | None = None,
        from_: v1.Moment | None = None,
        view: v1.StackView | None = None,
        differential: bool | None = None,
        timeout: float | None = None,
    ) -> Generator[v1.ExportChunk, None, None]:
        """Streams a snapshot, or the stacks, as the bytes of a file that another tool reads.

        * pid: Id of the process that the file is to describe, as the daemon sees it.
        * format: Format of the file.
        * at: The moment to describe; now, if it is not there.
        * from_: Stacks: an earlier moment to compare with.
        * view: Stacks: what is shown; live bytes of all devices, if it is not there.
        * differential: Flame graph and folded text: what is live, and what changed since `from`. The metric is not used.
        """
        return self._listen(
            self._memscope.Export,
            v1.ExportRequest,
            {
                "pid": pid,
                "format": format,
                "at": at,
                "from": from_,
                "view": view,
                "differential": differential,
            },
            timeout,
        )

    def record(
        self,
        *,
        timeout: float | None = None,
    ) -> Generator[v1.ExportChunk, None, None]:
        """Streams all that the journal has up to now as one file, which is a recording. Of all processes, so for root."""
        return self._listen(
            self._memscope.Record,
            v1.RecordRequest,
            {
            },
            timeout,
        )

    def diff(
        self,
        pid: int,
        *,
        from_: v1.Moment | None = None,
        to: v1.Moment | None = None,
        timeout: float | None = 30.0,
    ) -> v1.DiffResponse:
        """Answers what came and what went between two moments of a process.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * from_: The first moment.
        * to: The second; now, if it is not there.
        """
        return self._ask(
            self._memscope.Diff,
            v1.DiffRequest,
            {
                "pid": pid,
                "from": from_,
                "to": to,
            },
            timeout,
        )

    def pool(
        self,
        pid: int,
        *,
        at: v1.Moment | None = None,
        from_: v1.Moment | None = None,
        timeout: float | None = 30.0,
    ) -> v1.PoolResponse:
        """Answers how the memory of a process is divided: sizes, ages, pools, fragmentation.

        * pid: Id of the process that is asked about, as the daemon sees it.
        * at: The moment; now, if it is not there.
        * from_: An earlier one to compare with.
        """
        return self._ask(
            self._memscope.Pool,
            v1.PoolRequest,
            {
                "pid": pid,
                "at": at,
                "from": from_,
            },
            timeout,
        )

    def holders(
        self,
        pid: int,
        *,
        addresses: Iterable[int] | None = None,
        limit: int | None = None,
        alike: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.HoldersResponse:
        """Answers which Python objects keep the memory of a process alive.

        * pid: Process that is asked about.
        * addresses: Only what holds the blocks in which these addresses lie; none for all blocks.
        * limit: Most holders that are answered; 0 for all.
        * alike: With addresses: also what holds all other blocks of the same size that the same stack allocated.
        """
        return self._ask(
            self._memscope.Holders,
            v1.HoldersRequest,
            {
                "pid": pid,
                "addresses": addresses,
                "limit": limit,
                "alike": alike,
            },
            timeout,
        )

    def owners(
        self,
        pid: int,
        *,
        addresses: Iterable[int] | None = None,
        limit: int | None = None,
        rule_set: str | None = None,
        rules: str | None = None,
        below: str | None = None,
        at: v1.Moment | None = None,
        blocks: bool | None = None,
        timeout: float | None = 30.0,
    ) -> v1.OwnersResponse:
        """Answers what the memory of a process is for: weights, gradients, optimizer state, activations and so on.

        * pid: Process that is asked about.
        * addresses: Blocks to explain: those in which these addresses lie.
        * limit: Most rows that are answered, those with most bytes first; 0 for all that fit into an answer.
        * rule_set: Which set of rules: `memscope` (if empty), `torchtitan`, `mosaic` or `msmemscope`.
        * rules: Rules of one's own, as the text of a TOML file, which are tried before those of the set. Empty for none.
        * below: Only rows whose name is this one or below it, as a part of a module's name: `layers.3`. Empty for all.
        * at: The moment that is asked about; now, if it is not there. Python's objects are read now in any case: what is still there is for what they say, and what has been freed since is for what rules say of its stack and of the threads that allocated and freed it, or else in the category `freed_since`.
        * blocks: Tell with each use the addresses of all its blocks.
        """
        return self._ask(
            self._memscope.Owners,
            v1.OwnersRequest,
            {
                "pid": pid,
                "addresses": addresses,
                "limit": limit,
                "rule_set": rule_set,
                "rules": rules,
                "below": below,
                "at": at,
                "blocks": blocks,
            },
            timeout,
        )

    def events(
        self,
        pid: int | None = None,
        *,
        kinds: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> Generator[v1.Event, None, None]:
        """Streams events as they happen; a reader that is too slow misses some and is told how many.

        * pid: Only events of this process.
        * kinds: Only events of these kinds: names of the fields of `Event.body`, as `finding`. None: all. Others are not sent, and do not count as missed. Marks that PyTorch makes by itself (steps of optimizers, backward passes) are asked for as `framework_mark`, apart from the others.
        """
        return self._listen(
            self._memscope.Events,
            v1.EventsRequest,
            {
                "pid": pid,
                "kinds": kinds,
            },
            timeout,
        )

    def status(
        self,
        *,
        timeout: float | None = 30.0,
    ) -> v1.StatusResponse:
        """Answers how the daemon itself does."""
        return self._ask(
            self._memscope.Status,
            v1.StatusRequest,
            {
            },
            timeout,
        )

    def add_trigger(
        self,
        when: str,
        *,
        pid: int | None = None,
        timeout: float | None = 30.0,
    ) -> v1.AddTriggerResponse:
        """Adds a trigger; the same one is not added twice.

        * when: When to take a snapshot: `oom`, `allocated > BYTES`, `reserved > BYTES`, `fragmentation > SHARE [with reserved > BYTES]` or `growth > BYTES in DURATION`, and after each of them perhaps `on device N`.
        * pid: Only for this process, which must be traced; for every traced process of the caller (of everyone for root) if it is not there.
        """
        return self._ask(
            self._triggers.AddTrigger,
            v1.AddTriggerRequest,
            {
                "when": when,
                "pid": pid,
            },
            timeout,
        )

    def remove_trigger(
        self,
        trigger: int,
        *,
        timeout: float | None = 30.0,
    ) -> v1.RemoveTriggerResponse:
        """Removes a trigger; the snapshots that it took are kept.

        * trigger: Number of the trigger, as the list of triggers has it.
        """
        return self._ask(
            self._triggers.RemoveTrigger,
            v1.RemoveTriggerRequest,
            {
                "trigger": trigger,
            },
            timeout,
        )

    def list_triggers(
        self,
        *,
        timeout: float | None = 30.0,
    ) -> v1.ListTriggersResponse:
        """Lists the triggers that the caller may see."""
        return self._ask(
            self._triggers.ListTriggers,
            v1.ListTriggersRequest,
            {
            },
            timeout,
        )

    def list_kept(
        self,
        pid: int | None = None,
        *,
        timeout: float | None = 30.0,
    ) -> v1.ListKeptResponse:
        """Lists the snapshots that triggers took, that are kept, and that the caller may see.

        * pid: Only those of this process id.
        """
        return self._ask(
            self._triggers.ListKept,
            v1.ListKeptRequest,
            {
                "pid": pid,
            },
            timeout,
        )

    def get_kept(
        self,
        snapshot: int,
        *,
        timeout: float | None = None,
    ) -> Generator[v1.ExportChunk, None, None]:
        """Streams the file of such a snapshot as it is kept.

        * snapshot: Number of the snapshot, as the list of kept snapshots has it.
        """
        return self._listen(
            self._triggers.GetKept,
            v1.GetKeptRequest,
            {
                "snapshot": snapshot,
            },
            timeout,
        )
