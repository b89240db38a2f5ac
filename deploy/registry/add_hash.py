"""Prints a server.json with the SHA-256 hash of its bundle, which the MCP registry demands.

Usage: python add_hash.py SERVER_JSON BUNDLE
"""

import hashlib
import json
import sys
from pathlib import Path

server = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
(bundle,) = [package for package in server["packages"] if package["registryType"] == "mcpb"]
bundle["fileSha256"] = hashlib.sha256(Path(sys.argv[2]).read_bytes()).hexdigest()
sys.stdout.write(json.dumps(server, indent=2, ensure_ascii=False) + "\n")
