"""`audit verify`: whether the lines of the audit trail are those that were written."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..client.conventions import NotFound, Unavailable, add_config_file, add_json, camel_names, print_json
from ..core.audit.audit_chain import FILES_KEPT, ChainReport, verify
from ..core.audit.trail import essential_path
from ..core.config import load_settings
from ..core.errors import InvalidArgument


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="check the audit trail",
        description="The audit trail of servers over HTTP is in the state directory; see observability.md.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checking = kinds.add_parser(
        "verify",
        help="check whether lines were changed, removed or inserted",
        description="Verifies the hash chain of the file and its rotated files, and the chain of the essential lines. "
        "Prints the hash of the last line of each. Store a hash elsewhere and pass it later with --expect: then you "
        "know that nothing before it was replaced and that the end was not cut off.",
    )
    checking.add_argument("file", nargs="?", type=Path, help="audit file (default: from the settings)")
    checking.add_argument("--expect", metavar="CHAIN", help="hash of an earlier check that must still be in the chain")
    add_json(checking)
    add_config_file(checking)
    checking.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    path = arguments.file
    if path is None:
        settings = load_settings(file=arguments.config)
        if settings.audit_file == "off":
            raise InvalidArgument("The audit trail is switched off.")
        path = settings.audit_file or settings.state_dir / "audit.jsonl"
    essential = essential_path(path)
    reports = {path: _report_of(path, arguments.expect)}
    if essential.exists():
        reports[essential] = _report_of(essential, arguments.expect)
    missing = arguments.expect is not None and not any(report.found for report in reports.values())
    intact = not missing and all(report.intact for report in reports.values())
    if arguments.json:
        fields = {file: camel_names(asdict(report)) for file, report in reports.items()}
        print_json({**fields[path], "essential": fields.get(essential), "intact": intact})
        return 0 if intact else 1
    for file, report in reports.items():
        if len(reports) > 1:
            print(f"{file.name}:")
        _print(report)
    if missing:
        print(f"{arguments.expect} is not in the chain: lines were replaced, or the end was cut off.")
    return 0 if intact else 1


def _report_of(path: Path, expected: str | None) -> ChainReport:
    # The oldest first: each line is chained to the one before it.
    numbered = sorted(
        (file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()),
        key=lambda file: -int(file.suffix[1:]),
    )
    # Nothing was dropped yet, and it is not one of the files that were put aside: the first line of all must be there.
    whole = not path.suffix[1:].isdigit() and not path.with_name(f"{path.name}.{FILES_KEPT}").exists()
    try:
        return verify([*numbered, path], expected, whole=whole)
    except FileNotFoundError:
        raise NotFound(f"There is no audit trail at {path}.") from None
    except OSError as error:
        raise Unavailable(f"The audit trail {path} cannot be read: {error.strerror or error}.") from None


def _print(report: ChainReport) -> None:
    for finding in report.broken:
        print(finding)
    print(f"{report.lines} lines are intact; the last hash is {report.last or 'none'}.")
    for count, what in (
        (report.earlier, "were written before the hash chain was introduced"),
        (report.cut_off, "are incomplete"),
    ):
        if count:
            print(f"{count} lines {what}.")
    if report.begins_within:
        print("The file starts in the middle of the trail: its first line and earlier lines cannot be checked.")
