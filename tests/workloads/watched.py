"""Changes memory in many ways, with and without saying so, while memscope.watcher looks on; and knows itself what changed what.

Each case prints a line; what is wrong is an AssertionError. Contents are changed by copies only, which are real on the
simulated devices.
"""

import collections
import ctypes
import glob
import itertools
import os
import random
import re
import tempfile
import threading
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import memscope
from memscope import _library, watcher

DEVICE = os.environ["MEMSCOPE_TEST_DEVICE"]
HERE = os.path.basename(__file__)


def library(word):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if word in line.split()[-1]))


def copy_past_the_dispatcher(address, data):
    """Writes to the device as a kernel does that nobody was told of."""
    size, source = ctypes.c_size_t(len(data)), ctypes.c_char_p(data)
    at = ctypes.c_void_p(address)
    if DEVICE == "cuda":
        assert library("libcudart").cudaMemcpy(at, source, size, 1) == 0
    else:
        assert library("libascendcl").aclrtMemcpy(at, size, source, size, 1) == 0


#: No two writes near each other in time are of the same byte: each changes all that it writes to.
WRITTEN = itertools.cycle(range(1, 256))


def new_bytes(count):
    return bytes([next(WRITTEN)]) * count


@torch.library.custom_op("mylib::overrun", mutates_args=("into",))
def overrun(into: torch.Tensor) -> None:
    """Says that it writes to its argument, and writes to as much behind it as well."""
    size = into.numel() * into.element_size()
    copy_past_the_dispatcher(into.data_ptr(), new_bytes(2 * size))


@torch.library.custom_op("mylib::fill", mutates_args=("into",))
def fill(into: torch.Tensor) -> None:
    """Writes where it says that it does."""
    size = into.numel() * into.element_size()
    copy_past_the_dispatcher(into.data_ptr(), new_bytes(size))


def bytes_at(count):
    return torch.zeros(count, dtype=torch.uint8, device=DEVICE)


def taken(*names):
    """The changes of these watches, each as (operator, whether it said so)."""
    found = [change for change in watcher.changes() if change.name in names]
    return [(change.operator, change.declared) for change in found]


def who_says_and_who_does_not():
    """Chosen by chance: each operator's effect on two neighbours in one block is known beforehand."""
    rng = random.Random(11)
    whole = bytes_at(4096)
    left, right = whole[:1024], whole[1024:2048]
    watcher.watch(left, name="left")
    watcher.watch(right, name="right")
    expected = {"left": [], "right": []}
    for _ in range(60):
        kind = rng.randrange(5)
        if kind == 0:
            overrun(left)
            expected["left"].append(("mylib.overrun.default", True))
            expected["right"].append(("mylib.overrun.default", False))
        elif kind == 1:
            overrun(right)
            expected["right"].append(("mylib.overrun.default", True))
        elif kind == 2:
            fill(left)
            expected["left"].append(("mylib.fill.default", True))
        elif kind == 3:
            right.copy_(torch.randint(0, 256, (1024,), dtype=torch.uint8))
            expected["right"].append(("aten.copy_.default", True))
        else:
            whole.sum()
            left.view(32, 32).t()
    for name, all_of_it in expected.items():
        assert taken(name) == all_of_it, (name, taken(name), all_of_it)
    first = next(change for change in watcher.changes("right") if not change.declared)
    assert re.fullmatch(rf"{HERE}:\d+ in who_says_and_who_does_not", first.line), first.line
    assert first.thread == threading.get_native_id() and first.number >= 1
    watcher.remove(left)
    watcher.remove(right)


class Backward(torch.autograd.Function):
    """Its backward pass overruns a buffer."""

    @staticmethod
    def forward(ctx, value, buffer):
        ctx.buffer = buffer
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        overrun(ctx.buffer)
        return gradient, None


def in_the_backward_pass():
    whole = bytes_at(512)
    watcher.watch(whole[256:], name="behind")
    value = torch.zeros(4, device=DEVICE, requires_grad=True)
    Backward.apply(value, whole[:256]).sum().backward()
    assert taken("behind") == [("mylib.overrun.default", False)], watcher.changes("behind")
    assert watcher.changes("behind")[0].line.startswith(f"{HERE}:"), watcher.changes("behind")
    watcher.remove(whole[256:])


def between_operators():
    memory = bytes_at(100)
    watcher.watch(memory, name="between")
    memory.view(10, 10)
    copy_past_the_dispatcher(memory.data_ptr(), b"x")
    memory.t()
    (change,) = watcher.changes("between")
    assert change.operator is None and not change.declared
    assert change.between[0] == "aten.view.default", change
    watcher.remove(memory)


def of_another_thread():
    """Another thread's operators are not seen themselves: what they change shows at the next one here."""
    memory = bytes_at(100)
    watcher.watch(memory, name="of a thread".replace(" ", "_"))
    worker = threading.Thread(target=fill, args=(memory,))
    worker.start()
    worker.join()
    memory.view(10, 10)
    assert taken("of_a_thread") == [(None, False)], watcher.changes("of_a_thread")
    watcher.remove(memory)


