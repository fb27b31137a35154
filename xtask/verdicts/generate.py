"""Writes a script of which it is known what leaks, from a seed. The same seed gives the same script.

    generate.py SEED

Of the seeds 2n-1 and 2n one leaks and the other is clean. All scripts have a model that is trained or only used, and around it
things that come and go as in real programs; a clean one has at least one thing that looks like a leak for a while. What
leaks is on lines that end with `# LEAK`.
"""

import random
import sys

# Sizes of what leaks, in bytes: spread evenly over the powers of two.
LEAST, MOST = 9, 23


class Script:
    """The parts of a script, in the order in which they stand in it."""

    def __init__(self):
        self.imports = {"import torch", "from torch import nn"}
        self.globals = []
        self.functions = []
        self.setup = []
        self.step = []
        self.marks = []
        self.story = []

    def text(self):
        own = sorted(line for line in self.imports if "torch" not in line)
        lines = ['"""' + "; ".join(self.story) + '."""']
        lines += [f"# verdicts: {mark}" for mark in self.marks]
        lines += ["", *own, *([""] if own else []), "import torch", "from torch import nn", ""]
        lines += [*self.globals, *([""] if self.globals else [])]
        for function in self.functions:
            lines += ["", *function, ""]
        # Everything that is set up is a name of the module.
        names = sorted({line.split(" = ")[0] for line in self.setup if " = " in line and not line.startswith(" ")})
        lines += ["", "def setup():", f"    global {', '.join(names)}", *("    " + line for line in self.setup)]
        lines += ["", "", *self.step_lines()]
        return "\n".join(lines) + "\n"

    def step_lines(self):
        head = [] if self.trains else ["@torch.no_grad()"]
        return [*head, "def step(i):", *("    " + line for line in self.step)]


def model(script, r):
    """A model, and how a batch for it is made."""
    kind = r.choice(["linear", "conv", "transformer"])
    layers, width = r.randrange(1, 4 if kind == "transformer" else 7), r.choice([32, 64, 96, 128, 192])
    script.story.append(f"{kind}, layers: {layers}")
    if kind == "linear":
        inner = ", ".join([f"nn.Linear({width}, {width}), nn.{r.choice(['ReLU', 'GELU', 'Tanh'])}()"] * layers)
        script.setup.append(f"model = nn.Sequential({inner}, nn.Linear({width}, 16)).cuda()")
        shape = f"{width}"
    elif kind == "conv":
        channels = r.choice([4, 8, 16])
        inner = ", ".join([f"nn.Conv2d({channels}, {channels}, 3, padding=1), nn.ReLU()"] * layers)
        script.setup.append(f"model = nn.Sequential(nn.Conv2d(3, {channels}, 1), {inner}, nn.AdaptiveAvgPool2d(2)).cuda()")
        shape = f"3, {r.choice([8, 12, 16])}, 16"
    else:
        script.setup.append(f"layer = nn.TransformerEncoderLayer({width}, 4, {2 * width}, batch_first=True)")
        script.setup.append(f"model = nn.TransformerEncoder(layer, {layers}, enable_nested_tensor=False).cuda()")
        length = r.choice(["16", "24", "numbers.randrange(8, 48)"])
        shape = f"{length}, {width}"
    variation = r.choice(["fixed", "fixed", "random", "last one smaller"])
    size = r.choice([8, 16, 24, 32])
    if variation == "random":
        count = f"numbers.randrange({size // 2}, {2 * size})"
    elif variation == "last one smaller":
        count = f"{size} if i % {r.randrange(5, 20)} else {size // 2}"
    else:
        count = f"{size}"
    if "numbers" in count + shape:
        use_numbers(script)
    if variation != "fixed":
        script.story.append(f"batches: {variation}")
    return f"torch.randn({count}, {shape}, device=\"cuda\")"


def use_numbers(script):
    script.imports.add("import random")
    line = f"numbers = random.Random({script.seed})"
    if line not in script.globals:
        script.globals.append(line)


