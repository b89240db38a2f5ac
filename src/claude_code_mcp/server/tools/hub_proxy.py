"""The tools of the hub's servers as this server's own.

A call must be permitted first (`hub_permissions.py`). Every call is audited when it is refused or ends. A result that
is too long for a model's context is saved to a file, for clients that can read it.
"""

import asyncio
import contextlib
import math
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from ...core.errors import ClaudeCodeError, LimitReached, PermissionDenied, UpstreamUnavailable
from ...core.model.caller import LOCAL, Caller
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.question import Answer, Scope
from ...core.model.tool_names import prefix_of
from ...core.private_files import private_directory, replace_file
from ...core.service import Service
from ...hub.config_entry import CallLimits
from ...hub.hub import Hub, HubTool
from ...hub.long_results import is_long, with_long_parts_saved
from ...hub.tool_search import ToolIndex
from ...hub.transports.http_client import UNREACHABLE
from .call import Call
from .hub_call import CallReply, CallRounds, ProxiedCall
from .hub_permissions import CallDecision, PermissionQuestions, rule_on_call

_LIST_TIMEOUT = 5.0
"""Seconds that a server has to connect before the tools are listed without it."""
_CHARACTERS_PER_TOKEN = 4
_MINUTE = 60.0
_KEPT = 7 * 86_400.0
"""Seconds for which the file of a long result is kept."""


