"""What the simulated devices' tests in PyTorch share: running cases, the device's log, and work that any device can do."""

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
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Simulated:
    """The cases of one device's test. `script` is its file, `prefix` begins the simulated device's variables."""

    def __init__(self, script, device, prefix, product="PyTorch"):
        self.script = os.path.abspath(script)
        self.device = device
        self.gpu = getattr(torch, device)
        self.log_variable = f"{prefix}_LOG"
        self.product = product
        self.cases = {}

    def case(self, since=(2, 0), **environment):
        """Registers a case, the first PyTorch version that can do it, and the environment variables that it needs."""

        def register(function):
            self.cases[function.__name__] = (function, environment, since)
            return function

        return register

    def log(self):
        """The allocator calls of this process so far."""
        with open(os.environ[self.log_variable], encoding="utf-8") as lines:
            calls = [json.loads(line) for line in lines]
        return [call for call in calls if call["pid"] == os.getpid()]

    def calls_of(self, function):
        return [call for call in self.log() if call["function"] == function]

    def live(self, allocate, free):
        """Address to size of what `allocate` gave and `free` has not taken, by the log."""
        blocks = {}
        for call in self.log():
            if call["result"] != 0:
                continue
            if call["function"] == allocate:
                assert call["pointer"] not in blocks, f"{call} is given twice"
                blocks[call["pointer"]] = call["size"]
            elif call["function"] == free:
                blocks.pop(call["pointer"], None)
        return blocks

    def used(self, device=0):
        free, total = self.gpu.mem_get_info(device)
        return total - free

    def empty(self, bytes_):
        return torch.empty(bytes_, dtype=torch.uint8, device=self.device)

    def runs_out(self, bytes_):
        """So many bytes do not fit."""
        try:
            self.empty(bytes_)
        except RuntimeError as error:
            self.check_out_of_memory(error)
            return
        raise AssertionError(f"{bytes_} bytes fit")

    def check_out_of_memory(self, error):
        assert "out of memory" in str(error), error
        # torch_npu 2.6 raises no OutOfMemoryError.
        if self.device == "cuda" or VERSION >= (2, 7):
            assert isinstance(error, torch.cuda.OutOfMemoryError), repr(error)

    def give_back(self):
        """What nobody uses."""
        self.gpu.synchronize()
        self.gpu.empty_cache()

    def train(self, steps=5, device=None):
        """A small transformer, with a batch that a side stream prepares."""
        device = device or self.device
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 128, 10)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        side = self.gpu.Stream(device)
        for _ in range(steps):
            with self.gpu.stream(side):
                batch = torch.randn(8, 64, 128).to(device, non_blocking=True)
            self.gpu.current_stream(device).wait_stream(side)
            batch.record_stream(self.gpu.current_stream(device))
            labels = torch.randint(0, 10, (8,), device=device)
            loss = functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        return model, optimizer

    def running_full(self, size):
        """A device of `size` bytes fills up, and some of that is used again."""
        kept = []
        try:
            while True:
                kept.append(self.empty(10 * MIB))
        except RuntimeError as error:
            self.check_out_of_memory(error)
        assert len(kept) >= 20 and self.used() <= size
        del kept[:10]
        self.empty(10 * MIB)

    def planned_failure(self, allocate, code):
        """The third call of `allocate` fails with `code`."""
        kept = [self.empty(30 * MIB) for _ in range(3)]  # PyTorch frees its cache and tries again
        assert [call["result"] for call in self.calls_of(allocate)][:4] == [0, 0, code, 0]
        del kept

    def ipc(self):
        """A tensor is sent to another process, which reads it and writes to it."""
        context = torch.multiprocessing.get_context("spawn")
        queue, answers = context.Queue(), context.Queue()
        child = context.Process(target=_receive, args=(queue, answers), daemon=True)
        child.start()
        tensor = torch.arange(4.0).to(self.device)
        queue.put(tensor)
        assert answers.get(timeout=120) == [0, 1, 2, 3]
        assert answers.get(timeout=120) == "written"
        assert tensor.cpu().tolist() == [10, 11, 12, 13]
        queue.put(None)
        child.join()
        assert child.exitcode == 0

    def numbers(self):
        """Copies are real, both ways."""
        assert torch.tensor(2.5, device=self.device).item() == 2.5
        values = torch.randn(1000)
        assert torch.equal(values.to(self.device).cpu(), values)
        pinned = values.pin_memory()
        assert pinned.is_pinned() and torch.equal(pinned.to(self.device, non_blocking=True).cpu(), values)
        str(torch.randn(3, 3, device=self.device))

    def operators(self, optimizers, **lstm):
        """What models are made of, forwards and backwards; `optimizers` are AdamW's settings."""
        at = {"device": self.device}
        images = torch.randn(4, 8, 16, 16, requires_grad=True, **at)
        convolution = nn.Conv2d(8, 8, 3).to(self.device)
        nn.BatchNorm2d(8).to(self.device)(convolution(images)).sum().backward()
        nn.LSTM(32, 16, **lstm).to(self.device)(torch.randn(5, 4, 32, **at))[0].sum().backward()
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            query = torch.randn(2, 4, 64, 32, dtype=kind, requires_grad=True, **at)
            functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
            square = torch.randn(32, 32, dtype=kind, **at)
            functional.linear(square @ square, square, square[0])
        words = nn.Embedding(100, 16).to(self.device)(torch.randint(0, 100, (4, 7), **at))
        normed = functional.layer_norm(functional.dropout(words, 0.1), (16,))
        functional.softmax(functional.gelu(normed), -1).sum().backward()
        for settings in optimizers:
            parameter = torch.randn(100, requires_grad=True, **at)
            parameter.sum().backward()
            optimizer = torch.optim.AdamW([parameter], **settings)
            optimizer.step()
            optimizer.step()
        scaler = torch.amp.GradScaler(self.device)
        model = nn.Linear(16, 16).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast(self.device):
            loss = model(torch.randn(4, 16, **at)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def late_events(self):
        """Events happen a while after what they were recorded behind."""
        side = self.gpu.Stream()
        event = self.gpu.Event()
        tensor = self.empty(5 * MIB)
        address = tensor.data_ptr()
        tensor.record_stream(side)
        event.record(side)
        assert not event.query()
        del tensor  # in use on the side stream until an event that has not happened
        assert self.empty(5 * MIB).data_ptr() != address
        event.synchronize()
        assert event.query()

    def threads(self):
        """Eight of them allocate on streams of their own."""
        errors = []

        def work():
            try:
                with self.gpu.stream(self.gpu.Stream()):
                    for size in range(200):
                        torch.empty(1 + size * 10000, device=self.device).add_(1)
            except Exception as error:  # noqa: BLE001: reported below
                errors.append(error)

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not errors, errors

    def main(self):
        """Runs the cases that the command line names, or all, each in a process of its own; the exit status."""
        names = sys.argv[1:]
        if names[:1] == ["--inside"]:
            self.cases[names[1]][0]()
            return 0
        failed = []
        for name in names or self.cases:
            _, variables, since = self.cases[name]
            if VERSION < since:
                print(f"selftest.py: {name}: {self.product} {torch.__version__} cannot do this", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                environment = dict(os.environ, **{self.log_variable: os.path.join(folder, "log.jsonl")}, **variables)
                command = [sys.executable, self.script, "--inside", name]
                try:
                    run = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=300, check=False)
                    code = run.returncode
                except subprocess.TimeoutExpired:
                    code = "timeout"
            if code != 0:
                failed.append(name)
            print(f"selftest.py: {name}: {'passed' if code == 0 else f'FAILED ({code})'}", flush=True)
        return 1 if failed else 0


def _receive(queue, answers):
    tensor = queue.get()
    answers.put(tensor.cpu().tolist())
    tensor[0] = 0  # a kernel: does nothing
    tensor.copy_(torch.arange(4.0) + 10)
    getattr(torch, tensor.device.type).synchronize()
    answers.put("written")
    del tensor
    queue.get()
