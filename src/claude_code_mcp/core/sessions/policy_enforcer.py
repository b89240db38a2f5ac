"""Applies the operator's policy: to the options of sessions, to tool calls, to spending and to the hub.

The rules themselves are pure (`policy/`); here they meet real paths, the switch for bypassing permissions and what each
principal has spent today.
"""

import copy
import logging
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..claude.command_line import granted_rules, with_grants
from ..errors import ClaudeCodeError, LimitReached, PermissionDenied
from ..model.options import BYPASS, SessionOptions
from ..model.outcome import Usage
from ..model.tool_names import plain_name
from ..policy.admission import Admission, programs_named, within
from ..policy.git_commands import git_variables
from ..policy.policy import MODE_LADDER, GroupBudget, Limits, Policy
from ..policy.rules import ASKED_BY_DIRECTORY, Decision, ToolCall, Verdict, judge, names_tool, offers_server
from ..processes.environment import expand_home
from ..rate_limit import MinuteLimit
from ..state.spending import Budget, BudgetWarning, NotedAmount, Spending

log = logging.getLogger(__name__)

POLICY_CHANNEL = "policy"
"""The channel through which rules answer."""
_HOOK_ID = "policy"
UNJUDGED = Verdict(Decision.DENY, "error")
"""The verdict on a call that made the judging fail."""
_NO_MENTIONS = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}
"""For versions after 2.1.290; earlier ones do not know it, and only what `check_prompt` finds is refused there."""

_PROCESS_DIRECTORY = re.compile(r"/proc/(?:self|thread-self|\d+)\Z")
_MAX_LINKS = 40
"""Links that Linux follows in one path."""
_SAME_DIRECTORY = {"CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR": "1"}
"""Claude Code goes back to the session's directory after every command."""


