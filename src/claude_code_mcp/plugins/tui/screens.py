"""Screens beside the conversation: costs, MCP servers, subagents, help, and what is asked of the person."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Checkbox, Footer, Input, Label, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from ...client.connections import CallFailed, NotRunning
from ...client.live_sessions import LiveSessions, Report
from ...core.model.text import clip_line, visible
from .blocks import ShownConversation
from .conversation_view import ConversationView
from .drawn_blocks import DrawnAtAnyWidth, Palette

_GROUPINGS = ("day", "project", "model", "session")
_BAR = 24
_AGENT_READ_AGAIN = 0.5
"""Seconds between looks at whether a session has gone on whose subagent is shown."""
Do = Callable[[Callable[[LiveSessions], Any]], Awaitable[Any]]
"""Asks the server something: `ServerLink.do`."""


class View(Screen[Any]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]
    DEFAULT_CSS = """
    View #title { height: 1; text-style: bold; padding: 0 1; }
    View VerticalScroll, View OptionList { height: 1fr; border: none; padding: 0 1; }
    View #details { height: auto; max-height: 50%; padding: 0 1; }
    """

    def __init__(self, do: Do) -> None:
        super().__init__()
        self._do = do

    async def ask(self, work: Callable[[LiveSessions], Any]) -> Any:
        """The answer of the server; None if it refuses or is gone, and then the person is notified."""
        try:
            return await self._do(work)
        except (CallFailed, NotRunning) as error:
            self.app.notify(visible(str(error)), severity="error", markup=False)
            return None


class CostsScreen(View):
    """What sessions cost, by day, project, model or session."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab,g", "group", "Group")]

    def __init__(self, do: Do) -> None:
        super().__init__(do)
        self._by = 0

    def compose(self) -> ComposeResult:
        yield Static("Costs", id="title", markup=False)
        with VerticalScroll():
            yield Static(id="table", markup=False)
            yield Static(id="budgets", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._read(), exclusive=True)

    def action_group(self) -> None:
        self._by = (self._by + 1) % len(_GROUPINGS)
        self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        by = _GROUPINGS[self._by]
        report = await self.ask(lambda sessions: sessions.resources.costs(by))
        if report is not None:
            total = report["total"]
            title = f"Costs by {by}: ${total['usd']:.4f} in {total['sessions']} sessions"
            self.query_one("#title", Static).update(Text(title))
            palette = Palette(dark=self.app.current_theme.dark)
            self.query_one("#table", Static).update(DrawnAtAnyWidth(cost_table(report), palette))
            self.query_one("#budgets", Static).update(Text("\n".join(budget_lines(report))))


def budget_lines(report: dict[str, Any]) -> list[str]:
    """The spending of each budget, with a warning when most of it is spent, and the usage of the plan."""
    lines = []
    for row in report.get("budgets") or []:
        whose = f" of the group {row['group']}" if row.get("group") else ""
        plain = f"${row['spentUsd']:,.2f} of ${row['limitUsd']:g} for this {row['period']}{whose}"
        lines.append(visible(clip_line(row.get("warning") or plain, 200)))
    plan = (report.get("planUsage") or {}).get("line")
    if plan:
        lines.append(visible(clip_line(f"Plan: {plan} used", 200)))
    return ["", *lines] if lines else []


def cost_table(report: dict[str, Any]) -> Table:
    """A line for each group, with a bar of what it cost."""
    lines = report["lines"]
    most = max((line["usd"] for line in lines), default=0) or 1
    table = Table.grid(padding=(0, 1))
    # Where there are too few columns, everything else gives way before a sum does.
    for no_wrap in (False, True, False, False):
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for line in reversed(lines) if report["by"] == "day" else lines:
        name = visible(clip_line(str(line.get("title") or line["name"]), 40))
        bar = "█" * round(_BAR * line["usd"] / most)
        tokens = f"{line.get('inputTokens', 0):,} in {line.get('outputTokens', 0):,} out"
        table.add_row(Text(name), Text(f"${line['usd']:.4f}", justify="right"), Text(bar), Text(tokens))
    return table


