"""Shared parts: one scripted model for the whole run and a private HOME for every test; the plugins of the run."""

import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.service import Observer, Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.core.sessions.callers.session_access import SessionAccess
from claude_code_mcp.core.settings_section import Section
from claude_code_mcp.testing import Sandbox, ScriptedModelThread

from .support import (
    left_threads,
    leftovers,
    limits,
    lost_workers,
    progress,
    quick,
    shuffled,
    skipped,
    tls_context,
    tool_schemas,
    warm_commands,
)
from .support.parts import service_parts

RUN = leftovers.RUN

for name in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE"))]:
    del os.environ[name]

# No example fails for the time that it takes.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    max_examples=int(os.environ.get("EXAMPLES", "40")),  # `make soak` tries ten times as many
)
settings.load_profile("patient")


tls_context.share()
tool_schemas.share()
tool_schemas.check_results()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.has_plugin("cacheprovider"):  # `-p no:cacheprovider`: the setting is there all the same
        parser.addini("cache_dir", "where pytest's cache would be")
    limits.add_options(parser)
    progress.add_option(parser)
    quick.add_option(parser)
    shuffled.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    limits.register(config)
    config.pluginmanager.register(left_threads.LeftThreads())
    config.pluginmanager.register(leftovers.Leftovers())
    config.pluginmanager.register(lost_workers.LostWorkers(config))
    config.pluginmanager.register(skipped)
    config.pluginmanager.register(quick)
    config.pluginmanager.register(shuffled)
    # A shell starts what it runs in the background with Ctrl-C ignored, `nohup` with hang-ups ignored, and so would the
    # programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection() -> None:
    """What collecting makes stays until the end: searching it for garbage again and again took two seconds of five."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # nor is it searched when a test has made garbage
    gc.set_threshold(*warm_commands.RARELY)
    gc.enable()


@pytest.fixture(scope="session")
def model() -> Iterator[ScriptedModelThread]:
    with ScriptedModelThread(keep_bodies=True) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _helper_of_commands() -> Iterator[None]:
    yield
    warm_commands.close()


@pytest.fixture
def sandbox(tmp_path: Path, model: ScriptedModelThread) -> Sandbox:
    return Sandbox(tmp_path, model.url)


@pytest.fixture
def environment(sandbox: Sandbox) -> dict[str, str]:
    """A clean environment for the CLI, marked as belonging to this run."""
    return sandbox.environment(**{RUN: os.environ[RUN]})


StartService = Callable[..., Any]


@pytest.fixture
async def start_service(sandbox: Sandbox, environment: dict[str, str]) -> AsyncIterator[StartService]:
    """Starts services on the private HOME; other keyword arguments are settings, `extra` adds variables."""
    async with AsyncExitStack() as stack:

        async def start(
            extra: dict[str, str] | None = None,
            policy: Policy | None = None,
            observers: Sequence[Observer] = (),
            principals: Sequence[str] = (),
            sections: Sequence[Section] = (),
            access: Callable[[Settings, Policy], SessionAccess | None] = lambda _, __: None,
            **settings: Any,
        ) -> Service:
            given = load_settings({}, sections=sections, **{"state_dir": sandbox.root / "state", **settings})
            policy = policy or Policy()
            service = Service(
                given,
                {**environment, **(extra or {})},
                policy=policy,
                callers=ExpectedCallers(principals),
                access=access(given, policy),
                **service_parts(),
            )
            for observer in observers:
                service.observe(observer)
            return await stack.enter_async_context(service)

        yield start


@pytest.fixture
async def service(start_service: StartService) -> Service:
    started = await start_service()
    assert isinstance(started, Service)
    return started


def programs_below(pid: int | None = None) -> list[psutil.Process]:
    """What a process has started, without the supervisor that starts it, which ends when its process does, and without
    what is exiting."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if command and not any("supervisor.py" in argument for argument in command):
            found.append(process)
    return found


def contents_below(directory: Path) -> dict[Path, bytes]:
    """Every file and what is in it. Those that are replaced while this looks are left out."""
    found = {}
    for path in directory.rglob("*"):
        # A socket is no file.
        if path.is_file():
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.read_bytes()
    return found
