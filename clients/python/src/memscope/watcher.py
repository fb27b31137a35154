"""Watches the contents of memory: which operator changed them, and whether it said that it would.

::

    from memscope import watcher

    watcher.watch(model.embedding.weight, name="embedding")
    train()
    for change in watcher.changes():
        print(change)
    watcher.remove(model.embedding.weight)

While something is watched, its check sum is taken before and after each operator that PyTorch's dispatcher runs for the
thread that called `watch`, and for the backward passes that this thread begins. Before each check sum the device
finishes its work, and the memory is copied to the host: this is for finding a fault, and slow.

A change is *declared* where the operator's schema says that it writes to an argument that lies there, or where its
result lies there. A change that is not declared is what one looks for: the operator wrote beyond what it was given. It
is told by a `CorruptionWarning`, and by a mark that memscope shows in the process's timeline. What changes between two
operators was written by something else: another thread, a compiled function, a kernel that was launched without the
dispatcher.

Each check sum is also a line of a file, as msMemScope writes them (``watch_dump_data_check_sum_*.csv``), in `config`'s
``output_path``.
"""

from __future__ import annotations

import collections
import ctypes
import os
import re
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

from . import _config, _library, _marks
from ._errors import ConfigError, MemscopeError

if TYPE_CHECKING:
    from torch import Tensor  # type: ignore[import-not-found,unused-ignore]

__all__ = ["Change", "CorruptionWarning", "changes", "dropped", "remove", "watch"]

#: Changes that are kept; of more, the oldest go.
MOST_CHANGES = 10_000
#: Bytes of memory that one watch takes in.
MOST_BYTES = 1 << 30
#: msMemScope's word for what nobody gave a name, as it spells it.
UNNAMED = "UNKNWON"
#: aclrtMemcpyKind.
ACL_DEVICE_TO_HOST = 2


class CorruptionWarning(UserWarning):
    """An operator changed memory that, by its schema, it does not write to; or something outside of all operators."""


@dataclass(frozen=True)
class Change:
    """The contents of something that is watched have changed."""

    #: The watch's name.
    name: str
    #: The operator that ran meanwhile, as ``aten.add_.Tensor``; None: none did, it was between two of them.
    operator: str | None
    #: The operators between which it was, where `operator` is None; the first is None at the beginning of the watch.
    between: tuple[str | None, str] | None
    #: Number of the operator since the watch began, from 1 on; of a change between two, the second one's.
    number: int
    #: The kernel's number of the thread that ran the operator.
    thread: int
    #: The line of the program that called it, ``train.py:18 in step``; None: Python was not involved, as in a backward
    #: pass.
    line: str | None
    #: The operator's schema says that it writes there, or its result lies there.
    declared: bool
    #: The check sum before, 16 digits.
    before: str
    #: The check sum after, 16 digits.
    after: str

    def __str__(self) -> str:
        who = self.operator or f"something between {self.between and self.between[0]} and {self.between and self.between[1]}"
        how = "changed" if self.declared else "changed, without saying so,"
        return f"{who} (number {self.number}) {how} {self.name}: {self.before} to {self.after}" + (
            f", from {self.line}" if self.line else ""
        )


class _Watch:
    """Some memory, and what its contents were."""

    def __init__(self, name: str, device: Any, length: int, most: int | None, full: bool) -> None:
        self.name = name
        self.device = device
        self.length = length
        #: Operators after which the watch ends; None: it does not.
        self.most = most
        self.full = full
        #: Which of an operator's outputs it is, and the operator after which the watch ends; None: not of `config`.
        self.output = 0
        self.until: str | None = None
        self.operators = 0
        self.sum: str | None = None
        self.last: str | None = None

    def place(self) -> tuple[int, Any] | None:
        """The address now, and what keeps the memory while that is used; None: the memory is gone."""
        raise NotImplementedError

    def bytes(self, torch: Any) -> bytes | None:
        """The contents now; None: the memory is gone."""
        raise NotImplementedError


