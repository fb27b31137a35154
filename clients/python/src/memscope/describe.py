"""Labels memory by what the program has it for; ``memscope-ctl owners`` sums up by labels.

::

    from memscope import describe

    with describe.describer(owner="replay buffer"):     # what this thread allocates in the block
        buffer = ReplayBuffer(1_000_000)

    @describe.describer(owner="evaluation")             # in each call of the function
    def evaluate(): ...

    describe.describer(cache.keys, owner="kv")           # the memory of a tensor, also what it was before
    describe.describer(address, owner="kv")              # the block at an address

A block has three labels at most, as in msMemScope: those of the three outermost of the contexts in which it was allocated, or fewer and then
those of its tensor. A label is a mark of the mark library: it costs next to nothing while nobody listens, and what is allocated while
memscope does not follow the process has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, overload

from . import _library, _marks
from ._around import F, around
from ._errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor  # type: ignore[import-not-found,unused-ignore]

__all__ = ["Label", "describer"]

#: How the names of marks begin that label memory.
PREFIX = "memscope:owner="
#: Bytes of UTF-8 that a label may have: of a mark's name 128 are read, with an address behind the label.
LONGEST = 94


class Label(_marks.Range):
    """Labels what the thread allocates meanwhile: a context manager or a decorator, as `memscope.range` is."""

    __slots__ = ("owner",)

    def __init__(self, owner: str) -> None:
        self.owner = _checked(owner)
        super().__init__(PREFIX + owner)

    def __repr__(self) -> str:
        return f"memscope.describe.describer(owner={self.owner!r})"

    def __call__(self, function: F) -> F:
        return around(function, lambda: Label(self.owner))


def _checked(owner: Any) -> str:
    if not isinstance(owner, str):
        raise TypeError(f"owner is a str, as 'replay buffer' is, not {type(owner).__name__}")
    if not owner.strip() or "@" in owner or any(ord(one) < 32 for one in owner):
        raise ConfigError(f"owner={owner!r} is no label", "say a word or some, without @ and control characters")
    if len(owner.encode("utf-8", "replace")) > LONGEST:
        raise ConfigError(f"owner={owner!r} is too long", f"a label has at most {LONGEST} bytes")
    return owner


@overload
def describer(*, owner: str) -> Label: ...


@overload
def describer(what: Union[Tensor, int], *, owner: str) -> None: ...


def describer(what: Any = None, *, owner: str) -> Label | None:
    """Labels memory: without ``what``, a context manager or decorator; of a tensor or an address, at once.

    Raises TypeError or `ConfigError` for what cannot be a label, a tensor or an address.
    """
    if what is None:
        return Label(owner)
    _checked(owner)
    address = what
    if hasattr(what, "untyped_storage"):
        address = what.untyped_storage().data_ptr()
    if not isinstance(address, int) or isinstance(address, bool):
        raise TypeError(f"a tensor or an address is labelled, not {type(what).__name__}")
    if not 0 < address < 2**64:
        raise ConfigError(f"{address} is no address", "of a tensor that has memory: tensor.data_ptr()")
    _library.current.mark(_marks.encoded(f"{PREFIX}{owner}@{address:x}"))
    return None
