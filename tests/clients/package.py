"""Asks a daemon with `memscope.client` what a dashboard asks, and what is refused. Prints one JSON document.

    python package.py SOCKET PID        PID: a process that is traced at level segments, and was late
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import __version__ as protobuf

import memscope
import memscope.client
from memscope import v1

socket, pid = sys.argv[1], int(sys.argv[2])


def refused(ask: Callable[[], object]) -> dict[str, Any]:
    """How a question is refused."""
    try:
        answer = ask()
    except memscope.DaemonError as error:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
        return {"error": told, "grpc": isinstance(error.__cause__, grpc.RpcError)}
    raise AssertionError(f"this was answered: {answer}")


def mistake(ask: Callable[[], object]) -> str:
    """What Python itself says of an argument."""
    try:
        ask()
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return "none"


# The socket is named by MEMSCOPE_SOCKET here, and by its path below.
with memscope.client.connect() as daemon, memscope.client.connect(socket, strict=True) as strict:
    added = daemon.add_trigger("reserved > 1GiB", pid=pid).trigger
    listed = [trigger.trigger for trigger in daemon.list_triggers().triggers]
    daemon.remove_trigger(added.trigger)
    left = [trigger.trigger for trigger in daemon.list_triggers().triggers]
    daemon.mark(pid, name="here")
    told = set()
    for _ in range(100):
        # The daemon knows of the reader once the method has returned; it is not a matter of luck.
        events = daemon.events(pid, kinds=["mark"], timeout=30)
        daemon.mark(pid, name="there")
        told.add(next(events).mark.name)
        events.close()
    # `from` is a word of Python.
    diff = daemon.diff(pid, from_=v1.Moment(mark="here"))
    answers = {
        "protobuf": protobuf,
        "default_socket": memscope.client.DEFAULT_SOCKET,
        "processes": [process.facts.pid for process in daemon.list().processes],
        "marks": sorted({mark.name for mark in daemon.marks(pid).marks}),
        "told": sorted(told),
        "diff": 0 < diff.from_unix_ns <= diff.to_unix_ns,
        "trigger": [added.trigger in listed, added.trigger in left],
        "exported": sum(len(chunk.content) for chunk in daemon.export(pid, format=v1.EXPORT_FORMAT_PERFETTO)),
        "driver": [[device.device, device.driver.bytes] for device in daemon.stats(pid).devices],
        "not_traced": refused(lambda: daemon.stats(1)),
        "not_exact": refused(lambda: strict.stats(pid)),
        "invalid": refused(lambda: daemon.add_trigger("whenever")),
        "stream": refused(lambda: list(daemon.snapshot(1))),
        "late": refused(lambda: list(daemon.events(pid, kinds=["oom"], timeout=0.2))),
        "nobody": refused(lambda: memscope.client.connect(socket + ".none")),
        "negative": mistake(lambda: daemon.stats(-1)),
        "unknown": mistake(lambda: daemon.stats(pid, depth=1)),  # type: ignore[call-arg]
    }
print(json.dumps(answers))
