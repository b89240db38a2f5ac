"""Whole screens beside the conversation: what sessions cost, and the MCP servers of the hub."""

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

from ..client.live_sessions import LiveSessions
from ..model.text import clip_line, visible
from ..shared.client import CallFailed, NotRunning

_GROUPINGS = ("day", "project", "model", "session")
_BAR = 24
Do = Callable[[Callable[[LiveSessions], Any]], Awaitable[Any]]
"""Asks the server something: `ServerLink.do`."""


class View(Screen[None]):
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
        """What the server answers; None if it refuses, which is told then."""
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
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._read(), exclusive=True)

    def action_group(self) -> None:
        self._by = (self._by + 1) % len(_GROUPINGS)
        self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        by = _GROUPINGS[self._by]
        report = await self.ask(lambda sessions: sessions.costs(by))
        if report is not None:
            total = report["total"]
            title = f"Costs by {by}: ${total['usd']:.4f} in {total['sessions']} sessions"
            self.query_one("#title", Static).update(Text(title))
            self.query_one("#table", Static).update(cost_table(report))


def cost_table(report: dict[str, Any]) -> Table:
    """A line for each group, with a bar of what it cost."""
    lines = report["lines"]
    most = max((line["usd"] for line in lines), default=0) or 1
    table = Table.grid(padding=(0, 1))
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
        Binding("t", "tools", "Tools"),
    ]

    def __init__(self, do: Do) -> None:
        super().__init__(do)
        self._reports: list[dict[str, Any]] = []

    def compose(self) -> ComposeResult:
        yield Static("MCP servers", id="title", markup=False)
        yield OptionList(markup=False, compact=True)
        yield Static(id="details", markup=False)
        yield Footer()

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

    def action_tools(self) -> None:
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id is not None:
            self.run_worker(self._show_tools(option.id), exclusive=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_tools()

    async def _show_tools(self, server: str) -> None:
        report = await self.ask(lambda sessions: sessions.servers("status", server))
        if report is not None and report.get("servers"):
            self._show(report["servers"][0])

    def action_steer(self, action: str) -> None:
        option = self.query_one(OptionList).highlighted_option
        if option is not None and option.id is not None:
            self.run_worker(self._steer(action, option.id), exclusive=True)

    async def _steer(self, action: str, server: str) -> None:
        report = await self.ask(lambda sessions: sessions.servers(action, server))
        if report is None:
            return
        if report.get("url"):
            self.app.copy_to_clipboard(str(report["url"]))
            text = f"{report.get('message') or ''}\n{report['url']}\n(copied)"
            self.query_one("#details", Static).update(Text(visible(text)))
            return
        await self._read("list")


_NONE = "No MCP servers are configured: `claude-code-mcp mcp add` or `mcp import` adds some."


def server_line(server: dict[str, Any]) -> Text:
    """A server in one line."""
    tools = f"{server['tools']} tools" if server.get("tools") is not None else ""
    sign = {"connected": "●", "failed": "!", "disabled": "×"}.get(str(server.get("state")), "·")
    parts = [f"{sign} {server['name']}", str(server.get("state")), tools, str(server.get("reason") or "")]
    return Text(visible(clip_line("  ".join(filter(None, parts)), 300)), no_wrap=True, overflow="ellipsis")
