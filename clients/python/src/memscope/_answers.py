"""Reports of the analyses, as memscope-ctl answers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from ._errors import AnswerError


@dataclass(frozen=True)
class Leak:
    """A block that was not given back."""

    #: ID of the row in which it was allocated.
    id: int
    #: Its address; None: the row says none.
    ptr: int | None
    #: Its size.
    size_bytes: int


@dataclass(frozen=True)
class DeviceLeaks:
    """What was found on one device."""

    #: The device, as the file calls it; None: it says none.
    device: str | None
    #: How many marks of the name it has.
    marks: int
    #: ``leaks`` or ``no_leaks``; ``too_few_marks`` (fewer than three) or ``start_beyond_end`` (fewer than three from the
    #: start index on) where the device could not be judged.
    verdict: str
    #: The size of all leaks; None: the device could not be judged.
    leaked_bytes: int | None
    #: The blocks that leaked, by ID.
    leaks: tuple[Leak, ...]


@dataclass(frozen=True)
class LeaksReport:
    """Answer of `memscope.check_leaks`."""

    #: Devices in the order in which the file names them.
    devices: tuple[DeviceLeaks, ...]
    #: The whole document of memscope-ctl, of which this is a part.
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The leaks of all devices."""
        return tuple(leak for device in self.devices for leak in device.leaks)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> LeaksReport:
        """Reads memscope-ctl's answer; raises `AnswerError` if it is none."""
        answer = _Part(document, "check-leaks")
        return cls(tuple(_device(one) for one in answer.parts("devices")), document)


@dataclass(frozen=True)
class InefficientBlock:
    """A block with something wrong."""

    #: ID of the row in which it was allocated.
    id: int
    #: The process; None: the row says none.
    pid: int | None
    #: The device, as the file calls it; None: it says none.
    device: str | None
    #: Whose pool: PTA or ATB.
    pool: str
    #: Its address; None: the row says none.
    ptr: int | None
    #: Its size.
    size_bytes: int
    #: What is wrong: some of early_allocation, late_deallocation, temporary_idleness.
    types: tuple[str, ...]


@dataclass(frozen=True)
class InefficientReport:
    """Answer of `memscope.check_inefficient`."""

    #: Blocks in the order in which memscope-ctl tells them.
    blocks: tuple[InefficientBlock, ...]
    #: The whole document of memscope-ctl, of which this is a part.
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> InefficientReport:
        """Reads memscope-ctl's answer; raises `AnswerError` if it is none."""
        answer = _Part(document, "inefficient")
        return cls(tuple(_block(one) for one in answer.parts("blocks")), document)


class _Part:
    """An object in an answer, whose parts have the types that they must have."""

    def __init__(self, fields: Any, where: str) -> None:
        self.where = where
        if not isinstance(fields, Mapping):
            raise self.wrong("is no object")
        self.fields = fields

    def wrong(self, what: str) -> AnswerError:
        return AnswerError(
            f"the answer of memscope-ctl is not understood: {self.where} {what}",
            "do memscope-ctl and this package have the same version? memscope-ctl --version",
        )

    def parts(self, name: str) -> list[_Part]:
        found = self.fields.get(name)
        if not isinstance(found, list):
            raise self.wrong(f"has no list {name}")
        return [_Part(one, f"{self.where}.{name}[{n}]") for n, one in enumerate(found)]

    def number(self, name: str) -> int:
        found = self.fields.get(name)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.wrong(f"has no number {name}")
        return found

    def maybe_number(self, name: str) -> int | None:
        return None if self.fields.get(name) is None else self.number(name)

    def maybe_address(self, name: str) -> int | None:
        found = self.maybe_text(name)
        if found is None:
            return None
        try:
            return int(found, 16)
        except ValueError:
            raise self.wrong(f"has {name}={found!r}, which is no address") from None

    def text(self, name: str) -> str:
        found = self.fields.get(name)
        if not isinstance(found, str):
            raise self.wrong(f"has no text {name}")
        return found

    def maybe_text(self, name: str) -> str | None:
        return None if self.fields.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.fields.get(name)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.wrong(f"has no list {name} of texts")
        return tuple(found)


def _device(part: _Part) -> DeviceLeaks:
    return DeviceLeaks(
        part.maybe_text("device"),
        part.number("marks"),
        part.text("verdict"),
        part.maybe_number("leaked_bytes"),
        tuple(_leak(one) for one in part.parts("leaks")),
    )


def _leak(part: _Part) -> Leak:
    return Leak(part.number("id"), part.maybe_address("ptr"), part.number("size_bytes"))


def _block(part: _Part) -> InefficientBlock:
    return InefficientBlock(
        part.number("id"),
        part.maybe_number("pid"),
        part.maybe_text("device"),
        part.text("pool"),
        part.maybe_address("ptr"),
        part.number("size_bytes"),
        part.texts("types"),
    )
