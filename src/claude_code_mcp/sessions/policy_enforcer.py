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

from ..errors import LimitReached, PermissionDenied
from ..model.options import SessionOptions
from ..model.question import Answer, QuestionKind, kind_of
from ..policy.admission import Admission, within
from ..policy.policy import Policy
from ..policy.rules import Decision, ToolCall, Verdict, judge
from ..processes.environment import expand_home
from ..store.spending import Spending

BY = "policy"
"""The channel through which rules answer."""
_HOOK_ID = "policy"


class PolicyEnforcer:
    """Refuses with PermissionDenied or LimitReached. An owner's profile is looked up at every call."""

    def __init__(self, policy: Policy, default_directory: str, spending: Spending) -> None:
        self._policy = policy
        self._default_directory = default_directory
        self._environment: Mapping[str, str] = {}
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

    # -- sessions ---------------------------------------------------------------------------------------------

    def admit(self, options: SessionOptions, cwd: str, owner: str) -> SessionOptions:
        """The options that a session in this directory runs with, tightened by the policy, or PermissionDenied."""
        return self._admission(owner).admit(options.model_copy(update={"cwd": cwd}))

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

    def left_today(self, owner: str) -> float | None:
        """Dollars that the owner may still spend today; None if there is no limit."""
        limit = self._policy.profile(owner).limits.daily_usd
        return None if limit is None else max(0.0, limit - self.spending.today(owner))

    def check_budget(self, owner: str) -> None:
        """LimitReached when nothing is left of today's budget."""
        if self.left_today(owner) == 0:
            limit = self._policy.profile(owner).limits.daily_usd
            raise LimitReached(
                f"Your budget of ${limit:g} for today is spent; it starts anew at midnight UTC.", limit=limit
            )

    # -- tools ------------------------------------------------------------------------------------------------

    def judge(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> Verdict:
        """What the rules decide about a call."""
        profile = self._policy.profile(owner)
        return judge(ToolCall(tool, tool_input, cwd, self._resolve), profile.allow, profile.deny, profile.tools)

    def answer(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> Answer | None:
        """The answer that the rules give to a question; None if a person must be asked."""
        verdict = self.judge(owner, cwd, tool, tool_input)
        if verdict.decision is Decision.ASK:
            return None
        if verdict.decision is Decision.DENY:
            return Answer(allow=False, message=_refusal(verdict))
        # A rule can deny a question to the user, but has no answer to it.
        return Answer(allow=True) if kind_of(tool) is not QuestionKind.USER_QUESTION else None

    def check_call(self, owner: str, cwd: str, tool: str, tool_input: Mapping[str, Any]) -> None:
        """PermissionDenied for a call that no answer can allow."""
        verdict = self.judge(owner, cwd, tool, tool_input)
        if verdict.decision is Decision.DENY:
            raise PermissionDenied(_refusal(verdict), field="updated_input")

    def suggestions(self, owner: str, cwd: str, offered: object) -> list[Mapping[str, Any]]:
        """Those of the CLI's permission updates that "allow for this session" may grant."""
        return self._admission(owner).suggestions(offered if isinstance(offered, list) else [], cwd)

    def modes_after_plan(self, owner: str) -> tuple[Sequence[str], str | None]:
        """The modes that may be chosen when a plan is approved, and the one that is set if none is chosen: None, unless
        Claude Code's own default is above the ceiling."""
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
        """The reply to the hook: deny, ask a person, or (empty) leave it to Claude Code's own permissions."""
        hook_input = request.get("input")
        call = hook_input if isinstance(hook_input, Mapping) else {}
        tool_input = call.get("tool_input")
        verdict = self.judge(
            owner, cwd, str(call.get("tool_name")), tool_input if isinstance(tool_input, Mapping) else {}
        )
        if verdict.decision is Decision.DENY:
            return _hook_reply("deny", _refusal(verdict))
        if verdict.decision is Decision.ASK and not verdict.clear:
            return _hook_reply("ask", "It cannot be told from the command that nothing denied is in it.")
        return {}

    # -- the hub ----------------------------------------------------------------------------------------------

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
        return Admission(self._policy.profile(owner), self._resolve, self._default_directory, owner in self._bypassing)

    def _resolve(self, path: str) -> str:
        return os.path.realpath(os.path.expanduser(expand_home(path, self._environment)))


def _refusal(verdict: Verdict) -> str:
    not_listed = "it is not among the tools that may be used"
    reason = not_listed if verdict.rule == "tools" else f"denied by the rule {verdict.rule}"
    return f"The policy of this server refuses this call: {reason}."


def _hook_reply(decision: str, reason: str) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}
