"""Checks that an unmodified torch_npu works on the simulated NPU.

Run under it: ``cargo xtask sim --device npu -- python tests/simcann/selftest.py [CASE ...]``. Each case is a process
of its own, because allocator settings are read once.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import threading

import torch
from torch import nn
from torch.nn import functional

MIB = 1 << 20
CASES = {}
# What bits 56-63 of the HAL's flag say of an owner.
HCCL, RUNTIME, APP = 3, 7, 33


def case(since=(2, 0), **environment):
    """Registers a case, the first PyTorch version that can do it, and the environment variables that it needs."""

    def register(function):
        CASES[function.__name__] = (function, environment, since)
        return function

    return register


def train(steps=5, device="npu"):
    """A small transformer, with a batch that a side stream prepares."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.npu.Stream(device)
    for _ in range(steps):
        with torch.npu.stream(side):
            batch = torch.randn(8, 64, 128).to(device, non_blocking=True)
        torch.npu.current_stream(device).wait_stream(side)
        batch.record_stream(torch.npu.current_stream(device))
        labels = torch.randint(0, 10, (8,), device=device)
        loss = functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    return model, optimizer


def log():
    """The allocator calls of this process so far."""
    with open(os.environ["SIMCANN_LOG"], encoding="utf-8") as lines:
        calls = [json.loads(line) for line in lines]
    return [call for call in calls if call["pid"] == os.getpid()]


def live(allocate, free):
    """Address to size of what `allocate` gave and `free` has not taken, by the log."""
    blocks = {}
    for call in log():
        if call["result"] != 0:
            continue
        if call["function"] == allocate:
            assert call["pointer"] not in blocks, f"{call} is given twice"
            blocks[call["pointer"]] = call["size"]
        elif call["function"] == free:
            blocks.pop(call["pointer"], None)
    return blocks


def calls_of(function):
    return [call for call in log() if call["function"] == function]


def owned():
    """Device memory by the module that owns it, by the HAL's lines."""
    blocks = {}
    for call in log():
        if call["result"] != 0:
            continue
        if call["function"] in ("halMemAlloc", "halMemCreate"):
            flag = int(call["flag"], 16)
            if flag >> 10 & 0xF != 2:
                blocks[call["pointer"]] = (flag >> 56, call["size"])
        elif call["function"] in ("halMemFree", "halMemRelease"):
            blocks.pop(call["pointer"], None)
    sums = collections.Counter()
    for module, size in blocks.values():
        sums[module] += size
    return sums


def used(device=0):
    free, total = torch.npu.mem_get_info(device)
    return total - free


def reserved():
    """What the allocator holds, and what is no part of it: the runtime's own."""
    return torch.npu.memory_reserved() + owned()[RUNTIME]


def runs_out(bytes_):
    """The error; torch_npu 2.6 raises no OutOfMemoryError."""
    try:
        torch.empty(bytes_, dtype=torch.uint8, device="npu")
    except RuntimeError as error:
        assert "NPU out of memory" in str(error), error
        return error
    raise AssertionError(f"{bytes_} bytes fit")


@case()
def training():
    assert torch.npu.is_available() and torch.npu.device_count() == 1
    assert torch.npu.get_device_name() == "Ascend910B1"
    torch.npu.memory._record_memory_history(max_entries=100000)
    kept = train()
    assert torch.npu.memory_allocated() > 0
    assert used() == reserved() == sum(live("halMemAlloc", "halMemFree").values())
    assert owned()[APP] == torch.npu.memory_reserved()
    error = runs_out(64 << 30)
    assert torch.__version__ < "2.7" or isinstance(error, torch.OutOfMemoryError)
    torch.ones(1000, device="npu").sum().item()
    snapshot = torch.npu.memory._snapshot()
    segments = {hex(segment["address"]): segment["total_size"] for segment in snapshot["segments"]}
    assert segments == live("aclrtMallocAlign32", "aclrtFree")
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"} <= actions, actions
    del kept
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert used() == reserved()


@case(SIMCANN_DEVICE_SIZE="256MiB")
def running_full():
    kept = []
    try:
        while True:
            kept.append(torch.empty(10 * MIB, dtype=torch.uint8, device="npu"))
    except RuntimeError:
        assert len(kept) >= 20 and used() <= 256 * MIB
    del kept[:10]
    torch.empty(10 * MIB, dtype=torch.uint8, device="npu")


