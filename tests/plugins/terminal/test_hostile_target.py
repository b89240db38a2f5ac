"""A server that terminals are forwarded to, and that does not keep to the protocol."""

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.question import Answer, Question
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.console.lan import certificate
from claude_code_mcp.plugins.terminal.forwarding_target import ForwardingPlace, new_target
from claude_code_mcp.testing import Sandbox
from tests.support.local_http import Handler, site

from .conftest import StartServer, eventually
from .test_forged_events import connection, note, reply_to, written
from .test_hook import event

TOKEN = "ann-2d7b41a86c3d905f0c9e-and-more"
SECRET = "s3cr3t-5f0c9d2e7b41a86c3d90"


class Target:
    """Records the reports, and answers them as the test says."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.url = ""
        self.reply: Callable[[dict[str, Any]], Any] = lambda _: {}
        self.send: Callable[[Handler], None] | None = None
        """Answers instead of `reply`."""

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The terminals of the last report that has any."""
        return next((report["terminals"] for report in reversed(self.reports) if report.get("terminals")), [])

    @property
    def questions(self) -> list[dict[str, Any]]:
        return [question for terminal in self.shown for question in terminal["questions"]]


@pytest.fixture
def target(sandbox: Sandbox) -> Iterator[Target]:
    """A server that the terminals are forwarded to."""
    target = Target()

    class Answering(Handler):
        def do_POST(self) -> None:
            report = json.loads(self.body())
            target.reports.append(report)
            if target.send is not None:
                target.send(self)
            else:
                self.answer(200, json.dumps(target.reply(report)).encode(), {"Content-Type": "application/json"})

    with site(Answering) as target.url:
        place = ForwardingPlace(sandbox.root / "state")
        place.write(new_target(target.url, TOKEN))
        yield target
        place.remove()


@asynccontextmanager
async def asking(
    server: Service, sandbox: Sandbox, *, told: dict[str, Any] | None = None, **about: Any
) -> AsyncIterator[tuple[Question, asyncio.StreamReader]]:
    """A question of a terminal, and what its hook reads."""
    told = {**(told or event(sandbox)), **about}
    note(sandbox, told["session_id"])
    known = {question.id for question in server.broker.pending()}
    async with connection(sandbox) as (reader, writer):
        writer.write(written("PermissionRequest", told))
        found = await eventually(
            lambda: [question for question in server.broker.pending() if question.id not in known], "the question"
        )
        yield found[0], reader


async def decided(reader: asyncio.StreamReader) -> Any:
    return json.loads(await reader.readline())["hookSpecificOutput"]["decision"]


async def test_a_target_that_answers_at_once_gets_few_reports(
    server: Service, sandbox: Sandbox, target: Target
) -> None:
    target.reply = lambda _: {"unknown": True, "answers": [{"sessionId": "x", "key": "q-1.0", "allow": True}]}
    async with asking(server, sandbox):
        await eventually(lambda: target.questions, "a report")
        await asyncio.sleep(3)
        assert len(target.reports) < 12


async def test_all_parts_of_a_question_are_without_secrets(server: Service, sandbox: Sandbox, target: Target) -> None:
    server.add_secrets([SECRET])
    target.reply = lambda _: {}
    told = event(sandbox, permission_mode="auto", tool_input={"command": f"curl -u me:{SECRET} localhost"})
    note(sandbox, told["session_id"])
    denied = {**told, "reason": f"It sends {SECRET} away."}
    await reply_to(sandbox, "PermissionDenied", denied)
    rules = [{"toolName": "Bash", "ruleContent": f"curl -u me:{SECRET} localhost"}]
    suggested = [{"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"}]
    async with asking(server, sandbox, told=told, permission_suggestions=suggested):
        (question,) = await eventually(lambda: target.questions, "a report")
    assert "It sends" in question["reason"]
    assert question["suggestions"]
    assert SECRET not in json.dumps(target.reports)


async def test_a_question_that_json_cannot_represent_exactly_is_forwarded(
    server: Service, sandbox: Sandbox, target: Target
) -> None:
    async with asking(server, sandbox, tool_input={"command": "echo \ud800", "timeout": float("nan")}):
        (question,) = await eventually(lambda: target.questions, "a report")
        assert question["input"]["command"].startswith("echo ")


async def test_a_large_question_does_not_hide_the_others(server: Service, sandbox: Sandbox, target: Target) -> None:
    told = event(sandbox)
    large = {"command": f"true {'x' * (6 << 20)}"}
    async with (
        asking(server, sandbox, told=told, tool_input=large),
        asking(server, sandbox, told=told, tool_input=large),
        asking(server, sandbox, told=told, tool_input={"command": "small"}),
    ):
        await eventually(lambda: "small" in [each["input"]["command"] for each in target.questions], "the small one")


