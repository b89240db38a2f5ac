"""The channel: which questions are in Slack, and what becomes of them.

`offer` and `withdraw` note what is to be said, and one task, `send`, says it in order. So the parts of a long question
stand together, its buttons come last, and a question that is settled before its turn is never posted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from claude_code_mcp import (
    Answer,
    AuditEvent,
    AuditKind,
    ClaudeCodeError,
    Question,
    Resolution,
    Service,
    without_secrets,
)

from .messages import (
    Block,
    Press,
    answer_in,
    can_be_allowed,
    closed_blocks,
    messages_of,
    notice_of,
    plain_notice,
    summary,
)
from .slack_api import SlackApi, SlackRefused, SlackUnavailable

log = logging.getLogger(__name__)

_PAUSE = 5.0
"""Seconds before another try, where Slack does not say how long."""
_MAX_REPLIES = 100
"""Replies to presses that wait to be sent; the oldest are dropped."""


@dataclass(slots=True)
class _Post:
    """A question, and how much of it is in Slack."""

    question: Question
    shown: Question
    """The question without secrets."""
    messages: list[list[Block]]
    sent: int = 0
    """How many of the messages are posted."""
    at: tuple[str, str] | None = None
    """The message with the buttons, once it is posted."""
    closed: Block | None = field(default=None)
    """What became of the question, once it is closed."""


class SlackChannel:
    """Questions in a Slack channel, for as long as `send` and `receive` run."""

    name = "slack"

    def __init__(self, service: Service, api: SlackApi, users: frozenset[str]) -> None:
        """`users` are the ids of the people who may answer."""
        self._service = service
        self._api = api
        self._users = users
        self._posts: dict[str, _Post] = {}
        self._replies: deque[Callable[[], Awaitable[Any]]] = deque(maxlen=_MAX_REPLIES)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._closing = False
        self._fails = False

    # -- what the broker says ---------------------------------------------------------------------------------

    def offer(self, question: Question) -> None:
        if self._closing:
            return
        shown = without_secrets(question, self._service.redaction)
        self._posts[question.id] = _Post(question, shown, messages_of(shown))
        self._wake.set()

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self._close(question.id, notice_of(resolution))

    def _close(self, question_id: str, notice: Block) -> None:
        post = self._posts.get(question_id)
        if post is not None and post.closed is None:
            post.closed = notice
            self._wake.set()

    async def close(self) -> None:
        """The server ends: returns when every message says so."""
        self._closing = True
        self._service.broker.remove_channel(self)
        for question_id in self._posts:
            self._close(question_id, plain_notice("The server has ended, and with it this question."))
        self._wake.set()
        while self._posts or self._replies:
            self._idle.clear()
            await self._idle.wait()

    # -- to Slack ---------------------------------------------------------------------------------------------

    async def send(self) -> None:
        """Says everything that is to be said, in order, until it is cancelled."""
        while True:
            # Cleared before the look: what comes meanwhile sets it again.
            self._wake.clear()
            try:
                said = await self._say_next()
                self._fails = False
            except SlackUnavailable as error:
                log.log(logging.DEBUG if self._fails else logging.WARNING, "Slack cannot be reached: %s", error)
                self._fails = True
                await asyncio.sleep(_PAUSE if error.pause is None else error.pause)
                continue
            if not said:
                self._idle.set()
                await self._wake.wait()

    async def _say_next(self) -> bool:
        """Says one thing; whether there was any. What Slack refuses is dropped, and stays open for other channels."""
        if self._replies:
            reply = self._replies[0]
            try:
                await reply()
            except SlackRefused as error:
                log.warning("a press was not answered: %s", error)
            if self._replies and self._replies[0] is reply:
                self._replies.popleft()
            return True
        closed = next((post for post in self._posts.values() if post.closed is not None), None)
        post = closed or next((post for post in self._posts.values() if post.at is None), None)
        if post is None:
            return False
        try:
            if post.closed is not None:
                await self._say_closed(post, post.closed)
                del self._posts[post.question.id]
            else:
                await self._post_next(post)
        except SlackRefused as error:
            log.warning("question %s is not shown in Slack: %s", post.question.id, error)
            del self._posts[post.question.id]
        return True

    async def _post_next(self, post: _Post) -> None:
        """The next message of a question. The buttons are in the last one."""
        at = await self._api.post(post.messages[post.sent], summary(post.shown))
        post.sent += 1
        if post.sent == len(post.messages):
            post.at = at

    async def _say_closed(self, post: _Post, notice: Block) -> None:
        if post.at is not None:
            await self._api.edit(*post.at, closed_blocks(post.messages[-1], notice), summary(post.shown))
        elif post.sent:
            await self._api.post([notice], summary(post.shown))

    # -- from Slack -------------------------------------------------------------------------------------------

    async def receive(self, presses: AsyncIterator[Press]) -> None:
        """Takes presses until it is cancelled."""
        async for press in presses:
            try:
                problem = self._take(press)
            except Exception:
                log.exception("a press on question %s failed", press.question_id)
                problem = "Something went wrong; the question is still open. The server's log has the details."
            if problem:
                self._reply(press, problem)

    def _take(self, press: Press) -> str:
        """Answers the question of a press; what went wrong, in a sentence."""
        if press.user not in self._users:
            self._service.audit(AuditEvent(AuditKind.REFUSED, f"slack:{press.user}", press.session_id))
            return "You may not answer the questions of this server."
        post = self._posts.get(press.question_id)
        if post is None:
            # Left by a server that was killed: there is nothing else that would remove the buttons.
            problem = self._service.broker.why_closed(press.session_id, press.question_id).message
            blocks = closed_blocks(press.blocks, plain_notice("This question is no longer open."))
            self._replies.append(lambda: self._api.edit(press.channel, press.ts, blocks, "Closed"))
            return problem
        try:
            answer = answer_in(press, post.question)
        except (ValueError, IndexError) as error:
            return f"This cannot be taken as an answer: {error}"
        if answer.allow and not can_be_allowed(post.shown):
            return "This question is not shown whole here, so it can only be denied."
        try:
            self._answer(post.question, answer, press.user)
        except ClaudeCodeError as error:  # somebody was faster, or the policy says no
            return error.message
        return ""

    def _answer(self, question: Question, answer: Answer, user: str) -> None:
        if question.of_client:  # asked about a client's own call: it belongs to no session
            self._service.broker.answer(question.session_id, question.id, answer, self.name, user)
            return
        session = self._service.access.known(question.session_id)
        if session is None:
            raise self._service.broker.why_closed(question.session_id, question.id)
        # For the owner: the operator has named the people who may answer here. They are persons, and no programs.
        self._service.respond(
            session.id, question.id, answer, principal=session.owner, by=self.name, client=user, person=True
        )

    def _reply(self, press: Press, text: str) -> None:
        self._replies.append(lambda: self._api.whisper(press.channel, press.user, text))
        self._wake.set()
