"""A directory whose name is no text: Claude Code cannot work there, and nothing that is said about it breaks a wire."""

import os
from pathlib import Path

from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

from .test_disconnect import stdio_server


def test_a_directory_whose_name_is_no_text_is_refused_by_name(
    server_environment: dict[str, str], place: Sandbox
) -> None:
    directory = os.fsdecode(os.fsencode(place.project) + b"/caf\xe9")
    os.mkdir(directory)
    with stdio_server(server_environment, Path(directory)) as server:
        refused = server.call("claude_create_session", prompt="hello")["error"]
        assert refused["code"] == "INVALID_ARGUMENT"
        assert "caf" in refused["message"]
        assert "not valid Unicode" in refused["message"]
        elsewhere = server.call(
            "claude_create_session", prompt="hello", workingDirectory=str(place.project), waitSeconds=50
        )
        assert elsewhere["status"] == "completed", elsewhere
        server.leave()
        assert server.process.wait(HANG_SECONDS) == 0
