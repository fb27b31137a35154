"""Checks that an unmodified torch_npu works on the simulated NPU.

Run under it: ``cargo xtask sim --device npu -- python tests/simcann/selftest.py [CASE ...]``. Each case is a process
of its own, because allocator settings are read once.
"""

import collections
import os
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "simcommon"))
from simtest import MIB, Simulated  # noqa: E402: it lies beside

# What bits 56-63 of the HAL's flag say of an owner.
HCCL, RUNTIME, APP = 3, 7, 33

sim = Simulated(__file__, "npu", "SIMCANN", "torch_npu for PyTorch")
case, calls_of, live, train, used = sim.case, sim.calls_of, sim.live, sim.train, sim.used


def owned():
    """Device memory by the module that owns it, by the HAL's lines."""
    blocks = {}
    for call in sim.log():
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


def reserved():
    """What the allocator holds, and what is no part of it: the runtime's own."""
    return torch.npu.memory_reserved() + owned()[RUNTIME]


@case()
def training():
    assert torch.npu.is_available() and torch.npu.device_count() == 1
    assert torch.npu.get_device_name() == "Ascend910B1"
    torch.npu.memory._record_memory_history(max_entries=100000)
    kept = train()
    assert torch.npu.memory_allocated() > 0
    assert used() == reserved() == sum(live("halMemAlloc", "halMemFree").values())
    assert owned()[APP] == torch.npu.memory_reserved()
    sim.runs_out(64 << 30)
    torch.ones(1000, device="npu").sum().item()
    snapshot = torch.npu.memory._snapshot()
    segments = {hex(segment["address"]): segment["total_size"] for segment in snapshot["segments"]}
    assert segments == live("aclrtMallocAlign32", "aclrtFree")
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"} <= actions, actions
    del kept
    sim.give_back()
    assert used() == reserved()


@case(SIMCANN_DEVICE_SIZE="256MiB")
def running_full():
    sim.running_full(256 * MIB)


@case(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    kept = train()
    assert calls_of("aclrtReserveMemAddress") and calls_of("halMemCreate") and calls_of("halMemMap")
    assert used() == reserved()
    mapped = live("halMemMap", "halMemUnmap")
    del kept
    sim.give_back()
    assert used() == reserved()
    assert len(live("halMemMap", "halMemUnmap")) < len(mapped)
    sim.runs_out(17 << 30)
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


@case(since=(2, 7))
def ipc():
    import torch_npu  # noqa: F401: has its own way to send tensors

    sim.ipc()


@case()
def numbers():
    sim.numbers()
    spaces = [int(call["flag"], 16) >> 10 & 0xF for call in calls_of("halMemAlloc") if call["device"] < 0]
    assert spaces and set(spaces) == {2}, spaces
    assert torch.arange(10, device="npu").nonzero().shape[1] == 1


@case()
def operators():
    sim.operators([{"foreach": True}, {"foreach": False}])


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
    sim.late_events()


@case()
def threads():
    sim.threads()
    torch.npu.synchronize()
    assert used() == reserved()


@case(SIMCANN_FAIL="aclrtMallocAlign32:3=oom")
def planned_failure():
    sim.planned_failure("aclrtMallocAlign32", 207001)


if __name__ == "__main__":
    sys.exit(sim.main())
