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

from .conftest import StartClaude, StartServer, eventually, press, question_in
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

    async def next_question(self, before: dict[str, Any]) -> dict[str, Any]:
        """The first open question there, once it is another."""
        async with asyncio.timeout(HANG_SECONDS):
            while (found := await self.question())["inputId"] == before["inputId"]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        return found

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


class Silent(Handler):
    """Takes a report and never says anything."""

    def do_POST(self) -> None:
        self.body()
        self.rfile.read(1)


async def test_questions_are_forwarded_from_when_the_person_says_so_until_they_have_stopped_it(
    server: Service, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any, caplog: pytest.LogCaptureFixture
) -> None:
    waits = "until [ -e go ]; do sleep 0.1; done; touch silent"
    commands = ("touch first", "touch second; env > environment", "touch third", waits)
    terminal = claude(script("Do it", *(tool("Bash", command=one) for one in commands), text("All is done.")))
    # Nothing is forwarded before the person says so.
    mine = await question_in(server)
    session_id = mine.session_id
    assert await team.questions() == []
    assert str(sandbox.project) not in team.audit
    assert "to ann" in await forward(team.url)
    question = await team.question()
    assert "touch first" in question["description"]
    assert await team.questions(OTHER) == []
    # The session is shown without its files.
    there = question["sessionId"]
    browser = await team.browser()
    listed = (await asyncio.to_thread(browser.get, "/api/sessions")).json["sessions"]
    (row,) = [row for row in listed if row["sessionId"] == there]
    assert (row["directory"], row["inTerminal"]) == (str(sandbox.project), True)
    assert row["machine"] == os.uname().nodename
    for path in ("", "/files", "/changes", "/items"):
        shown = await asyncio.to_thread(browser.get, f"/api/sessions/{there}{path}")
        assert shown.status < 500, (path, shown.json)
    refused = await asyncio.to_thread(team.command, "send", there, "Hello")
    assert "is open in a terminal" in refused.stderr
    # An answer at the keyboard withdraws the question there.
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    terminal.type("1")
    await eventually((sandbox.project / "first").exists, "the call that was allowed at the keyboard")
    question = await team.next_question(question)
    # It is answered there, once.
    assert "touch second" in question["description"]
    done = await asyncio.to_thread(team.command, "answer", question["inputId"], "allow")
    assert done.returncode == 0, done.stderr
    await eventually((sandbox.project / "environment").exists, "the call that was allowed there")
    third = await team.next_question(question)
    again = await asyncio.to_thread(team.command, "answer", question["inputId"], "deny")
    assert again.returncode != 0
    # The token is in its own file alone.
    kept = sandbox.root / "state" / "terminal-forwarding" / "target.json"
    assert kept.stat().st_mode & 0o077 == 0
    files = [file for place in (sandbox.project, sandbox.home, sandbox.root / "state") for file in place.rglob("*")]
    leaks = [file for file in files if file.is_file() and file != kept and TOKEN.encode() in file.read_bytes()]
    assert (sandbox.project / "environment") in files
    assert leaks == []
    assert TOKEN not in team.audit + caplog.text
    # Nothing is forwarded after the person has stopped it.
    assert "touch third" in third["description"]
    await forward("--off")
    await team.until_silent()
    (mine,) = server.broker.pending()
    assert mine.tool_input["command"] == "touch third"
    # A server that never answers holds up nothing.
    with site(Silent) as url:
        place = ForwardingPlace(sandbox.root / "state")
        place.write(new_target(url, TOKEN))
        server.respond(session_id, mine.id, Answer(allow=True), by="web", person=True)
        await eventually((sandbox.project / "third").exists, "the call that was allowed here")
        await question_in(server)
        await press(terminal, "1", lambda: not server.broker.pending(), "the end of the question")
        (sandbox.project / "go").touch()
        await eventually((sandbox.project / "silent").exists, "the call that was allowed at the keyboard")
        await eventually(lambda: server.session(session_id).outcome, "the end of the turn")
        place.remove()
    assert await team.questions() == []
    await assert_questions_of_one_sender_are_limited(team)


async def assert_questions_of_one_sender_are_limited(team: Team) -> None:
    """Each has lines in the audit trail, which has a limited size."""

    def report(number: int) -> dict[str, Any]:
        questions = [{"key": f"{number}-{key}", "tool": "Bash", "input": {"command": "true"}} for key in range(50)]
        place = {"sessionId": "one", "directory": "/src", "title": "", "state": "waiting"}
        return {"client": "mine", "revision": str(number), "terminals": [{**place, "questions": questions}]}

    before = team.audit.count('"question_opened"')
    headers = {"Authorization": f"Bearer {OTHER}"}
    async with httpx2.AsyncClient(headers=headers, timeout=HANG_SECONDS) as sender:
        send = asyncio.ensure_future(sender.post(f"{team.url}/terminals", json=report(1)))
        async with asyncio.timeout(HANG_SECONDS):
            while not await team.questions(OTHER):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        refused = await sender.post(f"{team.url}/terminals", json=report(2))
        assert (await send).status_code == 200
    assert refused.status_code == 429, refused.text
    assert "new questions per minute" in refused.text
    assert len(await team.questions(OTHER)) <= 60
    assert team.audit.count('"question_opened"') - before <= 60


async def test_the_policy_of_the_person_judges_answers_and_a_killed_server_holds_up_nothing(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox, team: Team, forward: Any
) -> None:
    server, _ = await start_server(policy=Policy(Profile(answers="person", deny=("Bash(rm *)",))))
    await forward(team.url)
    waits = "until [ -e go ]; do sleep 0.1; done; touch two"
    calls = [tool("Bash", command=command) for command in ("touch done", "touch one", waits, "touch three")]
    terminal = claude(script("Do it", *calls, text("All is done.")))
    browser = await team.browser()

    async def answer(browser: Browser, question: dict[str, Any], **about: Any) -> None:
        path = f"/api/sessions/{question['sessionId']}/questions/{question['inputId']}"
        answered = await asyncio.to_thread(browser.post, path, {"decision": "allow", **about})
        assert answered.status == 200, answered.json

    # The policy of the person at the terminal judges the answer.
    first = await team.question()
    await answer(browser, first, updatedInput={"command": "rm -rf ."})
    second = await team.next_question(first)
    # A command with a token is a program's.
    done = await asyncio.to_thread(team.command, "answer", second["inputId"], "allow")
    assert done.returncode == 0, done.stderr
    third = await team.next_question(second)
    assert not (sandbox.project / "done").exists()
    assert len(server.broker.pending()) == 1
    shown = await asyncio.to_thread(browser.get, "/api/questions")
    assert "The last answer was refused" in str(shown.json)
    await answer(browser, third)
    await eventually((sandbox.project / "done").exists, "the call that a person allowed there")
    # A killed server holds up nothing, and gets the question when it is back.
    assert "touch one" in (await team.next_question(third))["description"]
    team.kill()
    mine = await question_in(server)
    server.respond(mine.session_id, mine.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "one").exists, "the call that was allowed here")
    await question_in(server)
    await press(terminal, "1", lambda: not server.broker.pending(), "the end of the question")
    (sandbox.project / "go").touch()
    await eventually((sandbox.project / "two").exists, "the call that was allowed at the keyboard")
    # Otherwise the second question may still be forwarded.
    await eventually(lambda: [each.tool_input["command"] for each in server.broker.pending()] == ["touch three"], "it")
    team.start()
    question = await team.question()
    assert "touch three" in question["description"]
    await answer(await team.browser(), question)
    await eventually((sandbox.project / "three").exists, "the call that was allowed there")


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


@pytest.mark.soak
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