def _extent(tensor: Tensor) -> int:
    """Bytes from the first to the last element, whatever the strides are."""
    if tensor.numel() == 0:
        return 0
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))
    return int((last + 1) * tensor.element_size())


class _TensorWatch(_Watch):
    """Of a tensor: it is not kept alive, and what its storage is resized to is followed."""

    def __init__(self, tensor: Tensor, name: str, most: int | None, full: bool) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef  # type: ignore[import-not-found,unused-ignore]

        super().__init__(name, tensor.device, _extent(tensor), most, full)
        self.offset = tensor.storage_offset() * tensor.element_size()
        self.reference = StorageWeakRef(tensor.untyped_storage())

    def _storage(self) -> Any:
        import torch  # type: ignore[import-not-found,unused-ignore]

        if self.reference.expired():
            return None
        storage = torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata)
        if storage is None or storage.nbytes() < self.offset + self.length:
            return None
        return storage

    def place(self) -> tuple[int, Any] | None:
        storage = self._storage()
        return storage and (storage.data_ptr() + self.offset, storage)

    def bytes(self, torch: Any) -> bytes | None:
        storage = self._storage()
        if storage is None:
            return None
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        part = whole[self.offset : self.offset + self.length].cpu()
        return ctypes.string_at(part.data_ptr(), self.length)


class _AddressWatch(_Watch):
    """Of an address: whoever has it from the allocator may give it back, and then something else lies there."""

    def __init__(self, address: int, device: Any, length: int, name: str, most: int | None, full: bool) -> None:
        super().__init__(name, device, length, most, full)
        self.address = address

    def place(self) -> tuple[int, Any] | None:
        return self.address, None

    def bytes(self, torch: Any) -> bytes | None:
        if self.device.type == "cpu":
            return ctypes.string_at(self.address, self.length)
        if self.device.type == "npu":
            return _copied_by_acl(self.address, self.length)
        storage = torch._C._construct_storage_from_data_pointer(self.address, self.device, self.length)
        part = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage).cpu()
        return ctypes.string_at(part.data_ptr(), self.length)


def _copied_by_acl(address: int, length: int) -> bytes:
    copy = ctypes.CDLL("libascendcl.so").aclrtMemcpy
    copy.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    host = ctypes.create_string_buffer(length)
    code = copy(host, length, address, length, ACL_DEVICE_TO_HOST)
    if code != 0:
        raise MemscopeError(
            f"{length} bytes at {address:#x} of the NPU cannot be read: aclrtMemcpy gives {code}",
            "is the address one of the device's, and was it given back?",
        )
    return host.raw


