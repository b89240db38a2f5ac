"""One server as one session meets it: raw JSON-RPC in, raw JSON-RPC out."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.session_endpoint import SessionEndpoint

from .conftest import PATIENCE, Changes, StartHub, local, until_file
from .remote import RemoteServer

Message = dict[str, Any]


class Session:
    """What a Claude Code session does with an endpoint."""

    def __init__(self, hub: Hub, server: str = "x", **options: Any) -> None:
        self.pushed: list[Message] = []
        self._news = asyncio.Event()
        self.endpoint: SessionEndpoint = hub.endpoint(server, self._take, **options)
        self._ids = iter(range(1, 1000))

    def _take(self, message: Message) -> None:
        self.pushed.append(message)
        self._news.set()

    async def send(self, method: str, **params: Any) -> Message:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = await self.endpoint.answer(message)
        assert answer is not None
        assert answer["id"] == message["id"]
        return answer

    async def begin(self, **capabilities: Any) -> Message:
        """As the CLI does it: a probe, then the handshake."""
        probe = await self.send("server/discover")
        assert probe["error"]["code"] == -32601
        answer = await self.send("initialize", protocolVersion="2025-11-25", capabilities=capabilities, clientInfo={})
        assert await self.endpoint.answer({"jsonrpc": "2.0", "method": "notifications/initialized"}) is None
        result: Message = answer["result"]
        return result

    async def call(self, tool: str, meta: Message | None = None, **arguments: Any) -> Message:
        params: Message = {"name": tool, "arguments": arguments}
        return await self.send("tools/call", **params, **({"_meta": meta} if meta else {}))

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.send("tools/list"))["result"]["tools"]]

    async def until(self, wanted: Callable[[Message], bool]) -> Message:
        """The first message pushed that is wanted."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for message in self.pushed:
                    if wanted(message):
                        return message
                self._news.clear()
                await self._news.wait()


def text_in(answer: Message) -> str:
    return "".join(block["text"] for block in answer["result"]["content"])


async def test_a_session_gets_to_know_the_server_and_calls_its_tools(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local(excludeTools=["die"])}))
    greeting = await session.begin()
    assert greeting["protocolVersion"] == "2025-11-25"
    assert greeting["serverInfo"] == {"name": "a-server", "version": "1"}
    assert greeting["capabilities"]["tools"] == {"listChanged": True}
    tools = await session.tools()
    assert "echo" in tools
    assert "die" not in tools
    assert text_in(await session.call("echo", a=None)) == '{"a": null}'