@case(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    kept = train()
    assert calls_of("aclrtReserveMemAddress") and calls_of("halMemCreate") and calls_of("halMemMap")
    assert used() == reserved()
    mapped = live("halMemMap", "halMemUnmap")
    del kept
    torch.npu.synchronize()
    torch.npu.empty_cache()
    assert used() == reserved()
    assert len(live("halMemMap", "halMemUnmap")) < len(mapped)
    runs_out(17 << 30)
    assert used() == reserved()


@case(PYTORCH_NO_NPU_MEMORY_CACHING="1")
def no_caching():
    kept = train(2)
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    blocks = live("aclrtMallocAlign32", "aclrtFree")
    assert hex(tensor.data_ptr()) in blocks and used() == sum(owned().values())
    del kept, tensor
    assert len(live("aclrtMallocAlign32", "aclrtFree")) < len(blocks)


@case(SIMCANN_DEVICES="2", SIMCANN_DEVICE_SIZE="16GiB,8GiB")
def two_devices():
    assert torch.npu.device_count() == 2
    assert torch.npu.mem_get_info(1)[1] == 8 << 30
    kept = [train(2, f"npu:{device}") for device in range(2)]
    there = torch.arange(8.0).to("npu:0").to("npu:1")
    assert there.device.index == 1 and there.cpu().tolist() == list(range(8))
    sizes = collections.Counter()
    frees = {call["pointer"] for call in calls_of("halMemFree")}
    for call in calls_of("halMemAlloc"):
        if call["pointer"] not in frees and call["device"] >= 0:
            assert call["device"] == int(call["flag"], 16) & 0x3FF
            sizes[call["device"]] += call["size"]
    assert sizes == {0: used(0), 1: used(1)}, sizes
    assert used(1) > torch.npu.memory_reserved(1) > 0
    del kept


@case(SIMCANN_DEVICES="3", ASCEND_RT_VISIBLE_DEVICES="0,2")
def visible_devices():
    """The HAL counts the machine's devices, the program those that it sees."""
    assert torch.npu.device_count() == 2
    tensors = [torch.empty(1, device=f"npu:{device}") for device in range(2)]
    seen = {(call["device"], int(call["flag"], 16) & 0x3FF) for call in calls_of("halMemAlloc")}
    assert seen == {(0, 0), (1, 2)}, seen
    del tensors


def _receive(queue, answers):
    tensor = queue.get()
    answers.put(tensor.cpu().tolist())
    tensor.copy_(torch.arange(4.0) + 10)
    torch.npu.synchronize()
    answers.put("written")
    del tensor
    queue.get()


@case(since=(2, 7))
def ipc():
    import torch_npu  # noqa: F401: has its own way to send tensors

    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, answers), daemon=True)
    child.start()
    tensor = torch.arange(4.0).to("npu")
    queue.put(tensor)
    assert answers.get(timeout=120) == [0, 1, 2, 3]
    assert answers.get(timeout=120) == "written"
    assert tensor.cpu().tolist() == [10, 11, 12, 13]
    queue.put(None)
    child.join()
    assert child.exitcode == 0


@case()
def numbers():
    assert torch.tensor(2.5, device="npu").item() == 2.5
    values = torch.randn(1000)
    assert torch.equal(values.npu().cpu(), values)
    pinned = values.pin_memory()
    assert pinned.is_pinned() and torch.equal(pinned.to("npu", non_blocking=True).cpu(), values)
    spaces = [int(call["flag"], 16) >> 10 & 0xF for call in calls_of("halMemAlloc") if call["device"] < 0]
    assert spaces and set(spaces) == {2}, spaces
    str(torch.randn(3, 3, device="npu"))
    assert torch.arange(10, device="npu").nonzero().shape[1] == 1


@case()
def operators():
    images = torch.randn(4, 8, 16, 16, device="npu", requires_grad=True)
    convolution = nn.Conv2d(8, 8, 3).npu()
    nn.BatchNorm2d(8).npu()(convolution(images)).sum().backward()
    nn.LSTM(32, 16).npu()(torch.randn(5, 4, 32, device="npu"))[0].sum().backward()
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        query = torch.randn(2, 4, 64, 32, device="npu", dtype=kind, requires_grad=True)
        functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        square = torch.randn(32, 32, device="npu", dtype=kind)
        functional.linear(square @ square, square, square[0])
    words = nn.Embedding(100, 16).npu()(torch.randint(0, 100, (4, 7), device="npu"))
    functional.softmax(functional.gelu(functional.layer_norm(functional.dropout(words, 0.1), (16,))), -1).sum().backward()
    for settings in ({"foreach": True}, {"foreach": False}):
        parameter = torch.randn(100, device="npu", requires_grad=True)
        parameter.sum().backward()
        optimizer = torch.optim.AdamW([parameter], **settings)
        optimizer.step()
        optimizer.step()
    scaler = torch.amp.GradScaler("npu")
    model = nn.Linear(16, 16).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("npu"):
        loss = model(torch.randn(4, 16, device="npu")).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