async def test_refused_answers_end(start_server: StartServer, sandbox: Sandbox, target: Target) -> None:
    server, _ = await start_server(policy=Policy(Profile(deny=("Bash(rm *)",))))
    answered: set[str] = set()

    def reply(report: dict[str, Any]) -> Any:
        questions = [
            (terminal["sessionId"], question["key"])
            for terminal in report.get("terminals") or ()
            for question in terminal["questions"]
        ]
        answered.update(key for _, key in questions)
        change = {"allow": True, "updatedInput": {"command": "rm -rf ."}}
        return {"answers": [{"sessionId": session, "key": key, **change} for session, key in questions]}

    target.reply = reply
    async with asking(server, sandbox) as (question, reader):
        await eventually(lambda: target.reports and target.reports[-1]["terminals"][0]["questions"] == [], "the end")
        assert len(answered) <= 5
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        assert (await decided(reader))["updatedInput"] == {"command": "true"}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"updatedInput": {"command": nested(700)}},
        {"updatedInput": {"command": float("nan")}},
        {"updatedInput": {"command": "true"}, "mode": "bypassPermissions"},
        {"forSession": True},
        {"answers": {"a": "b"}},
        {"answers": [["a"], "b"]},
        {"allow": "yes"},
        {"sessionId": "another"},
    ],
    ids=["nested", "nan", "mode", "session", "answers", "list", "text", "other session"],
)
async def test_an_answer_that_does_not_fit_leaves_the_question_open(
    server: Service, sandbox: Sandbox, target: Target, change: dict[str, Any]
) -> None:
    def reply(report: dict[str, Any]) -> Any:
        return {
            "answers": [
                {"sessionId": terminal["sessionId"], "key": question["key"], "allow": True, **change}
                for terminal in report.get("terminals") or ()
                for question in terminal["questions"]
            ]
        }

    target.reply = reply
    async with asking(server, sandbox) as (question, reader):
        await eventually(lambda: target.questions, "a report")
        await asyncio.sleep(1)
        assert [each.id for each in server.broker.pending()] == [question.id]
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        assert (await decided(reader))["behavior"] == "allow"


def redirecting(elsewhere: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(307, headers={"Location": elsewhere})


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * (1 << 16))
    except OSError:
        return


def bomb(handler: Handler) -> None:
    body = gzip.compress(b" " * (200 << 20))
    handler.answer(200, body, {"Content-Encoding": "gzip", "Content-Type": "application/json"})


def page(handler: Handler) -> None:
    handler.answer(200, b"<!doctype html>", {"Content-Type": "text/html"})


def bad_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\x1b[31m" + b"x" * 50_000 + b"\r\n\r\n")


@pytest.mark.parametrize("send", [endless, bomb, page, bad_head], ids=lambda send: send.__name__)
async def test_an_unusable_reply_changes_nothing(
    server: Service, sandbox: Sandbox, target: Target, send: Callable[[Handler], None], caplog: pytest.LogCaptureFixture
) -> None:
    target.send = send
    async with asking(server, sandbox) as (question, reader):
        said = await eventually(lambda: "terminals are not forwarded" in caplog.text and caplog.text, "the reason")
        assert "\x1b" not in said
        assert len(said) < 3000
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        assert (await decided(reader))["behavior"] == "allow"


async def test_a_redirect_is_not_followed(
    server: Service, sandbox: Sandbox, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    reached: list[Any] = []

    class Elsewhere(Handler):
        def do_POST(self) -> None:
            reached.append(dict(self.headers))
            self.answer()

        def do_GET(self) -> None:
            self.do_POST()

    with site(Elsewhere) as url:
        target.send = redirecting(f"{url}/terminals")
        async with asking(server, sandbox):
            await eventually(lambda: "HTTP 307" in caplog.text, "the reason")
    assert reached == []


async def test_a_certificate_that_no_one_vouches_for_gets_no_token(
    server: Service, sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as that of another server at the address of the target."""
    reached: list[str] = []

    class Other(Handler):
        def do_POST(self) -> None:
            reached.append(str(self.headers))
            self.answer(200, b"{}")

    pem, _ = certificate(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    place = ForwardingPlace(sandbox.root / "state")
    with site(Other, context) as url:
        place.write(new_target(url, TOKEN))
        async with asking(server, sandbox) as (question, reader):
            await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text, "the reason")
            server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
            assert (await decided(reader))["behavior"] == "allow"
        place.remove()
    assert reached == []
