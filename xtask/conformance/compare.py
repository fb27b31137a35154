"""Compares memscope's export with PyTorch's own snapshot of the same moment: every segment, block and trace entry,
key by key; and the Python frames of all of them but frees.

    compare.py OWN EXPORTED [--outline]
                    prints one JSON object; exit status 0 whatever it says, unless a file cannot be read.
                    --outline: of the trace, only which blocks came and went in which order; for a process whose
                    allocator's trace cannot be seen
    compare.py --self-test
                    shows that it finds what it is to find

OWN is what wrapper.py wrote: {"marks": …, "snapshot": torch.cuda.memory._snapshot()}. EXPORTED is a pickle of
`memscope-ctl snapshot --format memory-viz`. Nothing but Python is needed.
"""

import copy
import io
import json
import pickle
import sys

# Not compared as other keys are: what no probe sees yet. `time_us` is compared by order and offset; `frames` of
# every entry of the trace but those of frees, which have none in memscope, and of every block that was handed out since
# memscope sees. Segments have theirs in PyTorch until they are first split; in memscope their entry in the trace has them.
EXCLUDED = {"time_us", "compile_context", "user_metadata", "external_annotations", "frames", "forward_frames"}
# Keys of the newest format. memscope always writes these; where an older PyTorch lacks one it is `added`.
NEWEST = {
    "top level": {
        "segments", "device_traces", "allocator_settings", "external_annotations", "host_segments", "host_traces",
    },
    "segment": {
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
        "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
    },
    "block": {"address", "size", "requested_size", "state", "frames"},
    "trace entry": {
        "action", "addr", "device_free", "size", "stream", "time_us", "compile_context", "user_metadata", "frames",
        "pool_id",
    },
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments",
        "pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
        "graph_capture_record_stream_reuse", "max_round_threshold", "max_cached_size", "roundup_power2_divisions",
    },
}
# What memscope says of itself. It must not be in the way of anybody who reads the file.
OURS = {"top level": {"memscope"}}
# What there is of a frame.
FRAME = ("filename", "line", "name")
FREES = {"free_requested", "free_completed"}
# Where memscope says that it takes none, there are none to compare.
NO_STACKS = "no_python_stacks"
# A clock that is another clock, or another unit, is further off than this.
MOST_OFFSET_US = 5_000_000
# So many differences are told in full.
TOLD = 12


