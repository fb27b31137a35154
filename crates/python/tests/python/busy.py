"""Never rests: threads come and go, stacks grow and shrink, code objects are made and freed. With an argument: alone."""
import json
import os
import sys
import threading


def work(depth):
    if depth:
        return work(depth - 1)
    scope = {}
    exec("def made(x):\n    return x + 1\n", scope)
    return scope["made"](1)


def forever():
    while True:
        for depth in range(60):
            work(depth)


def spawn():
    while True:
        thread = threading.Thread(target=work, args=(20,))
        thread.start()
        thread.join()


sys.setswitchinterval(1e-4)
for target in () if sys.argv[1:] else (forever, spawn, spawn):
    threading.Thread(target=target, daemon=True).start()
print(json.dumps({"pid": os.getpid()}), flush=True)
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0)), daemon=True).start()
forever()
