"""Packages that only some of this package needs."""

from __future__ import annotations

import importlib
from typing import Any

from ._errors import MemscopeError


class ExtraMissingError(MemscopeError, ImportError):
    """A package is not installed, or cannot be imported, that the called function needs."""


#: Which extra of this package has a package in it.
_EXTRA_OF = {
    "IPython": "notebook",
    "grpc": "grpc",
    "google.protobuf": "grpc",
    "matplotlib": "notebook",
    "pandas": "notebook",
    "pyarrow": "arrow",
}
#: What pip calls a package, where that is not how it is imported.
_NAMES_FOR_PIP = {"grpc": "grpcio", "google.protobuf": "protobuf", "IPython": "ipython"}


def need(module: str, purpose: str) -> Any:
    """Imports a module for `purpose`, as it stands in the error's message if that fails."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = next(name for name in (module, *_parents(module)) if name in _EXTRA_OF)
        name = _NAMES_FOR_PIP.get(top, top)
        raise ExtraMissingError(
            f"{purpose} needs {name}, which cannot be imported: {error}",
            f"pip install {name} (or all of it: pip install './clients/python[{_EXTRA_OF[top]}]')",
        ) from error


def is_there(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
