"""Who somebody is: over several tokens, changes of groups, restarts, and others who have the same name."""

import asyncio
import json
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from claude_code_mcp.cli import parser
from claude_code_mcp.client.conventions import ExitCode
from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.sandbox.homes import Homes
from claude_code_mcp.plugins.team import access_tokens
from claude_code_mcp.plugins.team.access_tokens import AccessTokens
from claude_code_mcp.plugins.team.person_names import PersonNames
from claude_code_mcp.server.transports.callers import Callers, CallerTokens
from claude_code_mcp.server.transports.identity import Identity
from tests.conftest import StartService

from .callers import TokenCallers
from .issuer import RSA_KEY, Issuer, published, sign

RESOURCE = "https://claude.example.org/mcp"
TEAM, LEAD = Profile(limits={"turns": 3}), Profile(limits={"turns": 9})  # type: ignore[arg-type]


def settings(issuer: Issuer, **more: str) -> Settings:
    named = {"CLAUDE_CODE_MCP_OAUTH_ISSUER": issuer.url, "CLAUDE_CODE_MCP_OAUTH_CLAIM": "name"}
    return load_settings({**named, **more})


def callers_of(issuer: Issuer, homes: Homes | None = None, **more: str) -> Callers:
    given = settings(issuer, **more)
    homes = homes or Homes(given, {}, Policy(TEAM), others=True)
    return TokenCallers(given, AccessTokens(given, RESOURCE), homes.admit, homes.assign)


def token_of(issuer: Issuer, subject: str, *groups: str, name: str = "ann", ago: float = 0.0, scope: str = "") -> str:
    issued_at = int(time.time() - ago)
    return sign(issuer.claims(RESOURCE, sub=subject, name=name, groups=[*groups], iat=issued_at, scope=scope))


NO_STRINGS: tuple[object, ...] = ({}, 7, None)


# -- names ------------------------------------------------------------------------------------------------------------


async def test_hub_sign_ins_are_not_inherited_with_a_name(issuer: Issuer) -> None:
    before = await callers_of(issuer).by_token(token_of(issuer, "user-1"))
    assert before is not None
    # Sign-ins are on the disk, and who has come by a name is not.
    restarted = callers_of(issuer)
    now = await restarted.by_token(token_of(issuer, "user-2"))
    assert now is not None
    assert await restarted.stands(now)
    assert not await restarted.stands(before)


async def test_the_groups_of_a_person_are_known_before_they_come_to_the_next_server(
    issuer: Issuer, tmp_path: Path
) -> None:
    now = time.time()
    database, policy = database_in(tmp_path), Policy(TEAM, groups={"leads": LEAD})

    def server(later: float = 0.0) -> Callers:
        nonlocal policy
        policy = Policy(TEAM, groups={"leads": LEAD})
        given = settings(issuer)
        homes = Homes(given, {}, policy, others=True)
        names = PersonNames(database, lambda: now + later)
        return TokenCallers(given, AccessTokens(given, RESOURCE), homes.admit, homes.assign, names)

    before = server()
    assert not before.remembers("ann")
    assert await before.by_token(token_of(issuer, "user-1", "leads", ago=9)) is not None
    after = server()
    assert (after.remembers("ann"), after.knows("ann")) == (True, False)
    assert policy.profile("ann") == LEAD
    assert await after.by_token(token_of(issuer, "user-1", "others")) is not None
    assert not policy.groups_of("ann") - {"others"}
    last = server()
    assert policy.profile("ann") == TEAM
    assert await last.by_token(token_of(issuer, "user-1", "leads", ago=9)) is not None
    assert policy.profile("ann") == TEAM, "a token from before she left brings no group back, here neither"
    assert not server(31 * 86_400.0).remembers("ann"), "who does not come for a month is as good as gone"
    assert PersonNames(database).forget("ann") is not None
    assert not server().remembers("ann")


