"""Inputs, plans and results that are long: shown whole, or read whole in pages, on two wires that have all parts."""

import json
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import plan, script, text, tool

from .conftest import WIRES
from .connection import Connection, Reply

pytestmark = pytest.mark.parametrize("wire", [WIRES[0], WIRES[3]], indirect=True, ids=str, scope="module")
LINE = "a line of the file that is being written, some eighty characters of it in all.\n"


def lines(size: int) -> str:
    """Text of about so many characters in which no two lines are the same."""
    return "".join(f"{number} {LINE}" for number in range(size // len(LINE)))


def all_pages(client: Connection, session: str, part: str, offset: int = 0) -> str:
    """A part of a report, read page by page."""
    pages: list[str] = []
    while True:
        page = client.look(session, part=part, offset=offset).data["part"]
        pages.append(page["text"])
        if "nextOffset" not in page:
            return "".join(pages)
        assert page["nextOffset"] == offset + len(page["text"])
        offset = page["nextOffset"]


def asked_to_write(client: Connection, session: str, place: Sandbox, content: str) -> Reply:
    step = tool("Write", file_path=str(place.project / "asked.txt"), content=content)
    return client.send(session, script("go", step, "done"), waitSeconds=40)


def cut_parts(reply: Reply) -> dict[str, Any]:
    return {item["part"]: item for item in reply.data.get("truncated", [])}


@pytest.mark.promise("respond.whole-input", "respond.updated-input")
def test_an_input_of_200_kb_comes_whole_and_goes_back_with_one_field_changed(
    client: Connection, warm: str, place: Sandbox
) -> None:
    content = lines(200_000)
    asked = asked_to_write(client, warm, place, content)
    shown = asked.question["toolInput"]
    assert shown["content"] == content
    assert json.dumps(content, ensure_ascii=False) in asked.text, "some callers read only the text"
    other = place.project / "other.txt"
    ended = client.respond(asked, "allow", updatedInput={**shown, "file_path": str(other)}, waitSeconds=40)
    assert ended.data["result"] == "done"
    assert other.read_text() == content
    assert not (place.project / "asked.txt").exists()


@pytest.mark.promise("respond.whole-input", "respond.cut-input")
def test_an_input_of_300_kb_says_that_it_is_cut_is_read_in_pages_and_refused_when_cut(
    client: Connection, warm: str, place: Sandbox
) -> None:
    content = lines(300_000)
    asked = asked_to_write(client, warm, place, content)
    shown, question = asked.question["toolInput"], asked.question["inputId"]
    assert "[[claude-code-mcp cut" in shown["content"]
    assert shown["file_path"] == str(place.project / "asked.txt")
    assert cut_parts(asked)[question]["total"] > 300_000
    whole = json.loads(all_pages(client, warm, question))
    assert whole == {"file_path": shown["file_path"], "content": content}
    refused = client.respond(asked, "allow", updatedInput={**shown, "file_path": str(place.project / "no.txt")})
    assert (refused.code, "cut mark" in refused.refusal) == ("INVALID_ARGUMENT", True)
    assert client.look(warm).question["inputId"] == question, "it is still open"
    other = place.project / "paged.txt"
    ended = client.respond(asked, "allow", updatedInput={**whole, "file_path": str(other)}, waitSeconds=40)
    assert ended.data["result"] == "done"
    assert other.read_text() == content
    assert client.look(warm, part=question).code == "INVALID_ARGUMENT", "an answered question has no input to read"


@pytest.mark.promise("status.pages")
def test_a_long_result_and_a_long_line_are_read_to_their_end(client: Connection, warm: str) -> None:
    answer = " ".join(f"word{number}" for number in range(10_000))
    ended = client.send(warm, script("go", text(answer, chunks=5)), waitSeconds=40)
    cut = cut_parts(ended)
    assert ended.data["result"].startswith("word0 word1 ")
    assert "[[claude-code-mcp cut" in ended.data["result"]
    assert cut["result"]["total"] == len(answer)
    assert all_pages(client, warm, "result") == answer
    end = all_pages(client, warm, "result", cut["result"]["nextOffset"])
    assert ended.data["result"].partition("[[")[0] + end == answer
    (line,) = [part for part in cut if part.startswith("output:")]
    assert all_pages(client, warm, line) == answer
    for unknown in ("output:1", "output:x", "output:", "error2", "q-0000000000000000"):
        assert client.look(warm, part=unknown).code == "INVALID_ARGUMENT"


@pytest.mark.soak  # a command, in the next test
@pytest.mark.promise("ask.whole")
def test_a_plan_of_20_kb_is_approved_in_a_form_that_has_all_of_it(asked: Connection) -> None:
    steps = lines(20_000) + "\n9. delete everything"
    prompt = script("plan it", plan(steps), "on it")
    waiting = asked.start("claude_create_session", prompt=prompt, permissionMode="plan", waitSeconds=40)
    form = asked.dialog()
    assert steps in form.message
    assert "characters" in form.message.partition(":\n")[0]
    form.accept(decision="Approve the plan")
    assert waiting.result(40).data["result"] == "on it"


@pytest.fixture(scope="module")
def here(asked: Connection) -> str:
    """A session of the client that shows forms."""
    return asked.create("hello", waitSeconds=30).session


@pytest.mark.promise("ask.whole")
def test_a_form_shows_the_end_of_a_padded_command_and_what_hides_in_it(asked: Connection, here: str) -> None:
    command = "echo harmless" + "\n" * 300 + "echo \u202ebad\u200b >padded"
    message = script("go", tool("Bash", command=command))
    waiting = asked.start("claude_send_message", sessionId=here, message=message, waitSeconds=40)
    form = asked.dialog()
    assert "echo harmless" + "\n" * 300 + "echo \\u202ebad\\u200b >padded" in form.message
    assert "299 empty lines in a row" in form.message
    assert "2 control or invisible characters shown as codes" in form.message
    head = form.message[: form.message.index("\n" * 300)]
    assert "ends with: " in head, "the end is told before the padding"
    assert ">padded" in head
    form.decline()
    waiting.result(40)


@pytest.mark.promise("ask.whole")
def test_multi_part_question_is_allowed_only_in_the_last_form(asked: Connection, here: str, place: Sandbox) -> None:
    content = lines(300_000)
    target = place.project / "in_forms.txt"
    message = script("go", tool("Write", file_path=str(target), content=content), "done")
    waiting = asked.start("claude_send_message", sessionId=here, message=message, waitSeconds=40)
    first = asked.dialog()
    assert "THIS IS ONLY A PART" in first.message
    assert first.fields["decision"]["enum"] == ["Show the next part", "Deny"]
    first.accept(decision="Show the next part")
    last = asked.dialog()
    assert "Allow once" in last.fields["decision"]["enum"]
    shown = first.message.partition("\n\n")[2] + last.message.partition("\n\n")[2]
    assert content in shown
    last.accept(decision="Allow once")
    assert waiting.result(40).data["result"] == "done"
    assert target.read_text() == content
