"""Runs a script that defines `setup()` and `step(i)`, so many steps at a time.

    driver.py [--by-line] [--needs NAME] [--pace MS] SCRIPT

The script knows nothing of us: it is imported and its functions are called. Its output goes to standard error. Each line
on our standard input is a word, and each is answered with one line of JSON on our standard output:

    setup       calls setup().
    steps N     calls step(i) N times; i goes on from call to call.
    leave       gives back all that the script's names lead to, as Python does when it ends, and ends.

An answer has `steps` (how many there were in all), and the sizes of what lives now, in bytes: `allocated` (PyTorch's
device memory), `host` (PyTorch's pinned memory), `driver` (what the device has given out beyond PyTorch's); and `lengths`, those of
the script's containers, and of containers in its lists, by their names. The first line,
before any word, says that the script is imported, or, with --needs, that this PyTorch has not what NAME (such as
torch.cuda.MemPool) names: `lacking`. It ends with its input.

With --pace each step is followed by so many milliseconds in which nothing happens: the simulated device takes no time for its
work. With --by-line PyTorch's own recorder runs, and an answer has `lines` as well: for each line of the script what lives of
what it allocated, as [blocks, bytes]. A line is the innermost one of the script's file, and "none" where there is none.

With MEMSCOPE_ON_NPU in the environment the script runs on an NPU: torch_npu's own transfer_to_npu gives it torch.npu
where it says torch.cuda.
"""

import argparse
import collections
import gc
import importlib.util
import json
import os
import sys
import time
import traceback
import warnings

heard = os.fdopen(os.dup(0), "r")
said = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)


def say(**fields):
    said.write(json.dumps(fields) + "\n")
    said.flush()


def has(name):
    """Whether PyTorch has what is named from `torch` on."""
    import torch

    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def imported(script):
    sys.path.insert(0, os.path.dirname(script))
    spec = importlib.util.spec_from_file_location("workload", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["workload"] = module
    spec.loader.exec_module(module)
    return module


def sizes():
    import torch

    cuda = torch.cuda
    if not cuda.is_initialized():
        return {"allocated": 0, "host": 0, "driver": 0}
    free, total = cuda.mem_get_info()
    stats = getattr(cuda, "host_memory_stats", dict)()
    return {
        "allocated": cuda.memory_allocated(),
        "host": stats.get("active_bytes.current", stats.get("allocated_bytes.current", 0)),
        "driver": total - free - cuda.memory_reserved(),
    }


def lengths(module):
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, (list, dict, set, collections.deque)) and not name.startswith("__"):
            found[f"workload.{name}"] = len(value)
        if isinstance(value, list):
            inner = [(i, one) for i, one in enumerate(value) if isinstance(one, list)]
            found.update({f"workload.{name}[{i}]": len(one) for i, one in inner})
    return found


def lines(script):
    import torch

    found = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if not block["state"].startswith("active_alloc"):
                continue
            place = (frame["line"] for frame in block.get("frames", []) if frame["filename"] == script)
            count = found.setdefault(str(next(place, "none")), [0, 0])
            count[0] += 1
            count[1] += block["requested_size"]
    return found


def main():
    arguments = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_argument("--by-line", action="store_true")
    arguments.add_argument("--needs")
    arguments.add_argument("--pace", type=int, default=0)
    arguments.add_argument("script", type=os.path.abspath)
    arguments = arguments.parse_args()
    if "MEMSCOPE_ON_NPU" in os.environ:
        warnings.simplefilter("ignore")
        from torch_npu.contrib import transfer_to_npu  # noqa: F401: importing it is the transfer

    by_line, script = arguments.by_line, arguments.script
    if arguments.needs and not has(arguments.needs):
        say(lacking=arguments.needs)
        return
    module = imported(script)
    done = 0

    def answer():
        more = {"lines": lines(script)} if by_line else {}
        say(steps=done, lengths=lengths(module), **sizes(), **more)

    # What torch's import left behind is no part of what the script does.
    gc.collect()
    say(steps=0)
    for words in heard:
        match words.split():
            case ["setup"]:
                if by_line:
                    import torch

                    torch.cuda.init()
                    torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")
                module.setup()
            case ["steps", count]:
                for _ in range(int(count)):
                    module.step(done)
                    done += 1
                    time.sleep(arguments.pace / 1000)
            case ["leave"]:
                vars(module).clear()
                gc.collect()
                say(steps=done)
                return
            case _:
                raise ValueError(f"the driver knows setup, leave and steps N, not {words.strip()!r}")
        answer()


try:
    main()
except BaseException as error:
    traceback.print_exc()
    say(failed="".join(traceback.format_exception_only(error)).strip())
    sys.stderr.flush()
    os._exit(1)
# Without the end of an interpreter that holds a device: nothing is looked at after this.
sys.stderr.flush()
os._exit(0)
