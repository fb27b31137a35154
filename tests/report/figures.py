"""Computes the figures of a report again, from the same pickle, in the plainest way: with lists and loops.

figures.py PICKLE: prints them as JSON. `viz` is what PyTorch's own torch.cuda._memory_viz sums up.
"""

import json
import pickle
import sys

with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)


def titan(frames):
    if not frames:
        return "Unknown"
    words = [
        ("Expert/MoE", ["expert", "moe"]),
        ("Attention", ["attention", "attn"]),
        ("Linear/MatMul", ["linear", "matmul"]),
        ("Embedding", ["embedding", "emb"]),
        ("Normalization", ["norm"]),
        ("Activation", ["activation"]),
        ("Gradient", ["gradient", "backward"]),
        ("Communication", ["all_to_all", "communication"]),
        ("FSDP", ["fsdp"]),
    ]
    for frame in frames:
        name, file = frame["name"].lower(), frame["filename"].lower()
        if "optimizer" in file or "optimizer" in name:
            return "Optimizer State"
        for category, parts in words:
            if any(part in file for part in parts):
                return category
    return "Other"


def keyword(frames):
    words = [
        ("Expert/MoE", ["moe.py", "GroupedExperts", "TokenChoiceTopKRouter", "MoE"]),
        ("Attention", ["attention", "Attention", "CausalSelfAttention"]),
        ("Linear", ["linear", "Linear", "matmul", "mm"]),
        ("Optimizer State", ["optimizer", "Adam", "AdamW"]),
        ("Communication", ["all_to_all", "all_gather", "reduce_scatter", "broadcast"]),
        ("FSDP", ["fsdp", "FSDP", "FullyShardedDataParallel"]),
        ("Gradient", ["gradient", "Gradient", "backward"]),
        ("Embedding", ["embedding", "Embedding"]),
        ("Normalization", ["norm", "LayerNorm", "RMSNorm"]),
        ("DeepEP Overhead", ["deepep", "deep_ep", "fused_dispatch", "fused_combine", "PrimusTurbo"]),
    ]
    text = "\n".join(frame["filename"] + "\n" + frame["name"] for frame in frames)
    for category, parts in words:
        if any(part in text for part in parts):
            return category
    return "Unknown"


blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
active = [block for block in blocks if block["state"] == "active_allocated"]
inactive = [block for block in blocks if block["state"] == "inactive"]
categories, keywords = {}, {}
for block in active:
    for sums, decide in ((categories, titan), (keywords, keyword)):
        name = decide(block["frames"])
        sums[name] = sums.get(name, 0) + block["size"]

trace = next((trace for trace in snapshot["device_traces"] if trace), [])
# mosaic: from 0, and frees only of what was seen coming.
there, total, dynamic, at = {}, 0, 0, 0
for number, entry in enumerate(trace):
    if entry["action"] == "alloc":
        there[entry["addr"]] = entry
        total += entry["size"]
    elif entry["action"] == "free_completed" and entry["addr"] in there:
        total -= there.pop(entry["addr"])["size"]
    if total > dynamic:
        dynamic, at = total, number + 1
named = {entry["addr"] for entry in trace if entry["action"] in ("alloc", "free_completed")}
static = sum(block["size"] for block in active if block["address"] not in named)
# The course backwards: from what is there at the end.
level = sum(block["requested_size"] for block in blocks if block["state"] != "inactive")
reserved = sum(segment["total_size"] for segment in snapshot["segments"])
peak, reserved_at_peak = level, reserved
for entry in reversed(trace):
    if level >= peak:
        peak, reserved_at_peak = level, reserved
    if entry["action"] == "alloc":
        level -= entry["size"]
    elif entry["action"] == "free_completed":
        level += entry["size"]
    elif entry["action"] in ("segment_alloc", "segment_map"):
        reserved -= entry["size"]
    elif entry["action"] in ("segment_free", "segment_unmap"):
        reserved += entry["size"]
if level >= peak:
    peak, reserved_at_peak = level, reserved

try:
    from torch.cuda import _memory_viz

    viz = sum(_memory_viz.calc_active(segment) for segment in snapshot["segments"])
except ImportError:
    viz = None

print(
    json.dumps(
        {
            "allocated": sum(block["size"] for block in active),
            "reserved": sum(block["size"] for block in blocks),
            "active": len(active),
            "inactive": len(inactive),
            "free": sum(block["size"] for block in inactive),
            "largest_free": max((block["size"] for block in inactive), default=0),
            "categories": categories,
            "keywords": keywords,
            "largest": sorted((block["size"] for block in active), reverse=True)[:50],
            "dynamic": dynamic,
            "static": static,
            "peak": peak,
            "reserved_at_peak": reserved_at_peak,
            "allocations": sum(entry["action"] == "alloc" for entry in trace),
            "frees": sum(entry["action"] == "free_completed" for entry in trace),
            "viz": viz,
        }
    )
)
