"""The route for choosing the directory of a new session: the person's recent directories, and the directories below
those that their sessions may use and read."""

import os
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import InvalidArgument
from ...core.private_files import folders_at
from ...core.service import Service
from ...core.sessions.callers.caller_policy import CallerPolicy
from ...server.web_answers import answer, text_of
from .guard import WebUser

_MAX_NAMES = 200
_MAX_RECENT = 8
_LOOKED_AT = 200
"""Maximum number of sessions, last used first, whose directories are read."""
_MAX_CHECKED = 1000
"""Maximum number of names in a directory that are checked."""
_MAX_PATH = 4096


class DirectoryRoutes:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request, user: WebUser) -> Response:
        """The directories below one, or, without a path, the roots and the caller's recent directories."""
        path, text = text_of(request, "path", _MAX_PATH), text_of(request, "text")
        policy = self._service.policy_for(user.caller)
        if path is not None:
            look = partial(_below, policy, path, text or "")
        else:
            rows, _ = await self._service.stored.page(caller=user.caller, limit=_LOOKED_AT)
            # A shared session belongs to another person's project.
            stored = [row.project_directory for row in rows if row.project_directory and row.access is None]
            # A session that was just started is not on the disk yet.
            known = self._service.sessions(principal=user.principal)
            running = [session.cwd for session in known if session.owner == user.principal]
            used = [*running, *stored]
            look = partial(_beginning, policy, used)
        found = await self._service.caller_threads.run(user.principal, look)
        return answer(self._service.redaction.data(found))


def _beginning(policy: CallerPolicy, used: Iterable[str]) -> dict[str, Any]:
    recent: list[str] = []
    for path in dict.fromkeys(used):
        if len(recent) < _MAX_RECENT and _is_text(path) and policy.may_work_in(path) and os.path.isdir(path):
            recent.append(path)
    return {"recent": recent, "roots": [root for root in policy.directories() if _is_text(root)]}


def _below(policy: CallerPolicy, path: str, text: str) -> dict[str, Any]:
    resolved = policy.readable_directory(path)
    try:
        # Without following links: a session may replace the directory that was just checked with a link.
        folders, links = folders_at(resolved)
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.", field="path") from None
    wanted = text.casefold()
    names = [name for name in (*folders, *links) if wanted in name.casefold() and _is_text(name)]
    # Dot directories, which usually belong to tools, come last.
    names.sort(key=lambda name: (name.startswith("."), name.casefold(), name))
    linked = frozenset(links)
    shown: list[str] = []
    for name in islice(names, _MAX_CHECKED):
        if len(shown) == _MAX_NAMES:
            break
        entry = os.path.join(resolved, name)
        # Where a link leads is shown only if it is a directory that the caller's sessions may use.
        if policy.may_list(entry) and (name not in linked or os.path.isdir(entry)):
            shown.append(name)
    else:
        return _listed(policy, resolved, shown, cut=len(names) > _MAX_CHECKED)
    return _listed(policy, resolved, shown, cut=True)


def _listed(policy: CallerPolicy, resolved: str, names: list[str], *, cut: bool) -> dict[str, Any]:
    parent = os.path.dirname(resolved)
    is_inside = parent != resolved and policy.may_list(parent)
    return {"path": resolved, "parent": parent if is_inside else None, "names": names, "cut": cut}


def _is_text(path: str) -> bool:
    """Whether a name can be encoded in an answer and sent back unchanged; a text field drops line breaks."""
    if "\n" in path or "\r" in path:
        return False
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