class PrincipalLimits:
    """How much each principal may have at once and spend in a day, LimitReached beyond that; and who is shown what
    everybody spends."""

    def __init__(self, policy: Policy, spending: Spending) -> None:
        self.spending = spending
        self._policy = policy
        self.new_sessions = MinuteLimit(
            lambda principal: policy.profile(principal).limits.sessions_per_minute,
            sentence="You may begin {most} sessions a minute",
        )
        """Of each principal, taken from when a session is made."""
        self._tokens = MinuteLimit(
            lambda principal: policy.profile(principal).limits.tokens_per_minute,
            sentence="Your sessions may use {most} tokens a minute",
        )
        self._admitting: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By principal, the sessions that are being sent messages and are not busy yet, with how many messages."""

    def turn_time(self, seconds: float | None, principal: str) -> float | None:
        """The timeout of a turn, if the caller sets one; refused above the limit."""
        if seconds is None:
            return None
        return within("timeout", seconds, self._policy.profile(principal).limits.turn_seconds)

    @contextmanager
    def room(self, session_id: str, principal: str, working: Sequence[str]) -> Iterator[None]:
        """Counts a session as working while it is sent a message; LimitReached if the principal has too many that work,
        RateLimited if its sessions have used too many tokens a moment ago.

        `working` are the principal's busy sessions. Two messages that are sent at the same time count each other.
        """
        self._tokens.check(principal)
        limit, admitting = self._policy.profile(principal).limits.sessions, self._admitting[principal]
        taken = {*admitting, *working}
        if limit is not None and session_id not in taken and len(taken) >= limit:
            raise LimitReached(f"You have {limit} sessions at work, which is all you may have at once.", limit=limit)
        admitting[session_id] += 1
        try:
            yield
        finally:
            # Of two messages to one session, the last to be accepted or refused ends its count.
            admitting[session_id] -= 1
            if not admitting[session_id]:
                del admitting[session_id]

    def use_tokens(self, principal: str, usage: Usage) -> None:
        """Counts the tokens of a turn towards the minute. Those read from the cache do not count, as they do not for
        the limits of the API: a long conversation reads all of itself with every step."""
        total = usage.total
        self._tokens.use(principal, total.input_tokens + total.cache_creation_tokens + total.output_tokens)

    def requests_per_minute(self, principal: str) -> int | None:
        """How many requests a principal may send over HTTP; None for any number."""
        return self._policy.profile(principal).limits.requests_per_minute

    def counts(self, principal: str) -> bool:
        """Whether what this principal spends is limited, by the day or the month, for itself or with a group."""
        return bool(self.all_budgets(principal))

    def budgets(self, principal: str) -> list[Budget]:
        """What limits a principal beside its own day."""
        return [budget for budget in self.all_budgets(principal) if budget.period != "day" or budget.group is not None]

    def all_budgets(self, principal: str) -> list[Budget]:
        """What limits a principal: its own day and month, and those of its groups."""
        limits = self._policy.profile(principal).limits
        found = _budgets_of(None, limits)
        for group in self._policy.counted_groups(principal):
            found += _budgets_of(group, self._policy.budgets.get(group, GroupBudget()))
        return found

    def sees_all_costs(self, principal: str) -> bool:
        """Whether the operator has made the principal somebody who is shown what everybody spends."""
        return self._policy.profile(principal).costs == "everybody"

    def check_all_costs(self, principal: str) -> None:
        """PermissionDenied for a caller who is shown no costs but their own. Everything that reads the costs of others
        asks here first."""
        if not self.sees_all_costs(principal):
            raise PermissionDenied("The operator's policy shows you no costs but your own.", field="of")

    def everybodys_budgets(self) -> list[tuple[str, Budget, float]]:
        """Every budget of those who have spent something this month, or whom the policy names, and of every group; with
        whose it is, nobody's of a group's, and how much of it is spent. The one of which most is spent is the first.
        Blocks on the disk; OSError if it cannot be read."""
        spenders = (line.principal for line in self.spending.by_period("month", since=self.spending.this_month()))
        found = [
            (principal, budget)
            for principal in dict.fromkeys((*spenders, *self._policy.principals))
            for budget in self.all_budgets(principal)
            if budget.group is None
        ]
        for group, limits in self._policy.budgets.items():
            found += [("", budget) for budget in _budgets_of(group, limits)]
        rows = [(principal, budget, self.spending.spent(principal, budget)) for principal, budget in found]
        return sorted(rows, key=lambda row: row[2] / row[1].limit, reverse=True)

    def write_cost(self, noted: NotedAmount) -> list[BudgetWarning]:
        """Writes a cost that was noted; returns the warnings of the principal's budgets that are due with it, each of
        which no other call and no other server returns. Blocks on the disk; OSError if it cannot be written."""
        return self.spending.write(noted, self.all_budgets(noted.principal))

    def spendable(self, principal: str, session_id: str) -> float | None:
        """Dollars that a process of the session may spend: what is reserved for it; None if nothing is limited."""
        if not self.counts(principal):
            return None
        limit, reserved = self._policy.profile(principal).limits.daily_usd, self.spending.reserved(session_id)
        if reserved is not None or limit is None:
            return reserved  # of a month nothing is known here without a look at the disk
        return max(0.0, limit - self.spending.today(principal))

    def reserve(
        self, principal: str, session_id: str, wanted: float | None, working: int, process_left: float | None
    ) -> float:
        """Reserves what a session may spend of a principal's day, and returns it; LimitReached if nothing is left.

        That is what is `wanted` (None: any amount), but no more than a fair share among the sessions that it may have
        at work, of which `working` others are. What its process may still spend, `process_left`, is taken if it
        is within that and not much less: a process learns its budget only when it starts. Blocks on the disk.
        """
        limits = self._policy.profile(principal).limits
        limit = math.inf if limits.daily_usd is None else limits.daily_usd
        budgets = self.budgets(principal)
        shares = 2 if limits.sessions is None else max(1, limits.sessions - working)

        def share(left: float) -> float:
            fair = left / shares if wanted is None else min(wanted, left / shares)
            return process_left if process_left is not None and fair / 2 <= process_left <= fair else fair

        try:
            amount = self.spending.reserve(principal, session_id, limit, share, budgets)
            spent_up = next((each for each in budgets if self.spending.spent(principal, each) >= each.limit), None)
        except OSError as error:  # without the file nobody knows what is left
            raise LimitReached(f"No part of today's budget can be reserved: {error.strerror or error}.") from None
        if not amount and (spent_up is not None or math.isinf(limit)):
            raise _over(spent_up or budgets[0], spent=spent_up is not None)
        if not amount:
            raise _over(Budget(limit, "day"), spent=self.spending.today(principal) >= limit)
        return amount

    def session_budget_spent(self, principal: str, limit: float) -> str:
        """The sentence that a session's budget is spent, which says who has set it."""
        if limit == self._policy.profile(principal).limits.session_usd:
            return f"The budget of ${limit:g} that the operator allows a session is spent."
        return f"The session's own budget of ${limit:g} (maxBudgetUsd) is spent."

    def reservation_spent(self, session_id: str) -> str:
        """The sentence that a session has spent its reservation, which names the budget that was reserved from."""
        budget = self.spending.tightest_budget(session_id)
        name = "your budget for today" if budget is None else budget.name
        return f"The turn has spent its share of {name}. If some of it is left, the next message can use that."


def _budgets_of(group: str | None, limits: Limits | GroupBudget) -> list[Budget]:
    daily = [] if limits.daily_usd is None else [Budget(limits.daily_usd, "day", group)]
    return daily if limits.monthly_usd is None else [*daily, Budget(limits.monthly_usd, "month", group)]


