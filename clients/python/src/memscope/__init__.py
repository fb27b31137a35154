"""Names moments of a program for memscope, and asks memscope about them.

::

    import memscope

    memscope.config(level="op", call_stack="python:50")
    memscope.start()                       # memscope follows this process from now on
    for batch in loader:
        with memscope.range("forward"):
            loss = model(batch)
        memscope.mark("before backward")
        loss.backward()
        memscope.step()
    memscope.take_snapshot(name="after training")
    memscope.stop()

Marks (`mark`, `range`, `step`) need nothing of the rest: they may stay in a program for good, and cost next to
nothing while nobody listens. `start`, `take_snapshot` and the analyses run memscope-ctl, which MEMSCOPE_CTL names or
which is on PATH. `memscope.watcher` tells which operator changed some memory; it needs torch. `memscope.client` asks a
daemon over gRPC, about any process; it needs grpcio and protobuf.
"""

from __future__ import annotations

from typing import Any

from . import describe, watcher
from ._analysis import (
    InefficientConfig,
    LeaksConfig,
    analyze,
    check_inefficient,
    check_leaks,
    get_analyzer_config,
    list_analyzers,
)
from ._answers import DeviceLeaks, InefficientBlock, InefficientReport, Leak, LeaksReport
from ._attach import start, stop
from ._config import config
from ._errors import (
    AnswerError,
    ConfigError,
    CtlError,
    CtlMissingError,
    DaemonError,
    LibraryError,
    MemscopeError,
    UnsupportedError,
)
from ._extras import ExtraMissingError
from ._marks import Range, mark, step
from ._snapshots import Snapshot, TakeSnapshot, take_snapshot
from .session import Session
from .session import open as open

#: Version of this package: that of memscope, whose commands it runs.
__version__ = "0.1.0"

range = Range

# Not `range` and `open`: `from memscope import *` would take Python's own away.
__all__ = [
    "AnswerError",
    "ConfigError",
    "CtlError",
    "CtlMissingError",
    "DaemonError",
    "DeviceLeaks",
    "ExtraMissingError",
    "InefficientBlock",
    "InefficientConfig",
    "InefficientReport",
    "Leak",
    "LeaksConfig",
    "LeaksReport",
    "LibraryError",
    "MemscopeError",
    "Range",
    "Session",
    "Snapshot",
    "TakeSnapshot",
    "UnsupportedError",
    "analyze",
    "check_inefficient",
    "check_leaks",
    "config",
    "describe",
    "get_analyzer_config",
    "list_analyzers",
    "mark",
    "start",
    "step",
    "stop",
    "take_snapshot",
    "watcher",
]

#: What msMemScope has and memscope has not, and what there is instead.
_ELSEWHERE = {
    "RecordFunction": "memscope.range(name) is a context manager and decorator, too",
    "cleanup_framework_hooks": "memscope needs no hooks in frameworks: there is nothing to clean up",
    "describer": "it is memscope.describe.describer",
    "enable_npu_sanitizer": "memscope.watcher tells which operator changed some memory",
    "init_framework_hooks": "memscope needs no hooks in frameworks: do without",
    "tracer": "memscope does not record calls of Python functions; memscope.range(name) marks some",
}


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext memscope``: there are ``%memscope`` and ``%%memscope`` from then on."""
    from . import _magic

    _magic.load(shell)


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        raise AttributeError(f"memscope has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module 'memscope' has no attribute {name!r}")
