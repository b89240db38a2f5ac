"""Channels: servers of the hub through which people reach sessions from elsewhere, such as a chat.

Off unless the operator names a server. One that declares `claude/channel` may push messages into a session; one that
declares `claude/channel/permission` is told of open questions and may answer them. The first answer wins, as
everywhere. Whatever comes from a server that was not named is ignored, and written down.
"""

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from .errors import ClaudeCodeError
from .hub.hub import Hub
from .model.audit_events import AuditEvent, AuditKind
from .model.question import Answer, Question, QuestionKind, Resolution
from .model.text import as_json
from .questions.presentation import is_whole, shown_input, without_secrets
from .service import LOCAL, Service
from .sessions.session import Session

log = logging.getLogger(__name__)

MESSAGE = "notifications/claude/channel"
ANSWER = "notifications/claude/channel/permission"
REQUEST = "notifications/claude/channel/permission_request"
_CHANNEL, _PERMISSION = "claude/channel", "claude/channel/permission"
_FRAME = re.compile(r"<(/?channel)", re.IGNORECASE)


class ChannelRelay:
    """One channel of the broker for all servers that may answer, and the way in for messages."""

    name = "channel"

    def __init__(self, messages: Collection[str], permissions: Collection[str]) -> None:
        self._messages = frozenset(messages)
        self._permissions = frozenset(permissions)
        self._service: Service | None = None
        self._hub: Hub | None = None
        self._asked: dict[str, Question] = {}

    def connect(self, service: Service, hub: Hub) -> None:
        """From now on questions go out, and what comes in is heard. The servers are called up for that."""
        self._service, self._hub = service, hub
        service.add_channel(self)
        if self._messages or self._permissions:
            service.start_task(self._call_up(hub))

    async def _call_up(self, hub: Hub) -> None:
        await hub.connect_to(self._messages | self._permissions)

    # -- questions out ----------------------------------------------------------------------------------------

    def offer(self, question: Question) -> None:
        """Only what can be answered with yes or no goes out; a plan and a choice need more than that."""
        if self._service is None or question.kind is not QuestionKind.PERMISSION or not self._permissions:
            return
        self._asked[question.id] = question
        for server in self._permissions:
            self._service.start_task(self._send(server, question))

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self._asked.pop(question.id, None)

    async def _send(self, server: str, question: Question) -> None:
        assert self._service is not None
        assert self._hub is not None
        params = _request(without_secrets(question, self._service.redaction))
        try:
            await self._hub.connect_to([server])
            if question.id in self._asked and self._declares(server, _PERMISSION):
                await self._hub.notify(server, REQUEST, params)
        except ClaudeCodeError as error:
            log.info("the channel %s was not told of %s: %s", server, question.id, error.message)

    def _declares(self, server: str, capability: str) -> bool:
        assert self._hub is not None
        (status,) = self._hub.status(server)
        declared = (status.capabilities or {}).get("experimental")
        return isinstance(declared, Mapping) and capability in declared

    # -- words in ---------------------------------------------------------------------------------------------

    def hear(self, server: str, method: str, params: dict[str, Any]) -> None:
        """A notification of any server of the hub."""
        if self._service is None or method not in (MESSAGE, ANSWER):
            return
        named = self._messages if method == MESSAGE else self._permissions
        capability = _CHANNEL if method == MESSAGE else _PERMISSION
        if server not in named or not self._declares(server, capability):
            self._ignored(server, method)
        elif method == ANSWER:
            self._answer(server, params)
        else:
            self._service.start_task(self._deliver(server, params))

    def _ignored(self, server: str, method: str) -> None:
        assert self._service is not None
        log.warning("%s of %s was ignored: it is not allowed as a channel", method, server)
        self._service.audit(AuditEvent(AuditKind.REFUSED, f"channel:{server}", details={"notification": method}))

    def _answer(self, server: str, params: Mapping[str, Any]) -> None:
        assert self._service is not None
        question = self._asked.get(str(params.get("request_id")))
        behavior = params.get("behavior")
        if question is None or behavior not in ("allow", "deny"):
            log.info("an answer of the channel %s fits no open question", server)
            return
        if behavior == "allow" and not is_whole(without_secrets(question, self._service.redaction)):
            log.warning("%s was not shown whole to the channel %s, which can only deny it", question.id, server)
            return
        answer = Answer(allow=behavior == "allow", message=_words(params.get("message")))
        try:
            self._service.answer_question(question.session_id, question.id, answer, f"channel:{server}")
        except ClaudeCodeError as error:
            log.info("an answer of the channel %s came too late: %s", server, error.message)

    async def _deliver(self, server: str, params: Mapping[str, Any]) -> None:
        assert self._service is not None
        content = _words(params.get("content"))
        target = self._target(params)
        if content is None or target is None:
            log.info("a message of the channel %s has no text, or no session to go to", server)
            return
        try:
            await self._service.send(target.id, _framed(server, content), owner=target.owner)
        except ClaudeCodeError as error:
            log.info("a message of the channel %s was not taken: %s", server, error.message)

    def _target(self, params: Mapping[str, Any]) -> Session | None:
        """The session that the message names, whoever's it is: the operator has named this channel. Without a name, the
        session that the local user used last."""
        assert self._service is not None
        meta = params.get("meta")
        named = meta.get("session_id") if isinstance(meta, Mapping) else None
        if named is None:
            return next(iter(self._service.sessions(owner=LOCAL)), None)
        return next((one for one in self._service.sessions(owner=None) if one.id == named), None)


def _request(question: Question) -> dict[str, Any]:
    """The question with its whole input. What is too large for that says so, and cannot be allowed from here."""
    given, whole = shown_input(question)
    description = question.description
    if not whole:
        description += " [too large to be shown here whole: it can be denied here, and allowed in the MCP client]"
    return {
        "request_id": question.id,
        "tool_name": question.tool_name,
        "description": description,
        "input_preview": as_json(given),
    }


def _framed(server: str, content: str) -> str:
    """The words, so that nothing in them can seem to be outside of the frame."""
    held = _FRAME.sub(r"<_\1", content)
    return f'<channel source="{server}">\n{held}\n</channel>'


def _words(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
