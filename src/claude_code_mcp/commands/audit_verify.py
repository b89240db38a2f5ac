"""`audit verify`: whether the lines of the audit trail are those that were written."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import load_settings
from ..errors import InvalidArgument
from ..observers.audit_chain import FILES_KEPT, verify
from .flags import add_config_file, add_json, camel_names, print_json


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="check the audit trail",
        description="The audit trail of servers over HTTP is in the state directory; see observability.md.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checking = kinds.add_parser(
        "verify",
        help="whether lines were changed, removed or inserted",
        description="Follows the hash chain through the file and those that were put aside for it. It ends with the "
        "chain of the last line: note it elsewhere, and ask for it later with --expect, to know that nothing before it "
        "was exchanged, and that the end was not cut off.",
    )
    checking.add_argument("file", nargs="?", type=Path, help="default: that of the settings")
    checking.add_argument("--expect", metavar="CHAIN", help="a value that was noted before and must be there")
    add_json(checking)
    add_config_file(checking)
    checking.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    path = arguments.file or _configured(arguments)
    # The oldest first: a line goes on from the one before it.
    numbered = sorted(
        (file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()),
        key=lambda file: -int(file.suffix[1:]),
    )
    # Nothing was dropped yet, and it is not one of the files that were put aside: the first line of all must be there.
    whole = not path.suffix[1:].isdigit() and not path.with_name(f"{path.name}.{FILES_KEPT}").exists()
    try:
        report = verify([*numbered, path], arguments.expect, whole=whole)
    except OSError as error:
        raise InvalidArgument(f"The audit trail {path} cannot be read: {error.strerror or error}.") from None
    missing = arguments.expect is not None and not report.found
    if arguments.json:
        print_json({**camel_names(asdict(report)), "intact": report.intact and not missing})
    else:
        for finding in report.broken:
            print(finding)
        print(f"{report.lines} lines follow each other, up to {report.last or 'none'}.")
        for count, what in ((report.earlier, "are from before there was a chain"), (report.cut_off, "were cut off")):
            print(f"{count} lines {what}." if count else "", end="\n" if count else "")
        if report.begins_within:
            print("It begins within the trail: its first line, and what was before that, cannot be checked.")
        if missing:
            print(f"{arguments.expect} is not among them: lines were exchanged, or the end is gone.")
    return 0 if report.intact and not missing else 1


def _configured(arguments: argparse.Namespace) -> Path:
    settings = load_settings(file=arguments.config)
    if settings.audit_file == "off":
        raise InvalidArgument("The audit trail is switched off.")
    return settings.audit_file or settings.state_dir / "audit.jsonl"