class Comparison:
    """What was compared and what differed."""

    def __init__(self):
        self.counts = {"segments": 0, "blocks": 0, "entries": 0, "values": 0, "stacks": 0}
        # Whether stacks are compared, and by device the addresses that were handed out since memscope sees.
        self.stacks = True
        self.since = {}
        self.differing = {}
        self.added = set()
        self.told = []
        self.offsets = []

    def differs(self, place, key, own, exported):
        self.differing[key] = self.differing.get(key, 0) + 1
        if len(self.told) < TOLD:
            self.told.append(f"{place}: {key}: PyTorch {own!r}, memscope {exported!r}")

    def value(self, place, key, own, exported):
        self.counts["values"] += 1
        # 1, 1.0 and True are equal to Python, and not to whoever reads the file.
        if type(own) is not type(exported) or own != exported:
            self.differs(place, key, own, exported)

    def record(self, kind, place, own, exported, nested=()):
        """Two dictionaries, but for the keys in `nested`, which the caller compares."""
        for key in [*own, *(key for key in exported if key not in own)]:
            name = f"{kind} {key}"
            if key not in own:
                if key in NEWEST[kind]:
                    self.added.add(name)
                elif key not in OURS.get(kind, ()):
                    self.differs(place, name, "no such key", exported[key])
            elif key in EXCLUDED or key in nested:
                if key not in exported and key != "forward_frames" and key != "frames":
                    self.differs(place, name, own[key], "no such key")
            elif key not in exported:
                self.differs(place, name, own[key], "no such key")
            else:
                self.value(place, name, own[key], exported[key])

    def lists(self, place, key, own, exported):
        """The pairs of two lists that must be of one length."""
        self.counts["values"] += 1
        if len(own) != len(exported):
            self.differs(place, f"number of {key}", len(own), len(exported))
        return zip(own, exported)

    def frames(self, place, key, own, exported):
        """Two stacks, frame by frame, innermost first. Those that PyTorch has are counted."""
        if not self.stacks:
            return
        ours, theirs = ([[frame.get(part) for part in FRAME] for frame in of.get("frames", [])] for of in (own, exported))
        self.counts["stacks"] += bool(ours)
        self.value(place, f"{key} frames", ours, theirs)

    def segments(self, own, exported):
        for at, (ours, theirs) in enumerate(self.lists("snapshot", "segments", own, exported)):
            place = f"segment {at} at {ours.get('address', 0):#x}"
            self.counts["segments"] += 1
            self.record("segment", place, ours, theirs, nested={"blocks"})
            pairs = self.lists(place, "blocks", ours["blocks"], theirs.get("blocks", []))
            for number, (block, other) in enumerate(pairs):
                self.counts["blocks"] += 1
                where = f"{place}, block {number} at {block.get('address', 0):#x}"
                self.record("block", where, block, other)
                handed_out = str(block.get("state")).startswith("active_")
                if handed_out and block.get("address") in self.since.get(ours.get("device"), ()):
                    self.frames(where, "block", block, other)

    def trace(self, device, own, exported):
        last = None
        for at, (ours, theirs) in enumerate(self.lists(f"device {device}", "trace entries", own, exported)):
            place = f"device {device}, entry {at} ({ours.get('action')})"
            self.counts["entries"] += 1
            self.record("trace entry", place, ours, theirs)
            if ours.get("action") not in FREES:
                self.frames(place, "trace entry", ours, theirs)
            if "time_us" in ours and "time_us" in theirs:
                self.offsets.append(theirs["time_us"] - ours["time_us"])
                if last is not None and theirs["time_us"] < last:
                    self.differs(place, "order of time_us", f"not before {last}", theirs["time_us"])
                last = theirs["time_us"]

    def outline(self, device, own, exported):
        """Which blocks were handed out and given back: at level `blocks` nothing more is known."""
        said = [
            [(entry["action"], entry["addr"]) for entry in trace if entry["action"] in ("alloc", "free_requested")]
            for trace in (own, exported)
        ]
        pairs = self.lists(f"device {device}", "blocks that came and went", *said)
        for at, (ours, theirs) in enumerate(pairs):
            self.counts["entries"] += 1
            self.value(f"device {device}, {at}", "block that came or went", ours, theirs)

    def clean(self, exported):
        """An export that says itself that something is missing proves nothing."""
        about = exported.get("memscope", {})
        for key in ("lost_records", "trace_dropped"):
            if about.get(key) != 0:
                self.differs("memscope", key, 0, about.get(key))

    def all(self, own, exported, marks, outline):
        self.record("top level", "snapshot", own, exported, nested={"segments", "device_traces", "allocator_settings"})
        self.clean(exported)
        self.stacks = NO_STACKS not in coverage(exported)
        for device, trace in enumerate([] if outline else own["device_traces"]):
            mark = marks[device] if device < len(marks) else 0
            self.since[device] = {entry["addr"] for entry in trace[mark:] if entry["action"] == "alloc"}
        # torch_npu's snapshots have none.
        if "allocator_settings" in own:
            self.record("allocator_settings", "allocator_settings", own["allocator_settings"],
                        exported.get("allocator_settings", {}))
        self.segments(own["segments"], exported.get("segments", []))
        pairs = self.lists("snapshot", "device_traces", own["device_traces"], exported.get("device_traces", []))
        for device, (ours, theirs) in enumerate(pairs):
            mark = marks[device] if device < len(marks) else 0
            (self.outline if outline else self.trace)(device, ours[mark:], theirs)
        for offset in (min(self.offsets, default=0), max(self.offsets, default=0)):
            if abs(offset) > MOST_OFFSET_US:
                self.differs("trace", "offset of time_us", f"within {MOST_OFFSET_US} µs", offset)
        return self

    def report(self, exported):
        return {
            **self.counts,
            "differing": self.differing,
            "differences": self.told,
            "added": sorted(self.added),
            "offset_us": [min(self.offsets), max(self.offsets)] if self.offsets else None,
            "coverage": coverage(exported),
        }


def coverage(exported):
    return [note["code"] for note in exported.get("memscope", {}).get("coverage", [])]


