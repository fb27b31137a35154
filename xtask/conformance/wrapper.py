"""Runs a script of anybody's with PyTorch's own recorder on, and stops where memscope is to attach and where
the two are to be compared.

    wrapper.py MODE FOLDER NEEDS SCRIPT [ARGUMENT…]

The script calls nothing of ours and needs not know of us: it runs as `__main__`, with its own arguments, and its
output goes to standard error. Our words go over the standard input and output that we were started with: each step
is said as one line of JSON, and the next one waits for a line.

    attach      attach now. MODE `from-start`: CUDA is initialised, nothing is allocated.
                MODE `late`: the script has run once, and what it left lives.
    compare     the script (in MODE `late`: its second run) has ended, what it left lives, and nothing happens. Export
                now; then PyTorch's own snapshot is written to FOLDER/snapshot.pickle, and to FOLDER/own.pickle with more.
    done        it is written.
    lacking     this PyTorch has not what NEEDS names (such as torch.cuda.MemPool); nothing was run.
    failed      and why.

With MEMSCOPE_ON_NPU in the environment the script runs on an NPU: torch_npu's own transfer_to_npu gives it torch.npu
where it says torch.cuda.
"""

import gc
import importlib.abc
import importlib.util
import json
import os
import pickle
import runpy
import sys
import traceback
import warnings

MODE, FOLDER, NEEDS, SCRIPT, *ARGUMENTS = sys.argv[1:]

ON_NPU = "MEMSCOPE_ON_NPU" in os.environ

# The script has neither our input nor our output.
heard = os.fdopen(os.dup(0), "r")
said = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)

# Lengths of PyTorch's own traces when memscope began to see, by device.
marks = []
begun = False


class Failed(Exception):
    """The run cannot go on."""


def say(step, **more):
    said.write(json.dumps({"step": step, **more}) + "\n")
    said.flush()


def wait(step, **more):
    say(step, **more)
    if not heard.readline():
        sys.exit("conformance: nobody listens any more")


def counts():
    """The allocator's own counters: equal before and after means that nothing happened in between."""
    import torch

    keys = ("allocation.all.allocated", "allocation.all.freed", "segment.all.allocated", "segment.all.freed",
            "reserved_bytes.all.current", "active_bytes.all.current")
    return [
        [torch.cuda.memory_stats(device).get(key) for key in keys] for device in range(torch.cuda.device_count())
    ]


def has(module, name):
    """Whether torch.cuda has what is named from `torch` on."""
    for part in name.split(".")[2:]:
        module = getattr(module, part, None)
    return module is not None


def begin():
    """PyTorch's recorder on, before the first allocation; there is no end to what it keeps."""
    global begun
    begun = True
    import torch

    if ON_NPU:
        # torch_npu looks at libraries when it is told to record, and warns of those that it cannot read.
        warnings.simplefilter("ignore")
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python")
    if MODE == "from-start":
        wait("attach")


def on_npu():
    """As WhenImported, for torch_npu: `import torch` has loaded it when it is back."""
    warnings.simplefilter("ignore")
    import torch
    import torch_npu
    from torch_npu.contrib import transfer_to_npu  # noqa: F401: importing it is the transfer

    # Older versions leave the recorder out.
    for name in ("_record_memory_history", "_snapshot"):
        setattr(torch.cuda.memory, name, getattr(torch_npu.npu.memory, name))

    if NEEDS and not has(torch.npu, NEEDS):
        say("lacking", what=NEEDS)
        os._exit(0)
    initialise = torch_npu.npu._lazy_init

    def initialised():
        initialise()
        if not begun:
            begin()

    torch_npu.npu._lazy_init = initialised


class WhenImported(importlib.abc.MetaPathFinder):
    """Calls `begin` at the end of CUDA's initialisation, which is before anything can be allocated.

    Not when torch is imported: until CUDA is initialised, a script may still say which devices there are and
    how the allocator is to be.
    """

    def find_spec(self, name, path, target=None):
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            if NEEDS and not has(module, NEEDS):
                say("lacking", what=NEEDS)
                os._exit(0)
            initialise = module._lazy_init

            def initialised():
                initialise()
                if not begun:
                    begin()

            module._lazy_init = initialised

        spec.loader.exec_module = executed
        return spec


def run():
    """The script from its beginning to its end; gives its globals."""
    sys.argv = [SCRIPT, *ARGUMENTS]
    sys.path[0] = os.path.dirname(os.path.abspath(SCRIPT))
    try:
        return runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise Failed(f"the script ended with {end.code!r}") from None
        # What its functions held is gone, as at any end of a program; what the script held is kept.
        frame = end.__traceback__
        while frame and frame.tb_frame.f_globals.get("__file__") != SCRIPT:
            frame = frame.tb_next
        return frame and frame.tb_frame.f_globals
    except BaseException as error:
        # Without our own steps, which are of no use to whoever wrote the script.
        steps = error.__traceback__
        while steps.tb_next and steps.tb_frame.f_code.co_filename != SCRIPT:
            steps = steps.tb_next
        told = traceback.format_exception(type(error), error, steps)
        raise Failed("the script failed:\n" + "".join(told).rstrip()) from None


def main():
    if ON_NPU:
        on_npu()
    else:
        sys.meta_path.insert(0, WhenImported())
    kept = [run()]
    if not begun:
        raise Failed("the script never used CUDA, so there is nothing to compare")
    import torch

    if MODE == "late":
        gc.collect()
        wait("attach", active=[stats[5] for stats in counts()])
        # From here on memscope sees: this snapshot is the first entry that both have.
        marks.extend(len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"])
        kept.append(run())
    # What garbage there is may stay: freed now by us or later by itself, it is the same to both.
    gc.disable()
    before = counts()
    wait("compare")
    if counts() != before:
        raise Failed("the script's threads went on allocating after its end, so that no two snapshots are of one moment")
    own = torch.cuda.memory._snapshot()
    stats = [dict(torch.cuda.memory_stats(device)) for device in range(torch.cuda.device_count())]
    for name, content in (("snapshot", own), ("own", {"marks": marks, "snapshot": own, "stats": stats})):
        with open(os.path.join(FOLDER, f"{name}.pickle"), "wb") as file:
            pickle.dump(content, file, protocol=4)
    say("done")
    # Without the end of an interpreter that holds a device: nothing is compared after this.
    heard.readline()
    sys.stderr.flush()
    os._exit(0)


try:
    main()
except Failed as failure:
    # How a setting that is not known yet ends.
    unknown = str(failure).rpartition("Unrecognized CachingAllocator option: ")
    if ON_NPU and unknown[1]:
        say("lacking", what=unknown[2])
        os._exit(0)
    # What the script said is part of the answer.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    say("failed", why=str(failure))
    os._exit(1)
