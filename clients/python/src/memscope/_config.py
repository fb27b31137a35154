"""What `config` said: msMemScope's words, and what they mean to memscope."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from typing import Callable

from ._errors import ConfigError, UnsupportedError
from ._formats import FORMATS

#: Folder of snapshots, as msMemScope calls it.
OUTPUT_PATH = "./memscopeDumpResults"
LEVELS = ("read", "segments", "blocks", "trace")
LONGEST_PATH = 4096
DEEPEST_STACK = 1000
LONGEST_NAME = 255


@dataclass(frozen=True)
class Between:
    """An operator whose output is watched, and the one after which it is no longer."""

    start: str
    end: str
    #: Which of its outputs, from 0.
    output: int = 0
    #: The contents are written beside the check sums.
    full_content: bool = False


@dataclass(frozen=True)
class Wishes:
    """What is asked for; None: nothing was said, and memscope-ctl's own default holds."""

    level: str = "trace"
    stacks: str | None = None
    stack_depth: int | None = None
    output_path: str | None = None
    format: str | None = None
    #: Operators and the memory that they use are followed as well: what `events` says of it, and what `analysis` says.
    accesses_by_events: bool = False
    accesses_by_analysis: bool = False
    #: The operators between which an output is watched.
    watch: Between | None = None

    def attach_arguments(self) -> list[str]:
        """Options of ``memscope-ctl attach``."""
        arguments = ["--level", self.level]
        if self.stacks is not None:
            arguments += ["--stacks", self.stacks]
        if self.stack_depth is not None:
            arguments += ["--stack-depth", str(self.stack_depth)]
        if self.accesses_by_events or self.accesses_by_analysis:
            arguments.append("--accesses")
        return arguments


def _bad(key: str, value: str, there_is: str) -> ConfigError:
    return ConfigError(f"{key}={value!r} is not known", f"there is: {there_is}")


def _words(key: str, value: str) -> list[str]:
    words = [word.strip() for word in value.split(",")]
    if "" in words:
        raise ConfigError(
            f"{key}={value!r} has an empty word in it", "write the words with one comma between them"
        )
    return words


def _level(wishes: Wishes, value: str) -> Wishes:
    if value in ("op", "0"):
        return replace(wishes, level="trace")
    if value in ("kernel", "1"):
        raise UnsupportedError(
            f"level={value!r}: memscope does not tell of single kernels",
            "level='op' follows every allocation; memscope's own levels are " + ", ".join(LEVELS),
        )
    if value not in LEVELS:
        raise _bad("level", value, "op, " + ", ".join(LEVELS))
    return replace(wishes, level=value)


def _device(wishes: Wishes, value: str) -> Wishes:
    for word in _words("device", value):
        if word == "cpu":
            raise UnsupportedError(
                "device='cpu': memscope does not follow tensors in the memory of the host",
                "device='npu' follows all devices of the process; leaving device out does the same",
            )
        if re.fullmatch(r"npu:\d+", word):
            raise UnsupportedError(
                f"device={value!r}: memscope follows all devices of a process, not one of them",
                "leave device out; questions are asked by device, as in memscope-ctl stacks --device 0",
            )
        if word != "npu":
            raise _bad("device", value, "npu, which means all devices of the process, of any kind")
    return wishes


def _events(wishes: Wishes, value: str) -> Wishes:
    words = _words("events", value)
    for word in words:
        if word == "traceback":
            raise UnsupportedError(
                f"events={value!r}: memscope does not record calls of Python functions",
                "call_stack='python' gives each allocation its stack; memscope.range(name) marks some functions",
            )
        if word == "none":
            raise UnsupportedError(
                f"events={value!r}: memscope always records allocations and frees",
                "level='read' places no probe at all; or do not call start(): marks need none",
            )
        if word not in ("alloc", "free", "launch", "access"):
            raise _bad("events", value, "alloc, free (each implies the other), launch, access (likewise)")
    return replace(wishes, accesses_by_events="launch" in words or "access" in words)


def _call_stack(wishes: Wishes, value: str) -> Wishes:
    there_is = f"python[:N], c[:N], both with a comma between them, N from 0 to {DEEPEST_STACK}; none"
    if value == "none":
        return replace(wishes, stacks="none", stack_depth=None)
    depths: dict[str, int | None] = {}
    for word in _words("call_stack", value):
        known = re.fullmatch(r"(python|c)(?::(\d{1,9}))?", word)
        depth = int(known[2]) if known and known[2] else None
        if not known or (depth or 0) > DEEPEST_STACK:
            raise _bad("call_stack", value, there_is)
        if known[1] in depths:
            raise ConfigError(f"call_stack={value!r} says {known[1]} twice", "say each once")
        depths[known[1]] = depth
    # Of a depth of 0 nothing is left.
    taken = {kind: depth for kind, depth in depths.items() if depth != 0}
    if not taken:
        return replace(wishes, stacks="none", stack_depth=None)
    if len(set(taken.values())) > 1:
        raise UnsupportedError(
            f"call_stack={value!r}: memscope has one depth for both kinds of frames",
            "give both the same, as in call_stack='python:50,c:50'",
        )
    stacks = "all" if len(taken) == 2 else {"python": "python", "c": "native"}[next(iter(taken))]
    return replace(wishes, stacks=stacks, stack_depth=next(iter(taken.values())))


