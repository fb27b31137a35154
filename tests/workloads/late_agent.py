"""agent.py, but PyTorch is not even loaded before the first line comes."""

import json
import os
import runpy
import sys

print(json.dumps({"ready": True, "torch": ""}), flush=True)
# Unbuffered: what follows this line is the agent's.
while os.read(0, 1) not in (b"\n", b""):
    pass
sys.path[0] = os.path.dirname(os.path.abspath(__file__))
runpy.run_path(os.path.join(sys.path[0], "agent.py"), run_name="__main__")
