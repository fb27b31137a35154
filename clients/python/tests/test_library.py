"""Marks through the real library, each time in a process of its own."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from . import PACKAGE

LIBRARY = os.path.abspath(os.environ["MEMSCOPE_MARK_LIBRARY"])


def python(program, **environment):
    """Runs a program with the package; what it printed, and its exit code with its words."""
    said = {**os.environ, "PYTHONPATH": str(PACKAGE / "src"), "MEMSCOPE_MARK_LIBRARY": LIBRARY}
    said.update(environment)
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", program],
        env={name: value for name, value in said.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )


class Real(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def runs(self, program, **environment):
        done = python(program, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_what_the_probed_function_is_given(self):
        listener, heard = self.folder / "listener.so", self.folder / "heard"
        source = Path(__file__).with_name("listener.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(listener), str(source)], check=True)
        self.runs(
            "import memscope\n"
            "memscope.mark('moment')\n"
            "memscope.mark('ä\\0ö')\n"
            "memscope.mark('x' * 10_000)\n"
            "with memscope.range('outer'), memscope.range(''): pass\n"
            "memscope.step()\n",
            LD_PRELOAD=str(listener),
            LISTENER=str(heard),
        )
        lines = heard.read_bytes().splitlines()
        first = int(lines[3].split()[1])
        self.assertNotEqual(first, 0)
        expected = [
            b"0 0 6 moment",
            "0 0 7 ä␀ö".encode(),
            b"0 0 10000 " + b"x" * 10_000,
            b"1 %d 5 outer" % first,
            b"1 %d 0 " % (first + 1),
            b"2 %d 0 " % (first + 1),
            b"2 %d 0 " % first,
            b"3 0 0 ",
        ]
        self.assertEqual(lines, expected)

    def test_any_name_from_many_threads(self):
        said = self.runs(
            "import memscope, threading\n"
            "names = ['', 'a', '\\0', 'ä\\ud800', '\\U0001f525' * 2500, 'n' * 10_000]\n"
            "numbers = []\n"
            "def work():\n"
            "    for _ in range(500):\n"
            "        for name in names:\n"
            "            memscope.mark(name)\n"
            "            with memscope.range(name) as one:\n"
            "                numbers.append(one._number)\n"
            "        memscope.step()\n"
            "threads = [threading.Thread(target=work) for _ in range(6)]\n"
            "for one in threads: one.start()\n"
            "for one in threads: one.join()\n"
            "print(len(numbers), len(set(numbers)), memscope.step())\n"
        )
        self.assertEqual(said, "18000 18000 3001\n")

    def test_it_is_not_loaded_before_the_first_mark(self):
        program = (
            "import memscope, pathlib\n"
            "loaded = lambda: 'memscope_mark' in pathlib.Path('/proc/self/maps').read_text()\n"
            "print(loaded()); memscope.step(); print(loaded())\n"
        )
        self.assertEqual(self.runs(program), "False\nTrue\n")

    def test_start_loads_it_before_it_asks_so_that_no_mark_is_missed(self):
        ctl = self.folder / "ctl"
        ctl.write_text(
            "#!/bin/sh\ngrep -q memscope_mark /proc/$PPID/maps && echo {}\n", encoding="utf-8"
        )
        ctl.chmod(0o755)
        self.runs("import memscope; memscope.start()", MEMSCOPE_CTL=str(ctl))

    def test_start_needs_no_library(self):
        ctl = self.folder / "ctl"
        ctl.write_text("#!/bin/sh\necho {}\n", encoding="utf-8")
        ctl.chmod(0o755)
        program = (
            "import memscope\n"
            "memscope.start()\n"
            "try: memscope.mark('x')\n"
            "except memscope.LibraryError: print('now it is told')\n"
        )
        absent = {"MEMSCOPE_MARK_LIBRARY": str(self.folder / "absent.so")}
        self.assertEqual(self.runs(program, MEMSCOPE_CTL=str(ctl), **absent), "now it is told\n")

    def test_every_kind_of_mark_may_be_the_first(self):
        for first in ("mark('a')", "range('a').__enter__().__exit__(None, None, None)", "step()"):
            self.runs(f"import memscope; memscope.{first}; memscope.{first}")

    def test_a_library_that_is_not_there(self):
        absent = self.folder / "absent.so"
        program = "import memscope; memscope.mark('x')"
        done = python(program, MEMSCOPE_MARK_LIBRARY=str(absent))
        self.assertEqual(done.returncode, 1)
        self.assertIn("LibraryError: the mark library cannot be loaded: ", done.stderr)
        self.assertIn(str(absent), done.stderr)
        self.assertIn("\n  try: install the package again", done.stderr)
        # Nothing is beside the modules in the sources, where nobody has installed.
        if not (PACKAGE / "src/memscope/libmemscope_mark.so").exists():
            done = python(program, MEMSCOPE_MARK_LIBRARY=None)
            self.assertIn("src/memscope/libmemscope_mark.so: cannot open", done.stderr)

    def test_a_library_that_is_another(self):
        source, other = self.folder / "other.c", self.folder / "other.so"
        source.write_text("int other;\n", encoding="utf-8")
        subprocess.run(["cc", "-shared", "-o", str(other), str(source)], check=True)
        done = python("import memscope; memscope.step()", MEMSCOPE_MARK_LIBRARY=str(other))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"LibraryError: {other} is no mark library of memscope", done.stderr)

    def test_a_bare_name_is_a_file_in_this_folder(self):
        os.symlink(LIBRARY, self.folder / "mine.so")
        program = f"import os, memscope; os.chdir({str(self.folder)!r}); memscope.step()"
        self.runs(program, MEMSCOPE_MARK_LIBRARY="mine.so")

    def test_the_check_sum_is_msmemscopes(self):
        said = self.runs(
            "from memscope import _library\n"
            "for data in (b'123456789', b'a\\0b', b''):\n"
            "    print(f'{_library.current.checksum(data, len(data)):016x}')\n"
        )
        self.assertEqual(said.split()[0], "b86883e6fa710a9f")
        self.assertEqual(said.split()[2], "0000000000000000")
        self.assertEqual(len(set(said.split())), 3)

    def test_the_watcher_without_torch(self):
        said = self.runs(
            "import sys\n"
            "sys.modules['torch'] = None\n"
            "import memscope\n"
            "try: memscope.watcher.watch(4096, length=1)\n"
            "except memscope.MemscopeError as error: print(error)\n"
        )
        self.assertEqual(said, "there is no PyTorch to watch with\n  try: install torch\n")

    def test_python_keeps_its_own_range_beside_a_star(self):
        said = self.runs("from memscope import *\nprint(list(range(2)), mark.__module__)")
        self.assertEqual(said, "[0, 1] memscope._marks\n")

    def test_what_msmemscope_has_and_memscope_has_not(self):
        said = self.runs(
            "import memscope\n"
            "print(hasattr(memscope, 'describer'))\n"
            "for name in ('describer', 'RecordFunction', 'tracer', 'nonsense'):\n"
            "    try: getattr(memscope, name)\n"
            "    except AttributeError as error: print(error)\n"
        )
        lines = said.splitlines()
        self.assertEqual(lines[0], "False")
        self.assertIn("memscope has no describer: it is memscope.describe.describer", lines[1])
        self.assertIn("memscope.range(name) is a context manager", lines[2])
        self.assertEqual(lines[4], "module 'memscope' has no attribute 'nonsense'")


if __name__ == "__main__":
    unittest.main()
