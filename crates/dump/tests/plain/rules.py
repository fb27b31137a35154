"""The rules of msMemScope's offline analyses once more, as plainly as they can be said.

Written from the description of the rules alone, with the standard library alone: slow, and without a thought for large
files. Reads a JSON list of questions from standard input and prints the list of answers. A question names a rule, its
CSV file or files, and its parameters.
"""

import csv
import json
import re
import sys

csv.field_size_limit(1 << 30)

SIZE = re.compile(r"(?:^|[{,])size:(\d+)")
NUMBER = re.compile(r"allocation_id:(\d+)")
TYPE = re.compile(r"(?:^|[{,])type:(\w+)")


def read(file):
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    for place, row in enumerate(rows):
        row["place"] = place
        row["id"] = int(row["ID"])
    return rows


def by_id(rows):
    return sorted(rows, key=lambda row: row["id"])


def size(row):
    return int(SIZE.search(row["Attr"]).group(1))


# ---- leaks between three marks


def offline_leaks(file, mark, start_index):
    rows = read(file)
    devices = []
    for row in rows:
        if row["Device Id"] != "N/A" and row["Device Id"] not in devices:
            devices.append(row["Device Id"])
    return [leaks_of(by_id([r for r in rows if r["Device Id"] == d]), d, mark, start_index) for d in devices]


def leaks_of(rows, device, mark, start):
    marks = [r["id"] for r in rows if r["Event"] == "MSTX" and r["Event Type"] == "Mark" and r["Name"] == mark]
    answer = {"device": device, "marks": len(marks), "messages": [], "log": None}
    if len(marks) < 3:
        answer["log"] = f"ERROR: Device {device} has fewer than 3 data points. Please re-collect the data points."
        return answer
    if start + 2 >= len(marks):
        answer["log"] = (
            f"INFO: Start index {start} is out of bounds. Device {device} has a total of {len(marks)} MSTX events."
        )
        return answer
    a, b, c = marks[start : start + 3]
    live = []
    for row in rows:
        if row["Event Type"] != "HAL":
            continue
        if row["Event"] == "MALLOC" and a <= row["id"] <= b:
            live.append(row)
        if row["Event"] == "FREE" and a <= row["id"] <= c:
            live = [other for other in live if other["Ptr"] != row["Ptr"]]
    if not live:
        answer["messages"] = [f"No hal memory leaks detected on device {device}."]
        return answer
    answer["messages"] = [f"====== ERROR: Detected memory leaks on device {device} ======"]
    for row in live:
        megabytes = size(row) / 1024 / 1024
        answer["messages"].append(
            f"Direct Hal memory leak of {megabytes} Mb(s) at {row['Ptr']} in Index {row['ID']}."
        )
    return answer


# ---- inefficient memory


def pool_of(row):
    kind = row["Event Type"]
    if row["Event"] == "OP_LAUNCH":
        return {"ATEN_START": "PTA", "ATEN_END": "PTA", "ATB_START": "ATB", "ATB_END": "ATB"}.get(kind)
    if row["Event"] in ("MALLOC", "FREE"):
        return kind if kind in ("PTA", "ATB") else None
    if row["Event"] == "ACCESS":
        found = TYPE.search(row["Attr"])
        return found.group(1) if found and found.group(1) in ("PTA", "ATB") else None
    return None


