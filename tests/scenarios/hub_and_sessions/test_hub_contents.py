"""What the hub's servers have besides tools, offered to clients: resources, prompts, completions, changes."""

import contextlib
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from pydantic import TypeAdapter

from claude_code_mcp.core.model.tool_names import SKILLS
from tests.hub.remote import RemoteServer, http_server

from .conftest import LEGACY, MODERN, Caller, Person, Rig, StartCaller, StartRig, program, rules, text_of, until

BOTH = pytest.mark.parametrize("mode", [LEGACY, MODERN], ids=["2025", "2026"])
FULL = str(Path(__file__).parents[2] / "hub" / "full_server.py")
ALLOW = 'allow = ["mcp__x"]'
YES = types.ElicitResult(action="accept")


@BOTH
async def test_resources_prompts_and_completions_come_through(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools")
    client = (await connect(rig, mode)).client
    assert [str(one.uri) for one in (await client.list_resources()).resources] == ["full://note"]
    (template,) = (await client.list_resource_templates()).resource_templates
    assert template.uri_template == "full://notes/{name}"
    (content,) = (await client.read_resource("full://notes/today")).contents
    assert isinstance(content, types.TextResourceContents)
    assert content.text == "This is full://notes/today"
    assert [one.name for one in (await client.list_prompts()).prompts] == ["mcp__x__greet"]
    prompt = await client.get_prompt("mcp__x__greet", {"who": "Ada"})
    assert "Greet Ada" in str(prompt.messages[0].content)
    reference = types.PromptReference(type="ref/prompt", name="mcp__x__greet")
    completed = await client.complete(reference, {"name": "who", "value": "A"})
    assert completed.completion.values == ["Ada"]


def skill(name: str) -> dict[str, Any]:
    files = [{"uri": f"skill://{name}/{file}", "digest": f"sha256:{0:064}", "size": 1} for file in ("SKILL.md", "a")]
    return {"uri": files[0]["uri"], "frontmatter": {"name": name, "description": name}, "resources": files}


class SkilledServer(RemoteServer):
    """A server of 2026-07-28 with skills: in two pages one that others list too, one of its own, and what is no entry;
    and one that it does not list."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.own = name
        self.server = Server(name, version="1", on_read_resource=self._read)
        self.server.extensions[SKILLS] = {}
        self.server.add_request_handler("skills/list", types.PaginatedRequestParams, self._skills)
        self.server.add_request_handler("skills/get", types.ReadResourceRequestParams, self._skill)

    async def _read(self, _: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, text=f"{self.own} has it")]
        )

    async def _skills(self, _: Any, params: types.PaginatedRequestParams) -> dict[str, Any]:
        more = {"nextCursor": "more"} if params.cursor is None else {}
        skills = [skill("common"), {"uri": "skill://broken/SKILL.md"}] if more else [skill(self.own)]
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "skills": skills, **more}

    async def _skill(self, _: Any, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        name = str(params.uri).split("/")[2]
        if name not in (self.own, f"{self.own}-unlisted"):
            raise MCPError(types.INVALID_PARAMS, "Unknown skill")
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "skill": skill(name)}


async def test_skills_of_servers_are_passed_on_with_their_files(start_rig: StartRig, connect: StartCaller) -> None:
    async with contextlib.AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(http_server(SkilledServer(name))) for name in ("x", "y", "z")}
        servers = {name: {"type": "http", "url": url} for name, url in urls.items()}
        policy = rules('allow = ["mcp__x", "mcp__y"]\ndeny = ["mcp__z"]')
        rig: Rig = await start_rig(servers, policy, toolsets="hub-tools")
        client: Client = (await connect(rig, MODERN)).client
        assert SKILLS in (await ask(client, "server/discover"))["capabilities"]["extensions"]
        listed = await ask(client, "skills/list")
        # Of one address the first counts, and what is no entry of a skill is left out.
        assert [skill["frontmatter"]["name"] for skill in listed["skills"]] == ["common", "x", "y"]
        assert (listed["resultType"], listed["cacheScope"]) == ("complete", "private")
        assert (await ask(client, "skills/get", uri="skill://y/SKILL.md"))["skill"] == skill("y")
        # A skill that no server lists is asked for, and its files are read where it was found.
        assert (await ask(client, "skills/get", uri="skill://y-unlisted/SKILL.md"))["skill"] == skill("y-unlisted")
        for uri in ("skill://y/a", "skill://y-unlisted/a"):
            (content,) = (await client.read_resource(uri)).contents
            assert isinstance(content, types.TextResourceContents)
            assert content.text == "y has it"
        for uri in ("skill://nobody/SKILL.md", "skill://z/SKILL.md"):
            with pytest.raises(MCPError, match="Unknown skill"):
                await ask(client, "skills/get", uri=uri)


async def ask(client: Client, method: str, **params: Any) -> Any:
    """A request of a method that the SDK does not know."""
    request = types.Request[dict[str, Any], str](method=method, params=params)
    return await client.session.send_request(request, TypeAdapter(Any))


async def test_unknown_name_is_refused(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools")
    client = (await connect(rig)).client
    with pytest.raises(MCPError, match="Unknown resource"):
        await client.read_resource("other://thing")
    with pytest.raises(MCPError, match="Unknown prompt"):
        await client.get_prompt("mcp__x__other", {})


async def test_a_server_that_the_policy_denies_shows_nothing(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules('deny = ["mcp__x"]'), toolsets="hub-tools")
    client = (await connect(rig)).client
    assert (await client.list_tools()).tools == []
    assert (await client.list_resources()).resources == []
    assert (await client.list_prompts()).prompts == []
    with pytest.raises(MCPError, match="Unknown resource"):
        await client.read_resource("full://note")


async def test_client_with_a_handshake_gets_changes(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools")
    caller: Caller = await connect(rig)
    await caller.client.list_prompts()
    await caller.client.list_resources()
    wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri="full://note"))
    await caller.client.session.send_request(wanted, types.EmptyResult)
    await caller.text("mcp__x__touch")
    await until(lambda: {"prompts", "resources", "full://note"} <= set(caller.changes))
    assert len((await caller.client.list_prompts()).prompts) == 2


async def test_a_client_of_2026_listens_to_changes(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools")
    caller: Caller = await connect(rig, MODERN)
    await caller.client.list_prompts()
    await caller.client.list_resources()
    notifications: list[Any] = []
    async with caller.client.listen(
        prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=["full://note"]
    ) as changes:
        await caller.text("mcp__x__touch")
        async for change in changes:
            notifications.append(type(change).__name__)
            if {"PromptsListChanged", "ResourcesListChanged", "ResourceUpdated"} <= set(notifications):
                break


@BOTH
async def test_an_address_is_shown_only_to_clients_that_open_addresses(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools")
    person = Person([YES, YES])
    caller: Caller = await connect(rig, mode, person)
    assert '"accept"' in await caller.text("mcp__x__address")
    (shown,) = person.shown
    assert isinstance(shown, types.ElicitRequestURLParams)
    assert shown.url == "https://example.com/sign-in"
    assert await caller.text("mcp__x__address_first") == "signed in"


async def test_a_long_result_is_saved_whole_where_the_model_can_read_it(
    start_rig: StartRig, connect: StartCaller
) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="hub-tools", mcp_output_tokens=1000)
    caller: Caller = await connect(rig)
    result = await caller.call("mcp__x__big", size=30_000)
    assert not result.is_error
    path = text_of(result).partition("The full result is in ")[2].partition("\n")[0]
    assert _private_content(Path(path)) == "a line of text\n" * 2000
    assert text_of(await caller.call("mcp__x__big", size=3000)) == "a line of text\n" * 200


def _private_content(path: Path) -> str:
    assert path.stat().st_mode & 0o077 == 0
    return path.read_text(encoding="utf-8")


async def test_sessions_and_the_hub_are_offered_side_by_side(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program(FULL)}, rules(ALLOW), toolsets="sessions,hub-tools")
    client = (await connect(rig)).client
    assert {"claude-sessions:///", "full://note"} <= {str(one.uri) for one in (await client.list_resources()).resources}
    for uri in ("claude-sessions:///", "full://note"):
        assert (await client.read_resource(uri)).contents
    assert {"delegate", "mcp__x__greet"} <= {one.name for one in (await client.list_prompts()).prompts}
    for name, argument, value in (("delegate", "model", "hai"), ("mcp__x__greet", "who", "A")):
        reference = types.PromptReference(type="ref/prompt", name=name)
        assert (await client.complete(reference, {"name": argument, "value": value})).completion.values
    with pytest.raises(MCPError, match="Unknown resource"):
        await client.read_resource("claude-session:///full")
