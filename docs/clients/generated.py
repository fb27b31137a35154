"""The same as dashboard.py, with code that you generate yourself, without the package memscope.

    pip install grpcio grpcio-tools
    mkdir generated
    python -m grpc_tools.protoc -I proto --python_out=generated --grpc_python_out=generated proto/memscope/v1/*.proto
    PYTHONPATH=generated python docs/clients/generated.py /run/memscope/memscoped.sock 4242
"""

import json
import sys

import grpc
from memscope.v1 import attach_pb2, event_pb2, memscope_pb2_grpc, stats_pb2

socket, pid = sys.argv[1], int(sys.argv[2])
memscope = memscope_pb2_grpc.MemscopeStub(grpc.insecure_channel(f"unix:{socket}"))
memscope.Attach(attach_pb2.AttachRequest(pid=attach_pb2.PidScope(pid=pid)))
for device in memscope.Stats(stats_pb2.StatsRequest(pid=pid)).devices:
    print(json.dumps({"device": device.device, "allocated_bytes": device.allocated_bytes}), flush=True)
for event in memscope.Events(event_pb2.EventsRequest(pid=pid)):
    print(json.dumps({"event": event.WhichOneof("body"), "time_unix_ns": event.time_unix_ns}), flush=True)
