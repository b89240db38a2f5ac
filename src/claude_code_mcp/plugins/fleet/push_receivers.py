"""The notification receivers of a fleet's users, and how a machine sends notifications to them.

Receivers are in a bucket that gateways read and machines cannot: any gateway shows and changes them, and a machine that
was away misses nothing. The data that makes a receiver usable (its address, keys and tokens) is sealed there for the
gateway at which it was registered. That gateway sends, and no other part needs this data. A machine asks the keeper
whether any user wants notifications about a session that it holds, keeps each notice on its own disk until it is
delivered (`plugins/push/delivery.py`), and asks the keeper to make each attempt. The receivers are looked up at every
attempt: a removed receiver gets no more notices. A notice has the same id in every attempt, and a gateway sends it
once.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from nacl.public import PrivateKey
from pydantic import ValidationError

from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, RateLimited, UpstreamUnavailable
from ...core.model.caller import LOCAL, LOCAL_CALLER
from ...core.model.question import Question
from ...core.model.text import clip_line
from ...core.rate_limit import MinuteLimit
from ...core.service import Service
from ..push.interface import (
    ALL_NEWS,
    DerivedKey,
    Notice,
    Preferences,
    Push,
    PushReply,
    Receiver,
    SendFailed,
    Status,
    has_ended,
    is_installed,
    new_id,
    post,
    preferences_in,
    request_for,
    trial_notice,
    without_receiver,
)
from . import names
from .connection import FleetConnection
from .keeper import KeeperOwnership, NotAddressed, Verb, key_id, open_sealed, seal_for
from .nats_client import KeyNotFoundError, KeyValue, KeyWrongLastSequenceError
from .ownership import OwnershipBucket

log = logging.getLogger(__name__)

_CLEAR = ("id", "kind", "device", "created_at")
"""The unencrypted fields of a receiver. All others are sealed, including those specific to a kind."""
_ATTEMPTS = 8
_AT_ONCE = 4
"""Concurrent requests to one receiver. Counted per receiver, so that one that hangs does not delay others."""
_MAX_PER_MINUTE = 60
"""Maximum notifications per minute to one receiver: a machine whose key was stolen can forge any number."""
_MAX_SENT = 10_000
"""Deliveries to remember, so that one whose answer was lost is not repeated."""
_PUSH_SECONDS = 30.0
"""Seconds within which the keeper answers an attempt; longer than one takes."""
_MAX_TITLE = 80
_MAX_BODY = 300
_MAX_AHEAD = 7 * 86_400.0
_KINDS = frozenset({"question", "ended", "stalled"})
_OF_NO_SESSION = frozenset({"budget"})


class FleetReceivers:
    """The receivers of a fleet's users, for one gateway and its keeper: `ReceiverBook` of
    `plugins/push/push_routes.py`. Methods raise UpstreamUnavailable for damaged data, and NATS errors."""

    def __init__(self, connection: FleetConnection, ownership: OwnershipBucket, seed: str) -> None:
        """`seed` is the operator key's secret, from which the key for sealed receivers and the key that identifies this
        gateway to push services are derived."""
        self._connection = connection
        self._ownership = ownership
        self._secret = PrivateKey(hmac.digest(seed.encode(), b"claude-code-mcp: push receivers", "sha256"))
        self._vapid = DerivedKey(seed.encode())
        self.base = ""
        """The address of the page that notifications link to."""
        self.knows: Callable[[str], bool] | None = None
        """Whether a principal may still sign in: removed principals get no notifications. None until there is a
        console, which knows; until then nothing is sent, and machines retry."""
        self.private: Collection[str] = ()
        """Principals whose receivers may be in private networks of this machine."""
        self._status: dict[str, Status] = {}
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By receiver, while something is being sent to it."""
        self._notices = MinuteLimit(
            lambda _: _MAX_PER_MINUTE, sentence="One receiver gets at most {most} notifications per minute"
        )
        self._sending: OrderedDict[tuple[str, str], asyncio.Task[PushReply]] = OrderedDict()
        """By receiver and delivery: in progress or done. Failed attempts are removed."""

    # -- for people -----------------------------------------------------------------------------------------------

    async def read(self, principal: str) -> Preferences:
        """A principal's preferences. Of another gateway's receiver, only the gateway is known."""
        return self._preferences(principal, (await self._document(principal))[0])

    async def update(self, principal: str, change: Callable[[Preferences], Preferences]) -> Preferences:
        """Changes the preferences by compare-and-swap, so that two gateways do not overwrite each other. Raises
        whatever `change` raises."""
        bucket = await self._bucket()
        for _ in range(_ATTEMPTS):
            document, revision = await self._document(principal)
            changed = change(self._preferences(principal, document))
            rows = {row["id"]: row for row in (document or {}).get("receivers", ())}
            kept = changed.model_dump(mode="json", by_alias=True, exclude={"receivers"})
            # Receivers of other gateways stay unchanged: only their own gateway can seal them.
            kept["receivers"] = [rows.get(each.id) or self._sealed_row(principal, each) for each in changed.receivers]
            try:
                await bucket.update(_key(principal), json.dumps(kept).encode(), last=revision)
            except KeyWrongLastSequenceError:
                continue  # another gateway was faster: read its change first
            return changed
        raise UpstreamUnavailable("Your receivers keep changing and were not saved; try again.")

    def forget(self, _principal: str, receiver_id: str) -> None:
        """Removes a receiver. Notifications queued for it at a machine end with their next attempt."""
        self._status.pop(receiver_id, None)

    def may_reach_private(self, principal: str) -> bool:
        return principal == LOCAL or principal in self.private

    def status(self, receiver_id: str) -> Status:
        return self._status.get(receiver_id, Status())

    async def vapid_key(self) -> str | None:
        return self._vapid.public if is_installed() else None

    async def try_out(self, principal: str, receiver: Receiver) -> str | None:
        """Sends a notification now; returns the problem, or None."""
        document, _ = await self._document(principal)
        row = next((row for row in (document or {}).get("receivers", ()) if row["id"] == receiver.id), None)
        if row is None or not self._is_ours(row):
            return "it was registered on another gateway, which sends to it"
        try:
            reply = await self._send(principal, receiver, self.base, trial_notice(time.time()), new_id())
        except SendFailed as error:
            return str(error)
        return None if reply.ok else f"it answered {reply.status}"

    # -- for machines ---------------------------------------------------------------------------------------------

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """Requests that any keeper answers."""
        return {"receivers": self._chosen}

    @property
    def verbs_for_all(self) -> Mapping[str, Verb]:
        """Requests that every keeper receives and only the responsible one answers."""
        return {"push": self._push}

    async def _principal(self, machine_id: str, arguments: Mapping[str, Any]) -> str:
        """The principal of a session or budget. A session is looked up: PermissionDenied unless the machine holds it.
        For a budget, which belongs to no session, the machine's claim counts."""
        session_id = str(arguments["session_id"])
        if not session_id:
            return str(arguments["principal"])
        found = await self._ownership.read(names.token(session_id))
        if found is None or found.machine != machine_id:
            raise PermissionDenied(f"Machine {machine_id} does not hold session {session_id}.")
        return found.principal

    async def _chosen(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        principal = await self._principal(machine_id, arguments)
        chosen = await self.read(principal)
        fields = chosen.model_dump(mode="json", by_alias=True, include={"events", "chosen_from", "quiet_hours"})
        return {**fields, "receivers": [{"id": each.id, "kind": each.kind} for each in chosen.receivers]}

    async def _push(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        session_id = str(arguments["session_id"])
        principal = await self._principal(machine_id, arguments)
        notice, delivery_id = _notice_in(arguments["notice"], session_id), names.token(str(arguments["delivery"]))
        document, _ = await self._document(principal)
        row = next((row for row in (document or {}).get("receivers", ()) if row["id"] == arguments["receiver"]), None)
        if row is None:
            return {"status": 410}
        if not self._is_ours(row):
            raise NotAddressed
        if self.knows is None:
            raise UpstreamUnavailable("The gateway of this receiver has no console yet.")
        if not self.knows(principal):
            return {"status": 403}
        receiver = Receiver.model_validate(self._opened_row(principal, row))
        key = (receiver.id, delivery_id)
        if key not in self._sending:
            try:
                self._notices.take(receiver.id)
            except RateLimited as limited:
                return {"status": 429, "retry_after": limited.retry_after}
            work = self._send(principal, receiver, str(row.get("base") or self.base), notice, delivery_id)
            trying = self._sending[key] = asyncio.ensure_future(work)
            trying.add_done_callback(partial(self._tried, key))
            while len(self._sending) > _MAX_SENT:
                self._sending.popitem(last=False)
        try:
            # Shielded: a machine that asks again joins the attempt in progress and does not start a second one.
            reply = await asyncio.shield(self._sending[key])
        except SendFailed as error:
            log.info("a %s receiver of %s could not be reached: %s", receiver.kind, principal, error)
            return {"failed": "it could not be reached"}  # the reason names its address, which no machine needs
        if has_ended(receiver, reply):
            with suppress(InvalidArgument):  # it was removed at the same time
                await self.update(principal, partial(without_receiver, receiver_id=receiver.id))
        return {"status": reply.status, "retry_after": reply.retry_after}

    def _tried(self, key: tuple[str, str], trying: "asyncio.Task[PushReply]") -> None:
        """Forgets a failed attempt, so that the next one counts as new. Runs before its result is used."""
        failed = trying.cancelled() or trying.exception() is not None or not trying.result().ok
        if failed and self._sending.get(key) is trying:
            del self._sending[key]

    async def _send(self, principal: str, receiver: Receiver, base: str, notice: Notice, delivery_id: str) -> PushReply:
        """One attempt. Raises SendFailed without an answer."""
        try:
            request = await asyncio.to_thread(request_for, receiver, notice, base, self._vapid, delivery_id)
            async with self._rooms.setdefault(receiver.id, asyncio.Semaphore(_AT_ONCE)):
                private = self.may_reach_private(principal)
                reply = await post(request.url, request.headers, request.body, private=private)
        except (SendFailed, ClaudeCodeError, OSError, ValueError) as error:
            self._status[receiver.id] = Status(self.status(receiver.id).sent_at, str(error))
            raise SendFailed(str(error)) from None
        failed = None if reply.ok else f"it answered {reply.status}"
        self._status[receiver.id] = Status(time.time() if reply.ok else self.status(receiver.id).sent_at, failed)
        return reply

    async def close(self) -> None:
        """Ends the attempts in progress; machines repeat them at another gateway."""
        trying = [each for each in self._sending.values() if not each.done()]
        for each in trying:
            each.cancel()
        if trying:
            await asyncio.wait(trying)

    # -- stored receivers -----------------------------------------------------------------------------------------

    async def _bucket(self) -> KeyValue:
        return await self._connection.jetstream.key_value(names.PUSH)

    async def _document(self, principal: str) -> tuple[dict[str, Any] | None, int]:
        """The stored document of a principal, None without one, and its revision."""
        try:
            entry = await (await self._bucket()).get(_key(principal))
        except KeyNotFoundError as error:
            deleted = getattr(error, "entry", None)
            return None, int(getattr(deleted, "revision", None) or 0)
        try:
            document = json.loads(entry.value or b"")
            if document["principal"] != principal:
                raise ValueError("of another principal")
            return document, int(entry.revision or 0)
        except (ValueError, KeyError, TypeError):
            raise _damaged() from None

    def _preferences(self, principal: str, document: Mapping[str, Any] | None) -> Preferences:
        if document is None:
            return preferences_in(principal, None)
        try:
            rows = [self._opened_row(principal, row) for row in document["receivers"]]
            return preferences_in(principal, {**document, "receivers": rows})
        except (ValidationError, KeyError, TypeError, AttributeError):
            raise _damaged() from None  # not the defaults: the next change would replace all existing data

    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        return str(row["sealed"]).startswith(f"{key_id(self._secret.public_key)}.")

    def _opened_row(self, principal: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a receiver: all of them if it is ours."""
        shown = {name: value for name, value in row.items() if name not in ("sealed", "base")}
        if not self._is_ours(row):
            return shown
        return {**shown, **open_sealed(self._secret, _subject(principal, row["id"]), str(row["sealed"]))}

    def _sealed_row(self, principal: str, receiver: Receiver) -> dict[str, Any]:
        fields = receiver.model_dump(mode="json")
        address = urlsplit(receiver.url)
        shown = {name: fields.pop(name) for name in _CLEAR}
        sealed = seal_for(self._secret.public_key, _subject(principal, receiver.id), fields)
        return {**shown, "url": f"{address.scheme}://{address.netloc}", "base": self.base, "sealed": sealed}


def _key(principal: str) -> str:
    return hashlib.sha256(principal.encode()).hexdigest()


def _subject(principal: str, receiver_id: str) -> str:
    """The name in a sealed receiver, which prevents its use for another person."""
    return f"push {receiver_id} {principal}"


def _damaged() -> UpstreamUnavailable:
    return UpstreamUnavailable("Your stored push receivers are damaged. Remove them and add them again.")


def _notice_in(value: Mapping[str, Any], session_id: str) -> Notice:
    """A notification as claimed by a machine, within bounds: about its session or none, and only of kinds that machines
    send. Raises ValueError or TypeError."""
    kind, question = value["kind"], value.get("question_id")
    at, expires_at = float(value["at"]), float(value["expires_at"])
    if kind not in (_KINDS if session_id else _OF_NO_SESSION) or not abs(expires_at - time.time()) < _MAX_AHEAD:
        raise ValueError("not a notification")
    title, body = clip_line(str(value["title"]), _MAX_TITLE), clip_line(str(value["body"]), _MAX_BODY)
    return Notice(kind, session_id, title, body, at, expires_at, None if question is None else names.token(question))


class MachinePush(Push):
    """`Push` of a machine: preferences come from the keeper, which also makes each attempt. Budgets are each machine's
    own: their warnings name it."""

    def __init__(self, service: Service, keeper: KeeperOwnership, directory: Path, machine: str) -> None:
        """`machine` is this machine's display name."""
        super().__init__(service, directory)
        self._keeper = keeper
        self.budget_title = f"Budget on {machine}"
        service.broker.add_audience(self._expects)

    async def principals(self) -> Collection[str]:
        """Everyone with a session on this machine: machines do not know who has receivers."""
        return await self._service.relocation.environment_of(LOCAL_CALLER).stores.library.owners()

    async def chosen_for(self, principal: str, session_id: str) -> Preferences:
        """The preferences for a session; none if this machine no longer holds it. Without a session, the principal's
        preferences. Raises UpstreamUnavailable without a usable answer of a keeper."""
        try:
            chosen = await self._keeper.ask("receivers", session_id=session_id, principal=principal)
        except PermissionDenied:
            return Preferences(principal=principal)
        try:
            # A keeper of a later version may know more kinds of receivers, which its gateway sends to, and more kinds
            # of events, which this machine does not have.
            rows = [{"id": row["id"], "kind": row["kind"], "url": "", "created_at": 0.0} for row in chosen["receivers"]]
            known = {name: chosen[name] for name in ("chosen_from", "quiet_hours")}
            known["events"] = [news for news in chosen["events"] if news in ALL_NEWS]
            return preferences_in(principal, {**known, "principal": principal, "receivers": rows})
        except (ValidationError, KeyError, TypeError) as problem:
            raise UpstreamUnavailable(f"The gateway's report on receivers cannot be parsed: {problem}") from None

    async def post_notice(self, principal: str, receiver: Receiver, notice: Notice, delivery_id: str) -> PushReply:
        delivery = {"session_id": notice.session_id, "receiver": receiver.id, "delivery": delivery_id}
        delivery["principal"] = principal  # used for a notice that belongs to no session
        answer = await self._keeper.ask("push", _PUSH_SECONDS, **delivery, notice=asdict(notice))
        if "failed" in answer:
            raise SendFailed(str(answer["failed"]))
        wait = answer.get("retry_after")
        return PushReply(int(answer["status"]), None if wait is None else float(wait))

    async def remove_ended(self, principal: str, receiver_id: str) -> None:
        """The keeper has already done it."""

    async def _expects(self, question: Question) -> bool:
        """Whether a person with a receiver may still see a question. True while that is unknown."""
        try:
            return (await self.chosen_for("", question.session_id)).pushes_questions
        except UpstreamUnavailable:
            return True