async def test_name_of_a_token_caller_cannot_be_used_by_others(
    issuer: Issuer, tmp_path: Path, start_service: StartService
) -> None:
    file, token = tmp_path / "tokens", "ann-5f0c9d2e7b41a86c3d90-and-more"
    file.write_text("bob bob-5f0c9d2e7b41a86c3d90-and-more\n")
    file.chmod(0o600)
    callers = callers_of(issuer, CLAUDE_CODE_MCP_TOKENS_FILE=str(file))
    ended: asyncio.Queue[tuple[Identity, bool]] = asyncio.Queue()
    callers.on_ended(lambda identity, removed: ended.put_nowait((identity, removed)))
    person = await callers.by_token(token_of(issuer, "user-1"))
    assert person is not None
    following = asyncio.create_task(callers.follow(await start_service()))
    try:
        file.write_text(f"{file.read_text()}ann {token}\n")
        assert await asyncio.wait_for(ended.get(), 60) == (person, False)
        assert not await callers.stands(person)
        assert await callers.by_token(token_of(issuer, "user-1")) is None
        caller = await callers.by_token(token)
        assert caller is not None
        assert caller.principal == "ann"
    finally:
        following.cancel()


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_an_older_token_brings_no_group_back(issuer: Issuer) -> None:
    policy = Policy(TEAM, groups={"leads": LEAD})
    callers = callers_of(issuer, Homes(settings(issuer), {}, policy, others=True))
    older, newer = token_of(issuer, "user-1", "leads", ago=60), token_of(issuer, "user-1")
    assert await callers.by_token(older) is not None
    assert policy.profile("ann") == LEAD
    assert await callers.by_token(newer) is not None
    assert policy.profile("ann") == TEAM
    assert await callers.by_token(older) is not None, "it has not expired"
    assert policy.profile("ann") == TEAM


async def test_refused_person_with_a_taken_name_changes_nothing(issuer: Issuer) -> None:
    policy = Policy(TEAM, groups={"leads": LEAD})
    homes, given = Homes(settings(issuer), {}, policy, others=True), settings(issuer)
    both_asked, asked = asyncio.Event(), []

    async def admit(name: str, groups: Collection[str]) -> str | None:
        asked.append(groups)
        if len(asked) == 2:
            both_asked.set()
        await both_asked.wait()
        return await homes.admit(name, groups)

    callers = TokenCallers(given, AccessTokens(given, RESOURCE), admit, homes.assign)
    come = [callers.by_token(token_of(issuer, "user-1")), callers.by_token(token_of(issuer, "user-2", "leads"))]
    found = await asyncio.gather(*come)
    assert [identity is not None for identity in found].count(True) == 1
    assert policy.profile("ann") == (TEAM if found[0] is not None else LEAD)


async def test_a_profile_that_cannot_be_served_is_refused_as_often_as_it_is_asked_for(
    issuer: Issuer, tmp_path: Path
) -> None:
    given = load_settings({"CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state")})
    nowhere = Profile(isolation="container", image="no-such-image")
    homes = Homes(given, {"PATH": str(tmp_path)}, Policy(TEAM, groups={"boxed": nowhere}), others=True)
    assert await homes.admit("ann", ()) is None
    for _ in range(2):
        assert await homes.admit("ann", ("boxed",)) is not None
    assert homes.profile_of("ann") == TEAM


# -- scopes -----------------------------------------------------------------------------------------------------------


