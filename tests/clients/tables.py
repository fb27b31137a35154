"""Prints the tables of a process as one JSON document: rows as objects, times as nanoseconds since 1970.

    python tables.py SOURCE [PID]       SOURCE: an address, a recording, a snapshot of PyTorch's; `daemon` for the one of MEMSCOPE_SOCKET

What is refused is the document {"error": {"code", "message", "hint"}}.
"""

import json
import sys

import memscope
import pandas
import polars
import pyarrow

NAMES = "stats segments blocks events stacks leaks steps timeline marks".split()


def rows(table):
    columns = {}
    for name, column in zip(table.column_names, table.columns):
        if pyarrow.types.is_timestamp(column.type):
            column = column.cast(pyarrow.int64())
        columns[name] = column.to_pylist()
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


source, pid = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
try:
    with memscope.open(None if source == "daemon" else source) as session:
        tables = {name: getattr(session, name)(pid) for name in NAMES}
        tables["processes"] = session.processes()
        if source == "daemon":
            tables["devices"] = session.devices()
            tables["owners"] = session.owners(pid)
        said = {name: rows(frame.table) for name, frame in tables.items()}
        shown = {name: sorted(frame._repr_mimebundle_()) for name, frame in tables.items()}
        blocks = tables["blocks"]
        pandas_blocks, polars_blocks = blocks.to_pandas(), polars.DataFrame(blocks)
        assert isinstance(pandas_blocks, pandas.DataFrame)
        sums = [
            int(pandas_blocks[pandas_blocks.state == "active"].size_bytes.sum()),
            polars_blocks.filter(polars.col("state") == "active")["size_bytes"].sum(),
        ]
    print(json.dumps({"tables": said, "shown": shown, "sums": sums}))
except memscope.DaemonError as error:
    print(json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))
