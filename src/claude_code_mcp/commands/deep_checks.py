"""What `doctor --deep` tries: one request with this key, at this address, through this proxy; a turn on the scripted
model; and the versions of everything that takes part.

The request is as small as Claude Code can make it, leaves no session behind, and is sent only after a yes, because it
may cost something.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config import Settings
from ..errors import ClaudeCodeError
from ..model.text import clip_line, visible
from ..processes.environment import child_environment
from ..redaction import Redactor
from .finding import REQUEST, Finding
from .flags import agreed

_REQUEST_TIMEOUT = 120.0
_TURN_TIMEOUT = 60.0
_QUESTION = "Send one small request to the API, to see whether this key, address and proxy work? It may cost a cent."
_NOT_TRIED = "not tried: whether this key, address and proxy work is not known"
_PACKAGES = ("mcp", "httpx2", "pydantic", "uvicorn", "cryptography", "textual", "claude-agent-sdk")
_PROGRAMS = ("git", "bwrap", "node")
_ADDRESS = "ANTHROPIC_BASE_URL"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
_SIGN_IN = re.compile(r"//[^/@]*@")
_LOCAL = ("http://127.0.0.1", "http://localhost", "http://[::1]")


def check_request(executable: str, *, yes: bool) -> Finding:
    """Has Claude Code answer one request as a session of this user would. What nobody has agreed to is not sent, and is
    no fault; it is said that it was not tried."""
    environment = child_environment(os.environ)
    is_free = environment.get(_ADDRESS, "").startswith(_LOCAL)
    if not (yes or is_free):
        if sys.stdin is None or not sys.stdin.isatty():
            return Finding(REQUEST, True, f"{_NOT_TRIED}; --yes sends a small request", is_tried=False)
        if not agreed(_QUESTION):
            return Finding(REQUEST, True, _NOT_TRIED, is_tried=False)
    redactor = Redactor()
    redactor.learn(os.environ)
    route = _route(environment)
    try:
        with tempfile.TemporaryDirectory() as directory:
            answer = _ask(executable, environment, directory)
    except subprocess.TimeoutExpired:
        return Finding(REQUEST, False, f"no answer within {_REQUEST_TIMEOUT:g} s{route}", _fix(""))
    except (OSError, ValueError) as error:
        return Finding(REQUEST, False, f"Claude Code gave no answer that can be read: {error}", "run it by hand")
    text = visible(clip_line(redactor.text(str(answer.get("result") or "")), 300))
    if answer.get("is_error"):
        return Finding(REQUEST, False, f"{text or 'the request failed'}{route}", _fix(text))
    cost = answer.get("total_cost_usd") or 0
    return Finding(REQUEST, True, f"it answered in {answer.get('duration_api_ms', 0)} ms for ${cost:.4f}{route}")


def _ask(executable: str, environment: Mapping[str, str], directory: str) -> dict[str, Any]:
    arguments = [
        *("-p", "Say ok.", "--output-format", "json", "--model", "haiku", "--system-prompt", "Answer with: ok"),
        *("--tools", "", "--strict-mcp-config", "--no-session-persistence"),
    ]
    done = subprocess.run(
        [executable, *arguments],
        # Its ten attempts with growing pauses would keep a person waiting for what the first one says.
        env={**environment, "CLAUDE_CODE_MAX_RETRIES": "1"},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_REQUEST_TIMEOUT,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ValueError(clip_line(done.stderr or done.stdout or "nothing was printed", 200)) from None
    if not isinstance(answer, dict):
        raise ValueError("it is no report")
    return answer


def _route(environment: Mapping[str, str]) -> str:
    """Which way a request goes, without what an address or a proxy is signed in to with."""
    address = _SIGN_IN.sub("//", environment.get(_ADDRESS, ""))
    proxy = next((name for name in _PROXIES if environment.get(name)), None)
    parts = [f"at {address}" if address else "", f"through the proxy of {proxy}" if proxy else ""]
    return "".join(f" {visible(part)}" for part in parts if part)


def _fix(text: str) -> str:
    lower = text.lower()
    if "credit" in lower or "limit" in lower or "quota" in lower:
        return "the account has reached a limit: wait, or see its console"
    if any(word in lower for word in ("api key", "auth", "login", "token", "401", "403")):
        return "`claude-code-mcp claude auth login`, or a valid ANTHROPIC_API_KEY"
    return f"check the network, {_ADDRESS}, HTTPS_PROXY and, behind a proxy of a company, NODE_EXTRA_CA_CERTS"


async def check_turn(settings: Settings) -> Finding:
    """One turn of the real CLI on the scripted model, in a temporary home with a state directory of its own."""
    from ..model.options import SessionOptions  # noqa: PLC0415 - only the deep check runs a session
    from ..service import Service  # noqa: PLC0415
    from ..testing import Sandbox, ScriptedModel  # noqa: PLC0415
    from ..testing.script import script  # noqa: PLC0415

    subject = "a turn on the scripted model"
    with tempfile.TemporaryDirectory() as directory:
        async with ScriptedModel() as model:
            sandbox = Sandbox(Path(directory), model.url)
            # Nothing of the check may be found in the user's own list of sessions and costs.
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


def check_versions() -> Finding:
    """The versions of what takes part, for whoever reports a problem. Never wrong."""
    return Finding("versions", True, ", ".join([*_package_versions(), *_program_versions()]))


def _package_versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"no {name}"


def _program_versions() -> Iterator[str]:
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
