"""Channels: hub servers through which people reach sessions from elsewhere, such as a chat.

Off unless the operator names a server. A server that declares `claude/channel` may push messages into a session. A
server that declares `claude/channel/permission` gets the open questions and may answer them; the first answer counts.
Notifications of this kind from any other server are ignored, logged and audited.
"""

import logging
import re
import secrets
from collections.abc import Collection, Mapping
from html import escape
from typing import Any

from ..core.errors import ClaudeCodeError
from ..core.model.caller import LOCAL, Caller
from ..core.model.events import AuditEvent, AuditKind
from ..core.model.question import Answer, Question, QuestionKind, Resolution
from ..core.model.text import as_json
from ..core.questions.presentation import is_whole, shown_input, without_secrets
from ..core.service import Service
from ..core.sessions.session import Session
from .hub import Hub

log = logging.getLogger(__name__)

MESSAGE = "notifications/claude/channel"
ANSWER = "notifications/claude/channel/permission"
REQUEST = "notifications/claude/channel/permission_request"
_CHANNEL, _PERMISSION = "claude/channel", "claude/channel/permission"
_FRAME_TAG = re.compile(r"<(/?channel)", re.IGNORECASE)
_META_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LETTERS = "bcdfghjkmnpqrstvwxz"
"""A request id is five of these letters, because channels look for `[a-km-z]{5}` in people's messages. Without vowels
no id is a word."""


class ChannelRelay:
    """Sends questions to the servers that may answer, and receives answers and messages from them.

    The hub gets `on_notification` when it is created, before there is a service: until `connect` everything is ignored.
    """

    name = "channel"
    _service: Service
    _hub: Hub

    def __init__(self, messages: Collection[str], permissions: Collection[str]) -> None:
        """The names of the servers that may send messages, and of those that may answer questions."""
        self._messages = frozenset(messages)
        self._permissions = frozenset(permissions)
        self._connected = False
        self._offered: dict[str, Question] = {}
        """The open questions by the request id under which servers know them."""

    def connect(self, service: Service, hub: Hub) -> None:
        """Start relaying in both directions, and connect to the servers."""
        self._service, self._hub = service, hub
        # Last: notifications may arrive at any moment from now on.
        self._connected = True
        if self._permissions:
            service.broker.add_channel(self)
        if self._messages or self._permissions:
            service.start_task(self._connect_servers())

    async def _connect_servers(self) -> None:
        await self._hub.connect(names=self._messages | self._permissions)

    # -- questions to servers ---------------------------------------------------------------------------------

    def offer(self, question: Question) -> None:
        """Send only questions that can be answered with yes or no, not plans and choices."""
        if question.kind is not QuestionKind.PERMISSION:
            return
        request_id = ""
        while not request_id or request_id in self._offered:
            request_id = "".join(secrets.choice(_LETTERS) for _ in range(5))
        # Before sending: a server may answer before the others have received the question.
        self._offered[request_id] = question
        for server in self._permissions:
            self._service.start_task(self._send(server, request_id, question))

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        """Forget the question. Servers are not notified; a later answer matches no question."""
        self._offered = {key: offered for key, offered in self._offered.items() if offered.id != question.id}

    async def _send(self, server: str, request_id: str, question: Question) -> None:
        params = _request(request_id, without_secrets(question, self._service.redaction))
        try:
            await self._hub.connect(names=[server])
            # Connecting takes a while: the question may have been answered.
            if request_id in self._offered and self._declares(server, _PERMISSION):
                await self._hub.notify(server, REQUEST, params)
        except ClaudeCodeError as error:
            log.info("could not notify the channel %s of %s: %s", server, question.id, error.message)

    def _declares(self, server: str, capability: str) -> bool:
        (status,) = self._hub.status(server)
        experimental = (status.capabilities or {}).get("experimental")
        return isinstance(experimental, Mapping) and capability in experimental

    # -- notifications from servers ---------------------------------------------------------------------------

    def on_notification(self, server: str, method: str, params: dict[str, Any]) -> None:
        """Handle the two kinds of notifications that channels send; all others are ignored."""
        if not self._connected or method not in (MESSAGE, ANSWER):
            return
        allowed = self._messages if method == MESSAGE else self._permissions
        capability = _CHANNEL if method == MESSAGE else _PERMISSION
        # The operator must allow it and the server must declare it: otherwise any server could act in a person's name.
        if server not in allowed or not self._declares(server, capability):
            log.warning("%s of %s was ignored: it is not allowed as a channel", method, server)
            self._service.audit(AuditEvent(AuditKind.REFUSED, f"channel:{server}", details={"notification": method}))
        elif method == ANSWER:
            self._answer(server, params)
        else:
            self._service.start_task(self._deliver(server, params))

    def _answer(self, server: str, params: Mapping[str, Any]) -> None:
        question = self._offered.get(str(params.get("request_id")).lower())
        behavior = params.get("behavior")
        if question is None or behavior not in ("allow", "deny"):
            log.info("an answer from the channel %s matches no open question", server)
            return
        # Allowing requires that all of it was shown; denying needs only the description.
        if behavior == "allow" and not is_whole(without_secrets(question, self._service.redaction)):
            log.warning("the channel %s was not shown all of question %s and can only deny it", question.id, server)
            return
        answer = Answer(allow=behavior == "allow", message=_text(params.get("message")))
        asking, by = self._service.access.known(question.session_id), f"channel:{server}"
        try:
            if asking is None:  # a client's own call to the hub, without a session
                self._service.broker.answer(question.session_id, question.id, answer, by)
            else:
                # The operator has named this channel: it answers for the owner, and vouches for a person.
                self._service.respond(asking.id, question.id, answer, principal=asking.owner, by=by, person=True)
        except ClaudeCodeError as error:
            log.info("an answer from the channel %s was rejected: %s", server, error.message)

    async def _deliver(self, server: str, params: Mapping[str, Any]) -> None:
        content = _text(params.get("content"))
        target = self._target(params)
        if content is None or target is None:
            log.info("a message from the channel %s has no text or no target session", server)
            return
        try:
            framed = _framed(server, content, params.get("meta"))
            await self._service.send(target.id, framed, caller=Caller(target.owner))
        except ClaudeCodeError as error:
            log.info("a message from the channel %s was rejected: %s", server, error.message)

    def _target(self, params: Mapping[str, Any]) -> Session | None:
        """The session that the message names, of any owner: the operator has named this channel. Without a name, the
        session that the local user used last."""
        meta = params.get("meta")
        session_id = meta.get("session_id") if isinstance(meta, Mapping) else None
        if session_id is None:
            return next(iter(self._service.sessions(principal=LOCAL)), None)
        return next((session for session in self._service.sessions(principal=None) if session.id == session_id), None)


