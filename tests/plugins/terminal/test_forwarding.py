"""A terminal whose person has chosen to show its questions on a team's server too, where they are answered."""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.terminal.forwarder import Forwarder
from claude_code_mcp.plugins.terminal.forwarding_connection import sign_in_at, storage
from claude_code_mcp.plugins.terminal.forwarding_target import ForwardingPlace, new_target
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import RUN
from tests.plugins.console.console_client import Browser
from tests.plugins.team.embedded import embedded
from tests.support import warm_commands
from tests.support.local_http import Handler, site
from tests.support.ports import free_port
from tests.support.program import HttpServer, http_server
from tests.support.waiting import HANG_SECONDS

from .conftest import StartClaude, StartServer, eventually, question_in
from .test_forged_events import connection, note, written
from .test_hook import event

ASKS = script("Do it", tool("Bash", command="touch done; env > environment"), text("All is done."))
TOKEN = "ann-2d7b41a86c3d905f0c9e-and-more"
OTHER = "bob-5f0c9d2e7b41a86c3d90-and-more"


class Team:
    """A team's server on another machine, with its own state and callers."""

    def __init__(self, root: Path, model_url: str) -> None:
        root.mkdir()
        self.place = Sandbox(root, model_url)
        tokens = root / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(f"ann {TOKEN}\nbob {OTHER}\n")
        own = {"CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"), "CLAUDE_CODE_MCP_TOKENS_FILE": str(tokens)}
        (root / "policy.toml").write_text('[profiles.people]\nisolation = "none"\n')
        policy = {"CLAUDE_CODE_MCP_POLICY": str(root / "policy.toml"), "CLAUDE_CODE_MCP_PROFILE": "people"}
        self._environment = self.place.environment(**{RUN: os.environ[RUN]}, **own, **policy)
        self._port = free_port()
        self._running = ExitStack()
        self.server: HttpServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._running = ExitStack()
        serving = http_server(self._environment, self.place.project, f"127.0.0.1:{self._port}")
        self.server = self._running.enter_context(serving)

    def stop(self) -> None:
        self._running.close()

    def kill(self) -> None:
        assert self.server is not None
        self.server.process.kill()
        self.server.process.wait()

    def command(self, *arguments: str, token: str = TOKEN) -> Any:
        """What a command of a person at this server prints."""
        return warm_commands.run(
            [*arguments, "--url", self.url, "--token", token], self._environment, self.place.project
        )

    async def questions(self, token: str = TOKEN) -> list[dict[str, Any]]:
        done = await asyncio.to_thread(self.command, "questions", "--json", token=token)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    async def question(self) -> dict[str, Any]:
        """The first open question there."""
        async with asyncio.timeout(HANG_SECONDS):
            while not (found := await self.questions()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        return found[0]

    async def until_silent(self) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while await self.questions():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def browser(self) -> Browser:
        """A page of the first caller, signed in."""
        browser = Browser(self.url)
        assert (await asyncio.to_thread(browser.sign_in, token=TOKEN)).status == 200
        return browser

    @property
    def audit(self) -> str:
        return (self.place.root / "state" / "audit.jsonl").read_text()


@pytest.fixture
def team(tmp_path: Path, model: ScriptedModelThread) -> Iterator[Team]:
    team = Team(tmp_path / "team", model.url)
    team.start()
    yield team
    team.stop()


@pytest.fixture
def forward(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> Any:
    """Runs `claude-code-mcp terminal forward` as the person at the terminal."""
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    own = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}

    async def run(*arguments: str) -> str:
        more = [] if "--off" in arguments else ["--token-file", str(tmp_path / "token")]
        printed = []
        for command in (["terminal", "forward", *arguments, *more], ["terminal", "status"]):
            done = await asyncio.to_thread(warm_commands.run, command, own, sandbox.project)
            assert done.returncode == 0, done.stderr
            printed.append(str(done.stdout))
        assert ("also shown on http://" in printed[1]) == bool(more)
        return printed[0]

    return run


async def test_a_question_is_answered_on_the_team_server(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert "to ann" in await forward(team.url)
    claude(ASKS)
    mine = await question_in(server)
    question = await team.question()
    assert "touch done" in question["description"]
    assert await team.questions(OTHER) == []
    done = await asyncio.to_thread(team.command, "answer", question["inputId"], "allow")
    assert done.returncode == 0, done.stderr
    await eventually((sandbox.project / "environment").exists, "the call")
    await eventually(lambda: server.session(mine.session_id).outcome, "the end of the turn")
    await team.until_silent()
    again = await asyncio.to_thread(team.command, "answer", question["inputId"], "deny")
    assert again.returncode != 0
    kept = sandbox.root / "state" / "terminal-forwarding" / "target.json"
    assert kept.stat().st_mode & 0o077 == 0
    files = [file for place in (sandbox.project, sandbox.home, sandbox.root / "state") for file in place.rglob("*")]
    leaks = [file for file in files if file.is_file() and file != kept and TOKEN.encode() in file.read_bytes()]
    assert (sandbox.project / "environment") in files
    assert leaks == []
    assert TOKEN not in team.audit + caplog.text


async def test_the_session_is_shown_without_its_files(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    await forward(team.url)
    claude(ASKS)
    session_id = (await team.question())["sessionId"]
    browser = await team.browser()
    listed = (await asyncio.to_thread(browser.get, "/api/sessions")).json["sessions"]
    (row,) = [row for row in listed if row["sessionId"] == session_id]
    assert (row["directory"], row["inTerminal"]) == (str(sandbox.project), True)
    assert row["machine"] == os.uname().nodename
    for path in ("", "/files", "/changes", "/items"):
        shown = await asyncio.to_thread(browser.get, f"/api/sessions/{session_id}{path}")
        assert shown.status < 500, (path, shown.json)
    refused = await asyncio.to_thread(team.command, "send", session_id, "Hello")
    assert "is open in a terminal" in refused.stderr


async def test_nothing_is_forwarded_before_the_person_says_so_and_after_they_have_stopped_it(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    terminal = claude(script("Do it", tool("Bash", command="touch one"), tool("Bash", command="touch two")))
    await question_in(server)
    assert await team.questions() == []
    assert str(sandbox.project) not in team.audit
    await forward(team.url)
    await team.question()
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    await forward("--off")
    await team.until_silent()
    assert server.broker.pending()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_the_end_is_noticed_also_where_changes_of_files_are_not_reported(
    server: Service, sandbox: Sandbox
) -> None:
    place = ForwardingPlace(sandbox.root / "state")
    place.write(new_target("http://127.0.0.1:1", TOKEN))
    forwarder = Forwarder(server, place, list)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # With no descriptor left for the kernel's reports.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        running = asyncio.create_task(forwarder.run())
        await asyncio.sleep(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await eventually(lambda: forwarder.target, "the target")
    place.remove()
    await eventually(lambda: forwarder.target is None, "the end")
    running.cancel()
    await asyncio.wait([running])


async def test_one_sender_cannot_open_questions_without_end(team: Team) -> None:
    """Each has lines in the audit trail, which has a limited size."""

    def report(number: int) -> dict[str, Any]:
        questions = [{"key": f"{number}-{key}", "tool": "Bash", "input": {"command": "true"}} for key in range(50)]
        place = {"sessionId": "one", "directory": "/src", "title": "", "state": "waiting"}
        return {"client": "mine", "revision": str(number), "terminals": [{**place, "questions": questions}]}

    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(headers=headers, timeout=HANG_SECONDS) as sender:
        send = asyncio.ensure_future(sender.post(f"{team.url}/terminals", json=report(1)))
        assert (await team.question())["sessionId"]
        refused = await sender.post(f"{team.url}/terminals", json=report(2))
        assert (await send).status_code == 200
    assert refused.status_code == 429, refused.text
    assert "new questions per minute" in refused.text
    assert len(await team.questions()) <= 60
    assert team.audit.count('"question_opened"') <= 60


async def test_an_answer_at_the_keyboard_withdraws_the_question_there(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    await forward(team.url)
    terminal = claude(ASKS)
    await team.question()
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    terminal.type("1")
    await team.until_silent()
    await eventually((sandbox.project / "done").exists, "the call")


async def test_a_killed_server_holds_up_nothing_and_gets_the_question_when_it_is_back(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    await forward(team.url)
    calls = [tool("Bash", command=f"touch {name}") for name in ("one", "two", "three")]
    terminal = claude(script("Do it", *calls, text("All is done.")))
    await team.question()
    team.kill()
    mine = await question_in(server)
    server.respond(mine.session_id, mine.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "one").exists, "the call that was allowed here")
    await eventually(server.broker.pending, "the second question")
    await asyncio.to_thread(terminal.until, "touch two")
    terminal.type("1")
    await eventually((sandbox.project / "two").exists, "the call that was allowed at the keyboard")
    team.start()
    question = await team.question()
    assert "touch three" in question["description"]
    await asyncio.to_thread(team.command, "answer", question["inputId"], "allow")
    await eventually((sandbox.project / "three").exists, "the call that was allowed there")


class Silent(Handler):
    """Takes a report and never says anything."""

    def do_POST(self) -> None:
        self.body()
        self.rfile.read(1)


async def test_a_server_that_never_answers_holds_up_nothing(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    with site(Silent) as url:
        place = ForwardingPlace(sandbox.root / "state")
        place.write(new_target(url, TOKEN))
        terminal = claude(ASKS)
        await question_in(server)
        await asyncio.to_thread(terminal.until, "Do you want to proceed?")
        terminal.type("1")
        await eventually((sandbox.project / "done").exists, "the call")
        await eventually(lambda: server.sessions()[0].outcome, "the end of the turn")
        place.remove()


async def test_a_server_that_forwards_to_itself_shows_each_question_once_more(team: Team) -> None:
    place = ForwardingPlace(team.place.root / "state")
    place.write(new_target(team.url, TOKEN))
    told = event(team.place)
    note(team.place, told["session_id"])
    async with connection(team.place) as (reader, writer):
        writer.write(written("PermissionRequest", told))
        question = await team.question()
        assert question["sessionId"] != told["session_id"]
        done = await asyncio.to_thread(team.command, "answer", question["inputId"], "allow")
        assert done.returncode == 0, done.stderr
        async with asyncio.timeout(HANG_SECONDS):
            decision = json.loads(await reader.readline())["hookSpecificOutput"]["decision"]
    assert decision["behavior"] == "allow"
    await team.until_silent()
    assert team.audit.count('"question_opened"') == 2


async def test_a_token_that_others_can_read_is_not_used(sandbox: Sandbox, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    command = ["terminal", "forward", "http://127.0.0.1:1", "--token-file", str(token)]
    own = {"CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state"), "HOME": str(sandbox.home)}
    done = await asyncio.to_thread(warm_commands.run, command, own, sandbox.project)
    assert done.returncode != 0
    assert "can be read by others" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert not ForwardingPlace(sandbox.root / "state").file.exists()


async def test_the_policy_of_the_person_at_the_terminal_judges_the_answer(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    server, _ = await start_server(policy=Policy(Profile(answers="person", deny=("Bash(rm *)",))))
    await forward(team.url)
    claude(ASKS)
    browser = await team.browser()

    async def answer(question: dict[str, Any], **about: Any) -> None:
        path = f"/api/sessions/{question['sessionId']}/questions/{question['inputId']}"
        answered = await asyncio.to_thread(browser.post, path, {"decision": "allow", **about})
        assert answered.status == 200, answered.json

    async def next_question(before: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(HANG_SECONDS):
            while (found := await team.question())["inputId"] == before["inputId"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return found

    first = await team.question()
    await answer(first, updatedInput={"command": "rm -rf ."})
    second = await next_question(first)
    # A command with a token is a program's.
    done = await asyncio.to_thread(team.command, "answer", second["inputId"], "allow")
    assert done.returncode == 0, done.stderr
    third = await next_question(second)
    assert not (sandbox.project / "done").exists()
    assert len(server.broker.pending()) == 1
    shown = await asyncio.to_thread(browser.get, "/api/questions")
    assert "The last answer was refused" in str(shown.json)
    await answer(third)
    await eventually((sandbox.project / "done").exists, "the call")


async def test_a_person_signs_in_with_oauth(
    server: Service, claude: StartClaude, sandbox: Sandbox, tmp_path: Path, model: ScriptedModelThread
) -> None:
    (tmp_path / "team").mkdir()
    with embedded(tmp_path / "team", model.url).running() as served:
        place, target = ForwardingPlace(sandbox.root / "state"), new_target(served.origin, None)
        async with await served.person("ann") as ann, httpx2.AsyncClient() as browser:

            async def show(address: str) -> None:
                came_back = await ann.allow(address)
                assert (await browser.get(came_back)).status_code == 200

            await sign_in_at(place, target, show)
        place.write(target)
        claude(ASKS)
        await question_in(server)
        tokens = (await storage(place, target).load()).tokens
        assert tokens is not None

        async def command(*arguments: str) -> str:
            assert tokens is not None
            line = [*arguments, "--url", served.url, "--token", tokens.access_token]
            done = await asyncio.to_thread(warm_commands.run, line, served.environment, served.place.project)
            assert done.returncode == 0, done.stderr
            return done.stdout

        async with asyncio.timeout(HANG_SECONDS):
            while not (found := json.loads(await command("questions", "--json"))):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await command("answer", found[0]["inputId"], "allow")
        await eventually((sandbox.project / "done").exists, "the call")
        assert "ann" in (await asyncio.to_thread((served.root / "state" / "audit.jsonl").read_text))
