"""Compares the reader with PyTorch's own snapshot, at every pause of workload.py, for equality.

    python compare.py VENV [WORKLOAD…]      run from the repository's root, after
    cargo build -p memscope-structure --example read

LAYOUT=FILE finds the layout once, at the first pause with evidence, and reads everything else with it.
VENV is an environment with PyTorch; it runs on the simulated device. Prints a line for each pause and ends with
`N passed, N failed` (exit code 1 if any failed).
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
READ = os.environ.get("MEMSCOPE_READ", "target/debug/examples/read")
CONF = "PYTORCH_CUDA_ALLOC_CONF"
DELAY = {"SIMCUDA_EVENT_DELAY_US": "3000000"}
RUNS = {
    "training": ("training", {}),
    "streams": ("streams", DELAY),
    "streams without delay": ("streams", {}),
    "mixed": ("mixed", {}),
    "expandable": ("mixed", {CONF: "expandable_segments:True"}),
    "expandable training": ("training", {CONF: "expandable_segments:True"}),
    "expandable streams": ("streams", {CONF: "expandable_segments:True", **DELAY}),
    "max split": ("mixed", {CONF: "max_split_size_mb:30"}),
    "collection": ("mixed", {CONF: "garbage_collection_threshold:0.001"}),
    "power of two": ("mixed", {CONF: "roundup_power2_divisions:4"}),
    "private": ("private", {}),
    "private expandable": ("private", {CONF: "expandable_segments:True"}),
    "devices": ("devices", {"SIMCUDA_DEVICES": "2"}),
    "nothing": ("nothing", {}),
}
STATE = {
    "allocated": "active_allocated",
    "pending_free": "active_pending_free",
    "inactive": "inactive",
}


def environment(venv):
    settings = dict(os.environ, MEMSCOPE_TORCH_VENV=str(venv))
    printed = subprocess.run(
        ["cargo", "xtask", "sim", "--print-env"], env=settings, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)


def ours(reading):
    for device in reading["devices"]:
        for segment in device["segments"]:
            yield {
                "device": device["device"],
                "address": segment["addr"],
                "total_size": segment["size"],
                "stream": segment["stream"],
                "segment_type": "large" if segment["large"] else "small",
                "segment_pool_id": segment["pool"],
                "is_expandable": segment["expandable"],
                "blocks": [
                    [block["addr"], block["size"], block["requested"], STATE[block["state"]]]
                    for block in segment["blocks"]
                ],
            }


def key(segment):
    return segment["device"], segment["address"]


def difference(want, got):
    want, got = sorted(want, key=key), sorted(got, key=key)
    if len(want) != len(got):
        return f"{len(want)} segments, read {len(got)}"
    for w, g in zip(want, got):
        for field in w:
            if w[field] != g[field]:
                return f"segment {w['address']:#x}: {field} is {w[field]}, read {g[field]}"
    return None


def run(env, venv, name):
    workload, settings = RUNS.get(name, (name, {}))
    process = subprocess.Popen(
        [str(venv / "bin/python"), str(HERE / "workload.py"), workload],
        env={**os.environ, **env, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    passed = failed = 0
    for line in process.stdout:
        state = json.loads(line)
        count = ["50"] if state["segments"] is None else []
        read = subprocess.run(
            [READ, str(process.pid), os.environ.get("ATTEMPTS", "2000"), *count],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **({"MEMSCOPE_LAYOUT": os.environ["LAYOUT"]} if "LAYOUT" in os.environ else {})},
        )
        if state["segments"] is None:
            print(read.stdout + read.stderr)
            process.kill()
            break
        try:
            reading = json.loads(read.stdout)
        except ValueError:
            reading = {"error": read.stderr}
        blocks = sum(len(segment["blocks"]) for segment in state["segments"])
        states = {block[3] for segment in state["segments"] for block in segment["blocks"]}
        if "error" in reading:
            nothing = "active_allocated" not in states and "nothing to find yet" in reading["error"]
            wrong = None if nothing else reading["error"]
            note = reading["error"]
        else:
            wrong = difference(state["segments"], list(ours(reading)))
            note = f"{blocks} blocks, {reading['attempts']} attempts, {reading['bytes_read']} bytes, " + (
                f"{reading['duration']['nanos'] / 1e6:.2f} ms"
            )
        pending = sum(
            block[3] == "active_pending_free" for segment in state["segments"] for block in segment["blocks"]
        )
        verdict = "ok  " if wrong is None else "FAIL"
        print(f"{verdict} {name}: {state['pause']}: {note}, {pending} pending" + (f": {wrong}" if wrong else ""), flush=True)
        if os.environ.get("VERBOSE"):
            print(read.stdout + read.stderr)
        passed, failed = passed + (wrong is None), failed + (wrong is not None)
        process.stdin.write("\n")
        process.stdin.flush()
    code = process.wait()
    if code not in (0, -9):
        print(f"FAIL {name}: the workload ended with {code}")
        failed += 1
    return passed, failed


def main():
    venv = pathlib.Path(sys.argv[1]).absolute()
    names = sys.argv[2:] or list(RUNS)
    env = environment(venv)
    results = [run(env, venv, name) for name in names]
    passed, failed = (sum(column) for column in zip(*results))
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
