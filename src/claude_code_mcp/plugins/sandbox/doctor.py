"""The sandbox check of `doctor`."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator

from ...core.config import Settings
from ...core.errors import ClaudeCodeError
from ...core.policy_file import read_policy
from ...plugin import Finding
from ...server.transports.tokens_file import load_tokens
from .bubblewrap import unavailable
from .homes import Homes


def check_isolation(settings: Settings) -> Finding:
    """Runs a sandbox and checks the directories that it would get. Fails only if the server would not start, because of
    a configuration that matters over HTTP only."""
    subject, reason = "isolation", unavailable(os.environ)
    problem: ClaudeCodeError | None = None
    principals: tuple[str, ...] = ()
    warnings: list[str] = []
    try:
        policy, principals = read_policy(settings, "remote"), tuple(load_tokens(settings).values())
        others = settings.oauth_issuer is not None
        with _warnings_of(Homes) as warnings:
            asyncio.run(Homes(settings, os.environ, policy, principals, others=others).prepare())
    except ClaudeCodeError as error:
        problem = error
    if reason is None:
        works = "; ".join(["sandbox: bubblewrap works; sessions over HTTP use it by default", *warnings])
        serves = settings.policy_file or principals
        if problem is not None and problem.data.get("field") == "roots" and serves:
            return Finding(
                subject,
                False,
                problem.message,
                "list other directories as `roots` of the profile; docs/policy.md says which are possible",
            )
        return Finding(subject, True, works)
    if problem is not None and problem.data.get("field") == subject:
        return Finding(subject, False, reason, 'install bubblewrap, or set isolation = "none" in the policy')
    return Finding(subject, True, f"none: {reason}; sessions can read everything that this server's user can read")


@contextlib.contextmanager
def _warnings_of(cls: type) -> Iterator[list[str]]:
    """Collects the log messages of the module that defines `cls`, so that they become part of a finding."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, collector = logging.getLogger(cls.__module__), Collector()
    log.addHandler(collector)
    was_propagated, log.propagate = log.propagate, False
    try:
        yield messages
    finally:
        log.removeHandler(collector)
        log.propagate = was_propagated
