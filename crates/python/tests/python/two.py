"""Starts a second interpreter, from a library, beside the one that runs this."""
import ctypes
import json
import os
import sys

# Its own symbols before those of the program, which exports the same ones.
library = ctypes.PyDLL(sys.argv[1], mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND)
print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.readline()
for flag in ("Py_NoSiteFlag", "Py_IsolatedFlag", "Py_IgnoreEnvironmentFlag"):
    ctypes.c_int.in_dll(library, flag).value = 1
library.Py_InitializeEx(0)
print(json.dumps({"started": library.Py_IsInitialized()}), flush=True)
sys.stdin.readline()
os._exit(0)
