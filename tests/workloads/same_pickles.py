"""Compares two pickles of snapshots of one moment: prints what differs, and the totals of the first as JSON.

`same_pickles.py A B`: A is PyTorch's own, B was made of it.
"""

import json
import pickle
import sys


def frames(of):
    """The frames of a stack, without the interpreter's own, in the place of which B has the frames of Python."""
    frames = [[frame["name"], frame["filename"], frame["line"]] for frame in of.get("frames", [])]
    return [frame for frame in frames if not frame[0].startswith("_PyEval_EvalFrameDefault")]


def segments(snapshot):
    found = []
    for segment in snapshot["segments"]:
        blocks = []
        for block in segment["blocks"]:
            held = block["state"] != "inactive"
            told = [block["requested_size"], frames(block)] if held else []
            blocks.append([block["address"], block["size"], block["state"], *told])
        keys = ("device", "address", "total_size", "stream", "segment_type")
        found.append([*(segment[key] for key in keys), blocks])
    return sorted(found, key=lambda segment: segment[:2])


def entries(snapshot):
    def address(entry):
        return entry["device_free"] if entry["action"] == "oom" else entry["addr"]

    # PyTorch's entry for a snapshot says whatever device was the current one.
    return [
        [
            [entry["action"], address(entry), entry["size"], entry["stream"], entry["time_us"], frames(entry)]
            for entry in trace
            if entry["action"] != "snapshot"
        ]
        for trace in snapshot["device_traces"]
    ]


def peak(snapshot):
    """The most requested bytes at one time in the trace of device 0, as PyTorch's viewer adds them up."""
    blocks = [block for segment in snapshot["segments"] if segment["device"] == 0 for block in segment["blocks"]]
    live = sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    most = live
    for entry in reversed(snapshot["device_traces"][0]):
        if entry["action"] == "alloc":
            live -= entry["size"]
        elif entry["action"] == "free_requested":
            live += entry["size"]
        most = max(most, live)
    return most


def differences(name, ours, theirs, found):
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs)):
            differences(f"{name}[{place}]", one, other, found)
    elif ours != theirs and len(found) < 20:
        found.append([name, repr(theirs)[:300], repr(ours)[:300]])


with open(sys.argv[1], "rb") as opened:
    theirs = pickle.load(opened)
with open(sys.argv[2], "rb") as opened:
    ours = pickle.load(opened)
found = []
differences("segments", segments(ours), segments(theirs), found)
most = max((len(trace) for trace in theirs["device_traces"]), default=0)
if most:
    mine = entries(ours)
    mine += [[]] * (len(entries(theirs)) - len(mine))
    differences("traces", mine[: len(entries(theirs))], entries(theirs), found)
sums = {}
for segment in theirs["segments"]:
    one = sums.setdefault(segment["device"], {"device": segment["device"], "allocated": 0, "reserved": 0})
    one["reserved"] += segment["total_size"]
    one["allocated"] += sum(
        block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"
    )
json.dump({"differences": found, "devices": list(sums.values()), "entries": most, "peak": peak(theirs)}, sys.stdout)