def _over(budget: Budget, *, spent: bool) -> LimitReached:
    when = "at midnight UTC" if budget.period == "day" else "with the next month, UTC"
    how = f"spent; it starts anew {when}" if spent else "spent, or reserved for sessions at work"
    return LimitReached(f"{budget.name[0].upper()}{budget.name[1:]} is {how}.", limit=budget.limit)


class BypassSwitch:
    """Whether the sessions of each principal skip permission checks: off until a person at the client switches it on,
    and never on where the policy has none of it. In memory only: after a restart it is off."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._on: set[str] = set()

    def possible(self, principal: str) -> bool:
        """Whether it may be switched on at all."""
        profile = self._policy.profile(principal)
        return profile.bypass != "never" and profile.mode_ceiling == BYPASS

    def is_on(self, principal: str) -> bool:
        # What was switched on counts no longer when the principal has got a profile that never allows it.
        return principal in self._on and self.possible(principal)

    def switch(self, principal: str, on: bool) -> bool:
        """Returns whether that changed anything. PermissionDenied where it may never be on."""
        if on and not self.possible(principal):
            raise PermissionDenied("The operator's policy never allows to bypass permissions.", field="action")
        before = principal in self._on
        (self._on.add if on else self._on.discard)(principal)
        return before != on


class PolicyEnforcer:
    """Refuses with PermissionDenied. A principal's profile is looked up at every call."""

    def __init__(self, policy: Policy, default_directory: str, spending: Spending, guarded: Sequence[str] = ()) -> None:
        """`guarded` are the directories with settings of Claude Code and of this server."""
        self._policy = policy
        self._default_directory = default_directory
        self._environment: Mapping[str, str] = {}
        self._guarded = guarded
        self._enclosed = False
        self.bypass = BypassSwitch(policy)
        self.limits = PrincipalLimits(policy, spending)

    def for_client(self, directory: str, environment: Mapping[str, str]) -> "PolicyEnforcer":
        """The same policy and counts for clients in this directory, which `.` means to them, and with this HOME.
        Whether permissions are bypassed is switched for each of them by its own person."""
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

    def admission(self, principal: str) -> Admission:
        """What this principal's sessions may be started with, as the switch for bypassing is now."""
        profile, bypassing = self._policy.profile(principal), self.bypass.is_on(principal)

        def exists(path: str) -> bool:
            return os.path.lexists(_at_home(path, self._environment))

        return Admission(profile, self._resolve, self._default_directory, bypassing, exists=exists)

    def admit(self, options: SessionOptions, cwd: str, principal: str) -> SessionOptions:
        """The options that a session in this directory runs with, tightened by the policy, or PermissionDenied."""
        return self.admission(principal).admit(options, cwd)

    def check_record_of_machine(
        self, principal: str, cwd: str, recorded: SessionOptions, known: SessionOptions | None
    ) -> None:
        """PermissionDenied if a record that another machine has written names a program that this one would start.

        The caller who once named it may have been allowed to; that this was so is the other machine's claim. What this
        machine has recorded of the session itself (`known`) is believed, and a program for which the policy has a rule
        that lets the principal's sessions run this very line.
        """
        for program in programs_named(recorded):
            if known is not None and getattr(known, program.option) == getattr(recorded, program.option):
                continue
            line = {"command": program.line}
            if program.line is None or self.judge(principal, cwd, "Bash", line).decision is not Decision.ALLOW:
                raise PermissionDenied(
                    f"{program.field}: the session's record comes from another machine, and no record decides which "
                    "program runs here. Begin a new session, or add a rule to this machine's policy.",
                    field=program.field,
                )

    def modes(self, principal: str) -> tuple[str, ...]:
        """The permission modes that a principal may choose, the most careful first."""
        ceiling = MODE_LADDER.index(self._policy.profile(principal).mode_ceiling)
        modes = MODE_LADDER[: ceiling + 1]
        if self.bypass.possible(principal):
            return modes
        return tuple(mode for mode in modes if mode != BYPASS)

    def directories(self, principal: str) -> list[str]:
        """The roots of the principal's profile; the default directory where it may work anywhere."""
        roots = self._policy.profile(principal).roots
        return [self._resolve(self._root(root)) for root in ((".",) if roots is None else roots)]

    def may_work_in(self, path: str, principal: str) -> bool:
        """Whether a directory lies within the principal's roots, wherever links lead."""
        try:
            self.admission(principal).inside("cwd", path, self._default_directory)
        except ClaudeCodeError:
            return False
        return True

    def resolved(self, path: str, principal: str) -> str:
        """A directory as sessions write it down, where links lead; one outside of the principal's roots as it is."""
        return os.path.realpath(path) if self.may_work_in(path, principal) else path

    def may_change(self, directory: str, principal: str) -> bool:
        """Whether the principal's sessions may change files in a directory at all."""
        changed = {"file_path": os.path.join(directory, "file")}
        return self.judge(principal, directory, "Edit", changed).decision is not Decision.DENY

    def variables(self, principal: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables for the principal's processes, which otherwise have this environment.

        Where reading is limited, Claude Code must not read files that are mentioned with `@` by itself, wherever the
        mention comes from: it then tells the model to use its tools. Where there are rules on commands, each line is
        judged alone, and so must begin in the session's directory, wherever the one before has gone; and git must
        run nothing when it is asked about the state of a repository.
        """
        profile = self._policy.profile(principal)
        mentions = _NO_MENTIONS if profile.limits_reading else {}
        judged = {**_SAME_DIRECTORY, **git_variables(environment)} if profile.judges_commands else {}
        return {**mentions, **judged}

    # -- tools ------------------------------------------------------------------------------------------------

    def judge(
        self, principal: str, cwd: str, tool: str, tool_input: Mapping[str, Any], subagent_directory: str | None = None
    ) -> Verdict:
        """What the rules decide about a call. `subagent_directory` is where its subagent works, if not in `cwd`. An
        exception while it is judged is a denial."""
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
            return judge(call, profile.allow_rules, profile.deny_rules, profile.tools, profile.shell)
        except Exception:
            log.exception("a call of %s by a session of %s could not be judged", tool[:200], principal)
            return UNJUDGED

    def _root(self, root: str) -> str:
        return self._default_directory if root == "." else root

    def needs_person(self, *principals: str) -> bool:
        """Whether the profile of one of them lets only a person allow what sessions ask."""
        return any(self._policy.profile(principal).answers == "person" for principal in {*principals})

    def require_person(self, *principals: str) -> None:
        """PermissionDenied for an answer that allows something and does not come from a person, where the profile of
        one of these takes one."""
        if self.needs_person(*principals):
            raise PermissionDenied(
                "The operator's policy lets only a person allow this: in a form of the MCP client, in the console, "
                "in the terminal interface, or with `claude-code-mcp answer` at a terminal. It can be denied here.",
                field="decision",
            )

    def hooks(self, principal: str) -> dict[str, Any] | None:
        """The hooks for `initialize`: where the policy denies anything, Claude Code must show us every call, also those
        that it would not ask about; and where there are rules on commands, a move to another directory and each
        command, with the directory that it runs in."""
        profile = self._policy.profile(principal)
        denies = bool(profile.deny) or profile.tools is not None
        if not denies and not profile.judges_commands:
            return None
        matcher = None if denies else "|".join(ASKED_BY_DIRECTORY)
        return {"PreToolUse": [{"matcher": matcher, "hookCallbackIds": [_HOOK_ID]}]}

    def directory_of_subagent(self, cwd: str, call: Mapping[str, Any]) -> str | None:
        """Where the subagent works whose call a hook shows; None for the session's own calls, and for one that works
        where the session does. The session itself moves by a tool alone, which is asked about."""
        if not call.get("agent_id"):
            return None
        directory = str(call.get("cwd"))
        return None if self._resolve(directory) == self._resolve(cwd) else directory

    # -- the hub ----------------------------------------------------------------------------------------------

    def may_use_server(self, principal: str, *names: str) -> bool:
        """Whether the principal's sessions may use anything of an MCP server, under each of the names that it has."""
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
        """Whether a session may call an MCP tool with nobody asked where the rules would have somebody asked: because
        its options say so, because a person has granted it, or because it bypasses permissions."""
        granted = self.admission(principal).suggestions(grants, cwd)
        options, rules = with_grants(options, granted), granted_rules(granted)
        # Before the bypass: what was denied for this session stays denied in every mode.
        if any(names_tool(rule, tool) for rule in (*options.disallowed_tools, *rules.get("deny", ()))):
            return False
        if options.dangerously_skip_permissions or options.permission_mode == BYPASS:
            return True
        return any(names_tool(rule, tool) for rule in (*options.allowed_tools, *rules.get("allow", ())))

    def check_steering(self, principal: str) -> None:
        """PermissionDenied for a caller who may use the shared MCP servers, but not change them for everybody."""
        if not self._policy.profile(principal).steer_hub:
            raise PermissionDenied(
                "The MCP servers are shared by all callers, and the operator's policy does not let you change them.",
                field="action",
            )

    def _resolve(self, path: str) -> str:
        return os.path.realpath(_at_home(path, self._environment))

    def _resolve_for_session(self, path: str) -> str:
        """Where a path leads in a process of a session; with a `..` at its end if only that process can tell."""
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