class _Files:
    """The files of check sums, one for each device, made when there is something to write."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.stamp = ""
        self.files: dict[int, Path] = {}

    def write(self, watch: _Watch, operator: str, when: str, total: str, data: Any) -> None:
        if self.folder is None:
            self.stamp = time.strftime("%Y%m%d%H%M%S")
            base = Path(_config.wishes().output_path or _config.OUTPUT_PATH)
            self.folder = base / f"msmemscope_{os.getpid()}_{self.stamp}_ascend"
        device = watch.device.index or 0
        where = self.folder / f"device_{device}" / "watch_dump"
        tensor = f"{device}_{threading.get_native_id()}/{operator}_{watch.operators}-{watch.name}_{watch.output}_{when}.bin"
        try:
            if device not in self.files:
                where.mkdir(parents=True, exist_ok=True)
                file = where / f"watch_dump_data_check_sum_{self.stamp}.csv"
                file.write_text("Tensor info,Check data sum\n")
                self.files[device] = file
            with self.files[device].open("a") as lines:
                lines.write(f"{tensor},{total}\n")
            if watch.full:
                (where / tensor.replace("/", ".")).write_bytes(data)
        except OSError as error:
            raise MemscopeError(
                f"a check sum cannot be written to {error.filename or where}: {error.strerror}",
                "name another folder: memscope.config(output_path=...)",
            ) from error


_lock = threading.RLock()
_watches: list[_Watch] = []
_changes: collections.deque[Change] = collections.deque(maxlen=MOST_CHANGES)
_dropped = 0
#: What `config` said is to be watched between two operators.
_between: _config.Between | None = None
_files = _Files()
_modes = threading.local()


def _torch() -> Any:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MemscopeError("there is no PyTorch to watch with", "install torch") from error
    return torch


def watch(
    what: Union[Tensor, int],
    *,
    length: int | None = None,
    name: str | None = None,
    dump_nums: int | None = None,
    device: Any = None,
    full_content: bool = False,
) -> None:
    """Watches a tensor's memory, or ``length`` bytes at an address.

    ``name`` is what changes are told by; ``dump_nums`` ends the watch after so many operators; ``full_content`` writes the
    contents themselves beside the check sums. ``device`` is the address's, as ``"cuda:1"``; if nothing is said, the
    current device of the accelerator that there is. A tensor is not kept alive, and its watch ends with its memory.

    Raises TypeError or `ConfigError` for arguments that make no sense, `MemscopeError` where the memory cannot be read
    or the files cannot be written, or where this thread is inside a dispatch mode of somebody else.
    """
    torch = _torch()
    name = UNNAMED if name is None else name
    if not isinstance(name, str) or not name or re.search(r"[\s,/\0]", name):
        raise ConfigError(f"name={name!r} is no name", "leave out spaces, commas and slashes")
    if dump_nums is not None and (not isinstance(dump_nums, int) or dump_nums < 1):
        raise ConfigError(f"dump_nums={dump_nums!r} is no number of operators", "say 1 or more, or leave it out")
    new: _Watch
    if isinstance(what, torch.Tensor):
        if length is not None or device is not None:
            raise ConfigError("a tensor's length and device are its own", "leave length and device out")
        new = _TensorWatch(what, name, dump_nums, full_content)
    elif isinstance(what, int) and not isinstance(what, bool):
        if length is None:
            raise ConfigError("of an address the length is needed", "watch(address, length=4096)")
        if not isinstance(length, int) or length < 1 or what < 1:
            raise ConfigError(f"{length!r} bytes at {what!r} are no memory", "say a positive length and address")
        new = _AddressWatch(what, _device(torch, device), length, name, dump_nums, full_content)
    else:
        raise TypeError(f"a tensor or an address is watched, not {type(what).__name__}")
    if not 0 < new.length <= MOST_BYTES:
        raise ConfigError(f"{new.length} bytes cannot be watched", f"watch 1 to {MOST_BYTES} bytes")
    _begin(torch, new)


def _device(torch: Any, said: Any) -> Any:
    if said is None:
        kind = next((it for it in ("cuda", "npu") if hasattr(torch, it) and getattr(torch, it).is_available()), "cpu")
        said = f"{kind}:{getattr(torch, kind).current_device()}" if kind != "cpu" else "cpu"
    return torch.device(said)


def check(between: _config.Between | None) -> None:
    """Raises what `begin` would, before anything has been done."""
    if between is not None:
        _torch()
        _refuse_other_modes()


def begin(between: _config.Between | None) -> None:
    """Watches what `config` said; `memscope.start` calls it."""
    global _between
    check(between)
    if between is not None:
        _between = between
        _enter()


def end() -> None:
    """Ends what `begin` began; `memscope.stop` calls it."""
    global _between
    _between = None
    with _lock:
        _watches[:] = [it for it in _watches if it.until is None]
    _leave_if_idle()


def _refuse_other_modes() -> None:
    """A mode inside of somebody else's would be taken away when that one ends."""
    if getattr(_modes, "mode", None) is None and _innermost_mode() is not None:
        raise MemscopeError(
            "this thread is inside a dispatch mode (a `with` of a TorchDispatchMode), which would end in the wrong order",
            "begin to watch outside of it",
        )


