"""The console of a gateway: the routes of the page over all machines of a fleet.

Requests about a session go to the machine that holds it, and its answer is passed on unchanged. Lists, questions, costs
and servers combine the answers of all machines, and each row names its machine. NoArguments is stored here: a user who
loses this gateway continues at another one and signs in again.

A stream of events combines one stream of each machine. It ends when a machine comes or goes, or when the followed
session moves to another machine: the page then reconnects and follows the session there.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import InvalidArgument, LimitReached, UpstreamUnavailable
from ...core.model.session_id import is_session_id
from ...core.model.text import csv_of
from ...server.api_parts import ApiPart, Handler, Handlers
from ...server.web_answers import (
    ANSWER_HEADERS,
    RequestRefused,
    answer,
    body_of,
    flag_of,
    number_of,
    session_id_of,
    text_of,
)
from ..console.interface import (
    HEARTBEAT,
    LISTS,
    ListRoute,
    StillSignedIn,
    StreamResponse,
    WebUser,
    frame,
    most_urgent_first,
    page_row,
)
from .dispatch import CONTINUES_HINT, HOLDER_ONLY_HINT, Dispatch, PinnedToMachine
from .live_fleet import LiveFleet
from .machine_link import MachineUnavailable
from .machine_server import Taken
from .machines import Machine
from .merged_results import Silent, absent_row, merged_costs, number, objects
from .nats_client import Client, NatsError
from .page_link import FACTS, PageAnswer, PageRequest, ask_page
from .records import AbsentSession
from .routing import MachineIdentity, PlacementRequest, directory_in

_ROWS_OF_ONE = 200
"""Rows that one machine lists at once."""
_MAX_ROWS = 200
_MAX_STREAMS = 100
"""Per principal."""
_WAITING = 64
"""Parts of streams that may wait for the page; beyond that the machines are throttled."""
_LIST_EVENTS = (b"event: session\n", b"event: session-gone\n", b"event: list-gap\n")
"""Events that are passed on from machines other than the one with the followed session."""


class FleetRoutes:
    """`PageRoutes` of `plugins/console/page_routes.py`."""

    def __init__(
        self,
        nats: Client,
        dispatch: Dispatch,
        fleet: LiveFleet,
        groups_of: Callable[[str], Collection[str]],
        still_signed_in: StillSignedIn,
        push: ApiPart | None = None,
    ) -> None:
        self._nats = nats
        self._push = push
        self._dispatch = dispatch
        self._fleet = fleet
        self._groups_of = groups_of
        self._still_signed_in = still_signed_in
        self._streams: dict[str, set[_FleetStream]] = {}

    def handlers(self) -> Handlers:
        session, more = "/sessions/{session}", "/sessions/{session}/{rest:path}"
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/events", self._events),
            ("GET", "/sessions", self._sessions),
            ("POST", "/sessions", self._create),
            ("GET", session, self._show),
            ("POST", f"{session}/messages", self._send),
            ("POST", f"{session}/manage", self._manage),
            *((method, more, self._of_session) for method in ("GET", "POST", "PUT", "DELETE")),
            *(("GET", route.path, partial(self._list, route)) for route in LISTS),
            ("GET", "/costs", self._costs),
            ("GET", "/mcp-servers", self._servers),
            ("POST", "/mcp-servers/{server}", self._of_machine),
            ("GET", "/directories", self._of_machine),
            *(self._push.handlers() if self._push is not None else ()),
        ]
        return [(method, path, _reachable(handler)) for method, path, handler in handlers]

    async def facts(self, user: WebUser) -> dict[str, Any]:
        answers, _ = await self._of_all(user, PageRequest("GET", f"/api{FACTS}"))
        facts = [fact for _, fact in answers]
        directories = dict.fromkeys(str(each) for fact in facts for each in fact.get("directories") or ())
        return {
            "modes": next((fact["modes"] for fact in facts if fact.get("modes")), []),
            "directories": [*directories],
            "bypassPossible": any(fact.get("bypassPossible") for fact in facts),
            "hub": any(fact.get("hub") for fact in facts),
            # If one machine refuses the costs, the total is refused.
            "allCosts": bool(facts) and all(fact.get("allCosts") for fact in facts),
            "vapidPublicKey": None,  # `/api/push` has it
            "push": self._push is not None,
            "machines": _machine_rows(self._fleet),
        }

    def clean(self, text: str) -> str:
        return text  # machines have already redacted secrets

    def watched(self, principal: str | None = None) -> bool:
        return bool(self._streams.get(principal)) if principal is not None else any(self._streams.values())

    def check_sign_ins(self, principal: str) -> None:
        for stream in self._streams.get(principal, ()):
            stream.look()

    def close(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    # -- asking machines ----------------------------------------------------------------------------------------

    def ask(
        self, machine: MachineIdentity, user: WebUser, asked: PageRequest
    ) -> contextlib.AbstractAsyncContextManager[PageAnswer]:
        return ask_page(self._nats, machine, user, self._groups_of(user.principal), asked)

    async def _passed_on(self, machine: MachineIdentity, user: WebUser, asked: PageRequest) -> Response:
        async with self.ask(machine, user, asked) as answered:
            content = await answered.whole()
        headers = {**ANSWER_HEADERS, **answered.headers}
        return Response(content, answered.status, headers, media_type=answered.media_type)

    async def _json(self, machine: MachineIdentity, user: WebUser, asked: PageRequest) -> dict[str, Any]:
        """A machine's answer, if it carries out the request. Otherwise raises MachineUnavailable with its reason."""
        async with self.ask(machine, user, asked) as answered:
            content = await answered.whole()
        try:
            found = from_json(content)
            if answered.status < 400:
                return dict(found)
            reason = str(found["error"]["message"])
        except (ValueError, KeyError, TypeError):
            reason = "Its answer cannot be parsed."
        raise MachineUnavailable(f"Machine {machine.name}: {reason}", machine=machine.id)

    async def _of_all(
        self,
        user: WebUser,
        asked: PageRequest,
        read: "Callable[[MachineIdentity], Awaitable[dict[str, Any]]] | None" = None,
    ) -> tuple[list[tuple[MachineIdentity, dict[str, Any]]], list[Silent]]:
        """The answers of all machines, and the machines without one, including offline ones."""
        machines = self._fleet.machines()
        read = read or (lambda machine: self._json(machine, user, asked))

        async def of(machine: MachineIdentity) -> dict[str, Any] | Silent:
            try:
                return await read(machine)
            except MachineUnavailable as problem:
                return Silent(machine, problem.message)

        replies = await asyncio.gather(*(of(machine) for machine in machines))
        answers = [(machine, row) for machine, row in zip(machines, replies, strict=True) if isinstance(row, dict)]
        silent = [each for each in replies if isinstance(each, Silent)]
        return answers, [*silent, *(Silent(each, f"Machine {each.name} is offline.") for each in self._fleet.gone())]

    # -- one session --------------------------------------------------------------------------------------------

    async def _machine_of(self, user: WebUser, session_id: str) -> MachineIdentity:
        """Raises RequestRefused (MACHINE_GONE) while the machine that holds it is offline."""
        try:
            return await self._dispatch.holder(session_id, partial(self._on_disk, user, session_id))
        except MachineUnavailable as gone:
            raise _is_gone(gone) from None

    async def _on_disk(self, user: WebUser, session_id: str, machines: Sequence[MachineIdentity]) -> MachineIdentity:
        if len(machines) == 1:
            return machines[0]
        answers, _ = await self._of_all(user, PageRequest("GET", f"/api/sessions/{session_id}"))
        found = [(str((row.get("session") or {}).get("lastUsed")), at) for at, (_, row) in enumerate(answers)]
        return answers[max(found)[1]][0] if found else machines[0]  # the machine answers that there is no such session

    async def _of_session(self, request: Request, user: WebUser) -> Response:
        machine = await self._machine_of(user, session_id_of(request))
        return await self._passed_on(machine, user, await _machine_request(request))

    async def _show(self, request: Request, user: WebUser) -> Response:
        machine = await self._machine_of(user, session_id_of(request))
        shown = await self._passed_on(machine, user, await _machine_request(request))
        if shown.status_code != 200:
            return shown
        details = dict(from_json(bytes(shown.body)))
        return answer({**details, "session": _rows([(machine, {"rows": [details.get("session")]})], "rows")[0]})

    async def _send(self, request: Request, user: WebUser) -> Response:
        """Sends a message. If the session's machine is offline, another one continues it."""
        session_id, asked, taken = session_id_of(request), await _machine_request(request), Taken()
        try:
            machine = await self._dispatch.holder(session_id, partial(self._on_disk, user, session_id))
        except MachineUnavailable as gone:
            try:
                machine, taken = await self._dispatch.taken_over(user.principal, session_id, gone.message)
            except MachineUnavailable as still_gone:
                raise _is_gone(still_gone) from None
        if taken == Taken():
            return await self._passed_on(machine, user, asked)
        return answer({**await self._json(machine, user, asked), "notices": taken.notices()}, 202)

    async def _manage(self, request: Request, user: WebUser) -> Response:
        session_id, asked = session_id_of(request), await _machine_request(request)
        body = asked.body or {}
        if body.get("action") != "move":
            try:
                machine = await self._dispatch.holder(session_id, partial(self._on_disk, user, session_id))
            except MachineUnavailable as gone:
                raise _is_gone(
                    MachineUnavailable(f"{gone.message} {HOLDER_ONLY_HINT} {CONTINUES_HINT}", **gone.data)
                ) from None
            return await self._passed_on(machine, user, asked)
        wanted = body.get("machine")
        if not isinstance(wanted, str) or not wanted:
            raise InvalidArgument("machine: required for move", field="machine")
        asked = PageRequest("POST", asked.path, body={name: body[name] for name in _OF_A_MOVE if name in body})

        async def release_for_move(source: MachineIdentity) -> str:
            return str((await self._json(source, user, asked))["sessionId"])

        on_disk = partial(self._on_disk, user, session_id)
        move = await self._dispatch.move(user.principal, session_id, wanted, on_disk, release_for_move)
        place = {"machine": move.machine.name, "machineId": move.machine.id}
        outcome = {"sessionId": move.session_id, "message": move.message, "notices": move.taken.notices()}
        return answer({**outcome, **place})

    async def _create(self, request: Request, user: WebUser) -> Response:
        body = await body_of(request)
        machine, labels = body.pop("machine", None) or None, body.pop("labels", None) or []
        if not isinstance(machine, str | None):
            raise InvalidArgument("machine: must be a string.", field="machine")
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise InvalidArgument("labels: must be a list of strings.", field="labels")
        directory, key = directory_in(body), body.get("messageKey")
        placement = PlacementRequest(
            user.principal, machine, frozenset(labels), directory if isinstance(directory, str) else None
        )

        async def report(_: int, __: int) -> None:
            return None

        chosen = await self._dispatch.chosen(placement, key if isinstance(key, str) else None, report)
        return await self._passed_on(chosen, user, PageRequest("POST", "/api/sessions", body=body))

    # -- all machines -------------------------------------------------------------------------------------------

    async def _sessions(self, request: Request, user: WebUser) -> Response:
        offset = number_of(request, "offset", 0, 0, 10**9) or 0
        limit = number_of(request, "limit", 50, 1, _MAX_ROWS) or 50
        query = {name: value for name, value in request.query_params.items() if name not in ("offset", "limit")}
        only = query.pop("machine", None)

        async def read(machine: MachineIdentity) -> dict[str, Any]:
            if only is not None and machine.id != only:
                return {}
            return await self._listed(machine, user, query, offset + limit)

        answers, silent = await self._of_all(user, PageRequest("GET", "/api/sessions"), read)
        total = sum(number(page.get("total")) or len(page.get("sessions") or ()) for _, page in answers)
        wanted = {**query, "projectDirectory": query.get("project"), "archived": flag_of(request, "archived")}
        absent = await self._dispatch.absent(user.principal, wanted)
        absent = [(machine, session) for machine, session in absent if only in (None, machine.id)]
        total += len(absent)
        answers += [(machine, {"sessions": [_absent_row(session)]}) for machine, session in absent]
        attention = [(machine, {"sessions": page.get("attention") or []}) for machine, page in answers]
        await self._dispatch.keep_holders_rows(answers)
        await self._dispatch.keep_holders_rows(attention)
        rows = _rows(answers, "sessions")
        rows.sort(key=lambda row: str(row.get("lastUsed") or ""), reverse=True)
        rows.sort(key=lambda row: not row.get("pinned"))  # stable: the newest stay first
        more = len(rows) > offset + limit or any(page.get("nextOffset") is not None for _, page in answers)
        return answer(
            {
                "attention": most_urgent_first(_rows(attention, "sessions")),
                "sessions": rows[offset : offset + limit],
                "nextOffset": offset + limit if more else None,
                "total": total if more and "text" not in query and "project" not in query else None,
                "unanswered": [each.row for each in silent],
            }
        )

    async def _listed(
        self, machine: MachineIdentity, user: WebUser, query: Mapping[str, str], wanted: int
    ) -> dict[str, Any]:
        """All rows of a machine up to the end of the requested page: which ones belong to the page is known when all
        machines have answered."""
        rows: list[Any] = []
        page: dict[str, Any] = {}
        first: dict[str, Any] = {}
        while len(rows) < wanted:
            part = {"offset": str(len(rows)), "limit": str(min(wanted - len(rows), _ROWS_OF_ONE))}
            page = await self._json(machine, user, PageRequest("GET", "/api/sessions", {**query, **part}))
            first = first or page
            more = objects(page.get("sessions"))
            rows += more
            if page.get("nextOffset") is None or not more:
                break
        return {**page, "sessions": rows, "attention": first.get("attention"), "total": first.get("total")}

    async def _list(self, route: ListRoute, request: Request, user: WebUser) -> Response:
        """The rows of all machines. Machines without an answer are listed, because their rows are unknown."""
        answers, silent = await self._of_all(user, await _machine_request(request))
        rows = _rows(answers, route.field)
        if route.sorted_by:
            rows.sort(key=lambda row: str(row.get(route.sorted_by)))
        return answer({route.field: rows, "unanswered": [each.row for each in silent]})

    async def _costs(self, request: Request, user: WebUser) -> Response:
        query = {name: value for name, value in request.query_params.items() if name != "format"}
        answers, silent = await self._of_all(user, PageRequest("GET", "/api/costs", query))
        if not answers:
            raise UpstreamUnavailable("No machine responds. " + " ".join(each.reason for each in silent))
        merged = merged_costs(answers)
        if text_of(request, "format") == "csv":
            headers = {**ANSWER_HEADERS, "Content-Disposition": 'attachment; filename="costs.csv"'}
            return Response(csv_of(merged["lines"]), headers=headers, media_type="text/csv")
        return answer({**merged, "unanswered": [each.row for each in silent]})

    async def _servers(self, request: Request, user: WebUser) -> Response:
        query = dict(request.query_params)
        only = query.pop("machine", None)

        async def read(machine: MachineIdentity) -> dict[str, Any]:
            asked = PageRequest("GET", "/api/mcp-servers", query)
            return await self._json(machine, user, asked) if only in (None, machine.id) else {}

        answers, silent = await self._of_all(user, PageRequest("GET", "/api/mcp-servers"), read)
        problems = [f"{machine.name}: {each}" for machine, page in answers for each in page.get("problems") or ()]
        unanswered = [each.row for each in silent]
        return answer({"servers": _rows(answers, "servers"), "problems": problems, "unanswered": unanswered})

    async def _of_machine(self, request: Request, user: WebUser) -> Response:
        """The answer of the machine that the request names."""
        wanted, machines = text_of(request, "machine"), self._dispatch.machines()
        machine = next((each for each in machines if each.id == wanted), None)
        if machine is None:
            raise InvalidArgument("machine: required; name a machine that is online.", field="machine")
        return await self._passed_on(machine, user, await _machine_request(request))

    # -- events -------------------------------------------------------------------------------------------------

    async def _events(self, request: Request, user: WebUser) -> Response:
        session_id = text_of(request, "session")
        if session_id is not None and not is_session_id(session_id):
            raise RequestRefused(404, "SESSION_NOT_FOUND", "There is no such session.")
        followed = None
        # There are no events for a session whose machine is gone, until another machine holds it.
        with contextlib.suppress(RequestRefused, PinnedToMachine):
            followed = await self._machine_of(user, session_id) if session_id is not None else None
        after = request.headers.get("last-event-id") or text_of(request, "after")
        mine = self._streams.setdefault(user.principal, set())
        # Checked and counted without an await in between: concurrent requests cannot all pass the check.
        if len(mine) >= _MAX_STREAMS:
            raise LimitReached("Too many pages are open at once.")
        stream = _FleetStream(self, self._fleet, user, self._still_signed_in)
        mine.add(stream)
        frames = stream.frames(session_id, followed, after)
        return StreamResponse(frames, partial(mine.discard, stream))


