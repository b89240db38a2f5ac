"""The tools of the hub's servers, offered to clients as tools of this server.

A call passes the policy first. Where the policy neither allows nor denies it, a person is asked through the client's
dialogs; there is no session here whose queue could hold the question, so a client that cannot ask is refused.
"""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from ...errors import PermissionDenied
from ...hub.hub import Hub, HubTool
from ...hub.tool_search import ToolIndex
from ...hub.trimming import is_long, with_long_parts_saved
from ...model.question import Answer, Question, Resolution, Scope
from ...private_files import private_directory, replace_file
from ...service import LOCAL, Service
from .context import Call
from .rounds import PAUSED_CALL, CallReply, CallRounds, ProxiedCall
from .waiting import first_of

_LIST_TIMEOUT = 5.0
"""Seconds that a server has to connect before the tools are listed without it."""
_QUESTION = "question"
_CHARACTERS_PER_TOKEN = 4
_KEPT = 7 * 86_400.0
"""Seconds for which the file of a long result is kept."""


class HubProxy:
    """Lists and calls the tools. What a person allowed a caller for good is remembered as long as the server runs."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._allowed: set[tuple[str, str]] = set()
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        """The answers of the questions that are open, by question."""
        self._tools: dict[str, HubTool] = {}
        """By the name that the tool has here."""
        self._index: tuple[list[HubTool], ToolIndex] = ([], ToolIndex(()))
        """The words of the tools, and the tools that they were read from."""
        self._rounds = CallRounds(service.settings.permission_timeout)

    def end_of(self, principal: str) -> None:
        """The caller is gone: calls that wait for it are given up, and what it was allowed for good is forgotten."""
        self._rounds.end_of(principal)
        self._allowed = {entry for entry in self._allowed if entry[0] != principal}

    async def listing(self, principal: str) -> list[types.Tool]:
        """The tools that the caller may use, under the names they have here. A server that does not connect in time is
        left out, and so is a tool that the policy denies whatever its arguments are."""
        await self._refresh()
        return [
            entry.tool.model_copy(update={"name": name})
            for name, entry in self._tools.items()
            if self._listed(principal, name)
        ]

    async def find(self, principal: str, query: str) -> list[types.Tool]:
        """The tools that the caller may use and that have a word of the query, the best first; as in the listing."""
        await self._refresh()
        tools, index = await self._indexed()
        ranked = (tools[number] for number in index.ranked(query))
        return [
            entry.tool.model_copy(update={"name": entry.name})
            for entry in ranked
            if self._listed(principal, entry.name)
        ]

    def tools_by_server(self, principal: str) -> dict[str, int]:
        """How many tools of each server the caller may use, as of the last listing."""
        return dict(Counter(entry.server for name, entry in self._tools.items() if self._listed(principal, name)))

    async def _indexed(self) -> tuple[list[HubTool], ToolIndex]:
        """The index of the tools, made anew where they have changed."""
        tools, index = list(self._tools.values()), self._index
        if index[0] != tools:
            texts = [
                (f"{tool.server} {tool.tool.name}", tool.tool.description, tool.tool.input_schema) for tool in tools
            ]
            index = self._index = tools, await asyncio.to_thread(ToolIndex, texts)
        return index

    async def _refresh(self) -> None:
        self._tools = {entry.name: entry for entry in await self._hub.tools(timeout=_LIST_TIMEOUT)}

    def _listed(self, principal: str, name: str) -> bool:
        answer = self._service.policy_answer(principal, name, {})
        return answer is None or answer.allow

    async def knows(self, name: str) -> bool:
        if name not in self._tools:
            await self._refresh()
        return name in self._tools

    async def call(self, name: str, call: Call, arguments: Mapping[str, Any]) -> CallReply:
        """Calls the tool, once that is permitted; PermissionDenied if it is not."""
        if PAUSED_CALL not in call.state:  # the state is sealed for this very call, which was permitted when it began
            question = await self._check_permission(call, name, arguments)
            if question is not None:
                return question
        entry = self._tools[name]

        async def start(proxied: ProxiedCall) -> CallReply:
            progress = proxied.progress if proxied.wants_progress else None
            result = await self._hub.call(
                entry.server,
                entry.tool.name,
                arguments,
                caller=call.caller,
                directory=call.origin.directory if call.origin is not None else None,
                on_progress=progress,
                ask=proxied.ask,
            )
            # A client elsewhere could not read a file of ours: it gets the result as the server gave it.
            return result if call.principal != LOCAL else await self._shortened(entry, result)

        return await self._rounds.run(call, start)

    async def _shortened(self, entry: HubTool, result: CallReply) -> CallReply:
        """The result with its long parts in a file, as Claude Code itself does with long results."""
        limit = self._service.settings.mcp_output_tokens * _CHARACTERS_PER_TOKEN
        if isinstance(result, types.InputRequiredResult) or not is_long(result, limit):
            return result
        promised = entry.tool.output_schema is not None
        return await asyncio.to_thread(with_long_parts_saved, result, limit, self._save, keep_structured=promised)

    def _save(self, text: str, ending: str) -> str:
        directory = private_directory(self._service.settings.state_dir / "mcp" / "results")
        for old in directory.iterdir():
            with contextlib.suppress(OSError):  # another server may remove it at the same time
                if time.time() - old.stat().st_mtime > _KEPT:
                    old.unlink()
        file = directory / f"{uuid.uuid4().hex}{ending}"
        replace_file(file, self._service.redaction.text(text).encode("utf-8", "replace"))
        return str(file)

    # -- permission -------------------------------------------------------------------------------------------

    async def _check_permission(
        self, call: Call, name: str, arguments: Mapping[str, Any]
    ) -> types.InputRequiredResult | None:
        """None once the call is permitted, PermissionDenied if it is not, or the question as the result of the call."""
        answer: Answer | types.InputRequiredResult | None
        answer = self._service.policy_answer(call.principal, name, arguments)
        if answer is None and (call.caller, name) not in self._allowed:
            answer = await self._ask(call, name, arguments)
        if answer is None or isinstance(answer, types.InputRequiredResult):
            return answer
        if not answer.allow:
            raise PermissionDenied(answer.message or f"{name} was denied.")
        if answer.scope is Scope.SESSION:
            self._allowed.add((call.caller, name))
        return None

    async def _ask(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Answer | types.InputRequiredResult:
        """The answer of a person, or the question as the result of the call for a client that takes it so."""
        place = f"hub:{call.caller}"  # stands in for a session's id
        question_id = call.state.get(_QUESTION)
        if isinstance(question_id, str):
            return self._returned_answer(call, place, question_id)
        if not (call.returns_questions or call.can_ask):
            return Answer(
                allow=False,
                message=f"{name} needs somebody's permission, and this client cannot ask. A rule in the policy can "
                f'allow it: allow = ["{name}"].',
            )
        question = self._open_question(place, name, arguments)
        if call.returns_questions:
            return call.dialogs.as_result(place, [question], call.offsets, question=question.id)
        call.dialogs.follow(place)
        try:
            with call.dialogs.waiting(place, call.context.request_id, call.context.session):
                return await self._wait_for_answer(call, place, question)
        finally:
            self._close_question(question.id)

    def _open_question(self, place: str, name: str, arguments: Mapping[str, Any]) -> Question:
        settled: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def settle(question: Question, resolution: Resolution, _: Mapping[str, Any] | None) -> None:
            if not settled.done():
                settled.set_result(resolution.answer or _denial(resolution.detail))

        always = {"type": "addRules", "rules": [{"toolName": name}], "behavior": "allow", "destination": "session"}
        question = self._service.open_question(place, name, arguments, settle, suggestions=[always])
        self._answers[question.id] = settled
        # A client that takes the question as a result may never come back: then it is closed after its expiry.
        asyncio.get_running_loop().call_later(
            2 * self._service.settings.permission_timeout, self._close_question, question.id
        )
        return question

    def _returned_answer(self, call: Call, place: str, question_id: str) -> Answer | types.InputRequiredResult:
        """The client came back: with the answer, for the next page of the question, or too late."""
        before = call.offsets.get(question_id)
        call.dialogs.accept_forms(place, call.responses, call.offsets)
        still_open = [question for question in call.dialogs.undismissed(place) if question.id == question_id]
        if still_open and call.offsets.get(question_id) != before:
            return call.dialogs.as_result(place, still_open, call.offsets, question=question_id)
        settled = self._answers.get(question_id)
        answer = settled.result() if settled is not None and settled.done() else _denial()
        self._close_question(question_id)
        return answer

    async def _wait_for_answer(self, call: Call, place: str, question: Question) -> Answer:
        """Waits for the answer. A dismissed dialog is a denial: no session waits here that could be answered later."""
        settled = self._answers[question.id]
        while not settled.done():
            await first_of(settled, call.dialogs.wait_for_change())
            if not settled.done() and question not in call.dialogs.undismissed(place):
                return _denial()
        return settled.result()

    def _close_question(self, question_id: str) -> None:
        self._service.withdraw_question(question_id, "the call is over")
        self._answers.pop(question_id, None)


def _denial(reason: str = "") -> Answer:
    return Answer(allow=False, message=reason or "Nobody allowed it.")