def inefficient(file, mem_size, kinds, idle_threshold, since_start):
    rows = read(file)
    answer, peaks, all_accesses = [], [], 0
    for pid, pool in sorted({(r["Process Id"], pool_of(r)) for r in rows if pool_of(r)}):
        mine = by_id([r for r in rows if r["Process Id"] == pid and pool_of(r) == pool])
        if since_start:
            starts = [r["id"] for r in rows if r["Event Type"] == "START_TRACE" and r["Process Id"] == pid]
            mine = [r for r in mine if r["id"] >= max(starts, default=0)]
            all_accesses += sum(r["Event"] == "ACCESS" for r in mine)
        blocks = blocks_of(mine, idle_threshold, since_start)
        for block in blocks:
            found = [kind for kind in block["found"] if kind in kinds]
            if found and block["size"] >= mem_size:
                answer.append([block["malloc"]["place"], block["malloc"]["id"], pool, found, unused(block, found, idle_threshold)])
        for device in {block["device"] for block in blocks}:
            here = [block for block in blocks if block["device"] == device]
            peak = highest(len(mine), [(b["size"], b["events"][0][3], b["end"]) for b in here])
            without = highest(len(mine), [(b["size"], *needed(b)) for b in here])
            peaks.append([pid, device, pool, peak, without])
    if not since_start:
        all_accesses = sum(r["Event"] == "ACCESS" and pool_of(r) is not None for r in rows)
    return [sorted(answer), sorted(peaks), all_accesses]


def unused(block, found, threshold):
    events = block["events"]
    first, accesses = events[0], [e for e in events if e[0] == "ACCESS"]
    total = 0
    if "early_allocation" in found:
        total += next(e for e in accesses if e[1] != first[1])[2] - first[2]
    if "late_deallocation" in found:
        total += events[-1][2] - events[-2][2]
    for (_, before, then, _), (_, api, now, _) in zip(accesses, accesses[1:]):
        if "temporary_idleness" in found and api - before > threshold:
            total += now - then
    return total


def needed(block):
    """From where to where among the rows a block would be there, if it came with its first use and went after its last."""
    accesses = [e for e in block["events"] if e[0] == "ACCESS"]
    start, end = block["events"][0][3], block["end"]
    if "early_allocation" in block["found"]:
        start = next(e for e in accesses if e[1] != block["events"][0][1])[3]
    if "late_deallocation" in block["found"]:
        end = max(start, accesses[-1][3] + 1)
    return start, end


def highest(rows, blocks):
    levels = [sum(size for size, start, end in blocks if start <= row < end) for row in range(rows)]
    return max(levels, default=0)


def number_of(row):
    found = NUMBER.search(row["Attr"])
    return int(found.group(1)) if found else None


def blocks_of(rows, threshold, since_start):
    api, last_malloc, last_free = 0, None, None
    opened, pending = False, []
    live, ended, latest = [], [], {}

    def classify():
        nonlocal last_malloc, last_free
        if "MALLOC" in pending:
            last_malloc = api
        if "FREE" in pending:
            last_free = api
        pending.clear()

    def meant(row):
        """The live block that a row is about."""
        number = number_of(row)
        if number is not None:
            return next((b for b in live if b["number"] == number), None)
        at = int(row["Ptr"], 16)
        below = [b for b in live if b["device"] == row["Device Id"] and latest[b["device"], b["at"]] is b and b["at"] <= at]
        if not below:
            return None
        block = max(below, key=lambda b: b["at"])
        if row["Event"] == "FREE":
            return block if block["at"] == at else None
        return block if at + size(row) <= block["at"] + block["size"] else None

    for place, row in enumerate(rows):
        event, time = row["Event"], int(row["Timestamp(ns)"])
        if event == "OP_LAUNCH":
            if row["Event Type"].endswith("START"):
                opened, api = True, api + 1
            else:
                opened = False
                classify()
            continue
        pending.append(event)
        if not opened:
            api += 1
            classify()
        if event == "MALLOC":
            block = {
                "malloc": row,
                "number": number_of(row),
                "device": row["Device Id"],
                "at": int(row["Ptr"], 16),
                "size": size(row),
                "events": [("MALLOC", api, time, place)],
                "end": len(rows),
                "found": [],
            }
            for other in list(live):
                same_number = block["number"] is not None and other["number"] == block["number"]
                both_without = block["number"] is None and other["number"] is None
                same_place = (other["device"], other["at"]) == (block["device"], block["at"])
                if same_number or (both_without and same_place):
                    live.remove(other)
                    ended.append(other)
                    other["end"] = place
            live.append(block)
            latest[block["device"], block["at"]] = block
            continue
        block = meant(row)
        if block is None:
            continue
        events = block["events"]
        events.append((event, api, time, place))
        born = events[0][1]
        (before, before_api, _, _) = events[-2]
        if event == "ACCESS":
            if before == "ACCESS" and api - before_api > threshold:
                note(block, "temporary_idleness")
            firsts = [a for (e, a, _, _) in events if e == "ACCESS" and a != born]
            known = not (since_start and "shadow:true" in block["malloc"]["Attr"])
            if known and firsts and last_free is not None and born < last_free < firsts[0]:
                note(block, "early_allocation")
        else:
            if before == "ACCESS" and before_api != api and last_malloc is not None and before_api < last_malloc < api:
                note(block, "late_deallocation")
            live.remove(block)
            ended.append(block)
            block["end"] = place
    return ended + live


