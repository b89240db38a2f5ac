"""Offers the hub's resources, prompts, completions and skills as this server's own.

Prompts are called `mcp__server__prompt`, like tools. Resources keep their addresses; of two servers with the same
address, the first wins. The same applies to skills (SEP-2640), whose files are resources: an address that a skill names
must stay unchanged. A server that the policy denies entirely is omitted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from ...core.errors import ClaudeCodeError
from ...core.model.tool_names import SKILLS, ToolNames, plain_name
from ...core.service import Service
from ...hub.client_session import is_skill
from ...hub.hub import Hub
from ...hub.streams import JsonObject

log = logging.getLogger(__name__)

_LIST_TIMEOUT = 5.0
"""Seconds that a server has to connect before the lists are returned without it."""

ResultT = TypeVar("ResultT")
ModelT = TypeVar("ModelT", bound=BaseModel)


_ANY = "resources"
"""A tool name for policy checks of a whole server."""
_ABSENT = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, -32002})
"""The errors with which a server reports an unknown skill; the last is the older one for resources."""


@dataclass(slots=True)
class _Index:
    """The server of each listed item."""

    prompts: dict[str, tuple[str, str]] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    templates: dict[str, str] = field(default_factory=dict)
    skills: dict[str, str] = field(default_factory=dict)
    """By the address of the directory, with a slash at its end."""


class HubContents:
    """Lists, reads and follows. All methods raise MCPError, with the server's own error or our explanation."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._index = _Index()

    async def resources(self, principal: str) -> types.ListResourcesResult:
        found: dict[str, types.Resource] = {}
        for server, listed in await self._listed("resources", principal):
            for resource in listed:
                if found.setdefault(str(resource.uri), resource) is resource:
                    self._index.resources[str(resource.uri)] = server
        return types.ListResourcesResult(resources=list(found.values()))

    async def templates(self, principal: str) -> types.ListResourceTemplatesResult:
        found: dict[str, types.ResourceTemplate] = {}
        for server, listed in await self._listed("templates", principal):
            for template in listed:
                if found.setdefault(template.uri_template, template) is template:
                    self._index.templates[template.uri_template] = server
        return types.ListResourceTemplatesResult(resource_templates=list(found.values()))

    async def prompts(self, principal: str) -> types.ListPromptsResult:
        listed = {
            (server, prompt.name): prompt
            for server, prompts in await self._listed("prompts", principal)
            for prompt in prompts
        }
        names = ToolNames(listed)
        self._index.prompts |= {name: names[name] for name in names}
        return types.ListPromptsResult(
            prompts=[prompt.model_copy(update={"name": names.name(*pair)}) for pair, prompt in listed.items()]
        )

    async def skills(self, principal: str) -> list[JsonObject]:
        """The entries of all skills that servers list."""
        found: dict[str, JsonObject] = {}
        for server, listed in await self._listed("skills", principal):
            for skill in listed:
                if found.setdefault(skill["uri"], skill) is skill:
                    self._note_skill(server, skill)
                else:
                    log.info("a skill of %s is skipped: another server also has %s", server, skill["uri"][:200])
        return [self._service.redaction.data(skill) for skill in found.values()]

    def _note_skill(self, server: str, skill: JsonObject) -> None:
        self._index.skills[skill["uri"].removesuffix("SKILL.md")] = server

    async def _listed(self, kind: str, principal: str) -> list[tuple[str, list[Any]]]:
        lists = await self._hub.lists(kind, _LIST_TIMEOUT)
        return [(server, items) for server, items in lists.items() if self._may_use(principal, server)]

    def _may_use(self, principal: str, server: str) -> bool:
        return self._service.offers_tool(principal, self._service.settings.default_cwd or "", plain_name(server, _ANY))

    async def read(self, principal: str, uri: str) -> types.ReadResourceResult:
        server = await self._server_of(principal, uri)
        return self._clean(await self._answered(self._hub.read(server, uri)))

    async def prompt(self, principal: str, name: str, arguments: Mapping[str, str] | None) -> types.GetPromptResult:
        server, own_name = await self._find_prompt(principal, name)
        return self._clean(await self._answered(self._hub.prompt(server, own_name, arguments)))

    async def complete(self, principal: str, params: types.CompleteRequestParams) -> types.CompleteResult:
        asked = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta"})
        if isinstance(params.ref, types.PromptReference):
            server, asked["ref"]["name"] = await self._find_prompt(principal, params.ref.name)
        else:
            server = await self._server_of(principal, params.ref.uri)
        return await self._answered(self._hub.complete(server, asked))

    async def skill(self, principal: str, uri: str) -> JsonObject:
        """The entry of one skill. An unlisted skill is requested from each server that has skills."""
        if self._find_server(uri) is None:
            await self.skills(principal)
        known = self._find_server(uri)
        failed: MCPError | None = None
        for server in [known] if known is not None else self._servers_with_skills():
            if not self._may_use(principal, server):
                continue
            try:
                answer = await self._answered(self._hub.request(server, "skills/get", {"uri": uri}))
            except MCPError as error:
                # A failing server may still have the skill; try the others too.
                failed = failed if error.code in _ABSENT else error
                continue
            entry: JsonObject = answer.get("skill") or {}
            if is_skill(entry) and entry["uri"] == uri:
                self._note_skill(server, entry)
                clean: JsonObject = self._service.redaction.data(entry)
                return clean
        raise failed or MCPError(types.INVALID_PARAMS, f"Unknown skill: {uri[:200]}", {"uri": uri[:200]})

    def _servers_with_skills(self) -> list[str]:
        return [
            status.name
            for status in self._hub.status()
            if SKILLS in ((status.capabilities or {}).get("extensions") or {})
        ]

    async def _find_prompt(self, principal: str, name: str) -> tuple[str, str]:
        if name not in self._index.prompts:
            await self.prompts(principal)
        found = self._index.prompts.get(name)
        if found is None or not self._may_use(principal, found[0]):
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {name[:100]}")
        return found

    async def _server_of(self, principal: str, uri: str) -> str:
        """The server that listed the address, or the one whose template shares the longest prefix."""
        if self._find_server(uri) is None:
            await asyncio.gather(self.resources(principal), self.templates(principal), self.skills(principal))
        server = self._find_server(uri)
        if server is None or not self._may_use(principal, server):
            raise MCPError(types.INVALID_PARAMS, f"Unknown resource: {uri[:200]}", {"uri": uri[:200]})
        return server

    def _find_server(self, uri: str) -> str | None:
        known = self._index.resources.get(uri) or self._index.templates.get(uri)
        if known is not None:
            return known
        beginnings = {template.partition("{")[0]: server for template, server in self._index.templates.items()}
        beginnings |= self._index.skills
        fitting = [beginning for beginning in beginnings if uri.startswith(beginning)]
        return beginnings[max(fitting, key=len)] if fitting else None

    async def follow(self, principal: str, uri: str) -> None:
        """Make the hub report changes of the resource."""
        await self._answered(self._hub.follow(await self._server_of(principal, uri), uri))

    async def _answered(self, request: Awaitable[ResultT]) -> ResultT:
        try:
            return await request
        except MCPError as error:
            raise MCPError(error.code, self._service.redaction.text(error.message), error.error.data) from None
        except ClaudeCodeError as error:
            message = self._service.redaction.text(error.message)
            raise MCPError(types.INTERNAL_ERROR, message, {"code": error.code}) from None
        except ValidationError:
            raise MCPError(types.INTERNAL_ERROR, "The MCP server's answer violates the protocol.") from None

    def _clean(self, result: ModelT) -> ModelT:
        """The result without known secrets."""
        plain = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return type(result).model_validate(self._service.redaction.data(plain))