async def test_many_sessions_share_one_process(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    sessions = [Session(hub) for _ in range(20)]
    await asyncio.gather(*(session.begin() for session in sessions))
    answers = await asyncio.gather(*(session.call("pid") for session in sessions))
    assert len({text_in(answer).split()[0] for answer in answers}) == 1


async def test_an_idle_endpoint_needs_no_task(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    await hub.connect()
    before = asyncio.all_tasks()
    sessions = [Session(hub) for _ in range(50)]
    await asyncio.gather(*(session.begin() for session in sessions))
    while passing := asyncio.all_tasks() - before:  # what a new connection does once
        assert (await asyncio.wait(passing, timeout=PATIENCE))[0], passing


async def test_progress_is_pushed_under_the_sessions_own_token(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    first, second = Session(hub), Session(hub)
    await asyncio.gather(
        first.call("progress", meta={"progressToken": "mine"}), second.call("progress", meta={"progressToken": 7})
    )
    last = await first.until(lambda message: message["params"].get("progress") == 3)
    assert last["method"] == "notifications/progress"
    assert last["params"] == {"progressToken": "mine", "progress": 3, "total": 3, "message": "step 3"}
    await second.until(lambda message: message["params"].get("progress") == 3)
    assert {message["params"]["progressToken"] for message in second.pushed} == {7}


async def test_a_cancelled_call_is_cancelled_at_the_server_and_not_answered(
    start_hub: StartHub, tmp_path: Path
) -> None:
    session = Session(await start_hub({"x": local()}))
    note = tmp_path / "note"
    params = {"name": "wait", "arguments": {"note": str(note)}}
    call = asyncio.create_task(
        session.endpoint.answer({"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params})
    )
    await until_file(note, "waiting")
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
    assert await session.endpoint.answer(cancel) is None
    assert await call is None
    await until_file(note, "cancelled")


async def test_a_change_of_the_tools_is_pushed_to_every_session(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    sessions = [Session(hub), Session(hub)]
    for session in sessions:
        await session.begin()
        await session.tools()
    await sessions[0].call("change")
    for session in sessions:
        await session.until(lambda message: message["method"] == "notifications/tools/list_changed")
        assert "new10" in await session.tools()


async def test_new_tools_can_be_read_before_the_call_that_made_them_is_answered(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    await session.begin()
    await session.tools()
    session.pushed.clear()
    order: list[str] = []

    async def call() -> None:
        await session.call("change")
        order.append("called")

    calling = asyncio.create_task(call())
    await session.until(lambda message: message["method"] == "notifications/tools/list_changed")
    listed = await session.endpoint.answer({"jsonrpc": "2.0", "id": 98, "method": "tools/list"})
    order.append("read")
    await calling
    assert "new10" in str(listed)
    assert order == ["read", "called"]


async def test_a_client_that_does_not_read_new_tools_gets_its_results_anyway(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    await session.begin()
    await session.tools()
    for _ in range(3):  # the first waits a second, the others do not
        assert "result" in await session.call("change")


async def test_closed_endpoint_gets_no_messages(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    session = Session(hub)
    await session.begin()
    await session.tools()
    session.endpoint.close()
    session.pushed.clear()
    changes = Changes(hub, "x")
    await hub.call("x", "change")
    await changes.until_seen("tools")
    assert session.pushed == []


async def test_a_dead_server_does_not_keep_a_session_from_starting(start_hub: StartHub) -> None:
    hub = await start_hub({"x": {"command": "no-such-program"}})
    session = Session(hub)
    greeting = await session.begin()
    assert greeting["serverInfo"]["name"] == "x"
    assert await session.tools() == []
    answer = await session.call("echo")
    assert answer["error"]["data"]["code"] == "UPSTREAM_UNAVAILABLE"
    assert "no-such-program" in answer["error"]["message"]


async def test_a_hanging_server_does_not_hold_a_session_up_and_is_announced_when_it_comes(
    start_hub: StartHub, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hub = await start_hub({"x": {"command": "sh", "args": ["-c", _waiting_for(gate), *local()["args"]]}})
    session = Session(hub, timeout=0.1)
    await session.begin()
    assert await session.tools() == []
    gate.touch()
    await session.until(lambda message: message["method"] == "notifications/tools/list_changed")
    assert "echo" in await session.tools()


def _waiting_for(gate: Path) -> str:
    command = local()["command"]
    return f"until [ -e {gate} ]; do sleep 0.05; done; exec {command} $0 $@"


async def test_what_the_server_refuses_is_passed_on(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    answer = await session.call("refuse")
    assert answer["error"] == {"code": -32602, "message": "No such thing", "data": {"hint": "try again"}}
    unknown = await session.send("no/such/method")
    assert unknown["error"]["code"] == -32601


async def test_a_long_result_comes_whole_to_a_session_which_saves_it_itself(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    assert len(text_in(await session.call("big", size=200_000))) == 200_000


async def answer_with(session: Session, name: str) -> None:
    asked = await session.until(lambda message: message["method"] == "elicitation/create")
    result = {"action": "accept", "content": {"name": name}}
    await session.endpoint.answer({"jsonrpc": "2.0", "id": asked["id"], "result": result})


async def test_a_question_in_mid_call_goes_to_the_session_that_called(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    await session.begin(elicitation={})
    answer, _ = await asyncio.gather(session.call("ask"), answer_with(session, "Ada"))
    assert text_in(answer) == '{"action": "accept", "content": {"name": "Ada"}}'


async def test_a_result_that_wants_input_is_asked_for_in_a_session_that_knows_no_such_results(
    start_hub: StartHub,
) -> None:
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": RemoteServer().run})
    session = Session(hub)
    await session.begin(elicitation={})
    answer, _ = await asyncio.gather(session.call("ask"), answer_with(session, "Ada"))
    assert text_in(answer) == "again: accept {'name': 'Ada'}"
    assert "resultType" not in answer["result"]


async def test_session_without_a_person_cancels_the_question(start_hub: StartHub) -> None:
    session = Session(await start_hub({"x": local()}))
    await session.begin()
    assert text_in(await session.call("ask")) == '{"action": "cancel"}'


async def asking(hub: Hub, count: int) -> list[Session]:
    """Sessions whose clients can be asked."""
    sessions = [Session(hub) for _ in range(count)]
    await asyncio.gather(*(session.begin(elicitation={}) for session in sessions))
    return sessions


async def test_ambiguous_question_waits_until_its_call_is_known(start_hub: StartHub, tmp_path: Path) -> None:
    hub = await start_hub({"x": local()})
    first, second = await asking(hub, 2)
    note = tmp_path / "note"
    waiting = asyncio.create_task(second.call("wait", note=str(note)))
    await until_file(note, "waiting")
    call = asyncio.create_task(first.call("ask"))
    third = Session(hub)
    await third.call("echo")  # the question has come by now, and a later call cannot be the one that asks
    assert "elicitation/create" not in [message["method"] for message in first.pushed]
    waiting.cancel()
    await answer_with(first, "Ada")
    assert "Ada" in text_in(await call)
    assert "elicitation/create" not in [message["method"] for message in second.pushed + third.pushed]


async def test_once_a_server_has_asked_each_session_has_a_connection_of_its_own_for_its_questions(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = await start_hub({"x": local()})
    (first,) = await asking(hub, 1)
    await asyncio.gather(first.call("ask"), answer_with(first, "Ada"))
    second, third = await asking(hub, 2)
    note = tmp_path / "note"
    waiting = asyncio.create_task(second.call("wait", note=str(note)))
    await until_file(note, "waiting")
    answer, _ = await asyncio.gather(third.call("ask"), answer_with(third, "Grace"))
    assert "Grace" in text_in(answer)
    assert len({text_in(await each.call("pid")).split()[0] for each in (first, second, third)}) == 3
    waiting.cancel()


async def test_sessions_that_are_asked_at_the_same_time_each_get_their_own_question(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    sessions = await asking(hub, 3)
    names = ["Ada", "Grace", "Edsger"]
    answers = await asyncio.gather(
        *(session.call("ask") for session in sessions),
        *(answer_with(session, name) for session, name in zip(sessions, names, strict=True)),
    )
    for answer, name in zip(answers, names, strict=False):
        assert name in text_in(answer or {})


async def test_a_question_handed_in_takes_precedence_over_the_session(start_hub: StartHub) -> None:
    async def ask(params: Message) -> Message:
        return {"action": "accept", "content": {"name": params["message"]}}

    session = Session(await start_hub({"x": local()}), ask=ask)
    await session.begin(elicitation={})
    assert "Your name?" in text_in(await session.call("ask"))
    assert text_in(await session.call("progress", meta={"progressToken": 1})) == "progress"
    await session.until(
        lambda message: message.get("params", {}).get("progress") == 3
    )  # pushed behind what came before
    assert "elicitation/create" not in [message["method"] for message in session.pushed]
