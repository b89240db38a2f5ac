"""The server is loaded without what its first call does not need, and nobody who imports the SDK notices."""

import json
import subprocess
import sys

NOT_NEEDED = (
    "mcp.client.session",
    "mcp.server.mcpserver",
    "claude_code_mcp.hub",
    "claude_code_mcp.testing",
    "claude_code_mcp.commands.doctor",
    "claude_code_mcp.greeting.build",
    "filelock",
    "prometheus_client",
)
LOAD = "from claude_code_mcp.cli import _load; _load()\n"


def said_by(code: str) -> object:
    """What an interpreter of its own prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_loading_the_server_imports_nothing_that_its_first_call_does_not_need() -> None:
    loaded = said_by(f"{LOAD}import json, sys; print(json.dumps(sorted(sys.modules)))")
    assert isinstance(loaded, list)
    assert "claude_code_mcp.server.server" in loaded
    assert [name for name in NOT_NEEDED if name in loaded] == []


def test_the_packages_of_the_sdk_have_all_their_names_when_somebody_asks() -> None:
    names = (
        "import json, mcp, mcp.server; print(json.dumps([sorted(n for n in dir(m) if n[0] != '_') for m in MODULES]))"
    )
    names = names.replace("MODULES", "(mcp, mcp.server)")
    ask = "import mcp, mcp.server; mcp.Client, mcp.server.MCPServer\n"
    assert said_by(LOAD + ask + names) == said_by(f"import claude_code_mcp.app\n{ask}{names}")


def test_a_name_that_the_sdk_does_not_have_is_missing_as_usual() -> None:
    code = (
        "import json, mcp\ntry:\n  from mcp import Nonsense\nexcept ImportError as e:\n  print(json.dumps(str(e)[:20]))"
    )
    assert said_by(LOAD + code) == said_by(code) == "cannot import name '"


def test_threads_that_ask_for_a_name_at_the_same_time_all_get_it() -> None:
    code = """
import json, threading, mcp
found, ready = [], threading.Barrier(4)
def look():
    ready.wait()
    found.append(mcp.Client.__name__)
threads = [threading.Thread(target=look) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(found))
"""
    assert said_by(LOAD + code) == ["Client"] * 4
