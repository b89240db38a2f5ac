"""The shape of the package: who may import whom, what is public, and what no module may do."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "claude_code_mcp"
ROOT = Path(__file__).parent.parent / "src" / PACKAGE

# The parts of the package, and what each may import of ours. `core` is the product; all else is around it.
PARTS: dict[str, set[str]] = {
    "core": set(),
    "sdk_version": set(),
    "startup": {"core", "sdk_version"},
    "hub": {"core", "sdk_version"},
    "server": {"core", "hub", "startup", "sdk_version"},
    "client": {"core", "startup"},
    "testing": set(),  # stands in for the outside world, and must not know what it tests
    "plugin": {"core", "hub", "server", "client"},
    "plugins": {"core", "hub", "server", "client", "startup", "plugin"},  # and nothing of another plug-in
    "installed_plugins": {"core", "plugin"},
    "app": {"core", "hub", "server", "plugin", "installed_plugins"},
    "serving": {"core", "hub", "server", "startup", "plugin", "installed_plugins", "app"},
    "cli": {
        *("core", "hub", "server", "startup", "client", "testing", "sdk_version"),
        *("plugin", "installed_plugins", "app", "serving"),
    },
    "__main__": {"cli"},
}

# Modules outside the parts above that a plug-in may import: what builds and serves a server.
PUBLISHED = {"app", "serving", "installed_plugins", "cli.demo"}

# Modules of other plug-ins that a plug-in may import. The gateway of a fleet serves the console with the data of all
# machines, and keeps the push receivers of its people.
INTERFACES = {"fleet": {"plugins.console.interface", "plugins.push.interface"}}

# Modules inside `startup` on the way to the first answer: of `core` they import this alone.
ON_THE_FAST_WAY = {"core.processes.environment"}

# Layers of `core`. Each imports only from the rows above its own; those in one row never import each other.
ROWS: list[set[str]] = [
    {"json_text"},
    {"redaction"},
    {"processes"},
    {"model"},
    {"errors", "private_files", "installation", "log_limit"},
    {"settings_section"},
    {"config", "rate_limit"},
    {"state", "working_directory"},
    {"claude", "transcripts", "policy", "questions"},
    {"isolation", "policy_file"},
    {"git"},
    {"sessions"},
    {"service_parts"},
    {"service"},
    {"audit"},
]

# Layers of `core` with a narrower rule than their row: all that each may import.
NARROW: dict[str, set[str]] = {
    "redaction": {"json_text"},
    "model": set(),
    "errors": set(),
    "json_text": set(),
    "installation": set(),
    "settings_section": {"errors"},
    "config": {"processes", "settings_section"},
    "state": {"model", "errors", "private_files"},  # knows nothing of who remembers
    "processes": set(),  # knows nothing of what it runs
    "policy": {"model", "errors"},  # pure
}

# What the `__init__` of each package offers. Everything else is imported from its own module.
PUBLIC: dict[str, set[str]] = {
    "": {
        "Access",
        "AccessUntil",
        "AdmittedCaller",
        "Answer",
        "ApiPart",
        "ApiUser",
        "Arguments",
        "AuditEvent",
        "AuditKind",
        "Authenticator",
        "Call",
        "Caller",
        "Channel",
        "ClaudeCodeError",
        "ClientEnvironment",
        "Closure",
        "Connections",
        "ConversationStart",
        "Decision",
        "Enclosure",
        "Event",
        "Handlers",
        "Home",
        "Hub",
        "Identity",
        "InterruptResult",
        "InvalidArgument",
        "IsolatedCommand",
        "Isolation",
        "Limits",
        "LineSink",
        "Observer",
        "Outcome",
        "OutcomeCode",
        "PendingTurn",
        "PermissionDenied",
        "Policy",
        "Profile",
        "Question",
        "QuestionClosed",
        "QuestionKind",
        "Resolution",
        "Scope",
        "Section",
        "Service",
        "Session",
        "SessionAccess",
        "SessionLibrary",
        "SessionOptions",
        "Settings",
        "Share",
        "State",
        "Tool",
        "ToolCall",
        "ToolOutput",
        "Verdict",
        "BusyMode",
        "Workplaces",
        "__version__",
        "full_text",
        "hub_configuration",
        "load_settings",
        "make_hub",
        "without_secrets",
    },
    "cli.mcp": {"add_to"},
    "testing": {
        "RequestRecord",
        "Sandbox",
        "ScriptedModel",
        "ScriptedModelThread",
        "ToolResult",
    },
}

# A task must have an owner that keeps it and hears of its failure: these modules are such owners. Whoever awaits what
# it started within the same function uses `ensure_future` or a task group.
MAY_START_TASKS = {
    "core.sessions.background_tasks",
    "hub.config_changes",  # some for each hub: they follow the files of the hub, and end before the hub is left
    "hub.client_hubs",  # one for each hub while it is opened, which its users and its end await
    "hub.provider",  # one: it waits for the first servers, and ends with the service
    "hub.servers",  # one: all owners of connections belong to it, and leaving the hub awaits it
    "core.processes.child",  # the two tasks of a child end with it, and `stop` awaits them
    "core.transcripts.watched_files",  # one: it is kept, and ends when its last file is no longer followed
    "testing.scripted_model",
}

# Standard output belongs to the protocol; a command may write to it.
MAY_PRINT = {
    "cli",
    "client.conventions",
    "client.session_files",
    "plugins.fleet.commands",
    "plugins.fleet.session_commands",
    "plugins.worktrees.commands",
    "plugins.console.commands",
    "plugins.team.commands",
    "__main__",
    "testing.__main__",
    "testing.ticket_server",
    "plugins.telemetry.audit_sinks",
}

# What stands behind the façade. Others use the methods of the service and what it lends them to read.
BEHIND_THE_FACADE = {"enforcer", "redactor", "log"}
MAY_LOOK_BEHIND = {"service", "sessions"}


@dataclass(frozen=True)
class Module:
    """A source file; `name` is relative to the package: `sessions.launcher`, `sessions` or "" for the root."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def plugin(self) -> str | None:
        """The bundled plug-in that the module belongs to."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "plugins" and len(parts) > 1 else None

    @property
    def layer(self) -> str:
        """The layer of `core` that it belongs to."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "core" and len(parts) > 1 else ""

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))


