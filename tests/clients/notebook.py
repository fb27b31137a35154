"""Executes a notebook, and prints its cells with their outputs as one JSON document.

python notebook.py FILE KERNEL      FILE: a notebook, or a text of cells with lines `#---` between them; KERNEL: name of a kernel
"""

import json
import sys

import nbclient
import nbformat

file, kernel = sys.argv[1:]
if file.endswith(".ipynb"):
    notebook = nbformat.read(file, as_version=4)
else:
    with open(file, encoding="utf-8") as opened:
        sources = opened.read().split("#---\n")
    cells = [nbformat.v4.new_code_cell(source.rstrip("\n")) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=300, kernel_name=kernel, allow_errors=True).execute()


def told(output):
    if output.output_type == "error":
        return {"error": output.ename, "text": output.evalue}
    if output.output_type == "stream":
        return {"text": output.text}
    shown = output.data
    return {"text": shown.get("text/plain", ""), "html": shown.get("text/html"), "png": "image/png" in shown}


code = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(json.dumps([{"source": cell.source, "outputs": [told(one) for one in cell.outputs]} for cell in code]))