async def test_without_the_scopes_of_the_settings_no_one_is_let_in_anywhere(issuer: Issuer) -> None:
    callers = callers_of(issuer, CLAUDE_CODE_MCP_OAUTH_SCOPES="claude")
    lacking, enough = token_of(issuer, "user-1", scope="mail"), token_of(issuer, "user-1", scope="claude mail")
    assert await callers.by_token(lacking) is None
    assert await callers.by_token(enough) is not None
    assert await callers.by_token(lacking) is None
    # At /mcp the client is told what it lacks.
    at_mcp = await CallerTokens(callers, RESOURCE, lambda: None, ["claude"]).verify_token(lacking)
    assert at_mcp is not None
    assert at_mcp.scopes == ["mail"]


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_an_issuer_that_hangs_is_waited_for_once_while_its_keys_count(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, token = callers_of(issuer), token_of(issuer, "user-1")
    assert await callers.by_token(token) is not None
    monkeypatch.setattr(access_tokens, "_TIMEOUT", 1.0)
    monkeypatch.setattr(access_tokens, "_PAUSE", 0.0)
    monkeypatch.setattr(access_tokens, "_KEYS_FOR", 0.0)
    issuer.asked.clear()
    issuer.speaks.clear()
    first = asyncio.create_task(callers.by_token(token))
    await asyncio.sleep(0)
    monkeypatch.setattr(access_tokens, "_PAUSE", 1.5)  # shorter than one reading, which asks at two addresses
    assert None not in await asyncio.gather(first, *(callers.by_token(token) for _ in range(4)))
    assert len(issuer.asked) == 2


@pytest.mark.parametrize("name", ["kid", "alg", "kty", "use", "n", "e"])
@pytest.mark.parametrize(
    "value", [["x"], *(pytest.param(value, marks=pytest.mark.soak) for value in NO_STRINGS)], ids=str
)
async def test_something_that_is_no_key_leaves_the_others(issuer: Issuer, name: str, value: object) -> None:
    issuer.publish({**published(RSA_KEY, "x", "RS256"), name: value}, published(RSA_KEY, "rsa", "RS256"))
    assert await callers_of(issuer).by_token(token_of(issuer, "user-1")) is not None


# -- over restarts ----------------------------------------------------------------------------------------------------


def remembering(issuer: Issuer, state: Path) -> Callers:
    """A server that is started on a state directory."""
    given = settings(issuer)
    homes, names = Homes(given, {}, Policy(TEAM), others=True), PersonNames(database_in(state))
    return TokenCallers(given, AccessTokens(given, RESOURCE), homes.admit, homes.assign, names)


async def test_a_name_stays_that_of_its_person_over_restarts_until_it_is_given_free(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MCP_STATE_DIR", str(tmp_path))
    assert await remembering(issuer, tmp_path).by_token(token_of(issuer, "user-1")) is not None
    restarted = remembering(issuer, tmp_path)
    assert await restarted.by_token(token_of(issuer, "user-2")) is None
    assert await restarted.by_token(token_of(issuer, "user-1")) is not None
    assert parser.run(["people", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["names"]
    assert (listed["name"], listed["subject"], listed["issuer"]) == ("ann", "user-1", issuer.url)
    assert parser.run(["people", "forget", "ann"]) == 0
    assert parser.run(["people", "forget", "ann"]) == ExitCode.NOT_FOUND
    assert await remembering(issuer, tmp_path).by_token(token_of(issuer, "user-2")) is not None


async def test_sign_in_is_refused_while_the_name_cannot_be_verified(issuer: Issuer, tmp_path: Path) -> None:
    callers = remembering(issuer, tmp_path)
    database_in(tmp_path).close()
    with pytest.raises(UpstreamUnavailable):
        await callers.by_token(token_of(issuer, "user-1"))


@pytest.mark.parametrize("name", ["local", "operator", "unknown", "server", "channel:x", "group:leads", "default"])
async def test_reserved_name_cannot_be_used(issuer: Issuer, name: str, tmp_path: Path) -> None:
    assert await callers_of(issuer).by_token(token_of(issuer, "user-1", name=name)) is None
    if name != "default":  # which is what the token of the settings is called
        file = tmp_path / "tokens"
        file.write_text(f"{name} bob-5f0c9d2e7b41a86c3d90-and-more\n")
        file.chmod(0o600)
        with pytest.raises(InvalidArgument, match=f"{name!r}"):
            callers_of(issuer, CLAUDE_CODE_MCP_TOKENS_FILE=str(file))
