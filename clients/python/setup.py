"""Builds the package with the mark library in it.

The library comes from `cargo build --release -p memscope-mark`, or, already built, from where
MEMSCOPE_MARK_LIBRARY says.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
CRATE = HERE.parent / "mark" / "Cargo.toml"
FILE = "libmemscope_mark.so"


class BuildFailed(SystemExit):
    """Ends the build with what is wrong and the way out, without a traceback."""

    def __init__(self, what, way_out):
        super().__init__(f"error: {what}\n  try: {way_out}")


def mark_library():
    """The file of the mark library, built if none is named."""
    named = os.environ.get("MEMSCOPE_MARK_LIBRARY")
    if named:
        library = Path(named)
        if not library.is_file():
            raise BuildFailed(
                f"MEMSCOPE_MARK_LIBRARY names {named}, which is no file",
                f"name a built {FILE}, or unset it to have it built",
            )
        return library
    if not CRATE.is_file():
        raise BuildFailed(
            "the sources of the mark library are not beside those of this package",
            f"install from a checkout of memscope, or name a built {FILE} with MEMSCOPE_MARK_LIBRARY",
        )
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if not cargo:
        raise BuildFailed(
            "cargo, which builds the mark library, is not on PATH",
            f"install Rust (https://rustup.rs), or name a built {FILE} with MEMSCOPE_MARK_LIBRARY",
        )
    return built(cargo)


def built(cargo):
    """Builds the library; where it is, as cargo says."""
    command = [cargo, "build", "--release", "--locked", "-p", "memscope-mark"]
    command += ["--manifest-path", str(CRATE), "--message-format", "json-render-diagnostics"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise BuildFailed(
            f"{cargo} cannot be started: {error.strerror}", "is Rust installed, and CARGO right?"
        ) from error
    if done.returncode != 0:
        raise BuildFailed(
            "cargo could not build the mark library; its words are above",
            f"repair that, or name a built {FILE} with MEMSCOPE_MARK_LIBRARY",
        )
    for line in done.stdout.splitlines():
        message = json.loads(line)
        for name in message.get("filenames") or ():
            if Path(name).name == FILE:
                return Path(name)
    raise BuildFailed(f"cargo built no {FILE}", "is it a checkout of memscope, unchanged?")


class BuildWithLibrary(build_py):
    """The package's modules, and the library beside them."""

    def run(self):
        library = mark_library()
        if self.editable_mode:
            package = HERE / "src" / "memscope"
        else:
            package = Path(self.build_lib) / "memscope"
            # What an earlier build left would be packed, too.
            shutil.rmtree(package, ignore_errors=True)
        super().run()
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, package / FILE)


class WheelOfPlatform(bdist_wheel):
    """For this platform, but any Python 3: the library knows nothing of Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithLibrary(Distribution):
    """A package that is not the same on every platform."""

    def has_ext_modules(self):
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfPlatform},
    distclass=WithLibrary,
)
