"""More objects in a list, and in a dictionary, than an answer has holders."""

import json
import sys


class Thing:
    pass


many = [Thing() for _ in range(160_000)]
named = {number: [Thing()] for number in range(2_000)}
things = [id(thing) for thing in many] + [id(thing) for (thing,) in named.values()]
print(json.dumps({"things": things}), flush=True)
sys.stdin.readline()
