"""Arguments that several commands take, the values that they refuse; standard input, and output as JSON."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")


def add_json(parser: argparse._ActionsContainer, summary: str = "print JSON instead of lines") -> None:
    parser.add_argument("--json", action="store_true", help=summary)


def print_json(value: Any) -> None:
    """Prints a value for scripts: indented, in the characters that it has."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def standard_input() -> str:
    """All of standard input, whatever is in it; nothing if it is closed."""
    return sys.stdin.buffer.read().decode("utf-8", "replace") if sys.stdin is not None else ""


def positive(text: str) -> int:
    """The type of a limit: a whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def seconds(text: str) -> float:
    """The type of a time to wait; 0 is allowed, and waits for nothing."""
    number = float(text)
    if math.isnan(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number