class _FleetStream:
    """The events of all machines for one page."""

    def __init__(
        self,
        routes: FleetRoutes,
        fleet: LiveFleet,
        user: WebUser,
        still_signed_in: StillSignedIn,
    ) -> None:
        self._routes = routes
        self._fleet = fleet
        self._user = user
        self._still_signed_in = still_signed_in
        self._parts: asyncio.Queue[tuple[MachineIdentity, bytes] | None] = asyncio.Queue(_WAITING)
        """None: a change must be checked."""
        self._over = self._to_check = False

    def look(self) -> None:
        """Checks whether the sign-in is still valid."""
        self._to_check = True
        with contextlib.suppress(asyncio.QueueFull):  # a full queue triggers the check anyway
            self._parts.put_nowait(None)

    def end(self) -> None:
        self._over = True
        self.look()

    async def frames(
        self, session_id: str | None, followed: MachineIdentity | None, after: str | None
    ) -> AsyncIterator[bytes]:
        machines = self._fleet.machines()
        tasks = [asyncio.ensure_future(self._end_when_changed(_processes(machines)))]
        tasks += [
            asyncio.ensure_future(
                self._follow(machine, session_id, after)
                if followed is not None and machine.id == followed.id
                else self._follow(machine, None, None)
            )
            for machine in machines
        ]
        try:
            yield b"retry: 2000\n\n" + frame("machines", {"machines": _machine_rows(self._fleet)})
            async for data in self._until_over(session_id, followed):
                yield data
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _until_over(self, session_id: str | None, followed: MachineIdentity | None) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        due = clock() + HEARTBEAT
        while not self._over:
            part = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    part = await self._parts.get()
            if part is not None:
                machine, data = part
                is_followed = followed is not None and machine.id == followed.id
                shown, sessions = _with_machine(data, machine, everything=is_followed)
                if shown:
                    yield shown
                # A report about the session from another machine counts if that machine holds it: then follow that
                # machine.
                if session_id in sessions and await self._has_moved(session_id, followed):
                    return
            if self._to_check or clock() >= due:
                self._to_check, due = False, clock() + HEARTBEAT
                if not await self._still_signed_in(self._user):
                    yield frame("signed-out", {})
                    return
                yield b": ping\n\n"
                if session_id is not None and await self._has_moved(session_id, followed):
                    return

    async def _has_moved(self, session_id: str | None, followed: MachineIdentity | None) -> bool:
        """Whether an online machine other than the followed one holds the session."""
        try:
            holder = await self._fleet.holder(session_id) if session_id is not None else None
        except (NatsError, TimeoutError):
            return False
        there = any(machine.id == holder for machine in self._fleet.machines())
        return there and (followed is None or holder != followed.id)

    async def _follow(self, machine: MachineIdentity, session_id: str | None, after: str | None) -> None:
        query = {"session": session_id} if session_id is not None else {}
        asked = PageRequest("GET", "/api/events", query, after=after)
        try:
            async with self._routes.ask(machine, self._user, asked) as answered:
                if answered.status == 200:
                    async for part in answered.parts():
                        await self._parts.put((machine, part))
                    self.end()
        except MachineUnavailable:
            pass  # it refuses this person, or is gone: the other streams continue
        # A session cannot be followed without its machine: the page reconnects and receives the reason.
        if session_id is not None:
            self.end()

    async def _end_when_changed(self, before: Sequence[tuple[str, str]]) -> None:
        while _processes(self._fleet.machines()) == before:
            await self._fleet.changed()
        self.end()


