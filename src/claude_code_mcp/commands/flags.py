"""Arguments that several commands take, and the values that they refuse."""

import argparse
import math
from pathlib import Path


def add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")


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
