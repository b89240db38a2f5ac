"""How much of a plan is used, as it is remembered."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from claude_code_mcp.core.model.events import UsageReported
from claude_code_mcp.core.model.usage_limits import PlanUsage, UsageWindow
from claude_code_mcp.core.sessions.plan_usage import PlanUsages
from claude_code_mcp.core.state.database import Database


async def test_last_of_many_concurrent_reports_is_written_by_one_task(tmp_path: Path) -> None:
    tasks: list[asyncio.Task[Any]] = []

    def start_task(work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
        tasks.append(asyncio.get_running_loop().create_task(work))
        return tasks[-1]

    database = Database(tmp_path)
    usages = PlanUsages(database, start_task)
    for percent in range(101):
        plan = PlanUsage("allowed", windows={"five_hour": UsageWindow(percent / 100)})
        usages.event("session", "local", UsageReported(plan))
    assert len(tasks) == 1
    await tasks[0]
    assert (await usages.of("local") or {})["line"] == "5-hour 100%"
    usages.event("session", "local", UsageReported(PlanUsage("rejected")))
    await asyncio.gather(*tasks)
    assert (await usages.of("local") or {})["status"] == "rejected"
    database.close()
