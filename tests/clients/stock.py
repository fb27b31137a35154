"""What a client that knows nothing of memscope finds out: health, and the services by reflection."""

import json
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(f"unix:{sys.argv[1]}")
health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="memscope.v1.Memscope"))
services = ProtoReflectionDescriptorDatabase(channel)
request = DescriptorPool(services).FindMessageTypeByName("memscope.v1.StatsRequest")
print(
    json.dumps(
        {
            "health": health_pb2.HealthCheckResponse.ServingStatus.Name(health.status),
            "services": sorted(services.get_services()),
            "fields": [field.name for field in request.fields],
        }
    )
)