def _enter() -> None:
    """Puts this thread's operators between checks, unless they are."""
    if getattr(_modes, "mode", None) is None:
        _modes.mode = _mode_class()()
        _modes.mode.__enter__()


def _begin(torch: Any, new: _Watch) -> None:
    from torch.utils import _python_dispatch  # type: ignore[import-not-found,unused-ignore]

    _refuse_other_modes()
    # What cannot be read is refused now, and not by the first operator. Reading has operators of its own.
    with _lock, _python_dispatch._disable_current_modes():
        _settle(torch, new)
        data = new.bytes(torch)
        if data is None:
            raise MemscopeError(f"{new.name} has no memory any more", "watch a tensor that holds some")
        new.sum = _sum(data)
        _watches.append(new)
    _enter()


def _innermost_mode() -> Any:
    from torch.utils import _python_dispatch  # type: ignore[import-not-found,unused-ignore]

    return _python_dispatch._get_current_dispatch_mode()


def remove(what: Union[Tensor, int], *, length: int | None = None) -> None:
    """Ends the watch of a tensor, or of ``length`` bytes at an address (of all that begin there, without a length).

    Raises `ConfigError` where nothing like that is watched. What was found stays (`changes`).
    """
    torch = _torch()
    address = what.data_ptr() if isinstance(what, torch.Tensor) else what
    with _lock:
        gone = [
            it
            for it in _watches
            if (at := it.place()) is not None and at[0] == address and length in (None, it.length)
        ]
        for it in gone:
            _watches.remove(it)
        _leave_if_idle()
        if not gone:
            there_is = ", ".join(it.name for it in _watches) or "nothing"
            raise ConfigError(f"nothing is watched at {address:#x}", f"there is: {there_is}")


def changes(name: str | None = None) -> list[Change]:
    """What has changed so far, of all watches or those of this name, oldest first; the newest 10,000 of all."""
    with _lock:
        _leave_if_idle()
        return [change for change in _changes if name in (None, change.name)]


def dropped() -> int:
    """How many changes are not among `changes` any more, because there were too many."""
    with _lock:
        return _dropped


def _leave_if_idle() -> None:
    """Takes this thread's mode away once nothing is watched. A mode below another one stays, and does nothing; one cannot
    leave while it runs an operator, so that a watch that ends by itself leaves its mode for the next call of ours."""
    mode = getattr(_modes, "mode", None)
    idle = not _watches and _between is None
    if mode is not None and idle and _innermost_mode() is mode:
        mode.__exit__(None, None, None)
        _modes.mode = None


def _sum(data: Any) -> str:
    return f"{_library.current.checksum(data, len(data)):016x}"


def _settle(torch: Any, watch: _Watch) -> None:
    """Lets the watch's device finish what was begun."""
    if watch.device.type != "cpu":
        getattr(torch, watch.device.type).synchronize(watch.device)


