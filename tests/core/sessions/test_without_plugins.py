"""A service without the plug-ins for isolation and worktrees refuses what needs them, and says which one is missing."""

from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.policy.policy import Policy, Profile, Resources
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script

from .support import end_of, options


def plain(sandbox: Sandbox, environment: dict[str, str], **more: Any) -> Service:
    return Service(load_settings({}, state_dir=sandbox.root / "state"), environment, **more)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"policy": Policy(Profile(isolation="sandbox"))}, 'isolation = "sandbox", and the plug-in `sandbox`'),
        ({"policy": Policy(Profile(isolation="container", image="x"))}, "the plug-in `sandbox` is not enabled"),
        ({"policy": Policy(Profile(resources=Resources(processes=50)))}, "`resources`, and the plug-in `sandbox`"),
        ({"callers": ExpectedCallers(("ann", "bob"))}, "several callers, and the plug-in `sandbox`"),
    ],
)
async def test_isolation_that_the_server_does_not_have_is_refused_at_the_start(
    sandbox: Sandbox, environment: dict[str, str], more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        async with plain(sandbox, environment, **more):
            pass


async def test_a_sandbox_where_there_can_be_one_is_not_needed(
    sandbox: Sandbox, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with plain(sandbox, environment, policy=Policy(Profile(isolation="auto"))) as service:
        outcome = await end_of(await service.create(script("go", "done"), options(sandbox)))
    assert outcome.result == "done"
    assert "sessions run without a sandbox: the plug-in `sandbox` is not enabled" in caplog.text


async def test_a_worktree_is_refused_and_nothing_has_begun(sandbox: Sandbox, environment: dict[str, str]) -> None:
    async with plain(sandbox, environment) as service:
        with pytest.raises(InvalidArgument, match="the plug-in `worktrees` is not enabled"):
            await service.create(script("go", "done"), options(sandbox, worktree=True))
        assert service.sessions() == []
