"""What `torch.cuda._memory_viz` makes of a snapshot of ours and of PyTorch's own of the same moment.

`functions.py OURS.pickle CONTROL.pickle`: each function must take ours and say the same of both. One line of JSON.
For the browser it leaves beside each pickle the page that PyTorch makes of it (`….pickle.html`).
"""

import contextlib
import json
import pickle
import sys

from torch.cuda import _memory_viz


def bare(value):
    """Without times, which differ by a moment, keys that some versions do not have, and what was once asked for of a
    block that is free now. Keys are compared by the tests of conformance, not here."""
    if isinstance(value, dict):
        kept = {key: bare(item) for key, item in sorted(value.items())}
        if "action" in kept:
            for key in set(kept) - {"action", "addr", "device_free", "size", "stream", "frames"}:
                del kept[key]
        if kept.get("state") == "inactive":
            kept["requested_size"] = 0
        return kept
    if isinstance(value, list):
        return [bare(item) for item in value]
    return value


def lines(text):
    return text


FUNCTIONS = {
    "segsum": _memory_viz.segsum,
    "trace": _memory_viz.trace,
    "segments": lambda snapshot: _memory_viz.segments(snapshot, format_flamegraph=lines),
    "memory": lambda snapshot: _memory_viz.memory(snapshot, format_flamegraph=lines),
    "compare": lambda snapshot: _memory_viz.compare([], snapshot["segments"], format_flamegraph=lines),
}


def main(ours_file, control_file):
    # `compare` prints.
    with contextlib.redirect_stdout(sys.stderr):
        wrong = check(ours_file, control_file)
    print(json.dumps({"functions": [*FUNCTIONS, "trace_plot", "segment_plot"], "wrong": wrong}))
    return 1 if wrong else 0


def check(ours_file, control_file):
    with open(ours_file, "rb") as file:
        ours = pickle.load(file)
    with open(control_file, "rb") as file:
        control = pickle.load(file)
    wrong = []
    for name, function in FUNCTIONS.items():
        try:
            function(ours)
            mine = function(bare(ours))
        except Exception as error:  # noqa: BLE001: it is what is looked for
            wrong.append(f"{name}: {error!r}")
            continue
        own = function(bare(control))
        if not mine:
            wrong.append(f"{name}: says nothing")
        if mine != own:
            pairs = zip(mine.splitlines(), own.splitlines())
            at, differ = next(((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1]), (None, None))
            wrong.append(f"{name}: differs in line {at}: {differ}")
    for file, snapshot in [(ours_file, ours), (control_file, control)]:
        for name in ["trace_plot", "segment_plot"]:
            try:
                page = getattr(_memory_viz, name)(snapshot)
            except Exception as error:  # noqa: BLE001
                wrong.append(f"{name} of {file}: {error!r}")
                continue
            if name == "trace_plot":
                with open(f"{file}.html", "w") as out:
                    out.write(page)
    return wrong


sys.exit(main(*sys.argv[1:]))
