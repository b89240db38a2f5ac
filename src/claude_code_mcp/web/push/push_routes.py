"""The routes on push: where this person is told, of what, and when not."""

import asyncio
import os
import time
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ...errors import InvalidArgument
from ...model.events import AuditEvent, AuditKind
from ...model.text import iso, one_line, visible
from ...server.tools.base import Arguments
from ...service import Service
from ..answers import answer, arguments_of
from ..guard import WebCaller
from ..session_routes import Nothing
from .delivery import Push
from .preferences import Kind, News, Preferences, QuietHours, Receiver, new_id
from .receivers import check_topic, new_secret
from .sending import check_url
from .web_push import check_keys

_SECRET_BYTES = 32
_LONGEST_DEVICE = 60
_LONGEST_TOKEN = 500


class PreferenceArguments(Arguments):
    events: list[News] | None = None
    quiet_hours: QuietHours | None = None


class SubscriptionKeys(Arguments):
    p256dh: str = Field(max_length=200, alias="p256dh")
    auth: str = Field(max_length=100)


class BrowserSubscription(Arguments):
    """What a browser's PushSubscription is as JSON."""

    endpoint: str
    expiration_time: float | None = None
    keys: SubscriptionKeys


class ReceiverArguments(Arguments):
    kind: Kind
    url: str | None = None
    token: str | None = Field(None, max_length=_LONGEST_TOKEN)
    subscription: BrowserSubscription | None = None
    device: str | None = None


class PushRoutes:
    """The handlers."""

    def __init__(self, service: Service, push: Push) -> None:
        self._service = service
        self._push = push

    async def show(self, _: Request, caller: WebCaller) -> Response:
        return await self._answer(await asyncio.to_thread(self._push.preferences.read, caller.principal))

    async def change(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, PreferenceArguments)

        def changed(current: Preferences) -> Preferences:
            events = current.events if arguments.events is None else tuple(dict.fromkeys(arguments.events))
            return current.model_copy(update={"events": events, "quiet_hours": arguments.quiet_hours})

        chosen = await asyncio.to_thread(self._push.preferences.update, caller.principal, changed)
        self._audit(caller, action="change", events=",".join(chosen.events), quiet=chosen.quiet_hours is not None)
        return await self._answer(chosen)

    async def add(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, ReceiverArguments)
        receiver = self._receiver(arguments, self._push.may_reach_private(caller.principal))
        await asyncio.to_thread(self._push.preferences.add, caller.principal, receiver)
        self._audit(caller, action="add", kind=receiver.kind, target=_target(receiver))
        secret = {"secret": receiver.secret} if receiver.secret else {}
        return answer({"receiver": self._row(receiver), **secret}, 201)

    def _receiver(self, arguments: ReceiverArguments, private: bool) -> Receiver:
        """InvalidArgument where something is missing, or does not belong to this kind."""
        made = {"id": new_id(), "kind": arguments.kind, "created_at": time.time(), "device": _device(arguments.device)}
        if arguments.kind == "webpush":
            if arguments.subscription is None:
                raise InvalidArgument("subscription: required", field="subscription")
            keys = arguments.subscription.keys
            check_url(arguments.subscription.endpoint, private=private)
            check_keys(keys.p256dh, keys.auth)
            return Receiver(**made, url=arguments.subscription.endpoint, public_key=keys.p256dh, auth=keys.auth)
        if arguments.url is None:
            raise InvalidArgument("url: required", field="url")
        check_url(arguments.url, private=private)
        if arguments.kind == "webhook":
            return Receiver(**made, url=arguments.url, secret=new_secret(os.urandom(_SECRET_BYTES)))
        check_topic(arguments.url)
        token = arguments.token or ""
        if not token.isascii() or not token.isprintable():
            raise InvalidArgument("token: must consist of visible ASCII characters", field="token")
        return Receiver(**made, url=arguments.url, token=token)

    async def remove(self, request: Request, caller: WebCaller) -> Response:
        receiver_id = str(request.path_params["receiver"])
        await asyncio.to_thread(self._push.preferences.remove, caller.principal, receiver_id)
        self._push.forget(caller.principal, receiver_id)
        self._audit(caller, action="remove")
        return answer({})

    async def test(self, request: Request, caller: WebCaller) -> Response:
        await arguments_of(request, Nothing)
        chosen = await asyncio.to_thread(self._push.preferences.read, caller.principal)
        wanted = str(request.path_params["receiver"])
        receiver = next((known for known in chosen.receivers if known.id == wanted), None)
        if receiver is None:
            raise InvalidArgument("There is no such receiver.", field="id")
        problem = await self._push.try_out(caller.principal, receiver)
        return answer({"sent": problem is None, "error": problem})

    async def _answer(self, chosen: Preferences) -> Response:
        quiet = chosen.quiet_hours
        return answer(
            {
                "events": [*chosen.events],
                "quietHours": quiet.model_dump(by_alias=True) if quiet is not None else None,
                "receivers": [self._row(receiver) for receiver in chosen.receivers],
                "vapidPublicKey": await asyncio.to_thread(lambda: self._push.public_key),
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

    def _audit(self, caller: WebCaller, **details: Any) -> None:
        details["device"] = caller.device
        self._service.audit(AuditEvent(AuditKind.PUSH_CHANGED, caller.principal, details=details))


def _target(receiver: Receiver) -> str:
    """Where it is, without what makes its address a secret: the rest of a subscription's, or a topic."""
    return urlsplit(receiver.url).netloc


def _device(text: str | None) -> str:
    return one_line(visible(text or ""), _LONGEST_DEVICE)