def _module(path: Path) -> Module:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


MODULES = {module.name: module for module in map(_module, sorted(ROOT.rglob("*.py")))}


def imports_of(module: Module, *, for_type_checkers: bool = True) -> set[str]:
    """The modules of ours that a module imports, wherever in its code it does so."""
    found: set[str] = set()
    tree = module.tree
    if not for_type_checkers:
        tree.body = [node for node in tree.body if not _is_for_type_checkers(node)]
    for node in statements_in(tree):
        if isinstance(node, ast.Import):
            found.update(_ours(alias.name) for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            source = _source_of(node, module)
            if _is_ours(source):
                found.update(_imported(_ours(source), alias.name) for alias in node.names)
    return found - {module.name}


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node, without the expressions in them, which are most of a file."""
    for _, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield child
                yield from statements_in(child)


def _is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _source_of(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *filter(None, module.name.split("."))]
    up = node.level - 1 if module.is_package else node.level
    return ".".join([*here[: len(here) - up], *filter(None, [node.module])])


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _ours(name: str) -> str:
    return name.removeprefix(PACKAGE).removeprefix(".")


def _imported(source: str, name: str) -> str:
    """`from package import name` means the module of that name if there is one, else the package."""
    candidate = f"{source}.{name}" if source else name
    return candidate if candidate in MODULES else source


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """What each module imports. The root says to type checkers what it offers, which is everything; it imports that
    when somebody asks for it."""
    return {name: imports_of(module, for_type_checkers=name != "") for name, module in MODULES.items()}


def wrong_part(module: Module, other: Module) -> bool:
    """Whether a module may not import another because of the parts that they are in."""
    if module.part == "plugins" and other.part == "plugins":
        return module.plugin != other.plugin and other.name not in INTERFACES.get(module.plugin or "", ())
    if module.part == "plugins" and other.name in PUBLISHED:
        return False
    return other.part not in {"", module.part} | PARTS[module.part]


def allowed(layer: str) -> set[str]:
    """The layers of `core` that a layer of it may import."""
    if layer in NARROW:
        return NARROW[layer]
    return set().union(*ROWS[: next(number for number, row in enumerate(ROWS) if layer in row)])


def test_every_module_belongs_to_a_part() -> None:
    assert {module.part for module in MODULES.values()} <= {*PARTS, ""}
    assert {module.layer for module in MODULES.values()} <= set().union(*ROWS) | {""}


def test_parts_import_only_what_they_may() -> None:
    wrong = {
        (name, MODULES[other].plugin or other)
        for name, imported in all_imports().items()
        for other in imported
        if name and wrong_part(MODULES[name], MODULES[other])
    }
    assert wrong == set()


def test_layers_of_the_core_import_only_those_above_them() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, imported in all_imports().items()
        for other in imported
        if MODULES[name].layer and MODULES[other].layer not in {"", MODULES[name].layer} | allowed(MODULES[name].layer)
    ]
    assert wrong == []


def test_first_answers_on_stdio_load_little_of_the_core() -> None:
    loaded = set(_modules_after(f"import {PACKAGE}.startup.greeting.loop, {PACKAGE}.startup.shared.front"))
    ours = {_ours(name) for name in loaded if name.startswith(f"{PACKAGE}.core.")}
    assert ours <= {"core.processes"} | ON_THE_FAST_WAY


def private_imports(module: Module) -> list[str]:
    """The private names that a module imports from other modules of ours."""
    return [
        f"{module.name} imports {alias.name} of {_ours(_source_of(node, module))}"
        for node in statements_in(module.tree)
        if isinstance(node, ast.ImportFrom) and _is_ours(_source_of(node, module))
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def private_definitions(module: Module) -> set[str]:
    """The private functions and attributes that the code of a module defines."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in found if name.startswith("_") and not name.endswith("__")}


def private_uses(module: Module) -> set[str]:
    """The private attributes that a module uses of objects other than its own."""
    return {
        node.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value) not in {"self", "cls", "super()"}
    } - {*private_definitions(module), "_replace"}  # which named tuples have


