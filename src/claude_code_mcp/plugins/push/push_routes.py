"""The push routes: when and where a person wants notifications, over the receivers of one server or of a fleet."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import InvalidArgument
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.text import iso, one_line, visible
from ...core.rate_limit import MinuteLimit
from ...core.service import Service
from ...server.api_parts import ApiPart, ApiUser, Handlers
from ...server.outbound_urls import check_url
from ...server.tools.arguments import Arguments
from ...server.web_answers import NoArguments, answer, arguments_of
from .delivery import Push, Status
from .preferences import News, Preferences, QuietHours, Receiver, new_id, with_receiver, without_receiver
from .receivers import KINDS, ReceiverDetails

_MAX_DEVICE = 60
_MAX_TOKEN = 500
_TRIES_A_MINUTE = 10
"""Per person: each makes the server send a request to an address that they chose."""


class PreferenceArguments(Arguments):
    events: list[News] | None = None
    quiet_hours: QuietHours | None = None


class SubscriptionKeys(Arguments):
    p256dh: str = Field(max_length=200, alias="p256dh")
    auth: str = Field(max_length=100)


class BrowserSubscription(Arguments):
    """A browser's PushSubscription as JSON."""

    endpoint: str
    expiration_time: float | None = None
    keys: SubscriptionKeys


class ReceiverArguments(Arguments):
    kind: str
    url: str | None = None
    token: str | None = Field(None, max_length=_MAX_TOKEN)
    subscription: BrowserSubscription | None = None
    device: str | None = None


class ReceiverBook(Protocol):
    """Stores receivers: `Push` for one server, `plugins/fleet/push_receivers.py` for a fleet."""

    async def read(self, principal: str) -> Preferences: ...

    async def update(self, principal: str, change: Callable[[Preferences], Preferences]) -> Preferences: ...

    def forget(self, principal: str, receiver_id: str) -> None: ...

    def may_reach_private(self, principal: str) -> bool: ...

    async def try_out(self, principal: str, receiver: Receiver) -> str | None: ...

    def status(self, receiver_id: str) -> Status: ...

    async def vapid_key(self) -> str | None: ...