def _processes(machines: Sequence[MachineIdentity]) -> list[tuple[str, str]]:
    """A restarted machine counts as another: streams of its earlier process lead nowhere."""
    return [(machine.id, machine.run) for machine in machines]


# -- forwarded data ---------------------------------------------------------------------------------------------------


_OF_A_MOVE = ("action", "wait", "confirm")


def _reachable(handler: Handler) -> Handler:
    """Wraps a handler that reports if the fleet's server does not answer."""

    async def handle(request: Request, user: WebUser) -> Response:
        try:
            return await handler(request, user)
        except (NatsError, TimeoutError):
            raise UpstreamUnavailable("The fleet cannot be reached at the moment.") from None

    return handle


async def _machine_request(request: Request) -> PageRequest:
    """The request for a machine: unchanged, except for what only the gateway knows."""
    body = await body_of(request) if "content-type" in request.headers else None
    query = {name: value for name, value in request.query_params.items() if name != "machine"}
    return PageRequest(request.method, str(request.scope["path"]), query, body)


def _is_gone(problem: MachineUnavailable) -> RequestRefused:
    return RequestRefused(503, "MACHINE_GONE", problem.message, more={"machine": problem.data.get("machine")})


def _machine_rows(fleet: LiveFleet) -> list[dict[str, Any]]:
    """Every machine of the fleet, including offline ones, by name."""
    rows = [_machine_row(machine, True) for machine in fleet.machines()]
    return sorted([*rows, *(_machine_row(machine, False) for machine in fleet.gone())], key=_by_name)


