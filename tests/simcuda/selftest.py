"""Checks that an unmodified PyTorch works on the simulated device.

Run under it: ``cargo xtask sim -- python tests/simcuda/selftest.py [CASE ...]``. Each case is a process of its
own, because allocator settings are read once.
"""

import os
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "simcommon"))
from simtest import MIB, Simulated  # noqa: E402: it lies beside

sim = Simulated(__file__, "cuda", "SIMCUDA")
case, calls_of, live, train, used = sim.case, sim.calls_of, sim.live, sim.train, sim.used


@case()
def training():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name() == "memscope simulated device"
    torch.cuda.memory._record_memory_history(max_entries=100000)
    kept = train()
    assert torch.cuda.memory_allocated() > 0
    assert used() == torch.cuda.memory_reserved() == sum(live("cuMemAlloc_v2", "cuMemFree_v2").values())
    sim.runs_out(64 << 30)
    torch.ones(1000, device="cuda").sum().item()
    snapshot = torch.cuda.memory._snapshot()
    segments = {hex(segment["address"]): segment["total_size"] for segment in snapshot["segments"]}
    assert segments == live("cudaMalloc", "cudaFree") == live("cuMemAlloc_v2", "cuMemFree_v2")
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"} <= actions, actions
    del kept
    sim.give_back()
    assert used() == torch.cuda.memory_reserved() == sum(live("cuMemAlloc_v2", "cuMemFree_v2").values())


@case(SIMCUDA_DEVICE_SIZE="256MiB")
def running_full():
    sim.running_full(256 * MIB)


@case(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    kept = train()
    assert calls_of("cuMemAddressReserve") and calls_of("cuMemCreate") and calls_of("cuMemMap")
    assert used() == torch.cuda.memory_reserved()
    mapped = live("cuMemMap", "cuMemUnmap")
    del kept
    sim.give_back()
    assert used() == torch.cuda.memory_reserved()
    assert len(live("cuMemMap", "cuMemUnmap")) < len(mapped)
    sim.runs_out(17 << 30)
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


@case()
def ipc():
    sim.ipc()


@case(since=(2, 5), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def ipc_of_expandable_segments():
    ipc()
    assert calls_of("cuMemMap")


@case()
def numbers():
    sim.numbers()
    assert torch.tensor(2.5, dtype=torch.float64, device="cuda").item() == 2.5
    assert torch.zeros(50 * MIB, device="cuda").cpu().count_nonzero() == 0


@case()
def operators():
    optimizers = [{"fused": True}, {"foreach": True}, {"foreach": False}]
    sim.operators(optimizers, num_layers=2, bidirectional=True)
    images = torch.randn(4, 8, 16, 16, device="cuda", requires_grad=True)
    with torch.backends.cudnn.flags(enabled=False):
        torch.nn.Conv2d(8, 8, 3).cuda()(images).sum().backward()


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
    sim.late_events()


@case()
def threads():
    sim.threads()
    assert used() == torch.cuda.memory_reserved()


@case(SIMCUDA_FAIL="cudaMalloc:3=oom")
def planned_failure():
    sim.planned_failure("cudaMalloc", 2)


if __name__ == "__main__":
    sys.exit(sim.main())
