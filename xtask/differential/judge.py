"""Compares what memscope says of a moment with what PyTorch said of itself then. `xtask/conformance/compare.py` compares
segments, blocks, entries of the trace and frames; here is said which of them a level promises, and the statistics are compared.

    judge.py        each line on standard input is a JSON object, answered with one line of JSON
    judge.py --self-test
                    shows that it finds what it is to find

A question has
    own         the file that `player.py` wrote
    exported    the file of `memscope-ctl snapshot --format memory-viz`
    level       trace, blocks, segments, read
    moment      live, past, recorded
    stacks      whether Python's frames are promised
    lossy       whether records may have been lost, so that the answer may say that it does not know
    stats       the answer of `memscope-ctl --json stats`, where it was asked
    told        PyTorch's statistics at that moment (`devices` of `player.py`)
    plant       whether a number of what memscope says is changed first: a judgement that is worth something finds it

and the answer has counts of what was compared, `differing` by key, the first `differences` in full, `coverage`, and
`verdict`: equal, differs, or unknown, where memscope says itself that it does not know.
"""

import copy
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))

import compare  # noqa: E402: beside us in another folder

# Codes that take back that every block is known.
NOT_KNOWN = {
    "attached_late", "baseline_not_read", "inexact_after_loss", "reading_contradicted", "reading_failed",
    "reading_incomplete", "reading_too_old", "rounded_size_unknown",
}
# Codes that say that the trace begins later than the attach.
TRACE_BEGINS_LATE = {"journal_begins_late", "trace_begins_late"}
# Of the statistics, what is compared at which level. At level read nothing is seen between two readings, so the largest
# values are not known; at level blocks requested sizes are not.
STATISTICS = {
    "trace": ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "requested_bytes", "live_blocks", "segments"),
    "blocks": ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "live_blocks"),
    "read": ("allocated_bytes", "reserved_bytes", "requested_bytes", "live_blocks", "segments"),
    "segments": (),
}


# Chunks of segments that expand are mapped in multiples of this.
PAGE = 2 << 20


