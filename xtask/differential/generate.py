"""Writes random programs over PyTorch's caching allocator, and how they are observed. The same seed gives the same
program.

    generate.py FIRST LAST [WITHOUT…]
                    one program a line, as JSON, for the seeds from FIRST to LAST; WITHOUT names elements (of
                    `player.py`), environments and kinds of daemon that are left out
    generate.py --self-test
                    shows that programs are what they are to be

Ten seeds in a row share an environment and a kind of daemon, so that a range needs few processes.
"""

import json
import random
import sys

MIB = 1 << 20
BLOCK = 10

# What a process is started with. `room` is how much a device has, for sizes that fit and sometimes do not.
ENVIRONMENTS = {
    "plain": {"devices": 1, "room": 16384},
    "devices": {"devices": 3, "room": 16384},
    "expandable": {"devices": 2, "room": 16384, "settings": "expandable_segments:True"},
    "pending": {"devices": 1, "room": 16384, "event_delay_us": 30_000},
    "tight": {"devices": 1, "room": 300},
    "collecting": {"devices": 1, "room": 512, "settings": "max_split_size_mb:30,garbage_collection_threshold:0.6"},
    "roundup": {"devices": 2, "room": 16384, "settings": "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"},
    "tight_expandable": {"devices": 1, "room": 300, "settings": "expandable_segments:True", "event_delay_us": 10_000},
    # Told again while it runs; each text names the same switches.
    "changing": {
        "devices": 1, "room": 16384,
        "settings": "expandable_segments:False,max_split_size_mb:200,garbage_collection_threshold:0.9",
    },
}
# What the daemon is started with. `rotation`: its journal is so small that its oldest part goes; `overflow`: its ring is
# so small that records are lost while it is stopped.
DAEMONS = {
    "roomy": ["--journal-mib", "256", "--ring-mib", "64", "--trace-entries", "5000000"],
    "rotation": ["--journal-mib", "2", "--ring-mib", "64", "--trace-entries", "5000000"],
    "overflow": ["--journal-mib", "256", "--ring-mib", "1", "--trace-entries", "5000000"],
}
DAEMON_WEIGHTS = {"roomy": 6, "rotation": 3, "overflow": 2}
LEVELS = {"trace": 12, "blocks": 4, "segments": 2, "read": 3}
STACKS = {"python": 10, "none": 3, "native": 2, "all": 4}
WAYS = ["deep", "deep", "deep", "generator", "lambda", "made"]


def weighted(chance, weights):
    return chance.choices(list(weights), list(weights.values()))[0]


