"""Snapshots of what the process holds, each with a mark where it was taken."""

from __future__ import annotations

import itertools
import os
import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Sequence, Union

from . import _config, _ctl, _marks
from ._around import F, around
from ._errors import AnswerError, MemscopeError
from ._formats import FORMATS

DeviceMask = Union[int, Sequence[int], None]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was written."""

    #: Name of the mark at the moment.
    name: str
    #: The file.
    path: Path
    #: Its size in bytes.
    bytes: int
    #: The devices that were asked for; None: all. The file has all devices of the process in either case.
    devices: tuple[int, ...] | None


def _devices(mask: DeviceMask) -> tuple[int, ...] | None:
    if mask is None:
        return None
    ordinals = (mask,) if isinstance(mask, int) else mask
    if not isinstance(ordinals, (list, tuple)) or not all(
        isinstance(one, int) and not isinstance(one, bool) for one in ordinals
    ):
        raise TypeError(
            f"device_mask is None, a device's number, or a list or tuple of such, not {mask!r}"
        )
    if not ordinals or any(one < 0 for one in ordinals):
        raise ValueError(f"device_mask has no device, or a negative one: {mask!r}")
    return tuple(ordinals)


def _file(name: str, wishes: _config.Wishes, form: str) -> Path:
    folder = Path(wishes.output_path or _config.OUTPUT_PATH)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemscopeError(
            f"the folder {folder} for snapshots cannot be made: {error.strerror}",
            "name another: memscope.config(output_path=...)",
        ) from error
    word = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "snapshot"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = next(_numbers)
    return folder / f"{stamp}-pid-{os.getpid()}-{number:06}-{word}{FORMATS[form]}"


def take_snapshot(device_mask: DeviceMask = None, name: str = "Memory Snapshot") -> Snapshot:
    """Marks this moment with ``name`` and writes a snapshot of what the process holds to a file.

    memscope must be following the process (`start`). The file lies in `config`'s ``output_path``. It has all
    devices of the process: ``device_mask`` (None, a number, or a list or tuple of them) is checked and handed back,
    for those who read the file.

    Raises TypeError or ValueError for a mask that is none, `MemscopeError` if the folder cannot be made,
    `CtlMissingError` and `CtlError` as `start` does.
    """
    devices = _devices(device_mask)
    wishes = _config.wishes()
    form = wishes.format or "memory-viz"
    _marks.mark(name)
    path = _file(name, wishes, form)
    answer = _ctl.ask(
        "snapshot",
        *("--pid", str(os.getpid()), "--format", form, f"--output={path}"),
        seconds=_ctl.DAEMON_SECONDS,
    )
    size = answer.get("bytes")
    if not isinstance(size, int):
        raise AnswerError(
            "memscope-ctl snapshot did not say how large the file is",
            "is it older than this package? memscope-ctl --version",
        )
    return Snapshot(name, path, size, devices)


class TakeSnapshot:
    """Two snapshots, "<name> Start" and "<name> End", around a block or around each call of a function.

    A context manager and a decorator; of generators and ``async`` functions as `memscope.range` says. After a block
    ``start`` and ``end`` are what was taken. If the block raises, its error is what is seen: where the second snapshot then fails
    as well, there is only a warning of that.
    """

    def __init__(self, device_mask: DeviceMask = None, name: str = "Memory Snapshot") -> None:
        # Before the function that is decorated is ever called.
        _devices(device_mask)
        _marks.encoded(name)
        self.device_mask = device_mask
        self.name = name
        self.start: Snapshot | None = None
        self.end: Snapshot | None = None

    def __enter__(self) -> TakeSnapshot:
        self.start = take_snapshot(self.device_mask, f"{self.name} Start")
        self.end = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.end = take_snapshot(self.device_mask, f"{self.name} End")
        except MemscopeError as failure:
            if error is None:
                raise
            warnings.warn(f"no snapshot {self.name} End: {failure}", stacklevel=2)

    def __call__(self, function: F) -> F:
        return around(function, lambda: TakeSnapshot(self.device_mask, self.name))
