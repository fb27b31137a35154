"""Computes the figures of a report again, from the same pickle, in the plainest way: with lists, loops and sums.

    figures.py PICKLE           prints the figures as JSON
    figures.py PICKLE FOLDER    compares them with all that the report in FOLDER says: text, page, JSON and protobuf. Prints
                                {"values": how many were compared, "differences": […], "figures": …}

PICKLE is a snapshot of PyTorch's or of memscope's, or what xtask/conformance/wrapper.py wrote: then what PyTorch counted itself
(torch.cuda.memory_stats) must be the same, too. Nothing of memscope is used. `viz` is what PyTorch's own torch.cuda._memory_viz
sums up, where there is one.
"""

import collections
import html.parser
import json
import math
import os
import pickle
import re
import struct
import sys

# Rules of torchtitan's memory_analysis: by file; `optimizer` also by the function's name.
BY_FILE = [
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
# And those of its comparison of two runs: anywhere in the stack.
BY_KEYWORD = [
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
LIBRARIES = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3"]
LARGE = 100 << 20
MOST_ROWS = 50
MOST_POINTS = 1000
# What XProf calls what no allocation of the trace tells of.
PREALLOCATED = "unused preallocated device memory"


def titan(frames):
    if not frames:
        return "Unknown"
    for frame in frames:
        name, file = frame["name"].lower(), frame["filename"].lower()
        if "optimizer" in file or "optimizer" in name:
            return "Optimizer State"
        for category, parts in BY_FILE:
            if any(part in file for part in parts):
                return category
    return "Other"


def keyword(frames):
    text = "\n".join(frame["filename"] + "\n" + frame["name"] for frame in frames)
    for category, parts in BY_KEYWORD:
        if any(part in text for part in parts):
            return category
    return "Unknown"


def told(frame):
    at = f":{frame['line']}" if frame["line"] else ""
    return f"{frame['name']} ({frame['filename']}{at})"


def own_line(frames):
    """The innermost frame of the program's own, else the innermost of Python, else the innermost."""
    python = [
        frame for frame in frames
        if frame["filename"].endswith(".py") or frame["line"] and not re.search(r"\.(c|cpp|h|S)$", frame["filename"])
        and "(" not in frame["name"] and "::" not in frame["name"]
    ]
    own = [
        frame for frame in python
        if frame["line"] and not any(part in frame["filename"] for part in LIBRARIES)
        and (not frame["filename"].startswith("<") or frame["filename"] in ("<stdin>", "<string>"))
    ]
    return told([*own, *python, *frames][0]) if frames else ""


def sums(blocks, key, size):
    """[name, bytes, number of blocks], most bytes first."""
    rows = {}
    for block in blocks:
        row = rows.setdefault(key(block.get("frames", [])), [0, 0])
        row[0] += block[size]
        row[1] += 1
    return sorted(([name, *row] for name, row in rows.items()), key=lambda row: (-row[1], row[0]))


def lives(trace, blocks):
    """Each block that was ever there, with the number of the entry that brought it (0: it was there before) and of the one
    that took it (None: it is still there)."""
    found, there = [], {}
    for number, entry in enumerate(trace, 1):
        # The size of a block that is gone is not in the trace: the pool rounds up to 512 at least.
        life = {
            "address": entry.get("addr"), "requested": entry["size"], "size": max(512, -(-entry["size"] // 512) * 512),
            "frames": entry.get("frames", []), "born": number, "gone": None,
        }
        if entry["action"] == "alloc":
            assert entry["addr"] not in there, "handed out twice"
            there[entry["addr"]] = life
            found.append(life)
        elif entry["action"] == "free_completed":
            if entry["addr"] in there:
                there.pop(entry["addr"])["gone"] = number
            else:
                found.append({**life, "born": 0, "gone": number, "frames": []})
    for block in blocks:
        if block["address"] in there:
            life = there.pop(block["address"])
            life["size"] = block["size"]
            life["frames"] = life["frames"] or block.get("frames", [])
        else:
            found.append({
                "address": block["address"], "requested": block["requested_size"], "size": block["size"],
                "frames": block.get("frames", []), "born": 0, "gone": None,
            })
    assert not there, "handed out at the end, and no block"
    return found


def is_there(life, moment):
    return life["born"] <= moment and (life["gone"] is None or life["gone"] > moment)


def levels(length, found, size):
    """The sum before the first entry and after each."""
    change = [0] * (length + 1)
    for life in found:
        change[life["born"]] += life[size]
        if life["gone"] is not None:
            change[life["gone"]] -= life[size]
    total, course = 0, []
    for step in change:
        total += step
        course.append(total)
    return course


def reserved_levels(trace, segments):
    level = sum(segment["total_size"] for segment in segments)
    course = [level]
    for entry in reversed(trace):
        if entry["action"] in ("segment_alloc", "segment_map"):
            level -= entry["size"]
        elif entry["action"] in ("segment_free", "segment_unmap"):
            level += entry["size"]
        course.append(level)
    return course[::-1]


def free_pieces(trace, segments, found, moment):
    """Sizes of the gaps between blocks after an entry: no gap reaches over the border of a segment."""
    whole = {segment["address"]: segment["address"] + segment["total_size"] for segment in segments}
    for entry in reversed(trace[moment:]):
        start, end = entry.get("addr", 0), entry.get("addr", 0) + entry["size"]
        if entry["action"] == "segment_alloc":
            assert whole.pop(start) == end
        elif entry["action"] == "segment_free":
            whole[start] = end
        elif entry["action"] == "segment_map":
            begin, stop = next((a, b) for a, b in whole.items() if a <= start and end <= b)
            del whole[begin]
            whole.update({a: b for a, b in ((begin, start), (end, stop)) if a < b})
        elif entry["action"] == "segment_unmap":
            before = next((a for a, b in whole.items() if b == start), start)
            whole[before] = whole.pop(end, end)
    gaps = []
    blocks = sorted((life["address"], life["address"] + life["size"]) for life in found if is_there(life, moment))
    for start, end in whole.items():
        at = start
        for first, last in blocks:
            if start <= first < end:
                gaps.append(first - at)
                at = last
        gaps.append(end - at)
    return [gap for gap in gaps if gap]


def highest_of_each_stretch(course):
    stretch = -(-len(course) // MOST_POINTS)
    return [
        max(range(begin, min(begin + stretch, len(course))), key=lambda at: (course[at], -at))
        for begin in range(0, len(course), stretch)
    ]


def of_device(device, trace, segments):
    """The course of one device."""
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] != "inactive"]
    found = lives(trace, blocks)
    requested, in_use = (levels(len(trace), found, size) for size in ("requested", "size"))
    reserved = reserved_levels(trace, segments)
    assert requested[-1] == sum(block["requested_size"] for block in blocks), "the course does not end at the blocks"
    assert in_use[-1] == sum(block["size"] for block in blocks)
    assert reserved[0] >= 0
    peak, used = requested.index(max(requested)), in_use.index(max(in_use))
    at_peak = [life for life in found if is_there(life, peak)]
    gaps = free_pieces(trace, segments, found, used)
    return {
        "device": device, "requested": requested, "in_use": in_use, "reserved": reserved, "lives": found,
        "times": [trace[0]["time_us"], *(entry["time_us"] for entry in trace)],
        "peak": peak, "used_peak": used,
        "fragmentation": 1 - max(gaps) / sum(gaps) if gaps else 0.0,
        "categories": sums(at_peak, titan, "requested"), "lines": sums(at_peak, own_line, "requested"),
    }


def mosaic(trace, blocks):
    """From 0, and frees only of what was seen coming; and the blocks that the trace never names."""
    there, total, dynamic, held = {}, 0, 0, {}
    for entry in trace:
        if entry["action"] == "alloc":
            there[entry["addr"]] = entry
            total += entry["size"]
        elif entry["action"] == "free_completed" and entry["addr"] in there:
            total -= there.pop(entry["addr"])["size"]
        if total > dynamic:
            dynamic, held = total, dict(there)
    named = {entry["addr"] for entry in trace if entry["action"] in ("alloc", "free_completed")}
    static = [block for block in blocks if block["state"] == "active_allocated" and block["address"] not in named]
    stacks = {}
    for one in [*held.values(), *static]:
        row = stacks.setdefault(tuple(told(frame) for frame in one.get("frames", [])), [0, 0])
        row[0] += 1
        row[1] += one["size"]
    return dynamic, sum(block["size"] for block in static), stacks


class Figures:
    """All that a report says, from a snapshot."""

    def __init__(self, snapshot):
        segments = snapshot["segments"]
        self.blocks = [block for segment in segments for block in segment["blocks"]]
        self.active = [block for block in self.blocks if block["state"] == "active_allocated"]
        self.inactive = [block["size"] for block in self.blocks if block["state"] == "inactive"]
        # No block reaches over two devices, so the largest of each counts.
        largest_free = {}
        for segment in segments:
            free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
            largest_free[segment["device"]] = max([largest_free.get(segment["device"], 0), *free])
        self.largest_free = sum(largest_free.values())
        self.allocated = sum(block["size"] for block in self.active)
        self.reserved = sum(segment["total_size"] for segment in segments)
        self.categories = sums(self.active, titan, "size")
        self.largest = sorted(self.active, key=lambda block: -block["size"])[:MOST_ROWS]
        self.courses = []
        self.mosaic = None
        self.allocations = 0
        for device, trace in enumerate(snapshot["device_traces"]):
            if trace:
                here = [segment for segment in segments if segment["device"] == device]
                self.courses.append(of_device(device, trace, here))
                self.allocations += sum(entry["action"] == "alloc" for entry in trace)
                of_here = [block for segment in here for block in segment["blocks"]]
                self.mosaic = self.mosaic or mosaic(trace, of_here)
        # What PyTorch says of each segment itself must be the sums of its blocks.
        for segment in segments:
            states = collections.Counter()
            for block in segment["blocks"]:
                states[block["state"]] += block["size"]
            assert sum(states.values()) == segment["total_size"], segment["address"]
            assert states["active_allocated"] == segment["allocated_size"], segment["address"]
            assert sum(states.values()) - states["inactive"] == segment["active_size"], segment["address"]
        try:
            from torch.cuda import _memory_viz

            self.viz = sum(_memory_viz.calc_active(segment) for segment in segments)
        except ImportError:
            self.viz = None

    def plain(self):
        dynamic, static, _ = self.mosaic or (0, 0, {})
        return {
            "allocated": self.allocated, "reserved": self.reserved, "viz": self.viz,
            "active": len(self.active), "inactive": len(self.inactive), "allocations": self.allocations,
            "peak": sum(course["requested"][course["peak"]] for course in self.courses),
            "keywords": {name: size for name, size, _ in sums(self.active, keyword, "size")},
            "dynamic": dynamic, "static": static,
        }


def size(number):
    if number < 1024:
        return f"{number} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if round(number, 2) < 1024:
            return f"{number:.2f} {unit}"


def share(part, whole, digits):
    return f"{100 * part / whole:.{digits}f} %" if whole else "not known"


def two(number):
    return math.floor(100 * number + 0.5) / 100


class Page(html.parser.HTMLParser):
    """The tables, the texts and the drawn lines of a page by the headings above them."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.into, self.sections = ["", ""], None, {}
        self.feed(text)

    def section(self):
        return self.sections.setdefault(tuple(self.headings), {"rows": [], "text": [], "paths": {}})

    def handle_starttag(self, tag, attributes):
        if tag in ("h2", "h3"):
            self.headings = ["", ""] if tag == "h2" else [self.headings[0], ""]
            self.into = tag
        elif tag == "tr":
            self.section()["rows"].append([])
        elif tag in ("td", "th"):
            self.section()["rows"][-1].append("")
            self.into = "cell"
        elif tag == "p":
            self.section()["text"].append("")
            self.into = "text"
        elif tag == "path":
            attributes = dict(attributes)
            self.section()["paths"][attributes["class"]] = attributes["d"]

    def handle_endtag(self, tag):
        if tag in ("h2", "h3", "td", "th", "p"):
            self.into = None

    def handle_data(self, data):
        if self.into in ("h2", "h3"):
            self.headings[self.into == "h3"] += data
        elif self.into == "cell":
            self.section()["rows"][-1][-1] += data
        elif self.into == "text":
            self.section()["text"][-1] += data


def message(data):
    """The fields of a protobuf message by their numbers: each a list of numbers or bytes."""
    fields, at = {}, 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number - (1 << 64) if number >> 63 else number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            (value,) = struct.unpack_from("<d", data, at)
            at += 8
        else:
            length = varint()
            value = data[at : at + length]
            at += length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def one(fields, number, otherwise=0):
    return fields.get(number, [otherwise])[-1]


class Comparison:
    """What a report says, against the figures."""

    def __init__(self, figures, folder):
        self.figures, self.folder = figures, folder
        self.values, self.differences = 0, []

    def value(self, place, computed, reported):
        self.values += 1
        if computed != reported:
            self.differences.append(f"{place}: the report says {reported!r}, computed is {computed!r}")

    def rows(self, place, computed, reported):
        """Two tables, row by row and cell by cell."""
        self.value(f"rows of {place}", len(computed), len(reported))
        for number, (row, other) in enumerate(zip(computed, reported), 1):
            for cell, told_cell in zip(row, other):
                self.value(f"{place}, row {number}", cell, told_cell)

    def read(self, name, mode="r"):
        with open(os.path.join(self.folder, name), mode) as file:
            return file.read()

    def text(self):
        """analysis_report.txt"""
        figures = self.figures
        parts = self.read("analysis_report.txt").split("=" * 80 + "\n")
        sections = {}
        for part in parts[1:]:
            name, _, lines = part.partition("\n" + "-" * 80 + "\n")
            sections[name] = [" ".join(line.split()) for line in lines.splitlines() if line.strip()]
        cache = figures.reserved - figures.allocated
        large = [free for free in figures.inactive if free > LARGE]
        wanted = {
            "SUMMARY": [
                f"Allocated {size(figures.allocated)}", f"Reserved {size(figures.reserved)}", f"Cache {size(cache)}",
                f"Efficiency {share(figures.allocated, figures.reserved, 2)}",
                f"Fragmentation {share(cache, figures.reserved, 2)}",
            ],
            "MEMORY BY CATEGORY": [
                f"{name} {size(total)} {share(total, max(figures.allocated, 1), 2)}"
                for name, total, _ in figures.categories
            ],
            "TOP 50 ALLOCATIONS": ["Rank Size Category"] + [
                f"{place} {size(block['size'])} {titan(block['frames'])}" for place, block in enumerate(figures.largest, 1)
            ],
            "FRAGMENTATION ANALYSIS": [
                f"Active blocks {len(figures.active):,}", f"Inactive blocks {len(figures.inactive):,}",
                f"Fragmentation {share(cache, figures.reserved, 2)}",
                f"Inactive blocks > 100 MiB {len(large)}", f"Their sum {size(sum(large))}",
            ],
        }
        for name, lines in wanted.items():
            self.rows(f"text, {name}", [[line] for line in lines], [[line] for line in sections.get(name, [])])

    def page(self):
        """report.html"""
        figures, page = self.figures, Page(self.read("report.html"))

        def section(*headings):
            return page.sections.get((*headings, "")[:2], {"rows": [], "text": [], "paths": {}})

        def named(rows):
            return [[name or "not known", size(total), f"{count:,}"] for name, total, count in rows[:MOST_ROWS]]

        free = sum(figures.inactive)
        scattered = share(free - figures.largest_free, free, 1)
        courses = figures.courses
        peak = size(sum(course["requested"][course["peak"]] for course in courses)) if courses else "not known"
        summary = [size(figures.allocated), size(figures.reserved), peak,
                   share(figures.allocated, figures.reserved, 1), scattered]
        self.rows("page, Summary", [summary], [row[1:] for row in section("Summary")["rows"][1:]])
        by_category = section("Handed out at the end, by category")["rows"][1:]
        self.rows("page, categories", named(figures.categories), by_category)
        largest = [
            [str(place), size(block["size"]), titan(block["frames"]), own_line(block["frames"]) or "not known"]
            for place, block in enumerate(figures.largest, 1)
        ]
        self.rows("page, largest blocks", largest, section("Largest blocks")["rows"][1:])
        large = [one for one in figures.inactive if one > LARGE]
        pieces = [f"{len(figures.active):,}", f"{len(figures.inactive):,}", size(free),
                  size(max(figures.inactive, default=0)), scattered, f"{len(large)}, {size(sum(large))}"]
        self.rows("page, fragmentation", [[one] for one in pieces], [row[1:] for row in section("Fragmentation")["rows"]])
        for course in courses:
            name = f"Course, device {course['device']}"
            text = " ".join(section(name)["text"][:1])
            at = course["peak"]
            self.value(f"page, {name}: beginning", True,
                       text.startswith(f"Peak {size(course['requested'][at])} after entry {at:,}, "))
            self.value(f"page, {name}: end", True, text.endswith(f", with {size(course['reserved'][at])} reserved."))
            self.drawn(name, course, section(name)["paths"])
            self.rows(f"page, {name}: categories", named(course["categories"]),
                      section(name, "At the peak, by category")["rows"][1:])
            at_peak = section(name, "At the peak, by the program's own line")
            self.rows(f"page, {name}: lines", named(course["lines"]), at_peak["rows"][1:])
            others = sum(total for _, total, _ in course["lines"][MOST_ROWS:])
            said = [f"Other lines: {size(others)}."] if others else []
            self.value(f"page, {name}: other lines", said, at_peak["text"][:1])

    def drawn(self, name, course, paths):
        """The two lines of the drawing: of each stretch of the trace the highest moment, to its end."""
        places = highest_of_each_stretch(course["requested"])
        top = max(1, *(max(course["requested"][at], course["reserved"][at]) for at in places))
        for level, drawn in (("requested", "level"), ("reserved", "over")):
            points = [(1000 * at / max(places[-1], 1), 240 - 220 * course[level][at] / top) for at in places]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.rows(f"page, {name}: {level}", [[point] for point in path.split("L")],
                      [[point] for point in paths.get(drawn, "").split("L")])

    def mosaic(self):
        """peak.json"""
        if not self.figures.mosaic:
            return self.value("peak.json", False, os.path.exists(os.path.join(self.folder, "peak.json")))
        dynamic, static, stacks = self.figures.mosaic
        peak = json.loads(self.read("peak.json"))
        for key, number in (("dynamic_memory", dynamic), ("static_memory", static), ("total_memory", dynamic + static),
                            ("num_of_unique_call_stacks", len(stacks))):
            self.value(f"peak.json, {key}", number, peak[key])
        rows = {tuple(row["call_stack"]): [row["num_of_calls"], row["memory_usage"]] for row in peak["call_stacks"]}
        for stack in {*stacks, *rows}:
            self.value(f"peak.json, call stack {stack[:1]}", stacks.get(stack), rows.get(stack))
        used = [row["memory_usage"] for row in peak["call_stacks"]]
        self.value("peak.json, order", sorted(used, reverse=True), used)

    def xprof(self):
        """memory_profile.json and memory_profile.pb"""
        courses = self.figures.courses
        if not courses:
            return self.value("memory_profile.pb", False, os.path.exists(os.path.join(self.folder, "memory_profile.pb")))
        summaries = json.loads(self.read("memory_profile.json"))
        profiles = [message(entry) for entry in message(self.read("memory_profile.pb", "rb"))[1]]
        profiles = {one(entry, 1).decode(): message(one(entry, 2, b"")) for entry in profiles}
        self.value("memory_profile.pb, devices", {f"_gpu{course['device']}" for course in courses},
                   {name[name.index("_"):] for name in profiles})
        for name, profile in profiles.items():
            course = next(one for one in courses if name.endswith(f"_gpu{one['device']}"))
            self.profile(name, course, profile, summaries[name] if len(profiles) > 1 else summaries)

    def profile(self, name, course, profile, summary):
        at, start = course["used_peak"], course["times"][0]
        highest, reserved = course["in_use"][at], course["reserved"][at]
        gib = 1 << 30
        details = summary["peak_usage_details"]
        for key, computed, reported in (
            ("capacity", two(reserved / gib), summary["memory_capacity_gib"]),
            ("peak", two(highest / gib), summary["peak_memory_usage_gib"]),
            ("heap", two(highest / gib), details["heap_allocation_gib"]),
            ("free", two((reserved - highest) / gib), details["free_memory_gib"]),
            ("fragmentation", two(100 * course["fragmentation"]), details["fragmentation_percent"]),
            ("utilization", two(100 * highest / reserved) if reserved else -1.0, details["utilization_percent"]),
        ):
            self.value(f"memory_profile.json, {name}: {key}", computed, reported)
        told_peak = message(one(profile, 2, b""))
        stats = message(one(told_peak, 2, b""))
        for key, computed, reported in (
            ("peak", highest, one(told_peak, 1)), ("heap at the peak", highest, one(stats, 2)),
            ("free at the peak", reserved - highest, one(stats, 3)), ("capacity", reserved, one(told_peak, 4)),
            ("when", (course["times"][at] - start) * 1_000_000, one(told_peak, 3)),
            ("fragmentation", round(course["fragmentation"], 12), round(one(stats, 4, 0.0), 12)),
        ):
            self.value(f"memory_profile.pb, {name}: {key}", computed, reported)
        # The timeline, to its end.
        timeline = []
        for moment in profile.get(5, []):
            moment = message(moment)
            stats = message(one(moment, 2, b""))
            timeline.append([one(moment, 1), one(stats, 2), one(stats, 3), one(stats, 5)])
        computed, most = [], 0
        for place in highest_of_each_stretch(course["in_use"]):
            level = course["in_use"][place]
            most = max(most, level)
            time = (course["times"][place] - start) * 1_000_000
            computed.append([time, level, course["reserved"][place] - level, most])
        self.rows(f"memory_profile.pb, {name}: timeline", computed, timeline)
        # What lived at the peak, with how many are alike.
        snapshots = [message(one(message(snapshot), 3, b"")) for snapshot in profile.get(1, [])]
        special = [message(row) for row in profile.get(4, [])]
        reported = collections.Counter()
        for row in profile.get(3, []):
            row = message(row)
            what = snapshots[one(row, 1)] if one(row, 1) >= 0 else special[one(row, 2)]
            reported[one(what, 3), one(what, 2), one(what, 5, b"").decode(), one(what, 7, b"").decode()] += one(row, 3)
        wanted, unnamed = collections.Counter(), highest
        for life in course["lives"]:
            if is_there(life, at) and life["born"]:
                unnamed -= life["size"]
                wanted[life["size"], life["requested"], own_line(life["frames"]), titan(life["frames"])] += 1
        if unnamed:
            wanted[unnamed, unnamed, PREALLOCATED, "persist/dynamic"] += 1
        for row in {*wanted, *reported}:
            self.value(f"memory_profile.pb, {name}: at the peak {row}", wanted[row], reported[row])

    def counters(self, stats):
        """What PyTorch counted itself. The wrapper has it record from the first allocation on, so its peak is in the trace."""
        for key, computed in (
            ("allocated_bytes.all.current", self.figures.allocated), ("reserved_bytes.all.current", self.figures.reserved),
            ("requested_bytes.all.peak", self.figures.plain()["peak"]),
        ):
            if all(key in device for device in stats):
                self.value(f"memory_stats {key}", sum(device[key] for device in stats), computed)

    def all(self, stats):
        self.text()
        self.page()
        self.mosaic()
        self.xprof()
        if stats:
            self.counters(stats)
        if self.figures.viz is not None:
            self.value("torch.cuda._memory_viz", self.figures.viz, self.figures.allocated)
        return {"values": self.values, "differences": self.differences, "figures": self.figures.plain()}


def main():
    with open(sys.argv[1], "rb") as file:
        read = pickle.load(file)
    figures = Figures(read.get("snapshot", read))
    if len(sys.argv) > 2:
        answer = Comparison(figures, sys.argv[2]).all(read.get("stats"))
    else:
        answer = figures.plain()
    print(json.dumps(answer))


main()
