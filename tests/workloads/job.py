"""A task of a job: allocates, says what it has, and goes on until it is told to end.

E2E_SAY names a folder, in which each task writes what PyTorch says of it, by its process id; E2E_GO a file that ends it.
"""

import json
import os
import sys
import time

import torch

rank = int(os.environ.get("SLURM_PROCID", os.environ.get("RANK", "0")))
kept = [torch.zeros(250_000 * (rank + 1), device="cuda")]
told = {
    "pid": os.getpid(),
    "word": sys.argv[1],
    "rank": rank,
    "allocated": torch.cuda.memory_allocated(),
    "reserved": torch.cuda.memory_reserved(),
}
folder = os.environ["E2E_SAY"]
# In a container the id is another one than outside; the word and the rank are the same.
name = os.path.join(folder, f"{told['word']}-{rank}")
with open(name + ".new", "w") as file:
    json.dump(told, file)
os.rename(name + ".new", name + ".json")
while not os.path.exists(os.environ["E2E_GO"]):
    time.sleep(0.05)
