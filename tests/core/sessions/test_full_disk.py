"""A turn that could not be written to the transcript is not told as completed; the session waits until it can be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.caller import LOCAL_CALLER
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.server.tools.list_sessions import session_list
from claude_code_mcp.server.tools.paging import ResultParts
from claude_code_mcp.server.tools.turn_report import finished_report
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.conftest import StartService
from tests.support.full_disk import small_disk

from .support import options, parked, run, say


class SmallDisk:
    """A file system of two megabytes for Claude Code's own files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def fill(self) -> None:
        with (self.root / "filling").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        (self.root / "filling").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as place:
        yield SmallDisk(place)


async def test_unsaved_turn_is_reported_and_the_session_waits_for_the_disk(
    start_service: StartService, sandbox: Sandbox, disk: SmallDisk, model: ScriptedModelThread
) -> None:
    small = {"CLAUDE_CONFIG_DIR": str(disk.root / "config")}
    service = await start_service(small)
    session, outcome = await run(service, script("first", "kept-answer"), options(sandbox))
    assert outcome.ok
    disk.fill()
    outcome = await say(service, session, script("second", "lost-answer " * 1000))
    assert outcome.code is OutcomeCode.NOT_SAVED
    assert outcome.result.startswith("lost"), "the answer is given all the same"
    assert "No space left" in outcome.detail
    assert session.state is State.ERROR
    assert session.outcome is not None
    report = finished_report(session, session.outcome, ResultParts(service.redaction))
    assert (report.is_error, report.error_subtype) == (True, "error_not_saved")
    assert "The answer was not saved" in str(report.result)
    with pytest.raises(LimitReached, match="No space left"):
        await service.send(session.id, script("third", "never said"))
    await service.__aexit__()
    again = await start_service(small)
    with pytest.raises(LimitReached, match="No space left"):
        await again.send(session.id, script("third", "never said"))
    disk.empty()
    assert (await say(again, session.id, script("third", "said-answer"))).result == "said-answer"
    await parked(again.session(session.id))
    assert (await say(again, session.id, script("fourth", "said again"))).ok
    sent = str([one.body for one in model.requests if one.session_id == session.id and "fourth" in one.prompt][-1])
    assert "kept-answer" in sent
    assert "said-answer" in sent
    assert "lost-answer" not in sent


@pytest.mark.soak  # nor what cannot be saved: above
async def test_unsaved_records_are_reported_in_results_and_lists(
    start_service: StartService, sandbox: Sandbox, disk: SmallDisk
) -> None:
    service = await start_service(state_dir=disk.root / "state")
    session, outcome = await run(service, script("one", "kept"), options(sandbox))
    assert session.not_recorded is None
    disk.fill()
    outcome = await say(service, session, script("two", text("lost " + "x" * 200_000)))
    await session.saved()
    report = finished_report(session, outcome, ResultParts(service.redaction))
    assert report.result is not None
    assert report.result.startswith("lost")
    assert "could not be saved" in str(report.notice)
    listed = await session_list(service, LOCAL_CALLER)
    assert listed.error is not None
    assert (listed.error.code, session.id in listed.error.message) == ("NOT_SAVED", True)
    disk.empty()
    await say(service, session, script("three", "kept again"))
    await session.saved()
    assert session.not_recorded is None
