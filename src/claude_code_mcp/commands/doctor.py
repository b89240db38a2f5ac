"""`doctor`: looks at everything a session needs and says what to fix."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import Settings
from ..errors import ClaudeCodeError
from .checks import Finding, look


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check that everything a session needs is there",
        description="Finds the Claude Code executable, its version and whether somebody is logged in; checks settings, "
        "policy, tokens, MCP servers, directories and disk; and says what to fix. The exit code is 1 when something "
        "will not work. With --deep it also runs a whole turn on the scripted model; no account is needed.",
    )
    parser.add_argument("--deep", action="store_true", help="also run a turn on the scripted model")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = _findings(arguments.config, deep=arguments.deep)
    return _as_json(findings) if arguments.json else _as_lines(findings)


def _as_lines(findings: Iterator[Finding]) -> int:
    print(f"claude-code-mcp {__version__}, Python {sys.version.split()[0]} on {sys.platform}")
    wrong = 0
    for finding in findings:
        print(finding.line(), flush=True)
        wrong += not finding.ok
    print("Everything is in order." if not wrong else f"{wrong} to fix.")
    return 1 if wrong else 0


def _as_json(findings: Iterator[Finding]) -> int:
    found = list(findings)
    ok = all(finding.ok for finding in found)
    told = {
        "version": __version__,
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "ok": ok,
        "findings": [finding.data() for finding in found],
    }
    print(json.dumps(told, indent=2, ensure_ascii=False))
    return 0 if ok else 1


def _findings(config: Path | None, *, deep: bool) -> Iterator[Finding]:
    settings: Settings | None = None
    for found in look(config):
        if isinstance(found, Settings):
            settings = found
        else:
            yield found
    if deep and settings is not None:
        yield asyncio.run(_turn(settings))


async def _turn(settings: Settings) -> Finding:
    from ..model.options import SessionOptions  # noqa: PLC0415 - only the deep look runs a session
    from ..service import Service, outcome_of  # noqa: PLC0415
    from ..testing import Sandbox, ScriptedModel  # noqa: PLC0415
    from ..testing.script import script  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        async with ScriptedModel() as model:
            sandbox = Sandbox(Path(directory), model.url)
            private = settings.model_copy(update={"state_dir": sandbox.root / "state"})
            try:
                async with Service(private, sandbox.environment()) as service:
                    options = SessionOptions(cwd=str(sandbox.project))
                    _, delivery = await service.create(script("Say hello.", "hello"), options)
                    outcome = await asyncio.wait_for(outcome_of(delivery), 60)
            except (ClaudeCodeError, TimeoutError) as error:
                return Finding("a turn on the scripted model", False, str(error) or "no answer within 60 s")
    told = f"answered in {outcome.duration_ms} ms" if outcome.ok else f"{outcome.code}: {outcome.detail}"
    return Finding("a turn on the scripted model", outcome.ok and outcome.result == "hello", told)