def taken(trace):
    """Bytes that PyTorch took from the driver in this part of its trace and has not given back."""
    segments, pages = {}, set()
    for entry in trace:
        address, size = entry.get("addr", 0), entry["size"]
        covered = range(address // PAGE, (address + size) // PAGE)
        if entry["action"] == "segment_alloc":
            segments[address] = size
        elif entry["action"] == "segment_free":
            segments.pop(address, None)
        elif entry["action"] == "segment_map":
            pages.update(covered)
        elif entry["action"] == "segment_unmap":
            pages.difference_update(covered)
    return sum(segments.values()) + len(pages) * PAGE


class Scoped(compare.Comparison):
    """A comparison of what a level promises."""

    def __init__(self, question):
        super().__init__()
        self.level = question["level"]
        self.moment = question["moment"]
        self.lossy = question["lossy"]
        self.wants_stacks = question["stacks"]
        self.counts["statistics"] = 0
        # A snapshot of now that says that it was not read.
        self.unread = False
        # By device, what was asked for by those that the program holds.
        self.listed = {}
        # By device, what was taken from the driver since the attach and is still there.
        self.taken = {}

    def snapshots(self, own, exported, marks):
        about = exported.get("memscope", {})
        lost = bool(about.get("lost_records"))
        codes = set(compare.coverage(exported))
        self.stacks = self.wants_stacks and compare.NO_STACKS not in codes
        for device, trace in enumerate(own["device_traces"]):
            mark = marks[device] if device < len(marks) else 0
            self.since[device] = {entry["addr"] for entry in trace[mark:] if entry["action"] == "alloc"}
        if lost:
            # Whose stack was lost has none.
            self.stacks = False
            if not self.lossy:
                self.differs("memscope", "lost_records", 0, about["lost_records"])
        for segment in own["segments"]:
            device = segment["device"]
            # PyTorch's own number of segments does not count those that expand as its snapshot lists them.
            self.listed[device] = self.listed.get(device, 0) + 1
        if self.level == "segments":
            for device, trace in enumerate(own["device_traces"]):
                self.taken[device] = taken(trace[marks[device] if device < len(marks) else 0:])
            return
        self.unread = self.level == "blocks" and self.moment == "live" and "layout_not_read" in codes
        if self.level == "blocks" and (self.moment != "live" or self.unread):
            self.handed_out(own["segments"], exported.get("segments", []))
            return
        self.record("allocator_settings", "allocator_settings", own["allocator_settings"],
                    exported.get("allocator_settings", {}))
        self.segments(own["segments"], exported.get("segments", []))
        if self.level != "read" and not lost:
            late = bool(about.get("trace_dropped")) or bool(codes & TRACE_BEGINS_LATE)
            # Entries of snapshots that were taken on nobody knows which device.
            unplaced = "snapshot_device_unknown" in codes
            self.traces(own["device_traces"], exported.get("device_traces", []), marks, late, unplaced)

    def traces(self, own, exported, marks, late, unplaced):
        pairs = self.lists("snapshot", "device_traces", own, exported)
        for device, (ours, theirs) in enumerate(pairs):
            ours = ours[marks[device] if device < len(marks) else 0:]
            if unplaced:
                ours, theirs = ([entry for entry in trace if entry["action"] != "snapshot"] for trace in (ours, theirs))
            if late and len(theirs) < len(ours):
                # It says that its beginning is gone: what is left must be the end of PyTorch's.
                ours = ours[len(ours) - len(theirs):]
            (self.outline if self.level == "blocks" else self.trace)(device, ours, theirs)
        for offset in (min(self.offsets, default=0), max(self.offsets, default=0)):
            if abs(offset) > compare.MOST_OFFSET_US:
                self.differs("trace", "offset of time_us", f"within {compare.MOST_OFFSET_US} µs", offset)

    def handed_out(self, own, exported):
        """Which blocks the program holds, with their rounded sizes: of an earlier moment level blocks knows no more."""
        def held(segments):
            return {
                (segment["device"], block["address"]): block["size"]
                for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
            }

        ours, theirs = held(own), held(exported)
        for place in sorted(ours.keys() | theirs.keys()):
            self.counts["blocks"] += 1
            self.value(f"device {place[0]}, block at {place[1]:#x}", "block held", ours.get(place), theirs.get(place))

    def statistics(self, told, stats):
        found = {device.get("device"): device for device in stats.get("devices", [])}
        # What it says itself not to know: of the segments it gives those that it knows, and of a loss what went by in it.
        codes = codes_of(stats)
        left_out = {"segments"} if "segments_unknown" in codes else set()
        # What it says to be a lower bound must be one.
        lost = self.lossy and "records_lost" in codes
        at_least = {"peak_allocated_bytes", "peak_reserved_bytes"} if lost or "sizes_untold" in codes else set()
        for own in told:
            device = own["device"]
            own = {**own, "segments": self.listed.get(device, 0)}
            if device not in found and own["reserved_bytes"] == 0:
                continue
            for key in STATISTICS[self.level]:
                if key in left_out:
                    continue
                self.counts["statistics"] += 1
                theirs = found.get(device, {}).get(key)
                if key in at_least and theirs is not None and theirs <= own[key]:
                    continue
                # Of an allocator that holds nothing there may be nothing to read.
                if theirs is None and (key not in ("allocated_bytes", "reserved_bytes") or own["reserved_bytes"] == 0):
                    continue
                self.value(f"statistics of device {device}", f"statistics {key}", own[key], theirs)
        if self.level == "segments" and not (self.lossy and "records_lost" in codes):
            self.driver(found, "device_unknown" in codes)

    def driver(self, found, device_unknown):
        """What was taken from the driver. Of a part it may be said that nobody knows on which device that is."""
        seen = {device: row.get("driver", {}).get("bytes", 0) for device, row in found.items()}
        for device in sorted(self.taken):
            self.counts["statistics"] += 1
            ours, theirs = self.taken[device], seen.get(device, 0)
            if not device_unknown or theirs > ours:
                self.value(f"statistics of device {device}", "statistics driver bytes", ours, theirs)
        if device_unknown:
            self.value("statistics", "statistics driver bytes of all devices", sum(self.taken.values()), sum(seen.values()))


def codes_of(stats):
    return [note["code"] for note in stats.get("coverage", [])]


def plant(exported):
    """Another size of what it says last."""
    for segment in exported["segments"][-1:]:
        segment["blocks"][-1]["size"] += 512


def judge(question, own, exported):
    if question.get("plant"):
        plant(exported)
    scoped = Scoped(question)
    if exported is not None:
        scoped.snapshots(own["snapshot"], exported, own["marks"])
    codes = set(compare.coverage(exported or {}))
    stats = question.get("stats")
    if stats:
        codes |= set(codes_of(stats))
        scoped.statistics(question["told"], stats)
    verdict = "equal" if not scoped.differing else "differs"
    if scoped.lossy and scoped.differing and codes & NOT_KNOWN:
        verdict = "unknown"
    # Or that it knows nothing yet of what was there before.
    if scoped.level != "segments" and scoped.differing and {"totals_unknown", "attached_late"} <= codes:
        verdict = "unknown"
    if scoped.level == "read" and scoped.differing and "totals_unknown" in codes:
        verdict = "unknown"
    if verdict == "equal" and scoped.unread:
        verdict = "unknown"
    return {
        **scoped.counts, "differing": scoped.differing, "differences": scoped.told, "coverage": sorted(codes),
        "verdict": verdict,
    }


def self_test():
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    entry = {"action": "alloc", "addr": 4096, "size": 100, "stream": 0, "time_us": 7, "pool_id": (0, 0), "frames": frames}
    block = {"address": 4096, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": frames}
    segment = {
        "device": 0, "address": 4096, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512,
        "requested_size": 100, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": [block],
    }
    before = {**entry, "addr": 8192}
    own = {"marks": [1], "snapshot": {
        "segments": [segment], "device_traces": [[before, entry, {**entry, "action": "free_requested", "addr": 12288}]],
        "allocator_settings": {"max_split_size": -1},
    }}
    about = {"lost_records": 0, "trace_dropped": 0, "coverage": []}
    good = copy.deepcopy({**own["snapshot"], "memscope": about})
    del good["device_traces"][0][0]
    plain = {"level": "trace", "moment": "live", "stacks": True, "lossy": False}

    def verdict(change=lambda exported: None, **more):
        exported = copy.deepcopy(good)
        change(exported)
        return judge({**plain, **more}, own, exported)

    def size(exported):
        exported["segments"][0]["blocks"][0]["size"] = 1024

    def requested(exported):
        exported["segments"][0]["blocks"][0]["requested_size"] = 512

    def shorter(exported):
        del exported["device_traces"][0][0]

    def late(exported):
        shorter(exported)
        exported["memscope"]["coverage"] = [{"code": "journal_begins_late"}]

    def lost(exported):
        shorter(exported)
        exported["memscope"]["lost_records"] = 3

    def lost_and_wrong(exported):
        lost(exported)
        size(exported)

    def lost_and_said(exported):
        lost_and_wrong(exported)
        exported["memscope"]["coverage"] = [{"code": "inexact_after_loss"}]

    def frame(exported):
        exported["device_traces"][0][0]["frames"][0]["line"] = 4

    equal = verdict()
    assert equal["verdict"] == "equal" and (equal["blocks"], equal["entries"], equal["stacks"]) == (1, 2, 2), equal
    for change in (size, requested, shorter, lost, frame):
        assert verdict(change)["verdict"] == "differs", change
    for level in ("read", "trace"):
        assert verdict(size, level=level, moment="past")["differing"], level
    assert not verdict(frame, stacks=False)["differing"]
    assert not verdict(shorter, level="read")["differing"]
    assert not verdict(requested, level="blocks", moment="past")["differing"]
    assert verdict(size, level="blocks", moment="past")["differing"] == {"block held": 1}
    assert verdict(lambda exported: exported["segments"].clear(), level="blocks", moment="past")["differing"]
    def unread(exported):
        requested(exported)
        exported["memscope"]["coverage"] = [{"code": "layout_not_read"}]

    assert verdict(requested, level="blocks")["verdict"] == "differs"
    assert verdict(unread, level="blocks")["verdict"] == "unknown"
    assert verdict(unread)["verdict"] == "differs"
    def untold(*names):
        def change(exported):
            exported["segments"].clear()
            exported["memscope"]["coverage"] = [{"code": name} for name in names]

        return change

    assert verdict(untold("totals_unknown", "attached_late"))["verdict"] == "unknown"
    assert verdict(untold("totals_unknown"), level="read")["verdict"] == "unknown"
    for names in (["totals_unknown"], ["attached_late"], ["level_read"]):
        assert verdict(untold(*names))["verdict"] == "differs", names
    # A trace that says that its beginning is gone is compared as far as it goes.
    assert not verdict(late)["differing"] and verdict(late)["entries"] == 1
    # After a loss the state must be right, or be said not to be.
    assert not verdict(lost, lossy=True)["differing"]
    assert verdict(lost_and_wrong, lossy=True)["verdict"] == "differs"
    assert verdict(lost_and_said, lossy=True)["verdict"] == "unknown"
    assert verdict(lost_and_said)["verdict"] == "differs"
    assert verdict(plant=True)["differing"]
    numbers = {**{key: 5 for key in STATISTICS["trace"]}, "requested_bytes": 100, "segments": 1}
    told = [{"device": 0, **numbers}, {"device": 1, "reserved_bytes": 0}]
    stats = {"devices": [{"device": 0, **numbers}]}
    assert verdict(told=told, stats=stats)["statistics"] == len(STATISTICS["trace"])
    for key in STATISTICS["trace"]:
        wrong = copy.deepcopy(stats)
        wrong["devices"][0][key] = 6
        assert verdict(told=told, stats=wrong)["differing"] == {f"statistics {key}": 1}
    # After a loss a peak is a lower bound.
    for peak, wrong in ((4, False), (6, True)):
        lower = {"devices": [{"device": 0, **numbers, "peak_allocated_bytes": peak}]}
        assert verdict(told=told, stats=lower)["differing"], peak
        lower["coverage"] = [{"code": "sizes_untold"}]
        assert bool(verdict(told=told, stats=lower)["differing"]) == wrong, peak
    steps = [("segment_alloc", 5, 100), ("segment_alloc", 9, 50), ("segment_free", 5, 100), ("segment_free", 7, 30),
             ("segment_map", 10 * PAGE, 4 * PAGE), ("segment_unmap", 11 * PAGE, PAGE), ("segment_unmap", 20 * PAGE, PAGE)]
    assert taken([{"action": action, "addr": at, "size": size} for action, at, size in steps]) == 50 + 3 * PAGE
    for driver, wrong in ((0, False), (7, True)):
        seen = {"devices": [{"device": 0, "driver": {"bytes": driver}}]}
        assert bool(verdict(level="segments", told=told, stats=seen)["differing"]) == wrong
    for seen, wrong in (((50 + PAGE, 3 * PAGE - PAGE), False), ((50 + PAGE, 7), True), ((51 + 3 * PAGE, -1), True)):
        unknown = {"devices": [{"device": 0, "driver": {"bytes": seen[0]}}, {"driver": {"bytes": seen[1]}}]}
        unknown["coverage"] = [{"code": "device_unknown"}]
        own["snapshot"]["device_traces"] = [[before, *(
            {"action": action, "addr": at, "size": size} for action, at, size in steps)]]
        assert bool(verdict(level="segments", told=told, stats=unknown)["differing"]) == wrong, seen
        assert verdict(level="segments", told=told, stats={**unknown, "coverage": []})["differing"], seen
    assert verdict(told=told, stats={"devices": []})["verdict"] == "differs"
    print("judge.py: ok")


def main():
    for line in sys.stdin:
        question = json.loads(line)
        exported = question.get("exported")
        answer = judge(question, compare.load(question["own"]), exported and compare.load(exported))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        main()