def _machine_row(machine: MachineIdentity, there: bool) -> dict[str, Any]:
    row = {"id": machine.id, "name": machine.name, "there": there}
    if not isinstance(machine, Machine):
        return row
    more = {"sessions": machine.sessions, "capacity": machine.capacity, "draining": machine.draining}
    return {**row, **more, "labels": sorted(machine.labels)}


def _by_name(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["name"]), str(row["id"])


def _rows(answers: Sequence[tuple[MachineIdentity, Any]], name: str) -> list[dict[str, Any]]:
    """The rows of all machines, each with its machine. Invalid rows are skipped, because machines are not trusted."""
    return [
        {"machineGone": False, **row, "machine": machine.name, "machineId": machine.id}
        for machine, page in answers
        for row in objects(page.get(name))
    ]


def _absent_row(session: AbsentSession) -> dict[str, Any]:
    """The row of a session on an offline machine; what the page knew about its work is outdated."""
    over = {"needs": None, "asks": None, "unanswered": None, "machineGone": True}
    return {**page_row(absent_row(session)), **over}


def _with_machine(data: bytes, machine: MachineIdentity, *, everything: bool) -> tuple[bytes, set[str]]:
    """A machine's events with the machine in the rows of the list, and the sessions they are about. From machines
    without the followed session, only the list is passed on."""
    if everything and not any(kind in data for kind in _LIST_EVENTS):
        return data, set()
    shown, sessions = [], set()
    for event in data.split(b"\n\n"):
        if event.startswith(_LIST_EVENTS):
            head, _, text = event.partition(b"\ndata: ")
            try:
                row = dict(from_json(text))
            except (ValueError, TypeError):
                continue
            sessions.add(str(row.get("sessionId")))
            name = head.removeprefix(b"event: ").decode()
            place = {"machine": machine.name, "machineId": machine.id, "machineGone": False}
            shown.append(frame(name, {**row, **place}))
        elif everything and event:
            shown.append(event + b"\n\n")
    return b"".join(shown), sessions
