"""A thread rests in a garbage collection that, before 3.12, begins while a frame is still being made."""
import gc
import json
import os
import sys
import threading

PIPE, _WRITE = os.pipe()
RESTING = []


def collected(phase, info):
    if threading.get_ident() == WORKER and not RESTING:
        RESTING.append(1); os.read(PIPE, 1)


def cells(a, b, c, d):
    # Four variables of an inner function: four cells are made before the first line.
    def inner():
        return a, b, c, d
    return inner


def work():
    global WORKER
    WORKER = threading.get_ident()
    gc.collect()
    gc.callbacks.append(collected)
    # The collection is due at the first object that is made from here on: a cell of `cells`.
    gc.set_threshold(1)
    cells(1, 2, 3, 4)


WORKER = None
gc.set_threshold(0)
worker = threading.Thread(target=work, daemon=True)
worker.start()
while not RESTING:
    pass
frame = sys._current_frames()[WORKER]
frames = []
while frame:
    frames.append([frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno, frame.f_lasti])
    frame = frame.f_back
print(json.dumps({"pid": os.getpid(), "ident": WORKER, "frames": frames}), flush=True)
sys.stdin.readline()
os._exit(0)
