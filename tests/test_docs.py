"""What the documentation promises is so: its examples are run, its commands are parsed, its links lead somewhere."""

import argparse
import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import claude_code_mcp
from claude_code_mcp.cli.parser import build_parser
from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.__main__ import main as scripted_model
from claude_code_mcp.testing.script import script, tool
from tests.conftest import RUN
from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS
from tools.reference import CURSOR_LINK, VSCODE_LINK
from tools.reference import PAGES as GENERATED_PAGES

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TOOLS = tools_of(load_settings({}, allow_disk_resume=True))

TASK = '"Fix the failing test"'
"""The prompt of the examples; the scripted model is told what to do with it."""
DIRECTORY = "/src/app"
"""The project of the examples."""

PROGRAMS_OF_OTHERS = {
    "chmod",
    "cd",
    "claude",
    "eval",
    "export",
    "git",
    "helm",
    "jq",
    "kubectl",
    "npx",
    "printf",
    "source",
    "sudo",
}
"""What the examples use that is not ours to check."""
INSTALLERS = {"pip", "pipx", "uv"}


@dataclass(frozen=True)
class Example:
    """A fenced block of a page, or an indented one of a docstring."""

    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Example]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Example(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def docstring_examples(path: Path) -> Iterator[Example]:
    """Indented blocks in docstrings that import or await something."""
    text = path.read_text(encoding="utf-8")
    for docstring in re.finditer(r'^ *"""(.+?)"""', text, re.DOTALL | re.MULTILINE):
        for found in re.finditer(r"(?:^|\n\n)((?:    .*(?:\n|$)|\n)+)", inspect.cleandoc(docstring[1])):
            if re.search(r"^ +(from|import|.*\bawait) ", found[1], re.MULTILINE):
                yield Example(path, text.count("\n", 0, docstring.start()) + 1, "python", inspect.cleandoc(found[1]))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
IN_CODE = [example for path in sorted((ROOT / "src").rglob("*.py")) for example in docstring_examples(path)]


def written_in(*languages: str) -> list[Example]:
    return [block for block in BLOCKS if block.language in languages]


CUT = [block for block in written_in("python") if re.match(r"# \w+\.py\n", block.text)]
"""Parts of the programs of the cookbook, which its own tests run."""


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {"python", "json", "toml", "console", "text"}
    drawings = {"docs/design.md"}
    unchecked = [str(block) for block in BLOCKS if block.language not in kinds]
    assert [where for where in unchecked if where.partition(":")[0] not in drawings] == []


# -- Python ---------------------------------------------------------------------------------------------------

GITHUB = """
import json, sys
tools = [{"name": "create_issue", "description": "Opens an issue.", "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "g", "version": "1"}
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "opened"}]},
    }
    if message.get("method") in results:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        print(json.dumps(answer), flush=True)
"""
"""The MCP server that the examples have configured."""


@pytest.fixture
def place(sandbox: Sandbox, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A machine as the examples expect it: `claude` on the path, an MCP server in our own file, a project."""
    programs = sandbox.root / "bin"
    programs.mkdir()
    (programs / "claude").symlink_to(find_executable(None, environment))
    (sandbox.root / "github.py").write_text(GITHUB, encoding="utf-8")
    server = {"command": sys.executable, "args": [str(sandbox.root / "github.py")]}
    hub_file = sandbox.root / "mcp.json"
    hub_file.write_text(json.dumps({"mcpServers": {"github": server}}), encoding="utf-8")
    for name in [name for name in os.environ if not name.startswith("PYTEST")]:
        monkeypatch.delenv(name)
    there = {**environment, "PATH": f"{programs}{os.pathsep}{environment['PATH']}"}
    for name, value in {**there, "CLAUDE_CODE_MCP_HUB_FILE": str(hub_file)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(sandbox.project)
    return sandbox


async def run_example(example: Example, place: Sandbox) -> dict[str, Any]:
    """Runs it, with awaits at the top level, and the tests that it defines; the value is what it has left behind."""
    prompt = script("Fix the failing test", tool("Bash", command="touch fixed"), "It is fixed.")
    source = example.text.replace(TASK, repr(prompt)).replace(DIRECTORY, str(place.project))
    code = compile(source, str(example), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    left: dict[str, Any] = {"__name__": "example"}
    running = eval(code, left)
    if inspect.isawaitable(running):
        await running
    for name, value in list(left.items()):
        if name.startswith("test_"):
            value(place.root / "of-the-example")
    return left


def of_python() -> list[Any]:
    """Every example; shorter ones of a page, and those of docstrings, are for `make soak`."""
    written = [block for block in written_in("python") if block not in CUT]
    longest = {
        max((other for other in written if other.file == it.file), key=lambda it: len(it.text)) for it in written
    }
    return [
        pytest.param(it, id=str(it), marks=() if it in longest else pytest.mark.soak) for it in [*written, *IN_CODE]
    ]


@pytest.mark.parametrize("example", of_python())
async def test_python_examples_run(example: Example, place: Sandbox) -> None:
    # Where an example has nobody to ask, Claude Code may run what the task needs.
    if "respond(" not in example.text:
        settings = place.home / ".claude" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(json.dumps({"permissions": {"allow": ["Bash"]}}), encoding="utf-8")
    left = await run_example(example, place)
    if "outcome" in left:
        assert left["outcome"].result == "It is fixed."
        assert (place.project / "fixed").exists()
    if "result" in left:
        assert left["result"].content[0].text == "opened"


def test_there_are_examples_in_the_documents_and_in_docstrings() -> None:
    found = {str(example).partition(":")[0] for example in [*written_in("python"), *IN_CODE]}
    assert {"docs/library.md", "docs/hub.md", "src/claude_code_mcp/core/service.py"} <= found


def test_every_public_name_is_described() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        name for name in claude_code_mcp.__all__ if name != "__version__"
    }


# -- files and calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", written_in("json"), ids=str)
def test_json_examples_parse(example: Example) -> None:
    assert json.loads(example.text)


@pytest.mark.parametrize("example", written_in("toml"), ids=str)
def test_toml_examples_are_taken(example: Example, tmp_path: Path) -> None:
    assert tomllib.loads(example.text)
    file = tmp_path / "settings.toml"
    file.write_text(example.text, encoding="utf-8")
    if example.file.name in ("policy.md", "team.md") or example.file.parent.name == "guides":
        parse_policy(example.text, str(example))
    elif example.file.name == "settings.md":
        load_settings({}, file=file)


def calls() -> Iterator[tuple[str, set[str]]]:
    """Every call of a tool in an example, with the names of what it is given or gives back."""
    page = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    for found in re.finditer(r"^### (\w+)$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL):
        for block in re.findall(r"^```json\n(.*?)^```$", found[2], re.DOTALL | re.MULTILINE):
            if "method" not in json.loads(block):
                yield found[1], set(json.loads(block))
    for example in [block for block in written_in("json") if block.file.parent.name == "guides"]:
        yield "claude_create_session", set(json.loads(example.text))
    for example in written_in("text"):
        for name, arguments in re.findall(r"^(\w+) +\{(.*?)\}", example.text, re.MULTILINE):
            parts = re.sub(r'"[^"]*"', "", arguments).split(",")
            yield name, {part.partition(":")[0].strip() for part in parts}


@pytest.mark.parametrize(("name", "fields"), list(calls()), ids=lambda value: value if isinstance(value, str) else "")
def test_calls_in_examples_fit_their_tools(name: str, fields: set[str]) -> None:
    listing = TOOLS[name].listing()
    assert listing.output_schema is not None
    taken, given = listing.input_schema, listing.output_schema
    assert fields
    assert fields <= set(given["properties"]) or set(taken["required"]) <= fields <= set(taken["properties"])


@pytest.mark.parametrize("page", sorted(GENERATED_PAGES))
def test_generated_pages_are_current(page: str) -> None:
    current = (ROOT / "docs" / page).read_text(encoding="utf-8") == GENERATED_PAGES[page]()
    assert current, f"docs/{page} is stale: run `make reference`"


def test_every_code_block_is_in_a_file_that_is_tested_or_is_run() -> None:
    """Python on the page of the cookbook is cut from the examples, which tests/test_cookbook.py runs."""
    assert {example.file.name for example in CUT} == {"cookbook.md"}
    assert all(re.match(r"# \w+\.py\n", example.text) for example in CUT)


def test_the_install_links_of_the_readme_have_the_entry() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert CURSOR_LINK in page
    assert VSCODE_LINK in page
    for link in (CURSOR_LINK, VSCODE_LINK):
        assert "+" not in link, "decodeURIComponent does not read it as a space"
        fields = parse_qs(urlsplit(link).query)
        text = fields["config"][0]
        entry = json.loads(text if text.startswith("{") else b64decode(text))
        assert fields["name"] == ["claude-code"]
        assert (entry["command"], entry["args"]) == ("claude-code-mcp", ["--shared"])


# -- commands -------------------------------------------------------------------------------------------------


def commands_in(example: Example) -> Iterator[list[str]]:
    for line in re.findall(r"^\$ (.*)", example.text, re.MULTILINE):
        words = shlex.split(line.replace("<this repository>", "URL"), comments=True)
        start = 0
        for at, word in [*enumerate(words), (len(words), "|")]:
            if word in ("|", "&&"):
                yield words[start:at]
                start = at + 1


@pytest.mark.parametrize("example", written_in("console"), ids=str)
def test_commands_in_examples_exist(example: Example) -> None:
    commands = list(commands_in(example))
    assert commands
    for path, *arguments in commands:
        program = path.rpartition("/")[2]
        if program == "claude-code-mcp" and arguments[:1] != ["claude"]:  # its arguments are for Claude Code
            build_parser().parse_args(arguments)
        elif program == "make":
            assert set(arguments) <= targets()
        elif [program, *arguments[:1]] == ["uv", "run"]:
            _check_extras(["install", f".[{arguments[arguments.index('--extra') + 1]}]"])
            assert any((ROOT / word).is_file() for word in arguments)
        elif program in INSTALLERS:
            _check_extras(arguments)
        elif program == "python3":
            assert arguments[:2] == ["-m", "venv"]
        elif program == "python":
            _check_module(arguments)
        else:
            assert program in PROGRAMS_OF_OTHERS | {"claude-code-mcp"}


FIRST_PAGES = {"README.md", "quick-start.md"}
ELSEWHERE = {"demo", "claude", "tui", "web --lan", "web --tunnel", "ps"}
"""Commands of the first pages that have tests of their own: they need a terminal, a phone, an account or Ctrl-C."""


def first_commands() -> list[list[str]]:
    """Every command of the first pages that runs to its end, once, in their order."""
    found: list[list[str]] = []
    for example in [block for block in written_in("console") if block.file.name in FIRST_PAGES]:
        for path, *arguments in commands_in(example):
            ours = path == "claude-code-mcp" and not {arguments[0], " ".join(arguments[:2])} & ELSEWHERE
            if ours and arguments not in found:
                found.append(arguments)
    return found


def test_the_commands_of_the_first_pages_run(place: Sandbox, environment: dict[str, str]) -> None:
    settings = place.home / ".claude" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"permissions": {"allow": ["Bash"]}}), encoding="utf-8")
    own = {"CLAUDE_CODE_MCP_RUNTIME_DIR": str(place.root / "run"), "BROWSER": "true", "PATH": os.environ["PATH"]}
    user = {**environment, **own, RUN: os.environ.get(RUN, ""), warm_commands.WARM_SERVERS: "1"}
    fixing = script("Fix the failing test", tool("Bash", command="touch fixed"), "It is fixed.")
    printed = {}
    try:
        for arguments in first_commands():
            words = [fixing if word == shlex.split(TASK)[0] else word for word in arguments]
            confirmed = ["--yes"] if "--install" in words else []  # a person is asked at the terminal
            ran = warm_commands.run([*words, *confirmed], user, place.project)
            assert ran.returncode == 0, f"{arguments}: {ran.stdout}{ran.stderr}"
            printed[arguments[0]] = ran.stdout
    finally:
        warm_commands.run(["shared", "stop"], user, place.project)
    assert set(printed) == {"doctor", "config", "web", "run", "terminal"}
    assert (place.home / ".cursor" / "mcp.json").exists()
    assert "#ticket=" in printed["web"]
    assert "It is fixed." in printed["run"]
    assert (place.project / "fixed").exists()


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def _check_extras(arguments: Sequence[str]) -> None:
    """The package is on no index: it is installed from a clone or from a git address, with extras that exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = re.fullmatch(r"(.*)\[(.*)\](.*)", arguments[-1])
    assert installed is not None
    assert (installed[1], installed[3]) in ((".", ""), (project["name"], " @ git+URL"))
    assert set(installed[2].split(",")) <= set(project["optional-dependencies"])


def _check_module(arguments: Sequence[str]) -> None:
    assert arguments[:2] == ["-m", "claude_code_mcp.testing"]
    with pytest.raises(SystemExit) as ended:
        scripted_model([*arguments[2:], "--help"])
    assert ended.value.code == 0


def test_a_command_that_does_not_exist_is_found() -> None:
    for wrong in (["srve"], ["serve", "--htp", "x"], ["mcp", "ad"], ["config", "emacs"]):
        with pytest.raises(InvalidArgument):
            build_parser().parse_args(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_that_are_mentioned_exist(page: Path) -> None:
    mentioned = re.findall(r"`claude-code-mcp ([a-z][^`]*)`", page.read_text(encoding="utf-8"))
    for arguments in mentioned:
        parser: argparse.ArgumentParser | None = build_parser()
        for word in arguments.split():
            known = _subcommands(parser)
            if word == "claude" or parser is None:
                break  # what follows is for Claude Code
            if word.startswith("--"):
                assert word in parser._option_string_actions, f"{page.name}: {arguments}"
            elif known:
                assert word in known, f"{page.name}: {arguments}"
                parser = known[word]


def _subcommands(parser: argparse.ArgumentParser | None) -> dict[str, argparse.ArgumentParser]:
    groups = [
        action for action in (parser._actions if parser else ()) if isinstance(action, argparse._SubParsersAction)
    ]
    return dict(groups[0].choices) if groups else {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text(encoding="utf-8"))
    wrong = [(to, anchor) for to, anchor in links if anchor not in anchors_of(page.parent / to if to else page)]
    assert wrong == []


# -- the security page ----------------------------------------------------------------------------------------

SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CHECKED_BY = tomllib.loads((ROOT / "tests" / "security_guarantees.toml").read_text(encoding="utf-8"))


def defined_in(file: str) -> set[str]:
    """The names of the tests that a file defines."""
    path = ROOT / file
    return (
        set(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
        if path.exists()
        else set()
    )


def test_every_guarantee_of_the_security_page_is_checked_by_tests() -> None:
    guaranteed = SECURITY.partition("\n## What is not promised")[0]
    names = re.findall(r"^- \*\*(.*?)\*\*", guaranteed, re.MULTILINE)
    assert len(names) == len(re.findall(r"^- ", guaranteed, re.MULTILINE))
    assert names == list(CHECKED_BY)
    assert all(CHECKED_BY.values())


def test_every_test_that_checks_a_guarantee_exists() -> None:
    tests = [test.partition("::") for tests in CHECKED_BY.values() for test in tests]
    assert [f"{file}::{name}" for file, _, name in tests if name not in defined_in(file)] == []


# -- the site -------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    def pages(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for target in entry.values():
                if isinstance(target, str):
                    yield target
                else:
                    yield from pages(target)

    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    assert sorted(pages(site["nav"])) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")
    )


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        pytest.skip("zensical is not installed: `make docs` installs it")
    text = (ROOT / "zensical.toml").read_text("utf-8").replace('"build/site"', '"site"')
    (tmp_path / "zensical.toml").write_text(text, "utf-8")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    done = subprocess.run(
        [zensical, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = re.findall(r'(?:src|href)="(?:https?:)?//([^/"]+)', (tmp_path / "site" / "index.html").read_text("utf-8"))
    assert set(hosts) <= {"zensical.org"}  # the link in the footer: nothing is loaded from another host
    assert (tmp_path / "site" / "search.json").is_file()


@pytest.mark.soak  # a look at another program, whose next version may differ
def test_what_the_readme_says_of_claude_codes_own_commands_is_so(tmp_path: Path) -> None:
    def help_of(*command: str) -> str:
        sandbox = Sandbox(tmp_path, "http://127.0.0.1:9")
        printed = subprocess.run(
            [find_executable(), *command, "--help"],
            env=sandbox.environment(),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        )
        return " ".join(printed.stdout.split())

    general, remote = help_of(), help_of("remote-control")
    for word in ("--bg, --background", "agents [options]", "attach <id|name>", "logs <id|name>", "stop|kill <id>"):
        assert word in general
    for word in (
        "Max concurrent sessions",
        "default: 32",
        "claude.ai/code",
        "a Claude account that has a subscription",
    ):
        assert word in remote
    assert "--json" in help_of("agents")
    assert "Start the Claude Code MCP server" in help_of("mcp", "serve")
