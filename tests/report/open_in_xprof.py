"""Opens a report's events with XProf itself, and says the memory profile that XProf makes of them.

open_in_xprof.py FOLDER: the folder `xprof` of a report. Prints what XProf's tool `memory_profile` answers (JSON), and what XProf's own
message reads in memory_profile.pb beside that folder.
"""

import json
import pathlib
import sys

from google.protobuf import json_format
from xprof.convert import raw_to_tool_data
from xprof.protobuf import memory_profile_pb2

folder = pathlib.Path(sys.argv[1])
spaces = sorted(str(path) for path in folder.glob("plugins/profile/*/*.xplane.pb"))
computed = {}
for path in spaces:
    answer, _ = raw_to_tool_data.xspace_to_tool_data([path], "memory_profile", {})
    computed[pathlib.Path(path).name] = json.loads(answer)
profile = memory_profile_pb2.MemoryProfile()
profile.ParseFromString((folder.parent / "memory_profile.pb").read_bytes())
assert profile.SerializeToString(deterministic=True), "there is nothing in it"
read = json_format.MessageToDict(profile, preserving_proto_field_name=True)
print(json.dumps({"computed": computed, "read": read}))
