"""Compares memscope's answers about moments that have passed with what the process itself wrote down at those moments.

    compare.py snapshot OWN EXPORTED    EXPORTED is a pickle of `memscope-ctl snapshot --format memory-viz`
    compare.py diff OWN OWN DIFF        DIFF is what `memscope-ctl --json diff` said of the two moments

Prints one JSON object: how much was compared, and what differs, in words. OWN is what trainer.py wrote.
"""

import json
import pickle
import sys

TOLD = 5


def load(file):
    with open(file, "rb") as opened:
        return pickle.load(opened)


def blocks(segments):
    """Every segment and every block, by what identifies it, with what must be equal."""
    found = {}
    for segment in segments:
        key = ("segment", segment["device"], segment["address"])
        found[key] = [segment[name] for name in ("total_size", "allocated_size", "stream", "segment_type")]
        for block in segment["blocks"]:
            # What the last owner of a free piece asked for says nothing.
            requested = None if block["state"] == "inactive" else block["requested_size"]
            found["block", segment["device"], block["address"]] = [block["size"], block["state"], requested]
    return found


def snapshot(own, exported):
    ours, theirs = blocks(load(own)["segments"]), blocks(load(exported)["segments"])
    keys = ours.keys() | theirs.keys()
    differing = [f"{key}: own {ours.get(key)}, told {theirs.get(key)}" for key in sorted(keys) if ours.get(key) != theirs.get(key)]
    return len(keys), differing


def amount(told):
    return [told.get("count", 0), told.get("bytes", 0)]


def diff(before, after, told):
    before, after = load(before), load(after)
    with open(told, encoding="utf-8") as opened:
        [device] = json.load(opened)["devices"]

    def sum_of(numbers, held):
        # The allocator rounds up to 512 bytes.
        return [len(numbers), sum(-(-held[number] // 512) * 512 for number in numbers)]

    def allocated(record):
        return sum(segment["allocated_size"] for segment in record["segments"])

    was, now = before["held"], after["held"]
    expected = {
        "came": sum_of(now.keys() - was.keys(), now),
        "went": sum_of(was.keys() - now.keys(), was),
    }
    differing = [f"{key}: own {own}, told {amount(device[key])}" for key, own in expected.items() if amount(device[key]) != own]
    for key, record in (("allocated_before_bytes", before), ("allocated_after_bytes", after)):
        if device[key] != allocated(record):
            differing.append(f"{key}: own {allocated(record)}, told {device[key]}")
    return 4, differing


def main():
    kind, *files = sys.argv[1:]
    compared, differing = {"snapshot": snapshot, "diff": diff}[kind](*files)
    print(json.dumps({"compared": compared, "different": len(differing), "examples": differing[:TOLD]}))


main()
