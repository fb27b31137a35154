"""A connection to a daemon: how a call is made, and what its failure means."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from ._errors import DaemonError
from ._reach import unreachable

Question = TypeVar("Question", bound=Message)
Answer = TypeVar("Answer", bound=Message)
Self = TypeVar("Self", bound="Connection")

#: The daemon's words on the wire: those of proto/src/lib.rs.
ERROR_CODE = "memscope-error"
STRICT = "memscope-strict"
HINT_SEPARATOR = " — "

#: What the words are where the daemon gave none; memscope-ctl has the same. For other codes: `failed`.
WORDS = {
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.PERMISSION_DENIED: "not_permitted",
    grpc.StatusCode.UNAUTHENTICATED: "not_permitted",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
}

#: A host and a port, as memscope-ctl's ``--connect`` takes them.
HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")

LOG = "look at the daemon's log: journalctl -u memscoped"


class Connection:
    """A gRPC channel on the daemon's socket. `channel` serves gRPC's own stubs, too, as those for health."""

    def __init__(self, path: str, *, strict: bool) -> None:
        #: The socket's path, or host and port.
        self.path = path
        self._is_socket = not is_host(path)
        if self._is_socket:
            why = unreachable(path)
            if why:
                raise why
            # gRPC takes it for a URI.
            self.channel = grpc.insecure_channel("unix:" + quote(path))
        else:
            self.channel = _over_tls(path)
        self._metadata = ((STRICT, "1"),) if strict else ()

    def close(self) -> None:
        """Ends the connection, and every stream on it."""
        self.channel.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(
        self,
        call: grpc.UnaryUnaryMultiCallable[Question, Answer],
        question: type[Question],
        fields: dict[str, Any],
        timeout: float | None,
    ) -> Answer:
        try:
            return call(_said(question, fields), timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def _listen(
        self,
        call: grpc.UnaryStreamMultiCallable[Question, Answer],
        question: type[Question],
        fields: dict[str, Any],
        timeout: float | None,
    ) -> Generator[Answer, None, None]:
        # Not in the generator, whose code runs when the first part is asked for. What the daemon says first, it says when it
        # knows of this reader: no event that comes behind this call is missed.
        parts = call(_said(question, fields), timeout=timeout, metadata=self._metadata)
        parts.initial_metadata()

        def heard() -> Generator[Answer, None, None]:
            try:
                yield from parts
            except grpc.RpcError as error:
                raise self._failure(error) from error
            finally:
                parts.cancel()

        return heard()

    def _failure(self, error: grpc.RpcError) -> DaemonError:
        if not isinstance(error, grpc.Call):
            return DaemonError(f"the call failed: {error}", LOG, code="failed")
        metadata = dict(error.trailing_metadata() or ())
        code, word = error.code(), metadata.get(ERROR_CODE)
        what, _, hint = (error.details() or "").partition(HINT_SEPARATOR)
        if word is not None:
            return DaemonError(what, hint, code=str(word))
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
            # The transport's words; the socket itself says it better.
            why = unreachable(self.path) if self._is_socket else None
            return why or DaemonError(
                f"the connection to the daemon at {self.path} broke: {what}",
                f"did it end? {LOG}",
                code="connection_broke",
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DaemonError(
                f"the call to the daemon at {self.path} did not end within its timeout",
                f"wait longer with timeout=SECONDS, or for ever with timeout=None; {LOG}",
                code="timeout",
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return DaemonError(
                "the daemon does not know this question",
                "the daemon is older than this package: update it",
                code="unimplemented",
            )
        return DaemonError(what, hint, code=WORDS.get(code, "failed"))


def _said(question: type[Question], fields: dict[str, Any]) -> Question:
    """The request that says what is not None."""
    return question(**{name: value for name, value in fields.items() if value is not None})


def is_host(address: str) -> bool:
    """Whether an address is a host and a port, and no file."""
    return HOST.fullmatch(address) is not None and not os.path.lexists(address)


def _over_tls(address: str) -> grpc.Channel:
    """A channel to a host and port, with the certificates that the environment names."""
    files = {name: os.environ.get(name) for name in ("MEMSCOPE_TLS_CERT", "MEMSCOPE_TLS_KEY", "MEMSCOPE_TLS_CA")}
    contents = []
    for name, file in files.items():
        if not file:
            raise DaemonError(
                f"{address} is asked over TLS, and {name} is not set",
                f"set {', '.join(files)}: the files of a certificate, its key, and the authority of the daemon's certificate",
                code="invalid",
            )
        try:
            with open(file, "rb") as opened:
                contents.append(opened.read())
        except OSError as error:
            message = f"{name} names {file}, which cannot be read: {error.strerror or error}"
            raise DaemonError(message, "name a file in PEM", code="invalid") from error
    certificate, key, authority = contents
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate))