class CallCounts:
    """The calls of one caller to one server: the running ones, and the start times within the last minute."""

    def __init__(self) -> None:
        self._running = 0
        self._begun: deque[float] = deque()

    @contextlib.contextmanager
    def counted(self, server: str, limits: CallLimits) -> Iterator[None]:
        """Count a call while it runs. Raises LimitReached if it exceeds a limit."""
        now = time.monotonic()
        while self._begun and self._begun[0] <= now - _MINUTE:
            self._begun.popleft()
        if limits.calls_at_once is not None and self._running >= limits.calls_at_once:
            raise LimitReached(
                f"You have {self._running} calls to {server!r} in progress, which is your limit.",
                limit=limits.calls_at_once,
            )
        if limits.calls_per_minute is not None:
            if len(self._begun) >= limits.calls_per_minute:
                seconds = math.ceil(self._begun[0] + _MINUTE - now)
                raise LimitReached(
                    f"You have made {len(self._begun)} calls to {server!r} within a minute, which is your limit. Try "
                    f"again in {seconds} s.",
                    limit=limits.calls_per_minute,
                    retry_after=seconds,
                )
            self._begun.append(now)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class HubProxy:
    """Lists and calls the tools. Permanent permissions for a caller are remembered as long as the server runs."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._allowed: set[tuple[str, str]] = set()
        self._questions = PermissionQuestions(service)
        self._tools: dict[str, dict[str, HubTool]] = {}
        """The tools by caller and name, as of the caller's last listing. A server may offer different tools on
        different callers' connections."""
        self._index: tuple[list[HubTool], ToolIndex] = ([], ToolIndex(()))
        """The search index, and the tools that it was built from."""
        self._rounds = CallRounds(service.settings.permission_timeout)
        self._counts: defaultdict[tuple[str, str], CallCounts] = defaultdict(CallCounts)
        """By principal and server."""

    def end_of(self, principal: str) -> None:
        """Forget a removed caller: abandon calls that wait for it, and drop its permissions."""
        self._rounds.end_of(principal)
        self.client_left(Caller(principal))
        for key in [key for key in self._counts if key[0] == principal]:
            del self._counts[key]

    def client_left(self, caller: Caller) -> None:
        """Forget everything about a disconnected client."""
        self._allowed = {entry for entry in self._allowed if entry[0] != caller.key}
        self._tools.pop(caller.key, None)

    async def listing(self, caller: Caller) -> list[types.Tool]:
        """The tools that the caller may use, under the names they have here. Omits servers that do not connect in time,
        and tools that the policy denies for all arguments."""
        tools = await self._refresh(caller)
        return [
            entry.tool.model_copy(update={"name": name}) for name, entry in tools.items() if self._listed(caller, name)
        ]

    async def find(self, caller: Caller, query: str) -> list[types.Tool]:
        """The caller's tools that match a word of the query, best first; like the listing."""
        tools, index = await self._indexed(list((await self._refresh(caller)).values()))
        ranked = (tools[number] for number in index.ranked(query))
        return [
            entry.tool.model_copy(update={"name": entry.name}) for entry in ranked if self._listed(caller, entry.name)
        ]

    def tools_by_server(self, caller: Caller) -> dict[str, int]:
        """How many tools of each server the caller may use, as of its last listing."""
        tools = self._tools.get(caller.key, {})
        return dict(Counter(entry.server for name, entry in tools.items() if self._listed(caller, name)))

    async def _indexed(self, tools: list[HubTool]) -> tuple[list[HubTool], ToolIndex]:
        """The index of the tools, rebuilt if they have changed."""
        index = self._index
        if index[0] != tools:
            texts = [
                (f"{tool.server} {tool.tool.name}", tool.tool.description, tool.tool.input_schema) for tool in tools
            ]
            # Stored with its tools: others may have been listed while the thread ran.
            index = self._index = tools, await asyncio.to_thread(ToolIndex, texts)
        return index

    async def _refresh(self, caller: Caller) -> dict[str, HubTool]:
        listed = await self._hub.tools(timeout=_LIST_TIMEOUT, caller=caller.key, directory=_directory(caller))
        tools = self._tools[caller.key] = {entry.name: entry for entry in listed}
        return tools

    def _listed(self, caller: Caller, name: str) -> bool:
        return self._service.offers_tool(caller.principal, self._service.settings.default_cwd or "", name)

    async def knows(self, caller: Caller, name: str) -> bool:
        """Whether the tool exists. Waits for its server if that is still starting. Raises UpstreamUnavailable if that
        server is unavailable."""
        if name in self._tools.get(caller.key, {}):
            return True
        tools = await self._refresh(caller)
        if name in tools:
            return True
        listed = {entry.server for entry in tools.values()}
        waited_for = [each for each in self._hub.servers if each not in listed and name.startswith(prefix_of(each))]
        for server in waited_for:
            await self._hub.tools(server, timeout=None, caller=caller.key, directory=_directory(caller))
        return bool(waited_for) and name in await self._refresh(caller)

    async def call(self, name: str, call: Call, arguments: Mapping[str, Any]) -> CallReply:
        """Call the tool after it is permitted. Raises PermissionDenied, UpstreamUnavailable, and MCPError if there is
        no such tool, also if it disappeared before a person permitted it."""
        if call.state.paused_call is not None:  # the state is sealed for this call, which was permitted when it started
            return await self._rounds.resume(call)
        unknown = MCPError(types.INVALID_PARAMS, f"Unknown tool: {name[:100]}")
        if not await self.knows(call.caller, name):
            raise unknown
        ruling = await self._ruling(call, name, arguments)
        if isinstance(ruling, types.InputRequiredResult):
            return ruling
        # Looked up only now: while a person was asked, the tools may have been listed again without this one.
        entry = self._tools.get(call.caller.key, {}).get(name)
        if not ruling.answer.allow:
            self._audit(call, entry, name, arguments, ruling, {"reason": ruling.answer.message})
            raise PermissionDenied(ruling.answer.message or f"{name} was denied.")
        if entry is None:
            raise unknown
        start = partial(self._run, call, entry, arguments, ruling)
        return await self._rounds.run(call, ProxiedCall(call, entry.server, start))

    async def _ruling(
        self, call: Call, name: str, arguments: Mapping[str, Any]
    ) -> CallDecision | types.InputRequiredResult:
        """The decision on the call and its channel; or the question to a person, as the result of the call."""
        # The rules first: they may now deny what a person allowed permanently.
        answer = rule_on_call(self._service, call.principal, name, arguments)
        if answer is not None:
            return CallDecision(answer, "policy")
        if (call.caller.key, name) in self._allowed:
            return CallDecision(Answer(allow=True, scope=Scope.SESSION), "earlier answer")
        ruling = await self._questions.ask(call, name, arguments)
        if isinstance(ruling, CallDecision) and ruling.answer.allow and ruling.answer.scope is Scope.SESSION:
            self._allowed.add((call.caller.key, name))
        return ruling

    async def _run(
        self, call: Call, entry: HubTool, arguments: Mapping[str, Any], ruling: CallDecision, proxied: ProxiedCall
    ) -> CallReply:
        """Run the call at the server to its end. Raises UpstreamUnavailable, which may contain the server's error."""
        began = time.monotonic()
        report: dict[str, Any] = {"outcome": "cancelled"}
        try:
            counts = self._counts[call.principal, entry.server]
            with counts.counted(entry.server, self._hub.limits(entry.server)):
                result = await self._hub.call(
                    entry.server,
                    entry.tool.name,
                    arguments,
                    caller=call.caller.key,
                    directory=_directory(call.caller),
                    side=proxied.side,
                )
            report = {"outcome": "ok", "size": _size(result)}
            if isinstance(result, types.CallToolResult) and result.is_error:
                report["outcome"] = "error"
        except MCPError as error:
            report = {"outcome": "error", "code": error.code}
            what = "did not answer" if error.code == UNREACHABLE else "answered with an error"
            raise UpstreamUnavailable(f"The MCP server {entry.server!r} {what}: {error.message}") from None
        except ValidationError:
            report = {"outcome": "error"}
            raise UpstreamUnavailable(f"The answer of the MCP server {entry.server!r} violates the protocol.") from None
        except ClaudeCodeError as error:
            report = {"outcome": "failed", "code": error.code}
            raise
        finally:
            report["duration_ms"] = round(1000 * (time.monotonic() - began))
            self._audit(call, entry, entry.name, arguments, ruling, report)
        # A remote client cannot read our files: it gets the result unchanged.
        if call.principal != LOCAL or isinstance(result, types.InputRequiredResult):
            return result
        limit = self._service.settings.mcp_output_tokens * _CHARACTERS_PER_TOKEN
        # Most results are short text without structured content and need no further checks.
        if (report["size"] <= limit and result.structured_content is None) or not is_long(result, limit):
            return result
        promised = entry.tool.output_schema is not None
        return await asyncio.to_thread(with_long_parts_saved, result, limit, self._save, keep_structured=promised)

    def _audit(
        self,
        call: Call,
        entry: HubTool | None,
        name: str,
        arguments: Mapping[str, Any],
        ruling: CallDecision,
        report: Mapping[str, Any],
    ) -> None:
        details = {
            "server": entry.server if entry is not None else None,
            "tool": entry.tool.name if entry is not None else name,
            "decision": "allow" if ruling.answer.allow else "deny",
            "by": ruling.by,
            "arguments": arguments,
            **report,
        }
        self._service.audit(AuditEvent(AuditKind.HUB_CALLED, call.principal, details=details))

    def _save(self, text: str, ending: str) -> str:
        """Save a long part of a result to a file, as Claude Code itself does, and return its path."""
        directory = private_directory(self._service.settings.state_dir / "mcp" / "results")
        for old in directory.iterdir():
            with contextlib.suppress(OSError):  # another server may remove it at the same time
                if time.time() - old.stat().st_mtime > _KEPT:
                    old.unlink()
        file = directory / f"{uuid.uuid4().hex}{ending}"
        replace_file(file, self._service.redaction.text(text).encode("utf-8", "replace"))
        return str(file)


def _directory(caller: Caller) -> str | None:
    return caller.environment.directory if caller.environment is not None else None


def _size(result: CallReply) -> int:
    """Characters of text, and of encoded data, in a result."""
    blocks = [] if isinstance(result, types.InputRequiredResult) else result.content
    parts = [block.resource if isinstance(block, types.EmbeddedResource) else block for block in blocks]
    return sum(len(getattr(part, name, None) or "") for part in parts for name in ("text", "data", "blob"))
