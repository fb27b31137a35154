"""Checks that an unmodified PyTorch works on the simulated device.

Run under it: ``cargo xtask sim -- python tests/simcuda/selftest.py [CASE ...]``. Each case is a process of its
own, because allocator settings are read once.
"""

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


def case(since=(2, 0), **environment):
    """Registers a case, the first PyTorch version that can do it, and the environment variables that it needs."""

    def register(function):
        CASES[function.__name__] = (function, environment, since)
        return function

    return register


def train(steps=5, device="cuda"):
    """A small transformer, with a batch that a side stream prepares."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream(device)
    for _ in range(steps):
        with torch.cuda.stream(side):
            batch = torch.randn(8, 64, 128).to(device, non_blocking=True)
        torch.cuda.current_stream(device).wait_stream(side)
        batch.record_stream(torch.cuda.current_stream(device))
        labels = torch.randint(0, 10, (8,), device=device)
        loss = functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    return model, optimizer


def used(device=0):
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def log():
    """The allocator calls of this process so far."""
    with open(os.environ["SIMCUDA_LOG"], encoding="utf-8") as lines:
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


@case()
def training():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name() == "memscope simulated device"
    torch.cuda.memory._record_memory_history(max_entries=100000)
    kept = train()
    assert torch.cuda.memory_allocated() > 0
    assert used() == torch.cuda.memory_reserved() == sum(live("cuMemAlloc_v2", "cuMemFree_v2").values())
    try:
        torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
        raise AssertionError("64 GiB fit into 16 GiB")
    except torch.cuda.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    torch.ones(1000, device="cuda").sum().item()
    snapshot = torch.cuda.memory._snapshot()
    segments = {hex(segment["address"]): segment["total_size"] for segment in snapshot["segments"]}
    assert segments == live("cudaMalloc", "cudaFree") == live("cuMemAlloc_v2", "cuMemFree_v2")
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"} <= actions, actions
    del kept
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() == torch.cuda.memory_reserved() == sum(live("cuMemAlloc_v2", "cuMemFree_v2").values())


@case(SIMCUDA_DEVICE_SIZE="256MiB")
def running_full():
    kept = []
    try:
        while True:
            kept.append(torch.empty(10 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        assert len(kept) >= 20 and used() <= 256 * MIB
    del kept[:10]
    torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")


@case(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    kept = train()
    assert calls_of("cuMemAddressReserve") and calls_of("cuMemCreate") and calls_of("cuMemMap")
    assert used() == torch.cuda.memory_reserved()
    mapped = live("cuMemMap", "cuMemUnmap")
    del kept
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert used() == torch.cuda.memory_reserved()
    assert len(live("cuMemMap", "cuMemUnmap")) < len(mapped)
    try:
        torch.empty(17 << 30, dtype=torch.uint8, device="cuda")
        raise AssertionError("17 GiB fit into 16 GiB")
    except torch.cuda.OutOfMemoryError:
        assert used() == torch.cuda.memory_reserved()


@case(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def malloc_async():
    def in_use():  # pools deal in units of 512 bytes
        return sum(-(-size // 512) * 512 for size in live("cuMemAllocAsync", "cuMemFreeAsync").values())

    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    kept = train()
    assert torch.cuda.memory_allocated() == in_use() > 0
    assert live("cudaMallocAsync", "cudaFreeAsync") == live("cuMemAllocAsync", "cuMemFreeAsync")
    assert used() == torch.cuda.memory_reserved()
    del kept
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == in_use()
    torch.cuda.empty_cache()
    assert used() == torch.cuda.memory_reserved()


@case(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
def no_caching():
    kept = train()
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert hex(tensor.data_ptr()) in live("cudaMalloc", "cudaFree")
    assert used() == sum(live("cuMemAlloc_v2", "cuMemFree_v2").values()) > 0
    before = len(live("cudaMalloc", "cudaFree"))
    del kept, tensor
    assert len(live("cudaMalloc", "cudaFree")) < before


@case(SIMCUDA_DEVICES="2", SIMCUDA_DEVICE_SIZE="16GiB,8GiB")
def two_devices():
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_properties(1).total_memory == 8 << 30
    kept = [train(2, f"cuda:{device}") for device in range(2)]
    assert used(0) == torch.cuda.memory_reserved(0) > 0
    assert used(1) == torch.cuda.memory_reserved(1) > 0
    there = torch.arange(8.0).to("cuda:0").to("cuda:1")
    assert there.device.index == 1 and there.cpu().tolist() == list(range(8))
    sizes = {}
    frees = {call["pointer"] for call in calls_of("cuMemFree_v2")}
    for call in calls_of("cuMemAlloc_v2"):
        if call["pointer"] not in frees:
            sizes[call["device"]] = sizes.get(call["device"], 0) + call["size"]
    assert sizes == {0: used(0), 1: used(1)}, sizes
    del kept


@case(SIMCUDA_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0")
def visible_devices():
    assert torch.cuda.device_count() == 2
    torch.empty(1, device="cuda:1")


@case()
def pluggable_allocator():
    source = """
        #include <stddef.h>
        #include <sys/types.h>
        int cudaMalloc(void **, size_t);
        int cudaFree(void *);
        int given;
        void *take(ssize_t size, int device, void *stream) { void *p = 0; given++; cudaMalloc(&p, size); return p; }
        void leave(void *p, ssize_t size, int device, void *stream) { cudaFree(p); }
    """
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "allocator.so")
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=source.encode(), check=True)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "take", "leave")
        torch.cuda.memory.change_current_allocator(allocator)
        kept = train(2)
        tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        assert live("cudaMalloc", "cudaFree")[hex(tensor.data_ptr())] == 5 * MIB
        del kept


def _receive(queue, answers):
    tensor = queue.get()
    answers.put(tensor.cpu().tolist())
    tensor[0] = 0  # a kernel: does nothing
    tensor.copy_(torch.arange(4.0) + 10)
    torch.cuda.synchronize()
    answers.put("written")
    del tensor
    queue.get()


@case()
def ipc():
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, answers), daemon=True)
    child.start()
    tensor = torch.arange(4.0).to("cuda")
    queue.put(tensor)
    assert answers.get(timeout=120) == [0, 1, 2, 3]
    assert answers.get(timeout=120) == "written"
    assert tensor.cpu().tolist() == [10, 11, 12, 13]
    queue.put(None)
    child.join()
    assert child.exitcode == 0


@case(since=(2, 5), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def ipc_of_expandable_segments():
    ipc()
    assert calls_of("cuMemMap")


@case()
def numbers():
    assert torch.tensor(2.5, device="cuda").item() == 2.5
    assert torch.tensor(2.5, dtype=torch.float64, device="cuda").item() == 2.5
    values = torch.randn(1000)
    assert torch.equal(values.cuda().cpu(), values)
    pinned = values.pin_memory()
    assert pinned.is_pinned() and torch.equal(pinned.to("cuda", non_blocking=True).cpu(), values)
    assert torch.zeros(50 * MIB, device="cuda").cpu().count_nonzero() == 0
    str(torch.randn(3, 3, device="cuda"))


@case()
def operators():
    images = torch.randn(4, 8, 16, 16, device="cuda", requires_grad=True)
    convolution = nn.Conv2d(8, 8, 3).cuda()
    nn.BatchNorm2d(8).cuda()(convolution(images)).sum().backward()
    with torch.backends.cudnn.flags(enabled=False):
        convolution(images).sum().backward()
    nn.LSTM(32, 16, num_layers=2, bidirectional=True).cuda()(torch.randn(5, 4, 32, device="cuda"))[0].sum().backward()
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        query = torch.randn(2, 4, 64, 32, device="cuda", dtype=kind, requires_grad=True)
        functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        square = torch.randn(32, 32, device="cuda", dtype=kind)
        functional.linear(square @ square, square, square[0])
    words = nn.Embedding(100, 16).cuda()(torch.randint(0, 100, (4, 7), device="cuda"))
    functional.softmax(functional.gelu(functional.layer_norm(functional.dropout(words, 0.1), (16,))), -1).sum().backward()
    for settings in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        parameter = torch.randn(100, device="cuda", requires_grad=True)
        parameter.sum().backward()
        optimizer = torch.optim.AdamW([parameter], **settings)
        optimizer.step()
        optimizer.step()
    scaler = torch.amp.GradScaler("cuda")
    model = nn.Linear(16, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda"):
        loss = model(torch.randn(4, 16, device="cuda")).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


@case()
def graphs():
    graph = torch.cuda.CUDAGraph()
    before = torch.randn(1000, device="cuda")
    with torch.cuda.graph(graph):
        after = before * 2 + torch.ones_like(before)
    graph.replay()
    assert after.shape == before.shape


@case(SIMCUDA_EVENT_DELAY_US="50000")
def late_events():
    side = torch.cuda.Stream()
    event = torch.cuda.Event()
    tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    tensor.record_stream(side)
    event.record(side)
    assert not event.query()
    del tensor  # in use on the side stream until an event that has not happened
    assert torch.empty(5 * MIB, dtype=torch.uint8, device="cuda").data_ptr() != address
    event.synchronize()
    assert event.query()


@case()
def threads():
    errors = []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for size in range(200):
                    torch.empty(1 + size * 10000, device="cuda").add_(1)
        except Exception as error:  # noqa: BLE001: reported below
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    assert used() == torch.cuda.memory_reserved()


@case(SIMCUDA_FAIL="cudaMalloc:3=oom")
def planned_failure():
    first = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    second = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    third = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")  # PyTorch frees its cache and tries again
    assert [call["result"] for call in calls_of("cudaMalloc")][:4] == [0, 0, 2, 0]
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
            print(f"selftest.py: {name}: PyTorch {torch.__version__} cannot do this", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, SIMCUDA_LOG=os.path.join(folder, "log.jsonl"), **CASES[name][1])
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
