"""Tests of the package. `cargo test -p memscope-mark` runs them; by hand, from the folder above:

    MEMSCOPE_MARK_LIBRARY=../../target/debug/libmemscope_mark.so python3 -m unittest discover -t . -s tests
"""

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

if not os.path.isfile(os.environ.get("MEMSCOPE_MARK_LIBRARY", "")):
    raise RuntimeError(
        "MEMSCOPE_MARK_LIBRARY names no file: cargo build -p memscope-mark makes "
        "target/debug/libmemscope_mark.so"
    )
sys.path.insert(0, str(PACKAGE / "src"))