class Plain(pickle.Unpickler):
    """Numbers, words, lists and dictionaries: a snapshot has nothing else, and nothing else is made of it."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot does not name {module}.{name}")


def load(path):
    with open(path, "rb") as file:
        return Plain(io.BytesIO(file.read())).load()


def compare(own, exported, outline=False):
    comparison = Comparison().all(own["snapshot"], exported, own["marks"], outline)
    return comparison.report(exported)


def self_test():
    """Every single value of an example, changed, is found; and so is every entry that is missing or too many."""
    frames = [{"filename": "a.py", "line": 3, "name": "f"}, {"filename": "b.py", "line": 4, "name": "g"}]
    entry = {
        "action": "alloc", "addr": 4096, "size": 100, "stream": 0, "time_us": 7, "pool_id": (0, 0), "frames": frames,
    }
    settings = {key: 0 for key in NEWEST["allocator_settings"]}
    block = {
        "address": 4096, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": copy.deepcopy(frames),
    }
    segment = {
        "device": 0, "address": 4096, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512,
        "requested_size": 100, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": [block, {**block, "address": 4608}],
    }
    example = {
        "segments": [segment, {**segment, "address": 8 << 20}],
        "device_traces": [[entry, {**entry, "action": "free_requested", "time_us": 8}], []],
        "allocator_settings": settings, "external_annotations": [], "host_segments": [], "host_traces": [],
    }
    ours = {**copy.deepcopy(example), "memscope": {"lost_records": 0, "trace_dropped": 0, "coverage": []}}
    own = {"marks": [], "snapshot": example}
    assert compare(own, ours)["differing"] == {}, compare(own, ours)
    assert compare(own, ours)["values"] > 50

    def places(value, path=()):
        if isinstance(value, dict):
            for key in value:
                yield (*path, key)
                yield from places(value[key], (*path, key))
        elif isinstance(value, list):
            for at in range(len(value)):
                yield (*path, at)
                yield from places(value[at], (*path, at))

    def changed(path, how):
        copied = copy.deepcopy(ours)
        holder = copied
        for key in path[:-1]:
            holder = holder[key]
        how(holder, path[-1])
        return compare(own, copied)["differing"]

    def other(holder, key):
        value = holder[key]
        if isinstance(value, bool):
            holder[key] = int(value)
        elif isinstance(value, int):
            holder[key] = value + 1
        elif isinstance(value, str):
            holder[key] = value + "x"
        elif isinstance(value, tuple):
            holder[key] = (*value[:-1], value[-1] + 1)

    found = 0
    for path in places(ours):
        compared = not EXCLUDED & set(path) and path[0] != "memscope"
        assert not compared or changed(path, lambda holder, key: holder.pop(key)), f"{path} missing, not found"
        value = ours
        for key in path:
            value = value[key]
        if compared and not isinstance(value, (list, dict)):
            assert changed(path, other), f"{path} changed, not found"
            found += 1
    assert found > 50, found
    for path in [("segments", 0), ("segments", 0, "blocks", 0), ("device_traces", 0, 0)]:
        assert changed(path, lambda holder, key: holder.insert(key, copy.deepcopy(holder[key]))), path
    for path in [("memscope", "lost_records"), ("memscope", "trace_dropped")]:
        assert changed(path, other), path
    assert changed(("device_traces", 0, 1, "time_us"), lambda holder, key: holder.update({key: 3})), "order"
    assert changed(("device_traces", 0, 1, "time_us"), lambda holder, key: holder.update({key: 10**9})), "offset"
    assert changed(("segments", 0, "surprise"), lambda holder, key: holder.update({key: 1})), "a key of nobody's"
    # Frames: of each entry but frees, and of each block that was handed out since, in order and each part of them.
    stacks = [("device_traces", 0, 0, "frames"), ("segments", 0, "blocks", 0, "frames")]
    assert compare(own, ours)["stacks"] == 3, compare(own, ours)
    for path in stacks:
        assert changed(path, lambda holder, key: holder.pop(key)), path
        assert changed(path, lambda holder, key: holder[key].reverse()), path
        assert changed(path, lambda holder, key: holder[key].append(frames[0])), path
        for part in FRAME:
            assert changed((*path, 1, part), other), (path, part)
    for path in [("device_traces", 0, 1, "frames"), ("segments", 0, "blocks", 1, "frames")]:
        assert not changed(path, lambda holder, key: holder.pop(key)), path
    none = {**ours["memscope"], "coverage": [{"code": NO_STACKS}]}
    assert compare(own, {**ours, "memscope": none})["stacks"] == 0
    late = {"marks": [1, 0], "snapshot": example}
    without = copy.deepcopy({**ours, "device_traces": [ours["device_traces"][0][1:], []]})
    without["segments"][0]["blocks"][0]["frames"] = []
    assert compare(late, without)["differing"] == {}
    assert compare(late, without)["stacks"] == 0
    older = copy.deepcopy(own)
    del older["snapshot"]["host_traces"]
    assert compare(older, ours)["added"] == ["top level host_traces"]
    assert compare(older, ours)["differing"] == {}
    # The outline sees blocks come and go, and nothing of how.
    reduced = copy.deepcopy(ours)
    reduced["device_traces"][0][0].update(size=512, stream=7)
    assert compare(own, reduced)["differing"] and not compare(own, reduced, True)["differing"]
    reduced["device_traces"][0][0].update(addr=8192)
    assert compare(own, reduced, True)["differing"]
    print("compare.py: ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        left, right = (load(path) for path in sys.argv[1:3])
        json.dump(compare(left, right, sys.argv[3:] == ["--outline"]), sys.stdout)
        print()
