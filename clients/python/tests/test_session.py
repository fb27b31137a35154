"""What `memscope.open` says where something is missing, and the memscoped that it starts for a recording. Tables and pictures need
packages, and are tried in tests_with_packages, and with a daemon in tests/tests/notebooks.rs."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import memscope
from memscope._replay import Replayer

from . import PACKAGE

#: Stands in for memscoped: listens at the socket, or says something and ends, as the recording tells it.
STAND_IN = """
import os, signal, socket, sys
recording, path = sys.argv[2], sys.argv[4]
said = open(recording).read()
open(recording + ".pid", "w").write(str(os.getpid()))
if said.startswith("say "):
    sys.stderr.write("first\\n" + said[4:])
    sys.exit(3)
if said == "hang":
    signal.pause()
if said == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
signal.pause()
"""


def lives(pid):
    """Whether it runs, and is not only waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class Replays(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.program = self.folder / "memscoped"
        self.program.write_text(f"#!{sys.executable} -I\n{STAND_IN}")
        self.program.chmod(0o755)
        self.recording = self.folder / "recording"
        self.recording.write_text("listen")
        patch = mock.patch.dict(os.environ, {"MEMSCOPED": str(self.program), "TMPDIR": place.name})
        patch.start()
        self.addCleanup(patch.stop)
        patch = mock.patch.object(tempfile, "tempdir", None)
        patch.start()
        self.addCleanup(patch.stop)

    def pid(self):
        return int(Path(f"{self.recording}.pid").read_text())

    def ends(self, pid):
        deadline = time.monotonic() + 30
        while lives(pid):
            self.assertLess(time.monotonic(), deadline, "it still runs")
            time.sleep(0.01)
        # Its folder goes with it.
        while list(self.folder.glob("memscope-*/words")):
            self.assertLess(time.monotonic(), deadline, "its folder is left")
            time.sleep(0.01)

    def test_it_listens_until_it_is_closed(self):
        replayer = Replayer(self.recording, seconds=30)
        pid = self.pid()
        self.assertTrue(lives(pid))
        self.assertFalse(replayer.has_ended())
        replayer.close()
        self.ends(pid)
        replayer.close()
        self.assertTrue(replayer.has_ended())

    def test_one_that_does_not_end_is_killed(self):
        self.recording.write_text("stubborn")
        with mock.patch("memscope._replay._GRACE", 0.1):
            Replayer(self.recording, seconds=30).close()
        self.ends(self.pid())

    def test_it_ends_with_the_object(self):
        replayer = Replayer(self.recording, seconds=30)
        pid = self.pid()
        del replayer
        gc.collect()
        self.ends(pid)

    def opened_elsewhere(self, ending):
        program = (
            f"import sys; sys.path.insert(0, {str(PACKAGE / 'src')!r})\n"
            f"from memscope._replay import Replayer\nkept = Replayer({str(self.recording)!r}, seconds=30)\n{ending}"
        )
        return subprocess.Popen([sys.executable, "-I", "-c", program], stdout=subprocess.PIPE)

    def test_it_ends_with_the_interpreter(self):
        with self.opened_elsewhere("") as done:
            self.assertEqual(done.wait(60), 0)
        self.ends(self.pid())

    def test_it_ends_with_a_process_that_is_killed(self):
        with self.opened_elsewhere("print(1, flush=True); import signal; signal.pause()") as killed:
            killed.stdout.readline()
            killed.kill()
            self.assertEqual(killed.wait(60), -signal.SIGKILL)
        self.ends(self.pid())

    def test_a_forked_copy_leaves_it_alone(self):
        replayer = Replayer(self.recording, seconds=30)
        self.addCleanup(replayer.close)
        child = os.fork()
        if not child:
            replayer.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(lives(self.pid()))
        self.assertTrue(os.path.exists(replayer.socket))

    def refused(self, code):
        with self.assertRaises(memscope.DaemonError) as caught:
            Replayer(self.recording, seconds=30)
        self.assertEqual(caught.exception.code, code)
        self.assertTrue(caught.exception.hint)
        return caught.exception.message

    def test_its_last_words_are_told(self):
        self.recording.write_text("say memscoped: not a recording\n\nat byte 7\n")
        said = self.refused("replay_failed")
        self.assertTrue(said.endswith(": first; memscoped: not a recording; at byte 7"), said)
        self.recording.write_text("say ")
        self.assertIn(": first", self.refused("replay_failed"))

    def test_one_that_never_listens(self):
        self.recording.write_text("hang")
        with self.assertRaises(memscope.DaemonError) as caught:
            Replayer(self.recording, seconds=1)
        self.assertEqual(caught.exception.code, "timeout")
        self.ends(self.pid())

    def test_files_and_programs_that_are_not_there(self):
        self.recording = self.folder / "missing"
        self.assertIn("missing cannot be read: No such file", self.refused("no_recording"))
        self.recording = self.folder
        with mock.patch.dict(os.environ, {"MEMSCOPED": str(self.folder / "none")}):
            self.assertIn("which is no program", self.refused("no_replayer"))
        with mock.patch.dict(os.environ, {"MEMSCOPED": "", "PATH": str(self.folder / "none"), "MEMSCOPE_CTL": ""}):
            self.assertIn("MEMSCOPED is not set", self.refused("no_replayer"))

    def test_the_one_beside_memscope_ctl_is_taken(self):
        ctl = self.folder / "memscope-ctl"
        ctl.write_text("#!/bin/sh\n")
        ctl.chmod(0o755)
        with mock.patch.dict(os.environ, {"MEMSCOPED": "", "PATH": "/usr/bin:/bin", "MEMSCOPE_CTL": str(ctl)}):
            Replayer(self.recording, seconds=30).close()
        self.ends(self.pid())


class WithoutPackages(unittest.TestCase):
    """In an interpreter that has the standard library only."""

    def says(self, program):
        program = f"import sys; sys.path.insert(0, {str(PACKAGE / 'src')!r})\nimport memscope\n{program}"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        return done.stdout.strip()

    def test_the_command_is_named_that_installs_what_is_missing(self):
        said = self.says("try: memscope.open()\nexcept ImportError as error: print(type(error).__name__, error)")
        self.assertRegex(said, "^ExtraMissingError memscope.open\\(\\) needs grpcio, which cannot be imported: ")
        self.assertIn("try: pip install grpcio (or all of it: pip install './clients/python[grpc]')", said)
        said = self.says(
            "from memscope._extras import need\nfor one in ('pyarrow', 'matplotlib.figure', 'IPython.display'):\n"
            "    try: need(one, 'this')\n    except memscope.MemscopeError as error: print(error.hint)"
        )
        self.assertEqual(
            said.splitlines(),
            [
                "pip install pyarrow (or all of it: pip install './clients/python[arrow]')",
                "pip install matplotlib (or all of it: pip install './clients/python[notebook]')",
                "pip install ipython (or all of it: pip install './clients/python[notebook]')",
            ],
        )

    def test_columns_are_described_without_any_package(self):
        said = self.says(
            "from memscope import frames\n"
            "print(all(len(one) == 3 and all(one) for table in frames.TABLES.values() for one in table))\n"
            "from memscope import views\nprint(views.readable('a\\n<b>\\x1b[0m' + 'x' * 99))"
        )
        lines = said.splitlines()
        self.assertEqual(lines[0], "True")
        self.assertRegex(lines[1], r"^a\\n<b>\\x1b\[0mx+…x+$")

    def test_the_page_lists_all_columns(self):
        page = PACKAGE.parent.parent / "docs/notebooks.md"
        beginning, heading, listed = page.read_text(encoding="utf-8").partition("## Columns\n")
        wanted = self.says(
            "from memscope import frames\n"
            "for name, columns in frames.TABLES.items():\n"
            "    print(f'\\n### {name}\\n\\n| column | type | |\\n|---|---|---|')\n"
            "    for one in columns: print(f'| `{one.name}` | {one.type} | {one.what} |')"
        )
        if os.environ.get("MEMSCOPE_WRITE"):
            page.write_text(f"{beginning}{heading}\n{wanted}\n", encoding="utf-8")
        else:
            self.assertEqual(listed.strip(), wanted, "MEMSCOPE_WRITE=1 writes the list anew")


if __name__ == "__main__":
    unittest.main()
