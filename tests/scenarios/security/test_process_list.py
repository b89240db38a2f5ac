"""What everybody on the machine can see of a session in the list of processes."""

import psutil

from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService, programs_below
from tests.core.sessions.support import ENDLESS, options, until

SECRET = "hidden-value-0123456789"


def command_line(process: psutil.Process) -> str:
    """Empty for one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def test_secrets_prompts_and_rules_are_not_in_the_list_of_processes(
    start_service: StartService, sandbox: Sandbox
) -> None:
    denied = (
        "Read(/srv/hidden-value-0123456789/**)",
        "Bash(hidden-value-0123456789 *)",
        "mcp__hidden-value-0123456789",
    )
    service = await start_service(policy=Policy(Profile(deny=tuple(map(parse_rule, denied)))))
    server = {"command": "sh", "args": ["-c", "exec sleep 60"], "env": {"TOKEN": SECRET}}
    turn = await service.create(
        script(f"work on {SECRET}", tool("Bash", command=ENDLESS)),
        options(
            sandbox,
            system_prompt=f"You know {SECRET}.",
            append_system_prompt=SECRET,
            agents={"helper": {"description": SECRET, "prompt": SECRET}},
            mcp_servers={"other": server},
            env={"OTHER": SECRET, "MCP_TIMEOUT": "1500"},  # the server never answers
            allowed_tools=("Bash", f"Edit({SECRET}/**)"),
            disallowed_tools=(f"Bash({SECRET})",),
        ),
    )
    session = turn.session
    await until(session, lambda: bool(session.readable_lines.tools))
    seen = [command_line(process) for process in [*programs_below(), *psutil.Process().children(recursive=True)]]
    assert any("--settings=" in line for line in seen)
    assert [line for line in seen if SECRET in line] == []
    assert [line for line in seen if "--session-mirror" in line] == [], "without a fleet nothing is reported to one"