def core(script, r, batch, retained):
    """What each step does: training, by an optimizer or by hand, or only the model's answer."""
    leak = "  # LEAK" if retained else ""
    # Attention saves a copy of its input, in another order; the other models save what they are given.
    of_batch = leak if "Transformer" not in script.setup[0] else ""
    if not script.trains:
        script.story.append("inference")
        script.marks.append("steps pattern unknown")
        script.setup.append("model.eval()")
        script.step += [f"batch = {batch}", "output = model(batch)", "answer = output.mean(dim=0).cpu()"]
        return
    hand = r.random() < 0.15
    accumulated = 1 if retained else r.choice([1, 1, 1, 2, 4])
    more = "retain_graph=True" if retained else ""
    indent = ""
    zero = "for parameter in model.parameters():" if hand else "optimizer.zero_grad()"
    zero = [zero, *(["    parameter.grad = None"] if hand else [])]
    if accumulated > 1:
        script.step += [*zero, f"for _ in range({accumulated}):"]
        indent, zero = "    ", []
    script.step += [
        f"{indent}batch = {batch}{of_batch}",
        f"{indent}output = model(batch){leak}",
        f"{indent}loss = output.square().mean(){leak}",
        *zero,
        f"{indent}loss.backward({more})",
    ]
    if hand:
        script.story.append("trained by hand")
        # With several batches for each step, nothing tells which backward pass is the last one.
        if accumulated == 1:
            script.marks.append("steps backward")
        script.setup.append("momenta = [torch.zeros_like(parameter) for parameter in model.parameters()]")
        script.step += [
            "with torch.no_grad():",
            "    for parameter, momentum in zip(model.parameters(), momenta):",
            "        momentum.mul_(0.9).add_(parameter.grad)",
            "        parameter.sub_(0.01 * momentum)",
        ]
        return
    name, arguments = r.choice(
        [("SGD", "lr=0.01"), ("SGD", "lr=0.01, momentum=0.9"), ("Adam", "lr=1e-3"), ("AdamW", "lr=1e-3"),
         ("AdamW", "lr=1e-3, foreach=False"), ("RMSprop", "lr=1e-3")]
    )
    script.story.append(f"trained with {name}" + (f", {accumulated} batches for each step" if accumulated > 1 else ""))
    script.marks.append("steps optimizer")
    script.setup.append(f"optimizer = torch.optim.{name}(model.parameters(), {arguments})")
    script.step.append("optimizer.step()")


def noise(script, r):
    use_numbers(script)
    count, most = r.randrange(4, 24), 1 << r.randrange(14, 24)
    script.story.append(f"{count} buffers of up to {most} bytes that replace one another")
    script.setup.append(f"buffers = [torch.empty({most} // 2, dtype=torch.uint8, device=\"cuda\") for _ in range({count})]")
    return [
        f"for _ in range(numbers.randrange(1, {max(2, count // 2)})):",
        f"    size = numbers.randrange(64, {most})",
        f"    buffers[numbers.randrange({count})] = torch.empty(size, dtype=torch.uint8, device=\"cuda\")",
    ]


def evaluation(script, r):
    each = r.choice([10, 20, 25, 40])
    script.story.append(f"an evaluation each {each} steps")
    script.globals.append("scores = []")
    batch = script.batch.replace("randn(", "randn(2 * (", 1).replace(",", "),", 1)
    if "numbers.randrange" in script.batch.split(", ")[0]:
        batch = script.batch
    return [
        f"if i % {each} == {each - 1}:",
        "    with torch.no_grad():",
        f"        answers = [model({batch}) for _ in range({r.randrange(2, 6)})]",
        "        scores.append(torch.stack([answer.mean() for answer in answers]).mean().cpu())",
        "        del answers",
    ]


def checkpoint(script, r):
    each = r.choice([15, 25, 40])
    script.story.append(f"a checkpoint on the host each {each} steps")
    script.globals.append("saved = {}")
    return [
        f"if i % {each} == {each - 1}:",
        "    for name, tensor in model.state_dict().items():",
        "        saved[name] = tensor.detach().cpu()",
    ]


def emptied(script, r):
    each = r.choice([7, 10, 30])
    script.story.append(f"the allocator's cache emptied each {each} steps")
    return [f"if i % {each} == {each - 1}:", "    torch.cuda.empty_cache()"]


def cycles(script, r):
    each = r.choice([8, 12, 20])
    script.imports.add("import gc")
    script.story.append(f"cycles that the collector frees each {each} steps")
    script.setup.append("gc.disable()")
    return [
        "cycle = [output.detach().clone()]",
        "cycle.append(cycle)",
        f"if i % {each} == {each - 1}:",
        "    gc.collect()",
    ]


