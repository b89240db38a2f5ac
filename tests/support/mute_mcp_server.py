"""An MCP server without tools, for tests of whether it is started at all: `--touch FILE` leaves a file."""

import json
import pathlib
import sys

if "--touch" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--touch") + 1]).touch()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        information = {"name": "mute", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": information}
    elif message["method"] == "tools/list":
        result = {"tools": []}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
