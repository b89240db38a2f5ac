"""Programs that run when a session comes to a machine or leaves it: the operator's hooks, and its repository's set-up.

**Hooks** are programs in a directory of the machine's operator, with the names and variables that Anthropic's own
runner has for them. They run as the user of the machine, in no sandbox, without our tokens and the model's credentials.

- `checkout` makes the checkout that a session's saved tree is then put onto, instead of an empty repository: from a
  mirror, or of a repository whose history is not stored. It gets `CLAUDE_RUNNER_SESSION_ID`, `CLAUDE_RUNNER_REPO_URL`
  and `CLAUDE_RUNNER_REPO_REF` (a commit that the remote has; both are claims of the session's last machine), and fills
  the empty directory `CLAUDE_RUNNER_CHECKOUT_PATH`. If it fails, the session is not taken.
- `post-session` runs when a session has left, in its directory, with `CLAUDE_RUNNER_SESSION_ID`,
  `CLAUDE_RUNNER_WORKSPACE_PATHS` and `CLAUDE_RUNNER_EXIT_REASON`: `moved`, `lost` (another machine has taken it),
  `cancelled` or `shutdown`. Its outcome changes nothing.

**The set-up command** is the content of `.worktreesetup` in a repository: the steps that a fresh checkout needs, such
as installing files that git ignores. A file in a project grants no permission by itself: the command runs only if the
operator's policy allows that exact Bash call to the session's owner. It runs in the session's sandbox, like the
session's own commands.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...core import private_files
from ...core.errors import ProcessFailed
from ...core.git import Reply, run_in_home, run_program
from ...core.model.caller import Caller
from ...core.processes.limits import ChildOptions
from ...core.service import Service
from .working_trees import TreeRef, TreeRefused

log = logging.getLogger(__name__)

SETUP_FILE: Final = ".worktreesetup"
_MAX_COMMAND = 4 << 10
_MAX_REASON = 500
_CHECKOUT_SECONDS = 600.0
_SETUP_SECONDS = 300.0
_POST_SESSION_SECONDS = 60.0
_WITHHELD = ("ANTHROPIC_", "CLAUDE_CODE_", "AWS_", "GOOGLE_", "AZURE_")


class Hooks:
    """The operator's hooks on one machine. Without a directory there are none."""

    def __init__(self, directory: Path | None, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {name: value for name, value in environment.items() if not name.startswith(_WITHHELD)}

    async def checkout(self, session_id: str, ref: TreeRef, directory: str) -> bool:
        """Runs the hook that creates a checkout in an empty directory; returns whether there is one. Raises TreeRefused
        if it fails: its files stay in the directory."""
        program = await asyncio.to_thread(self._program, "checkout")
        if program is None:
            return False
        variables = {
            "CLAUDE_RUNNER_SESSION_ID": session_id,
            "CLAUDE_RUNNER_REPO_URL": ref.remote_url,
            "CLAUDE_RUNNER_REPO_REF": ref.base,
            "CLAUDE_RUNNER_CHECKOUT_PATH": directory,
        }
        try:
            reply = await self._run(program, variables, directory, _CHECKOUT_SECONDS)
        except ProcessFailed as problem:
            raise TreeRefused(f"The checkout hook of this machine failed: {problem.message}") from None
        if reply.code:
            raise TreeRefused(f"The checkout hook of this machine exited with code {reply.code}: {_last_words(reply)}")
        return True

    async def post_session(self, session_id: str, reason: str, workspace: str) -> None:
        """Runs the hook for a session that left this machine. Never raises: the session is gone, whatever the hook
        does."""
        try:
            program = await asyncio.to_thread(self._program, "post-session")
            if program is None:
                return
            variables = {
                "CLAUDE_RUNNER_SESSION_ID": session_id,
                "CLAUDE_RUNNER_WORKSPACE_PATHS": workspace,
                "CLAUDE_RUNNER_EXIT_REASON": reason,
            }
            # The hook still reports the end if no files of the session are left.
            directory = workspace if await asyncio.to_thread(os.path.isdir, workspace) else os.path.dirname(program)
            reply = await self._run(program, variables, directory, _POST_SESSION_SECONDS)
        except (ProcessFailed, TreeRefused) as problem:
            log.warning("the post-session hook failed for session %s: %s", session_id, problem.message)
            return
        if reply.code:
            text = _last_words(reply)
            log.warning("the post-session hook exited with code %d for session %s: %s", reply.code, session_id, text)

    async def _run(self, program: str, variables: Mapping[str, str], directory: str, seconds: float) -> Reply:
        environment = {**self._environment, **variables}
        return await run_program([program], directory, environment, b"", seconds, ChildOptions())

    def _program(self, name: str) -> str | None:
        """The program of a hook. Raises TreeRefused if users other than its owner can change it."""
        if self._directory is None:
            return None
        path = os.path.join(os.path.realpath(self._directory), name)
        try:
            found = os.stat(path)
            place = os.stat(os.path.dirname(path))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise TreeRefused(f"The hook {path} cannot be checked: {problem.strerror}.") from None
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
            raise TreeRefused(f"The hook {path} is not an executable program.")
        for each in (found, place):
            if each.st_uid not in (0, os.geteuid()) or each.st_mode & 0o022:
                raise TreeRefused(f"The hook {path} is not used: other users can change it.")
        return path


NO_HOOKS: Final = Hooks(None, {})


async def set_up(service: Service, caller: Caller, directory: str) -> str:
    """Runs the set-up command of a tree that just arrived on this machine; returns a sentence about a failure, or an
    empty string. The session continues in any case: the sender of its next message sees the sentence."""
    command = await asyncio.to_thread(_command_in, directory)
    if not command:
        return ""
    if len(command) > _MAX_COMMAND:
        return f"The set-up command in {SETUP_FILE} was not run: it is too long."
    answer = service.answer_by_rule(caller.principal, directory, "Bash", {"command": command})
    if answer is None or not answer.allow:
        return f"The set-up command in {SETUP_FILE} was not run: the policy of this machine has no rule that allows it."
    home = service.relocation.environment_of(caller).launcher.home
    environment = {name: value for name, value in home.environment.items() if not name.startswith(_WITHHELD)}
    try:
        reply = await run_in_home(
            home, (directory,), ["/bin/sh", "-c", command], directory, environment, b"", _SETUP_SECONDS
        )
    except ProcessFailed as problem:
        return f"The set-up command in {SETUP_FILE} failed: {problem.message}"
    if reply.code:
        return f"The set-up command in {SETUP_FILE} exited with code {reply.code}: {_last_words(reply)}"
    return ""


def _command_in(directory: str) -> str:
    try:
        # Links are not followed: the session controls the file.
        with open(os.path.join(directory, SETUP_FILE), "rb", opener=private_files.open_at) as file:
            return os.fsdecode(file.read(_MAX_COMMAND + 1)).strip()
    except OSError:
        return ""


def _last_words(reply: Reply) -> str:
    lines = [line for line in (*reply.output.splitlines(), *reply.errors.splitlines()) if line.strip()]
    return " ".join(lines[-3:])[-_MAX_REASON:] or "it printed nothing"
