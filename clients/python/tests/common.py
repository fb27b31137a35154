"""What the tests share."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from memscope import _config, _library

STAND_IN = Path(__file__).with_name("stand_in.py")


class Recorder(_library.Library):
    """In place of the library: keeps what it is called with."""

    def __init__(self):
        self.calls = []
        self.numbers = 0
        self.mark = lambda name: self.calls.append(("mark", name))
        self.range_end = lambda number: self.calls.append(("end", number))
        self.step = lambda: self.calls.append(("step",))

    def range_begin(self, name):
        self.numbers += 1
        self.calls.append(("begin", self.numbers, name))
        return self.numbers


class Recorded(unittest.TestCase):
    """Marks are recorded, and nothing was said to config before."""

    def setUp(self):
        self.library = Recorder()
        for patch in (
            mock.patch.object(_library, "current", self.library),
            mock.patch.object(_config, "_said", _config.Wishes()),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    @property
    def calls(self):
        return self.library.calls


class WithCtl(Recorded):
    """The stand-in for memscope-ctl is the one that MEMSCOPE_CTL names. Its folder is the current one."""

    def setUp(self):
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.ctl = self.folder / "memscope-ctl"
        program = STAND_IN.read_text(encoding="utf-8")
        self.ctl.write_text(f"#!{sys.executable} -I\n{program}", encoding="utf-8")
        self.ctl.chmod(0o755)
        self.told = self.folder / "told"
        named = {"MEMSCOPE_CTL": str(self.ctl), "STAND_IN": str(self.told)}
        patch = mock.patch.dict(os.environ, named)
        patch.start()
        self.addCleanup(patch.stop)
        self.answers()

    def answers(self, **answer):
        """What the stand-in does from now on."""
        self.told.write_text(json.dumps(answer), encoding="utf-8")

    def refuses(self, code, message, hint, exit_code=1):
        error = {"code": code, "message": message, "hint": hint}
        self.answers(out={"error": error}, exit=exit_code, err="memscope-ctl: for people\n")

    @property
    def asked(self):
        """What it was asked so far; options that were not given are left out."""
        log = Path(str(self.told) + ".asked")
        if not log.exists():
            return []
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return [{k: v for k, v in one.items() if v is not None and v is not False} for one in lines]
