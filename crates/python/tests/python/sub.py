"""A thread that runs in a subinterpreter, and rests there."""
import json
import os
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

READ, WRITE = os.pipe()
PIPE, _WRITE = os.pipe()
SOURCE = """
import os
def inside():
    os.write(%d, b"x"); os.read(%d, 1)
inside()
""" % (WRITE, PIPE)


def outside():
    interpreters.run_string(interpreters.create(), SOURCE)


thread = threading.Thread(target=outside, daemon=True)
thread.start()
os.read(READ, 1)
print(json.dumps({"pid": os.getpid(), "ident": thread.ident}), flush=True)
sys.stdin.readline()
os._exit(0)