def _analysis(wishes: Wishes, value: str) -> Wishes:
    for word in _words("analysis", value):
        if word == "decompose":
            raise UnsupportedError(
                "analysis='decompose': memscope decomposes memory when it is asked",
                "memscope-ctl owners, or with msMemScope's words memscope-ctl owners --rule-set msmemscope",
            )
        if re.fullmatch(r"oom:\d+", word):
            raise UnsupportedError(
                f"analysis={value!r}: memscope does not list the K largest blocks when memory runs out",
                "it takes a snapshot with all of them anyway: memscope-ctl snapshots; say analysis='oom'",
            )
        if word not in ("leaks", "oom", "inefficient", "none"):
            raise _bad(
                "analysis", value, "leaks, oom (of both, memscope always knows), inefficient, none"
            )
    return replace(wishes, accesses_by_analysis="inefficient" in _words("analysis", value))


def _watch(wishes: Wishes, value: str) -> Wishes:
    there_is = "start[:output],end[,full-content], with names of operators, as aten::mm:0,aten::relu"
    words = _words("watch", value)
    full = len(words) == 3 and words[2] == "full-content"
    known = re.fullmatch(r"(.*?[^:])(?::(\d{1,4}))?", words[0])
    if not known or not (len(words) == 2 or full) or max(map(len, words)) > LONGEST_NAME:
        raise _bad("watch", value, there_is)
    between = Between(known[1], words[1], int(known[2] or 0), full)
    if wishes.watch not in (None, between):
        raise ConfigError("watch was said already, and is said once in a process", "start anew")
    return replace(wishes, watch=between)


def _format(wishes: Wishes, value: str) -> Wishes:
    there_is = ", ".join(FORMATS) + ", for the files of take_snapshot()"
    if value in ("csv", "db"):
        raise UnsupportedError(
            f"format={value!r}: memscope writes no such file while it follows a process",
            f"there is: {there_is}",
        )
    if value not in FORMATS:
        raise _bad("format", value, there_is)
    if wishes.format not in (None, value):
        raise ConfigError(
            f"format is {wishes.format!r} already, and is said once in a process", "start anew"
        )
    return replace(wishes, format=value)


def _output_path(wishes: Wishes, value: str) -> Wishes:
    if len(value) > LONGEST_PATH or "\0" in value:
        raise ConfigError(
            "output_path is no path" if "\0" in value else "output_path is too long",
            f"name a folder with at most {LONGEST_PATH} characters",
        )
    if wishes.output_path not in (None, value):
        raise ConfigError(
            f"output_path is {wishes.output_path!r} already, and is said once in a process",
            "start anew",
        )
    return replace(wishes, output_path=value)


KEYS: dict[str, Callable[[Wishes, str], Wishes]] = {
    "device": _device,
    "level": _level,
    "events": _events,
    "call_stack": _call_stack,
    "analysis": _analysis,
    "watch": _watch,
    "format": _format,
    "output_path": _output_path,
}
#: Older words of msMemScope.
OLDER = {"data_format": "format", "output": "output_path"}

_lock = threading.Lock()
_said = Wishes()


def wishes() -> Wishes:
    """What all calls of `config` said."""
    return _said


def config(**wanted: str) -> None:
    """Says what `start` and `take_snapshot` do, in msMemScope's words. All values are strings.

    * ``level``: ``op`` follows every allocation; or one of memscope's own levels ``read``, ``segments``,
      ``blocks``, ``trace`` (the same as ``op``, and what holds if nothing is said).
    * ``call_stack``: ``python[:N]``, ``c[:N]``, both with a comma, N frames at most; ``none``. If nothing is said,
      Python stacks are taken.
    * ``output_path``: the folder for snapshots, ``./memscopeDumpResults`` if nothing is said; once in a process.
    * ``format``: of snapshots, ``memory-viz`` (if nothing is said), ``perfetto``, ``html``, ``json`` or
      ``memory-viz-json``; once in a process.
    * ``analysis``: ``inefficient`` follows the operators and the memory that they use as well, which is slow
      (``memscope-ctl attach --accesses``); ``leaks``, ``oom``, ``none`` say what memscope does anyway.
    * ``events``: ``launch``, ``access`` do the same as ``inefficient``; ``alloc,free`` is what memscope does anyway.
      What a later call says of ``analysis`` or ``events`` takes the place of what an earlier one said of the same.
    * ``watch``: ``start[:output],end[,full-content]`` watches the contents of an output of the operator ``start`` until
      the operator ``end`` has run, from `start` on (`memscope.watcher`); once in a process.
    * ``device``: ``npu``, which means all devices of the process, as if nothing is said.

    ``output`` and ``data_format`` are older words for ``output_path`` and ``format``. What is said after `start`
    holds from the next `start`. Either all of a call holds or nothing.

    Raises ValueError without arguments, `ConfigError` (a ValueError) for an unknown word, `UnsupportedError`
    (one, too) for what msMemScope does and memscope does not, TypeError for a value that is no string.
    """
    global _said
    there_is = ", ".join(KEYS)
    if not wanted:
        raise ConfigError("config() was given nothing", f"say at least one of {there_is}")
    with _lock:
        result = _said
        seen: dict[str, str] = {}
        for word, value in wanted.items():
            key = OLDER.get(word, word)
            if key not in KEYS:
                raise ConfigError(f"config() does not know {word}", f"there is: {there_is}")
            if not isinstance(value, str):
                raise TypeError(f"{word} is a string, not {type(value).__name__}")
            if key in seen:
                raise ConfigError(f"{seen[key]} and {word} are the same", "say one of them")
            seen[key] = word
            if not value.strip():
                raise ConfigError(f"{word} is empty", f"leave {word} out")
            result = KEYS[key](result, value)
        _said = result
