"""The policy at work: applied to real paths, to switches that people turn, and to what has been spent."""

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
from ..store.spending import Spending

BY = "policy"
"""The channel through which rules answer."""

_HOOK = "policy"


class PolicyEnforcer:
    """What stands between callers and sessions, and between sessions and tools."""

    def __init__(self, policy: Policy, default_directory: str, spending: Spending) -> None:
        self._policy = policy
        self._default = default_directory
        self._bypassing: set[str] = set()
        self._coming: defaultdict[str, set[str]] = defaultdict(set)
        self.spending = spending

    # -- sessions ---------------------------------------------------------------------------------------------

    def admit(self, options: SessionOptions, cwd: str, owner: str) -> SessionOptions:
        """The options that a session in this directory is to run with, or the refusal."""
        return self._admission(owner).admit(options.model_copy(update={"cwd": cwd}))

    def turn_time(self, seconds: float | None, owner: str) -> float | None:
        """How long one turn may take, if the caller asks for a time."""
        most = self._policy.profile(owner).limits.turn_seconds
        return None if seconds is None else within("timeout", seconds, most)

    @contextmanager
    def room(self, session_id: str, owner: str, working: Sequence[str]) -> Iterator[None]:
        """While a session is given a message it counts as working; LimitReached if the owner has too many that do."""
        limit, coming = self._policy.profile(owner).limits.sessions, self._coming[owner]
        taken = coming.union(working)
        if limit is not None and session_id not in taken and len(taken) >= limit:
            raise LimitReached(f"You have {limit} sessions at work, which is all you may have at once.", limit=limit)
        added = session_id not in coming
        coming.add(session_id)
        try:
            yield
        finally:
            if added:
                coming.discard(session_id)

    # -- money ------------------------------------------------------------------------------------------------

    def counts(self, owner: str) -> bool:
        """Whether what this owner spends per day is limited."""
        return self._policy.profile(owner).limits.daily_usd is not None

    def left_today(self, owner: str) -> float | None:
        """Dollars that the owner may still spend today; None is any amount."""
        most = self._policy.profile(owner).limits.daily_usd
        return None if most is None else max(0.0, most - self.spending.today(owner))

    def check_budget(self, owner: str) -> None:
        """LimitReached when nothing is left of today's budget."""
        if self.left_today(owner) == 0:
            most = self._policy.profile(owner).limits.daily_usd
            raise LimitReached(
                f"Your budget of ${most:g} for today is spent; it starts anew at midnight UTC.", limit=most
            )

    # -- tools ------------------------------------------------------------------------------------------------

    def judge(self, owner: str, cwd: str, tool: str, given: Mapping[str, Any]) -> Verdict:
        """What the rules say of a call."""
        profile = self._policy.profile(owner)
        return judge(ToolCall(tool, given, cwd, _resolve), profile.allow, profile.deny, profile.tools)

    def answer(self, owner: str, cwd: str, tool: str, given: Mapping[str, Any]) -> Answer | None:
        """The answer that the rules give to a question; None if somebody must be asked."""
        verdict = self.judge(owner, cwd, tool, given)
        if verdict.decision is Decision.ASK:
            return None
        if verdict.decision is Decision.DENY:
            return Answer(allow=False, message=_refusal(verdict))
        # A person's own question cannot be answered by a rule, only put aside.
        return Answer(allow=True) if kind_of(tool) is not QuestionKind.USER_QUESTION else None

    def check_call(self, owner: str, cwd: str, tool: str, given: Mapping[str, Any]) -> None:
        """PermissionDenied for a call that is refused whatever anybody answers."""
        verdict = self.judge(owner, cwd, tool, given)
        if verdict.decision is Decision.DENY:
            raise PermissionDenied(_refusal(verdict), field="updated_input")

    def suggestions(self, owner: str, cwd: str, offered: object) -> list[Mapping[str, Any]]:
        """What "allow for this session" may mean."""
        return self._admission(owner).suggestions(offered if isinstance(offered, list) else [], cwd)

    def modes_after_plan(self, owner: str) -> tuple[Sequence[str], str | None]:
        """The modes that may be chosen with the approval of a plan, and the one that it must be if none is: where
        even the careful default of Claude Code is above the ceiling."""
        return self._admission(owner).modes_after_plan()

    def check_mode(self, owner: str, mode: str) -> None:
        """PermissionDenied for a mode above the ceiling."""
        self._admission(owner).check_mode("permission_mode", mode)

    def hooks(self, owner: str) -> dict[str, Any] | None:
        """Where something is refused, Claude Code is to show us every call, also those that it would not ask about."""
        profile = self._policy.profile(owner)
        if not profile.deny and profile.tools is None:
            return None
        return {"PreToolUse": [{"matcher": None, "hookCallbackIds": [_HOOK]}]}

    def vet(self, owner: str, cwd: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to such a call: refused, or to be asked after all, or left to what else decides."""
        call = request.get("input")
        shown = call if isinstance(call, Mapping) else {}
        given = shown.get("tool_input")
        tool = str(shown.get("tool_name"))
        verdict = self.judge(owner, cwd, tool, given if isinstance(given, Mapping) else {})
        if verdict.decision is Decision.DENY:
            return _decision("deny", _refusal(verdict))
        if verdict.decision is Decision.ASK and not verdict.clear:
            return _decision("ask", "It cannot be told from the command that nothing denied is in it.")
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
        """PermissionDenied where it may never be on."""
        if on and not self.bypass_possible(owner):
            raise PermissionDenied("The operator's policy never allows to bypass permissions.", field="action")
        (self._bypassing.add if on else self._bypassing.discard)(owner)

    def _admission(self, owner: str) -> Admission:
        return Admission(self._policy.profile(owner), _resolve, self._default, owner in self._bypassing)


def _resolve(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _refusal(verdict: Verdict) -> str:
    by = (
        "it is not among the tools that may be used"
        if verdict.rule == "tools"
        else f"denied by the rule {verdict.rule}"
    )
    return f"The policy of this server refuses this call: {by}."


def _decision(decision: str, reason: str) -> dict[str, Any]:
    told = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": told}
