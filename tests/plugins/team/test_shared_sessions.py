"""Who may do what with a session of somebody else, by name and by group, over restarts and new ids."""

import asyncio
from pathlib import Path

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument, LimitReached, PermissionDenied, SessionNotFound
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.events import AuditEvent, Event
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.background_tasks import BackgroundTasks
from claude_code_mcp.core.sessions.callers.session_access import Access
from claude_code_mcp.core.sessions.observers import ObserverList
from claude_code_mcp.core.sessions.registry import Sessions
from claude_code_mcp.core.state.database import Database, StateFault
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.team import shares as shares_module
from claude_code_mcp.plugins.team.invited_people import InvitedPeople
from claude_code_mcp.plugins.team.person_names import PersonNames
from claude_code_mcp.plugins.team.plugin import TeamPlugin
from claude_code_mcp.plugins.team.shared_sessions import SharedSessions
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.core.sessions.support import PATIENCE, end_of, options, say

SESSION, OTHER = (f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2))


class Acts:
    """Collects the audited acts."""

    def __init__(self) -> None:
        self.seen: list[AuditEvent] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        pass

    def act(self, act: AuditEvent) -> None:
        self.seen.append(act)


def access_in(state: Path, policy: Policy, acts: Acts | None = None) -> SharedSessions:
    access, observers = SharedSessions(database_in(state), policy.groups_of), ObserverList()
    if acts is not None:
        observers.add(acts)
    access.attach(Sessions(load_settings({}), BackgroundTasks().start), observers)
    return access


async def test_shared_group_has_access_while_a_person_is_a_member(tmp_path: Path) -> None:
    policy, acts = Policy(), Acts()
    access = access_in(tmp_path, policy, acts)
    await access.share(SESSION, "ann", "group:leads", Access.ANSWER)
    assert access.owner_for(SESSION, "bob", Access.WATCH) is None
    policy.assign("bob", ["leads", "others"])
    assert access.owner_for(SESSION, "bob", Access.ANSWER) == "ann"
    assert [share.session_id for share in access.shared_with("bob")] == [SESSION]
    policy.assign("bob", ["others"])
    assert access.owner_for(SESSION, "bob", Access.WATCH) is None
    assert [(act.kind, act.who, act.details["with"]) for act in acts.seen] == [("session_shared", "ann", "group:leads")]


async def test_most_permissive_share_counts(tmp_path: Path) -> None:
    policy = Policy()
    access = access_in(tmp_path, policy)
    policy.assign("bob", ["leads"])
    await access.share(SESSION, "ann", "bob", Access.WATCH)
    with pytest.raises(PermissionDenied, match="watch"):
        access.owner_for(SESSION, "bob", Access.ANSWER)
    await access.share(SESSION, "ann", "group:leads", Access.ANSWER)
    assert access.owner_for(SESSION, "bob", Access.ANSWER) == "ann"
    assert await access.take_back(SESSION, "ann") == ["bob", "group:leads"]
    assert access.owner_for(SESSION, "bob", Access.WATCH) is None


async def test_who_may_watch_is_told_whose_it_is_and_who_else_may(tmp_path: Path) -> None:
    policy = Policy()
    access = access_in(tmp_path, policy)
    policy.assign("bob", ["leads"])
    assert access.sharing(SESSION, "ann").rows is None
    await access.share(SESSION, "ann", "group:leads", Access.ANSWER)
    await access.share(SESSION, "ann", "cyd", Access.WATCH)
    rows = [{"with": "cyd", "access": "watch"}, {"with": "group:leads", "access": "answer"}]
    rights = {name: access.sharing(SESSION, name) for name in ("ann", "bob", "cyd", "eve")}
    assert {name: sharing.owner for name, sharing in rights.items()} == {
        "ann": None,
        "bob": "ann",
        "cyd": "ann",
        "eve": None,
    }
    assert [rights[name].rows for name in ("ann", "bob", "cyd")] == [rows] * 3
    assert rights["eve"].rows is None, "nobody else's share is told to whom it is not shared with"


async def test_shares_outlive_a_restart_follow_a_new_id_and_are_seen_by_other_servers(tmp_path: Path) -> None:
    here, there = access_in(tmp_path, Policy()), access_in(tmp_path, Policy())
    await here.share(SESSION, "ann", "bob", Access.WATCH)
    here.moved(SESSION, OTHER)
    await there.refresh()
    for access in (here, there):
        assert access.owner_for(SESSION, "bob", Access.WATCH) is None
        assert access.owner_for(OTHER, "bob", Access.WATCH) == "ann"


async def test_the_number_of_shares_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "_MAX_PER_OWNER", 2)
    access = access_in(tmp_path, Policy())
    for name in ("bob", "carol", "bob"):
        await access.share(SESSION, "ann", name, Access.WATCH)
    with pytest.raises(LimitReached):
        await access.share(SESSION, "ann", "dave", Access.WATCH)


