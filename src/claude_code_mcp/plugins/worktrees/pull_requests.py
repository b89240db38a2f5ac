"""Pull requests for the branch of a session's worktree, pushed with git and opened with the user's own `gh` or `glab`.

Only for sessions of the server's own user that run in no sandbox: a push uses that user's credentials.

A session can write anything into the configuration of its repository: another address, a program for the connection, a
credential helper, a hook. Therefore nothing is pushed from there. An empty repository of our own, in a temporary
private directory, borrows the objects. It has only the user's configuration, runs no hook, and uses only https, http
and ssh. The address is that of the remote `origin`, which a session may have changed too: a person sees the destination
and agrees to exactly that one. A push is never forced.

A remote is GitLab's if its host name contains that word, is the user's `GITLAB_HOST`, or is one that `glab` is set up
for. `glab api` opens the merge request: `glab mr create` would take the description as an argument, which every user
can see in the list of processes.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ...core.errors import InvalidArgument, PermissionDenied, ProcessFailed
from ...core.git import NON_INTERACTIVE, Reply, git_program, run_program
from ...core.isolation import Home
from ...core.model.worktree import Worktree
from ...core.processes.limits import ChildOptions
from .worktree_changes import git_for

_SECONDS = 120.0
_REMOTE = "origin"
_ADDRESS = re.compile(
    r"(?:(?:https?|ssh)://(?:[\w.~%:-]{1,200}@)?(?P<host>[\w.-]{1,200}(?::\d{1,5})?)/"
    r"|(?:[\w.-]{1,100}@)(?P<ssh>[\w][\w.-]{0,200}):)"
    r"(?P<owner>[\w][\w.-]{0,100}(?:/[\w][\w.-]{0,100}){0,19})/(?P<name>[\w][\w.-]{0,100}?)(?:\.git)?/?",
    re.ASCII,
)
_WITHHELD = ("GIT_", "ANTHROPIC_", "CLAUDE")
_VARIABLES: Mapping[str, str] = {
    **NON_INTERACTIVE,
    "GIT_ALLOW_PROTOCOL": "https:http:ssh",
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "NO_PROMPT": "1",
    "GLAB_CHECK_UPDATE": "false",
    "NO_COLOR": "1",
}
_GITLAB = "gitlab"
_GITLAB_HOSTS = ("GITLAB_HOST", "GL_HOST")
_ENTERPRISE_TOKENS = ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
"""The variables that gh uses for every host except github.com and subdomains of ghe.com."""
_GITLAB_TOKENS = ("GITLAB_TOKEN", "GITLAB_ACCESS_TOKEN", "OAUTH_TOKEN", "GLAB_TOKEN", "CI_JOB_TOKEN")
_MAX_CONFIGURATION = 1 << 16


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a branch is pushed to."""

    url: str
    repository: str
    """`host/owner/name`, human-readable and for `gh`, without credentials in the address."""
    host: str
    """The host of its web interface, without the port of ssh."""
    path: str
    """`owner/name`; at GitLab with all groups."""