def side_stream(script, r):
    script.story.append("a copy made on a stream of its own")
    script.setup.append("side = torch.cuda.Stream()")
    return [
        "side.wait_stream(torch.cuda.current_stream())",
        "with torch.cuda.stream(side):",
        "    copied = output.detach() * 2",
        "torch.cuda.current_stream().wait_stream(side)",
        "copied.record_stream(torch.cuda.current_stream())",
    ]


# What looks like a leak for a while.


def cache(script, r):
    each = r.choice([1, 2])
    room, size = r.randrange(10, 61) // each, 1 << r.randrange(LEAST, MOST - 2)
    script.story.append(f"a cache with room for {room} tensors of {size} bytes, one more each {each} steps")
    script.globals.append("cache = {}")
    lines = [
        f"cache[i] = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")",
        f"if len(cache) > {room}:",
        "    cache.pop(next(iter(cache)))",
    ]
    return lines if each == 1 else [f"if i % {each} == 0:", *("    " + line for line in lines)]


def ring(script, r):
    room = r.randrange(10, 60)
    script.imports.add("import collections")
    script.story.append(f"the last {room} outputs")
    script.globals.append(f"latest = collections.deque(maxlen={room})")
    return ["latest.append(output.detach().clone())"]


def averaged(script, r):
    begin = r.randrange(10, 70)
    script.imports.add("import copy")
    script.story.append(f"an average of the weights from step {begin} on")
    script.setup.append("average = None")
    return [
        "global average",
        f"if i == {begin}:",
        "    average = copy.deepcopy(model)",
        "if average is not None:",
        "    with torch.no_grad():",
        "        for mean, parameter in zip(average.parameters(), model.parameters()):",
        "            mean.lerp_(parameter, 0.01)",
    ]


def widening(script, r):
    until, size = r.randrange(40, 90), 1 << r.randrange(LEAST + 2, MOST - 6)
    script.story.append(f"a buffer that grows until step {until}")
    script.setup.append(f"window = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")")
    return [
        "global window",
        f"window = torch.empty({size} * (1 + min(i, {until})), dtype=torch.uint8, device=\"cuda\")",
    ]


def tables(script, r):
    count, size = r.randrange(5, 40), 1 << r.randrange(LEAST, MOST - 3)
    use_numbers(script)
    script.story.append(f"{count} tables, each made when it is first wanted")
    script.globals.append("tables = {}")
    return [
        f"wanted = numbers.randrange({count}) if i < 80 else i % {count}",
        "if i < 80 and wanted not in tables:",
        f"    tables[wanted] = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")",
    ]


ORDINARY = [noise, evaluation, checkpoint, emptied, cycles, side_stream]
TEMPTING = [cache, ring, averaged, widening, tables]


# What leaks: the lines, and functions before them.


def bytes_of(r):
    """A size, and an expression for it; sizes are not only powers of two."""
    size = int(2 ** r.uniform(LEAST, MOST))
    return max(512, size)


def kept_list(script, r):
    size = bytes_of(r)
    script.story.append(f"a list of tensors of {size} bytes")
    script.globals.append("kept = []")
    return [f"kept.append(torch.empty({size}, dtype=torch.uint8, device=\"cuda\"))  # LEAK"]


def kept_by_step(script, r):
    size = bytes_of(r)
    script.story.append(f"a dictionary by step with tensors of {size} bytes")
    script.globals.append("by_step = {}")
    return [f"by_step[i] = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")  # LEAK"]


def kept_sizes(script, r):
    use_numbers(script)
    size = bytes_of(r)
    script.story.append(f"a list of tensors of random sizes up to {2 * size} bytes")
    script.globals.append("kept = []")
    return [f"kept.append(torch.empty(numbers.randrange(512, {2 * size}), dtype=torch.uint8, device=\"cuda\"))  # LEAK"]


def kept_outputs(script, r):
    script.story.append("outputs that are kept")
    script.globals.append("outputs = []")
    script.functions.append(["def remember(value):", "    outputs.append(value.detach().clone())  # LEAK"])
    return ["remember(output)"]


