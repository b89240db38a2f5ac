"""`claude-code-mcp web`: the console of the shared server, and that of a server with --http."""

import json
import os
import subprocess
from pathlib import Path

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support import warm_commands

from .conftest import Console
from .console_client import Browser


def run(environment: dict[str, str], cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return warm_commands.run(arguments, environment, cwd)


def ticket_in(text: str) -> str:
    return text.partition("#ticket=")[2].split()[0].strip('",')


def test_the_shared_server_opens_the_console_for_its_user_and_again_after_a_restart(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    sandbox = Sandbox(tmp_path, model.url)
    own = {"CLAUDE_CODE_MCP_RUNTIME_DIR": str(tmp_path / "run"), warm_commands.WARM_SERVERS: "1"}
    environment = sandbox.environment(**{RUN: os.environ[RUN], **own})
    try:
        given = run(environment, sandbox.project, "web")
        assert given.returncode == 0, given.stderr
        address = given.stdout.partition("http://")[2].partition("/")[0]
        assert address.startswith("127.0.0.1:")
        browser = Browser(f"http://{address}")
        refused = browser.sign_in()
        assert (refused.status, browser.get("/mcp").status, browser.get("/metrics").status) == (401, 404, 404)
        assert browser.get("/api/me").json["signIn"] == {"token": False, "open": False, "provider": False}
        assert browser.sign_in(ticket=ticket_in(given.stdout)).json["principal"] == "local"
        assert Browser(browser.base).sign_in(ticket=ticket_in(given.stdout)).status == 401
        assert run(environment, sandbox.project, "shared", "restart").returncode == 0
        found = json.loads(run(environment, sandbox.project, "web", "--json").stdout)
        assert found["address"] == f"{browser.base}/"
        assert browser.get("/api/me").json["principal"] == "local"
        assert json.loads(run(environment, sandbox.project, "web", "--sign-out-all", "--json").stdout) == {"ended": 1}
        assert browser.get("/api/me").status == 401
        assert browser.sign_in(ticket=ticket_in(found["url"])).status == 401
    finally:
        run(environment, sandbox.project, "shared", "stop")


def test_http_server_gives_a_link_to_callers_with_a_token(console: Console) -> None:
    environment = {**console.environment, "CLAUDE_CODE_MCP_TOKEN": console.tokens["bob"]}
    given = run(environment, console.project, "web", "--url", console.base, "--json")
    assert given.returncode == 0, given.stderr
    signed_in = console.browser().sign_in(ticket=ticket_in(given.stdout))
    assert signed_in.json["principal"] == "bob"
    wrong = run(environment, console.project, "web", "--url", console.base, "--token", "wrong")
    assert wrong.returncode != 0
    assert "did not return a link" in wrong.stderr
