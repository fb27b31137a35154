"""Perfetto's own trace processor reads a trace of ours, and what it answers is what the JSON export says.

`perfetto.py TRACE_PROCESSOR_SHELL OURS.pftrace OURS.json`: one line of JSON; exit code 1 if anything is wrong. The JSON was
exported a little earlier, and nothing happened in between. The program is not part of this project; any that Perfetto's
sources or releases give will do.
"""

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time

LIFE = {"alloc": 1, "free_requested": -1}
HELD = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
INSTANTS = {*HELD, "oom", "snapshot"}
# The two exports are less far apart, and so are their readings of the clocks.
MOST_BETWEEN_NS = 120_000_000_000
MOST_DRIFT_NS = 1_000_000


class Trace:
    """A trace in the trace processor: each question loads it anew."""

    def __init__(self, program, file):
        self.program, self.file = program, file

    def ask(self, query):
        with tempfile.NamedTemporaryFile("w", suffix=".sql", delete=False) as questions:
            questions.write(query)
        try:
            words = [self.program, "-q", questions.name, self.file]
            said = subprocess.run(words, capture_output=True, text=True, check=False)
        finally:
            os.unlink(questions.name)
        if said.returncode != 0:
            raise SystemExit(f"{words}: {said.returncode}\n{said.stderr[-2000:]}")
        return [row for row in list(csv.reader(io.StringIO(said.stdout)))[1:] if row]


def replayed(entries, size, end, first, last):
    """The level after each change: what there is at the end, less all that came, plus all that went, and forwards."""
    level = end - sum(size(entry) for entry in entries)
    levels = {first: level}
    for entry in entries:
        level += size(entry)
        if size(entry) != 0:
            levels[entry["time_boot_ns"]] = level
    levels[last] = end
    return sorted(levels.items())


def place(snapshot):
    """Gives each entry its pool. Where PyTorch does not say it, it is that of the segment that has the address at the end,
    if that segment had come by then; what was in a segment that has gone is counted as the default pool's."""
    gone = []
    for entry in reversed(snapshot["trace"]):
        at, device = entry["address"], entry["device"]
        holds = lambda part: part["device"] == device and part["address"] <= at < part["address"] + part["size_bytes"]
        if entry["pool"] is None and not any(map(holds, gone)):
            entry["pool"] = next((segment["pool"] for segment in snapshot["segments"] if holds(segment)), None)
        if entry["action"] in HELD:
            gone.append(entry)


def counters(snapshot, as_of):
    """Every counter that there must be, from the JSON."""
    found = {}
    devices = {part["device"] for part in [*snapshot["trace"], *snapshot["segments"]]}
    pools = {pool_of(part) for part in [*snapshot["trace"], *snapshot["segments"]]} - {None, (0, 0)}
    for device in devices:
        everything = [entry for entry in snapshot["trace"] if entry["device"] == device]
        first = everything[0]["time_boot_ns"] if everything else as_of
        for pool in [None, *pools]:
            entries = [entry for entry in everything if pool in (None, pool_of(entry))]
            segments = [s for s in snapshot["segments"] if s["device"] == device and pool in (None, pool_of(s))]
            if not entries and not segments:
                continue
            live = [b for s in segments for b in s["blocks"] if b["state"] == "active"]
            name = f"device {device}" if pool is None else f"device {device} pool {pool}"
            sign = lambda of: lambda entry: of.get(entry["action"], 0) * entry["size_bytes"]
            asked = sum(b["size_bytes"] if b["requested_bytes"] is None else b["requested_bytes"] for b in live)
            found[f"{name} allocated"] = replayed(entries, sign(LIFE), asked, first, as_of)
            found[f"{name} reserved"] = replayed(entries, sign(HELD), sum(s["size_bytes"] for s in segments), first, as_of)
    return found


def pool_of(part):
    pool = part["pool"]
    return pool and (pool["first"], pool["second"])


def main(program, trace_file, json_file):
    with open(json_file) as file:
        snapshot = json.load(file)
    wrong = []
    trace = Trace(program, trace_file)
    started = time.monotonic()
    for name, value in trace.ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0"):
        wrong.append(f"the trace processor complains: {name} {value}")
    seconds = time.monotonic() - started

    ends = [int(at) for (at,) in trace.ask("select ts from slice where category = 'memscope' and name = 'snapshot'")]
    as_of = max(ends, default=0)
    if len(ends) != 1 or not 0 <= as_of - snapshot["header"]["as_of_boot_ns"] <= MOST_BETWEEN_NS:
        wrong.append(f"the end: {ends}, the JSON of {snapshot['header']['as_of_boot_ns']}")

    series = {}
    for name, at, value in trace.ask("select t.name, c.ts, cast(c.value as int) from counter c join track t on t.id = c.track_id order by c.ts, c.id"):
        series.setdefault(name, []).append((int(at), int(value)))
    place(snapshot)
    expected = counters(snapshot, as_of)
    if series.keys() != expected.keys():
        wrong.append(f"counters: {sorted(series)}; expected {sorted(expected)}")
    values = 0
    for name in series.keys() & expected.keys():
        values += len(series[name])
        if series[name] != expected[name]:
            pairs = zip(series[name], expected[name])
            differ = next((pair for pair in pairs if pair[0] != pair[1]), "length")
            wrong.append(f"{name}: {len(series[name])} values, expected {len(expected[name])}; the first that differs: {differ}")

    slices = trace.ask("""
        select s.dur, extract_arg(s.arg_set_id, 'debug.address'), extract_arg(s.arg_set_id, 'debug.bytes')
        from slice s where s.category = 'block'""")
    told = sorted((int(address), int(size)) for duration, address, size in slices if int(duration) == -1)
    live = sorted(
        (b["address"], b["size_bytes"] if b["requested_bytes"] is None else b["requested_bytes"])
        for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active"
    )
    if told != live:
        wrong.append(f"{len(told)} slices have no end, and {len(live)} blocks live")

    events = [name for (name,) in trace.ask("select name from slice where category = 'allocator' order by ts, id")]
    expected_events = [entry["action"] for entry in snapshot["trace"] if entry["action"] in INSTANTS]
    if events != expected_events:
        wrong.append(f"{len(events)} events of the allocator, expected {len(expected_events)}")

    clocks = dict(trace.ask("select clock_name, clock_value from clock_snapshot"))
    header = snapshot["header"]
    apart = int(clocks.get("REALTIME", 0)) - int(clocks.get("BOOTTIME", 0))
    if abs(apart - (header["as_of"] - header["as_of_boot_ns"])) > MOST_DRIFT_NS:
        wrong.append(f"clocks: {clocks}")
    processes = trace.ask(f"select name from process where pid = {header['pid']}")
    if len(processes) != 1:
        wrong.append(f"processes with the pid: {processes}")

    seen = f"{len(series)} counters with {values} values, {len(slices)} slices of blocks ({len(told)} live), {len(events)} events; loaded in {seconds:.2f} s"
    print(json.dumps({"seen": seen, "wrong": wrong}))
    return 1 if wrong else 0


sys.exit(main(*sys.argv[1:]))
