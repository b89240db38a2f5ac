"""Updates from the server: the list of sessions, open questions, and the conversation on the screen.

The list and the conversation each have a loop that waits for reported changes. A conversation is read again after the
last answer was drawn, at most `FRAMES` times a second: everything streamed meanwhile arrives together.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ...client.connections import CallFailed, NotRunning
from ...client.live_sessions import LiveSessions, OpenQuestion, OpenQuestions, Report
from ...core.sessions.stored.session_row import SessionRow
from .blocks import ShownConversation
from .server_link import ServerLink

FRAMES = 25
_LISTED_AGAIN = 5.0
"""Seconds after which the list is read without a reported change, because ages and costs grow."""
_LISTED_WITHOUT_WORD = 1.5
"""The same if the server reports no changes."""
_CALM = 0.2
_AFTER_FAILURE = 1.0
_WAIT = 20
_LIST = "claude-sessions:///"
_MAX_PAGES = 50
_MIN_SEARCH = 2


WHOLE = "~"


def sought(wanted: str) -> str:
    """The text that a filter searches for."""
    return wanted.removeprefix(WHOLE).strip()


class Listener(Protocol):
    """The drawing side of the application, notified of changes."""

    def list_changed(self) -> None: ...

    def conversation_opened(self) -> None:
        """Another conversation is followed, or the same one again."""

    def conversation_changed(self) -> None: ...

    def questions_changed(self) -> None: ...

    def question_closed(self, asked: OpenQuestion, how: str) -> None:
        """A question was answered elsewhere."""

    def show_problem(self, problem: str) -> None: ...


@dataclass(frozen=True, slots=True)
class QuestionAtPosition:
    """An open question, and the position in the session's log at which it was open."""

    asked: OpenQuestion
    cursor: str | None


