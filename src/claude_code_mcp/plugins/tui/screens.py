"""Other screens: costs, MCP servers, and the conversation of a subagent."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
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
"""Seconds between checks for new content while a subagent is shown."""
Do = Callable[[Callable[[LiveSessions], Any]], Awaitable[Any]]
"""Sends a request to the server: `ServerLink.do`."""


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
        """The server's answer; None, after a notification, if it refuses or is gone."""
        try:
            return await self._do(work)
        except (CallFailed, NotRunning) as error:
            self.app.notify(visible(str(error)), severity="error", markup=False)
            return None


class CostsScreen(View):
    """Costs by day, project, model or session."""

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
    """A line for each group, with a bar."""
    lines = report["lines"]
    most = max((line["usd"] for line in lines), default=0) or 1
    table = Table.grid(padding=(0, 1))
    # If columns are scarce, everything else shrinks before an amount does.
    for no_wrap in (False, True, False, False):
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for line in reversed(lines) if report["by"] == "day" else lines:
        name = visible(clip_line(str(line.get("title") or line["name"]), 40))
        bar = "█" * round(_BAR * line["usd"] / most)
        tokens = f"{line.get('inputTokens', 0):,} in {line.get('outputTokens', 0):,} out"
        table.add_row(Text(name), Text(f"${line['usd']:.4f}", justify="right"), Text(bar), Text(tokens))
    return table


class ServersScreen(View):
    """The hub's MCP servers: state and tools; reconnect, enable, disable, log in."""

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


_NONE = "No MCP servers are configured: add one with `claude-code-mcp mcp add` or `mcp import`."


def server_line(server: dict[str, Any]) -> Text:
    """A server on one line."""
    tools = f"{server['tools']} tools" if server.get("tools") is not None else ""
    sign = {"connected": "●", "failed": "!", "disabled": "×"}.get(str(server.get("state")), "·")
    parts = [f"{sign} {server['name']}", str(server.get("state")), tools, str(server.get("reason") or "")]
    return Text(visible(clip_line("  ".join(filter(None, parts)), 300)), no_wrap=True, overflow="ellipsis")


class AgentScreen(View):
    """A subagent's conversation: its task, work and answer. Reads its end, older pages on scrolling up, and new content
    while its session works."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "read_again", "Reload")]

    def __init__(self, do: Do, session_id: str, agent: str, progress: Callable[[], int]) -> None:
        """`progress` grows with every event of the session."""
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
        """Reads new content after events, and again at the next check: the CLI reports a subagent's work before it
        writes it to the transcript."""
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
        """A page of the conversation; None, after a notification, if it cannot be read."""
        conversation, agent = self._conversation.session_id, self._agent
        try:
            page: Report = await self._do(lambda sessions: sessions.resources.items(conversation, before, agent))
        except (CallFailed, NotRunning) as error:
            # A subagent that has just started has no transcript yet, and is read again with the next step.
            is_starting = not self._conversation.blocks and isinstance(error, CallFailed)
            problem = "No output yet." if is_starting else visible(str(error))
            self.query_one("#title", Static).update(Text(f"Subagent {self._agent}: {problem}"))
            return None
        self.query_one("#title", Static).update(Text(f"Subagent {self._agent}"))
        return page
