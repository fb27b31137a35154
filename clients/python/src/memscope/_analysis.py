"""msMemScope's rules over the files that it writes, answered by memscope-ctl."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Sequence, Union

from . import _ctl
from ._answers import InefficientReport, LeaksReport
from ._errors import ConfigError

INEFFICIENT_TYPES = ("early_allocation", "late_deallocation", "temporary_idleness")

PathLike = Union[str, "os.PathLike[str]"]


def _path(value: PathLike) -> str:
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise TypeError(f"input_path is the path of a file, not {type(value).__name__}")
    if not path or "\0" in path:
        raise ConfigError(f"input_path={path!r} is no path", "name a file that msMemScope wrote")
    # Else it would be read as an option.
    return os.path.join(".", path) if path.startswith("-") else path


def _number(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not 0 <= value < 2**64:
        raise ConfigError(f"{name}={value} is out of range", "give a number from 0 to 2**64 - 1")
    return value


@dataclass(frozen=True)
class LeaksConfig:
    """What `check_leaks` looks for."""

    #: A CSV file or database that msMemScope wrote.
    input_path: PathLike
    #: Name of the marks between which memory is judged.
    mstx_info: str
    #: Which of the marks is the first of the three, from 0.
    start_index: int = 0

    def arguments(self) -> list[str]:
        """The question to memscope-ctl."""
        path = _path(self.input_path)
        if not isinstance(self.mstx_info, str):
            raise TypeError(f"mstx_info is a str, not {type(self.mstx_info).__name__}")
        if not self.mstx_info or "\0" in self.mstx_info:
            raise ConfigError(
                f"mstx_info={self.mstx_info!r} is the name of no mark",
                "give the name with which mstx marked the steps",
            )
        start = _number("start_index", self.start_index)
        # One word, so that a name may begin with a dash.
        return ["check-leaks", path, f"--mark={self.mstx_info}", "--start-index", str(start)]


@dataclass(frozen=True)
class InefficientConfig:
    """What `check_inefficient` looks for."""

    #: A CSV file or database that msMemScope wrote; None: this process, which memscope follows with its accesses.
    input_path: PathLike | None = None
    #: Smallest block, bytes.
    mem_size: int = 0
    #: Which kinds: some of early_allocation, late_deallocation, temporary_idleness.
    inefficient_type: Sequence[str] = field(default=INEFFICIENT_TYPES)
    #: Operators between two accesses that are not idle yet.
    idle_threshold: int = 3000

    def arguments(self) -> list[str]:
        """The question to memscope-ctl."""
        asked = ["--pid", str(os.getpid())] if self.input_path is None else [_path(self.input_path)]
        arguments = ["inefficient", *asked]
        arguments += ["--min-size", str(_number("mem_size", self.mem_size))]
        kinds = self.inefficient_type
        if isinstance(kinds, str) or not isinstance(kinds, (list, tuple, set, frozenset)):
            raise TypeError(f"inefficient_type is a list of str, not {type(kinds).__name__}")
        for kind in kinds:
            if kind not in INEFFICIENT_TYPES:
                raise ConfigError(
                    f"inefficient_type has {kind!r}, which is not known",
                    "there is: " + ", ".join(INEFFICIENT_TYPES),
                )
        if not kinds:
            raise ConfigError(
                "inefficient_type is empty", "say some of: " + ", ".join(INEFFICIENT_TYPES)
            )
        for kind in INEFFICIENT_TYPES:
            if kind in kinds:
                arguments += ["--type", kind]
        return [
            *arguments,
            *("--idle-threshold", str(_number("idle_threshold", self.idle_threshold))),
        ]


_ANALYZERS = {
    "leaks": (LeaksConfig, LeaksReport),
    "inefficient": (InefficientConfig, InefficientReport),
}


def list_analyzers() -> list[str]:
    """Names of the analyses that `analyze` takes."""
    return list(_ANALYZERS)


def _analyzer(type: str) -> tuple[Any, Any]:
    if not isinstance(type, str):
        raise TypeError(f"the name of an analysis is a str, not {type.__class__.__name__}")
    if type not in _ANALYZERS:
        raise ConfigError(
            f"there is no analysis {type!r}", "there is: " + ", ".join(list_analyzers())
        )
    return _ANALYZERS[type]


def get_analyzer_config(type: str) -> dict[str, Any]:
    """What an analysis takes: ``config_class``, and under ``parameters`` each name with its default.

    A parameter is a mapping with ``required``, and ``default`` where it is not.
    """
    config_class, _ = _analyzer(type)
    parameters = {
        one.name: {"required": True}
        if one.default is MISSING
        else {"required": False, "default": one.default}
        for one in fields(config_class)
    }
    return {"config_class": config_class, "parameters": parameters}


def analyze(type: str, **parameters: Any) -> LeaksReport | InefficientReport:
    """Runs an analysis of `list_analyzers` with the parameters of its configuration class.

    Raises `ConfigError` for an analysis or parameter that there is not, or a value that makes no sense; TypeError for one of the
    wrong type; `CtlMissingError` without memscope-ctl; `CtlError` where the file cannot be read or judged.
    """
    config_class, report_class = _analyzer(type)
    known = {one.name: one for one in fields(config_class)}
    for name in parameters:
        if name not in known:
            raise ConfigError(
                f"the analysis {type} has no parameter {name}", "there is: " + ", ".join(known)
            )
    for name, one in known.items():
        if one.default is MISSING and name not in parameters:
            raise ConfigError(f"the analysis {type} needs {name}", f"say {name}=...")
    config = config_class(**parameters)
    report: LeaksReport | InefficientReport = report_class.of(_ctl.ask(*config.arguments()))
    return report


def check_leaks(input_path: PathLike, mstx_info: str, start_index: int = 0) -> LeaksReport:
    """Device memory that was taken between the first two of three marks and is not given back by the third.

    On each device, of the marks called ``mstx_info`` in a file of msMemScope, number ``start_index`` and the
    two after it are taken. Raises `CtlError` with the code ``no_marks`` if no device has three, and as `analyze` does.
    """
    report = analyze(
        "leaks", input_path=input_path, mstx_info=mstx_info, start_index=start_index
    )
    assert isinstance(report, LeaksReport)
    return report


def check_inefficient(
    input_path: PathLike | None = None,
    mem_size: int = 0,
    inefficient_type: Sequence[str] = INEFFICIENT_TYPES,
    idle_threshold: int = 3000,
) -> InefficientReport:
    """Blocks that were allocated too early, freed too late, or idle in between.

    Without a file it is asked about this process, since its last `start`; memscope must record its accesses for that
    (``config(analysis="inefficient")``), and it is an answer for root. Unlike msMemScope's, this does not write into the file: ``memscope-ctl inefficient FILE -o OUT`` writes
    another one. Raises as `analyze` does.
    """
    report = analyze(
        "inefficient",
        input_path=input_path,
        mem_size=mem_size,
        inefficient_type=inefficient_type,
        idle_threshold=idle_threshold,
    )
    assert isinstance(report, InefficientReport)
    return report