def _request(request_id: str, question: Question) -> dict[str, Any]:
    """The question with its complete input. If that is too long, the text says so, and the question can only be denied
    through this channel."""
    tool_input, whole = shown_input(question)
    description = question.description
    if not whole:
        description += " [too long to be shown here in full: you can deny it here; allow it in the MCP client]"
    return {
        "request_id": request_id,
        "tool_name": question.tool_name,
        "description": description,
        "input_preview": as_json(tool_input),
    }


def _framed(server: str, content: str, meta: object) -> str:
    """The message in a frame that says where it is from, as Claude Code frames it, with the server's metadata
    (`chat_id`, `message_id`, `file_path`). Tags in the message are escaped, so that it cannot break out of the
    frame."""
    attributes: dict[str, object] = {"source": server}
    for key, value in meta.items() if isinstance(meta, Mapping) else ():
        # Anything but a name could end the tag, and we set `source`.
        is_name = isinstance(key, str) and key != "source" and _META_KEY.fullmatch(key) is not None
        if is_name and isinstance(value, str | int | float):
            attributes[key] = value
    frame = ""
    for key, value in attributes.items():
        escaped = escape(str(value), quote=False).replace('"', "&quot;").replace("\n", "&#10;").replace("\r", "&#13;")
        frame += f' {key}="{escaped}"'
    defused = _FRAME_TAG.sub(r"<_\1", content)
    return f"<channel{frame}>\n{defused}\n</channel>"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
