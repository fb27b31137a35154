"""Asks a running memscoped over gRPC. It needs grpcio and protobuf: `pip install grpcio protobuf`.

::

    import memscope.client

    with memscope.client.connect() as daemon:
        daemon.attach(4242)
        for device in daemon.stats(4242).devices:
            print(device.device, device.allocated_bytes)
        for event in daemon.events(4242):
            print(event.WhichOneof("body"), event.time_unix_ns)

`Daemon` has a method for each call of proto/memscope/v1; the fields of the request are its arguments. Answers are the
messages of `memscope.v1`, as protoc makes them. What the daemon refuses is a `memscope.DaemonError` with its word
(``not_traced``), its message and its hint; gRPC's own error is the cause of it.
"""

from __future__ import annotations

import os

try:
    from ._calls import Calls
    from ._connection import is_host
except ImportError as error:
    raise ImportError(
        f"memscope.client needs grpcio, and protobuf from 3.20 on: {error}\n"
        "  try: pip install grpcio protobuf",
        name=error.name,
    ) from error

__all__ = ["DEFAULT_SOCKET", "Daemon", "connect"]

#: Where the daemon listens unless told otherwise.
DEFAULT_SOCKET = "/run/memscope/memscoped.sock"


class Daemon(Calls):
    """A daemon that can be asked, by any thread. `connect` makes one.

    Every method takes a ``timeout``: seconds within which the call is to end, or None for as long as it takes, which
    is what holds for streams (`events`, `snapshot`, `export`, `record`, `get_kept`) if nothing is said. A stream ends
    when its generator is closed, as it is behind a ``break``.
    """


def connect(path: str | os.PathLike[str] | None = None, *, strict: bool = False) -> Daemon:
    """Connects to the daemon at this socket, else at the one that MEMSCOPE_SOCKET names, else at the usual one.

    ``HOST:PORT`` is asked over TLS, unless there is a file of that name: MEMSCOPE_TLS_CERT, MEMSCOPE_TLS_KEY and MEMSCOPE_TLS_CA
    name the files of the certificate, of its key, and of the authority that the daemon's certificate is from.

    With ``strict``, answers whose numbers are not all exact are refused (``not_exact``).
    """
    if path is None:
        path = os.environ.get("MEMSCOPE_SOCKET") or DEFAULT_SOCKET
    path = os.fspath(path)
    return Daemon(path if is_host(path) else os.path.abspath(path), strict=strict)
