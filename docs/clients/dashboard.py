"""The first lines of a dashboard in Python: attaches to a process, prints its memory, then what happens in it.

    pip install './clients/python[grpc]'
    python docs/clients/dashboard.py /run/memscope/memscoped.sock 4242
"""

import json
import sys

import memscope.client

socket, pid = sys.argv[1], int(sys.argv[2])
with memscope.client.connect(socket) as daemon:
    daemon.attach(pid)
    for device in daemon.stats(pid).devices:
        print(json.dumps({"device": device.device, "allocated_bytes": device.allocated_bytes}), flush=True)
    for event in daemon.events(pid):
        print(json.dumps({"event": event.WhichOneof("body"), "time_unix_ns": event.time_unix_ns}), flush=True)
