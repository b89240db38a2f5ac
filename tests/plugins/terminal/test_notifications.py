"""The phone is told what a terminal asks when nobody is there, and nothing while somebody types."""

import json
import os

import pytest

from claude_code_mcp.plugins.terminal.keyboard import device_of
from tests.plugins.push.receiver import receiving
from tests.startup.shared.support import SharedPlace
from tests.support.waiting import until

from .conftest import StartClaude
from .test_front_ends import ASKS, asked, browser_of, shared  # noqa: F401 - a fixture


@pytest.mark.soak
def test_question_is_pushed_but_not_the_end_of_a_turn_while_a_person_types(
    shared: SharedPlace,  # noqa: F811
    claude: StartClaude,
) -> None:
    browser = browser_of(shared)
    with receiving() as webhook:
        made = browser.post("/api/push/receivers", {"kind": "webhook", "url": f"{webhook.url}/hook"}).json
        terminal = claude(ASKS)
        question = asked(shared)
        device = device_of(terminal.process.pid)
        assert device is not None
        os.utime(device, (0, 0))  # the last key was long ago
        pushed = json.loads(webhook.next().body)
        assert question["inputId"] in pushed["url"]
        terminal.until("Do you want to proceed?")
        terminal.type("1")
        until(lambda: "completed" in shared.command("ps").stdout)
        browser.post(f"/api/push/receivers/{made['receiver']['id']}/test")
        next_message = json.loads(webhook.next().body)
        assert next_message["kind"] not in ("question", "ended"), next_message
