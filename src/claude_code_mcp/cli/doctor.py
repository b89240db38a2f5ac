"""`doctor`: checks everything that a session needs.

`check_all` runs the checks in order and yields each finding as soon as it is known. A check does not raise errors: each
problem becomes a finding with advice. Invalid settings end the checks, because all others depend on them. The exit code
is 1 if any finding is not ok.

`--deep` tries a turn on the scripted model, and one request with the configured key, address and proxy. The request is
as small as Claude Code can make it and leaves no session behind. It is sent only after a confirmation, because it may
cost something.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..client.connections import NotRunning, ask_server
from ..client.conventions import add_config_file, add_json, agreed, print_json
from ..core.claude.executable import (
    MINIMUM_VERSION,
    TESTED_VERSION,
    find_executable,
    read_version,
    run_cli,
    version_text,
)
from ..core.config import Settings, load_settings, unknown_variables, without_settings
from ..core.errors import ClaudeCodeError, ExecutableNotFound, StateUnavailable
from ..core.installation import extra_command
from ..core.model.paths import config_directory
from ..core.model.session_id import is_session_id
from ..core.model.text import clip_line, count_of, size_of, visible
from ..core.policy_file import read_policy
from ..core.private_files import private_directory
from ..core.processes.child import containment
from ..core.processes.environment import child_environment
from ..core.redaction import Redactor
from ..core.settings_section import Section
from ..core.state.session_records import SessionRecords
from ..core.state.state_directory import database_in
from ..installed_plugins import all_plugins, sections_of
from ..plugin import Finding
from ..startup.shared.place import Place, is_held, places

ADVICE = "`claude-code-mcp claude auth login`, or set ANTHROPIC_API_KEY"
_CREDENTIALS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)
_NEEDED_DISK = 500 << 20
_STATUS_TIMEOUT = 10.0
_REQUEST = "API"
"""The subject of the finding on the API request."""
_REQUEST_TIMEOUT = 120.0
_TURN_TIMEOUT = 60.0
_QUESTION = "Send one small request to the API to check the key, address and proxy? It may cost a cent."
_NOT_TRIED = "not checked: the key, address and proxy may not work"
_PACKAGES = ("mcp", "httpx2", "pydantic", "uvicorn", "cryptography", "textual", "claude-agent-sdk")
_PROGRAMS = ("git", "bwrap", "node")
_ADDRESS = "ANTHROPIC_BASE_URL"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
_SIGN_IN = re.compile(r"//[^/@]*@")
_LOCAL = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Login(NamedTuple):
    """Whether Claude Code is logged in, and by which credential."""

    exists: bool
    method: str


def login_of(path: str) -> Login:
    """The login as Claude Code reports it; for a version without that command, judged by its credentials."""
    try:
        status = json.loads(run_cli(path, "auth", "status", "--json").stdout)
        return Login(bool(status["loggedIn"]), str(status.get("authMethod")))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return Login(has_credentials(), "according to variables and files")


def has_credentials() -> bool:
    """Whether there is a credential in the places that can be checked without Claude Code."""
    stored = Path(config_directory(os.environ)) / ".credentials.json"
    in_keychain = sys.platform == "darwin"  # which only Claude Code itself may open
    return in_keychain or any(os.environ.get(name) for name in _CREDENTIALS) or stored.is_file()


def missing_login(config: Path | None) -> str:
    """Advice if there is certainly no login; empty otherwise. If no credential is visible, this starts the CLI, because
    only the CLI knows helpers and settings that provide one."""
    if has_credentials():
        return ""
    try:
        login = login_of(find_executable(load_settings(file=config).claude_path))
    except ClaudeCodeError:
        return ""  # the server reports other problems; it needs more than this
    advice = f"Claude Code is not logged in: run {ADVICE}. `claude-code-mcp doctor` checks everything else."
    return "" if login.exists else advice


def _line(finding: Finding) -> str:
    advice = f"\n        fix: {finding.fix}" if finding.fix and not finding.ok else ""
    verdict = "WRONG" if not finding.ok else "ok   " if finding.is_tried else "?    "
    return f"{verdict}  {finding.subject}: {finding.detail}{advice}"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation and say how to fix problems",
        description="Checks the Claude Code executable, its version and login, settings, policy, tokens, MCP "
        "servers, directories and free disk space, and says how to fix each problem. The exit code is "
        "1 if something does not work. --deep also runs a complete turn on the scripted model and, "
        "after asking you, sends one small request to the API with the key, address and proxy that "
        "sessions use.",
    )
    parser.add_argument("--deep", action="store_true", help="also run a turn and, after confirmation, one API request")
    parser.add_argument("--yes", action="store_true", help="with --deep: send the API request without confirmation")
    add_json(parser)
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = check_all(arguments.config, deep=arguments.deep, yes=arguments.yes)
    if arguments.json:
        shown = [*findings]
        ok = all(finding.ok for finding in shown)
        print_json(
            {
                "version": __version__,
                "python": sys.version.split()[0],
                "platform": sys.platform,
                "ok": ok,
                # Scripts rely on these keys.
                "findings": [
                    {
                        "what": finding.subject,
                        "ok": finding.ok,
                        "detail": finding.detail,
                        "fix": None if finding.ok else finding.fix or None,
                    }
                    for finding in shown
                ],
            }
        )
        return 0 if ok else 1
    print(f"claude-code-mcp {__version__}, Python {sys.version.split()[0]} on {sys.platform}")
    wrong, untried, is_deep = 0, 0, False
    for finding in findings:
        print(_line(finding), flush=True)
        wrong += not finding.ok
        untried += not finding.is_tried
        is_deep = is_deep or finding.subject == _REQUEST
    if wrong:
        print(f"{count_of(wrong, 'problem')} to fix.")
        return 1
    # Only a turn tried with this account proves that turns work.
    is_certain = is_deep and not untried
    print("Everything works." if is_certain else "No problems found. --deep also tries the API.")
    return 0


def check_all(config: Path | None, *, deep: bool = False, yes: bool = False) -> Iterator[Finding]:
    """Run every check in order; with `deep`, finally a turn on the scripted model and, if the user agrees or `yes` is
    set, a request to the API."""
    plugins = all_plugins()
    sections = sections_of(plugins)
    try:
        settings = load_settings(file=config)
        settings.check_sections(sections)
    except ClaudeCodeError as error:
        yield Finding("settings", False, error.message, "correct it, or unset it to use the default")
        return
    yield Finding("settings", True, "all valid")
    yield from _check_variables(os.environ, sections)
    yield from _check_claude(settings)
    yield from _check_policy(settings)
    yield from _check_tokens(settings)
    yield from _check_hub(settings)
    yield from _check_default_directory(settings)
    yield _check_state_directory(settings.state_dir)
    yield _check_state(settings.state_dir)
    yield from _check_exports(settings.state_dir)
    yield from _check_shared_servers()
    if isinstance(settings.audit_file, Path):
        directory = settings.audit_file.parent
        yield _check_writable("directory of the audit trail", directory, "set CLAUDE_CODE_MCP_AUDIT_FILE")
    yield _check_writable("Claude Code's directory", Path(config_directory(os.environ)), "check HOME and its owner")
    yield from _check_disks(settings)
    for plugin in plugins:
        if plugin.name not in settings.plugins_off:
            yield from plugin.checks(settings)
    yield _containment()
    if deep:
        yield from _check_deeply(settings, yes=yes)


def _check_deeply(settings: Settings, *, yes: bool) -> Iterator[Finding]:
    yield Finding("versions", True, ", ".join(_versions()))  # always ok: it is information for problem reports
    try:
        executable = find_executable(settings.claude_path)
    except ExecutableNotFound:
        return  # the missing executable is already a finding, and nothing can be tried without it
    yield asyncio.run(_check_turn(settings))
    yield _check_request(executable, yes=yes)


def _check_variables(environment: Mapping[str, str], sections: Iterable[type[Section]]) -> Iterator[Finding]:
    """Report variables that look like settings but are not."""
    for name, meant in unknown_variables(environment, sections).items():
        fix = f"did you mean {meant}?" if meant else "remove it; docs/settings.md lists all settings"
        yield Finding("variables", False, f"{name} is set, but there is no such setting", fix)


def _check_claude(settings: Settings) -> Iterator[Finding]:
    """The executable, then its version, then the login; each only if the one before it was ok."""
    subject = "Claude Code"
    try:
        path = find_executable(settings.claude_path)
    except ExecutableNotFound as error:
        fix = extra_command("cli")
        if settings.claude_path:
            fix = "correct CLAUDE_CODE_PATH, or unset it to use `claude` on PATH or the bundled one"
        yield Finding(subject, False, error.message, fix)
        return
    version = _version(path)
    if isinstance(version, str):
        named = "CLAUDE_CODE_PATH must name the `claude` executable"
        yield Finding(subject, False, f"{path} {version}", named if settings.claude_path else "reinstall it")
        return
    detail = f"{version_text(version)} at {path}"
    if version < MINIMUM_VERSION:
        detail += f", older than {version_text(MINIMUM_VERSION)}, the minimum version"
        yield Finding(subject, False, detail, f"update it: `{path} update`, or install it again")
        return
    if version > TESTED_VERSION:
        detail += f", newer than {version_text(TESTED_VERSION)}, the version that this release was tested with"
    yield Finding(subject, True, detail)
    login = login_of(path)
    yield Finding(
        "login", login.exists, login.method if login.exists else "not logged in: every turn will fail", ADVICE
    )


def _version(path: str) -> tuple[int, int, int] | str:
    """The version, or the problem with the program."""
    try:
        process = run_cli(path, "--version")
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    version = read_version(process.stdout) if "Claude Code" in process.stdout else None
    if process.returncode or version is None:
        return "runs, but is not Claude Code"
    return version


def claude_code_in_use() -> str:
    """The version and location of the Claude Code that sessions run, or why it is missing, in one line."""
    try:
        path = find_executable(load_settings().claude_path)
    except ClaudeCodeError as error:
        return f"Claude Code: {error.message}"
    version = _version(path)
    return f"Claude Code {version if isinstance(version, str) else version_text(version)} at {path}"


def _check_policy(settings: Settings) -> Iterator[Finding]:
    try:
        policy = read_policy(settings, "remote")
    except ClaudeCodeError as error:
        yield Finding("policy", False, error.message, "correct the file, or CLAUDE_CODE_MCP_PROFILE")
        return
    yield Finding("policy", True, f"{settings.policy_file or 'built in'}, {settings.profile or 'default'} profile")
    for note in policy.notes():
        yield Finding("policy", True, note)


def _check_tokens(settings: Settings) -> Iterator[Finding]:
    from ..server.transports.tokens_file import load_tokens  # noqa: PLC0415

    if settings.http_token is None and settings.http_tokens_file is None:
        return
    try:
        load_tokens(settings)
    except ClaudeCodeError as error:
        yield Finding("tokens", False, error.message, "correct the entry as described")
    else:
        yield Finding("tokens", True, "all usable")


def _check_hub(settings: Settings) -> Iterator[Finding]:
    from ..hub.factory import hub_configuration  # noqa: PLC0415

    if settings.hub == "off":
        return
    configuration = hub_configuration(settings, os.environ, settings.default_cwd)
    for problem in configuration.problems:
        yield Finding("MCP servers", False, str(problem), "correct the entry, or `claude-code-mcp mcp remove` it")
    if not configuration.problems:
        yield Finding("MCP servers", True, f"{len(configuration.servers)} configured")


def _check_default_directory(settings: Settings) -> Iterator[Finding]:
    directory = settings.default_cwd
    if directory is None:
        return
    usable = os.path.isdir(directory) and os.access(directory, os.R_OK | os.X_OK)
    detail = directory if usable else f"{directory} is not an accessible directory"
    yield Finding(
        "default directory", usable, detail, "set CLAUDE_CODE_DEFAULT_CWD to an existing directory, or unset it"
    )


def _check_state_directory(directory: Path) -> Finding:
    finding = _check_writable(
        "state directory", directory, "set CLAUDE_CODE_MCP_STATE_DIR to a directory that only you can write to"
    )
    if finding.ok and sys.platform != "win32" and stat.S_IMODE(directory.stat().st_mode) & 0o022:
        return Finding(finding.subject, False, f"other users can write to {directory}", f"chmod 700 {directory}")
    return finding


def _check_state(directory: Path) -> Finding:
    """Check that the state database can be opened as a server would, and read completely."""
    database = database_in(directory)
    if not database.path.exists():
        return Finding("state", True, "no state yet")
    try:
        database.check()
    except StateUnavailable as error:
        return Finding("state", False, error.message, "see the message")
    return Finding("state", True, f"{database.path} is intact")


def _check_exports(state_dir: Path) -> Iterator[Finding]:
    """List the exports of deleted sessions: of those deleted by Claude Code, or before exports were deleted with them.
    Always ok, and nothing is removed: an export may be all that is left of a conversation."""
    records = SessionRecords(database_in(state_dir), config_directory(os.environ))
    has_transcript = {path.stem for path in Path(config_directory(os.environ)).glob("projects/*/*.jsonl")}
    count = size = 0
    # An unreadable state is a separate finding, and a file may disappear meanwhile.
    with contextlib.suppress(OSError, StateUnavailable):
        for path in (state_dir / "exports").glob("*"):
            session_id = path.name[: len(str(uuid.UUID(int=0)))]
            if is_session_id(session_id) and session_id not in has_transcript and not records.knows(session_id):
                count, size = count + 1, size + path.stat().st_size
    if count:
        where = state_dir / "exports"
        yield Finding("exports", True, f"{count} of sessions that no longer exist ({size_of(size)} in {where})")


def _check_shared_servers() -> Iterator[Finding]:
    """List the running shared servers; no finding on platforms without them. More than one is ok, but rarely
    intended."""
    try:
        known = places(os.environ)
    except OSError:
        return
    try:
        running = [found for found in known if is_held(found)]
    except OSError as error:
        yield Finding("shared servers", False, str(error), "make its .lock file writable for you")
        return
    detail = ", ".join(map(_shared_server, running)) or "not running"
    if len(running) > 1:
        detail = f"{len(running)} are running, because clients have different settings or versions: {detail}"
    yield Finding("shared servers", True, detail)


def _shared_server(where: Place) -> str:
    """The address of a server, and its version if it differs from this one."""
    try:
        status, connection = ask_server(where, "status", _STATUS_TIMEOUT)
    except (NotRunning, OSError):
        return f"{where.socket} (does not answer)"
    connection.close()
    version = str(status.get("version"))
    return where.socket if version == __version__ else f"{where.socket} (version {visible(version)})"


def _check_writable(subject: str, directory: Path, fix: str) -> Finding:
    """Check that a directory is writable; create it if it is missing, as the server would."""
    try:
        private_directory(directory)
        # Permissions are not enough: the disk may be full, or mounted read-only.
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        return Finding(subject, False, f"{directory} cannot be written to: {error.strerror}", fix)
    return Finding(subject, True, str(directory))


def _check_disks(settings: Settings) -> Iterator[Finding]:
    """The free space where sessions write: temporary files, state and transcripts; one finding for each disk."""
    wanted = (Path(tempfile.gettempdir()), settings.state_dir, Path(config_directory(os.environ)))
    by_disk: dict[int, list[Path]] = {}
    for directory in wanted:
        with contextlib.suppress(OSError):  # a directory that is not writable is a separate finding
            by_disk.setdefault(directory.stat().st_dev, []).append(directory)
    for directories in by_disk.values():
        free = shutil.disk_usage(directories[0]).free
        detail = f"{size_of(free)} free in {', '.join(map(str, directories))}"
        yield Finding("disk", free > _NEEDED_DISK, detail, "free at least 500 MB")


def _containment() -> Finding:
    """Report how processes are kept from outliving the server on this platform. Always ok."""
    kind = containment()
    detail = {
        "supervisor": "all processes of a session end with it, even if this server is killed",
        "marks": "leftover processes of a session are ended with it, or when the next server starts",
    }[kind]
    return Finding("containment", True, f"{detail} ({kind})")


def _check_request(executable: str, *, yes: bool) -> Finding:
    """Have Claude Code send one request as a session of this user would. Without the user's consent nothing is sent,
    and the finding is ok and says that it was not tried."""
    environment = child_environment(os.environ)
    is_free = environment.get(_ADDRESS, "").startswith(_LOCAL)
    if not (yes or is_free):
        if sys.stdin is None or not sys.stdin.isatty():
            return Finding(_REQUEST, True, f"{_NOT_TRIED}; --yes sends a small request", is_tried=False)
        if not agreed(_QUESTION):
            return Finding(_REQUEST, True, _NOT_TRIED, is_tried=False)
    redactor = Redactor()
    redactor.learn(without_settings(os.environ))
    route = _route(environment)
    try:
        with tempfile.TemporaryDirectory() as directory:
            answer = _ask(executable, directory)
    except subprocess.TimeoutExpired:
        return Finding(_REQUEST, False, f"no answer within {_REQUEST_TIMEOUT:g} s{route}", _fix(""))
    except (OSError, ValueError) as error:
        return Finding(
            _REQUEST,
            False,
            f"The answer of Claude Code cannot be parsed: {error}",
            "run `claude-code-mcp claude` to see what is wrong",
        )
    text = visible(clip_line(redactor.text(str(answer.get("result") or "")), 300))
    if answer.get("is_error"):
        return Finding(_REQUEST, False, f"{text or 'the request failed'}{route}", _fix(text))
    cost = answer.get("total_cost_usd") or 0
    return Finding(_REQUEST, True, f"it answered in {answer.get('duration_api_ms', 0)} ms for ${cost:.4f}{route}")


def _ask(executable: str, directory: str) -> dict[str, Any]:
    arguments = [
        *("-p", "Say ok.", "--output-format", "json", "--model", "haiku", "--system-prompt", "Answer with: ok"),
        *("--tools", "", "--strict-mcp-config", "--no-session-persistence"),
    ]
    # Its ten attempts with growing pauses would make a person wait for a result that the first attempt shows.
    once = {"CLAUDE_CODE_MAX_RETRIES": "1"}
    done = run_cli(executable, *arguments, variables=once, directory=directory, timeout=_REQUEST_TIMEOUT)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ValueError(clip_line(done.stderr or done.stdout or "no output", 200)) from None
    if not isinstance(answer, dict):
        raise ValueError("the output is not a report")
    return answer


def _route(environment: Mapping[str, str]) -> str:
    """The route of a request, without the credentials of an address or a proxy."""
    address = _SIGN_IN.sub("//", environment.get(_ADDRESS, ""))
    proxy = next((name for name in _PROXIES if environment.get(name)), None)
    parts = [f"at {address}" if address else "", f"through the proxy of {proxy}" if proxy else ""]
    return "".join(f" {visible(part)}" for part in parts if part)


def _fix(text: str) -> str:
    lower = text.lower()
    if "credit" in lower or "limit" in lower or "quota" in lower:
        return "the account has reached a limit: wait, or check the account's console"
    if any(word in lower for word in ("api key", "auth", "login", "token", "401", "403")):
        return "`claude-code-mcp claude auth login`, or a valid ANTHROPIC_API_KEY"
    return f"check the network, {_ADDRESS}, HTTPS_PROXY and, behind a company proxy, NODE_EXTRA_CA_CERTS"


async def _check_turn(settings: Settings) -> Finding:
    """Run one turn of the real CLI on the scripted model, in a temporary home with its own state directory."""
    from ..core.model.options import SessionOptions  # noqa: PLC0415 - only the deep check runs a session
    from ..core.service import Service  # noqa: PLC0415
    from ..testing import Sandbox, ScriptedModel  # noqa: PLC0415
    from ..testing.script import script  # noqa: PLC0415

    subject = "a turn on the scripted model"
    with tempfile.TemporaryDirectory() as directory:
        async with ScriptedModel() as model:
            sandbox = Sandbox(Path(directory), model.url)
            # The check must not appear in the user's own list of sessions and costs.
            private = settings.model_copy(update={"state_dir": sandbox.root / "state"})
            try:
                async with Service(private, sandbox.environment()) as service:
                    options = SessionOptions(cwd=str(sandbox.project))
                    turn = await service.create(script("Say hello.", "hello"), options)
                    outcome = await asyncio.wait_for(turn.outcome(), _TURN_TIMEOUT)
            except (ClaudeCodeError, TimeoutError) as error:
                return Finding(subject, False, str(error) or f"no answer within {_TURN_TIMEOUT:g} s")
    detail = f"answered in {outcome.duration_ms} ms" if outcome.ok else f"{outcome.code}: {outcome.detail}"
    return Finding(subject, outcome.ok and outcome.result == "hello", detail)


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"no {name}"
    for name in _PROGRAMS:
        path = shutil.which(name)
        if path is None:
            yield f"no {name}"
            continue
        try:
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
            )
            found = re.search(r"(?<!\d)\d+(?:\.\d+)+", done.stdout)
            yield f"{name} {found[0]}" if found is not None else name
        except (OSError, subprocess.SubprocessError):
            yield f"{name} does not run"
