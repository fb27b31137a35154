"""Asking memscope-ctl. All that it answers is one JSON document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from ._errors import AnswerError, CtlError, CtlMissingError

WAY_TO_FIND = "put memscope-ctl on PATH, or name it with MEMSCOPE_CTL"

#: Seconds after which a daemon's answer is not waited for any more. memscope-ctl itself gives up sooner.
DAEMON_SECONDS = 600.0


def program() -> str:
    """The memscope-ctl that MEMSCOPE_CTL names, else the one on PATH."""
    named = os.environ.get("MEMSCOPE_CTL")
    if named:
        # Not searched for on PATH, unless it is a bare name.
        found = shutil.which(named)
        if not found:
            raise CtlMissingError(
                f"MEMSCOPE_CTL names {named}, which is no program",
                "name memscope-ctl with MEMSCOPE_CTL, or unset it and put memscope-ctl on PATH",
            )
        return found
    found = shutil.which("memscope-ctl")
    if not found:
        raise CtlMissingError("memscope-ctl is not on PATH, and MEMSCOPE_CTL is not set", WAY_TO_FIND)
    return found


def ask(*arguments: str, seconds: float | None = None) -> dict[str, Any]:
    """Runs ``memscope-ctl --json ARGUMENTS`` and returns the object that it prints."""
    ctl = program()
    try:
        done = subprocess.run(
            [ctl, "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CtlError(
            f"memscope-ctl {arguments[0]} did not end within {seconds:g} s",
            "look at the daemon's log: journalctl -u memscoped",
            code="timeout",
        ) from error
    except OSError as error:
        raise CtlMissingError(f"{ctl} cannot be started: {error.strerror}", WAY_TO_FIND) from error
    except ValueError as error:
        # A NUL in an argument, which no program can be given.
        raise CtlError(f"memscope-ctl {arguments[0]} cannot be asked that: {error}") from error
    document = _object(done.stdout)
    if done.returncode != 0:
        raise _failure(arguments[0], done.returncode, document, done.stderr)
    if document is None or "error" in document:
        raise AnswerError(
            f"memscope-ctl {arguments[0]} did not answer with a JSON object",
            f"is {ctl} a memscope-ctl that goes with this package? memscope-ctl --version",
        )
    return document


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _failure(
    command: str, exit_code: int, document: dict[str, Any] | None, said: bytes
) -> CtlError:
    error = document.get("error") if document else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return CtlError(
            error["message"],
            str(error.get("hint") or ""),
            code=str(error.get("code") or ""),
            exit_code=exit_code,
        )
    # The command line was not understood, or the program was killed: there is no document then.
    words = said.decode("utf-8", "replace").strip()
    how = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"
    return CtlError(
        f"memscope-ctl {command} {how}" + (f": {words}" if words else ""),
        "is it older than this package? memscope-ctl --version" if exit_code == 2 else "",
        exit_code=exit_code,
    )
