"""A process that a thread has forked, as data loaders are: both end with their standard input."""
import json
import os
import sys
import threading

def rest():
    tell(sys._getframe()); os.read(0, 1)


def tell(frame):
    frames = []
    while frame:
        frames.append([frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno, frame.f_lasti])
        frame = frame.f_back
    print(json.dumps({"pid": os.getpid(), "ident": threading.get_ident(), "frames": frames}), flush=True)


def fork():
    if os.fork() == 0:
        rest()
        os._exit(0)


thread = threading.Thread(target=fork)
thread.start()
thread.join()
os.read(0, 1)