def kept_by_object(script, r):
    script.story.append("an object that keeps what it is shown")
    script.functions.append(
        [
            "class Monitor:",
            "    def __init__(self):",
            "        self.seen = []",
            "",
            "    def show(self, value):",
            "        picture = value.detach().flatten().repeat(2)  # LEAK",
            "        self.seen.append(picture)",
        ]
    )
    script.globals.append("")
    script.setup.append("monitor = Monitor()")
    return ["monitor.show(output)"]


def kept_generators(script, r):
    size = bytes_of(r)
    script.story.append(f"generators that are begun and never finished, with {size} bytes each")
    script.globals.append("begun = []")
    script.functions.append(
        [
            "def pieces():",
            f"    whole = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")  # LEAK",
            "    for piece in whole.split(64):",
            "        yield piece",
        ]
    )
    return ["begun.append(pieces())", "next(begun[-1])"]


def kept_closures(script, r):
    size = bytes_of(r)
    script.story.append(f"callbacks that hold {size} bytes each")
    script.globals.append("callbacks = []")
    script.functions.append(
        [
            "def later():",
            f"    held = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")  # LEAK",
            "    callbacks.append(lambda: held.sum())",
        ]
    )
    return ["later()"]


def kept_on_stream(script, r):
    size = bytes_of(r)
    script.story.append(f"{size} bytes for another stream, never let go")
    script.globals.append("in_flight = []")
    script.setup.append("ahead = torch.cuda.Stream()")
    return [
        "with torch.cuda.stream(ahead):",
        f"    in_flight.append(torch.empty({size}, dtype=torch.uint8, device=\"cuda\"))  # LEAK",
    ]


def concatenated(script, r):
    size = min(bytes_of(r), 1 << 18)
    script.story.append(f"one tensor to which {size} bytes are added")
    script.setup.append("history = torch.empty(0, dtype=torch.uint8, device=\"cuda\")")
    return [
        "global history",
        f"more = torch.empty({size}, dtype=torch.uint8, device=\"cuda\")",
        "history = torch.cat([history, more])  # LEAK",
        "del more",
    ]


def kept_gradients(script, r):
    script.story.append("copies of gradients that are kept")
    script.globals.append("gradients = []")
    return ["gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # LEAK"]


def kept_graph(script, r):
    script.story.append("losses that are kept with their graphs")
    script.globals.append("losses = []")
    return ["losses.append(loss)"]


EVERYWHERE = [
    kept_list, kept_by_step, kept_sizes, kept_outputs, kept_by_object, kept_generators, kept_closures, kept_on_stream,
    concatenated,
]
IN_TRAINING = [kept_gradients, kept_graph]


def generate(seed):
    first = random.Random(f"pair {(seed + 1) // 2}").random() < 0.5
    leaks = (seed % 2 == 1) == first
    r = random.Random(f"seed {seed}")
    script = Script()
    script.seed = seed
    script.trains = r.random() < 0.75
    script.marks.append("leak" if leaks else "clean")
    leak = None
    if leaks:
        leak = r.choice(EVERYWHERE + IN_TRAINING * 2 if script.trains else EVERYWHERE)
    script.batch = model(script, r)
    core(script, r, script.batch, leak is kept_graph)
    if leaks:
        around = r.sample(ORDINARY + TEMPTING, r.randrange(0, 4))
    else:
        around = r.sample(ORDINARY, r.randrange(0, 4)) + r.sample(TEMPTING, r.randrange(1, 3))
    parts = [part(script, r) for part in around]
    if leaks:
        each, begins = r.choice([1, 1, 1, 2, 3, 5, 10]), r.choice([0, 0, 0, 0, 20, 40, 60])
        lines = leak(script, r)
        if each > 1 or begins:
            head = [line for line in lines if line.startswith("global ")]
            body = [line for line in lines if line not in head]
            condition = " and ".join(
                [f"i >= {begins}"] * (begins > 0) + [f"i % {each} == {each - 1}"] * (each > 1)
            )
            lines = [*head, f"if {condition}:", *("    " + line for line in body)]
            script.story.append(f"each {each} steps from step {begins} on")
        if begins:
            script.marks.append(f"begins {begins}")
        parts.append(lines)
    r.shuffle(parts)
    for part in parts:
        # Names that are global in a function are so from its beginning.
        script.step = [line for line in part if line.startswith("global ")] + script.step
        script.step += [line for line in part if not line.startswith("global ")]
    return script.text()


if __name__ == "__main__":
    sys.stdout.write(generate(int(sys.argv[1])))
