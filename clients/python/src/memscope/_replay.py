"""A memscoped of one's own, which replays a recording on a private socket, as memscope-ctl does for ``--recording``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ._errors import DaemonError
from ._reach import unreachable

#: Seconds between two attempts to reach the memscoped that was started.
_PAUSE = 0.02
#: Seconds that it has to end after SIGTERM, before it is killed.
_GRACE = 3.0
#: Bytes at the end of its standard error that an error message is taken from.
_LAST_WORDS = 2000

# The shell ends memscoped when its own standard input ends, and deletes the folder. That happens also when this process is
# killed, and then nobody else would do it. The second child is ended first, so that it cannot end a stranger with an old number.
_TIED = """
exec 3<&0
folder=$1; shift
"$@" </dev/null 3<&- & child=$!
{ read -r line <&3; kill "$child"; } 2>/dev/null & watcher=$!
exec 3<&-
wait "$child"; status=$?
kill "$watcher" 2>/dev/null
rm -rf -- "$folder"
exit "$status"
"""


def program() -> str:
    """The memscoped that MEMSCOPED names, else the one beside memscope-ctl, else the one on PATH."""
    named = os.environ.get("MEMSCOPED")
    if named:
        found = shutil.which(named)
        if found:
            return found
        raise DaemonError(
            f"MEMSCOPED names {named}, which is no program",
            "name memscoped with MEMSCOPED, or unset it and put memscoped on PATH",
            code="no_replayer",
        )
    ctl = shutil.which(os.environ.get("MEMSCOPE_CTL") or "memscope-ctl")
    beside = shutil.which(str(Path(os.path.realpath(ctl)).with_name("memscoped"))) if ctl else None
    found = beside or shutil.which("memscoped")
    if not found:
        raise DaemonError(
            "a recording is read by memscoped, which is not on PATH, and MEMSCOPED is not set",
            "put memscoped on PATH, or name it with MEMSCOPED",
            code="no_replayer",
        )
    return found


class Replayer:
    """A memscoped that replays a recording, or reads a snapshot of PyTorch's, until `close`.

    It ends with this object, with this interpreter, and with this process, however that ends.
    """

    def __init__(
        self,
        recording: str | os.PathLike[str],
        *,
        seconds: float,
        answers: Callable[[str], bool] = lambda socket: unreachable(socket) is None,
    ) -> None:
        """Returns when `answers` says that it answers at its socket, within so many seconds."""
        path = os.path.realpath(recording)
        _readable(path)
        memscoped = program()
        self._folder = tempfile.mkdtemp(prefix="memscope-")
        self.socket = os.path.join(self._folder, "replay.sock")
        # Written at its end, wherever it was read meanwhile.
        self._words = open(os.path.join(self._folder, "words"), "ab+")
        command = [memscoped, "--replay", path, "--socket", self.socket]
        try:
            # A group of its own: Ctrl-C in a notebook or a terminal is not meant for it.
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _TIED, "sh", self._folder, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                start_new_session=True,
            )
        except OSError as error:
            self._words.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise DaemonError(
                f"memscoped cannot be started: {error.strerror or error}",
                "name memscoped with MEMSCOPED",
                code="no_replayer",
            ) from error
        self._end = weakref.finalize(self, _ended, self._shell, self._words, self._folder, os.getpid())
        try:
            self._wait(path, seconds, answers)
        except BaseException:
            self.close()
            raise

    def _wait(self, path: str, seconds: float, answers: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + seconds
        while True:
            # Its end is looked for before the socket is tried: one that ends in between is noticed in the next round.
            status = self._shell.poll()
            if answers(self.socket):
                return
            if status is not None:
                said = _last_words(self._words) or f"it ended with {status}"
                raise DaemonError(
                    f"memscoped cannot replay {path}: {said}",
                    "is it a recording, or a snapshot of PyTorch's that this memscoped reads? "
                    "memscoped --version, memscoped --help",
                    code="replay_failed",
                )
            if time.monotonic() >= deadline:
                raise DaemonError(
                    f"memscoped did not begin to replay {path} within {seconds:g} s",
                    "give it more time: memscope.open(PATH, timeout=SECONDS)",
                    code="timeout",
                )
            time.sleep(_PAUSE)

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._shell.poll() is not None

    def close(self) -> None:
        """Ends it, and deletes its folder. May be called again."""
        self._end()


def _readable(path: str) -> None:
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            with open(path, "rb"):
                pass
    except OSError as error:
        raise DaemonError(
            f"{path} cannot be read: {error.strerror or error}",
            "name a recording: a file or a directory, or a snapshot of PyTorch's",
            code="no_recording",
        ) from error


def _ended(shell: subprocess.Popen[bytes], words: BinaryIO, folder: str, owner: int) -> None:
    if os.getpid() != owner:
        # A copy in a forked process: it is the first process's, which goes on.
        return
    if shell.stdin is not None:
        shell.stdin.close()
    try:
        shell.wait(_GRACE)
    except subprocess.TimeoutExpired:
        # The group has the shell's number, and the shell has not been waited for.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    words.close()
    shutil.rmtree(folder, ignore_errors=True)


def _last_words(words: BinaryIO) -> str:
    """The last lines that were written there, at most three."""
    length = words.seek(0, os.SEEK_END)
    words.seek(max(0, length - _LAST_WORDS))
    lines = [line.strip() for line in words.read().decode("utf-8", "replace").splitlines()]
    return "; ".join([line for line in lines if line][-3:])
