"""``%memscope`` and ``%%memscope`` of IPython, in notebooks and in a terminal: the memory of the kernel's own process."""

from __future__ import annotations

import linecache
import os
from typing import Any

from . import _attach
from ._errors import ConfigError, DaemonError, MemscopeError
from ._extras import need
from .session import Session
from .session import open as open_session

HELP = """%memscope            what this process holds now, by line
%memscope VIEW       one of: stats, stacks, timeline, steps, leaks, owners, blocks, segments, events, marks
%memscope stop       memscope follows this process no longer
%%memscope           in the first line of a cell: what came and went while it runs, and the peak, by line of the cell"""

_VIEWS = ("stats", "stacks", "timeline", "steps", "leaks", "owners", "blocks", "segments", "events", "marks")


class MagicError(MemscopeError):
    """What went wrong, which IPython shows without the path through this package."""

    def _render_traceback_(self) -> list[str]:
        return [f"memscope: {self}"]


def load(shell: Any) -> None:
    """Gives a shell of IPython the magics."""
    magic = _Magic(shell)
    shell.register_magic_function(magic.run, magic_kind="line_cell", magic_name="memscope")


class _Magic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._session: Session | None = None
        #: The files of the cells that were measured, as Python calls them.
        self._measured: set[str] = set()

    def run(self, line: str, cell: str | None = None) -> Any:
        """The magic; IPython shows its help by ``%memscope?``."""
        try:
            return self._cell(line, cell) if cell is not None else self._line(line.strip())
        except MagicError:
            raise
        except MemscopeError as error:
            raise MagicError(error.message, error.hint) from error

    run.__doc__ = HELP

    def _line(self, word: str) -> Any:
        if word == "help":
            print(HELP)
            return None
        if word == "stop":
            _attach.stop()
            return None
        if word and word not in _VIEWS:
            raise ConfigError(f"%memscope {word} is not known", f"write one of these:\n{HELP}")
        session, pid = self._followed(), os.getpid()
        if word:
            return getattr(session, word)(pid)
        from . import _cell

        stats = session.daemon.stats(pid)
        view = _cell.by_own_line(session, pid)
        view.summary += tuple(
            f"device {one.device}: {one.allocated_bytes:,} bytes allocated, {one.reserved_bytes:,} reserved, "
            f"{_most(one)}"
            for one in stats.devices
            if one.HasField("device") and one.HasField("allocated_bytes") and one.HasField("reserved_bytes")
        ) or ("no memory of a device is known of this process so far",)
        return view

    def _followed(self) -> Session:
        """The session of this process, which memscope follows from now on if it did not yet."""
        if self._session is None:
            self._session = open_session()
        pid = os.getpid()
        try:
            from . import v1

            if self._session.daemon.stats(pid).process.state == v1.PROCESS_STATE_ATTACHED:
                return self._session
        except DaemonError as error:
            if error.code != "not_traced":
                # The daemon may have been started anew, at another place.
                self._session.close()
                self._session = None
                raise
        _attach.start()
        return self._session

    def _cell(self, line: str, cell: str) -> Any:
        if line.strip():
            raise ConfigError(f"%%memscope {line.strip()} is not known", f"write one of these:\n{HELP}")
        from . import _cell

        shell = self._shell
        measured = _cell.Measured(self._followed(), os.getpid())
        number = shell.execution_count
        transformed = shell.transform_cell(cell)
        file = shell.compile.get_code_name(cell, transformed, number)
        # IPython may have run the cell before, also without this.
        has_run = file in self._measured or file in linecache.cache
        self._measured.add(file)
        try:
            result = shell.run_cell(cell)
        except BaseException:
            measured.give_up()
            raise
        lines = _lines(cell, transformed)
        view = measured.end(f"cell {number}", file, has_run, lambda at: lines[at - 1] if at <= len(lines) else "")
        if not result.success:
            # The picture of what it did until then comes before the error.
            need("IPython.display", "%%memscope").display(view)
            failure = result.error_before_exec or result.error_in_exec
            raise MagicError(f"the cell ended with {type(failure).__name__}") from failure
        return view


def _most(device: Any) -> str:
    """The peak of a device, which is not known where the time of it was not seen."""
    if not device.HasField("peak_allocated_bytes"):
        return "the most since the attach is not known"
    return f"most {device.peak_allocated_bytes:,} allocated since the attach"


def _lines(cell: str, transformed: str) -> list[str]:
    """The lines of a cell as Python numbers them. IPython compiles it without the empty lines that it begins with, and with one
    line for a magic that is continued over several."""
    lines = cell.splitlines()
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    compiled = transformed.splitlines()
    # A magic is better shown as it was typed, which it can be as long as each line is still one.
    return lines[first:] if len(lines) - first == len(compiled) else compiled