class ServersScreen(View):
    """The MCP servers of the hub: their state and tools; reconnect, switch on and off, log in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "steer('reconnect')", "Reconnect"),
        Binding("l", "steer('authenticate')", "Log in"),
        Binding("e", "steer('enable')", "Enable"),
        Binding("d", "steer('disable')", "Disable"),
        Binding("s", "status", "Connect all"),
        Binding("t", "steer('status')", "Tools"),
    ]

    def __init__(self, do: Do) -> None:
        super().__init__(do)
        self._reports: list[dict[str, Any]] = []

    def compose(self) -> ComposeResult:
        yield Static("MCP servers", id="title", markup=False)
        yield OptionList(markup=False, compact=True)
        yield Static(id="details", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.run_worker(self._read("list"), exclusive=True)

    def action_status(self) -> None:
        self.run_worker(self._read("status"), exclusive=True)

    async def _read(self, action: str) -> None:
        report = await self.ask(lambda sessions: sessions.servers(action))
        if report is None:
            return
        listing = self.query_one(OptionList)
        chosen, self._reports = listing.highlighted, report.get("servers") or []
        listing.set_options([Option(server_line(server), server["name"]) for server in self._reports])
        listing.highlighted = min(chosen or 0, len(self._reports) - 1) if self._reports else None
        problems = [visible(problem) for problem in report.get("problems") or ()]
        self.query_one("#title", Static).update(Text(f"MCP servers: {len(self._reports)}"))
        self.query_one("#details", Static).update(Text("\n".join(problems) if self._reports else _NONE))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._show(next((entry for entry in self._reports if entry["name"] == event.option.id), {}))

    def _show(self, server: dict[str, Any]) -> None:
        details = [f"{name}: {value}" for name, value in server.items() if name != "toolNames"]
        names = ", ".join(server.get("toolNames") or ())
        self.query_one("#details", Static).update(Text(visible("\n".join([*details, names]))))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_steer("status")

    def action_steer(self, action: str) -> None:
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id is not None:
            self.run_worker(self._steer(action, option.id), exclusive=True)

    async def _steer(self, action: str, server: str) -> None:
        report = await self.ask(lambda sessions: sessions.servers(action, server))
        if report is None:
            return
        if action == "status":
            if report.get("servers"):
                self._show(report["servers"][0])  # with its tools
        elif report.get("url"):
            self.app.copy_to_clipboard(str(report["url"]))
            text = f"{report.get('message') or ''}\n{report['url']}\n(copied)"
            self.query_one("#details", Static).update(Text(visible(text)))
        else:
            await self._read("list")


_NONE = "No MCP servers are configured: `claude-code-mcp mcp add` or `mcp import` adds some."


def server_line(server: dict[str, Any]) -> Text:
    """A server in one line."""
    tools = f"{server['tools']} tools" if server.get("tools") is not None else ""
    sign = {"connected": "●", "failed": "!", "disabled": "×"}.get(str(server.get("state")), "·")
    parts = [f"{sign} {server['name']}", str(server.get("state")), tools, str(server.get("reason") or "")]
    return Text(visible(clip_line("  ".join(filter(None, parts)), 300)), no_wrap=True, overflow="ellipsis")


class AgentScreen(View):
    """The conversation of a subagent: what it was asked, what it did and what it answered. Reads the end of it, older
    pages when somebody scrolls up, and what is new while its session works."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "read_again", "Read again")]

    def __init__(self, do: Do, session_id: str, agent: str, progress: Callable[[], int]) -> None:
        """`progress` grows with whatever happens in the session."""
        super().__init__(do)
        self._agent = agent
        self._progress = progress
        self._seen = progress()
        self._reads_once_more = False
        self._conversation = ShownConversation(session_id)

    def compose(self) -> ComposeResult:
        yield Static(f"Subagent {self._agent}", id="title", markup=False)
        yield ConversationView(Palette(dark=self.app.current_theme.dark), id="agent-conversation")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        view = self.query_one(ConversationView)
        view.show(self._conversation)
        view.focus()
        self.on_conversation_view_older_wanted()
        self.set_interval(_AGENT_READ_AGAIN, self._follow)

    def _follow(self) -> None:
        """Reads what is new after something has happened, and once more at the next look: the CLI reports what an agent
        does before it has written it to the transcript."""
        progress = self._progress()
        if progress != self._seen or self._reads_once_more:
            self._reads_once_more = progress != self._seen
            self._seen = progress
            self.action_read_again()

    def on_conversation_view_older_wanted(self) -> None:
        self.run_worker(self._load_older(), group="older", exclusive=True)

    async def _load_older(self) -> None:
        page = await self._page(self._conversation.previous)
        if page is not None:
            self._conversation.add_history(page["items"], page["previous"])
            self.query_one(ConversationView).redraw()

    def action_read_again(self) -> None:
        self.run_worker(self._load_newer(), group="newer", exclusive=True)

    async def _load_newer(self) -> None:
        page = await self._page(None)
        if page is not None:
            self._conversation.add_newer(page["items"])
            self.query_one(ConversationView).redraw()

    async def _page(self, before: str | None) -> Report | None:
        """A page of the conversation; None if it cannot be read, and then the person is notified."""
        conversation, agent = self._conversation.session_id, self._agent
        try:
            page: Report = await self._do(lambda sessions: sessions.resources.items(conversation, before, agent))
        except (CallFailed, NotRunning) as error:
            # One that has just been started has no transcript yet, and is read again with the next step.
            is_starting = not self._conversation.blocks and isinstance(error, CallFailed)
            problem = "It has not said anything yet." if is_starting else visible(str(error))
            self.query_one("#title", Static).update(Text(f"Subagent {self._agent}: {problem}"))
            return None
        self.query_one("#title", Static).update(Text(f"Subagent {self._agent}"))
        return page


# -- dialogs ----------------------------------------------------------------------------------------------------------


