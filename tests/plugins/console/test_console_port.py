"""The port that a shared server opens for the console of its user."""

import asyncio
import time
from contextlib import closing

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.console.console import ConsolePort, Consoles
from claude_code_mcp.plugins.push.push_routes import PushOfServer
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of
from tests.support.waiting import HANG_SECONDS, until_true

from .console_client import Browser


async def test_a_console_that_could_not_be_opened_is_opened_by_the_next_request(service: Service) -> None:
    in_the_way = service.settings.state_dir / "web"
    in_the_way.write_text("not a directory")
    with closing(Consoles(service, lambda: None, [PushOfServer(service)])) as consoles:
        port = ConsolePort(consoles, service, "name")
        refused = await port.link()
        assert "Not a directory" in refused["error"]
        assert (port.url, consoles.first) == (None, None)
        in_the_way.unlink()
        link = await port.link()
        browser = Browser(link["address"].rstrip("/"))
        ticket = link["url"].partition("#ticket=")[2]
        signed_in = await asyncio.to_thread(lambda: browser.sign_in(ticket=ticket))
        assert signed_in.json["principal"] == "local"
        await port.close()


async def test_the_console_is_in_use_while_a_browser_is_signed_in_or_was_used_just_now(service: Service) -> None:
    with closing(Consoles(service, lambda: None, [PushOfServer(service)])) as consoles:
        assert not await consoles.in_use(HANG_SECONDS), "nobody has opened it"
        port = ConsolePort(consoles, service, "name")
        link = await port.link()
        assert await consoles.in_use(HANG_SECONDS), "somebody has just asked for a link"
        assert not await consoles.in_use(0.0)
        browser = Browser(link["address"].rstrip("/"))
        ticket = link["url"].partition("#ticket=")[2]
        await asyncio.to_thread(lambda: browser.sign_in(ticket=ticket))
        assert await consoles.in_use(0.0), "a phone in a pocket is signed in"
        left = await asyncio.to_thread(lambda: browser.post("/api/sign-out", {}))
        assert left.status == 200
        assert not await consoles.in_use(0.0)
        assert await consoles.in_use(HANG_SECONDS)
        await port.close()


async def signed_in_browser(port: ConsolePort) -> Browser:
    link = await port.link()
    browser = Browser(link["address"].rstrip("/"))
    await asyncio.to_thread(lambda: browser.sign_in(ticket=link["url"].partition("#ticket=")[2]))
    return browser


async def test_a_question_is_denied_in_time_though_a_browser_is_signed_in(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(permission_timeout_ms=50)
    with closing(Consoles(service, lambda: None, [PushOfServer(service)])) as consoles:
        port = ConsolePort(consoles, service, "name")
        await signed_in_browser(port)
        prompt = script("Ask", tool("Bash", command="touch asked"), "Without it, then.")
        turn = await service.create(prompt, SessionOptions(cwd=str(sandbox.project)))
        assert (await end_of(turn)).result == "Without it, then."
        assert not (sandbox.project / "asked").exists()
        await port.close()


async def test_a_question_waits_while_it_is_pushed_or_shown_and_then_for_its_full_time(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(permission_timeout_ms=50)
    with closing(Consoles(service, lambda: None, [PushOfServer(service)])) as consoles:
        port = ConsolePort(consoles, service, "name")
        browser = await signed_in_browser(port)
        receiver = {"kind": "webhook", "url": "http://127.0.0.1:9/hook"}
        made = await asyncio.to_thread(lambda: browser.post("/api/push/receivers", receiver))
        assert made.status in (200, 201)
        prompt = script("Ask", tool("Bash", command="touch asked"), "Without it, then.")
        turn = await service.create(prompt, SessionOptions(cwd=str(sandbox.project)))
        await turn.session.wait(HANG_SECONDS)
        await until_true(lambda: [question.deadline for question in turn.session.questions] == [None])
        path = f"?session={turn.session.id}"

        def watch() -> None:
            """Switches notifications off while a page is open, and looks at it for several times the limit."""
            with browser.stream(path) as events:
                next(events)
                removed = browser.ask("DELETE", f"/api/push/receivers/{made.json['receiver']['id']}")
                assert removed.status in (200, 204)
                time.sleep(0.5)
                assert turn.session.questions, "it stays open while a page shows it"

        await asyncio.to_thread(watch)
        assert (await end_of(turn)).result == "Without it, then."
        row = (await asyncio.to_thread(lambda: browser.get(f"/api/sessions/{turn.session.id}"))).json["session"]
        assert row["needs"] == "unanswered"
        assert row["unanswered"]["description"] == "Run: touch asked"
        assert "No answer within" in row["unanswered"]["reason"]
        await port.close()
