"""Stands in for memscope-ctl: knows the options that the real one has, and answers what it is told.

STAND_IN names a file with a JSON object: `out` is printed (as JSON, or as it is if it is a string), `err` goes to
standard error, `exit` is the exit code, `signal` ends it by a signal. What it was asked is appended to STAND_IN.asked.
"""

import argparse
import json
import os
import sys

LEVELS = ["read", "segments", "blocks", "trace"]
STACKS = ["none", "python", "native", "all"]
FORMATS = ["memory-viz", "perfetto", "html", "json", "memory-viz-json"]
TYPES = ["early_allocation", "late_deallocation", "temporary_idleness"]


def grammar():
    top = argparse.ArgumentParser(allow_abbrev=False)
    top.add_argument("--json", action="store_true", required=True)
    commands = top.add_subparsers(dest="command", required=True)
    attach = commands.add_parser("attach", allow_abbrev=False)
    attach.add_argument("--pid", type=int, required=True)
    attach.add_argument("--wait", action="store_true")
    attach.add_argument("--level", choices=LEVELS, required=True)
    attach.add_argument("--stacks", choices=STACKS)
    attach.add_argument("--stack-depth", type=int, choices=range(1, 1025))
    attach.add_argument("--accesses", action="store_true")
    detach = commands.add_parser("detach", allow_abbrev=False)
    detach.add_argument("--pid", type=int, required=True)
    snapshot = commands.add_parser("snapshot", allow_abbrev=False)
    snapshot.add_argument("--pid", type=int, required=True)
    snapshot.add_argument("--format", choices=FORMATS, default="memory-viz")
    snapshot.add_argument("-o", "--output")
    leaks = commands.add_parser("check-leaks", allow_abbrev=False)
    leaks.add_argument("file")
    leaks.add_argument("--mark", required=True)
    leaks.add_argument("--start-index", type=int, default=0)
    inefficient = commands.add_parser("inefficient", allow_abbrev=False)
    inefficient.add_argument("file", nargs="?")
    inefficient.add_argument("--pid", type=int)
    inefficient.add_argument("--min-size", type=int, default=0)
    inefficient.add_argument("--type", choices=TYPES, action="append")
    inefficient.add_argument("--idle-threshold", type=int, default=3000)
    return top


def main():
    asked = vars(grammar().parse_args())
    told = os.environ["STAND_IN"]
    with open(told + ".asked", "a", encoding="utf-8") as log:
        log.write(json.dumps(asked) + "\n")
    with open(told, encoding="utf-8") as file:
        answer = json.load(file)
    if asked["command"] == "snapshot" and not answer.get("exit"):
        with open(asked["output"], "w", encoding="utf-8") as file:
            file.write("a snapshot")
    out = answer.get("out", {})
    sys.stdout.write(out if isinstance(out, str) else json.dumps(out))
    sys.stdout.flush()
    sys.stderr.write(answer.get("err", ""))
    if "signal" in answer:
        os.kill(os.getpid(), answer["signal"])
    return answer.get("exit", 0)


sys.exit(main())
