"""Applies the operator's policy: to the options of sessions, to tool calls, to spending and to the hub.

The rules themselves are pure (`policy/`); this module applies them to real paths, the bypass switch and the spending of
each principal.
"""

import copy
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ...claude.command_line import granted_rules, with_grants
from ...errors import ClaudeCodeError, PermissionDenied
from ...model.options import BYPASS, SessionOptions
from ...model.tool_names import plain_name
from ...policy.admission import Admission, programs_named
from ...policy.git_commands import git_variables
from ...policy.policy import MODE_LADDER, Policy, Profile
from ...policy.rules import ASKED_BY_DIRECTORY, Decision, ToolCall, Verdict, combined, judge, names_tool, offers_server
from ...processes.environment import expand_home
from ...state.spending import Spending
from .principal_limits import PrincipalLimits

log = logging.getLogger(__name__)

_HOOK_ID = "policy"
UNJUDGED = Verdict(Decision.DENY, "error")
"""The verdict on a call whose judging failed."""
_NO_MENTIONS = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}
"""For versions after 2.1.290. Earlier ones do not know it; there, only the mentions that `check_prompt` finds are
refused."""

_PROCESS_DIRECTORY = re.compile(r"/proc/(?:self|thread-self|\d+)\Z")
_MAX_LINKS = 40
"""The number of links that Linux follows in one path."""
_SAME_DIRECTORY = {"CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR": "1"}
"""Makes Claude Code return to the session's directory after every command."""


Judge = Callable[[ToolCall, str], Verdict | None]
"""The verdict of a plug-in on a call by a session of this principal; None leaves it to others."""


class OptionCheck(Protocol):
    """Raises PermissionDenied for options that a principal may not use."""

    def __call__(self, options: SessionOptions, *, principal: str) -> None: ...


