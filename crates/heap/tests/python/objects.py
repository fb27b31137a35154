"""Holds objects in every way in which Python can, says which is held by what, and waits.

For CPython 3.9 and later, without any package. One line of JSON: for each case its name, the address of its object, and the way to it as
memscope writes it.
"""

import asyncio
import collections
import ctypes
import dataclasses
import functools
import gc
import json
import os
import sys
import threading
import types
import weakref

gc.disable()
cases = []


class Mark:
    def __init__(self):
        self.me = None


def case(name, way, mark, origin="Named"):
    cases.append({"name": name, "way": way, "origin": origin, "object": id(mark)})
    return mark


def new(name, way):
    return case(name, way, Mark())


class Trainer:
    shared = None

    def __init__(self):
        self.first = new("an attribute", "__main__.T.first")
        self.history = []
        self.cache = {}

    def method(self):
        return self


class Slots:
    __slots__ = ("inner", "__dict__")


class OnlySlots:
    __slots__ = ("inner",)


class Wide:
    pass


@dataclasses.dataclass
class Data:
    field: object


class Below(Trainer):
    def __init__(self):
        self.own = new("an attribute of a class below", "__main__.below.own")


class Listed(list):
    pass


class Keyed(dict):
    pass


class Pair(tuple):
    pass


class Word(str):
    pass


class Number(int):
    pass


class Raw(bytes):
    pass


Point = collections.namedtuple("Point", "x y")

T = Trainer()
T.history += [new("history %d" % i, "__main__.T.history[%d]" % i) for i in range(50)]
T.cache[("k", 7)] = new("a key", "__main__.T.cache[('k', 7)]")
T.cache[False] = new("a truth value", "__main__.T.cache[False]")
T.cache[-5000000000] = new("a large number", "__main__.T.cache[-5000000000]")
T.cache[2**62 - 1] = new("a number of three digits", "__main__.T.cache[<int>]")
T.cache[1.5] = new("a fraction", "__main__.T.cache[1.5]")
T.cache["a'b"] = (new("a tuple", "__main__.T.cache['a\\'b'][0]"),)
T.cache["\u00fc\u4e2d"] = new("a text that is not ASCII", "__main__.T.cache['\u00fc\u4e2d']")
Trainer.shared = new("a class", "__main__.Trainer.shared")
below = Below()
recent = collections.deque(maxlen=100)
for i in range(150):
    recent.append(None)
recent.append(new("a deque", "__main__.recent[99]"))
seen = {new("a set", "__main__.seen.<element>")}
frozen = frozenset([new("a frozen set", "__main__.frozen.<element>")])
slots = Slots()
slots.inner = new("a slot", "__main__.slots.inner")
slots.other = new("an attribute beside slots", "__main__.slots.other")
only_slots = OnlySlots()
only_slots.inner = new("a slot and nothing else", "__main__.only_slots.inner")
T.extra = 5
T.__dict__["late"] = new("an attribute that came late", "__main__.T.late")
wide = Wide()
for i in range(60):
    setattr(wide, "attribute%d" % i, i)
wide.last = new("one of many attributes", "__main__.wide.last")
sparse = [Wide() for _ in range(40)]
for i, one in enumerate(sparse):
    setattr(one, "only%d" % i, i)
sparse[33].last = new("an attribute that others lack", "__main__.sparse[33].last")
data = Data(new("a field", "__main__.data.field"))
point = Point(1, new("a named tuple", "__main__.point[1]"))
listed = Listed([new("a class of lists", "__main__.listed[0]")])
listed.beside = new("an attribute of a list", "__main__.listed.beside")
keyed = Keyed(inside=new("a class of dictionaries", "__main__.keyed['inside']"))
pair = Pair((1, new("a class of tuples", "__main__.pair[1]"), 3))
pair.beside = new("an attribute of a tuple", "__main__.pair.beside")
word = Word("word")
word.beside = new("an attribute of a text", "__main__.word.beside")
number = Number(2**70)
number.beside = new("an attribute of a number", "__main__.number.beside")
negative = Number(-(2**40))
negative.beside = new("an attribute of a negative number", "__main__.negative.beside")
raw = Raw(b"some bytes")
raw.beside = new("an attribute of bytes", "__main__.raw.beside")
numbers = {i: None for i in range(1000)}
numbers[500] = new("a large dictionary", "__main__.numbers[500]")
for i in range(400):
    del numbers[i]