@case()
def graphs():
    graph = torch.npu.NPUGraph()
    before = torch.randn(1000, device="npu")
    with torch.npu.graph(graph):
        after = before * 2 + torch.ones_like(before)
    graph.replay()
    torch.npu.synchronize()
    assert after.shape == before.shape
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.npu.memory._snapshot()["segments"]}
    assert len(pools) == 2, pools


@case(TASK_QUEUE_ENABLE="0")
def without_queue():
    kept = train(2)
    assert owned()[APP] == torch.npu.memory_reserved() > 0
    del kept


@case(TASK_QUEUE_ENABLE="2")
def second_queue():
    """Workspaces come from an allocator of their own: one for each stream, on the thread that launches."""
    kept = train(2)
    torch.npu.synchronize()
    beside = owned()[APP] - torch.npu.memory_reserved()
    assert beside == 2 * MIB, beside
    del kept


@case(ASCEND_LAUNCH_BLOCKING="1")
def blocking():
    kept = train(2)
    assert owned()[APP] == torch.npu.memory_reserved() > 0
    del kept


@case(HCCL_BUFFSIZE="50", MASTER_ADDR="127.0.0.1")
def communicators():
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("hccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor = torch.ones(10, device="npu")
        torch.distributed.all_reduce(tensor)
        torch.npu.synchronize()
        assert owned()[HCCL] == 100 * MIB, owned()
        torch.distributed.destroy_process_group()
    assert owned()[HCCL] == 0, owned()


@case()
def memory_regions():
    """torch_npu tells of each block through mstx when a library of this name is preloaded, and not otherwise."""
    script = "import torch; a = torch.ones(1000, device='npu'); del a"
    hook = os.path.join(os.environ["ASCEND_HOME_PATH"], "lib64", "libascend_kernel_hook.so")
    for preload in ("", hook):
        environment = dict(os.environ, LD_PRELOAD=preload, SIMCANN_TRACE_STUBS="1")
        run = subprocess.run([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True, check=True)
        said = collections.Counter(line.split()[-1] for line in run.stderr.splitlines() if "stub mstx" in line)
        assert (said["mstxMemRegionsRegister"] > 0) == bool(preload), said
        assert said["mstxMemRegionsRegister"] == said["mstxMemRegionsUnregister"], said


@case(SIMCANN_EVENT_DELAY_US="50000")
def late_events():
    side = torch.npu.Stream()
    event = torch.npu.Event()
    tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="npu")
    address = tensor.data_ptr()
    tensor.record_stream(side)
    event.record(side)
    assert not event.query()
    del tensor  # in use on the side stream until an event that has not happened
    assert torch.empty(5 * MIB, dtype=torch.uint8, device="npu").data_ptr() != address
    event.synchronize()
    assert event.query()


@case()
def threads():
    errors = []

    def work():
        try:
            with torch.npu.stream(torch.npu.Stream()):
                for size in range(200):
                    torch.empty(1 + size * 10000, device="npu").add_(1)
        except Exception as error:  # noqa: BLE001: reported below
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    torch.npu.synchronize()
    assert used() == reserved()


@case(SIMCANN_FAIL="aclrtMallocAlign32:3=oom")
def planned_failure():
    first = torch.empty(30 * MIB, dtype=torch.uint8, device="npu")
    second = torch.empty(30 * MIB, dtype=torch.uint8, device="npu")
    third = torch.empty(30 * MIB, dtype=torch.uint8, device="npu")  # PyTorch frees its cache and tries again
    assert [call["result"] for call in calls_of("aclrtMallocAlign32")][:4] == [0, 0, 207001, 0]
    del first, second, third


def main():
    names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        CASES[names[1]][0]()
        return 0
    failed = []
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    for name in names or CASES:
        if version < CASES[name][2]:
            print(f"selftest.py: {name}: torch_npu for PyTorch {torch.__version__} cannot do this", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, SIMCANN_LOG=os.path.join(folder, "log.jsonl"), **CASES[name][1])
            command = [sys.executable, os.path.abspath(__file__), "--inside", name]
            try:
                code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=300, check=False).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
        if code != 0:
            failed.append(name)
        print(f"selftest.py: {name}: {'passed' if code == 0 else f'FAILED ({code})'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