class Pump:
    """Runs the loops and holds their data."""

    def __init__(self, link: ServerLink, listener: Listener) -> None:
        self._link = link
        self._listener = listener
        self._list_changed = asyncio.Event()
        self._grown = asyncio.Event()
        """Whether another program has extended the shown transcript."""
        self.live: list[SessionRow] = []
        self.stored: list[SessionRow] = []
        self.wanted = ""
        """The filter text of the session list; after `~`, a text to search for in whole conversations."""
        self.found: tuple[str, frozenset[str]] = ("", frozenset())
        """The last server search, and the sessions it found."""
        self.questions: dict[str, QuestionAtPosition] = {}
        self.answered: set[str] = set()
        """Questions answered here."""
        self.conversation: ShownConversation | None = None
        self.is_listed = False
        self._subscribed: str | None = None
        """The subscribed resource of the followed session."""

    def resource_changed(self, uri: str) -> None:
        """A resource has changed."""
        if uri == _LIST:
            self._list_changed.set()
        elif self.conversation is not None and uri == _turns(self.conversation.session_id):
            self._grown.set()

    @property
    def progress(self) -> int:
        """Grows with every event of the shown conversation."""
        return self.conversation.revision if self.conversation is not None else 0

    def list_again(self) -> None:
        self._list_changed.set()

    async def follow_list(self) -> None:
        """Reads the list of sessions and open questions, now and after every change, until cancelled."""
        while True:
            # Before reading: a change during the read triggers another read.
            self._list_changed.clear()
            try:
                await self._read_list()
            except (CallFailed, NotRunning) as error:
                self._listener.show_problem(str(error))
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LISTED_AGAIN if self._link.has_notifications else _LISTED_WITHOUT_WORD):
                    await self._list_changed.wait()
            await asyncio.sleep(_CALM)

    async def connected(self) -> None:
        """Connected again: subscribes to changes of the list."""
        with contextlib.suppress(CallFailed, NotRunning):
            if self._link.has_notifications:
                await self._link.do(lambda sessions: sessions.resources.subscribe(_LIST))
        self._list_changed.set()

    async def _read_list(self) -> None:
        wanted = self.wanted
        text, whole = sought(wanted), wanted.startswith(WHOLE)
        text = text if len(text) >= _MIN_SEARCH else ""
        self.live, self.stored = await self._link.do(
            lambda sessions: (sessions.live(), sessions.stored(text, whole=whole))
        )
        self.found = (wanted, frozenset(row.session_id for row in self.stored) if text else frozenset())
        self.is_listed = True
        self._listener.list_changed()
        asking = [session for session in self.live if session.asks]
        await self._take_questions(await self._link.do(partial(_questions, asking=asking)) if asking else {})

    async def _take_questions(self, found: dict[str, QuestionAtPosition]) -> None:
        gone = [known for question_id, known in self.questions.items() if question_id not in found]
        changed = found.keys() != self.questions.keys()
        # Before any await: the next check compares with these, and no question is reported as closed twice.
        self.questions = found
        for known in gone:
            if known.asked.id not in self.answered:
                how = await self._how_closed(known)
                self._listener.question_closed(known.asked, how)
        if changed:
            self._listener.questions_changed()

    async def _how_closed(self, known: QuestionAtPosition) -> str:
        asked = known.asked
        try:
            return await self._link.do(
                lambda sessions: OpenQuestions(sessions).closure(asked.session.session_id, asked.id, known.cursor)
            )
        except (CallFailed, NotRunning):
            return ""

    def open_questions(self) -> list[OpenQuestion]:
        """The open questions that were not answered here, oldest first."""
        return [known.asked for known in self.questions.values() if known.asked.id not in self.answered]

    async def follow(self, session_id: str | None) -> None:
        """Shows a session and follows it until cancelled; None: a new session."""
        if session_id is None:
            self.conversation = None
            self._listener.conversation_opened()
            await self._unsubscribe()
            return
        conversation = self._begin(session_id)
        await self._unsubscribe()
        wait, has_history = 0, False
        while True:
            try:
                if self._subscribed is None:
                    await self._subscribe(conversation)
                read = partial(_feed, session_id=conversation.session_id, cursor=conversation.cursor)
                page = await self._link.do(partial(read, wait=wait))
                if page.get("restarted"):
                    conversation, has_history = self._begin(page["sessionId"]), False
                conversation.fold(page)
                if not has_history:
                    await self.load_older(conversation)
                    has_history = True
                self._listener.conversation_changed()
                self._notice_questions(conversation.summary.get("questions") or ())
                wait = _WAIT
                await asyncio.sleep(1 / FRAMES)
            except CallFailed as error:
                self._listener.show_problem(str(error))
                await asyncio.sleep(_AFTER_FAILURE)
            except NotRunning:
                # The next server does not know the subscription.
                self._subscribed = None
                await asyncio.sleep(_CALM)

    def _begin(self, session_id: str) -> ShownConversation:
        self.conversation = ShownConversation(session_id)
        self._listener.conversation_opened()
        return self.conversation

    async def _subscribe(self, conversation: ShownConversation) -> None:
        # Before the await: a task that is cancelled meanwhile leaves a subscription that can be ended.
        self._subscribed = _turns(conversation.session_id)
        uri = self._subscribed
        await self._link.connected()
        if self._link.has_notifications:
            with contextlib.suppress(CallFailed):
                await self._link.do(lambda sessions: sessions.resources.subscribe(uri))

    async def _unsubscribe(self) -> None:
        """Ends the subscription to the previous session, because the user may go through many."""
        uri, self._subscribed = self._subscribed, None
        if uri is not None and self._link.has_notifications:
            with contextlib.suppress(CallFailed, NotRunning):
                await self._link.do(lambda sessions: sessions.resources.unsubscribe(uri))

    def _notice_questions(self, open_ids: Iterable[str]) -> None:
        """New and closed questions change the list too."""
        of_session = {
            question_id
            for question_id, known in self.questions.items()
            if self.conversation is not None and known.asked.session.session_id == self.conversation.session_id
        }
        if {*open_ids} != of_session:
            self._list_changed.set()

    async def follow_growth(self) -> None:
        """Reads the end of the transcript again when another program extends it."""
        while True:
            await self._grown.wait()
            # Before reading: an entry written during the read is found in the next round.
            self._grown.clear()
            conversation = self.conversation
            # For a turn that the server runs, the feed has everything.
            if conversation is not None and (conversation.in_terminal or not conversation.busy):
                with contextlib.suppress(CallFailed, NotRunning):
                    page = await self._link.do(partial(_items, session_id=conversation.session_id))
                    conversation.add_newer(page["items"])
                    self._listener.conversation_changed()
            await asyncio.sleep(_CALM)

    async def load_older(self, conversation: ShownConversation) -> int:
        """Reads a page before the oldest block; returns the number of new blocks."""
        before, oldest = conversation.previous, conversation.first_id if conversation.has_older else ""
        for _ in range(_MAX_PAGES):
            try:
                read = partial(_items, session_id=conversation.session_id, before=before)
                page = await self._link.do(read)
            except CallFailed:
                return 0  # it has no content yet
            items, before = page["items"], page["previous"]
            if oldest and conversation.previous is None:
                # Older blocks were dropped: search the pages from the end for the one with the oldest block.
                numbers = [number for number, item in enumerate(items) if item.get("id") == oldest]
                if not numbers and before is not None:
                    continue
                items = items[: numbers[0]] if numbers else items
            return conversation.add_history(items, before)
        return 0


def _feed(sessions: LiveSessions, **wanted: Any) -> Report:
    return sessions.resources.feed(**wanted)


def _items(sessions: LiveSessions, **wanted: Any) -> Report:
    return sessions.resources.items(**wanted)


def _questions(sessions: LiveSessions, asking: list[SessionRow]) -> dict[str, QuestionAtPosition]:
    """The complete open questions of these sessions."""
    found: dict[str, QuestionAtPosition] = {}
    for session in asking:
        try:
            report = sessions.status(session.session_id, outputLines=0)
            for asked in OpenQuestions(sessions).within(report, session):
                found[asked.id] = QuestionAtPosition(asked, report.get("nextCursor"))
        except CallFailed:
            continue  # it ended meanwhile
    return found


def _turns(session_id: str) -> str:
    return f"claude-session:///{session_id}/turns"