HELP = """\
Everywhere
  Ctrl+P, :    everything that can be done, by name
               (: while nothing is typed)
  Ctrl+N       the next open question, of any session
  F2           new session
  F3, Ctrl+S   sessions: type to filter (~text: in whole
               conversations), Down to go through them with a
               preview, Enter opens at the text, Esc goes back
  F4           what sessions cost
  F5           MCP servers of the hub
  F6, F7       at a usage limit: wait for the
               reset, or not; continue now
  F9           what the session has changed;
               c there comments on a line, s sends them all
  Ctrl+F       search in the conversation
  Ctrl+B       hide or show the sessions
  Ctrl+T       light or dark
  Ctrl+Q       leave; sessions run on. Ctrl+C twice, too
  Tab          to the next part of the screen

In the input
  Enter        send; while a turn runs, into that turn
  Ctrl+J       a new line; a paste keeps its lines
  Up, Down     earlier messages
  /            commands: those of Ctrl+P, and Claude Code's
  @            files, completed with Tab
  Esc          interrupt the turn

In the conversation
  Up, Down     select a block
  Enter        unfold or fold it; x: all of them
  y            copy it, or the last answer
  a            the conversation of the subagent it has started
  /  n  N      search, next, previous
  End          follow what comes

In a question (Ctrl+N or Tab goes there; it never takes what you type)
  a            allow once, approve a plan
  s            allow for this session
  e            approve a plan and accept edits
  d            deny, with a reason or feedback
  1-9 Space    choose; Enter answers; t: type an answer
  m            a plan as it was written
  o            open the session that asks, if it is another one
  Esc          later"""


class Dialog(ModalScreen[Any]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 90%; max-width: 84; height: auto; max-height: 95%; border: round $accent;
        background: $surface; padding: 0 1; overflow-y: auto; }
    Dialog Label { width: 100%; height: auto; }
    Dialog Input, Dialog Checkbox { height: 1; border: none; padding: 0; margin: 0 0 0 2; }
    Dialog TextArea { height: 5; border: round $primary; }
    Dialog OptionList { height: auto; max-height: 16; border: none; }
    Dialog.-short > Vertical { width: 100%; height: 100%; max-height: 100%; border: none; }
    Dialog.-short TextArea { height: 2; border: none; }
    Dialog.-short OptionList { height: 1fr; max-height: 100%; }
    """


class Help(Dialog):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1,q", "dismiss(None)", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(), VerticalScroll():
            yield Static(Text(HELP))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class AskLine(Dialog):
    """A line of text; None if the person does not want to."""

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self._title, self._value = title, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title, markup=False)
            yield Input(self._value, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)


class Pick(Dialog):
    """One of several; the value is its key."""

    def __init__(self, title: str, options: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._options = title, options

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title, markup=False)
            yield OptionList(*(Option(text, key) for key, text in self._options), markup=False, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)


@dataclass(frozen=True, slots=True)
class NewSessionRequest:
    """What a new session is to be; `options` are arguments of `claude_create_session`."""

    prompt: str
    options: dict[str, Any]


class SignedCheckbox(Checkbox):
    """Its sign says whether it is set, and not its colour alone."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]  # noqa: N802 - Textual has one sign for both
        return "X" if self.value else " "


class NewSession(Dialog):
    """Everything that a new session needs; None if there is to be none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,f2", "start", "Start", priority=True),
    ]

    def __init__(self, directory: str, modes: list[str], *, has_worktrees: bool) -> None:
        super().__init__()
        self._directory, self._modes, self._has_worktrees = directory, modes, has_worktrees

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("New session: Ctrl+S starts it, Tab goes on, Esc closes")
            yield Label("Task")
            yield TextArea(id="prompt", tab_behavior="focus")
            yield Label("Directory")
            yield Input(self._directory, id="directory", compact=True, select_on_focus=False)
            yield Label("Model (empty: Claude Code's own choice)")
            yield Input(id="model", compact=True)
            yield Label(f"Permission mode: {', '.join(self._modes)} (empty: Claude Code's own choice)")
            yield Input(id="mode", compact=True)
            if self._has_worktrees:
                yield SignedCheckbox("in a git worktree of its own", id="worktree", compact=True)
            yield Button("Start", id="start", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_start()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_start()

    def action_start(self) -> None:
        prompt = self.query_one("#prompt", TextArea).text
        mode = self.query_one("#mode", Input).value.strip()
        if not prompt.strip():
            self.app.notify("A session needs a task.", severity="warning")
            return
        if mode and mode not in self._modes:
            self.app.notify(f"The modes are {', '.join(self._modes)}.", severity="warning")
            return
        model, directory = self.query_one("#model", Input).value.strip(), self.query_one("#directory", Input).value
        wanted = {"workingDirectory": directory.strip(), "model": model, "permissionMode": mode}
        options: dict[str, Any] = {name: value for name, value in wanted.items() if value}
        if self._has_worktrees and self.query_one("#worktree", Checkbox).value:
            options["worktree"] = True
        self.dismiss(NewSessionRequest(prompt, options))
