"""The verdict on every tool call: allow, deny or ask, with the reason.

Every path ends in `verdict_on`: the PreToolUse hook, a permission question that a rule may answer, an answer from any
channel with its input and permission mode, a form of an MCP server, a call to a hub server by a session or a client,
and files that a caller restores. It checks the current policy and audits every denial.

It fails closed: an exception during the check is a denial with a reason, returned to the caller at once.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..errors import ClaudeCodeError, PermissionDenied
from ..model.events import AuditEvent, AuditKind
from ..model.question import Answer, Question, Scope, kind_of
from ..policy.rules import SHELL_TOOLS, Decision, Verdict
from ..questions.kinds import kind_class
from ..questions.presentation import describe
from .callers.policy_enforcer import UNJUDGED
from .session_deps import SessionDeps

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

_USES_KEPT = 2000
_REASONS = {
    "tools": "this tool may not be used",
    "no shell": "the file may name programs to run, and sessions may not run any",
    "error": "the call could not be checked",
}


class Occasion(StrEnum):
    """The occasion of a verdict, as written to the audit trail."""

    HOOK = "hook"
    """Claude Code is about to run the call, whether or not it would ask."""
    QUESTION = "question"
    """Claude Code asks whether the call may run."""
    ANSWER = "answer"
    """An answer allows the call, perhaps with a changed input."""
    FORM = "form"
    """An MCP server asks a person to fill in a form."""
    HUB = "hub"
    """The call has arrived at a hub server."""
    CLIENT = "client"
    """A client calls a tool itself, without a session."""
    RESTORE = "restore"
    """A caller restores a file from a checkpoint."""


def refusal(verdict: Verdict) -> str:
    """The message about a denial for the model and the caller."""
    reason = _REASONS.get(verdict.rule, f"denied by the rule {verdict.rule}")
    return f"The policy of this server refuses this call: {reason}."


def answer_of_rules(tool: str, verdict: Verdict) -> Answer | None:
    """The answer that a verdict gives to a question; None if a person must be asked."""
    if verdict.decision is Decision.DENY:
        return Answer(allow=False, message=refusal(verdict))
    allowed = verdict.decision is Decision.ALLOW and kind_class(kind_of(tool)).rule_may_allow
    return Answer(allow=True) if allowed else None


def verdict_on(
    deps: SessionDeps,
    occasion: Occasion,
    principal: str,
    cwd: str,
    tool: str,
    tool_input: Mapping[str, Any],
    *,
    session_id: str | None = None,
    subagent_directory: str | None = None,
) -> Verdict:
    """Check a call and audit a denial. Never raises. `subagent_directory` is where its subagent works, if not in
    `cwd`."""
    found = deps.enforcer.judge(principal, cwd, tool, tool_input, subagent_directory)
    if found.decision is Decision.DENY:
        audit_denial(deps, occasion, principal, cwd, tool, tool_input, found, session_id=session_id)
    return found


def audit_denial(
    deps: SessionDeps,
    occasion: Occasion,
    principal: str,
    cwd: str,
    tool: str,
    tool_input: Mapping[str, Any],
    denial: Verdict,
    *,
    session_id: str | None,
) -> None:
    """Write a denied call to the audit trail. Never raises."""
    try:
        description = describe(tool, deps.redact(tool_input), cwd)
    except Exception:  # the denial is audited even if the input cannot be described
        log.exception("a call of %s by %s could not be described", tool[:200], principal)
        description = None
    details = {"tool": tool, "description": description, "rule": denial.rule, "occasion": str(occasion)}
    deps.observers.act(AuditEvent(AuditKind.CALL_DENIED, principal, session_id, details))


class SessionVerdicts:
    """Checks the calls of one session."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._subagent_directories: OrderedDict[str, str] = OrderedDict()
        """The directories of subagent tool uses that differ from the session's. Only added to: later frames cannot
        revoke an entry."""
        self._agreed_directories: set[str] = set()
        """Directories of subagents in which a command was allowed before."""

    def verdict(
        self, occasion: Occasion, tool: str, tool_input: Mapping[str, Any], tool_use_id: str | None = None
    ) -> Verdict:
        """Check a call and audit a denial. Never raises."""
        session = self._session
        return verdict_on(
            session.deps,
            occasion,
            session.owner,
            session.cwd,
            tool,
            tool_input,
            session_id=session.id,
            subagent_directory=self._subagent_directories.get(tool_use_id or ""),
        )

    def reply_to_hook(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to the PreToolUse hook: deny, ask a person, or (empty) leave it to Claude Code's own permissions.
        Never raises: Claude Code would run a call whose hook fails.

        Those permissions include rules of the caller and answers "for this session". A person is asked about a doubtful
        call in any case, and Claude Code then does not offer to allow it for the session.
        """
        call = request.get("input")
        call = call if isinstance(call, Mapping) else {}
        tool, tool_input = str(call.get("tool_name")), call.get("tool_input")
        tool_input = tool_input if isinstance(tool_input, Mapping) else {}
        tool_use_id = request.get("tool_use_id")
        tool_use_id = tool_use_id if isinstance(tool_use_id, str) else ""
        try:
            # Remembered because the request that may follow the hook does not name it.
            directory = self._session.deps.enforcer.directory_of_subagent(self._session.cwd, call)
            if directory is not None and directory not in self._agreed_directories:
                self._subagent_directories[tool_use_id] = directory
                if len(self._subagent_directories) > _USES_KEPT:
                    self._subagent_directories.popitem(last=False)
        except Exception:
            log.exception("the directory of a call in session %s could not be checked", self._session.id)
            return self.hook_denial(tool, tool_input)
        found = self.verdict(Occasion.HOOK, tool, tool_input, tool_use_id)
        if found.decision is Decision.DENY:
            return _hook_reply("deny", refusal(found))
        if found.decision is Decision.ASK and found.doubt:
            return _hook_reply("ask", f"The policy of this server restricts commands, and {found.doubt}.")
        return {}

    def hook_denial(self, tool: str, tool_input: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to the PreToolUse hook of a call that cannot be judged, written to the audit trail."""
        return _hook_reply("deny", self.give_up(Occasion.HOOK, tool, tool_input).message or "")

    def give_up(self, occasion: Occasion, tool: str, tool_input: object) -> Answer:
        """The denial of a call after an exception, written to the audit trail."""
        session = self._session
        audit_denial(
            session.deps,
            occasion,
            session.owner,
            session.cwd,
            tool,
            tool_input if isinstance(tool_input, Mapping) else {},
            UNJUDGED,
            session_id=session.id,
        )
        return Answer(allow=False, message=refusal(UNJUDGED))

    def check_answer(self, question: Question, answer: Answer) -> None:
        """Raise PermissionDenied for an allowance that the policy forbids, from any channel: for the call as it would
        run now, for the mode that follows it, and for the rules that it adds to the session."""
        changed = answer.updated_input
        found = self.verdict(
            Occasion.ANSWER,
            question.tool_name,
            question.tool_input if changed is None else changed,
            question.tool_use_id,
        )
        if found.decision is Decision.DENY:
            raise PermissionDenied(refusal(found), field="decision" if changed is None else "updated_input")
        session = self._session
        try:
            admission = session.deps.enforcer.admission(session.owner)
            mode = kind_class(question.kind).chosen_mode(question, answer)
            if mode is not None:
                admission.check_mode("permission_mode", mode)
            offered = [*question.suggestions]
            if answer.scope is Scope.SESSION and admission.suggestions(offered, session.cwd) != offered:
                raise PermissionDenied("scope: this can no longer be allowed for the whole session.", field="scope")
        except ClaudeCodeError:
            raise
        except Exception:
            log.exception("an answer to %s of session %s could not be checked", question.id, session.id)
            self.give_up(Occasion.ANSWER, question.tool_name, question.tool_input)
            raise PermissionDenied(refusal(UNJUDGED), field="decision") from None

    def command_agreed(self, question: Question) -> None:
        """Note an allowed call: commands in its subagent's directory are not asked about again."""
        directory = self._subagent_directories.get(question.tool_use_id or "")
        # Questions about other tools do not show the directory.
        if directory and question.tool_name in SHELL_TOOLS:
            self._agreed_directories.add(directory)


def _hook_reply(decision: str, reason: str) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}
