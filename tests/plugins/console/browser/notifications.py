"""Push messages that the browser's debugging interface delivers, since no push service can be reached from a test."""

import json
from collections.abc import Mapping
from typing import Any

from playwright.sync_api import BrowserContext, CDPSession, Worker

from .console import Site

_COUNT_SHOWN = """(() => {
    const show = self.registration.showNotification.bind(self.registration);
    Object.assign(self, { shown: 0, waiting: [] });
    self.registration.showNotification = async (...about) => {
        await show(...about);
        self.shown += 1;
        for (const look of self.waiting.splice(0)) look();
    };
})()"""
_UNTIL_SHOWN = """(count) => new Promise((done) => {
    const look = () => void (self.shown >= count ? done() : self.waiting.push(look));
    look();
})"""
"""Nobody asks for the notifications meanwhile: Chromium then drops one that is about to be displayed."""
_SHOWN = """self.registration.getNotifications().then((all) =>
    all.map((one) => ({ title: one.title, body: one.body, url: one.data.url })))"""


class PushService:
    """Hands messages to the service worker of a site, in place of a push service."""

    def __init__(self, context: BrowserContext, protocol: CDPSession, site: Site) -> None:
        self._context, self._protocol, self._site = context, protocol, site
        self._registrations = list[str]()
        self.errors = list[str]()
        protocol.on("ServiceWorker.workerRegistrationUpdated", self._updated)
        protocol.on(
            "ServiceWorker.workerErrorReported",
            lambda event: self.errors.append(event["errorMessage"]["errorMessage"]),
        )
        protocol.send("ServiceWorker.enable")

    def _updated(self, event: Any) -> None:
        self._registrations += [one["registrationId"] for one in event["registrations"]]

    @property
    def worker(self) -> Worker:
        (worker,) = self._context.service_workers
        return worker

    def deliver(self, message: Mapping[str, str] | str) -> None:
        """Returns when the service worker has shown the message."""
        worker = self.worker
        if worker.evaluate("self.shown === undefined"):
            worker.evaluate(_COUNT_SHOWN)
        count = worker.evaluate("self.shown")
        data = message if isinstance(message, str) else json.dumps(message)
        given = {"origin": f"{self._site.url}/", "registrationId": self._registrations[-1], "data": data}
        self._protocol.send("ServiceWorker.deliverPushMessage", given)
        worker.evaluate(_UNTIL_SHOWN, count + 1)

    def shown(self) -> list[Any]:
        """The notifications that are displayed."""
        return list(self.worker.evaluate(_SHOWN))
