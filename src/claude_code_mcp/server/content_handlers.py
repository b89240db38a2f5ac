"""The handlers of the protocol for resources, prompts and completions.

Sessions are resources of this server (`resources.py`), and it has its own prompts. If clients are offered the hub's
contents, everything else goes to the hub (`tools/hub_contents.py`). An address or name of this server always takes
precedence over the hub's.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ..core.errors import ClaudeCodeError
from ..core.model.caller import Caller
from ..core.model.events import LIST_CHANGES
from ..core.model.tool_names import SKILLS, UPDATED
from ..core.service import Service
from .change_notifications import LISTS, Changes
from .completion import complete
from .dialogs import Dialogs
from .prompts import Prompts
from .resource_addresses import is_own, parse, unknown
from .resources import SessionResources
from .sdk import Context
from .session_changes import FollowedKey, SessionChanges
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from .tools.hub_contents import HubContents


_MAX_FOLLOWED = 1000
"""Maximum resources that one connection may subscribe to."""
_UNCACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""For results that depend on the caller and whose changes are not announced."""


@dataclass(frozen=True, slots=True)
class ContentRequester:
    """The caller, and the contents of their client's hub, if offered."""

    caller: Caller
    hub: "HubContents | None"


class ContentHandlers:
    """The handlers of the protocol for resources, prompts and completions."""

    def __init__(
        self,
        service: Service,
        subscriptions: Subscriptions,
        connections: Callable[[], Iterable[Dialogs]],
        requester: Callable[[Context], ContentRequester],
        dialogs: Callable[[Context], Dialogs],
        *,
        own: bool,
    ) -> None:
        """`requester` and `dialogs` return a request's caller and connection. Without `own`, only the hub's contents
        are offered."""
        self._subscriptions = subscriptions
        self._requester = requester
        self._dialogs = dialogs
        self._changes = Changes(service, subscriptions, connections)
        self._service = service
        self._own = SessionResources(service) if own else None
        self._prompts = Prompts(service.settings)
        self._sessions = SessionChanges(service, self._changes)
        self._followed: dict[Dialogs, dict[str, FollowedKey | None]] = {}
        """The subscriptions of each connection with a handshake, and how sessions among them are followed."""
        self._observes = not own

    def handlers(self) -> dict[str, Any]:
        """The handlers by their SDK names."""
        return {
            "on_list_resources": self._list_resources,
            "on_list_resource_templates": self._list_templates,
            "on_read_resource": self._read,
            "on_subscribe_resource": self._subscribe,
            "on_unsubscribe_resource": self._unsubscribe,
            "on_subscriptions_listen": self._listen,
            "on_list_prompts": self._list_prompts,
            "on_get_prompt": self._prompt,
            "on_completion": self._complete,
        }

    def _observe_sessions(self) -> None:
        """Start observing sessions. Called for the first client that asks for their changes, since most never do."""
        if not self._observes:
            self._observes = True
            self._service.observe(self._sessions, acts=LIST_CHANGES)

    def hub_changed(self, what: str) -> None:
        """Announce that a list or a resource of the hub has changed."""
        if what in LISTS:
            self._changes.list_changed(what)
        elif what.startswith(UPDATED):
            self._changes.resource_updated(what.removeprefix(UPDATED))

    def disconnected(self, dialogs: Dialogs) -> None:
        """Note that a connection with a handshake has ended."""
        self._changes.disconnected(dialogs)
        followed = self._followed.pop(dialogs, {})
        self._sessions.unfollow(key for key in followed.values() if key is not None)

    async def _list_resources(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        requester = self._requester(context)
        # Before the list is built: a change in the meantime is announced.
        self._observe_sessions()
        self._changes.reads(self._dialogs(context), requester.caller.principal)
        own = await self._own.listing(requester.caller) if self._own is not None else []
        theirs = (
            (await requester.hub.resources(requester.caller.principal)).resources if requester.hub is not None else []
        )
        return types.ListResourcesResult(
            resources=[*own, *(resource for resource in theirs if not self._is_own(str(resource.uri)))]
        )

    async def _list_templates(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        requester = self._requester(context)
        own = self._own.templates() if self._own is not None else []
        theirs = (
            (await requester.hub.templates(requester.caller.principal)).resource_templates
            if requester.hub is not None
            else []
        )
        others = [template for template in theirs if not self._is_own(template.uri_template)]
        return types.ListResourceTemplatesResult(resource_templates=[*own, *others])

    def _is_own(self, uri: str) -> bool:
        return self._own is not None and is_own(uri)

    async def _read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        requester, uri = self._requester(context), str(params.uri)
        if self._own is not None and is_own(uri):
            return await self._own.read(uri, requester.caller)
        if requester.hub is None:
            raise unknown(uri)
        return await requester.hub.read(requester.caller.principal, uri)

    def register_skills(self, server: Server[Any]) -> None:
        """Offer the skills of the hub's servers (SEP-2640) on a server of the SDK."""
        server.extensions[SKILLS] = {}
        server.add_request_handler("skills/list", types.PaginatedRequestParams, self._list_skills)
        server.add_request_handler("skills/get", types.ReadResourceRequestParams, self._skill)

    async def _list_skills(self, context: Context, _: types.PaginatedRequestParams | None) -> dict[str, Any]:
        requester = self._requester(context)
        skills = await requester.hub.skills(requester.caller.principal) if requester.hub is not None else []
        return {"skills": skills, **_UNCACHED}

    async def _skill(self, context: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        requester = self._requester(context)
        if requester.hub is None:
            raise unknown(str(params.uri))
        return {"skill": await requester.hub.skill(requester.caller.principal, str(params.uri)), **_UNCACHED}

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Notify the client when the resource changes, until its connection ends."""
        requester, dialogs, uri = self._requester(context), self._dialogs(context), str(params.uri)
        session_id = ""
        if self._own is not None and is_own(uri):
            session_id = (await self._own.check(uri, requester.caller)).session_id
        elif requester.hub is None:
            raise unknown(uri)
        else:
            await requester.hub.follow(requester.caller.principal, uri)
        followed = self._followed.setdefault(dialogs, {})
        if uri not in followed:  # no await from here on: two requests cannot both follow
            if len(followed) >= _MAX_FOLLOWED:
                raise MCPError(types.INVALID_PARAMS, f"You can subscribe to at most {_MAX_FOLLOWED} resources.")
            self._observe_sessions()
            self._changes.reads(dialogs, requester.caller.principal)
            self._changes.follow(uri, dialogs)
            key = self._sessions.follow(session_id, requester.caller) if session_id else None
            followed[uri] = key
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        dialogs, uri = self._dialogs(context), str(params.uri)
        # The hub keeps following it: other followers are not counted.
        self._changes.unfollow(uri, dialogs)
        key = self._followed.get(dialogs, {}).pop(uri, None)
        self._sessions.unfollow([key] if key is not None else [])
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve the stream of a client of 2026-07-28. Resources that it may not see, or that cannot be followed, are
        ignored."""
        requester = self._requester(context)
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()][:_MAX_FOLLOWED]
        # Before the stream starts: its acknowledgment promises changes from then on.
        self._observe_sessions()
        for uri in uris:
            if requester.hub is not None and not self._is_own(uri):
                with contextlib.suppress(MCPError):
                    await requester.hub.follow(requester.caller.principal, uri)
        found = (parse(uri) for uri in uris if self._own is not None)
        sessions = {address.session_id for address in found if address is not None and address.session_id}
        keys = [self._sessions.follow(session_id, requester.caller) for session_id in sessions]
        try:
            return await self._subscriptions.listen(context, params)
        finally:
            self._sessions.unfollow(keys)

    async def _list_prompts(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        requester = self._requester(context)
        self._dialogs(context)  # from now on this connection is notified of changes
        theirs = (await requester.hub.prompts(requester.caller.principal)).prompts if requester.hub is not None else []
        return types.ListPromptsResult(prompts=[*self._prompts.listing(), *theirs])

    async def _prompt(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        requester = self._requester(context)
        if params.name in self._prompts:
            return self._prompts.get(params.name, params.arguments or {})
        if requester.hub is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name[:100]}")
        return await requester.hub.prompt(requester.caller.principal, params.name, params.arguments)

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        requester, ref = self._requester(context), params.ref
        own = ref.name in self._prompts if isinstance(ref, types.PromptReference) else self._is_own(str(ref.uri))
        if own:
            return await complete(self._service, params.argument, requester.caller)
        if requester.hub is None:
            raise MCPError(
                types.INVALID_PARAMS, "Unknown reference: neither a prompt nor a resource template of this server"
            )
        return await requester.hub.complete(requester.caller.principal, params)


def refusing_handlers(problem: ClaudeCodeError) -> dict[str, Any]:
    """The handlers of a server that runs nothing: its lists are empty, and everything else reports the problem."""

    async def refuse(_: Context, __: Any) -> Any:
        raise MCPError(types.INTERNAL_ERROR, problem.message, {"code": problem.code})

    def nothing(result: Any) -> Any:
        async def answer(_: Context, __: Any) -> Any:
            return result

        return answer

    refused = ("read_resource", "subscribe_resource", "unsubscribe_resource", "get_prompt", "completion")
    return {
        **{f"on_{name}": refuse for name in refused},
        "on_list_resources": nothing(types.ListResourcesResult(resources=[])),
        "on_list_resource_templates": nothing(types.ListResourceTemplatesResult(resource_templates=[])),
        "on_list_prompts": nothing(types.ListPromptsResult(prompts=[])),
    }
