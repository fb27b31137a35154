"""Marks: moments, ranges and steps."""

from __future__ import annotations

import threading
from types import TracebackType

from . import _library
from ._around import F, around

_NUL = "␀".encode()


def encoded(name: str) -> bytes:
    """A name as the library takes it: UTF-8, and without NUL, which would end it.

    A NUL is shown as U+2400, and half of a surrogate pair, which no UTF-8 has, as a question mark.
    """
    try:
        name_bytes = name.encode()
    except UnicodeEncodeError:
        name_bytes = name.encode("utf-8", "replace")
    except AttributeError:
        name_bytes = None
    if not isinstance(name_bytes, bytes):
        raise TypeError(f"a mark's name is a str, as 'forward' is, not {type(name).__name__}")
    return name_bytes.replace(b"\0", _NUL) if "\0" in name else name_bytes


def mark(name: str) -> None:
    """Names this moment.

    Readers take the first 128 bytes of the name's UTF-8. While nobody listens, nothing happens.
    """
    _library.current.mark(encoded(name))


class Range:
    """A range with a name, ``memscope.range(name)``: a context manager, or a decorator.

    As a context manager it may be used again once it has ended. As a decorator it makes a range for each call:

    * of a function, from its call until it returns or raises;
    * of an ``async`` function, from when it is first awaited until it ends; what else the thread does while it
      waits lies inside the range, too;
    * of a generator, ``async`` or not, from when its first item is asked for until it is exhausted, raises, or
      is closed; what its user does with the items lies inside the range, too.

    So ranges may overlap without being nested, and may end in another thread than they began in: each has a
    number of its own, by which its end is known.
    """

    __slots__ = ("name", "_encoded", "_number")

    def __init__(self, name: str) -> None:
        self._encoded = encoded(name)
        self.name = name
        self._number = 0

    def __repr__(self) -> str:
        return f"memscope.range({self.name!r})"

    def __enter__(self) -> Range:
        if self._number:
            raise RuntimeError(
                f"the range {self.name!r} has begun and not ended; "
                "make one for each use: with memscope.range(name)"
            )
        self._number = _library.current.range_begin(self._encoded)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        number, self._number = self._number, 0
        # 0 would end a range that somebody else has begun.
        if number:
            _library.current.range_end(number)

    def __call__(self, function: F) -> F:
        return around(function, lambda: Range(self.name))


_steps = 0
_steps_lock = threading.Lock()


def step() -> int:
    """Ends a step and begins the next one; returns the number of the one that ended.

    The first call ends step 1, which is everything before it, and begins step 2.
    """
    global _steps
    # The numbers are those of the marks only if nobody else makes one in between.
    with _steps_lock:
        _library.current.step()
        _steps += 1
        return _steps