def test_no_module_imports_a_private_name_of_another() -> None:
    assert [wrong for module in MODULES.values() for wrong in private_imports(module)] == []


def test_plugins_use_nothing_private_of_what_they_extend() -> None:
    private = set().union(*(private_definitions(module) for module in MODULES.values() if module.plugin is None))
    wrong = {name: private_uses(module) & private for name, module in MODULES.items() if module.plugin is not None}
    assert {name: used for name, used in wrong.items() if used} == {}


def test_private_access_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("from ...core.sessions.registry import _directory\ndef f(service): return service._sessions\n")
    module = Module("plugins.push.settings", path)
    assert private_imports(module) == ["plugins.push.settings imports _directory of core.sessions.registry"]
    assert private_uses(module) == {"_sessions"}


def test_package_root_imports_nothing() -> None:
    assert all_imports()[""] == set()


def test_there_are_no_import_cycles() -> None:
    """Counted is what is imported at run time. A part may name the class that owns it for type checkers."""
    imports = {name: imports_of(module, for_type_checkers=False) for name, module in MODULES.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("from ..model.outcome import Outcome", "core.sessions.session", {"core.model.outcome"}),
        ("from ..model import options, outcome", "core.sessions.session", {"core.model.options", "core.model.outcome"}),
        ("from .. import config", "core.sessions.session", {"core.config"}),
        ("from .session import Session", "core.sessions.registry", {"core.sessions.session"}),
        ("from . import session", "core.sessions", {"core.sessions.session"}),
        ("from ... import __version__", "core.sessions.session", {""}),
        ("import claude_code_mcp.core.service as s", "core.sessions.session", {"core.service"}),
        ("from claude_code_mcp.core import service", "core.sessions.session", {"core.service"}),
        ("def later():\n    from ..service import Service", "core.sessions.session", {"core.service"}),
        ("import json, claude_code_mcp_other", "core.sessions.session", set()),
    ],
)
def test_the_walk_sees_every_form_of_import(source: str, module: str, found: set[str], tmp_path: Path) -> None:
    path = tmp_path / ("__init__.py" if MODULES[module].is_package else "module.py")
    path.write_text(source)
    assert imports_of(Module(module, path)) == found


def test_the_rules_refuse_an_upward_and_a_sideways_import() -> None:
    assert "service" not in allowed("sessions")
    assert "transcripts" not in allowed("questions")
    assert allowed("transcripts") == allowed("questions") == allowed("claude")
    assert {"sessions", "claude"} <= allowed("service")
    assert wrong_part(Module("core.service", ROOT), Module("hub.hub", ROOT))
    assert wrong_part(Module("plugins.tui.server_updates", ROOT), Module("plugins.fleet.wire", ROOT))
    assert not wrong_part(Module("plugins.tui.server_updates", ROOT), Module("plugins.tui.blocks", ROOT))