def _captures(torch: Any) -> bool:
    """While a graph is captured nothing can be waited for or copied."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _operator(function: Any) -> str:
    return str(function)


def _is_called(function: Any, word: str) -> bool:
    """Whether somebody may call an operator so: aten.add_.Tensor, aten.add_, aten::add_.Tensor, aten::add_ or add_."""
    schema = function._schema
    name = schema.name
    whole = f"{name}.{schema.overload_name}" if schema.overload_name else name
    return word.replace(".", "::", 1) in (name, whole) or word in (name, whole, name.split("::")[-1], str(function))


def _begin_between(torch: Any, between: _config.Between, function: Any, result: Any) -> None:
    """After the operator with which a watch begins: watches its output."""
    if not _is_called(function, between.start):
        return
    outputs = result if isinstance(result, (list, tuple)) else [result]
    if between.output >= len(outputs) or not isinstance(outputs[between.output], torch.Tensor):
        return
    new = _TensorWatch(outputs[between.output], function._schema.name.split("::")[-1], None, between.full_content)
    data = new.bytes(torch) if 0 < new.length <= MOST_BYTES else None
    if data is not None:
        new.output, new.until, new.sum = between.output, between.end, _sum(data)
        new.last = _operator(function)
        _watches.append(new)


def _program() -> tuple[str, int, str] | None:
    """File, line and function of the program's innermost frame, without PyTorch's and this package's."""
    torch = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    own = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((torch, own, "<")):
            return file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _lies_in(value: Any, begin: int, watch: _Watch) -> bool:
    """Whether a tensor, or one of several, has some of the watched memory, which begins there."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    if isinstance(value, (list, tuple)):
        return any(_lies_in(one, begin, watch) for one in value)
    if not isinstance(value, torch.Tensor) or value.device.type != watch.device.type:
        return False
    try:
        own, length = value.data_ptr(), _extent(value)
    except (RuntimeError, NotImplementedError):
        # A tensor without memory of its own, as a sparse one.
        return False
    return bool(own < begin + watch.length and begin < own + length)


def _writes_to(function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, watch: _Watch) -> bool:
    """Whether the operator's schema says that it writes to the watched memory, or its result lies there."""
    place = watch.place()
    if place is None:
        return False
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = kwargs.get(argument.name, args[index] if index < len(args) else None)
            if _lies_in(given, place[0], watch):
                return True
    # A result that is no view of an argument: new memory, which was nobody's when the watch began.
    views = any(one.alias_info is not None for one in function._schema.returns)
    return not views and _lies_in(result, place[0], watch)


def _check(torch: Any, watch: _Watch, function: Any, when: str, outcome: Callable[[], bool]) -> bool:
    """Takes one check sum and compares it with the last; False: the watch has ended."""
    global _dropped
    data = watch.bytes(torch)
    if data is None:
        return False
    operator, total, known = _operator(function), _sum(data), watch.sum
    _files.write(watch, operator, when, total, data)
    watch.sum = total
    if known is not None and total != known:
        inside, at = when == "after", _program()
        change = Change(
            name=watch.name,
            operator=operator if inside else None,
            between=None if inside else (watch.last, operator),
            number=watch.operators,
            thread=threading.get_native_id(),
            line=at and f"{os.path.basename(at[0])}:{at[1]} in {at[2]}",
            declared=inside and outcome(),
            before=known,
            after=total,
        )
        _dropped += len(_changes) == MOST_CHANGES
        _changes.append(change)
        if not change.declared:
            _marks.mark(f"{watch.name} changed by {operator if inside else 'no operator'}")
            file, number, _ = at or (__file__, 1, "")
            warnings.warn_explicit(str(change), CorruptionWarning, file, number)
    return True


def _run(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One operator, with the check sums of all watches before and after it."""
    torch = sys.modules["torch"]
    with _lock:
        watched = list(_watches)
        between = _between
    if not (watched or between) or _captures(torch):
        return function(*args, **kwargs)
    ended = []
    with _lock:
        for watch in watched:
            watch.operators += 1
            _settle(torch, watch)
            if not _check(torch, watch, function, "before", lambda: False):
                ended.append(watch)
    result = function(*args, **kwargs)
    with _lock:
        for watch in watched:
            if watch in ended:
                continue
            _settle(torch, watch)
            there = _check(
                torch, watch, function, "after", lambda: _writes_to(function, args, kwargs, result, watch)  # noqa: B023: used at once
            )
            watch.last = _operator(function)
            last = watch.until is not None and _is_called(function, watch.until)
            if not there or last or watch.operators == watch.most:
                ended.append(watch)
        _watches[:] = [it for it in _watches if it not in ended]
        if between is not None:
            _begin_between(torch, between, function, result)
    return result


_mode: type | None = None


def _mode_class() -> type:
    """The dispatch mode, made when PyTorch is there."""
    global _mode
    if _mode is None:
        from torch.utils._python_dispatch import TorchDispatchMode  # type: ignore[import-not-found,unused-ignore]

        class Watching(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
            """Runs each operator between two checks."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
            ) -> Any:
                return _run(func, args, kwargs or {})

        _mode = Watching
    return _mode
