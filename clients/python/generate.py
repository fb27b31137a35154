"""Writes what the package derives from proto/memscope/v1 and protoc does not make: `cargo xtask clients` runs it.

    protoc -I proto --include_imports --include_source_info --descriptor_set_out=/dev/stdout … | python generate.py FOLDER

* `FOLDER/v1/__init__.py`: all messages and enums under one name.
* `FOLDER/_calls.py`: a method for each call of each service. Its arguments are the fields of the request.
"""

import keyword
import re
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorSet

PACKAGE = ".memscope.v1."
MADE = "Made by `cargo xtask clients` from proto/memscope/v1; do not edit."
#: Seconds that memscope-ctl waits for an answer, too, where it is not told how long.
PATIENCE = 30.0
#: Numbers of fields in protobuf's own description, by which comments are found.
SERVICES, METHODS, MESSAGES, FIELDS = 6, 2, 4, 2

TYPES = {
    **dict.fromkeys((Field.TYPE_DOUBLE, Field.TYPE_FLOAT), "float"),
    **dict.fromkeys((Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_UINT32, Field.TYPE_UINT64), "int"),
    Field.TYPE_BOOL: "bool",
    Field.TYPE_STRING: "str",
    Field.TYPE_BYTES: "bytes",
}


def short(name):
    """A type's name without the package, which all of them have."""
    if not name.startswith(PACKAGE):
        raise SystemExit(f"error: {name} is not in {PACKAGE.strip('.')}")
    return name[len(PACKAGE) :]


class Argument:
    """A field of a request."""

    def __init__(self, field, comment, messages):
        self.field, self.comment = field.name, comment
        self.name = f"{field.name}_" if keyword.iskeyword(field.name) else field.name
        self.value = self.name
        # For the daemon, leaving it out is the same as zero, and no process or rule has that number.
        self.has_zero = not (
            field.HasField("oneof_index")
            or field.label == Field.LABEL_REPEATED
            or field.type == Field.TYPE_MESSAGE
        )
        if field.type == Field.TYPE_ENUM:
            self.type = f"v1.{short(field.type_name)}.ValueType"
        elif field.type == Field.TYPE_MESSAGE:
            self.type = f"v1.{short(field.type_name)}"
            first = messages[field.type_name][0][0]
            # `pid` is the field `pid` of a message and more: the number alone will do.
            if first.name == field.name and first.type in TYPES:
                self.value = f'{{"{field.name}": {self.name}}} if isinstance({self.name}, {TYPES[first.type]}) else {self.name}'
                self.type += f" | {TYPES[first.type]}"
        else:
            self.type = TYPES[field.type]
        if field.label == Field.LABEL_REPEATED:
            self.type = f"Iterable[{self.type}]"

    def declared(self, is_first):
        """As it stands in the method's head. The first field says what the question is about: it must be given, unless it may be unknown."""
        if is_first and self.has_zero:
            return f"{self.name}: {self.type}"
        return f"{self.name}: {self.type} | None = None"


def comments(file):
    """The comments of a file as one line each, by the place of what they are about."""
    found = {}
    for location in file.source_code_info.location:
        text = " ".join(location.leading_comments.split())
        if text:
            found[tuple(location.path)] = text
    return found


def snake(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def module_of(file):
    return Path(file.name).stem + "_pb2"


def names(files):
    """`v1/__init__.py`."""
    yield f'"""The messages and enums of memscope.v1. {MADE}"""\n'
    everything = []
    for file in files:
        here = sorted(
            [message.name for message in file.message_type]
            + [name for enum in file.enum_type for name in (enum.name, *(value.name for value in enum.value))]
        )
        if here:
            yield f"from memscope.v1.{module_of(file)} import ("
            yield from (f"    {name}," for name in here)
            yield ")"
        everything += here
    if len(set(everything)) != len(everything):
        raise SystemExit("error: two files have something of the same name")
    yield "\n__all__ = ["
    yield from (f'    "{name}",' for name in sorted(everything))
    yield "]"


def calls(files):
    """`_calls.py`."""
    messages = {}
    for file in files:
        said = comments(file)
        for number, message in enumerate(file.message_type):
            messages[PACKAGE + message.name] = [
                (field, said.get((MESSAGES, number, FIELDS, place), ""))
                for place, field in enumerate(message.field)
            ]
    services = [(file, number, service) for file in files for number, service in enumerate(file.service)]
    yield f'"""A method for each of the daemon\'s calls. {MADE}"""\n'
    yield "from __future__ import annotations\n"
    yield "from collections.abc import Generator, Iterable\n"
    yield "from . import v1"
    yield "from ._connection import Connection"
    for module in sorted({f"{module_of(file)}_grpc" for file, _, _ in services}):
        yield f"from .v1 import {module}"
    yield "\n\nclass Calls(Connection):"
    yield '    """The calls. Each has the fields of its request as arguments; what is left out is not said."""\n'
    yield "    def __init__(self, path: str, *, strict: bool) -> None:"
    yield "        super().__init__(path, strict=strict)"
    for file, _, service in services:
        yield f"        self._{snake(service.name)} = {module_of(file)}_grpc.{service.name}Stub(self.channel)"
    taken = set()
    for file, number, service in services:
        said = comments(file)
        for place, method in enumerate(service.method):
            if method.client_streaming or method.name in taken:
                raise SystemExit(f"error: nothing here can make a method of {method.name}")
            taken.add(method.name)
            yield ""
            yield from of(service, method, said.get((SERVICES, number, METHODS, place), ""), messages)


def of(service, method, comment, messages):
    """One method. The first field of the request can be given without its name."""
    arguments = [Argument(field, said, messages) for field, said in messages[method.input_type]]
    if any(argument.name in ("self", "timeout") for argument in arguments):
        raise SystemExit(f"error: {method.input_type} has a field with a name that a method needs itself")
    declared = [argument.declared(is_first=argument is arguments[0]) for argument in arguments]
    patience = "None" if method.server_streaming else PATIENCE
    answer, verb = f"v1.{short(method.output_type)}", "ask"
    if method.server_streaming:
        answer, verb = f"Generator[{answer}, None, None]", "listen"
    yield f"    def {snake(method.name)}("
    for part in ("self", *declared[:1], "*", *declared[1:], f"timeout: float | None = {patience}"):
        yield f"        {part},"
    yield f"    ) -> {answer}:"
    if arguments:
        yield f'        """{comment}\n'
        yield from (f"        * {argument.name}: {argument.comment}" for argument in arguments)
        yield '        """'
    else:
        yield f'        """{comment}"""'
    yield f"        return self._{verb}("
    yield f"            self._{snake(service.name)}.{method.name},"
    yield f"            v1.{short(method.input_type)},"
    yield "            {"
    yield from (f'                "{argument.field}": {argument.value},' for argument in arguments)
    yield "            },"
    yield "            timeout,"
    yield "        )"


def main():
    described = FileDescriptorSet.FromString(sys.stdin.buffer.read())
    files = sorted(described.file, key=lambda file: file.name)
    folder = Path(sys.argv[1])
    for path, lines in (("v1/__init__.py", names(files)), ("_calls.py", calls(files))):
        (folder / path).write_text("\n".join(lines) + "\n", encoding="utf-8")


main()
