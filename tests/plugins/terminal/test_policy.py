"""The policy of the local user applies to the questions of a terminal: no answer of a hook exceeds it."""

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import parallel, script, tool

from .conftest import StartClaude, StartServer, eventually, output_of, question_in


async def test_rules_answer_at_once_and_no_answer_exceeds_the_policy(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox
) -> None:
    deny = ("Write", "Bash(rm *)")
    profile = Profile(mode_ceiling="default", answers="person", allow=("Bash(touch *)",), deny=deny)
    server, _ = await start_server(policy=Policy(profile))
    by_rule = tool("Bash", command="touch allowed")
    secret = tool("Write", file_path=str(sandbox.project / "secret"), content="x")
    claude(script("Do it", by_rule, secret, parallel("It said: ${tool_result}", tool("Bash", command="mkdir asked"))))
    question = await question_in(server)
    assert question.tool_input["command"] == "mkdir asked", "the rules answer the calls before"
    said = lambda: "\n".join(output_of(server, question.session_id))  # noqa: E731
    await eventually(lambda: "denied by the rule Write" in said(), "the reason of the denial")
    assert (sandbox.project / "allowed").exists()
    assert not (sandbox.project / "secret").exists()
    # An answer cannot exceed the policy.
    assert not [rule for rule in question.session_rules if "mode" in rule]
    with pytest.raises(PermissionDenied):
        server.respond(question.session_id, question.id, Answer(allow=True), by="claude_respond")
    forbidden = Answer(allow=True, updated_input={"command": "rm -rf ."})
    with pytest.raises(PermissionDenied):
        server.respond(question.session_id, question.id, forbidden, by="web", person=True)
    assert server.broker.pending() == [question]
    assert not (sandbox.project / "asked").exists()
    server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "asked").exists, "the call")
    session = server.session(question.session_id)
    await eventually(lambda: session.outcome, "the end of the turn")
    assert not server.broker.pending()
