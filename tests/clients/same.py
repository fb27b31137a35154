"""Which of the package's messages and calls are not the daemon's, by reflection. Prints both lists of files, and those that differ."""

import importlib
import json
import pkgutil
import sys

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import memscope.v1


def plain(described: FileDescriptorProto) -> FileDescriptorProto:
    """Without comments, and without the names in JSON, which are derived: not every compiler writes them down."""
    described.ClearField("source_code_info")
    for message in described.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return described


def described(name: str) -> FileDescriptorProto:
    """A file as the package has it."""
    module = importlib.import_module(f"memscope.v1.{name}")
    return plain(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))


reflection = ProtoReflectionDescriptorDatabase(grpc.insecure_channel(f"unix:{sys.argv[1]}"))
modules = [module.name for module in pkgutil.iter_modules(memscope.v1.__path__)]
package = [described(name) for name in modules if name.endswith("_pb2")]
daemon = {file.name: plain(reflection.FindFileByName(file.name)) for file in package}
wanted = {name for file in daemon.values() for name in [file.name, *file.dependency]}
print(
    json.dumps(
        {
            "package": [file.name for file in package],
            "daemon": sorted(wanted),
            "differ": [file.name for file in package if file != daemon[file.name]],
        }
    )
)
