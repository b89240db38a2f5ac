"""Calls as tasks: answered at once, asked about later, by a client that writes the wire itself."""

import json
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.core.state.task_records import TaskRecord
from claude_code_mcp.server.tasks import Tasks
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, stall, text, tool
from tests.conftest import StartService
from tests.server.tools.wires import MODERN
from tests.support import warm_commands
from tests.support.program import http_server
from tests.support.waiting import until
from tests.support.warm_commands import WarmProcess

from .connection import LONG

Json = dict[str, Any]
EXTENSION = "io.modelcontextprotocol/tasks"
TOUCH = script("Touch", tool("Bash", command="touch touched"), text("Touched."))


def envelope(*, tasks: bool = True, forms: bool = True) -> Json:
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {
            **({"elicitation": {"form": {}}} if forms else {}),
            **({"extensions": {EXTENSION: {}}} if tasks else {}),
        },
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }


class Client:
    """A server on two pipes. What comes beside the answers is kept."""

    def __init__(self, process: WarmProcess) -> None:
        self.process = process
        self.notifications: list[Json] = []
        self._number = 0

    def send(self, method: str, params: Json, **said: bool) -> int:
        self._number += 1
        assert self.process.stdin is not None
        params = {**params, "_meta": envelope(**said)}
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._number

    def receive(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server has closed its output"
        message: Json = json.loads(line)
        if "method" in message:
            self.notifications.append(message)
        return message

    def ask(self, method: str, params: Json, **said: bool) -> Json:
        number = self.send(method, params, **said)
        while True:
            message = self.receive()
            if message.get("id") == number:
                return message

    def call(self, name: str, /, **arguments: Any) -> Json:
        result: Json = self.ask("tools/call", {"name": name, "arguments": arguments})["result"]
        return result

    def get(self, task: Json) -> Json:
        result: Json = self.ask("tasks/get", {"taskId": task["taskId"]})["result"]
        assert result["taskId"] == task["taskId"]
        assert result["resultType"] == "complete"
        return result

    def until(self, task: Json, *statuses: str) -> Json:
        until(lambda: self.get(task)["status"] in statuses, f"it is none of {statuses}")
        return self.get(task)

    def update(self, task: Json, **responses: Json) -> None:
        reply = self.ask("tasks/update", {"taskId": task["taskId"], "inputResponses": responses})
        assert _without_meta(reply["result"]) == {"resultType": "complete"}

    def cancel(self, task: Json) -> None:
        reply = self.ask("tasks/cancel", {"taskId": task["taskId"]})
        assert _without_meta(reply["result"]) == {"resultType": "complete"}


def _without_meta(result: Json) -> Json:
    return {key: value for key, value in result.items() if key != "_meta"}


def started(reply: Json) -> Json:
    """A reply that is a task, checked."""
    assert reply["resultType"] == "task", reply
    assert reply["status"] == "working"
    assert isinstance(reply["ttlMs"], int)
    assert isinstance(reply["pollIntervalMs"], int)
    assert not {"result", "error", "inputRequests", "task", "requestState"} & reply.keys()
    return reply


def accept(**content: Any) -> Json:
    return {"action": "accept", "content": content}


Serve = Callable[[], Client]


@contextmanager
def serving(environment: dict[str, str], place: Sandbox) -> Iterator[Serve]:
    processes: list[WarmProcess] = []

    def serve() -> Client:
        processes.append(warm_commands.helper().open([], environment, place.project))
        return Client(processes[-1])

    try:
        yield serve
    finally:
        for process in processes:
            process.communicate(timeout=LONG)


@pytest.fixture(scope="module")
def server_settings() -> dict[str, str]:
    return {"CLAUDE_CODE_MCP_TOOLSETS": "sessions,code,query"}


@pytest.fixture(scope="module")
def serve(server_environment: dict[str, str], place: Sandbox) -> Iterator[Serve]:
    with serving(server_environment, place) as serve:
        yield serve


@pytest.fixture(scope="module")
def client(serve: Serve) -> Client:
    return serve()


@pytest.fixture(scope="module")
def session(client: Client) -> str:
    """A session at rest that asks before it runs a command: another turn of it costs a tenth of a new session."""
    params = {"prompt": "hello", "permissionMode": "default"}
    reply = client.ask("tools/call", {"name": "claude_code", "arguments": params}, tasks=False)
    return str(reply["result"]["structuredContent"]["sessionId"])


@pytest.mark.soak  # with more of it: cancelled and restarted, below
def test_a_turn_is_a_task_with_the_result_of_the_call(client: Client) -> None:
    task = started(client.call("claude_code", prompt=script("Say", text("Said."))))
    ended = client.until(task, "completed")
    assert ended["result"]["structuredContent"]["result"] == "Said."
    assert ended["result"]["content"][0]["text"] == "Said."
    session = ended["result"]["structuredContent"]["sessionId"]
    again = started(client.call("claude_code_reply", sessionId=session, prompt=script("More", text("More said."))))
    assert again["taskId"] != task["taskId"]
    assert client.until(again, "completed")["result"]["structuredContent"]["result"] == "More said."


def test_a_question_is_an_input_request_under_its_own_id(client: Client, session: str, place: Sandbox) -> None:
    task = started(client.call("claude_code_reply", sessionId=session, prompt=TOUCH))
    asking = client.until(task, "input_required")
    ((input_id, request),) = asking["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    assert "touch touched" in request["params"]["message"]
    client.update(task, nonsense=accept(decision="Allow once"), **{input_id: {"no": "answer"}})
    assert client.get(task)["inputRequests"].keys() == {input_id}
    client.update(task, **{input_id: accept(decision="Allow once")})
    ended = client.until(task, "completed")
    assert "inputRequests" not in ended
    assert ended["result"]["structuredContent"]["result"] == "Touched."
    assert (place.project / "touched").exists()
    client.update(task, **{input_id: accept(decision="Allow once")})
    assert client.get(task) == ended


def test_an_answer_from_elsewhere_ends_the_input_request(client: Client, session: str) -> None:
    task = started(client.call("claude_send_message", sessionId=session, message=TOUCH, waitSeconds=1))
    (input_id,) = client.until(task, "input_required")["inputRequests"]
    answered = client.call("claude_respond", sessionId=session, inputId=input_id, decision="deny", reason="no")
    assert answered["resultType"] == "complete"
    ended = client.until(task, "completed")
    assert ended["result"]["structuredContent"]["status"] == "completed"


@pytest.mark.soak  # in a dialog: test_dialogs.py
def test_a_form_that_was_closed_leaves_the_question_to_others(client: Client) -> None:
    task = started(client.call("claude_create_session", prompt=TOUCH, permissionMode="default", waitSeconds=1))
    (input_id,) = client.until(task, "input_required")["inputRequests"]
    client.update(task, **{input_id: {"action": "cancel"}})
    assert client.until(task, "working").keys().isdisjoint({"inputRequests", "result"})
    (row,) = [
        row
        for row in client.call("claude_list_sessions")["structuredContent"]["sessions"]
        if row.get("activeStatus") == "waiting_for_input"
    ]
    client.call("claude_respond", sessionId=row["sessionId"], inputId=input_id, decision="allow")
    assert client.until(task, "completed")["result"]["structuredContent"]["result"] == "Touched."


def test_cancelling_a_task_interrupts_its_turn_and_keeps_the_session(client: Client) -> None:
    created = client.call("claude_create_session", prompt=script("First", text("Here.")))
    assert created["resultType"] == "complete"
    session = created["structuredContent"]["sessionId"]
    waited = started(client.call("claude_get_status", sessionId=session, waitSeconds=50))
    assert client.until(waited, "completed")["result"]["structuredContent"]["status"] == "completed"
    task = started(client.call("claude_send_message", sessionId=session, message=script("S", stall()), waitSeconds=1))
    client.cancel(task)
    assert client.until(task, "cancelled").keys().isdisjoint({"result", "error"})
    client.cancel(task)
    assert client.get(task)["status"] == "cancelled"
    status = client.call("claude_get_status", sessionId=session)["structuredContent"]
    assert status["status"] == "interrupted"
    last = started(
        client.call("claude_send_message", sessionId=session, message=script("E", text("End.")), waitSeconds=1)
    )
    assert client.until(last, "completed")["result"]["structuredContent"]["result"] == "End."


def test_a_query_that_is_a_task_streams_nothing_and_bundles_everything(client: Client) -> None:
    client.notifications.clear()
    task = started(client.call("claude_code_query", prompt=script("Say", text("Streamed."))))
    bundle = client.until(task, "completed")["result"]["structuredContent"]
    assert bundle["result"]["summary"] == "Streamed."
    assert [message["type"] for message in bundle["messages"]][-1] == "result"
    assert "truncated" not in bundle
    assert client.notifications == []


def test_refused_call_does_not_become_a_task(client: Client) -> None:
    refused = client.call("claude_code", prompt="x", cwd="/nowhere/at/all")
    assert refused["resultType"] == "complete"
    assert refused["structuredContent"]["error"]["code"] == "INVALID_ARGUMENT"


def test_a_client_that_does_not_declare_tasks_has_none(client: Client, session: str) -> None:
    plain = {"sessionId": session, "prompt": script("Say", text("Plain."))}
    params = {"name": "claude_code_reply", "arguments": plain}
    assert client.ask("tools/call", params, tasks=False)["result"]["structuredContent"]["result"] == "Plain."
    task = started(client.call("claude_code_reply", sessionId=session, prompt=script("Say", text("Said."))))
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        refused = client.ask(method, {"taskId": task["taskId"], "inputResponses": {}}, tasks=False)["error"]
        assert refused["code"] == -32021
        assert refused["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}
    for method in ("tasks/list", "tasks/result"):
        assert client.ask(method, {"taskId": task["taskId"]})["error"]["code"] == -32601
    client.until(task, "completed")


def test_who_listens_is_told_of_every_change(client: Client, session: str) -> None:
    task = started(client.call("claude_code_reply", sessionId=session, prompt=TOUCH))
    client.until(task, "input_required")
    client.notifications.clear()
    wanted = {"notifications": {"taskIds": [task["taskId"], "another"], "toolsListChanged": True}}
    stream = client.send("subscriptions/listen", wanted)
    while not client.notifications:
        client.receive()
    acknowledged = client.notifications.pop()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"] == {"taskIds": [task["taskId"], "another"], "toolsListChanged": True}
    (input_id,) = client.get(task)["inputRequests"]
    client.update(task, **{input_id: accept(decision="Allow once")})
    client.until(task, "completed")
    while not client.notifications or client.notifications[-1]["params"]["status"] != "completed":
        client.receive()
    assert {message["method"] for message in client.notifications} == {"notifications/tasks"}
    for message in client.notifications:
        assert message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == stream
        assert message["params"]["taskId"] == task["taskId"]
    assert client.notifications[-1]["params"]["result"]["structuredContent"]["result"] == "Touched."


def test_tasks_are_answered_after_a_restart(serve: Serve) -> None:
    first = serve()
    done = started(first.call("claude_code", prompt=script("Say", text("Said."))))
    ended = first.until(done, "completed")
    session = ended["result"]["structuredContent"]["sessionId"]
    open_ = started(first.call("claude_code_reply", sessionId=session, prompt=script("S", stall())))
    first.process.kill()
    first.process.wait(LONG)
    second = serve()
    assert _without_meta(second.get(done)) == _without_meta(ended)
    fetched = second.get(open_)
    assert fetched["status"] == "completed"
    assert fetched["result"]["isError"] is True
    assert fetched["result"]["structuredContent"]["sessionId"] == session
    assert "can be continued" in fetched["result"]["content"][0]["text"]
    assert second.get(open_) == fetched
    goes_on = script("More", text("Goes on."))
    again = started(second.call("claude_send_message", sessionId=session, message=goes_on, waitSeconds=1))
    assert second.until(again, "completed")["result"]["structuredContent"]["result"] == "Goes on."


async def test_an_error_that_passes_is_not_the_end_of_a_task(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start_service()
    tasks = Tasks(service, lambda: "local", lambda *_: None)
    working = TaskRecord(
        task_id=secrets.token_hex(16),
        owner="local",
        tool="claude_code",
        session_id=str(uuid.uuid4()),
        created_at=time.time(),
        updated_at=time.time(),
        ttl_ms=10**6,
    )
    tasks.records.write(working)

    async def unreadable(*_: Any, **__: Any) -> Any:
        raise UpstreamUnavailable("No descriptor is free.")

    with monkeypatch.context() as now:
        now.setattr(service, "find", unreadable)
        with pytest.raises(UpstreamUnavailable):
            await tasks._after_restart(working)
    assert tasks.records.read(working.task_id, "local") == working
    assert (await tasks._after_restart(working)).status == "completed"  # there is no such session


@pytest.mark.soak  # and is answered after a restart: the test above
def test_a_task_that_runs_in_another_server_continues(serve: Serve) -> None:
    first, second = serve(), serve()
    task = started(first.call("claude_code", prompt=script("S", stall())))
    assert second.get(task)["status"] == "working"
    first.cancel(task)
    first.until(task, "cancelled")
    assert second.get(task)["status"] == "cancelled"


@pytest.mark.soak
def test_tasks_belong_to_their_caller(server_environment: dict[str, str], place: Sandbox, tmp_path: Path) -> None:
    tokens = {name: secrets.token_urlsafe(32) for name in ("alice", "bob")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
    file.chmod(0o600)
    environment = {**server_environment, "CLAUDE_CODE_MCP_TOKENS_FILE": str(file)}
    with http_server(environment, place.project) as server, httpx2.Client(timeout=LONG) as http:

        def ask(caller: str, method: str, routed: str, **params: Any) -> Json:
            headers = {
                "Accept": "application/json, text/event-stream",
                "Authorization": f"Bearer {tokens[caller]}",
                "MCP-Protocol-Version": MODERN,
                "Mcp-Method": method,
                "Mcp-Name": routed,
            }
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": envelope()}}
            body = http.post(server.url, json=message, headers=headers).text
            return dict(json.loads(body[body.index("{") :]))

        prompt = script("S", stall())
        reply = ask("alice", "tools/call", "claude_code", name="claude_code", arguments={"prompt": prompt})
        id_ = started(reply["result"])["taskId"]
        absent = ask("bob", "tasks/get", "x" * 32, taskId="x" * 32)["error"]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert ask("bob", method, id_, taskId=id_, inputResponses={})["error"] == absent
        assert ask("alice", "tasks/get", id_, taskId=id_)["result"]["status"] == "working"
        assert ask("alice", "tasks/get", "other", taskId=id_)["error"]["code"] == -32020
        ask("alice", "tasks/cancel", id_, taskId=id_)
