"""Holds device memory in every way in which Python can, says which block is held by what, and waits.

One line of JSON: the version of PyTorch, and for each case its name, the address of its block, and the way to it as memscope writes it.
"""

import collections
import ctypes
import functools
import gc
import json
import sys
import threading

import torch

gc.disable()
cases = []


def new(name, way):
    tensor = torch.empty(1000 + len(cases), device="cuda")
    case(name, way, tensor)
    return tensor


def case(name, way, tensor, origin="Named"):
    cases.append(
        {
            "name": name,
            "way": way,
            "origin": origin,
            "block": tensor.untyped_storage().data_ptr(),
        }
    )


class Trainer:
    shared = None

    def __init__(self):
        self.model = torch.nn.Sequential(
            torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)
        ).cuda()
        self.model.register_buffer("running", torch.zeros(3, device="cuda"))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.history = []
        self.cache = {}

    def step(self):
        loss = self.model(torch.randn(32, 128, device="cuda")).sum()
        loss.backward()
        self.optimizer.step()


class Slots:
    __slots__ = ("inner",)


class Cycle:
    pass


T = Trainer()
for _ in range(3):
    T.step()
for name, parameter in T.model.named_parameters():
    case(name, f"__main__.T.model.{name}", parameter)
    case(f"{name}.grad", f"__main__.T.model.{name}.grad", parameter.grad)
    for key in ("exp_avg", "exp_avg_sq"):
        way = f"__main__.T.optimizer.state[<Parameter>]['{key}']"
        case(f"{name}.{key}", way, T.optimizer.state[parameter][key])
del name, parameter, key, way
case("a buffer", "__main__.T.model.running", T.model.running)
deep = Trainer.__new__(Trainer)
deep.model = torch.nn.Linear(8, 8).cuda()
for _ in range(12):
    deep.model = torch.nn.Sequential(deep.model)
deep.optimizer = torch.optim.AdamW(deep.model.parameters())
deep.model(torch.ones(8, 8, device="cuda")).sum().backward()
deep.optimizer.step()
case("a parameter deep in a model", f"__main__.deep.model{'.0' * 12}.weight", deep.model.get_parameter("0." * 12 + "weight"))
alone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(7, device="cuda"))])
case("a parameter that only an optimizer has", "__main__.alone.param_groups[0]['params'][0]", alone.param_groups[0]["params"][0])
T.history += [new(f"history {i}", f"__main__.T.history[{i}]") for i in range(50)]
T.cache[("k", 7)] = new("a key", "__main__.T.cache[('k', 7)]")
T.cache[False] = new("a truth value", "__main__.T.cache[False]")
T.cache[-5_000_000_000] = new("a large number", "__main__.T.cache[-5000000000]")
T.cache["a'b"] = (new("a tuple", "__main__.T.cache['a\\'b'][0]"),)
Trainer.shared = new("a class", "__main__.Trainer.shared")
recent = collections.deque(maxlen=100)
for i in range(150):
    recent.append(None)
recent.append(new("a deque", "__main__.recent[99]"))
seen = {new("a set", "__main__.seen.<element>")}
slots = Slots()
slots.inner = new("a slot", "__main__.slots.inner")
T.extra = 5
T.__dict__["late"] = new("an attribute that came late", "__main__.T.late")
bound = functools.partial(print, new("a partial", "__main__.bound.args[0]"))
ordered = collections.OrderedDict(x=new("an ordered dictionary", "__main__.ordered['x']"))
grown = collections.defaultdict(list)
grown["y"].append(new("a defaultdict", "__main__.grown['y'][0]"))
view = new("a view", "__main__.view")[10:20]


def hook_that_keeps():
    other, kept = 1, []

    def hook(module, inputs, output):
        return kept, other

    kept.append(new("a closure", "__main__.hook.<closure>.kept[0]"))
    return hook


hook = hook_that_keeps()


def defaults(value=new("a default value", "__main__.defaults.__defaults__[0]")):
    return value


def generate():
    inside = new("a generator", "__main__.generator.inside")
    yield
    print(inside)


generator = generate()
next(generator)


def failing():
    lost = new("a traceback", "__main__.error.__traceback__.tb_next.tb_frame.lost")
    raise ValueError(lost.shape)


try:
    failing()
except ValueError as caught:
    error = caught
    error.__context__ = None

weight = torch.ones(700, 700, device="cuda", requires_grad=True)
product = (weight * weight.exp()).sin()
class Keeps(torch.autograd.Function):
    """Saves as many tensors as a compiled model does, which keeps all that its backward pass needs in one place."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(*[x + number for number in range(count)])
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


# More than a vector of 64 KiB has room for, and so many that their vector has a mapping of its own.
some = Keeps.apply(torch.ones(1, device="cuda", requires_grad=True), 1000)
case("one of many that a function saved", "__main__.some.grad_fn.<function><PyNode>.saved", some.grad_fn.saved_tensors[-1])
most = Keeps.apply(torch.ones(1, device="cuda", requires_grad=True), 5000)
case("one of very many that a function saved", "__main__.most.grad_fn.<function><PyNode>.saved", most.grad_fn.saved_tensors[0])
# The edges of a node are a vector as well.
parts = [torch.ones(1, device="cuda", requires_grad=True).exp() for _ in range(3000)]
stacked = torch.stack(parts)
results = [part.grad_fn._saved_result for part in parts]
case("what is behind one of many edges", "__main__.stacked.grad_fn<ExpBackward0>.saved", results[1234])
del parts, results
# Only the graph has the result of exp, which is saved for the backward pass.
exponential = product.grad_fn.next_functions[0][0].next_functions[1][0]
case(
    "the graph",
    "__main__.product.grad_fn<MulBackward0>.saved",
    product.grad_fn.next_functions[0][0]._saved_other,
)
del exponential

cycle = Cycle()
cycle.me = cycle
cycle.tensor = torch.empty(5000, device="cuda")
case("garbage", "<garbage Cycle>.tensor", cycle.tensor, "Garbage")
del cycle

outside = torch.empty(6000, device="cuda")
case("something that is not Python", "<not Python>", outside, "Outside")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(outside))
del outside

ready = threading.Event()


def in_a_thread():
    mine = new("a thread", "in_a_thread.<locals>.mine")
    ready.set()
    threading.Event().wait()
    print(mine)


threading.Thread(target=in_a_thread, daemon=True).start()
ready.wait()


def main():
    local = new("a local variable", "main.<locals>.local")
    told = {"ready": True, "torch": torch.__version__, "cases": cases}
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    print(local)


main()
