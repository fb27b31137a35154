"""Building and installing the package, with pip in a fresh environment, from this checkout."""

import os
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

from . import PACKAGE


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        cls.folder = Path(cls.place.name)
        cls.python = str(cls.folder / "venv/bin/python")
        venv.create(cls.folder / "venv", with_pip=True)

    def runs(self, *command, **environment):
        """Runs a program away from the sources; what it said, and whether it succeeded."""
        said = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        said.pop("MEMSCOPE_MARK_LIBRARY", None)
        said.update(environment)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=said,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        return done.stdout, done.returncode == 0

    def pip(self, **environment):
        install = ("-m", "pip", "install", "--force-reinstall", str(PACKAGE))
        return self.runs(self.python, *install, **environment)

    def test_pip_builds_the_library_and_installs_both(self):
        said, installed = self.pip()
        self.assertTrue(installed, said)
        says = "import importlib.metadata, memscope; print(memscope.__version__, importlib.metadata.version('memscope'))"
        versions, _ = self.runs(self.python, "-c", says)
        # The workspace's own: its first line that says a version.
        cargo = (PACKAGE.parent.parent / "Cargo.toml").read_text(encoding="utf-8")
        version = cargo.split('\nversion = "', 1)[1].split('"', 1)[0]
        self.assertEqual(versions.split(), [version, version])
        # For this platform only, and any Python 3.
        self.assertRegex(said, r"filename=memscope-[0-9.]+-py3-none-linux_\w+\.whl")
        said, imported = self.runs(
            self.python,
            "-c",
            "import importlib.metadata, memscope, pathlib\n"
            "memscope.mark('installed')\n"
            "folder = pathlib.Path(memscope.__file__).parent\n"
            "maps = pathlib.Path('/proc/self/maps').read_text()\n"
            "print(str(folder / 'libmemscope_mark.so') in maps, (folder / 'py.typed').exists())\n"
            "print(sorted(one.suffix for one in folder.iterdir() if one.is_file()))\n"
            "print(str(folder).startswith(__import__('sys').prefix))\n"
            "print(sorted(one.name for one in (folder / 'v1').iterdir() if one.is_file()))\n"
            "print(sorted(one.split(';')[1] for one in importlib.metadata.requires('memscope')))\n",
        )
        self.assertTrue(imported, said)
        lines = said.splitlines()
        self.assertEqual(lines[0], "True True")
        modules = [one.suffix for one in (PACKAGE / "src/memscope").iterdir() if one.suffix != ".so"]
        self.assertEqual(lines[1], str(sorted([".so", *filter(None, modules)])))
        self.assertEqual(lines[2], "True")
        generated = (PACKAGE / "src/memscope/v1").iterdir()
        self.assertEqual(lines[3], str(sorted(one.name for one in generated if one.is_file())))
        # It needs nothing else, unless it is asked for.
        self.assertRegex(lines[4], r"""^\[('\s*extra == ["'](grpc|arrow|notebook)["']'(, )?)+\]$""")

    def test_a_library_that_is_built_already(self):
        named = os.path.abspath(os.environ["MEMSCOPE_MARK_LIBRARY"])
        without_cargo = f"{Path(self.python).parent}:/usr/bin:/bin"
        said, installed = self.pip(
            MEMSCOPE_MARK_LIBRARY=named, CARGO="/nonexistent", PATH=without_cargo
        )
        self.assertTrue(installed, said)
        wheel = "import memscope, pathlib\nprint(pathlib.Path(memscope.__file__).parent)"
        said, imported = self.runs(self.python, "-c", wheel)
        self.assertTrue(imported, said)
        packed = Path(said.strip(), "libmemscope_mark.so").read_bytes()
        self.assertEqual(packed, Path(named).read_bytes())

    def test_builds_that_cannot_be(self):
        away = str(self.folder / "empty")
        os.makedirs(away, exist_ok=True)
        bin_only = f"{Path(self.python).parent}:{away}"
        for words, environment in (
            (
                ("MEMSCOPE_MARK_LIBRARY names /nonexistent.so, which is no file", "unset it"),
                {"MEMSCOPE_MARK_LIBRARY": "/nonexistent.so"},
            ),
            (
                ("cargo, which builds the mark library, is not on PATH", "rustup.rs"),
                {"PATH": bin_only, "CARGO": ""},
            ),
            (("/nonexistent cannot be started", "is Rust installed"), {"CARGO": "/nonexistent"}),
            (("cargo could not build the mark library", "try: repair"), {"CARGO": "false"}),
            (("cargo built no libmemscope_mark.so", "unchanged?"), {"CARGO": "true"}),
        ):
            said, installed = self.pip(**environment)
            self.assertFalse(installed, said)
            for word in words:
                self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