class PushRoutes(ApiPart):
    """The handlers."""

    def __init__(self, audit: Callable[[AuditEvent], None], push: ReceiverBook) -> None:
        self._record = audit
        self._push = push
        self._tries = MinuteLimit(lambda _: _TRIES_A_MINUTE, sentence="You can send {most} test messages per minute")

    def handlers(self) -> Handlers:
        return [
            ("GET", "/push", self.show),
            ("PUT", "/push", self.change),
            ("POST", "/push/receivers", self.add),
            ("DELETE", "/push/receivers/{receiver}", self.remove),
            ("POST", "/push/receivers/{receiver}/test", self.test),
        ]

    async def show(self, _: Request, user: ApiUser) -> Response:
        return await self._answer(await self._push.read(user.principal))

    async def change(self, request: Request, user: ApiUser) -> Response:
        arguments = await arguments_of(request, PreferenceArguments)

        def changed(current: Preferences) -> Preferences:
            events = current.events if arguments.events is None else tuple(dict.fromkeys(arguments.events))
            return current.model_copy(update={"events": events, "quiet_hours": arguments.quiet_hours})

        chosen = await self._push.update(user.principal, changed)
        self._audit(user, action="change", events=",".join(chosen.events), quiet=chosen.quiet_hours is not None)
        return await self._answer(chosen)

    async def add(self, request: Request, user: ApiUser) -> Response:
        arguments = await arguments_of(request, ReceiverArguments)
        receiver = self._receiver(arguments, self._push.may_reach_private(user.principal))
        await self._push.update(user.principal, partial(with_receiver, receiver=receiver))
        self._audit(user, action="add", kind=receiver.kind, target=_target(receiver))
        secret = {"secret": receiver.secret} if receiver.secret else {}
        return answer({"receiver": self._row(receiver), **secret}, 201)

    def _receiver(self, arguments: ReceiverArguments, private: bool) -> Receiver:
        """Raises InvalidArgument for missing fields or fields of another kind."""
        kind, subscription = KINDS.get(arguments.kind), arguments.subscription
        if kind is None:
            raise InvalidArgument(f"kind: must be one of {', '.join(KINDS)}.", field="kind")
        if kind.by_browser:
            if subscription is None:
                raise InvalidArgument("subscription: required", field="subscription")
            keys = subscription.keys
            details = ReceiverDetails(subscription.endpoint, public_key=keys.p256dh, auth=keys.auth)
        else:
            if arguments.url is None:
                raise InvalidArgument("url: required", field="url")
            details = ReceiverDetails(arguments.url, arguments.token or "")
        check_url(details.url, private=private)
        device = one_line(visible(arguments.device or ""), _MAX_DEVICE)
        fields = {"url": details.url, "device": device, **kind.fields(details)}
        return Receiver(id=new_id(), kind=arguments.kind, created_at=time.time(), **fields)

    async def remove(self, request: Request, user: ApiUser) -> Response:
        receiver_id = str(request.path_params["receiver"])
        await self._push.update(user.principal, partial(without_receiver, receiver_id=receiver_id))
        self._push.forget(user.principal, receiver_id)
        self._audit(user, action="remove")
        return answer({})

    async def test(self, request: Request, user: ApiUser) -> Response:
        await arguments_of(request, NoArguments)
        chosen = await self._push.read(user.principal)
        wanted = str(request.path_params["receiver"])
        receiver = next((known for known in chosen.receivers if known.id == wanted), None)
        if receiver is None:
            raise InvalidArgument("There is no such receiver.", field="id")
        self._tries.take(user.principal)
        problem = await self._push.try_out(user.principal, receiver)
        return answer({"sent": problem is None, "error": problem})

    async def _answer(self, chosen: Preferences) -> Response:
        quiet = chosen.quiet_hours
        return answer(
            {
                "events": [*chosen.events],
                "quietHours": quiet.model_dump(by_alias=True) if quiet is not None else None,
                "kinds": [name for name, kind in KINDS.items() if not kind.by_browser],
                "receivers": [self._row(receiver) for receiver in chosen.receivers],
                "vapidPublicKey": await self._push.vapid_key(),
            }
        )

    def _row(self, receiver: Receiver) -> dict[str, Any]:
        status = self._push.status(receiver.id)
        return {
            "id": receiver.id,
            "kind": receiver.kind,
            "target": _target(receiver),
            "device": receiver.device,
            "createdAt": iso(receiver.created_at),
            "lastSentAt": iso(status.sent_at) if status.sent_at is not None else None,
            "lastError": status.error,
        }

    def _audit(self, user: ApiUser, **details: Any) -> None:
        details["device"] = user.device
        self._record(AuditEvent(AuditKind.PUSH_CHANGED, user.principal, details=details))


class PushOfServer(PushRoutes):
    """The routes for one server's receivers, and the delivery to them."""

    def __init__(self, service: Service, push: Push | None = None) -> None:
        """Create it within the service's event loop."""
        self.push = push or Push(service, service.settings.state_dir / "web")
        super().__init__(service.audit, self.push)
        service.observe(self.push)

    async def facts(self, user: Any) -> dict[str, Any]:
        return {"push": True, "vapidPublicKey": await self.push.vapid_key()}

    def page_opened(self, url: str, knows: Callable[[str], bool]) -> None:
        self.push.knows = knows
        self.push.serve_at(url)

    def page_moved(self, url: str) -> None:
        self.push.move(url)

    async def reaches(self, principal: str) -> bool:
        return (await self.push.read(principal)).pushes_questions

    @property
    def pending(self) -> bool:
        return self.push.pending

    def close(self) -> None:
        self.push.close()


def _target(receiver: Receiver) -> str:
    """Its address without the secret part: the rest of a subscription's address, or a topic."""
    return urlsplit(receiver.url).netloc
