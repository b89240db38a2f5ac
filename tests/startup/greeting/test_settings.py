"""No setting changes what the server says first without the manifest knowing of it.

The greeting answers from the shipped manifest unless a setting of `ANSWERS_DEPEND_ON` is set. So every setting is given
other values, one at a time: either the greeting then uses another manifest, or the server says what it says by default.
"""

import asyncio
from typing import Any, Literal, get_args, get_origin

import pytest

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.settings_section import variable_of
from claude_code_mcp.server import server as server_module
from claude_code_mcp.server.manifest import Answers, first_answers
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.startup.greeting.first_answers import ANSWERS_DEPEND_ON, find

FIELDS = sorted(Settings.model_fields)
_OTHER_VALUES = {
    "memory_limit": ["off", "6GiB"],
    "spare_processes": ["2"],
    "client_metadata_url": ["https://example.com/client.json"],
    "http_proxies": ["10.0.0.0/8"],
    "identity_provider_port": ["8080"],
    "web_url": ["https://claude.example.org"],
}
"""Of settings that do not take any text."""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No manifest that a server has left: what is found is the shipped one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def other_values(field: str) -> list[str]:
    """Values of a setting other than its default, as its variable would have them: all of a choice, one of the rest."""
    info = Settings.model_fields[field]
    choices = [str(value) for value in _choices(info.annotation) if value != info.get_default()]
    if info.annotation is bool:
        return ["0" if info.default else "1"]
    if bool in get_args(info.annotation):  # unset, or one of both
        return ["0", "1"]
    if info.annotation is int:
        return [str(info.get_default(call_default_factory=True) + 1)]
    return choices or _OTHER_VALUES.get(field, ["another-value"])


def _choices(annotation: Any) -> list[object]:
    """The members of every `Literal` in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def manifest_in_use() -> tuple[bool, str | None]:
    """Which manifest a start has: whether there is one, and where one would be left. With the shipped one, even if it
    is stale, both are the same for all settings that use it."""
    manifest, place = find(["serve"])
    return manifest is not None, place


async def answers_with(settings: dict[str, str]) -> tuple[Answers, str]:
    return await first_answers(McpServer(Service(load_settings(settings))).server())


@pytest.fixture(scope="module")
def default_answers() -> tuple[Answers, str]:
    return asyncio.run(answers_with({}))


async def is_greeted_wrongly(
    field: str, value: str, default_answers: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether the greeting would say, with this setting, what the server does not say."""
    variable = variable_of(field, Settings)
    by_default = manifest_in_use()
    monkeypatch.setenv(variable, value)
    settings = load_settings({variable: value})
    assert getattr(settings, field) != getattr(load_settings({}), field), "the setting has not changed"
    if manifest_in_use() != by_default:
        return False
    return await answers_with({variable: value}) != default_answers


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in FIELDS for value in other_values(field)])
async def test_the_greeting_says_what_the_server_says_whatever_is_set(
    field: str, value: str, default_answers: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await is_greeted_wrongly(field, value, default_answers, monkeypatch), (
        f"{field} changes what the server says first: it belongs into ANSWERS_DEPEND_ON"
    )


async def test_an_answer_that_depends_on_an_unknown_setting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "instructions", lambda settings: f"Waits {settings.call_limit_ms} ms.")
    assert await is_greeted_wrongly("call_limit_ms", "55001", await answers_with({}), monkeypatch)


@pytest.mark.parametrize("variable", [variable for _, variable in ANSWERS_DEPEND_ON])
async def test_the_settings_that_are_named_do_change_an_answer(
    variable: str, default_answers: tuple[Answers, str]
) -> None:
    field = next(field for field in FIELDS if variable_of(field, Settings) == variable)
    changed = [(await answers_with({variable: value}))[0] for value in other_values(field)]
    assert default_answers[0] not in changed