@pytest.mark.parametrize("how", ["forgotten", "removed"])
async def test_shares_by_and_with_a_removed_person_end(tmp_path: Path, how: str) -> None:
    database = database_in(tmp_path)
    names, invited = PersonNames(database), InvitedPeople(database)
    if how == "removed":
        invited.invite("bob")
    else:
        assert names.take("bob", "https://issuer.example.org", "1")
    here, taken_back = access_in(tmp_path, Policy()), list[str]()
    here.on_taken_back(taken_back.append)
    for session, grantee in ((SESSION, "bob"), (SESSION, "cyd"), (SESSION, "group:bob")):
        await here.share(session, "ann", grantee, Access.ANSWER)
    await here.share(OTHER, "bob", "eve", Access.WATCH)
    taken_back.clear()
    ended = await asyncio.to_thread(names.forget if how == "forgotten" else invited.remove, "bob")
    assert ended is not None
    assert {(share.owner, share.grantee) for share in ended.shares} == {("ann", "bob"), ("bob", "eve")}
    await here.refresh()
    assert sorted(taken_back) == [SESSION, OTHER], "what they have open ends"
    assert here.shared_with("bob") == []
    assert here.owner_for(SESSION, "cyd", Access.ANSWER) == "ann"
    assert [share.grantee for share in here.sharing(SESSION, "ann").shares] == ["cyd", "group:bob"]
    assert here.sharing(OTHER, "bob").rows is None
    assert here.owner_for(OTHER, "eve", Access.WATCH) is None


async def test_the_shares_of_a_removed_person_count_no_more_even_if_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, taken_back = access_in(tmp_path, Policy()), list[str]()
    here.on_taken_back(taken_back.append)
    await here.share(OTHER, "bob", "eve", Access.WATCH)
    taken_back.clear()
    with monkeypatch.context() as full:
        full.setattr(Database, "write", _disk_full)
        await here.end_shares_of("bob")
    assert taken_back == [OTHER]
    await here.share(SESSION, "ann", "cyd", Access.WATCH)  # which reads everything again
    assert here.sharing(OTHER, "bob").rows is None
    await here.end_shares_of("bob")
    elsewhere = access_in(tmp_path, Policy())
    await elsewhere.refresh()
    assert elsewhere.sharing(OTHER, "bob").rows is None
    assert elsewhere.sharing(SESSION, "ann").rows is not None


def _disk_full(*_: object, **__: object) -> None:
    raise StateFault("the disk is full")


# -- what is open ends ------------------------------------------------------------------------------------------------


@pytest.fixture
async def service(start_service: StartService) -> Service:
    started = await start_service(access=TeamPlugin().access)
    assert isinstance(started, Service)
    return started


async def test_access_through_a_group_ends_when_a_member_leaves(service: Service) -> None:
    ended = list[str]()
    await service.access.share(SESSION, "ann", "group:leads", Access.WATCH)
    await service.access.share(OTHER, "ann", "group:others", Access.WATCH)
    service.access.on_taken_back(ended.append)
    service.assign("bob", ["leads", "others"])
    service.assign("bob", ["others", "leads"])
    assert ended == []
    service.assign("bob", ["others"])
    assert ended == [SESSION]


async def test_a_watcher_who_is_removed_gets_no_events_and_a_deleted_session_loses_its_shares(
    service: Service, sandbox: Sandbox
) -> None:
    ann, bob = Caller("ann"), Caller("bob")
    turn = await service.create(script("one", "first"), options(sandbox), caller=ann)
    await end_of(turn)
    session = turn.session.id
    await service.stored.share(session, "bob", Access.WATCH, caller=ann)
    received_lines, begun = list[str](), asyncio.Event()

    async def follow() -> None:
        async for lines in service.stored.follow(session, caller=bob):
            received_lines.extend(lines)
            begun.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(PATIENCE):
        while not begun.is_set():
            await say(service, session, script("two", "second"), caller=ann)
        await service.stored.unshare(session, "bob", caller=ann)
        await say(service, session, script("three", "third"), caller=ann)
        await following
    assert not any("third" in line for line in received_lines)
    # What was removed is shared with nobody.
    await service.stored.share(session, "bob", Access.WATCH, caller=ann)
    await service.stored.delete(session, caller=ann)
    assert service.access.shared_with("bob") == []


async def test_without_a_plug_in_that_shares_a_session_is_its_owners_alone(
    start_service: StartService, sandbox: Sandbox
) -> None:
    plain, ann, bob = await start_service(), Caller("ann"), Caller("bob")
    turn = await plain.create(script("one", "first"), options(sandbox), caller=ann)
    await end_of(turn)
    with pytest.raises(InvalidArgument, match="does not support sharing"):
        await plain.stored.share(turn.session.id, "bob", Access.ANSWER, caller=ann)
    with pytest.raises(SessionNotFound):
        await plain.find(turn.session.id, caller=bob)
    assert plain.access.sharing(turn.session.id, "ann").rows is None