class Program:
    """The elements of a program as they come to be."""

    def __init__(self, seed, without):
        # What several seeds share is drawn from what they share.
        shared = random.Random(f"block {seed // BLOCK}")
        environments = [name for name in ENVIRONMENTS if name not in without]
        self.environment = shared.choice(environments)
        daemons = {name: weight for name, weight in DAEMON_WEIGHTS.items() if name not in without}
        self.daemon = weighted(shared, daemons)
        self.chance = random.Random(seed)
        self.seed = seed
        self.without = without
        given = ENVIRONMENTS[self.environment]
        self.devices = given["devices"]
        self.room = given["room"]
        self.used = []
        self.next_slot = 0
        self.models = self.graphs = 0
        self.elements = []

    def size(self):
        chance = self.chance
        kind = chance.randrange(20)
        if kind < 6:
            return chance.randrange(2000)
        if kind < 12:
            return chance.randrange(MIB)
        if kind < 18:
            return chance.randrange(20 * MIB)
        return chance.randrange(min(self.room // 2, 200) * MIB)

    def device(self):
        return self.chance.randrange(self.devices)

    def thread(self):
        return self.chance.choice([0, 0, 0, 1, 2, 3])

    def slot(self):
        return self.chance.choice(self.used) if self.used else "none"

    def add(self, do, **values):
        self.elements.append({"do": do, **values})

    def alloc(self):
        chance = self.chance
        slot = f"s{self.next_slot}"
        self.next_slot += 1
        self.used.append(slot)
        more = {}
        if chance.randrange(3) == 0:
            more["stream"] = chance.randrange(4)
        if chance.randrange(8) == 0 and "pool" not in self.without:
            more["pool"] = chance.randrange(1, 4)
        self.add("alloc", slot=slot, size=self.size(), device=self.device(), thread=self.thread(),
                 way=chance.choice(WAYS), depth=chance.choice([0, 1, 3, 8, 40]), **more)

    def free(self):
        slot = self.slot()
        if slot in self.used:
            self.used.remove(slot)
        self.add("free", slot=slot, thread=self.thread())

    def record_stream(self):
        self.add("record_stream", slot=self.slot(), stream=self.chance.randrange(4))

    def churn(self):
        pairs = self.chance.choice([50, 300, 1000, 3000])
        self.add("churn", pairs=pairs, size=1 + self.chance.randrange(300_000), device=self.device())

    def long_churn(self):
        """What a small journal or ring does not hold."""
        self.add("churn", pairs=6000, size=1 + self.chance.randrange(300_000), device=self.device())

    def empty_cache(self):
        self.add("empty_cache")

    def synchronize(self):
        self.add("synchronize", device=self.device())

    def oom(self):
        self.add("oom", device=self.device(), thread=self.thread())

    def fraction(self):
        self.add("fraction", share=self.chance.choice([1.0, 0.9, 0.5]), device=self.device())

    def settings(self):
        if self.environment == "changing":
            chance = self.chance
            switch, largest = chance.choice(["True", "False"]), chance.choice([30, 100, 200])
            self.add("settings", text=f"expandable_segments:{switch},max_split_size_mb:{largest},"
                     f"garbage_collection_threshold:{chance.choice([0.6, 0.9])}")

    def train(self):
        chance = self.chance
        if self.models == 0 or chance.randrange(4) == 0:
            self.models += 1
        self.add("train", model=f"m{chance.randrange(self.models)}", width=chance.choice([32, 64, 200]),
                 layers=chance.randrange(1, 4), batch=chance.choice([4, 64]), steps=chance.randrange(1, 4),
                 device=self.device())

    def drop_model(self):
        self.add("drop_model", model=f"m{self.chance.randrange(max(self.models, 1))}")

    def graph(self):
        self.graphs += 1
        sizes = [self.size() // 4 for _ in range(self.chance.randrange(1, 5))]
        self.add("graph", name=f"g{self.graphs}", sizes=sizes, kept=self.chance.randrange(3), device=self.device())

    def drop_graph(self):
        self.add("drop_graph", name=f"g{self.chance.randrange(1, max(self.graphs, 1) + 1)}")

    def drop_pool(self):
        self.add("drop_pool", pool=self.chance.randrange(1, 4), device=self.device())

    def burst(self):
        chance = self.chance
        slot = f"s{self.next_slot}"
        self.next_slot += 1
        self.used.append(slot)
        devices = [self.device() for _ in range(2)]
        self.add("burst", slot=slot, threads=chance.randrange(2, 7), operations=chance.choice([20, 60, 200]),
                 seed=chance.randrange(10_000), largest=min(self.room // 20, 16) * MIB, devices=devices)

    def check(self):
        self.add("check")

    def stopped(self):
        """The daemon does not run for a while."""
        self.add("stop")
        for _ in range(self.chance.randrange(1, 5)):
            self.chance.choice([self.alloc, self.free, self.burst, self.long_churn, self.empty_cache])()
        self.add("go_on")
        if self.chance.randrange(2):
            self.check()

    def make(self):
        chance = self.chance
        weights = {
            "alloc": 40, "free": 22, "record_stream": 6, "churn": 2, "empty_cache": 4, "synchronize": 1, "oom": 2,
            "fraction": 1, "settings": 3, "train": 3, "drop_model": 1, "graph": 2, "drop_graph": 1, "drop_pool": 1,
            "burst": 3, "check": 5, "stopped": 1,
        }
        if self.daemon == "rotation":
            weights["long_churn"] = 4
        if self.daemon == "overflow":
            weights["stopped"] = 5
        weights = {name: weight for name, weight in weights.items() if name not in self.without}
        length = chance.randrange(5, 45)
        # Half of the programs are observed from their beginning.
        attach = 0 if chance.randrange(2) else chance.randrange(length)
        for at in range(length):
            if at == attach:
                self.add("attach")
            getattr(self, weighted(chance, weights))()
        # While the daemon is stopped nobody can be asked, nor attached to.
        self.elements = in_order(self.elements)
        level = weighted(chance, LEVELS)
        return {
            "seed": self.seed,
            "environment": {"name": self.environment, **ENVIRONMENTS[self.environment]},
            "daemon": {"name": self.daemon, "arguments": DAEMONS[self.daemon]},
            "level": level,
            "stacks": weighted(chance, STACKS) if level in ("trace", "blocks") else "none",
            "elements": self.elements,
        }


def in_order(elements):
    """Without what comes before the attach and needs it."""
    attached = False
    kept = []
    for what in elements:
        attached |= what["do"] == "attach"
        if attached or what["do"] not in ("check", "stop", "go_on"):
            kept.append(what)
    return kept


def make(seed, without=()):
    return Program(seed, set(without)).make()


def self_test():
    seen = {}
    for seed in range(1, 600):
        program = make(seed)
        assert json.dumps(program) == json.dumps(make(seed)), seed
        names = [what["do"] for what in program["elements"]]
        assert names.count("attach") == 1, seed
        assert names.count("stop") == names.count("go_on"), seed
        running = True
        for name in names[names.index("attach"):]:
            running = name == "go_on" if name in ("stop", "go_on") else running
            assert running or name not in ("check", "attach"), seed
        for kind, value in [
            *(("element", name) for name in names), ("level", program["level"]), ("stacks", program["stacks"]),
            ("environment", program["environment"]["name"]), ("daemon", program["daemon"]["name"]),
            ("attach", names.index("attach") > 0),
        ]:
            seen.setdefault(kind, set()).add(value)
    assert seen["level"] == set(LEVELS), seen
    assert seen["stacks"] == set(STACKS), seen
    assert seen["environment"] == set(ENVIRONMENTS), seen
    assert seen["daemon"] == set(DAEMONS), seen
    assert seen["attach"] == {True, False}, seen
    for block in range(3):
        shared = {json.dumps([make(seed)["environment"], make(seed)["daemon"]]) for seed in range(block * 10, block * 10 + 10)}
        assert len(shared) == 1, shared
    for seed in range(1, 300):
        program = make(seed, ["rotation", "graph", "tight"])
        assert program["daemon"]["name"] != "rotation" and program["environment"]["name"] != "tight", seed
        assert all(what["do"] != "graph" for what in program["elements"]), seed
    print("generate.py: ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        first, last, *left_out = sys.argv[1:]
        for number in range(int(first), int(last) + 1):
            print(json.dumps(make(number, left_out)))
