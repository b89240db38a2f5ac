"""People sign in at a gateway's own authorization server: real processes, passkeys and clients that sign in."""

from pathlib import Path

import httpx2
import pytest

from tests.support.fleet import Computer, processes_of

pytest.importorskip("webauthn", reason="the extra `oauth` is not installed")

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.plugins.team.embedded import Embedded, connected
from tests.plugins.team.test_sign_in import POLICY, call
from tests.server.test_http import ACCEPT, HELLO
from tests.support import warm_commands
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS, until


class SignInComputer(Computer):
    """A machine that believes gateways at which people sign in."""

    def variables(self) -> dict[str, str]:
        policy = self.root / "policy.toml"
        policy.write_text(POLICY.format(leads=self.root))
        more = {"CLAUDE_CODE_MCP_OAUTH": "true", "CLAUDE_CODE_MCP_POLICY": str(policy)}
        return {**super().variables(), **more, "CLAUDE_CODE_MCP_PROFILE": "people"}


async def test_invited_people_sign_in_at_a_gateway_and_machines_believe_it(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = SignInComputer(tmp_path / "server", model.url), SignInComputer(tmp_path / "laptop", model.url)
    desk = Computer(tmp_path / "desk", model.url)
    served = Embedded(server.root, server, server.variables(), free_port())
    http = ("--http", f"127.0.0.1:{served.port}", "--oauth")
    with server.up(*http):
        tickets = server.ticket, server.run("fleet", "ticket").strip()
        with (
            laptop.joined("laptop", ticket=tickets[0]),
            desk.joined("desk", ticket=tickets[1]),
        ):
            await sign_in_and_work(served, laptop, desk)
    until(lambda: not processes_of([server, laptop, desk]), "something was left running")
    audited = served.audited()
    assert [line["who"] for line in audited if line["act"] == "client_allowed"] == ["ann", "ben"]
    assert any(line["act"] == "callers_changed" and line["removed"] == ["ann"] for line in audited)
    assert "Traceback" not in server.errors


async def sign_in_and_work(served: Embedded, laptop: Computer, desk: Computer) -> None:
    async with (
        await served.person("ann", "--group", "leads") as device,
        await served.person("ben") as other,
        connected(served, device, "2026-07-28") as (ann, memory),
        connected(served, other, "2026-07-28") as (ben, _),
    ):
        made = await call(
            ann, "claude_code", prompt=script("Hi.", "Hello Ann."), machine="laptop", cwd=str(laptop.project)
        )
        assert "error" not in made, made
        assert (made["result"], made["machine"]) == ("Hello Ann.", "laptop")
        refused = await call(ben, "claude_get_status", sessionId=made["sessionId"])
        assert refused["error"]["code"] == "SESSION_NOT_FOUND"
        refused = await call(ann, "claude_code", prompt="Hi.", machine="desk", cwd=str(desk.project))
        assert "was started for one caller" in refused["error"]["message"], "it was not told of people"
        # The same person at the console.
        ticket = (await device.sign_in()).headers["location"].partition("#ticket=")[2]
        page = await device.http.post("/api/sign-in", json={"ticket": ticket})
        csrf = {"x-csrf-token": page.json()["csrf"]}
        listed = (await device.http.get("/api/sessions", headers=csrf)).json()["sessions"]
        assert [(row["sessionId"], row["machine"]) for row in listed] == [(made["sessionId"], "laptop")]
        # Removed, they are nobody any more, at once.
        assert memory.tokens is not None
        bearer = {**ACCEPT, "authorization": f"Bearer {memory.tokens.access_token}"}
        async with httpx2.AsyncClient(timeout=HANG_SECONDS) as http:
            assert (await http.post(served.url, json=HELLO, headers=bearer)).status_code == 200
            served.command("remove", "ann", "--yes")
            assert (await http.post(served.url, json=HELLO, headers=bearer)).status_code == 401
        assert (await device.http.get("/api/sessions", headers=csrf)).status_code == 401


def test_people_sign_in_over_http_alone(tmp_path: Path) -> None:
    place = Computer(tmp_path / "server", "http://127.0.0.1:9")
    refused = warm_commands.helper().run(["fleet", "up", "--oauth"], place.variables(), place.project)
    assert refused.returncode == 2
    assert "--oauth needs --http HOST:PORT" in refused.stderr
