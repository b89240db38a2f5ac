"""Runs an action that needs the hub: makes a hub for the time of one command, and turns failures into exit codes."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any

from mcp import MCPError

from ...config import load_settings
from ...errors import UpstreamUnavailable
from ...hub.config_files import HubConfig
from ...hub.dependencies import OnNotification, ignore_notification
from ...hub.hub import Hub
from ...hub_factory import make_hub
from .operations import OperationResult
from .render import as_json, clean
from .terminal import is_terminal


def command_hub(configuration: HubConfig, on_notification: OnNotification = ignore_notification) -> Hub:
    """A hub for the person at the shell, whom no policy restricts; `on_notification` gets what servers send by
    themselves."""
    return make_hub(load_settings(), configuration, os.environ, on_notification, serving=False)


def run_action(action: Coroutine[Any, Any, int]) -> int:
    """Runs an action to its end and returns its exit code.

    A call that a server refuses, or a server that is not available, is one line on stderr and the code 1.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # what the hub logs is printed by the action, once
    try:
        return asyncio.run(action)
    except UpstreamUnavailable as error:
        return print_error(error.message)
    except MCPError as error:
        return print_error(f"The server refused: {error.message}")


def print_error(message: str) -> int:
    """Prints one line to stderr; the value is the exit code for something that was found wrong."""
    print(f"claude-code-mcp: {' '.join(clean(message).split())}", file=sys.stderr)
    return 1


def print_found(found: OperationResult, *, json: bool) -> None:
    """Prints what an operation found; to a terminal without what would steer it."""
    text = as_json(found.data) if json else found.text
    if text:
        print(clean(text) if is_terminal(sys.stdout) and not json else text)
