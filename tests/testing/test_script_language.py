"""What the model answers to a request, decided by the script in it."""

import json
from typing import Any

from claude_code_mcp.testing.script import (
    Block,
    Fault,
    ModelAnswer,
    agent,
    answer_to,
    ask_user,
    cut,
    fail,
    modify,
    parallel,
    plan,
    question,
    script,
    stall,
    structured,
    text,
    thinking,
    tool,
)
from tests.support.tables import every_row

Json = dict[str, Any]


def user(*contents: str | Json) -> Json:
    blocks = [{"type": "text", "text": content} if isinstance(content, str) else content for content in contents]
    return {"role": "user", "content": blocks}


def assistant(text: str = "said") -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def system(text: str) -> Json:
    return {"role": "system", "content": [{"type": "text", "text": text}]}


def result(text: str) -> Json:
    return {"type": "tool_result", "tool_use_id": "t", "content": text}


def answer(*messages: Json, **body: Any) -> ModelAnswer:
    return answer_to({"messages": list(messages), **body})


def text_of(answered: ModelAnswer) -> str:
    return "".join(block.content.get("text", "") for block in answered.blocks)


def contents(answered: ModelAnswer) -> list[Json]:
    return [block.content for block in answered.blocks]


def test_the_step_is_chosen_by_the_number_of_answers_after_the_script() -> None:
    prompt = user(script("hi", "one", "two"))
    assert text_of(answer(prompt)) == "one"
    assert text_of(answer(prompt, assistant(), user(result("r")))) == "two"
    assert text_of(answer(prompt, assistant(), user(result("r")), assistant(), user("more"))) == "script done"


def test_the_newest_script_wins() -> None:
    assert text_of(answer(user(script("hi", "old")), assistant(), user(script("again", "new")))) == "new"


def test_last_of_several_scripts_wins() -> None:
    assert text_of(answer(user(script("a", "first") + " and " + script("b", "second")))) == "second"


def test_a_message_injected_next_to_a_tool_result_brings_its_own_script() -> None:
    begun = (user(script("hi", tool("Bash"), "old")), assistant())
    as_user = user(result("r"), script("stop", "new"))
    as_system = system(f"The user sent a new message while you were working:\n{script('stop', 'new')}\n\nMore.")
    assert text_of(answer(*begun, as_user)) == "new"
    assert text_of(answer(*begun, user(result("r")), as_system)) == "new"


def test_an_injected_message_without_a_script_changes_nothing() -> None:
    begun = (user(script("hi", tool("Bash"), "goes on")), assistant())
    assert text_of(answer(*begun, user(result("r"), "hurry"))) == "goes on"


def test_scripts_in_tool_results_and_in_notifications_are_not_played() -> None:
    begun = (user(script("hi", tool("Bash"), "right")), assistant())
    other = script("x", "wrong")
    assert text_of(answer(*begun, user(result(other)))) == "right"
    assert text_of(answer(*begun, user(f"<task-notification>{other}</task-notification>"))) == "right"


def test_content_may_be_a_string() -> None:
    assert text_of(answer({"role": "user", "content": script("hi", "one")})) == "one"


def test_without_a_script_the_model_says_so() -> None:
    assert text_of(answer(user("hello there"))) == "There is no script in this conversation. You said: hello there"
    assert text_of(answer_to({})).startswith("There is no script")


@every_row(
    ("bad", "said"),
    [
        ("SCRIPT:", "it is not JSON"),
        ("SCRIPT:[1", "it is not JSON"),
        ('SCRIPT:{"text": "x"}', "it must be a JSON array of steps"),
        ("SCRIPT:[7]", "step 0 is neither a string nor an object"),
        ('SCRIPT:["ok", {"txet": "x"}]', "step 1 has unknown keys: txet"),
        ('SCRIPT:[{"blocks": []}]', "blocks must be a non-empty list"),
        ('SCRIPT:[{"blocks": [{"delay": 1}]}]', "step 0, block 0 has unknown keys: delay"),
        ('SCRIPT:[{"tool": "Bash", "input": "ls"}]', "a tool call needs a name and an input object"),
        ('SCRIPT:[{"delay": "long"}]', "delay must be a non-negative number"),
        ('SCRIPT:[{"usage": 3}]', "usage must be an object"),
        ('SCRIPT:[{"model": 3}]', "model must be a string"),
    ],
)
def test_a_bad_script_is_answered_with_what_is_wrong(bad: str, said: str) -> None:
    answered = text_of(answer(user(f"hi {bad}")))
    assert answered.startswith("Bad script: ")
    assert said in answered
    assert "SCRIPT:" not in answered


def test_one_step_can_think_speak_and_call_a_tool() -> None:
    step = {"thinking": "hm", "text": "so", "tool": "Bash", "input": {"command": "ls"}}
    assert [content["type"] for content in contents(answer(user(script("hi", step))))] == [
        "thinking",
        "text",
        "tool_use",
    ]


def test_blocks_keep_their_order() -> None:
    step = parallel(tool("A", x=1), "between", tool("B"), thinking("hm", "end"))
    kinds = [content.get("name") or content["type"] for content in contents(answer(user(script("hi", step))))]
    assert kinds == ["A", "text", "B", "thinking", "text"]


