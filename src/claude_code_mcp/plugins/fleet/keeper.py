"""The keeper: changes the holders of sessions for machines, and opens secrets that are sealed for them.

NATS grants permissions by subject, and a machine's sessions are not a fixed set of subjects: a key that may write the
holder of one session may write the holder of every session. Therefore a machine's key may write none. It asks the
keeper, which runs next to every gateway with its own key. The subject identifies the requesting machine, because NATS
lets only that machine use it. A machine may claim new sessions and its own; a gateway gives it sessions that another
machine has or had. The keeper answers only into the inbox of the requesting machine: the reply address of a request can
name any subject, and NATS does not check it.

`Keeper` is the keeper's side; `KeeperOwnership` and `KeptSecrets` are a machine's.
"""

import hashlib
import hmac
import itertools
import json
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from ... import __version__
from ...core import json_text
from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, UpstreamUnavailable
from . import names
from .connection import MIN_LEASE_SECONDS, FleetConnection
from .leases import HeldByOtherMachine, Holding, LeaseLapsed, TransferUnfinished, suspend_aware_clock
from .nats_client import Msg, NatsError
from .ownership import RETURN_SECONDS, OwnershipBucket

log = logging.getLogger(__name__)

MAX_REQUESTED = 500
"""Maximum number of sessions in one request of a machine."""
_CLAIM_SECONDS = RETURN_SECONDS + 5.0
_QUEUE = "keepers"
_UNSEAL = ".unseal"

