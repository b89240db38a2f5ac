"""Applies the operator's policy: to the options of sessions, to tool calls, to spending and to the hub.

The rules themselves are pure (`policy/`); here they meet real paths, the switch for bypassing permissions and what each
owner has spent today.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..claude.command_line import granted_rules, with_grants
from ..errors import ClaudeCodeError, LimitReached, PermissionDenied
from ..model.mcp_servers import plain_name
from ..model.options import SessionOptions
from ..model.question import Answer, QuestionKind, kind_of
from ..policy.admission import Admission, within
from ..policy.harmless import git_variables
from ..policy.policy import MODE_LADDER, Policy
from ..policy.rules import Decision, Shell, ToolCall, Verdict, judge, names_tool, offers_server
from ..processes.environment import expand_home
from ..state.spending import Spending

BY = "policy"
"""The channel through which rules answer."""
_HOOK_ID = "policy"
_NO_MENTIONS = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}
"""For versions after 2.1.290; earlier ones do not know it, and only what `check_prompt` finds is refused there."""

_SAME_DIRECTORY = {"CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR": "1"}
"""Claude Code goes back to the session's directory after every command."""


class PolicyEnforcer:
    """Refuses with PermissionDenied or LimitReached. An owner's profile is looked up at every call."""

    def __init__(self, policy: Policy, default_directory: str, spending: Spending, guarded: Sequence[str] = ()) -> None:
        """`guarded` are the directories with settings of Claude Code and of this server."""
        self._policy = policy
        self._default_directory = default_directory
        self._environment: Mapping[str, str] = {}
        self._guarded = guarded
        self._bypassing: set[str] = set()
        self._admitting: defaultdict[str, set[str]] = defaultdict(set)
        """By owner, the sessions that are being sent a message and are not busy yet."""
        self.spending = spending

    def for_client(self, directory: str, environment: Mapping[str, str]) -> "PolicyEnforcer":
        """The same policy and counts for clients in this directory, which `.` means to them, and with this HOME.
        Whether permissions are bypassed is switched for each of them by its own person."""
        other = copy.copy(self)
        other._default_directory = directory
        other._environment = environment
        other._bypassing = set()
        return other

    def guarding(self, *directories: str) -> "PolicyEnforcer":
        """The same policy, counts and switches for sessions whose settings are in these directories."""
        other = copy.copy(self)
        other._guarded = directories
        return other

    # -- sessions ---------------------------------------------------------------------------------------------

    def admit(self, options: SessionOptions, cwd: str, owner: str) -> SessionOptions:
        """The options that a session in this directory runs with, tightened by the policy, or PermissionDenied."""
        return self._admission(owner).admit(options.model_copy(update={"cwd": cwd}))

    def modes(self, owner: str) -> tuple[str, ...]:
        """The permission modes that an owner may choose, the most careful first."""
        ceiling = MODE_LADDER.index(self._policy.profile(owner).mode_ceiling)
        modes = MODE_LADDER[: ceiling + 1]
        return modes if self.bypass_possible(owner) else tuple(mode for mode in modes if mode != "bypassPermissions")

    def directories(self, owner: str) -> list[str]:
        """The roots of the owner's profile; the default directory where it may work anywhere."""
        roots = self._policy.profile(owner).roots
        return [self._resolve(self._root(root)) for root in ((".",) if roots is None else roots)]

    def may_work_in(self, path: str, owner: str) -> bool:
        """Whether a directory lies within the owner's roots, wherever links lead."""
        try:
            self._admission(owner).inside("cwd", path, self._default_directory)
        except ClaudeCodeError:
            return False
        return True

    def may_change(self, directory: str, owner: str) -> bool:
        """Whether the owner's sessions may change files in a directory at all."""
        changed = {"file_path": os.path.join(directory, "file")}
        return self.judge(owner, directory, "Edit", changed).decision is not Decision.DENY

    def readable(self, field: str, path: str, cwd: str, owner: str) -> str:
        """Where a path really leads; PermissionDenied for one that the owner's sessions may not read."""
        return self._admission(owner).readable(field, path, cwd)

    def check_prompt(self, prompt: str, cwd: str, owner: str) -> None:
        """PermissionDenied for a prompt with which Claude Code would do by itself what the policy does not allow."""
        self._admission(owner).check_prompt("prompt", prompt, cwd)

    def variables(self, owner: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables for the owner's processes, which otherwise have this environment.

        Where reading is limited, Claude Code must not read files that are mentioned with `@` by itself, wherever the
        mention comes from: it then tells the model to use its tools. Where commands are denied, git must run nothing
        when it is asked about the state of a repository. Where there are rules on commands, each line is judged by
        itself, and so must begin in the session's directory, wherever the one before has gone.
        """
        profile = self._policy.profile(owner)
        mentions = _NO_MENTIONS if profile.limits_reading else {}
        directory = _SAME_DIRECTORY if profile.judges_commands else {}
        return {**mentions, **directory, **(git_variables(environment) if profile.shell is Shell.LIMITED else {})}

    def turn_time(self, seconds: float | None, owner: str) -> float | None:
        """The timeout of a turn, if the caller sets one; refused above the limit."""
        limit = self._policy.profile(owner).limits.turn_seconds
        return None if seconds is None else within("timeout", seconds, limit)

    @contextmanager
    def room(self, session_id: str, owner: str, working: Sequence[str]) -> Iterator[None]:
        """Counts a session as working while it is sent a message; LimitReached if the owner has too many that work.

        `working` are the owner's busy sessions. Two messages that are sent at the same time count each other.
        """
        limit, admitting = self._policy.profile(owner).limits.sessions, self._admitting[owner]
        taken = admitting.union(working)
        if limit is not None and session_id not in taken and len(taken) >= limit:
            raise LimitReached(f"You have {limit} sessions at work, which is all you may have at once.", limit=limit)
        added = session_id not in admitting
        admitting.add(session_id)
        try:
            yield
        finally:
            if added:
                admitting.discard(session_id)

    # -- money ------------------------------------------------------------------------------------------------

    def counts(self, owner: str) -> bool:
        """Whether what this owner spends per day is limited."""
        return self._policy.profile(owner).limits.daily_usd is not None

    def spendable(self, owner: str, session_id: str) -> float | None:
        """Dollars that a process of the session may spend: what is reserved for it; None if the day has no limit."""
        limit = self._policy.profile(owner).limits.daily_usd
        if limit is None:
            return None
        reserved = self.spending.reserved(session_id)
        return max(0.0, limit - self.spending.today(owner)) if reserved is None else reserved

    def reserve(
        self, owner: str, session_id: str, wanted: float | None, working: int, process_left: float | None
    ) -> float:
        """Reserves what a session may spend of the owner's day and returns the amount; LimitReached if nothing is left.

        That is what is `wanted` (None: any amount), but no more than a fair share among the sessions that the owner may
        have at work, of which `working` others are. What its process may still spend, `process_left`, is taken if it
        is within that and not much less: a process learns its budget only when it starts. Blocks on the disk.
        """
        limits = self._policy.profile(owner).limits
        limit = limits.daily_usd
        assert limit is not None, "only where the day is limited"
        shares = 2 if limits.sessions is None else max(1, limits.sessions - working)

        def share(left: float) -> float:
            fair = left / shares if wanted is None else min(wanted, left / shares)
            return process_left if process_left is not None and fair / 2 <= process_left <= fair else fair

        try:
            amount = self.spending.reserve(owner, session_id, limit, share)
        except OSError as error:  # without the file nobody knows what is left
            raise LimitReached(f"No part of today's budget can be reserved: {error.strerror or error}.") from None
        if not amount:
            spent = self.spending.today(owner) >= limit
            how = "spent; it starts anew at midnight UTC" if spent else "spent, or reserved for sessions at work"
            raise LimitReached(f"Your budget of ${limit:g} for today is {how}.", limit=limit)
        return amount

    # -- tools ------------------------------------------------------------------------------------------------

    def judge(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> Verdict:
        """What the rules decide about a call."""
        profile = self._policy.profile(owner)
        roots = None if profile.roots is None else [self._root(root) for root in profile.roots]
        call = ToolCall(tool, tool_input, cwd, self._resolve, guarded=self._guarded, roots=roots)
        return judge(call, profile.allow, profile.deny, profile.tools, profile.shell)

    def _root(self, root: str) -> str:
        return self._default_directory if root == "." else root

    def answer(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> Answer | None:
        """The answer that the rules give to a question; None if a person must be asked."""
        verdict = self.judge(owner, cwd, tool, tool_input)
        if verdict.decision is Decision.ASK:
            return None
        if verdict.decision is Decision.DENY:
            return Answer(allow=False, message=_refusal(verdict))
        # A rule can deny a question to the user, but has no answer to it.
        return Answer(allow=True) if kind_of(tool) is not QuestionKind.USER_QUESTION else None

    def denies(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> bool:
        """Whether no answer can allow a call."""
        return self.judge(owner, cwd, tool, tool_input).decision is Decision.DENY

    def check_call(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> None:
        """PermissionDenied for a call that no answer can allow."""
        verdict = self.judge(owner, cwd, tool, tool_input)
        if verdict.decision is Decision.DENY:
            raise PermissionDenied(_refusal(verdict), field="updated_input")

    def suggestions(self, owner: str, cwd: str, offered: object) -> list[Mapping[str, Any]]:
        """Those of the CLI's permission updates that "allow for this session" may grant."""
        return self._admission(owner).suggestions(offered if isinstance(offered, list) else [], cwd)

    def modes_after_plan(self, owner: str) -> tuple[Sequence[str], str | None]:
        """The modes that may be chosen when a plan is approved, and the one that is set if none is chosen; None leaves
        that to Claude Code."""
        return self._admission(owner).modes_after_plan()

    def check_mode(self, owner: str, mode: str) -> None:
        """PermissionDenied for a mode above the ceiling."""
        self._admission(owner).check_mode("permission_mode", mode)

    def hooks(self, owner: str) -> dict[str, Any] | None:
        """The hooks for `initialize`: where the policy denies anything, Claude Code must show us every call, also those
        that it would not ask about."""
        profile = self._policy.profile(owner)
        if not profile.deny and profile.tools is None:
            return None
        return {"PreToolUse": [{"matcher": None, "hookCallbackIds": [_HOOK_ID]}]}

    def vet(self, owner: str, cwd: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to the hook: deny, ask a person, or (empty) leave it to Claude Code's own permissions.

        Those know what the caller and answers "for this session" have allowed. A doubt is asked about all the same, and
        Claude Code then offers no allowance for the session.
        """
        hook_input = request.get("input")
        call = hook_input if isinstance(hook_input, Mapping) else {}
        tool_input = call.get("tool_input")
        verdict = self.judge(
            owner, cwd, str(call.get("tool_name")), tool_input if isinstance(tool_input, Mapping) else {}
        )
        if verdict.decision is Decision.DENY:
            return _hook_reply("deny", _refusal(verdict))
        if verdict.decision is Decision.ASK and verdict.doubt:
            return _hook_reply("ask", f"The policy of this server denies some commands, and {verdict.doubt}.")
        return {}

    # -- the hub ----------------------------------------------------------------------------------------------

    def may_use_server(self, owner: str, *names: str) -> bool:
        """Whether the owner's sessions may use anything of an MCP server, under each of the names that it has."""
        profile = self._policy.profile(owner)
        return all(offers_server(name, profile.deny, profile.tools) for name in names)

    def allowed_beforehand(
        self,
        owner: str,
        cwd: str,
        options: SessionOptions,
        grants: Sequence[Mapping[str, Any]],
        tool: str,
    ) -> bool:
        """Whether a session may call an MCP tool with nobody asked where the rules would have somebody asked: because
        its options say so, because a person has granted it, or because it bypasses permissions."""
        granted = self.suggestions(owner, cwd, list(grants))
        options, rules = with_grants(options, granted), granted_rules(granted)
        if any(names_tool(rule, tool) for rule in (*options.disallowed_tools, *rules.get("deny", ()))):
            return False
        if options.dangerously_skip_permissions or options.permission_mode == "bypassPermissions":
            return True
        return any(names_tool(rule, tool) for rule in (*options.allowed_tools, *rules.get("allow", ())))

    def check_steering(self, owner: str) -> None:
        """PermissionDenied for a caller who may use the shared MCP servers, but not change them for everybody."""
        if not self._policy.profile(owner).steer_hub:
            raise PermissionDenied(
                "The MCP servers are shared by all callers, and the operator's policy does not let you change them.",
                field="action",
            )

    # -- bypassing --------------------------------------------------------------------------------------------

    def bypass_possible(self, owner: str) -> bool:
        profile = self._policy.profile(owner)
        return profile.bypass != "never" and profile.mode_ceiling == "bypassPermissions"

    def bypass_on(self, owner: str) -> bool:
        return self.bypass_possible(owner) and owner in self._bypassing

    def set_bypass(self, owner: str, on: bool) -> None:
        """Switches the bypass; PermissionDenied where it may never be on."""
        if on and not self.bypass_possible(owner):
            raise PermissionDenied("The operator's policy never allows to bypass permissions.", field="action")
        (self._bypassing.add if on else self._bypassing.discard)(owner)

    def _admission(self, owner: str) -> Admission:
        bypassing = owner in self._bypassing
        profile = self._policy.profile(owner)
        return Admission(profile, self._resolve, self._default_directory, bypassing, exists=self._exists)

    def _resolve(self, path: str) -> str:
        return os.path.realpath(os.path.expanduser(expand_home(path, self._environment)))

    def _exists(self, path: str) -> bool:
        return os.path.lexists(os.path.expanduser(expand_home(path, self._environment)))


_COMPLETED = {"ref/prompt": "prompts/get", "ref/resource": "resources/read"}


def tool_behind(server: str, method: str, params: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The tool, with its input, that stands for a message to an MCP server in rules: what it reads may be read by that
    tool too. None for messages that read nothing of the server's but what it is."""
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


_REASONS = {
    "tools": "it is not among the tools that may be used",
    "no shell": "the file may name programs to run, and sessions may run none",
}


def _refusal(verdict: Verdict) -> str:
    reason = _REASONS.get(verdict.rule, f"denied by the rule {verdict.rule}")
    return f"The policy of this server refuses this call: {reason}."


def _hook_reply(decision: str, reason: str) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}
