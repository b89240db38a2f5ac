"""Where only a person may answer: one who has signed in to the console is; a program with a token is not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool

from .conftest import Console, running_console
from .console_client import Browser
from .test_conversation import answer, ended, question_of, start

POLICY = """
default = "open"

[profiles.open]
base = "local"

[profiles.agents]
base = "local"
answers = "person"

[principals]
alice = "agents"
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Console]:
    root: Path = tmp_path_factory.mktemp("strict")
    policy = root / "policy.toml"
    policy.write_text(POLICY)
    with running_console(root, model.url, CLAUDE_CODE_MCP_POLICY=str(policy), CLAUDE_CODE_MCP_PROFILE="") as running:
        yield running


def test_the_console_counts_and_a_token_alone_does_not(strict: Console) -> None:
    alice = strict.browser("alice")
    session = start(alice, strict, script("Touch", tool("Bash", command="touch touched"), text("Touched.")))
    asked = question_of(alice, session)
    path = f"/api/sessions/{session}/questions/{asked['questionId']}"
    token = {"Authorization": f"Bearer {strict.tokens['alice']}"}
    refused = Browser(strict.base).post(path, {"decision": "allow"}, **token)
    assert (refused.status, refused.json["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert "in the console" in refused.json["error"]["message"]
    assert answer(alice, asked, decision="allow").status == 200
    ended(alice, session)
    assert (strict.project / "touched").exists()
    strict.audited('"what": "respond"', '"by": "web"')


@pytest.mark.soak  # test_sharing.py
def test_whoever_it_is_shared_with_answers_as_a_person_too(strict: Console) -> None:
    """The owner's profile counts, whatever that of the other one says."""
    alice = strict.browser("alice")
    session = start(alice, strict, script("Touch", tool("Bash", command="touch shared"), text("Touched.")))
    asked = question_of(alice, session)
    alice.ask("PUT", f"/api/sessions/{session}/shares/bob", {"access": "answer"})
    path = f"/api/sessions/{session}/questions/{asked['questionId']}"
    token = {"Authorization": f"Bearer {strict.tokens['bob']}"}
    assert Browser(strict.base).post(path, {"decision": "allow"}, **token).status == 403
    assert answer(strict.browser("bob"), asked, decision="allow").status == 200
    ended(alice, session)