def by_address():
    memory = torch.zeros(1000, dtype=torch.uint8)
    watcher.watch(memory.data_ptr() + 10, length=20, name="host", device="cpu")
    memory[5:10] = 1
    assert taken("host") == []
    memory[8:11] = 2
    assert taken("host") == [("aten.copy_.default", True)] or taken("host") == [("aten.fill_.Tensor", True)], taken("host")
    watcher.remove(memory.data_ptr() + 10, length=20)
    memory = bytes_at(1000)
    watcher.watch(memory.data_ptr() + 16, length=20, name="device")
    fill(memory[:16])
    assert taken("device") == [], watcher.changes("device")
    fill(memory[:17])
    assert taken("device") == [("mylib.fill.default", True)], taken("device")
    watcher.remove(memory.data_ptr() + 16)


def the_end_of_a_watch():
    memory = bytes_at(64)
    watcher.watch(memory, name="twice", dump_nums=2)
    for _ in range(4):
        fill(memory)
    assert len(taken("twice")) == 2
    refused(memscope.ConfigError, "nothing is watched", watcher.remove, memory)
    # It is not kept alive by being watched.
    address, allocated = memory.data_ptr(), getattr(torch, DEVICE).memory_allocated()
    watcher.watch(memory, name="gone")
    del memory
    assert getattr(torch, DEVICE).memory_allocated() < allocated
    fill(bytes_at(64))
    assert taken("gone") == []
    refused(memscope.ConfigError, "nothing is watched", watcher.remove, address)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def refused(kind, words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"{args} {kwargs} are taken")


def what_cannot_be_watched():
    memory = bytes_at(64)
    refused(TypeError, "not str", watcher.watch, "memory")
    refused(TypeError, "not bool", watcher.watch, True)
    refused(memscope.ConfigError, "length is needed", watcher.watch, 4096)
    refused(memscope.ConfigError, "its own", watcher.watch, memory, length=4)
    refused(memscope.ConfigError, "no name", watcher.watch, memory, name="a b")
    refused(memscope.ConfigError, "number of operators", watcher.watch, memory, dump_nums=0)
    refused(memscope.ConfigError, "0 bytes", watcher.watch, memory[:0])
    refused(memscope.ConfigError, "no memory", watcher.watch, 4096, length=0)

    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Other():
        refused(memscope.MemscopeError, "inside a dispatch mode", watcher.watch, memory)


def files():
    folder = memscope._config.wishes().output_path
    memory = bytes_at(48)
    watcher.watch(memory, name="whole", full_content=True)
    rest = memory[8:]
    watcher.watch(rest)
    fill(memory)
    contents = bytes(memory.cpu().tolist())
    watcher.remove(memory)
    watcher.remove(rest)
    (file,) = glob.glob(f"{folder}/msmemscope_{os.getpid()}_*_ascend/device_0/watch_dump/watch_dump_data_check_sum_*.csv")
    with open(file, encoding="utf-8") as opened:
        head, *lines = opened.read().splitlines()
    assert head == "Tensor info,Check data sum"
    thread = threading.get_native_id()
    sums = dict(line.rsplit(",", 1) for line in lines)
    assert len(sums) == len(lines)
    # The slice was the first operator of the one, and none of the other.
    after = "0_%d/mylib.fill.default_{}_0_after.bin" % thread
    whole, unnamed = after.format("2-whole"), after.format("1-UNKNWON")
    sum_of = lambda data: f"{_library.current.checksum(data, len(data)):016x}"  # noqa: E731
    assert sums[whole] == sum_of(contents)
    assert sums[unnamed] == sum_of(contents[8:])
    with open(os.path.join(os.path.dirname(file), whole.replace("/", ".")), "rb") as opened:
        assert opened.read() == contents


def between_two_operators_as_config_says():
    memscope.config(watch="aten::clone:0,mylib::fill")
    watcher.begin(memscope._config.wishes().watch)
    memory = bytes_at(32)
    copy = memory.clone()
    copy.copy_(torch.ones(32, dtype=torch.uint8))
    other = bytes_at(32)
    fill(other)
    fill(copy)
    assert taken("clone") == [("aten.copy_.default", True)], watcher.changes("clone")
    watcher.end()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def main():
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        memscope.config(output_path=folder)
        for case in (
            who_says_and_who_does_not,
            in_the_backward_pass,
            between_operators,
            of_another_thread,
            by_address,
            the_end_of_a_watch,
            what_cannot_be_watched,
            files,
            between_two_operators_as_config_says,
        ):
            case()
            print("right:", case.__name__, flush=True)
    told = collections.Counter(issubclass(one.category, watcher.CorruptionWarning) for one in said)
    silent = [change for change in watcher.changes() if not change.declared]
    assert told[True] == len(silent) > 5, (told, len(silent))


main()
