"""Holds things in a random web of Python objects, and asks Python's garbage collector who refers to what.

`web.py SEED [cuda]`: the things are tensors on that device, or objects of a class. First line of JSON: for each thing where it is, whether it is
reached from a module or a frame (by `gc.get_referents`), and of which types the objects are that refer to it, once for each reference (by
`gc.get_referrers`). After a line of input, a second one: the things that a collection frees, and those that PyTorch's own observer of reference
cycles finds among them.
"""

import collections
import functools
import gc
import itertools
import json
import random
import sys
import types
import weakref

gc.collect()
gc.disable()

NODES = 400
THINGS = 150


class Thing:
    """What the web is about where there is no PyTorch."""


if len(sys.argv) > 2:
    import torch
    from torch.utils.viz import _cycles

    Thing = torch.Tensor


def new(number):
    if len(sys.argv) > 2:
        return torch.empty(600 + number, device=sys.argv[2])
    return Thing()


def place(thing):
    """Where a thing is: the address of a tensor's block, or that of the object."""
    return thing.untyped_storage().data_ptr() if len(sys.argv) > 2 else id(thing)


class Plain:
    pass


class Slots:
    __slots__ = ("first", "second", "__weakref__")


class Both(Slots):
    pass


class Derived(dict):
    pass


class Listed(list):
    pass


class Pair(collections.namedtuple("Pair", "left right")):
    __slots__ = ()


class Called:
    def method(self):
        return self


class Keys:
    """An object that can be a key: its hash is that of its place in memory."""


def plain(things):
    made = Plain()
    for number, thing in enumerate(things):
        setattr(made, f"attribute_{number}", thing)
    return made


def through_dict(thing):
    made = Plain()
    made.__dict__["late"] = thing
    return made


def slots(thing):
    made = Slots()
    made.first = thing
    return made


def both(thing):
    made = Both()
    made.second = thing
    made.third = [thing]
    return made


def closure(thing):
    def function():
        return thing

    return function


def default(thing):
    def function(value=thing, *, key=thing):
        return value, key

    return function


def generator(thing):
    def generate(inside):
        yield inside
        print(inside)

    made = generate(thing)
    next(made)
    return made


def method(thing):
    made = Called()
    made.thing = thing
    return made.method


def error(thing):
    made = ValueError(thing)
    made.__cause__ = KeyError([thing])
    return made


def keyed(thing):
    key = Keys()
    key.thing = thing
    return {key: 1, "other": None}


def nested_class(thing):
    return type("Made", (), {"thing": thing})


def of_the_class(things):
    return [thing for thing in things if isinstance(thing, Thing)]


OF_MANY = [
    list,
    tuple,
    lambda things: {f"key {number}": thing for number, thing in enumerate(things)},
    lambda things: dict(enumerate(things)),
    lambda things: dict.fromkeys(of_the_class(things)),
    lambda things: collections.OrderedDict(enumerate(things)),
    lambda things: collections.defaultdict(list, enumerate(things)),
    collections.deque,
    lambda things: Derived(enumerate(things)),
    Listed,
    lambda things: set(of_the_class(things)),
    lambda things: frozenset(of_the_class(things)),
    lambda things: functools.partial(print, *things),
    lambda things: itertools.chain(things, things),
    lambda things: iter(list(things)),
    plain,
]
OF_ONE = [
    lambda thing: Pair(thing, [thing]),
    lambda thing: types.SimpleNamespace(thing=thing),
    lambda thing: types.MappingProxyType({"behind": thing}),
    types.CellType,
    lambda thing: property(closure(thing)),
    through_dict,
    slots,
    both,
    closure,
    default,
    generator,
    method,
    error,
    keyed,
    nested_class,
]

GROWS = (list, dict, collections.deque, Plain)


def put(holder, thing, chance):
    """Lets an object refer to another one, which may close a circle."""
    if isinstance(holder, list):
        holder.append(thing)
    elif isinstance(holder, dict):
        holder[f"put {chance.random()}"] = thing
    elif isinstance(holder, collections.deque):
        holder.appendleft(thing)
    else:
        setattr(holder, f"put_{chance.randrange(5)}", thing)


def build(seed):
    """Builds the web. Returns what is kept by a name, and weak references to all that it is about."""
    chance = random.Random(seed)
    about = [new(number) for number in range(THINGS)]
    things = list(about)
    for _ in range(NODES):
        if chance.random() < 0.5:
            some = [chance.choice(things) for _ in range(chance.randrange(4))]
            things.append(chance.choice(OF_MANY)(some))
        else:
            things.append(chance.choice(OF_ONE)(chance.choice(things)))
    growing = [thing for thing in things if isinstance(thing, GROWS)]
    for _ in range(NODES // 4):
        put(chance.choice(growing), chance.choice(things), chance)
    for one in chance.sample(about, 10):
        one.attribute = chance.choice(things)
    return chance.sample(things, 25), [weakref.ref(one) for one in about]


def reached():
    """The objects that are reached from the modules and from the frames that run."""
    waiting = list(sys.modules.values())
    frame = sys._getframe(1)
    while frame:
        waiting.extend(frame.f_locals.values())
        frame = frame.f_back
    seen = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            waiting.extend(gc.get_referents(thing))
    return seen


def referrers(one, mine):
    """The names of the types of what refers to an object, once for each reference; `mine` are the numbers of objects that are left out."""
    names = []
    for thing in gc.get_referrers(one):
        if id(thing) in mine or thing is sys._getframe():
            continue
        # No generator: the variable `one` would be in a cell, which refers to the object.
        for referent in gc.get_referents(thing):
            if referent is one:
                names.append(type(thing).__name__)
    return names


def tell(weak):
    is_reached = reached()
    rows = []
    for reference in weak:
        one = reference()
        if one is None:
            continue
        rows.append(
            {
                "place": place(one),
                "named": id(one) in is_reached,
                "referrers": referrers(one, {id(rows)}),
            }
        )
        del one
    return rows


kept, weak = build(int(sys.argv[1]))
rows = tell(weak)
print(json.dumps({"things": rows}), flush=True)
sys.stdin.readline()
found = []


def observe(garbage):
    found.extend(place(thing) for thing in of_the_class(garbage))


if len(sys.argv) > 2:
    _cycles.observe_garbage(observe)
gc.collect()
# The observer is called by a profiling function, when the next functions are called.
while gc.get_debug():
    len(found)
alive = {place(reference()) for reference in weak if reference() is not None}
freed = sorted({row["place"] for row in rows} - alive)
print(json.dumps({"freed": freed, "observed": sorted(set(found))}), flush=True)
sys.stdin.readline()
