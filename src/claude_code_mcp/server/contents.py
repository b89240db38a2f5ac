"""What this server has besides tools: resources, prompts for good delegation, and completions.

Prompts name only tools of the chosen toolsets. What the person writes stands in them as JSON, as the arguments of a
call, so that it cannot be taken for a part of the instruction.

Nothing is completed that the caller may not use: sessions of others, directories outside of the roots, modes above the
ceiling of the policy's profile.

Sessions are resources of this server (`resources.py`), and it has prompts of its own. Where clients are offered what
the hub has, everything else goes to the hub (`tools/hub_contents.py`). An address or a name of
ours is never the hub's, whatever its servers list.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ..core.config import Settings
from ..core.errors import ClaudeCodeError
from ..core.model.caller import Caller
from ..core.model.events import LIST_CHANGES
from ..core.model.tool_names import SKILLS, UPDATED
from ..core.service import Service
from ..core.transcripts.cost_table import Grouping
from .changes import LISTS, Changes, FollowedKey, SessionChanges, Subscriptions
from .dialogs import Dialogs
from .resources import SessionResources, is_own, parse, unknown
from .sdk import Context

if TYPE_CHECKING:
    from .tools.hub_contents import HubContents


_LONGEST_VALUE = 100_000
"""Characters of an argument."""
_MOST_AT_ONCE = 8
_TASK = ("task", "What is to be done, with everything that must be known for it", True)
_DIRECTORY = ("directory", "The project directory", False)
_MODEL = ("model", "The model", False)
_MODE = ("mode", "The permission mode", False)

Arguments = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Family:
    """How a session is run with the tools of one toolset."""

    start: str
    send: str
    argument_names: Mapping[str, str]
    """What the arguments of `start` and `send` are called."""
    after: str
    """What to do until the turn has ended."""


_FAMILIES: Mapping[str, _Family] = {
    "sessions": _Family(
        "claude_create_session",
        "claude_send_message",
        {"directory": "workingDirectory", "mode": "permissionMode", "model": "model", "message": "message"},
        "Then call claude_get_status with waitSeconds until status is no longer running. When it is waiting_for_input, "
        "show me every entry of pendingInputs and answer it with claude_respond as I decide.",
    ),
    "code": _Family(
        "claude_code",
        "claude_code_reply",
        {"directory": "cwd", "mode": "permissionMode", "model": "model", "message": "prompt"},
        "When its status is waiting_for_input, show me every entry of pendingInputs and answer it with "
        "claude_code_session, action respond, as I decide.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Prompt:
    name: str
    title: str
    description: str
    arguments: tuple[tuple[str, str, bool], ...]
    """Name, description and whether it must be filled."""
    write: Callable[[_Family, Arguments], str]


class Prompts:
    """The prompts of a server with these settings; none where its tools start no session."""

    def __init__(self, settings: Settings) -> None:
        name = next((name for name in _FAMILIES if name in settings.toolsets), None)
        self._family = _FAMILIES[name] if name is not None else None
        self._prompts = {prompt.name: prompt for prompt in _ALL} if self._family is not None else {}

    def __contains__(self, name: str) -> bool:
        return name in self._prompts

    def listing(self) -> list[types.Prompt]:
        return [
            types.Prompt(
                name=prompt.name,
                title=prompt.title,
                description=prompt.description,
                arguments=[
                    types.PromptArgument(name=name, description=description, required=required)
                    for name, description, required in prompt.arguments
                ],
            )
            for prompt in self._prompts.values()
        ]

    def get(self, name: str, arguments: Arguments) -> types.GetPromptResult:
        """The prompt with what the person filled in; MCPError where that does not fit."""
        prompt = self._prompts[name]
        assert self._family is not None
        known = {argument: required for argument, _, required in prompt.arguments}
        for argument, value in arguments.items():
            if argument not in known or len(value) > _LONGEST_VALUE:
                why = "unknown argument" if argument not in known else f"must have at most {_LONGEST_VALUE} characters"
                raise MCPError(types.INVALID_PARAMS, f"{argument[:100]}: {why}")
        missing = [argument for argument, required in known.items() if required and not arguments.get(argument)]
        if missing:
            raise MCPError(types.INVALID_PARAMS, f"{missing[0]}: required")
        text = prompt.write(self._family, {key: value for key, value in arguments.items() if value})
        content = types.TextContent(type="text", text=text)
        return types.GetPromptResult(
            description=prompt.description, messages=[types.PromptMessage(role="user", content=content)]
        )


# -- the texts ----------------------------------------------------------------------------------------------------


def _call(tool: str, **arguments: Any) -> str:
    filled = {name: value for name, value in arguments.items() if value is not None}
    return f"{tool} {json.dumps(filled, ensure_ascii=False, indent=1)}"


def _start(family: _Family, filled: Arguments, prompt: str, **more: str) -> str:
    wanted = {name: filled.get(name) for name in ("directory", "model", "mode")} | more
    return _call(family.start, prompt=prompt, **{family.argument_names[name]: value for name, value in wanted.items()})


def _delegate(family: _Family, filled: Arguments) -> str:
    return (
        "Have a Claude Code session do this. Before you start it, complete the prompt below with what we both know and "
        "the session cannot: the goal, the limits, what is there already, how to tell that it is done. Then call:\n\n"
        f"{_start(family, filled, filled['task'])}\n\n{family.after}\n\n"
        "When it has ended, check its result against the task yourself, tell me in a few lines what was done and what "
        "was not, and give me the session id."
    )


def _plan_first(family: _Family, filled: Arguments) -> str:
    return (
        "Have a Claude Code session plan this before anything is changed. Call:\n\n"
        f"{_start(family, filled, filled['task'], mode='plan')}\n\n{family.after}\n\n"
        "The plan comes as a question of type plan_review. Show it to me whole, with what you would change about it. "
        "Allow it only when I agree; otherwise deny it with my remarks as the reason, and the session plans again."
    )


def _review(family: _Family, filled: Arguments) -> str:
    what = filled.get("changes") or "the uncommitted changes, with `git status`, `git diff HEAD` and the new files"
    prompt = (
        f"Review {what}. Read the code around every change, not the diff alone. Report only what is wrong or will be: "
        "defects, lost cases, races, security, tests that cannot fail. For each: file and line, what happens, how to "
        "see it, what to do. The most serious first. Change nothing."
    )
    return (
        "Have a Claude Code session review changes with fresh eyes. Call:\n\n"
        f"{_start(family, filled, prompt, mode='plan')}\n\n{family.after}\n\n"
        "Check every finding in the code before you pass it on, and say which you could confirm."
    )


def _continue(family: _Family, filled: Arguments) -> str:
    message = filled.get("message") or "Sum up where you are: what is done, what is left, what you need from me."
    call = _call(family.send, sessionId=filled["session"], **{family.argument_names["message"]: message})
    return (
        f"Go on with an earlier Claude Code session: it still knows everything that was said in it. Call:\n\n{call}\n\n"
        f"{family.after}\n\nTell me what came of it. Use the sessionId of the result from now on."
    )


def _compare(family: _Family, filled: Arguments) -> str:
    try:
        count = min(max(int(filled.get("count", "2")[:4]), 2), _MOST_AT_ONCE)
    except ValueError:
        raise MCPError(types.INVALID_PARAMS, "count: must be a number") from None
    return (
        f"Have {count} Claude Code sessions do the same task independently, and compare them. They must not share a "
        f"directory: first make {count} git worktrees of the project, or copies of it, and give each session its own. "
        f"Start all before you wait for any, {count} times with another directory:\n\n"
        f"{_start(family, filled, filled['task'])}\n\n{family.after}\n\n"
        "When all have ended, compare the results by the same measures: whether it works, what the tests say, how much "
        "was changed, what was left out. Recommend one, say why, and what is better in the others."
    )


_ALL = (
    _Prompt(
        "delegate",
        "Delegate a task",
        "Have a session do a task, and check the result",
        (_TASK, _DIRECTORY, _MODEL, _MODE),
        _delegate,
    ),
    _Prompt(
        "plan_first",
        "Plan first",
        "Have a session plan a task, and decide on the plan",
        (_TASK, _DIRECTORY, _MODEL),
        _plan_first,
    ),
    _Prompt(
        "review_changes",
        "Review changes",
        "Have a session review a diff with fresh eyes",
        (
            ("changes", "What is reviewed, such as main...HEAD; default: what is not committed", False),
            _DIRECTORY,
            _MODEL,
        ),
        _review,
    ),
    _Prompt(
        "continue_session",
        "Continue a session",
        "Go on with an earlier session",
        (("session", "The session's id; words of its title find it", True), ("message", "What to tell it", False)),
        _continue,
    ),
    _Prompt(
        "compare",
        "Run several and compare",
        "Have several sessions do the same task, and compare",
        (_TASK, _DIRECTORY, _MODEL, ("count", f"How many, 2 to {_MOST_AT_ONCE}", False)),
        _compare,
    ),
)


# -- contents ---------------------------------------------------------------------------------------------------------


_MOST = 100
"""Values in an answer; the protocol allows no more."""
_MOST_LOOKED_AT = 5000
"""Entries of a directory that are looked at."""
_LONGEST = 1000
_MODELS = ("default", "opus", "sonnet", "haiku", "opusplan", "sonnet[1m]")
"""The names that Claude Code resolves to its current models."""


async def complete(service: Service, argument: types.CompletionArgument, caller: Caller) -> types.CompleteResult:
    """The values that an argument may have and that fit what was typed; none for arguments of any text."""
    typed = argument.value[:_LONGEST]
    if argument.name in ("session", "id"):
        values = await _sessions(service, typed, caller)
    elif argument.name == "directory":
        values = await asyncio.to_thread(_directories, service, typed, caller)
    elif argument.name == "model":
        values = _beginning(await _models(service, caller), typed)
    elif argument.name == "mode":
        values = _beginning(service.policy_for(caller).modes, typed)
    elif argument.name == "by":
        values = _beginning(get_args(Grouping), typed)
    else:
        values = []
    shown = values[:_MOST]
    return types.CompleteResult(
        completion=types.Completion(values=shown, total=len(values), has_more=len(values) > len(shown))
    )


def _beginning(values: Iterable[str], typed: str) -> list[str]:
    return [value for value in values if value.casefold().startswith(typed.casefold())]


async def _sessions(service: Service, typed: str, caller: Caller) -> list[str]:
    """The ids of sessions with these words in title, prompts, directory or id, the newest first."""
    entries = await service.listing.entries(caller=caller, text=typed.strip() or None, limit=_MOST)
    return [entry.session_id for entry in entries]


async def _models(service: Service, caller: Caller) -> list[str]:
    """Those that Claude Code has names for, and those that answered in the newest sessions. A name from a transcript
    that has a secret in it is left out."""
    entries = await service.listing.entries(caller=caller, limit=_MOST)
    models = (entry.model for entry in entries if entry.model)
    return [*dict.fromkeys((*_MODELS, *(model for model in models if service.redaction.text(model) == model)))]


def _directories(service: Service, typed: str, caller: Caller) -> list[str]:
    """Directories that begin with what was typed, and the roots themselves where nothing was. Blocks on the disk."""
    if not typed:
        return [path for path in service.policy_for(caller).directories() if os.path.isdir(path)]
    parent, begun = os.path.split(typed)
    if not os.path.isabs(parent) or not service.policy_for(caller).may_work_in(parent):
        return [path for path in service.policy_for(caller).directories() if path.startswith(typed)]
    try:
        with os.scandir(parent) as entries:
            names = sorted(
                entry.name for entry in islice(entries, _MOST_LOOKED_AT) if _fits(entry, begun) and entry.is_dir()
            )
    except OSError:
        return []
    found = (os.path.join(parent, name) for name in names[: _MOST + 1])
    return [path for path in found if service.policy_for(caller).may_work_in(path)]


def _fits(entry: "os.DirEntry[str]", begun: str) -> bool:
    """Hidden ones only if a dot was typed."""
    return entry.name.startswith(begun) and (begun.startswith(".") or not entry.name.startswith("."))


# -- contents ---------------------------------------------------------------------------------------------------------


_MOST_FOLLOWED = 1000
"""Resources that one connection may subscribe to."""


_UNCACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""For results that depend on the caller, and of whose changes no server tells."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and what their client's hub has, if that is offered."""

    caller: Caller
    hub: "HubContents | None"


