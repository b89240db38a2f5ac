"""Names of Claude Code's own tools, and near misses.

Versions of Claude Code differ in their tools, so a name that is missing here proves nothing, and nothing is refused
because of this list.
"""

import difflib
import re
from collections.abc import Iterable

BUILT_IN_TOOLS = frozenset(
    {
        *("Agent", "AskUserQuestion", "Bash", "BashOutput", "CronCreate", "CronDelete", "CronList", "Edit"),
        *("EnterPlanMode", "EnterWorktree", "ExitPlanMode", "ExitWorktree", "Glob", "Grep", "KillBash", "KillShell"),
        *("LS", "LSP", "ListAgents", "ListMcpResources", "ListMcpResourcesTool", "Monitor", "MultiEdit"),
        *("NotebookEdit", "NotebookRead", "PowerShell", "Read", "ReadMcpResource", "ReadMcpResourceTool"),
        *("RemoteTrigger", "ReportFindings", "ScheduleWakeup", "SendMessage", "Skill", "SlashCommand"),
        *("StructuredOutput", "Task", "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate"),
        *("TeamCreate", "TeamDelete", "TodoRead", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch", "Workflow"),
        "Write",
    }
)
_BY_LOWER = {name.lower(): name for name in BUILT_IN_TOOLS}
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_MCP = "mcp__"
_CLOSE = 0.6
"""Minimum similarity, from 0 to 1, of a suggested name."""


def proper_name(name: str) -> str:
    """A tool's name in Claude Code's spelling, whatever its case."""
    return _BY_LOWER.get(name.lower(), name)


def unknown_tools(rules: Iterable[str]) -> dict[str, str | None]:
    """The tools of permission rules that are not built in, each with the most similar built-in tool, or None. Tools of
    MCP servers and patterns are skipped, because they are unknown before a session runs."""
    names = dict.fromkeys(rule.partition("(")[0].strip() for rule in rules)
    plain = (name for name in names if _PLAIN_NAME.fullmatch(name) and not name.startswith(_MCP))
    return {name: _nearest(name) for name in plain if name not in BUILT_IN_TOOLS}


def _nearest(name: str) -> str | None:
    close = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=_CLOSE)
    return _BY_LOWER[close[0]] if close else None
