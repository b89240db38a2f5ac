"""The two ways to Slack: calls of its web API, and presses by Socket Mode."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import httpx2
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from .messages import Press
from .settings import SlackSettings

log = logging.getLogger(__name__)

_TIMEOUT = 15.0
_PAUSES = (0.1, 1.0, 4.0, 15.0, 60.0)
"""Seconds before each try to connect again."""
_MAX_FRAME = 1 << 20
_MAX_WHISPER = 1500
_OK = 200
_TOO_MANY = 429
_SERVER_ERROR = 500


class SlackRefused(Exception):
    """Slack understood the call and refused it; another try would not help."""


class SlackUnavailable(Exception):
    """The call may succeed later: after `pause` seconds, if Slack says so."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class SlackApi:
    """Calls of Slack's web API, within `async with`."""

    def __init__(self, settings: SlackSettings) -> None:
        self._settings = settings
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def post(self, blocks: list[dict[str, Any]], text: str) -> tuple[str, str]:
        """Posts a message; its channel and time, by which it is edited. Raises SlackRefused or SlackUnavailable, as the
        other calls do."""
        reply = await self._call("chat.postMessage", channel=self._settings.slack_channel, blocks=blocks, text=text)
        return str(reply["channel"]), str(reply["ts"])

    async def edit(self, channel: str, ts: str, blocks: list[dict[str, Any]], text: str) -> None:
        """Replaces a message."""
        await self._call("chat.update", channel=channel, ts=ts, blocks=blocks, text=text)

    async def whisper(self, channel: str, user: str, text: str) -> None:
        """Tells one person something that the others do not see."""
        blocks = [{"type": "section", "text": {"type": "plain_text", "text": text[:_MAX_WHISPER], "emoji": False}}]
        await self._call("chat.postEphemeral", channel=channel, user=user, blocks=blocks, text="Your answer")

    async def presses(self) -> AsyncIterator[Press]:
        """Every button that is pressed, until it is closed. Connects again whenever the connection ends."""
        failures = 0
        while True:
            try:
                url = await self._socket()
                async with connect(url, max_size=_MAX_FRAME, open_timeout=_TIMEOUT) as socket:
                    async for frame in socket:
                        message = _json(frame)
                        if message.get("type") == "hello":
                            failures = 0
                        elif message.get("type") == "disconnect":
                            break  # Slack announces that it ends the connection
                        if "envelope_id" in message:
                            await socket.send(json.dumps({"envelope_id": message["envelope_id"]}))
                        press = Press.read(message.get("payload"))
                        if press is not None:
                            yield press
            except (SlackRefused, SlackUnavailable, WebSocketException, OSError) as error:
                # Logged once for each outage, however long it takes.
                log.log(logging.WARNING if failures == 0 else logging.DEBUG, "no presses come from Slack: %s", error)
            await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1

    async def _socket(self) -> str:
        token = self._settings.slack_app_token
        assert token is not None
        return str((await self._call("apps.connections.open", token=token.get_secret_value()))["url"])

    async def _call(self, method: str, *, token: str | None = None, **arguments: Any) -> Mapping[str, Any]:
        if token is None:
            assert self._settings.slack_bot_token is not None
            token = self._settings.slack_bot_token.get_secret_value()
        if "text" in arguments:
            # Slack must not open the addresses in what sessions ask.
            arguments |= {"unfurl_links": False, "unfurl_media": False}
        try:
            reply = await self._client.post(
                f"{self._settings.slack_api}/{method}", json=arguments, headers={"Authorization": f"Bearer {token}"}
            )
        except httpx2.HTTPError as error:
            raise SlackUnavailable(f"{method}: {type(error).__name__}: {error}") from None
        return _result(method, reply)


def problem_with(settings: SlackSettings) -> str:
    """What is wrong with the tokens, in a sentence; empty if Slack takes both. Blocks on the network."""
    tokens = {"auth.test": settings.slack_bot_token, "apps.connections.open": settings.slack_app_token}
    with httpx2.Client(timeout=_TIMEOUT) as client:
        for method, token in tokens.items():
            assert token is not None
            headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
            try:
                _result(method, client.post(f"{settings.slack_api}/{method}", headers=headers))
            except (SlackRefused, SlackUnavailable, httpx2.HTTPError) as error:
                return str(error) or type(error).__name__
    return ""


def _result(method: str, reply: httpx2.Response) -> Mapping[str, Any]:
    if reply.status_code == _TOO_MANY or reply.status_code >= _SERVER_ERROR:
        pause = reply.headers.get("Retry-After", "")
        raise SlackUnavailable(f"{method}: HTTP {reply.status_code}", float(pause) if pause.isdecimal() else None)
    result = _json(reply.content)
    if reply.status_code != _OK or result.get("ok") is not True:
        raise SlackRefused(f"{method}: {result.get('error') or f'HTTP {reply.status_code}'}")
    return result


def _json(data: str | bytes) -> Mapping[str, Any]:
    """The object in a JSON text; empty if there is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, Mapping) else {}