class Contents:
    """The handlers of the protocol for resources, prompts and completions."""

    def __init__(
        self,
        service: Service,
        subscriptions: Subscriptions,
        connections: Callable[[], Iterable[Dialogs]],
        asker: Callable[[Context], Asker],
        dialogs: Callable[[Context], Dialogs],
        *,
        own: bool,
    ) -> None:
        """`asker` and `dialogs` say who a request is from and on which connection it came. Without `own`, only what the
        hub has is offered."""
        self._subscriptions = subscriptions
        self._asker = asker
        self._dialogs = dialogs
        self._changes = Changes(service, subscriptions, connections)
        self._service = service
        self._own = SessionResources(service) if own else None
        self._prompts = Prompts(service.settings)
        self._sessions = SessionChanges(service, self._changes)
        self._followed: dict[Dialogs, dict[str, FollowedKey | None]] = {}
        """What each connection with a handshake has subscribed to, and how it is followed if it is a session."""
        self._observes = not own

    def handlers(self) -> dict[str, Any]:
        """By the names that the SDK has for them."""
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
        """Hears of sessions from now on, for a client that is to be told of their changes: most never ask for it."""
        if not self._observes:
            self._observes = True
            self._service.observe(self._sessions, acts=LIST_CHANGES)

    def hub_changed(self, what: str) -> None:
        """The hub has another list, or a resource of it has changed."""
        if what in LISTS:
            self._changes.list_changed(what)
        elif what.startswith(UPDATED):
            self._changes.resource_updated(what.removeprefix(UPDATED))

    def disconnected(self, dialogs: Dialogs) -> None:
        """A connection with a handshake has ended."""
        self._changes.disconnected(dialogs)
        followed = self._followed.pop(dialogs, {})
        self._sessions.unfollow(key for key in followed.values() if key is not None)

    # -- resources ----------------------------------------------------------------------------------------------

    async def _list_resources(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        asker = self._asker(context)
        # Before the list is made: a change meanwhile is announced.
        self._observe_sessions()
        self._changes.reads(self._dialogs(context), asker.caller.principal)
        own = await self._own.listing(asker.caller) if self._own is not None else []
        theirs = (await asker.hub.resources(asker.caller.principal)).resources if asker.hub is not None else []
        return types.ListResourcesResult(
            resources=[*own, *(resource for resource in theirs if not self._is_own(str(resource.uri)))]
        )

    async def _list_templates(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        asker = self._asker(context)
        own = self._own.templates() if self._own is not None else []
        theirs = (await asker.hub.templates(asker.caller.principal)).resource_templates if asker.hub is not None else []
        others = [template for template in theirs if not self._is_own(template.uri_template)]
        return types.ListResourceTemplatesResult(resource_templates=[*own, *others])

    def _is_own(self, uri: str) -> bool:
        return self._own is not None and is_own(uri)

    async def _read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        asker, uri = self._asker(context), str(params.uri)
        if self._own is not None and is_own(uri):
            return await self._own.read(uri, asker.caller)
        if asker.hub is None:
            raise unknown(uri)
        return await asker.hub.read(asker.caller.principal, uri)

    # -- skills of the hub's servers ----------------------------------------------------------------------------

    def register_skills(self, server: Server[Any]) -> None:
        """Offers the skills of the hub's servers (SEP-2640) on a server of the SDK."""
        server.extensions[SKILLS] = {}
        server.add_request_handler("skills/list", types.PaginatedRequestParams, self._list_skills)
        server.add_request_handler("skills/get", types.ReadResourceRequestParams, self._skill)

    async def _list_skills(self, context: Context, _: types.PaginatedRequestParams | None) -> dict[str, Any]:
        asker = self._asker(context)
        skills = await asker.hub.skills(asker.caller.principal) if asker.hub is not None else []
        return {"skills": skills, **_UNCACHED}

    async def _skill(self, context: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        asker = self._asker(context)
        if asker.hub is None:
            raise unknown(str(params.uri))
        return {"skill": await asker.hub.skill(asker.caller.principal, str(params.uri)), **_UNCACHED}

    # -- following ----------------------------------------------------------------------------------------------

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """The client is notified when the resource changes, until its connection ends."""
        asker, dialogs, uri = self._asker(context), self._dialogs(context), str(params.uri)
        session_id = await self._check(uri, asker)
        followed = self._followed.setdefault(dialogs, {})
        if uri not in followed:  # nothing is awaited from here on: two requests cannot both follow
            if len(followed) >= _MOST_FOLLOWED:
                raise MCPError(types.INVALID_PARAMS, f"No more than {_MOST_FOLLOWED} resources can be subscribed to.")
            self._observe_sessions()
            self._changes.reads(dialogs, asker.caller.principal)
            self._changes.follow(uri, dialogs)
            key = self._sessions.follow(session_id, asker.caller) if session_id else None
            followed[uri] = key
        return types.EmptyResult()

    async def _check(self, uri: str, asker: Asker) -> str:
        """Has the hub follow a resource of its own; the session that one of ours is of, if it is of one."""
        if self._own is not None and is_own(uri):
            return (await self._own.check(uri, asker.caller)).session_id
        if asker.hub is None:
            raise unknown(uri)
        await asker.hub.follow(asker.caller.principal, uri)
        return ""

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        dialogs, uri = self._dialogs(context), str(params.uri)
        # The hub goes on following it: nobody counts who else wants that.
        self._changes.unfollow(uri, dialogs)
        key = self._followed.get(dialogs, {}).pop(uri, None)
        self._sessions.unfollow([key] if key is not None else [])
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """The stream of a client of 2026-07-28. What it names and may not see, or cannot be followed, stays silent."""
        asker = self._asker(context)
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()][:_MOST_FOLLOWED]
        # Before the stream begins: its acknowledgement says that changes are told from then on.
        self._observe_sessions()
        for uri in uris:
            if asker.hub is not None and not self._is_own(uri):
                with contextlib.suppress(MCPError):
                    await asker.hub.follow(asker.caller.principal, uri)
        with self._following(uris, asker):
            return await self._subscriptions.listen(context, params)

    @contextlib.contextmanager
    def _following(self, uris: Iterable[str], asker: Asker) -> Iterator[None]:
        found = (parse(uri) for uri in uris if self._own is not None)
        sessions = {address.session_id for address in found if address is not None and address.session_id}
        keys = [self._sessions.follow(session_id, asker.caller) for session_id in sessions]
        try:
            yield
        finally:
            self._sessions.unfollow(keys)

    # -- prompts ------------------------------------------------------------------------------------------------

    async def _list_prompts(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        asker = self._asker(context)
        self._dialogs(context)  # from now on this connection is notified of changes
        theirs = (await asker.hub.prompts(asker.caller.principal)).prompts if asker.hub is not None else []
        return types.ListPromptsResult(prompts=[*self._prompts.listing(), *theirs])

    async def _prompt(self, context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        asker = self._asker(context)
        if params.name in self._prompts:
            return self._prompts.get(params.name, params.arguments or {})
        if asker.hub is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name[:100]}")
        return await asker.hub.prompt(asker.caller.principal, params.name, params.arguments)

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        asker, ref = self._asker(context), params.ref
        own = ref.name in self._prompts if isinstance(ref, types.PromptReference) else self._is_own(str(ref.uri))
        if own:
            return await complete(self._service, params.argument, asker.caller)
        if asker.hub is None:
            raise MCPError(types.INVALID_PARAMS, "Unknown reference: neither a prompt nor a template of this server")
        return await asker.hub.complete(asker.caller.principal, params)


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
