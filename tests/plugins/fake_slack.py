"""A small Slack on loopback: the calls and the socket that the Slack plug-in uses, and people who press buttons.

It refuses what Slack refuses: wrong tokens, messages beyond Slack's limits, blocks of the same name.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.support.local_http import serving
from tests.support.waiting import until_true

BOT, APP = "xoxb-of-the-tests", "xapp-of-the-tests"
CHANNEL, ANN, EVE = "C0CHANNEL", "U0ANN", "U0EVE"
SETTINGS = {
    "CLAUDE_CODE_MCP_SLACK_BOT_TOKEN": BOT,
    "CLAUDE_CODE_MCP_SLACK_APP_TOKEN": APP,
    "CLAUDE_CODE_MCP_SLACK_CHANNEL": CHANNEL,
    "CLAUDE_CODE_MCP_SLACK_USERS": ANN,
}
"""Without the address, which each fake has for itself."""
_LIMITS = {"section": 3000, "button": 75, "label": 2000, "option": 75}
_MAX_BLOCKS = 50
_MAX_VALUE = 2000


@dataclass
class Posted:
    """A message in the channel."""

    ts: str
    blocks: list[dict[str, Any]]
    edits: int = 0

    @property
    def text(self) -> str:
        """What a reader sees above the buttons."""
        return "".join(block["text"]["text"] for block in self.blocks if block["type"] == "section")

    @property
    def notices(self) -> str:
        return "\n".join(
            part["text"] for block in self.blocks if block["type"] == "context" for part in block["elements"]
        )

    @property
    def buttons(self) -> dict[str, str]:
        """The labels by action."""
        return {
            button["action_id"]: button["text"]["text"]
            for block in self.blocks
            if block["type"] == "actions"
            for button in block["elements"]
        }


@dataclass
class FakeSlack:
    """What was said in it, and what people do."""

    address: str = ""
    messages: list[Posted] = field(default_factory=list)
    whispers: list[tuple[str, str]] = field(default_factory=list)
    """To whom, and what."""
    failures: list[int] = field(default_factory=list)
    """The status codes that the next calls meet."""
    calls: int = 0
    acknowledged: list[str] = field(default_factory=list)
    _sockets: list[WebSocket] = field(default_factory=list)
    connections: int = 0

    @property
    def asking(self) -> list[Posted]:
        """The messages with buttons."""
        return [message for message in self.messages if message.buttons]

    async def question(self, count: int = 1) -> Posted:
        """The newest message with buttons, once there are so many."""
        await until_true(lambda: len(self.asking) >= count, "no message has buttons")
        return self.asking[-1]

    async def press(
        self,
        message: Posted,
        action: str,
        user: str = ANN,
        values: Mapping[str, Any] | None = None,
        blocks: list[dict[str, Any]] | None = None,
    ) -> None:
        """Somebody presses a button; returns when the plug-in has acknowledged it."""
        await until_true(lambda: self._sockets, "no socket is open")
        blocks = blocks or message.blocks
        (value,) = {button["value"] for block in blocks if block["type"] == "actions" for button in block["elements"]}
        envelope = f"e{len(self.acknowledged)}-{action}"
        payload = {
            "type": "block_actions",
            "user": {"id": user, "username": "name"},
            "channel": {"id": CHANNEL},
            "message": {"ts": message.ts, "blocks": blocks},
            "state": {"values": {block: {"value": state} for block, state in (values or {}).items()}},
            "actions": [{"action_id": action, "block_id": "buttons", "value": value}],
        }
        await self._sockets[-1].send_json({"type": "interactive", "envelope_id": envelope, "payload": payload})
        await until_true(lambda: envelope in self.acknowledged, "the press was not acknowledged")

    async def cut_off(self) -> None:
        """Slack ends the connection, as it does every few hours."""
        await until_true(lambda: self._sockets, "no socket is open")
        await self._sockets[-1].send_json({"type": "disconnect", "reason": "refresh_requested"})

    # -- its API ----------------------------------------------------------------------------------------------

    async def call(self, request: Request) -> Response:
        self.calls += 1
        if self.failures:
            return Response(status_code=self.failures.pop(0), headers={"Retry-After": "0"})
        method = request.path_params["method"]
        wanted = APP if method == "apps.connections.open" else BOT
        if request.headers.get("Authorization") != f"Bearer {wanted}":
            return JSONResponse({"ok": False, "error": "invalid_auth"})
        body = await request.body()
        given = json.loads(body) if body else {}
        if error := _error_in(given):
            return JSONResponse({"ok": False, "error": error})
        return JSONResponse({"ok": True, **self._results(method, given)})

    def _results(self, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if method == "apps.connections.open":
            return {"url": self.address.replace("http:", "ws:") + "/socket"}
        if method == "chat.postEphemeral":
            (block,) = given["blocks"]
            self.whispers.append((given["user"], block["text"]["text"]))
        if method == "chat.postMessage":
            assert given["unfurl_links"] is given["unfurl_media"] is False
            self.messages.append(Posted(f"{len(self.messages)}.0", given["blocks"]))
            return {"channel": given["channel"], "ts": self.messages[-1].ts}
        if method == "chat.update":
            known = [message for message in self.messages if message.ts == given["ts"]]
            message = known[0] if known else Posted(given["ts"], [])
            if not known:
                self.messages.append(message)
            message.blocks = given["blocks"]
            message.edits += 1
        return {}

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_json({"type": "hello"})
        self._sockets.append(socket)
        self.connections += 1
        try:
            while True:
                self.acknowledged.append((await socket.receive_json())["envelope_id"])
        except WebSocketDisconnect:
            pass
        finally:
            self._sockets.remove(socket)


def _error_in(given: Mapping[str, Any]) -> str:
    """Why Slack would not take a message; empty if it would."""
    blocks = given.get("blocks", [])
    names = [block["block_id"] for block in blocks if "block_id" in block]
    texts = [("section", block["text"]["text"]) for block in blocks if block["type"] == "section"]
    for block in blocks:
        if block["type"] == "actions":
            texts += [("button", button["text"]["text"]) for button in block["elements"]]
            if any(len(button["value"]) > _MAX_VALUE for button in block["elements"]):
                return "invalid_blocks"
        if block["type"] == "input":
            texts.append(("label", block["label"]["text"]))
            texts += [("option", option["text"]["text"]) for option in block["element"].get("options", [])]
    fits = all(0 < len(text) <= _LIMITS[kind] for kind, text in texts)
    return "" if fits and len(blocks) <= _MAX_BLOCKS and len(names) == len(set(names)) else "invalid_blocks"


@asynccontextmanager
async def fake_slack() -> AsyncIterator[FakeSlack]:
    """A Slack in this loop."""
    slack = FakeSlack()
    app = Starlette(
        routes=[
            Route("/api/{method}", slack.call, methods=["POST"]),
            WebSocketRoute("/socket", slack.socket),
        ]
    )
    async with serving(app, ws="websockets-sansio") as address:
        slack.address = address
        try:
            yield slack
        finally:
            await asyncio.gather(*(socket.close() for socket in [*slack._sockets]), return_exceptions=True)
