"""What needs gRPC, and what does not. How a daemon is asked is tried with a daemon, in tests/tests/clients.rs."""

import subprocess
import sys
import unittest

from . import PACKAGE


class WithoutLibraries(unittest.TestCase):
    """In an interpreter that has the standard library only."""

    def says(self, program):
        program = f"import sys; sys.path.insert(0, {str(PACKAGE / 'src')!r})\n{program}"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        return done.stdout.strip()

    def test_the_package_itself_needs_nothing(self):
        said = self.says("import memscope; print(memscope.DaemonError('it failed', 'do better', code='word').code)")
        self.assertEqual(said, "word")

    def test_the_client_names_the_extra_that_it_needs(self):
        program = (
            "try:\n"
            "    import memscope.client\n"
            "except ImportError as error:\n"
            "    print(type(error.__cause__).__name__, error)"
        )
        said = self.says(program)
        self.assertRegex(said, "^ModuleNotFoundError memscope.client needs grpcio, and protobuf from 3.20 on: ")
        self.assertIn("pip install grpcio protobuf", said)


if __name__ == "__main__":
    unittest.main()