removed = {"a": 1, "b": 2}
del removed["a"]
removed["c"] = new("a dictionary with gaps", "__main__.removed['c']")
bound = functools.partial(print, new("a partial", "__main__.bound.args[0]"))
ordered = collections.OrderedDict(x=new("an ordered dictionary", "__main__.ordered['x']"))
grown = collections.defaultdict(list)
grown["y"].append(new("a defaultdict", "__main__.grown['y'][0]"))
space = types.SimpleNamespace(inner=new("a namespace", "__main__.space.inner"))
other = types.ModuleType("other_module")
other.value = new("another module", "other_module.value")
sys.modules["other_module"] = other
same_module = other
del other


def hook_that_keeps():
    number, kept = 1, []

    def hook(module, inputs, output):
        return kept, number

    kept.append(new("a closure", "__main__.hook.<closure>.kept[0]"))
    return hook


hook = hook_that_keeps()


def callback_that_keeps():
    kept = [new("a callback of a weak reference", "__main__.weak.__callback__.<closure>.kept[0]")]
    return weakref.ref(T, lambda _: kept)


weak = callback_that_keeps()


def proxy_that_keeps():
    kept = [new("a callback of a proxy", "__main__.proxy.__callback__.<closure>.kept[0]")]
    return weakref.proxy(T, lambda _: kept)


proxy = proxy_that_keeps()
weakly = Mark()
case("what has only a weak reference", "<not Python>", weakly, "Outside")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(weakly))
weak_by_name = weakref.ref(weakly)
del weakly


def defaults(value=new("a default value", "__main__.defaults.__defaults__[0]")):
    return value


def with_attribute():
    pass


with_attribute.kept = new("an attribute of a function", "__main__.with_attribute.kept")


def of_frame(kind):
    """Before 3.11 a generator has a frame of its own."""
    return kind + "_frame." if sys.version_info < (3, 11) else ""


def generate():
    inside = new("a generator", "__main__.generator.%sinside" % of_frame("gi"))
    yield
    print(inside)


generator = generate()
next(generator)


async def wait():
    inside = new("a coroutine", "__main__.coroutine.%sinside" % of_frame("cr"))
    await asyncio.sleep(0)
    print(inside)


coroutine = wait()
coroutine.send(None)


def finish(kept):
    inside = Mark()
    kept.append(id(inside))
    yield inside.me


async def end(kept):
    inside = Mark()
    kept.append(id(inside))


def at_once_more(place):
    """A mark where one was that is gone."""
    made = []
    while len(made) < 100_000:
        made.append(Mark())
        if id(made[-1]) == place:
            return made[-1]
    raise SystemExit("the place is not used again")


places = []
finished = finish(places)
for _ in finished:
    pass
T.later = [[[at_once_more(places.pop())]]]
case("where a generator that is over had one", "__main__.T.later[0][0][0]", T.later[0][0][0])
finished_coroutine = end(places)
try:
    finished_coroutine.send(None)
except StopIteration:
    pass
T.last = [[[at_once_more(places.pop())]]]
case("where a coroutine that is over had one", "__main__.T.last[0][0][0]", T.last[0][0][0])


def failing():
    lost = new("a traceback", "__main__.error.__traceback__.tb_next.tb_frame.lost")
    raise ValueError(lost.me)


try:
    failing()
except ValueError as caught:
    error = caught
    error.__context__ = None

cycle = Wide()
cycle.me = cycle
cycle.mark = Mark()
case("garbage", "<garbage Wide>.mark", cycle.mark, "Garbage")
del cycle

outside = Mark()
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
    shared = new("a variable that an inner function uses", "main.<locals>.shared")

    def inner():
        return shared

    told = {"ready": True, "version": sys.version_info[:2], "cases": cases}
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    print(local, inner)


def run():
    mine = new("a generator that runs", "run.<locals>.mine")
    frame = sys._getframe()
    main()
    yield mine, frame


async def work():
    mine = new("a coroutine that runs", "work.<locals>.mine")
    for _ in running:
        os._exit(0)
    print(mine)


running = run()
working = work()
working.send(None)
