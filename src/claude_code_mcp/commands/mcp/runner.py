"""A hub for the time of one command."""

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
from .render import clean


def hub_for(configuration: HubConfig, on_notification: OnNotification = ignore_notification) -> Hub:
    """The caller is the person at the shell, who may do all."""
    return make_hub(load_settings(), configuration, os.environ, on_notification, serving=False)


def run(command: Coroutine[Any, Any, int]) -> int:
    """Runs it to its end. What a server refuses, or a server that is not there, is one line and the code 1."""
    logging.getLogger().addHandler(logging.NullHandler())  # the command tells what went wrong, and tells it once
    try:
        return asyncio.run(command)
    except UpstreamUnavailable as error:
        return complain(error.message)
    except MCPError as error:
        return complain(f"The server refused: {error.message}")


def complain(message: str) -> int:
    """One line on standard error; the code for something that was found wrong."""
    print(f"claude-code-mcp: {' '.join(clean(message).split())}", file=sys.stderr)
    return 1