Verb = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Receives the requesting machine and its arguments; the result is sent as JSON."""


class NotAddressed(Exception):
    """Another keeper must answer this request."""


class Keeper:
    """Does for machines what their keys do not permit, after checking that it concerns their own sessions. Any number
    of keepers may run; one of them answers each request."""

    def __init__(
        self,
        connection: FleetConnection,
        bucket: OwnershipBucket,
        seed: str,
        verbs: Mapping[str, Verb] | None = None,
        verbs_for_all: Mapping[str, Verb] | None = None,
    ) -> None:
        """`seed` is the operator key's secret, from which the key for sealed secrets is derived. `verbs` are answered
        in addition to its own; every keeper receives `verbs_for_all`, and one that raises NotAddressed does not
        answer."""
        self._connection = connection
        self._bucket = bucket
        self._secret = PrivateKey(hmac.digest(seed.encode(), b"claude-code-mcp: secrets of sessions", "sha256"))
        self._verbs: dict[str, Verb] = {
            "claim": self._claim,
            "confirm": self._confirm,
            "arrived": self._arrived,
            "release": self._release,
            "read": self._read,
            "elsewhere": self._elsewhere,
            "held": self._held,
            "sealing_key": self._sealing_key,
            "unseal": self._unseal,
            "clock": self._clock,
            "lease": self._lease,
            **(verbs or {}),
            **(verbs_for_all or {}),
        }
        self._broadcast = frozenset(verbs_for_all or ())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers until the end of the block."""
        async with anyio.create_task_group() as tasks:

            async def take(message: Msg) -> None:
                if not message.subject.endswith(_UNSEAL) and message.subject.split(".")[3] not in self._broadcast:
                    # In a separate task: a claim waits for seconds, and other requests must not wait behind it.
                    tasks.start_soon(self._answer, message)

            async def take_sealed(message: Msg) -> None:
                # Every keeper receives it. The keeper whose key it was sealed for answers.
                if f'"{key_id(self._secret.public_key)}.'.encode() in message.data:
                    tasks.start_soon(self._answer, message)

            async def take_each(message: Msg) -> None:
                tasks.start_soon(self._answer, message)

            answering = self._connection.answering
            try:
                async with (
                    answering({"fleet.keeper.*.*": take}, _QUEUE),
                    answering({f"fleet.keeper.*{_UNSEAL}": take_sealed}),
                    answering({f"fleet.keeper.*.{verb}": take_each for verb in self._broadcast}),
                ):
                    yield
            finally:
                tasks.cancel_scope.cancel()

    async def _answer(self, message: Msg) -> None:
        _, _, machine_id, name = message.subject.split(".")
        if not message.reply.startswith(f"{names.inbox(machine_id)}."):
            log.warning("ignored a request of machine %s: its reply subject is not allowed", machine_id)
            return
        try:
            if _has_expired(message):
                raise RequestExpired(f"The request {name!r} came too late; nothing was changed.")
            if name not in self._verbs:
                raise InvalidArgument(f"Unknown request: {name!r}.")
            arguments = json_text.decode(message.data)
            answer = {"result": await self._verbs[name](machine_id, arguments)}
        except NotAddressed:
            return
        except ClaudeCodeError as problem:
            answer = {"error": type(problem).__name__, "message": problem.message}
            if isinstance(problem, HeldByOtherMachine):
                answer["holding"] = _fields(problem.holding)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            answer = {"error": "InvalidArgument", "message": "The request is not valid."}
        except (NatsError, OSError, TimeoutError) as problem:
            answer = {"error": "LeaseLapsed", "message": f"The fleet's stores do not respond: {problem}"}
        except Exception:
            # An error raised here would end the keeper, and the gateway with it, for all machines.
            log.exception("a request of machine %s failed", machine_id)
            answer = {"error": "ClaudeCodeError", "message": "The gateway failed; see its log."}
        answer["time"] = time.time()
        try:
            await message.respond(json.dumps(answer).encode())
        except NatsError as problem:
            log.debug("an answer to machine %s was not sent: %s", machine_id, problem)

    async def _claim(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        session_id, principal = str(arguments["session_id"]), str(arguments["principal"])
        marks = {mark: arguments.get(mark) is True for mark in ("taking", "stays")}
        run, number = str(arguments.get("run", "")), int(arguments.get("number", 0))
        claim = self._bucket.claim
        return _fields(await claim(session_id, principal, machine_id, only_given=True, run=run, number=number, **marks))

    async def _confirm(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        return _fields(await self._bucket.confirm(_own_holding(machine_id, arguments)))

    async def _arrived(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        return _fields(await self._bucket.arrived(_own_holding(machine_id, arguments)))

    async def _release(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        await self._bucket.release(_own_holding(machine_id, arguments))

    async def _read(self, _: str, arguments: dict[str, Any]) -> Any:
        # The holder is not secret for a machine that knows the session's id.
        found = await self._bucket.read(str(arguments["session_id"]))
        return None if found is None else _fields(found)

    async def _elsewhere(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        asked = [names.token(str(session_id)) for session_id in arguments["sessions"][:MAX_REQUESTED]]
        found = [await self._bucket.read(session_id) for session_id in asked]
        # An arriving session is not on the machine yet, whatever an older copy on the machine's disk says. A pinned
        # session is where its files are, even if that machine has another id by now.
        elsewhere = [each for each in found if each and (each.machine != machine_id or each.arriving)]
        return [each.session_id for each in elsewhere if not each.stays]

    async def _held(self, machine_id: str, _: dict[str, Any]) -> Any:
        return [_fields(each) for each in await self._bucket.held_by(machine_id)]

    async def _sealing_key(self, _: str, __: dict[str, Any]) -> Any:
        return b64encode(bytes(self._secret.public_key)).decode()

    async def _clock(self, _: str, __: dict[str, Any]) -> Any:
        """For `doctor`: this machine's time and version."""
        return {"time": time.time(), "version": __version__}

    async def _lease(self, _: str, __: dict[str, Any]) -> Any:
        return await self._bucket.lease_seconds()

    async def _unseal(self, machine_id: str, arguments: dict[str, Any]) -> Any:
        session_id = str(arguments["session_id"])
        key = PublicKey(b64decode(arguments["key"]))
        secrets = open_sealed(self._secret, session_id, str(arguments["sealed"]))
        # Last: the recipient must be the holder at this moment.
        found = await self._bucket.read(session_id)
        if found is None or found.machine != machine_id:
            raise PermissionDenied(f"Machine {machine_id} does not hold session {session_id}.")
        return seal_for(key, session_id, secrets)


class RequestExpired(UpstreamUnavailable):
    """The keeper received a request after its deadline. The machine no longer waits for the answer and may have retried
    or given up: the request must not change anything."""


_DEADLINE = "Fleet-Deadline"
_CLOCK_TOLERANCE = 1.0


def _has_expired(message: Msg) -> bool:
    """Whether a request's deadline has passed, by the keeper's clock; False without a deadline."""
    try:
        return time.time() > float((message.headers or {})[_DEADLINE]) + _CLOCK_TOLERANCE
    except (KeyError, ValueError):
        return False


class KeeperOwnership:
    """The holders as machines access them: through the keeper.

    Requests carry a deadline on the keeper's clock, which is known from its answers: a keeper that was frozen
    recognizes late requests. Keepers with different clocks cost one more request.
    """

    def __init__(self, connection: FleetConnection, machine_id: str, run: str = "") -> None:
        """`run` is the process of the machine, as in its reports; without it claims have no number."""
        self._connection = connection
        self._machine_id = names.token(machine_id)
        self._run = run
        self._claims = itertools.count(1)
        self._ahead: float | None = None
        """Seconds by which the keeper's clock is ahead of `suspend_aware_clock`."""

    async def lease_seconds(self) -> float:
        """Like OwnershipBucket.lease_seconds."""
        try:
            return float(await self.ask("lease"))
        except InvalidArgument:  # from a keeper of an earlier version
            return MIN_LEASE_SECONDS

    async def read(self, session_id: str) -> Holding | None:
        """The holder; None if no machine has the session."""
        found = await self.ask("read", session_id=session_id)
        return None if found is None else _holding(found)

    async def claim(
        self, session_id: str, principal: str, machine_id: str, *, taking: bool = False, stays: bool = False
    ) -> Holding:
        """Like OwnershipBucket.claim, for this machine only."""
        if machine_id != self._machine_id:
            raise ValueError("a machine can claim sessions only for itself")
        if self._ahead is None:
            await self.ask("clock")  # a claim is never without a deadline
        marks: dict[str, Any] = {"taking": taking, "stays": stays}
        if self._run:
            marks |= {"run": self._run, "number": next(self._claims)}
        return _holding(await self.ask("claim", session_id=session_id, principal=principal, **marks))

    async def held(self) -> list[Holding]:
        """Like OwnershipBucket.held_by, for this machine."""
        return [_holding(each) for each in await self.ask("held")]

    async def confirm(self, holding: Holding) -> Holding:
        """Like OwnershipBucket.confirm."""
        return _holding(await self.ask("confirm", **_fields(holding)))

    async def arrived(self, holding: Holding) -> Holding:
        """Like OwnershipBucket.arrived."""
        return _holding(await self.ask("arrived", **_fields(holding)))

    async def release(self, holding: Holding) -> None:
        """Like OwnershipBucket.release."""
        await self.ask("release", **_fields(holding))

    async def ask(self, verb: str, seconds: float = _CLAIM_SECONDS, /, **arguments: Any) -> Any:
        """Sends one request to the keeper. Raises the keeper's refusal, and LeaseLapsed if none answers in time."""
        answer = await self._ask_once(verb, seconds, arguments)
        if answer.get("error") == RequestExpired.__name__:
            answer = await self._ask_once(verb, seconds, arguments)  # the answer has set the keeper's clock
        if "error" not in answer:
            return answer["result"]
        if answer["error"] == "HeldByOtherMachine":
            raise HeldByOtherMachine(_holding(answer["holding"]))
        raise _REFUSALS.get(answer["error"], ClaudeCodeError)(answer["message"])

    async def _ask_once(self, verb: str, seconds: float, arguments: dict[str, Any]) -> dict[str, Any]:
        headers = None
        if self._ahead is not None:
            headers = {_DEADLINE: str(suspend_aware_clock() + self._ahead + seconds)}
        try:
            request, subject = json.dumps(arguments).encode(), names.keeper(self._machine_id, verb)
            message = await self._connection.client.request(subject, request, timeout=seconds, headers=headers)
        except (NatsError, OSError, TimeoutError) as problem:
            raise LeaseLapsed(f"No gateway of the fleet responds: {problem or type(problem).__name__}.") from None
        answer: dict[str, Any] = json.loads(message.data)
        if isinstance(keeper_time := answer.get("time"), int | float):  # a keeper of an earlier version sends none
            self._ahead = keeper_time - suspend_aware_clock()
        return answer


class KeptSecrets:
    """Secrets of sessions, sealed for the keeper, which opens them for the machine that holds the session.

    Neither NATS nor another machine can read them. The keeper runs next to the gateway, which saw them when the session
    was created. Of several keepers, only the one with the matching key opens them. Raises LeaseLapsed if no keeper
    answers.
    """

    def __init__(self, connection: FleetConnection, machine_id: str) -> None:
        self._keeper = KeeperOwnership(connection, machine_id)
        self._key: PublicKey | None = None

    async def seal(self, session_id: str, secrets: Mapping[str, Any]) -> str:
        """The secrets in the form in which the fleet's stores may contain them."""
        if self._key is None:
            self._key = PublicKey(b64decode(await self._keeper.ask("sealing_key")))
        return seal_for(self._key, session_id, secrets)

    async def unseal(self, session_id: str, sealed: str) -> dict[str, Any]:
        """The secrets of a session that this machine holds. Raises InvalidArgument if they were sealed for another
        session or fleet, PermissionDenied if this machine does not hold the session."""
        own = PrivateKey.generate()  # for this answer alone: it passes through NATS as well
        key = b64encode(bytes(own.public_key)).decode()
        answer = await self._keeper.ask("unseal", session_id=session_id, sealed=sealed, key=key)
        return open_sealed(own, session_id, answer)


def seal_for(key: PublicKey, session_id: str, secrets: Mapping[str, Any]) -> str:
    """Seals secrets for a session or another name: the id of the key, and an X25519 sealed box (libsodium). The box
    contains the name, so that it cannot be used for another one."""
    content = json.dumps({"session": session_id, "secrets": secrets}).encode()
    return f"{key_id(key)}.{b64encode(SealedBox(key).encrypt(content)).decode()}"


def key_id(key: PublicKey) -> str:
    """The prefix of a sealed secret, before a point."""
    return hashlib.sha256(bytes(key)).hexdigest()[:16]


def open_sealed(key: PrivateKey, session_id: str, sealed: str) -> dict[str, Any]:
    """Opens secrets that were sealed for this key and name. Raises InvalidArgument."""
    try:
        content = json.loads(SealedBox(key).decrypt(b64decode(sealed.partition(".")[2], validate=True)))
        if content["session"] != session_id:
            raise ValueError
        return dict(content["secrets"])
    except (CryptoError, ValueError, KeyError, TypeError, RecursionError):
        message = f"The secrets of session {session_id} were sealed for another session or key, or are damaged."
        raise InvalidArgument(message) from None


_REFUSALS: dict[str, type[ClaudeCodeError]] = {
    problem.__name__: problem
    for problem in (
        PermissionDenied,
        InvalidArgument,
        LeaseLapsed,
        TransferUnfinished,
        UpstreamUnavailable,
        RequestExpired,
    )
}


def _fields(holding: Holding) -> dict[str, Any]:
    return {name: getattr(holding, name) for name in Holding.__slots__}


def _holding(fields: Mapping[str, Any]) -> Holding:
    """A holding from the keeper's answer; fields of other versions are ignored."""
    return Holding(**{name: value for name, value in fields.items() if name in Holding.__slots__})


def _own_holding(machine_id: str, arguments: dict[str, Any]) -> Holding:
    """The holding that a machine names. It is compared with the bucket afterward; the machine is always the requesting
    one."""
    return Holding(
        names.token(str(arguments["session_id"])),
        machine_id,
        int(arguments["epoch"]),
        str(arguments["principal"]),
        int(arguments["revision"]),
    )