def _public(module: Module) -> set[str]:
    offered = vars(importlib.import_module(f"{PACKAGE}.{module.name}".rstrip(".")))
    listed = offered.get("__all__")
    if listed is not None:
        return set(listed)
    submodules = {name.rpartition(".")[2] for name in MODULES}
    names = {name for name in offered if not name.startswith("_") and name not in submodules}
    return names | ({"__version__"} & set(offered))


def test_packages_offer_only_what_is_listed() -> None:
    packages = [name for name, module in MODULES.items() if module.is_package]
    assert {name: _public(MODULES[name]) for name in packages} == {name: PUBLIC.get(name, set()) for name in packages}


def test_the_public_names_are_the_same_for_type_checkers_and_for_the_interpreter() -> None:
    (block,) = filter(_is_for_type_checkers, MODULES[""].tree.body)
    declared = {
        alias.name: f"{PACKAGE}.{node.module}"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    package = importlib.import_module(PACKAGE)
    assert set(declared) == PUBLIC[""] - {"__version__"}
    for name, module in declared.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(dir(package)) >= PUBLIC[""]
    with pytest.raises(AttributeError, match="Missing"):
        _ = package.Missing


def test_importing_the_package_loads_nothing_but_itself() -> None:
    """Whoever asks only for the version, or starts the greeting, must not pay for the engine."""
    loaded = set(_modules_after(f"import {PACKAGE}")) - set(_modules_after("pass"))
    assert loaded == {PACKAGE}


@pytest.mark.parametrize(
    "name", sorted({"testing", "startup.greeting.loop", "cli.main", "startup.shared.front"} & set(MODULES))
)
def test_startup_modules_use_only_the_standard_library(name: str) -> None:
    loaded = set(_modules_after(f"import {PACKAGE}.{name}")) - set(_modules_after("pass"))
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {PACKAGE}
    assert foreign == set()


def _modules_after(statement: str) -> list[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def _callers(banned: str, word: str, except_in: set[str]) -> list[str]:
    """Where something is called whose dotted name matches, in modules that may not; it has this word in it."""
    return [
        f"{module.name}:{node.lineno} calls {ast.unparse(node.func)}"
        for module in MODULES.values()
        if not {module.name, module.part} & except_in and re.search(word, module.text)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and re.fullmatch(banned, ast.unparse(node.func))
    ]


def test_tasks_are_started_only_by_their_owners() -> None:
    """A task that nobody keeps can vanish in mid-air, and its failure with it. A task group keeps its own."""
    loops = r"(asyncio|(.*[._])?loop|.*get_running_loop\(\)|.*get_event_loop\(\))"
    assert _callers(rf"{loops}\.create_task", "create_task", MAY_START_TASKS) == []


def test_one_module_imports_nats_py() -> None:
    """nats-py drops cancellations and waits without limits: `plugins/fleet/nats_client.py` is where that ends."""
    importers = {
        module.name
        for module in MODULES.values()
        if "nats" in module.text
        for node in statements_in(module.tree)
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "nats" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "nats")
    }
    assert importers == {"plugins.fleet.nats_client"}


def test_only_commands_print() -> None:
    assert _callers("print|sys.stdout.write", "print|stdout", MAY_PRINT) == []


def _looks_behind(tree: ast.AST) -> list[str]:
    """Where a part behind the façade is taken from another object; an object's own attribute may have such a name."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.removeprefix("_") in BEHIND_THE_FACADE
        and ast.unparse(node.value) != "self"
    ]


def test_only_the_service_and_its_sessions_know_what_is_behind_the_facade() -> None:
    wrong = {
        name: found
        for name, module in MODULES.items()
        if module.layer not in MAY_LOOK_BEHIND
        and re.search("|".join(BEHIND_THE_FACADE), module.text)
        and (found := _looks_behind(module.tree))
    }
    assert wrong == {}


@pytest.mark.parametrize("source", ["service._enforcer.modes()", "self._service._redactor", "session.log.after(0)"])
def test_access_behind_the_facade_is_detected(source: str) -> None:
    assert _looks_behind(ast.parse(source))
    assert not _looks_behind(ast.parse("self._redactor.text(log.name)"))
