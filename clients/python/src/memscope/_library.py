"""The mark library, loaded when the first mark is made.

``ctypes.PyDLL`` keeps the interpreter's lock for the call. The functions do nothing, so that giving the lock away
and getting it back would be most of what a mark costs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Callable

from ._errors import LibraryError

FILE = "libmemscope_mark.so"


def path() -> Path:
    """Where the library is: MEMSCOPE_MARK_LIBRARY names it, else it is beside this module."""
    named = os.environ.get("MEMSCOPE_MARK_LIBRARY")
    return Path(named) if named else Path(__file__).with_name(FILE)


class Library:
    """The library's functions. Names are bytes of UTF-8 without NUL."""

    mark: Callable[[bytes], None]
    range_begin: Callable[[bytes], int]
    range_end: Callable[[int], None]
    step: Callable[[], None]
    checksum: Callable[[bytes, int], int]

    def __init__(self, where: Path) -> None:
        # With a slash in it the linker looks nowhere else.
        file = str(where if where.is_absolute() else Path.cwd() / where)
        try:
            loaded = ctypes.PyDLL(file)
        except OSError as error:
            raise LibraryError(
                f"the mark library cannot be loaded: {error}",
                "install the package again (pip install ./clients/python), or name a built "
                f"{FILE} with MEMSCOPE_MARK_LIBRARY",
            ) from error
        try:
            mark, begin = loaded.memscope_mark, loaded.memscope_range_begin
            end, step = loaded.memscope_range_end, loaded.memscope_step
            checksum = loaded.memscope_checksum
        except AttributeError as error:
            raise LibraryError(
                f"{file} is no mark library of memscope: {error}",
                f"name another {FILE} with MEMSCOPE_MARK_LIBRARY, or unset it",
            ) from error
        # One argument is four times as fast as the four of memscope_event, which is called by all of these.
        mark.argtypes, mark.restype = [ctypes.c_char_p], None
        begin.argtypes, begin.restype = [ctypes.c_char_p], ctypes.c_uint64
        end.argtypes, end.restype = [ctypes.c_uint64], None
        step.argtypes, step.restype = [], None
        checksum.argtypes, checksum.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
        self.mark, self.range_begin, self.range_end, self.step = mark, begin, end, step
        self.checksum = checksum


class Unloaded(Library):
    """Stands for the library until it is needed, and puts it in its own place."""

    def __init__(self) -> None:
        self.mark = lambda name: load().mark(name)
        self.range_begin = lambda name: load().range_begin(name)
        self.range_end = lambda number: load().range_end(number)
        self.step = lambda: load().step()
        self.checksum = lambda data, length: load().checksum(data, length)


def load() -> Library:
    """Loads the library, which is used from then on."""
    global current
    current = Library(path())
    return current


def be_ready() -> None:
    """Loads the library if it is there and was not needed yet."""
    if isinstance(current, Unloaded):
        # Where it cannot be loaded, the first mark says why.
        with contextlib.suppress(LibraryError):
            load()


current: Library = Unloaded()
