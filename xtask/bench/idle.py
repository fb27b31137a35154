"""A process that has CUDA's runtime loaded and does nothing until its standard input ends."""

import ctypes
import glob
import os
import sys
import sysconfig

site = sysconfig.get_paths()["purelib"]
folders = [os.path.join(folder, "libcudart.so*") for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
folders += [os.path.join(site, "nvidia", "**", "libcudart.so*")]
library = next(found for pattern in folders for found in glob.iglob(pattern, recursive=True))
ctypes.CDLL(library)
print("ready", flush=True)
sys.stdin.read()
