"""What can go wrong. Each error says what happened, and the way out of it."""

from __future__ import annotations


class MemscopeError(Exception):
    """Something that memscope was asked for did not happen.

    ``message`` says what is wrong, ``hint`` the way out; it may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  try: {self.hint}" if self.hint else self.message


class ConfigError(MemscopeError, ValueError):
    """An argument is unknown or has a value that makes no sense."""


class UnsupportedError(ConfigError):
    """msMemScope does this, memscope does not."""


class LibraryError(MemscopeError):
    """The mark library is missing or cannot be loaded."""


class CtlMissingError(MemscopeError):
    """memscope-ctl is not found or cannot be started."""


class DaemonError(MemscopeError):
    """The daemon refused or failed, or cannot be reached.

    ``code`` is the stable word for what happened, such as ``no_daemon``, ``not_permitted`` or ``not_traced``. It is the
    same word whether the daemon was asked by `memscope.client` or by memscope-ctl.
    """

    def __init__(self, message: str, hint: str = "", *, code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class CtlError(DaemonError):
    """memscope-ctl, or the daemon that it asked, refused or failed.

    ``code`` is empty where memscope-ctl gave no word. ``exit_code`` is what memscope-ctl ended with
    (``memscope-ctl --help`` lists them), or None where it did not end by itself.
    """

    def __init__(
        self, message: str, hint: str = "", *, code: str = "", exit_code: int | None = None
    ) -> None:
        super().__init__(message, hint, code=code)
        self.exit_code = exit_code


class AnswerError(MemscopeError):
    """memscope-ctl answered something that this package does not understand."""
