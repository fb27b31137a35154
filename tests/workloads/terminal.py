"""Cells in a shell of IPython that is no notebook's: says what they print and what they give, a JSON document for each."""

import io
import json
import sys
from contextlib import redirect_stdout

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for text in sys.stdin:
    said = io.StringIO()
    with redirect_stdout(said):
        result = shell.run_cell(json.loads(text), store_history=True)
    print(json.dumps({"said": said.getvalue(), "gave": repr(result.result), "well": result.success}), flush=True)
