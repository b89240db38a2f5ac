"""People are told of what happens on any machine, at the receivers that they have registered at the gateway."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied, UpstreamUnavailable
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, GroupBudget, Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.session_records import SessionRecord
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.keeper import Keeper, KeeperOwnership
from claude_code_mcp.plugins.fleet.nats_client import Client
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.push_receivers import FleetReceivers, MachinePush
from claude_code_mcp.plugins.fleet.tickets import new_seed
from claude_code_mcp.plugins.push.preferences import Notice, Receiver, with_receiver, without_receiver
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.plugins.console.console_client import Browser
from tests.plugins.push.receiver import BrowserKeys, PushReceiver, Received, receiving, verified_claims
from tests.plugins.push.test_budget_push import warned
from tests.support.fleet import Computer, processes_of
from tests.support.waiting import HANG_SECONDS, until, until_true

from .conftest import in_own_task


class Fleet:
    """The console of a gateway, whose user has machines called server and laptop."""

    def __init__(self, server: Computer, machines: dict[str, Computer]) -> None:
        link = next(word for word in server.run("web").split() if "#ticket=" in word)
        self.base, _, ticket = link.partition("/#ticket=")
        self.browser = Browser(self.base)
        self._machines = machines
        assert self.browser.sign_in(ticket=ticket).status == 200

    def register(self, **receiver: Any) -> dict[str, Any]:
        made = self.browser.post("/api/push/receivers", receiver)
        assert made.status == 201, made.body
        return dict(made.json)

    def remove(self, receiver: dict[str, Any]) -> None:
        assert self.browser.ask("DELETE", f"/api/push/receivers/{receiver['receiver']['id']}").status == 200

    def ask_on(self, machine: str, what: str) -> dict[str, Any]:
        """The question of a new session there."""
        work = script(what, tool("Bash", command=f"touch {what}"), "done")
        there = {"machine": machine, "workingDirectory": str(self._machines[machine].project)}
        body = {"prompt": work, "permissionMode": "default", **there}
        made = self.browser.post("/api/sessions", body)
        assert made.status == 201, made.body
        return self._question_of(made.json["sessionId"])

    def ask_again(self, session_id: str, what: str) -> dict[str, Any]:
        """The next question of a session."""
        work = script(what, tool("Bash", command=f"touch {what}"), "done")
        sent = self.browser.post(f"/api/sessions/{session_id}/messages", {"message": work})
        assert sent.status == 202, sent.body
        return self._question_of(session_id)

    def _question_of(self, session_id: str) -> dict[str, Any]:
        def asked() -> list[dict[str, Any]]:
            return [
                row for row in self.browser.get("/api/questions").json["questions"] if row["sessionId"] == session_id
            ]

        until(lambda: bool(asked()), "it never asked")
        return asked()[0]

    def answer(self, question: dict[str, Any]) -> None:
        path = f"/api/sessions/{question['sessionId']}/questions/{question['questionId']}"
        assert self.browser.post(path, {"decision": "allow"}).status == 200


def next_push(receiver: PushReceiver, kind: str, session_id: str) -> Received:
    """The next thing that it is told, which is this."""
    received = receiver.next()
    said = json.loads(received.body)
    assert (said["kind"], said["sessionId"]) == (kind, session_id)
    return received


@pytest.mark.soak
def test_question_on_any_machine_is_pushed_once_to_each_receiver(tmp_path: Path, model: ScriptedModelThread) -> None:
    machines = {name: Computer(tmp_path / name, model.url) for name in ("server", "laptop")}
    server, laptop = machines.values()
    with (
        receiving() as first,
        receiving() as second,
        receiving(201) as push_service,
        server.up(),
    ):
        with laptop.joined("laptop", ticket=server.ticket):
            fleet = Fleet(server, machines)
            hook = fleet.register(kind="webhook", url=f"{first.url}/secret-path")
            keys = BrowserKeys()
            fleet.register(
                kind="webpush", subscription=keys.subscription(f"{push_service.url}/send/abc"), device="Phone"
            )
            fleet.browser.ask("PUT", "/api/push", {"events": ["question"], "quietHours": None})
            begun: dict[str, str] = {}
            for machine in machines:
                question = fleet.ask_on(machine, f"one-{machine}")
                begun[machine] = question["sessionId"]
                check_signature(next_push(first, "question", question["sessionId"]), hook["secret"])
                pushed = push_service.next()
                shown = keys.decrypt(pushed.body)
                assert (
                    shown["url"]
                    == f"{fleet.base}/#/sessions/{question['sessionId']}/questions/{question['questionId']}"
                )
                key = fleet.browser.get("/api/push").json["vapidPublicKey"]
                assert verified_claims(pushed.headers["authorization"], key)["aud"] == push_service.url
                fleet.answer(question)
            rows = fleet.browser.get("/api/push").json["receivers"]
            assert all(row["lastSentAt"] and row["lastError"] is None for row in rows)
            assert hook["secret"] not in fleet.browser.get("/api/push").body.decode()
        # While a machine is away one receiver goes and another one comes.
        fleet.remove(hook)
        fleet.register(kind="webhook", url=second.url)
        with laptop.joined("laptop"):
            question = fleet.ask_on("laptop", "two")
            next_push(second, "question", question["sessionId"])
            push_service.next()
            fleet.answer(question)
            last = fleet.ask_again(begun["server"], "three")
            next_push(second, "question", last["sessionId"])
            push_service.next()
    for receiver in (first, second, push_service):
        assert receiver.received.empty(), "somebody was told twice, or after they were removed"
    stored = b"".join(path.read_bytes() for path in (server.root / "state" / "fleet").rglob("*") if path.is_file())
    assert b"fleet_push" in stored
    for secret in (hook["secret"], "secret-path", "/send/abc", keys.subscription("")["keys"]["auth"]):
        assert secret.encode() not in stored, "in the clear in NATS's own files"
    until(lambda: not processes_of([server, laptop]), "something was left running")
    assert "Traceback" not in server.errors + laptop.errors


def check_signature(received: Received, secret: str) -> None:
    signed = f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}.".encode() + received.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert received.headers["webhook-signature"] == f"v1,{expected}"


# -- the keeper -------------------------------------------------------------------------------------------------------


def webhook(url: str) -> Receiver:
    return Receiver(id=uuid.uuid4().hex[:16], kind="webhook", url=url, created_at=0.0, secret="whsec_" + "A" * 43 + "=")


@dataclass
class Keepers:
    """Two gateways with keys of their own, and a machine `m` that holds a session of alice."""

    gateways: list[FleetReceivers]
    machine: KeeperOwnership
    other: KeeperOwnership
    session_id: str

    async def push(self, receiver: Receiver, delivery: str, by: KeeperOwnership | None = None, **changed: Any) -> Any:
        notice = asdict(Notice("question", self.session_id, "A title", "Wants to", time.time(), time.time() + 60, "q1"))
        about = {"session_id": changed.pop("session_id", self.session_id), "principal": "alice"}
        asked = {**about, "receiver": receiver.id, "delivery": delivery}
        return await (by or self.machine).ask("push", 30, **asked, notice={**notice, **changed})


@pytest.fixture
async def keepers(fleet: FleetConnection) -> AsyncIterator[Keepers]:
    bucket = await OwnershipBucket.opened(fleet)
    session_id = str(uuid.uuid4())
    await bucket.claim(session_id, "alice", "m")
    async with AsyncExitStack() as stack:
        gateways: list[FleetReceivers] = []
        for _ in range(2):
            seed = new_seed()
            receivers = FleetReceivers(fleet, bucket, seed)
            receivers.private, receivers.base = ("alice",), f"http://gateway-{len(gateways)}/"
            receivers.knows = lambda _: True
            keeper = Keeper(fleet, bucket, seed, receivers.verbs, receivers.verbs_for_all)
            await stack.enter_async_context(in_own_task(keeper.serving()))
            gateways.append(receivers)
        asking = [
            KeeperOwnership(replace(fleet, client=await inbox_of(fleet, name, stack)), name) for name in ("m", "x")
        ]
        yield Keepers(gateways, asking[0], asking[1], session_id)


async def inbox_of(fleet: FleetConnection, machine_id: str, stack: AsyncExitStack) -> Client:
    """A connection of a machine: the keeper answers into its own inbox alone."""
    assert fleet.client.connected_url is not None
    connection = await connect(fleet.client.connected_url.geturl(), inbox_prefix=names.inbox(machine_id))
    stack.push_async_callback(connection.abandon)
    return connection.client


async def test_a_receiver_is_sent_to_by_its_own_gateway_once_and_only_for_the_sessions_owner(keepers: Keepers) -> None:
    with receiving() as hook:
        first, second = keepers.gateways
        ours = [webhook(f"{hook.url}/{number}") for number in range(2)]
        await first.update("alice", partial(with_receiver, receiver=ours[0]))
        chosen = await second.update("alice", partial(with_receiver, receiver=ours[1]))
        assert [each.url for each in chosen.receivers] == [hook.url, ours[1].url], "of the other's only where it is"
        assert [each.secret for each in (await first.read("alice")).receivers] == [ours[0].secret, ""]
        listed = await keepers.machine.ask("receivers", session_id=keepers.session_id)
        assert listed["receivers"] == [{"id": each.id, "kind": "webhook"} for each in ours], "and nothing more"
        # Each by the gateway that can; the same delivery a second time is known there.
        answers = [await keepers.push(receiver, "msg_1") for receiver in (*ours, *ours)]
        assert [answer["status"] for answer in answers] == [200] * 4
        received = [hook.next(), hook.next()]
        assert [each.path for each in received] == ["/0", "/1"]
        pages = [f"http://gateway-{at}/#/sessions/{keepers.session_id}/questions/q1" for at in range(2)]
        assert [json.loads(each.body)["url"] for each in received] == pages
        # Not by a machine that does not hold the session, nor with what is no notice of it.
        with pytest.raises(PermissionDenied):
            await keepers.other.ask("receivers", session_id=keepers.session_id)
        with pytest.raises(PermissionDenied):
            await keepers.push(ours[0], "msg_2", keepers.other)
        with pytest.raises(InvalidArgument):
            await keepers.push(ours[0], "msg_3", kind="budget")
        # What was removed, or whose person was, gets nothing.
        await second.update("alice", partial(without_receiver, receiver_id=ours[0].id))
        assert await keepers.push(ours[0], "msg_4") == {"status": 410}
        second.knows = lambda principal: principal != "alice"
        assert await keepers.push(ours[1], "msg_5") == {"status": 403}
        assert hook.received.empty()
        assert "gateway" in str(await first.try_out("alice", ours[1]))


async def test_a_receiver_of_a_later_version_fails_alone_and_its_own_fields_are_sealed(
    keepers: Keepers, fleet: FleetConnection
) -> None:
    fields = {"id": "later", "kind": "pigeon", "created_at": 0.0, "loft": "the secret loft"}
    with receiving() as hook:
        first, second = keepers.gateways
        later, ours = Receiver.model_validate({**fields, "url": hook.url}), webhook(hook.url)
        await first.update("alice", partial(with_receiver, receiver=later))
        await second.update("alice", partial(with_receiver, receiver=ours))
        stored = await fleet.jetstream.key_value(names.PUSH)
        (key,) = await stored.keys()
        assert b"pigeon" in ((await stored.get(key)).value or b"")
        assert b"loft" not in ((await stored.get(key)).value or b"")
        assert (await first.read("alice")).receivers[0] == later, "as it was, though another gateway has written since"
        assert await keepers.push(later, "msg_1") == {"failed": "it could not be reached"}, "no machine learns more"
        assert (await keepers.push(ours, "msg_1"))["status"] == 200
        assert hook.next().path == "/"
        assert hook.received.empty()


async def test_a_try_that_failed_is_made_again_and_a_subscription_that_has_ended_is_removed(keepers: Keepers) -> None:
    keys, (gateway, _) = BrowserKeys(), keepers.gateways
    with receiving(503, 201, 410) as service:
        made = keys.subscription(f"{service.url}/send")
        receiver = Receiver(
            id="r1", kind="webpush", url=made["endpoint"], created_at=0.0, public_key=made["keys"]["p256dh"],
            auth=made["keys"]["auth"],
        )  # fmt: skip
        await gateway.update("alice", partial(with_receiver, receiver=receiver))
        assert [(await keepers.push(receiver, "msg_1"))["status"] for _ in range(3)] == [503, 201, 201]
        assert gateway.status("r1").sent_at is not None
        assert (await keepers.push(receiver, "msg_2"))["status"] == 410
        assert (await gateway.read("alice")).receivers == ()
        assert len([service.next() for _ in range(3)]) == 3
        assert service.received.empty()


async def test_no_request_of_a_machine_ends_the_keeper(keepers: Keepers) -> None:
    receiver = webhook("http://127.0.0.1:9/")
    await keepers.gateways[0].update("alice", partial(with_receiver, receiver=receiver))
    wrong: list[dict[str, Any]] = [{"at": 10**400}, {"expires_at": 10**400}, {"title": {}, "kind": []}]
    for senseless in wrong:
        with pytest.raises(InvalidArgument):
            await keepers.push(receiver, "msg_1", **senseless)
    holding = {"session_id": keepers.session_id, "principal": "alice", "revision": 0}
    with pytest.raises(InvalidArgument):
        await keepers.machine.ask("confirm", epoch=float("inf"), **holding)
    client = keepers.machine._connection.client
    nested = await client.request(names.keeper("m", "read"), b"[" * 100_000, timeout=HANG_SECONDS)
    assert json.loads(nested.data)["error"] == "InvalidArgument"
    assert await keepers.machine.ask("read", session_id=keepers.session_id)


async def test_hanging_or_flooded_receiver_does_not_delay_others(keepers: Keepers) -> None:
    gateway, reached, over = keepers.gateways[0], asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    dead = webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    with receiving() as hook:
        for receiver in (dead, alive := webhook(hook.url)):
            await gateway.update("alice", partial(with_receiver, receiver=receiver))
        waiting = [asyncio.ensure_future(keepers.push(dead, f"msg_{number}")) for number in range(50)]
        await reached.wait()
        assert (await keepers.push(alive, "msg_1"))["status"] == 200
        assert not any(each.done() for each in waiting), "they wait, and nobody else does"
        over.set()
        assert await asyncio.gather(*waiting) == [{"failed": "it could not be reached"}] * 50, (
            "its address is no machine's"
        )
        # A stolen key makes up as many as it likes; the person is not told all of them. All in one moment.
        now = time.monotonic()
        for each in keepers.gateways:
            each._notices._clock = lambda: now
        answers = [await keepers.push(alive, f"msg_{number}") for number in range(2, 70)]
        assert {answer["status"] for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer["status"] == 429)
        assert refused["retry_after"] >= 1
        assert hook.received.qsize() < 69
    server.close()


async def test_no_notifications_before_callers_are_known(keepers: Keepers) -> None:
    gateway = keepers.gateways[0]
    with receiving() as hook:
        await gateway.update("alice", partial(with_receiver, receiver=(receiver := webhook(hook.url))))
        gateway.knows = None
        with pytest.raises(UpstreamUnavailable):  # which a machine tries again
            await keepers.push(receiver, "msg_1")
        gateway.knows = lambda _: True
        assert (await keepers.push(receiver, "msg_1"))["status"] == 200
        hook.next()
        assert hook.received.empty()


async def test_budget_warning_is_pushed_once_to_receivers_of_owner_and_group(
    keepers: Keepers, start_service: StartService
) -> None:
    policy = Policy(OPEN_PROFILE, budgets={"leads": GroupBudget(monthly_usd=10)})
    people = ("alice", "bob", "carol")
    for name in people[:2]:
        policy.assign(name, ["leads"])
    service = await start_service(policy=policy, principals=people)
    for name in people:
        record = SessionRecord(
            session_id=str(uuid.uuid4()), owner=name, created_at=1, used_at=1, cwd="/", options=SessionOptions()
        )
        service.relocation.environment_of(Caller(name)).stores.recorder.records.write(record)
    push = MachinePush(service, keepers.machine, service.settings.state_dir / "web", "laptop")
    push.serve_at("fleet")
    with receiving() as hook:
        for gateway in keepers.gateways:
            gateway.private = people
        for name in people:
            await keepers.gateways[0].update(name, partial(with_receiver, receiver=webhook(f"{hook.url}/{name}")))
        for group, names_told in ((None, {"/alice"}), ("leads", {"/alice", "/bob"})):
            push.act(warned("alice", group))
            received = [await asyncio.to_thread(hook.next) for _ in names_told]
            await until_true(lambda: not push.pending)
            assert {each.path for each in received} == names_told
            for each in received:
                body = json.loads(each.body)
                assert (body["kind"], body["sessionId"], body["title"]) == ("budget", None, "Budget on laptop")
                assert body["url"] == "http://gateway-0/#/costs"
                assert body["body"].endswith("for this month is spent: $8.50 of $10.00.")
        assert hook.received.empty(), "somebody was told twice, or of a budget that is not theirs"
        # Of a session a machine still says nothing that it does not hold, whoever it names.
        alice = (await keepers.gateways[0].read("alice")).receivers[0]
        asked = {"session_id": str(uuid.uuid4()), "principal": "alice"}
        with pytest.raises(PermissionDenied):
            await keepers.machine.ask("receivers", **asked)
        for kind in ("question", "ended", "test"):
            with pytest.raises(InvalidArgument):
                await keepers.push(alice, "msg_1", session_id="", kind=kind)
        assert hook.received.empty()
    push.close()


async def test_a_machine_understands_a_keeper_of_a_later_version(fleet: FleetConnection, service: Service) -> None:
    session_id, answer = str(uuid.uuid4()), dict[str, Any]()

    async def later(_: str, __: dict[str, Any]) -> Any:
        return answer

    bucket = await OwnershipBucket.opened(fleet)
    async with AsyncExitStack() as stack:
        keeper = Keeper(fleet, bucket, new_seed(), {"receivers": later})
        await stack.enter_async_context(in_own_task(keeper.serving()))
        asking = KeeperOwnership(replace(fleet, client=await inbox_of(fleet, "m", stack)), "m")
        push = MachinePush(service, asking, service.settings.state_dir / "web", "m")
        answer.update(
            events=["question", "weather"], chosen_from=["question", "weather"], quiet_hours=None, mood=1,
            receivers=[{"id": "r1", "kind": "pigeon", "color": "gray"}, {"id": "r2", "kind": "webpush"}],
        )  # fmt: skip
        chosen = await push.chosen_for("alice", session_id)
        assert "question" in chosen.events
        assert [each.id for each in chosen.receivers] == ["r1", "r2"]
        assert chosen.receivers[1].kind == "webpush"
        answer["quiet_hours"] = {"weekdays": 5}
        with pytest.raises(UpstreamUnavailable, match="cannot be parsed"):  # what it may mean is tried again
            await push.chosen_for("alice", session_id)
        push.close()