class BypassSwitch:
    """Whether the sessions of each principal skip permission checks: off until a person at the client switches it on,
    and never on if the policy forbids it. In memory only: off after a restart."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._on: set[str] = set()

    def possible(self, principal: str) -> bool:
        """Whether it may be switched on at all."""
        profile = self._policy.profile(principal)
        return profile.bypass != "never" and profile.mode_ceiling == BYPASS

    def is_on(self, principal: str) -> bool:
        # Has no effect once the principal's profile no longer allows it.
        return principal in self._on and self.possible(principal)

    def usable(self, principal: str) -> bool:
        """Whether a session may skip them now: it is on, or the policy does not require switching it on."""
        return self.possible(principal) and (principal in self._on or self._policy.profile(principal).bypass == "allow")

    def switch(self, principal: str, on: bool) -> bool:
        """Switch it on or off; return whether that changed anything. PermissionDenied if it may never be on."""
        if on and not self.possible(principal):
            raise PermissionDenied("The operator's policy never allows bypassing permissions.", field="action")
        before = principal in self._on
        (self._on.add if on else self._on.discard)(principal)
        return before != on


class PolicyEnforcer:
    """Refuses with PermissionDenied. A principal's profile is looked up at every call."""

    def __init__(
        self,
        policy: Policy,
        default_directory: str,
        spending: Spending,
        guarded: Sequence[str] = (),
        judges: Sequence[Judge] = (),
        option_checks: Sequence[OptionCheck] = (),
    ) -> None:
        """`guarded` are the directories with settings of Claude Code and of this server. `judges` and `option_checks`
        are asked after the policy; they can only make it stricter, except that a judge may answer a question."""
        self._policy = policy
        self._judges = judges
        self._option_checks = option_checks
        self._default_directory = default_directory
        self._environment: Mapping[str, str] = {}
        self._guarded = guarded
        self._enclosed = False
        self.bypass = BypassSwitch(policy)
        self.limits = PrincipalLimits(policy, spending)

    def for_client(self, directory: str, environment: Mapping[str, str]) -> "PolicyEnforcer":
        """The same policy and counts for clients with this HOME in this directory, which `.` refers to. The bypass is
        switched separately for them."""
        other = copy.copy(self)
        other._default_directory = directory
        other._environment = environment
        other.bypass = BypassSwitch(self._policy)
        return other

    def guarding(self, *directories: str, enclosed: bool) -> "PolicyEnforcer":
        """The same policy, counts and switches for sessions whose settings are in these directories, `enclosed` in a
        sandbox or not."""
        other = copy.copy(self)
        other._guarded = directories
        other._enclosed = enclosed
        return other

    # -- sessions ---------------------------------------------------------------------------------------------

    def profile(self, principal: str) -> Profile:
        """The principal's profile as it is now."""
        return self._policy.profile(principal)

    def admission(self, principal: str) -> Admission:
        """The admission for this principal's sessions, with the current state of the bypass switch."""
        profile, bypassing = self._policy.profile(principal), self.bypass.is_on(principal)

        def exists(path: str) -> bool:
            return os.path.lexists(_at_home(path, self._environment))

        checks = [partial(check, principal=principal) for check in self._option_checks]
        return Admission(profile, self._resolve, self._default_directory, bypassing, exists=exists, checks=checks)

    def admit(self, options: SessionOptions, cwd: str, principal: str) -> SessionOptions:
        """The options that a session in this directory runs with, tightened by the policy. Raises PermissionDenied."""
        return self.admission(principal).admit(options, cwd)

    def check_record_of_machine(
        self, principal: str, cwd: str, recorded: SessionOptions, known: SessionOptions | None
    ) -> None:
        """PermissionDenied if another machine's record names a program that this machine would start.

        The caller who named it may have been allowed to, but only the other machine claims so. A program is accepted if
        this machine's own record of the session (`known`) has it, or if a rule of the policy lets the principal's
        sessions run exactly this line.
        """
        for program in programs_named(recorded):
            if known is not None and getattr(known, program.option) == getattr(recorded, program.option):
                continue
            line = {"command": program.line}
            if program.line is None or self.judge(principal, cwd, "Bash", line).decision is not Decision.ALLOW:
                raise PermissionDenied(
                    f"{program.field}: the session's record comes from another machine, and such a record cannot "
                    "choose a program to run here. Start a new session, or add a rule to this machine's policy.",
                    field=program.field,
                )

    def modes(self, principal: str) -> tuple[str, ...]:
        """The permission modes that a principal may choose, the most restrictive first."""
        ceiling = MODE_LADDER.index(self._policy.profile(principal).mode_ceiling)
        modes = MODE_LADDER[: ceiling + 1]
        if self.bypass.possible(principal):
            return modes
        return tuple(mode for mode in modes if mode != BYPASS)

    def directories(self, principal: str) -> list[str]:
        """The roots of the principal's profile; the default directory if it may work anywhere."""
        roots = self._policy.profile(principal).roots
        return [self._resolve(self._root(root)) for root in ((".",) if roots is None else roots)]

    def may_work_in(self, path: str, principal: str) -> bool:
        """Whether a directory is within the principal's roots after resolving links."""
        try:
            self.admission(principal).inside("cwd", path, self._default_directory)
        except ClaudeCodeError:
            return False
        return True

    def readable_directory(self, path: str, principal: str) -> str:
        """A directory with links resolved. PermissionDenied outside of the principal's roots or if a rule denies
        reading it, InvalidArgument if it is not a usable path."""
        return self.admission(principal).readable_directory("path", path, self._default_directory)

    def resolved(self, path: str, principal: str) -> str:
        """A directory as sessions record it, with links resolved; unchanged if it is outside the principal's roots."""
        return os.path.realpath(path) if self.may_work_in(path, principal) else path

    def may_change(self, directory: str, principal: str) -> bool:
        """Whether the principal's sessions may change files in a directory at all."""
        changed = {"file_path": os.path.join(directory, "file")}
        return self.judge(principal, directory, "Edit", changed).decision is not Decision.DENY

    def variables(self, profile: Profile, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables for processes with this profile, which otherwise have this environment.

        If reading is limited, Claude Code must not read files mentioned with `@` automatically, wherever the mention
        comes from; instead it asks the model to use its tools. If there are rules on commands, each line is judged
        separately, so it must start in the session's directory even if the previous line changed it; and git must not
        run programs when it reports the state of a repository.
        """
        mentions = _NO_MENTIONS if profile.limits_reading else {}
        judged = {**_SAME_DIRECTORY, **git_variables(environment)} if profile.judges_commands else {}
        return {**mentions, **judged}

    # -- tools ------------------------------------------------------------------------------------------------

    def judge(
        self, principal: str, cwd: str, tool: str, tool_input: Mapping[str, Any], subagent_directory: str | None = None
    ) -> Verdict:
        """The verdict of the rules and the judges on a call. `subagent_directory` is the directory of its subagent, if
        not `cwd`. An exception during judging is a denial."""
        try:
            profile = self._policy.profile(principal)
            roots = None if profile.roots is None else [self._root(root) for root in profile.roots]
            call = ToolCall(
                tool,
                tool_input,
                cwd,
                self._resolve_for_session,
                guarded=self._guarded,
                roots=roots,
                hides_denied_files=self._enclosed,
                subagent_directory=subagent_directory,
            )
            found = judge(call, profile.allow_rules, profile.deny_rules, profile.tools, profile.shell)
            for other in self._judges:
                found = combined(found, other(call, principal))
            return found
        except Exception:
            log.exception(
                "a call of %s by a session of %s could not be checked against the policy", tool[:200], principal
            )
            return UNJUDGED

    def _root(self, root: str) -> str:
        return self._default_directory if root == "." else root

    def needs_person(self, *principals: str) -> bool:
        """Whether the profile of any of them lets only a person allow the requests of sessions."""
        return any(self._policy.profile(principal).answers == "person" for principal in {*principals})

    def require_person(self, *principals: str) -> None:
        """PermissionDenied if the profile of any of them requires a person's answer; called for allowing answers that
        do not come from a person."""
        if self.needs_person(*principals):
            raise PermissionDenied(
                "The operator's policy lets only a person allow this: in a form of the MCP client, in the console, "
                "in the terminal interface, or with `claude-code-mcp answer` at a terminal. It can be denied here.",
                field="decision",
            )

    def hooks(self, profile: Profile) -> dict[str, Any] | None:
        """The hooks for `initialize`. If the policy or a judge may deny calls, Claude Code must report every call,
        including calls that it would not ask about. If there are rules on commands, it must report each change of
        directory, and each command with its directory."""
        denies = bool(profile.deny) or profile.tools is not None or bool(self._judges)
        if not denies and not profile.judges_commands:
            return None
        matcher = None if denies else "|".join(ASKED_BY_DIRECTORY)
        return {"PreToolUse": [{"matcher": matcher, "hookCallbackIds": [_HOOK_ID]}]}

    def directory_of_subagent(self, cwd: str, call: Mapping[str, Any]) -> str | None:
        """The directory of the subagent whose call a hook reports; None for the session's own calls, and if it is the
        session's directory. The session itself changes directory only by a tool call, which causes a question."""
        if not call.get("agent_id"):
            return None
        directory = str(call.get("cwd"))
        return None if self._resolve(directory) == self._resolve(cwd) else directory

    # -- the hub ----------------------------------------------------------------------------------------------

    def may_use_server(self, principal: str, *names: str) -> bool:
        """Whether the principal's sessions may use anything of an MCP server, under each of its `names`."""
        profile = self._policy.profile(principal)
        return all(offers_server(name, profile.deny_rules, profile.tools) for name in names)

    def allowed_beforehand(
        self,
        principal: str,
        cwd: str,
        options: SessionOptions,
        grants: Sequence[Mapping[str, Any]],
        tool: str,
    ) -> bool:
        """Whether a session may call an MCP tool without the question that the rules would require: because its options
        allow it, because a person has granted it, or because it bypasses permissions."""
        granted = self.admission(principal).suggestions(grants, cwd)
        options, rules = with_grants(options, granted), granted_rules(granted)
        # Before the bypass: tools denied for this session stay denied in every mode.
        if any(names_tool(rule, tool) for rule in (*options.disallowed_tools, *rules.get("deny", ()))):
            return False
        if options.dangerously_skip_permissions or options.permission_mode == BYPASS:
            return True
        return any(names_tool(rule, tool) for rule in (*options.allowed_tools, *rules.get("allow", ())))

    def check_steering(self, principal: str) -> None:
        """PermissionDenied for a caller who may use the shared MCP servers, but not change them for all users."""
        if not self._policy.profile(principal).steer_hub:
            raise PermissionDenied(
                "The MCP servers are shared by all callers, and the operator's policy does not let you change them.",
                field="action",
            )

    def _resolve(self, path: str) -> str:
        return os.path.realpath(_at_home(path, self._environment))

    def _resolve_for_session(self, path: str) -> str:
        """The path resolved as in a process of a session; ends with `..` if only that process could resolve it."""
        expanded = _at_home(path, self._environment)
        return os.path.join(expanded, "..") if _depends_on_process(expanded) else os.path.realpath(expanded)


def _depends_on_process(path: str) -> bool:
    """Whether a path leads through the directory of a process in `/proc`, by its spelling or by links such as
    `/dev/fd`: `/proc/self/cwd` is another directory for this server than for a command of a session."""
    reached, waiting, links = "/", path.split("/")[::-1], 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            reached = os.path.dirname(reached)
        if name in ("", ".", ".."):
            continue
        reached = os.path.join(reached, name)
        if _PROCESS_DIRECTORY.match(reached):
            return True
        try:
            target = os.readlink(reached)
        except OSError:
            continue  # no link, or nothing
        links += 1
        if links > _MAX_LINKS:
            return True
        reached = "/" if target.startswith("/") else os.path.dirname(reached)
        waiting += target.split("/")[::-1]
    return False


def _at_home(path: str, environment: Mapping[str, str]) -> str:
    return os.path.expanduser(expand_home(path, environment)) if path.startswith("~") else path


_COMPLETED = {"ref/prompt": "prompts/get", "ref/resource": "resources/read"}


def tool_behind(server: str, method: str, params: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The tool call that a message to an MCP server is judged as: the tool could read the same data. None for messages
    that read only the server's description."""
    ref = params.get("ref")
    if method == "completion/complete" and isinstance(ref, Mapping):
        return tool_behind(server, _COMPLETED.get(str(ref.get("type")), "resources/read"), ref)
    match method:
        case "resources/read" | "resources/subscribe" | "completion/complete":
            return "ReadMcpResourceTool", {"server": server, "uri": str(params.get("uri"))}
        case "resources/list" | "resources/templates/list":
            return "ListMcpResourcesTool", {"server": server}
        case "prompts/get":
            return plain_name(server, str(params.get("name"))), {}
    return None