class PullRequests:
    """The pull requests of one home."""

    def __init__(self, home: Home, worktree: Worktree) -> None:
        self._home, self._worktree = home, worktree

    async def remote(self) -> Remote | None:
        """Where a pull request would be opened; None if that is impossible here: no program, no suitable address, or a
        sandbox."""
        opened = await self._remote_and_program()
        return opened[0] if opened is not None else None

    async def program_name(self) -> str:
        """`gh` or `glab`, depending on the remote, installed or not; `gh` without a remote."""
        found = await self._remote_and_kind()
        return "glab" if found is not None and found[1] else "gh"

    async def _remote_and_kind(self) -> tuple[Remote, bool] | None:
        """The remote, and whether it is GitLab."""
        git = git_for(self._home, self._worktree)
        found = await git.run("config", "--get", f"remote.{_REMOTE}.url", cwd=self._worktree.repository)
        remote = remote_at(found.output.strip()) if not found.code else None
        if remote is None:
            return None
        return remote, await asyncio.to_thread(_is_gitlab, remote.host, self._home.environment)

    async def _remote_and_program(self) -> tuple[Remote, str, bool] | None:
        """The remote, the program that opens requests there, and whether it is GitLab."""
        if self._home.enclosure is not None or self._home.own or self._worktree.into is None:
            return None
        if not any(map(self._program, ("gh", "glab"))):
            return None
        found = await self._remote_and_kind()
        if found is None:
            return None
        remote, is_gitlab = found
        program = self._program("glab" if is_gitlab else "gh")
        if program is None or (not is_gitlab and remote.path.count("/") > 1):  # only GitLab has nested groups
            return None
        return remote, program, is_gitlab

    def _program(self, name: str) -> str | None:
        program = shutil.which(name, path=self._home.environment.get("PATH", os.defpath))
        return os.path.abspath(program) if program is not None else None

    async def open(self, commit: str, title: str, body: str, agreed: str) -> str:
        """Pushes the commit to the branch's name at the remote and opens a pull request; returns its address. `agreed`
        is `Remote.repository`; raises PermissionDenied if the remote has changed, and InvalidArgument with the message
        of git, gh or glab if one fails; pushed commits stay pushed."""
        opened, worktree = await self._remote_and_program(), self._worktree
        if opened is None or worktree.into is None:
            raise InvalidArgument("A pull request cannot be opened from here; ask the session to open it.")
        remote, program, is_gitlab = opened
        if remote.repository != agreed:
            raise PermissionDenied(f"The remote is {remote.repository} now; nothing was pushed. Review it again.")
        git = git_for(self._home, worktree)
        if await git.read("ls-files", "-z", "--", ":(attr:filter=lfs)", cwd=worktree.path, git_dir=worktree.git_dir):
            raise InvalidArgument(
                "Git LFS files would not be pushed from here; ask the session to open the pull request."
            )
        # git, gh and their helpers must not receive the credentials for the model.
        inherited = {name: value for name, value in self._home.environment.items() if not name.startswith(_WITHHELD)}
        environment = _without_tokens_of_others(remote.host, {**inherited, **_VARIABLES})
        place = await asyncio.to_thread(tempfile.mkdtemp, prefix="claude-code-mcp-push-")
        try:
            await self._push(place, environment, remote.url, commit)
            if is_gitlab:
                return await self._open_at_gitlab(program, remote, place, environment, title, body)
            flags = {"repo": remote.repository, "head": worktree.branch, "base": worktree.into, "title": title}
            arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
            reply = await self._run([program, "pr", "create", *arguments, "--body-file", "-"], place, environment, body)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, place, ignore_errors=True))
        return reply.output.strip().rpartition("\n")[2]

    async def _open_at_gitlab(
        self, glab: str, remote: Remote, place: str, environment: Mapping[str, str], title: str, body: str
    ) -> str:
        """Opens a merge request; returns its address."""
        endpoint = f"projects/{quote(remote.path, safe='')}/merge_requests"
        flags = ["--hostname", remote.host, "--method", "POST", "--header", "Content-Type: application/json"]
        fields = {
            "source_branch": self._worktree.branch,
            "target_branch": self._worktree.into,
            "title": title,
            "description": body,
        }
        reply = await self._run([glab, "api", endpoint, *flags, "--input", "-"], place, environment, json.dumps(fields))
        try:
            address = json.loads(reply.output)["web_url"]
        except (ValueError, KeyError, TypeError, RecursionError):
            address = None
        # The merge request is open in any case: glab ended without an error.
        return address if isinstance(address, str) else f"https://{remote.host}/{remote.path}/-/merge_requests"

    async def _push(self, place: str, environment: Mapping[str, str], url: str, commit: str) -> None:
        git = [git_program(environment), "-c", f"core.hooksPath={os.devnull}", "-c", "push.gpgSign=false"]
        await self._run([*git, "init", "--quiet", "--bare", "--template=", "."], place, environment)
        objects = os.path.join(self._worktree.common_dir, "objects")
        if "\n" in objects:
            raise InvalidArgument("git cannot use the repository's path as an alternate object store.")
        alternates = Path(place, "objects", "info", "alternates")
        await asyncio.to_thread(_write, alternates, os.fsencode(objects) + b"\n")
        target = f"{commit}:refs/heads/{self._worktree.branch}"
        await self._run([*git, "push", "--quiet", "--no-signed", "--", url, target], place, environment)

    async def _run(self, argv: list[str], cwd: str, environment: Mapping[str, str], stdin: str = "") -> Reply:
        options = ChildOptions(limits=self._home.limits)
        try:
            reply = await run_program(argv, cwd, environment, stdin.encode(), _SECONDS, options)
        except ProcessFailed as error:
            raise InvalidArgument(f"The pull request was not opened: {error.message}") from None
        if reply.code:
            name = os.path.basename(argv[0])
            reason = " ".join((reply.errors.strip() or reply.output.strip()).splitlines()[-10:])[:1500]
            raise InvalidArgument(f"The pull request was not opened: {name} exited with code {reply.code}: {reason}")
        return reply


def remote_at(url: str) -> Remote | None:
    """The repository at an address; None if it is neither https nor ssh, or has no owner."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return None
    host, path = found["host"] or found["ssh"], f"{found['owner']}/{found['name']}"
    web_host = host.partition(":")[0] if url.startswith("ssh:") else host
    return Remote(url, f"{host}/{path}", web_host.lower(), path)


def _is_gitlab(host: str, environment: Mapping[str, str]) -> bool:
    """Whether a host is GitLab, according to its name or the user's settings. Blocks on the disk."""
    return _GITLAB in host or host in _named_hosts(environment) or host in _hosts_of_glab(environment)


def _without_tokens_of_others(host: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without tokens for other hosts. gh and glab send tokens to any host they are given, also when git
    asks them for a password, and a session may have chosen it."""
    withheld: set[str] = set()
    if host not in (_named_hosts(environment) or {"gitlab.com"}):
        withheld.update(_GITLAB_TOKENS)
    if host != environment.get("GH_HOST", "").strip().lower():
        withheld.update(_ENTERPRISE_TOKENS)
    return {name: value for name, value in environment.items() if name not in withheld}


def _named_hosts(environment: Mapping[str, str]) -> set[str]:
    """The hosts in the user's variables; each may be an address."""
    values = (environment.get(name, "").strip().lower() for name in _GITLAB_HOSTS)
    return {value.rpartition("://")[2].partition("/")[0] for value in values if value}


def _hosts_of_glab(environment: Mapping[str, str]) -> set[str]:
    """The keys below `hosts` in the configuration of `glab`; none if it cannot be read."""
    home = environment.get("HOME", "")
    below = environment.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if home else "")
    directory = environment.get("GLAB_CONFIG_DIR") or (os.path.join(below, "glab-cli") if below else "")
    if not directory:
        return set()
    try:
        with open(os.path.join(directory, "config.yml"), encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_CONFIGURATION)
    except OSError:
        return set()  # then `gh` is tried, which refuses an unknown host
    hosts, is_within, depth = set[str](), False, 0
    for line in text.splitlines():
        key, indent = line.strip(), len(line) - len(line.lstrip(" "))
        if not key or key.startswith("#"):
            continue
        if indent == 0:
            is_within, depth = key == "hosts:", 0
        elif is_within and key.endswith(":"):
            depth = depth or indent
            if indent == depth:
                hosts.add(key[:-1].strip("\"'").lower())
    return hosts


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
