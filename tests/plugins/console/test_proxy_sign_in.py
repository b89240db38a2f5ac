"""Signing in by the word of a proxy: of one that is trusted, and of anybody who says what it would say."""

from collections.abc import Iterator
from typing import Any

import pytest

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.plugins.sandbox.homes import Homes
from claude_code_mcp.plugins.team.authenticators import authenticators
from claude_code_mcp.plugins.team.proxy_users import ProxyUsers, user_of
from claude_code_mcp.testing import ScriptedModelThread
from tests.support.bubblewrap import missing

from .conftest import PROXY, Console, running_console
from .console_client import Answer, Browser

POLICY = """
default = "people"
[profiles.people]
base = "local"
[profiles.leads]
base = "local"
limits = { daily_usd = 7.0 }
[groups]
leads = "leads"
"""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Console]:
    root = tmp_path_factory.mktemp("proxied")
    (root / "policy.toml").write_text(POLICY)
    with running_console(
        root,
        model.url,
        CLAUDE_CODE_MCP_TRUSTED_PROXIES=PROXY,
        CLAUDE_CODE_MCP_PROXY_USER_HEADER="X-Forwarded-User",
        CLAUDE_CODE_MCP_PROXY_GROUPS_HEADER="X-Forwarded-Groups",
        CLAUDE_CODE_MCP_POLICY=str(root / "policy.toml"),
        CLAUDE_CODE_MCP_PROFILE="people",
    ) as console:
        yield console


def through(console: Console, name: str, address: str = PROXY, **headers: str) -> Browser:
    """A browser whose requests come from this address with the name of a person."""
    return Browser(console.base, headers={"X-Forwarded-User": name, **headers}, address=address)


def let_in(browser: Browser) -> Answer:
    return browser.sign_in()


def test_trusted_proxy_names_the_user_with_every_request(proxied: Console) -> None:
    browser = through(proxied, "erin")
    signed_out = browser.get("/api/me")
    assert (signed_out.status, signed_out.json["signIn"]["open"]) == (401, True)
    assert let_in(browser).json["principal"] == "erin"
    assert browser.get("/api/me").json["principal"] == "erin"
    proxied.audited('"by": "proxy"')
    # The cookie alone, past the proxy or with the name of somebody else, is nothing.
    for other in ({"X-Forwarded-User": ""}, {"X-Forwarded-User": "frank"}):
        assert Browser(proxied.base, browser.cookie, browser.csrf, other, PROXY).get("/api/me").status == 401
    assert (
        Browser(proxied.base, browser.cookie, browser.csrf, browser.headers, "127.0.0.1").get("/api/me").status == 401
    )
    assert browser.get("/api/me").status == 200


def test_user_header_from_untrusted_addresses_is_ignored(proxied: Console) -> None:
    stranger = through(proxied, "erin", "127.0.0.1")
    assert stranger.get("/api/me").json["signIn"]["open"] is False
    assert let_in(stranger).status == 401


@pytest.mark.parametrize("name", ["alice", "local", "operator", "two words", "", "a" * 129])
def test_there_are_names_that_a_proxy_cannot_give(proxied: Console, name: str) -> None:
    assert let_in(through(proxied, name)).status == 401


def test_groups_come_with_it_and_give_a_profile(proxied: Console) -> None:
    browser = through(proxied, "grace", **{"X-Forwarded-Groups": "others, leads"})
    assert let_in(browser).status == 200
    assert browser.get("/api/budgets").json["budgets"] == [{"period": "day", "limitUsd": 7.0, "spentUsd": 0}]


def test_who_the_proxy_says_is_in_a_group_no_more_has_its_profile_no_more(proxied: Console) -> None:
    browser = through(proxied, "heidi", **{"X-Forwarded-Groups": "leads"})
    assert let_in(browser).status == 200
    assert browser.get("/api/budgets").json["budgets"] != []
    browser.headers["X-Forwarded-Groups"] = "others"
    assert browser.get("/api/budgets").json["budgets"] == []


def test_without_a_page_of_ours_nothing_is_begun(proxied: Console) -> None:
    browser = through(proxied, "erin")
    assert browser.post("/api/sign-in", {}, Origin="https://evil.example").status == 403


@pytest.mark.parametrize("proxies", ["", "*"])
def test_untrusted_user_header_prevents_the_start(proxies: str) -> None:
    named = {"CLAUDE_CODE_MCP_PROXY_USER_HEADER": "X-Forwarded-User"}
    more = {"CLAUDE_CODE_MCP_TRUSTED_PROXIES": proxies} if proxies else {}
    with pytest.raises(InvalidArgument, match="TRUSTED_PROXIES"):
        authenticators(load_settings({**named, **more}))


SANDBOXED = Profile(isolation="sandbox", network="host")
HERE = {"CLAUDE_CODE_MCP_PROXY_USER_HEADER": "X-Forwarded-User", "CLAUDE_CODE_MCP_TRUSTED_PROXIES": "127.0.0.1,::1"}


@pytest.mark.parametrize(
    ("profile", "changed"),
    [
        (SANDBOXED, {"CLAUDE_CODE_MCP_PROXY_SECRET": "a secret of the proxy"}),
        (SANDBOXED, {"CLAUDE_CODE_MCP_TRUSTED_PROXIES": "10.0.0.2"}),
        (SANDBOXED.model_copy(update={"network": "model"}), {}),
    ],
    ids=["a secret", "another machine", "no way there"],
)
async def test_a_proxy_whose_address_sessions_have_too_needs_a_secret(
    profile: Profile, changed: dict[str, str]
) -> None:
    if reason := missing():
        pytest.skip(reason)
    with pytest.raises(InvalidArgument, match="CLAUDE_CODE_MCP_PROXY_SECRET"):
        await Homes(load_settings(HERE), {}, Policy(SANDBOXED), others=True).prepare()
    await Homes(load_settings({**HERE, **changed}), {}, Policy(profile), others=True).prepare()


async def test_missing_sandbox_behind_a_proxy_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    await Homes(load_settings(HERE), {}, Policy(Profile()), others=True).prepare()
    assert any("isolation" in record.getMessage() for record in caplog.records), caplog.text


async def asked_with(settings: Settings, *headers: tuple[bytes, bytes]) -> tuple[object, list[tuple[bytes, bytes]]]:
    """Whom the application is told that a request is from, and the headers that it gets."""
    seen: list[Any] = []

    async def application(scope: Any, _: object, __: object) -> None:
        seen.append(scope)

    scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": [(b"x-forwarded-user", b"erin"), *headers]}
    await ProxyUsers(application, settings)(scope, None, None)  # type: ignore[arg-type]
    return user_of(seen[0]), seen[0]["headers"]


async def test_a_program_with_the_address_of_the_proxy_needs_its_secret() -> None:
    settings = load_settings({**HERE, "CLAUDE_CODE_MCP_PROXY_SECRET": "right"})
    right, wrong = (b"X-Proxy-Secret", b"right"), (b"x-proxy-secret", b"righ")
    assert await asked_with(settings, right) == (("erin", ()), [])
    for headers in ([], [wrong], [right, wrong], [right, right]):
        assert await asked_with(settings, *headers) == (None, [])


def test_an_empty_secret_stops_the_start() -> None:
    with pytest.raises(InvalidArgument, match="PROXY_SECRET"):
        load_settings({**HERE, "CLAUDE_CODE_MCP_PROXY_SECRET": ""})
