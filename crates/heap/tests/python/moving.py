"""Containers whose tables are moved when the test says so. MALLOC_MMAP_THRESHOLD_ must be set, so that nothing is left where a large table was;
where the small one was, something else is written.
"""

import json
import sys


class Thing:
    pass


COUNT = 20_000
kept = [Thing() for _ in range(COUNT)]
named = {number: Thing() for number in range(COUNT)}
some = {Thing() for _ in range(COUNT)}
small = {number: Thing() for number in range(20)}
others = []


def grow(name):
    if name == "kept":
        kept.extend(Thing() for _ in range(8 * COUNT))
    elif name == "named":
        named.update((number, Thing()) for number in range(COUNT, 8 * COUNT))
    elif name == "small":
        small.update((number, Thing()) for number in range(20, 200))
        others.extend(bytes([number % 256]) * size for size in range(480, 800, 8) for number in range(50))
    else:
        some.update(Thing() for _ in range(8 * COUNT))


containers = {"kept": kept, "named": named, "some": some, "small": small}
things = [id(thing) for thing in [*kept, *named.values(), *some, *small.values()]]
heads = {name: id(container) for name, container in containers.items()}
print(json.dumps({"heads": heads, "things": things}), flush=True)
for line in sys.stdin:
    grow(line.strip())
    print(json.dumps({"grown": line.strip()}), flush=True)
