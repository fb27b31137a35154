"""Whether anybody listens at a socket, and why not."""

from __future__ import annotations

import socket

from ._errors import DaemonError


def unreachable(path: str) -> DaemonError | None:
    """Why nobody can be asked at this socket; None: somebody can."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except PermissionError as error:
        return _because(
            error,
            f"you may not connect to {path}",
            "ask as root, or join the group: sudo usermod -aG memscope $USER (and log in again)",
            "not_permitted",
        )
    except OSError as error:
        return _because(
            error,
            f"no daemon answers at {path}: {error.strerror or error}",
            "start it: sudo memscoped (or: sudo systemctl start memscoped); "
            "connect(PATH) or MEMSCOPE_SOCKET names another socket",
            "no_daemon",
        )
    return None


def _because(error: OSError, message: str, hint: str, code: str) -> DaemonError:
    failure = DaemonError(message, hint, code=code)
    failure.__cause__ = error
    return failure