def note(block, kind):
    if kind not in block["found"]:
        block["found"].append(kind)


# ---- two runs compared


def entries(file, level, device):
    rows = [r for r in read(file) if r["Device Id"] == device]
    rows.sort(key=lambda row: (int(row["Timestamp(ns)"]), row["id"]))
    pools = ("PTA",) if level == "op" else ("PTA", "MINDSPORE")
    names = ("ATEN_END", "ATB_END") if level == "op" else ("KERNEL_LAUNCH",)
    answer = []
    for place, row in enumerate(rows):
        if row["Event Type"] in names:
            later = [r for r in rows[place:] if r["Event"] in ("MALLOC", "FREE") and r["Event Type"] in pools]
            answer.append((row["Name"], size(later[0]) if later else 0))
    return answer


def compare(base, second, level):
    devices = {row["Device Id"] for file in (base, second) for row in read(file)} - {"N/A"}
    answer = []
    for device in sorted(devices):
        left, right = entries(base, level, device), entries(second, level, device)
        way = myers([name for name, _ in left], [name for name, _ in right])
        # It must lead from one to the other, and share as much as can be shared.
        shared = sum(1 for i, j in way if i is not None and j is not None)
        assert shared == longest_common([n for n, _ in left], [n for n, _ in right])
        for i, j in way:
            name = left[i][0] if i is not None else right[j][0]
            one = left[i][1] if i is not None else None
            other = right[j][1] if j is not None else None
            answer.append([device, name, one, other, (other or 0) - (one or 0)])
    return answer


def myers(a, b):
    """The greedy algorithm with every round kept; pairs of places, None where a side has none."""
    furthest, rounds = {1: 0}, []
    for edits in range(len(a) + len(b) + 1):
        rounds.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            if k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1]):
                x = furthest[k + 1]
            else:
                x = furthest[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(a) and y >= len(b):
                return back(rounds, len(a), len(b))
    raise AssertionError("no way")


def back(rounds, x, y):
    way = []
    for edits in range(len(rounds) - 1, 0, -1):
        furthest, k = rounds[edits], x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        before = k + 1 if down else k - 1
        from_x = furthest[before]
        from_y = from_x - before
        after_the_edit = (from_x, from_y + 1) if down else (from_x + 1, from_y)
        while (x, y) != after_the_edit:
            x, y = x - 1, y - 1
            way.append((x, y))
        way.append((None, from_y) if down else (from_x, None))
        x, y = from_x, from_y
    while x > 0:
        x, y = x - 1, y - 1
        way.append((x, y))
    return way[::-1]


def longest_common(a, b):
    row = [0] * (len(b) + 1)
    for one in a:
        above = row
        row = [0]
        for j, other in enumerate(b):
            row.append(above[j] + 1 if one == other else max(above[j + 1], row[j]))
    return row[-1]


RULES = {"offline_leaks": offline_leaks, "inefficient": inefficient, "compare": compare}

if __name__ == "__main__":
    questions = json.load(sys.stdin)
    json.dump([RULES[q.pop("rule")](**q) for q in questions], sys.stdout)
