"""Prints what the kernel holds of BPF and of probes in programs, as a line of JSON: how many of each. With the word
`verified`: how many instructions the kernel's verifier followed in each program, most first, as lines of JSON."""

import ctypes
import json
import os
import struct
import sys

# Numbers of the system call, and of its commands that give the next id after one.
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
NEXT = {"programs": 11, "maps": 12, "links": 31}
PROGRAM_BY_ID, INFO_BY_FD = 13, 15
# Of the kernel's `bpf_prog_info`: its size, and where name and count of followed instructions are.
INFO, NAME, VERIFIED = 232, slice(64, 80), slice(216, 220)

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, asked):
    result = libc.syscall(BPF, command, asked, ctypes.sizeof(asked))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"command {command} of bpf(2)")
    return result


def ids(command):
    asked = (ctypes.c_uint32 * 3)()
    while True:
        try:
            bpf(command, asked)
        except FileNotFoundError:
            return
        asked[0] = asked[1]
        yield asked[1]


def verified(program):
    file = bpf(PROGRAM_BY_ID, (ctypes.c_uint32 * 3)(program))
    try:
        info = ctypes.create_string_buffer(INFO)
        asked = ctypes.create_string_buffer(struct.pack("=IIQ", file, INFO, ctypes.addressof(info)), 16)
        bpf(INFO_BY_FD, asked)
    finally:
        os.close(file)
    name = info.raw[NAME].rstrip(b"\0").decode()
    return int.from_bytes(info.raw[VERIFIED], sys.byteorder), name


def descriptors(what):
    found = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{process}/fd"
        try:
            for number in os.listdir(folder):
                found += os.readlink(f"{folder}/{number}") == what
        except OSError:
            # The process has ended, or closed the file.
            continue
    return found


if sys.argv[1:] == ["verified"]:
    for followed, name in sorted(map(verified, ids(NEXT["programs"])), reverse=True):
        print(json.dumps({"program": name, "verified": followed}))
    sys.exit()
held = {name: sum(1 for _ in ids(command)) for name, command in NEXT.items()}
held["perf_events"] = descriptors("anon_inode:[perf_event]")
held["pins"] = sum(len(files) for _, _, files in os.walk("/sys/fs/bpf"))
with open("/sys/kernel/tracing/uprobe_events") as events:
    held["uprobe_events"] = len(events.readlines())
print(json.dumps(held))
