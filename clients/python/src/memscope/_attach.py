"""Following this very process."""

from __future__ import annotations

import os

from . import _config, _ctl, _library, watcher


def start() -> None:
    """Has memscope follow this process from now on, as `config` said.

    Runs ``memscope-ctl attach`` for this process and returns when the probes are live and what was there before
    has been read. If the process has not loaded a device's library yet, it is followed from when it does.

    Raises `CtlMissingError` if there is no memscope-ctl, `CtlError` if it or the daemon refuses.
    """
    watcher.check(_config.wishes().watch)
    # In a library that is loaded later the first marks are missed, until the probe is there.
    _library.be_ready()
    arguments = _config.wishes().attach_arguments()
    _ctl.ask(
        "attach", "--pid", str(os.getpid()), "--wait", *arguments, seconds=_ctl.DAEMON_SECONDS
    )
    watcher.begin(_config.wishes().watch)


def stop() -> None:
    """Has memscope follow this process no longer.

    Raises `CtlError` with the code ``not_traced`` if it did not, and as `start` does.
    """
    watcher.end()
    _ctl.ask("detach", "--pid", str(os.getpid()), seconds=_ctl.DAEMON_SECONDS)
