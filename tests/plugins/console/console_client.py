"""A browser as far as the console can tell: cookies, the stored CSRF value, the usual headers, a stream."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.waiting import HANG_SECONDS

PATIENCE = HANG_SECONDS


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of the error."""
        return str(self.json["error"]["code"])


class StreamEvent(NamedTuple):
    name: str
    data: Any
    id: str


@dataclass
class Browser:
    """One browser at one server."""

    base: str
    cookie: str = ""
    csrf: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Beside, or in place of, what a browser sends."""
    address: str = "127.0.0.1"
    """Where it connects from; Linux has the whole network 127.0.0.0/8."""

    @property
    def netloc(self) -> str:
        return urlsplit(self.base).netloc

    def _usual(self, method: str) -> dict[str, str]:
        usual = {"Host": self.netloc, "Sec-Fetch-Site": "same-origin"}
        if method != "GET":
            usual |= {"Origin": self.base, "Content-Type": "application/json"}
        if self.cookie:
            usual["Cookie"] = self.cookie
        if self.csrf:
            usual["X-CSRF-Token"] = self.csrf
        return usual

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request; `headers` with underscores for dashes replace the usual ones, an empty one removes it."""
        connection = http.client.HTTPConnection(self.netloc, timeout=PATIENCE, source_address=(self.address, 0))
        try:
            self._send(connection, method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**self._usual(method), **self.headers, **given}
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value:
                connection.putheader(name, value)
        if method == "GET":
            connection.endheaders()
        else:
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def sign_in(self, **by: str) -> Answer:
        """With a ticket or a token; keeps what a browser and the page would keep."""
        answered = self.post("/api/sign-in", {"device": "Test browser", **by})
        if answered.status == 200:
            self.cookie = answered.headers["set-cookie"].partition(";")[0]
            self.csrf = answered.json["csrf"]
        return answered

    @contextmanager
    def stream(self, query: str = "", last_id: str = "") -> Iterator[Iterator[StreamEvent]]:
        """The events of `/api/events`, as they come."""
        connection = http.client.HTTPConnection(self.netloc, timeout=PATIENCE)
        try:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            self._send(connection, "GET", f"/api/events{query}", None, headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield _events(response)
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield StreamEvent(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id", ""))
            fields = {}
        else:
            fields = {}


def until(events: Iterator[StreamEvent], name: str) -> list[StreamEvent]:
    """Everything up to the first event of this name, that one included."""
    seen = []
    for event in events:
        seen.append(event)
        if event.name == name:
            return seen
    raise AssertionError(f"the stream ended without {name}: {[event.name for event in seen]}")