def test_a_plan_becomes_a_file_and_a_question() -> None:
    reminder = system(
        "## Plan File Info:\nNo plan file exists yet. You should create your plan at /a b/plans/x.md using"
    )
    prompt = user(script("hi", plan("Rest."), "approved"))
    (write,) = contents(answer(prompt, reminder))
    assert (write["name"], write["input"]) == ("Write", {"file_path": "/a b/plans/x.md", "content": "Rest."})
    (leave,) = contents(answer(prompt, reminder, assistant(), user(result("r"))))
    assert (leave["name"], leave["input"]) == ("ExitPlanMode", {})
    assert text_of(answer(prompt, assistant(), user(result("r")), assistant(), user(result("r")))) == "approved"


def test_placeholders_take_what_the_request_says() -> None:
    prompt = user(script("hi", tool("Bash"), "${cwd} ${tool_result} ${HOME} ${plan_file}"))
    place = system(" - Primary working directory: /work here\n - Is a git repository: false")
    answered = answer(prompt, place, assistant(), user(result("one"), result("two")))
    assert text_of(answered) == "/work here one\ntwo ${HOME} ${plan_file}"


def test_the_script_of_a_subagent_keeps_its_placeholders() -> None:
    inner = script("in ${cwd}", "${tool_result}")
    place = system("working directory: /here")
    (call,) = contents(answer(user(script("hi", agent("look", inner))), place))
    assert call["input"]["prompt"] == inner.replace("${cwd}", "/here")


def test_modifiers_shape_the_answer() -> None:
    step = text("ab", delay=1, chunks=2, interval=0.5, repeat=3, stop_reason="s", usage={"input_tokens": 1}, model="m")
    answered = answer(user(script("hi", step)))
    assert answered.blocks == (Block({"type": "text", "text": "ababab"}, 2, 0.5),)
    assert (answered.delay, answered.stop_reason, answered.model) == (1, "s", "m")
    assert answered.usage == {"input_tokens": 1}


def test_modify_adds_to_any_step() -> None:
    assert modify("words", delay=1) == {"text": "words", "delay": 1}
    assert modify(tool("Bash", timeout=5), chunks=2) == {"tool": "Bash", "input": {"timeout": 5}, "chunks": 2}


@every_row(
    ("step", "fault"),
    [
        (fail(529), Fault("error", None, 529, "overloaded_error", "scripted error 529")),
        (fail(418, times=2, message="tea"), Fault("error", 2, 418, "api_error", "tea")),
        (
            fail(500, error_type="odd", retry_after=3),
            Fault("error", None, 500, "odd", "scripted error 500", 3),
        ),
        (cut(), Fault("cut")),
        (stall(times=1), Fault("stall", 1)),
        ({"hang": True}, Fault("stall")),
        (text("fine"), None),
    ],
)
def test_faults_are_read_from_the_step(step: Json, fault: Fault | None) -> None:
    assert answer(user(script("hi", step))).fault == fault


def test_attempts_at_one_step_share_a_key_and_other_steps_do_not() -> None:
    prompt = user(script("hi", fail(500), fail(500)))
    same = answer(prompt, metadata={"user_id": "a"}).key
    assert answer(prompt, metadata={"user_id": "a"}).key == same
    assert answer(prompt, metadata={"user_id": "b"}).key != same
    assert answer(prompt, assistant(), metadata={"user_id": "a"}).key != same
    assert answer(user("before"), prompt, metadata={"user_id": "a"}).key != same


def test_structured_output_is_a_call_of_its_tool() -> None:
    (call,) = contents(answer(user(script("hi", structured({"a": 1})))))
    assert (call["name"], call["input"]) == ("StructuredOutput", {"a": 1})


def test_a_request_for_a_title_gets_one_and_plays_no_step() -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": [4]}},
    }
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    answered = answer(user(script("name this", tool("Bash"))), output_config=wanted)
    assert json.loads(text_of(answered)) == {"title": "Scripted session", "n": 0, "e": 4}


def test_a_request_for_a_summary_gets_one() -> None:
    asked = user("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.")
    assert "<summary>" in text_of(answer(user(script("hi", tool("Bash"))), assistant(), asked))


def test_questions_are_built_with_labels_and_descriptions() -> None:
    simple = ask_user("Which?", "red", ("blue", "like the sky"))
    (one,) = simple["input"]["questions"]
    assert one["options"] == [
        {"label": "red", "description": "red"},
        {"label": "blue", "description": "like the sky"},
    ]
    several = ask_user(question("A?", "x", "y"), question("B?", "x", "y", multiple=True, header="Bs"))
    assert [(one["question"], one["multiSelect"]) for one in several["input"]["questions"]] == [
        ("A?", False),
        ("B?", True),
    ]


def test_a_script_survives_any_words() -> None:
    odd = 'quotes " and \\ and \n and ${x} and ]} and üñ€'
    assert text_of(answer(user(script(odd, odd)))) == odd
