"""Prompts for good delegation, and what is completed in them."""

import itertools
import re
from typing import Any, get_args

import mcp_types as types
import pytest
from mcp import MCPError

from claude_code_mcp.core.config import Toolset, load_settings
from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.server.prompts import Prompts
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.testing.script import script
from tests.support.tables import every_row

from .conftest import StartCaller, ToolCaller

SETS = [chosen for size in (1, 2) for chosen in itertools.combinations(get_args(Toolset), size)]
NAMES = ["delegate", "plan_first", "review_changes", "continue_session", "compare"]
FILLED = {"task": 'Tidy {up} "now"\nand </well>', "session": "an-id", "directory": "/src/app"}


def filled(prompt: types.Prompt) -> dict[str, str]:
    return {one.name: FILLED[one.name] for one in prompt.arguments or [] if one.name in FILLED}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_prompts_are_listed_and_filled_in(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
    prompts = (await caller.client.list_prompts()).prompts
    assert [prompt.name for prompt in prompts] == NAMES
    for prompt in prompts:
        (message,) = (await caller.client.get_prompt(prompt.name, filled(prompt))).messages
        assert isinstance(message.content, types.TextContent)
        if "task" in filled(prompt):
            assert r'"Tidy {up} \"now\"\nand </well>"' in message.content.text


@every_row("toolsets", SETS)
def test_prompts_name_only_tools_that_are_offered(toolsets: tuple[Toolset, ...]) -> None:
    settings = load_settings({}, toolsets=toolsets)
    prompts, offered = Prompts(settings), tools_of(settings)
    assert bool(prompts.listing()) == bool({"sessions", "code"}.intersection(toolsets))
    for prompt in prompts.listing():
        text = prompts.get(prompt.name, filled(prompt)).model_dump_json()
        named = set(re.findall(r"\bclaude_[a-z_]+", text))
        assert named
        assert named <= set(offered)
        for tool, arguments in re.findall(r"(claude_[a-z_]+) \{(.*?)\\n\}", text):
            known = offered[tool].arguments.model_json_schema(by_alias=True)["properties"]
            assert set(re.findall(r'\\n \\"(\w+)\\":', arguments)) <= set(known)


async def test_invalid_prompt_arguments_are_refused(caller: ToolCaller) -> None:
    for name, arguments, problem in (
        ("delegate", {}, "task: required"),
        ("delegate", {"task": "x", "other": "y"}, "other: unknown argument"),
        ("compare", {"task": "x", "count": "many"}, "count: must be a number"),
        ("other", {}, "Unknown prompt: other"),
    ):
        with pytest.raises(MCPError, match=problem):
            await caller.client.get_prompt(name, arguments)


# -- completion ---------------------------------------------------------------------------------------------------


async def completed(caller: ToolCaller, name: str, value: str, ref: Any = None) -> list[str]:
    ref = ref or types.PromptReference(type="ref/prompt", name="delegate")
    return (await caller.client.complete(ref, {"name": name, "value": value})).completion.values


@pytest.mark.soak
async def test_a_session_is_found_by_its_title(caller: ToolCaller) -> None:
    made = [
        (await caller.ok("claude_code", prompt=script(title, "done")))["sessionId"] for title in ("Bake", "Brew tea")
    ]
    reference = types.PromptReference(type="ref/prompt", name="continue_session")
    template = types.ResourceTemplateReference(type="ref/resource", uri="claude-session:///{id}/events{?cursor}")
    assert await completed(caller, "session", "brew", reference) == [made[1]]
    assert await completed(caller, "id", "", template) == made[::-1]
    assert await completed(caller, "id", "nothing like it", template) == []
    assert await completed(caller, "session", made[0][:8], reference) == [made[0]]


async def test_models_modes_and_directories_are_completed(caller: ToolCaller) -> None:
    project = caller.sandbox.project
    for name in ("kitchen", "kiln", ".kept", "garden"):
        (project / name).mkdir()
    (project / "king.txt").write_text("no directory")
    assert "sonnet" in await completed(caller, "model", "so")
    assert await completed(caller, "mode", "a") == ["acceptEdits", "auto"]
    assert await completed(caller, "directory", f"{project}/ki") == [f"{project}/kiln", f"{project}/kitchen"]
    assert await completed(caller, "directory", f"{project}/.k") == [f"{project}/.kept"]
    assert await completed(caller, "directory", "/no/such/directory/at") == []
    assert await completed(caller, "task", "x") == []
    with pytest.raises(MCPError, match="Unknown reference"):
        await completed(caller, "x", "", types.PromptReference(type="ref/prompt", name="other"))


async def test_nothing_is_completed_that_the_policy_does_not_grant(start_caller: StartCaller, sandbox: Any) -> None:
    inside, outside = sandbox.project / "inside", sandbox.root / "outside"
    inside.mkdir()
    outside.mkdir()
    (sandbox.project / "inward").symlink_to(outside)
    policy = f'[profiles.mine]\nroots = ["{sandbox.project}"]\nmode_ceiling = "default"\nbypass = "never"'
    caller: ToolCaller = await start_caller(policy=parse_policy(policy, "policy.toml", "mine"))
    assert await completed(caller, "mode", "") == ["plan", "dontAsk", "default"]
    assert await completed(caller, "directory", f"{sandbox.root}/ou") == []
    assert await completed(caller, "directory", f"{sandbox.project}/in") == [str(inside)]
    assert await completed(caller, "directory", "") == [str(sandbox.project.resolve())]
