"""`people` and `audit`: what the operator of a server over HTTP does in its state, which need not be running.

`people`: who is invited to a server with `--oauth`, and whose name is whose, of those who sign in elsewhere. A server
that runs hears of invitations and removals at once; that a name was released it takes into account when it is
restarted. `audit verify`: whether the lines of the audit trail are those that were written.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import Settings, load_settings
from ..errors import InvalidArgument
from ..model.options import is_reserved
from ..model.text import count_of, iso, visible
from ..observers.audit import FILES_KEPT, verify
from ..private_files import private_directory
from ..state.known_people import (
    INVITE_SECONDS,
    InvitedPeople,
    ListedPerson,
    PersonName,
    PersonNames,
    Removal,
    announce_change,
)
from ..state.state_directory import database_in
from .conventions import (
    ExitCode,
    NotFound,
    add_config_file,
    add_json,
    agreed,
    camel_names,
    positive,
    print_json,
    print_outcome,
    table,
)

_HOUR = 3600.0


def add_to(commands: Any) -> None:
    _add_people(commands)
    _add_audit(commands)


def _add_people(commands: Any) -> None:
    parser = commands.add_parser(
        "people",
        help="who may sign in, and whose name is whose",
        description="Invites people to a server that runs with `serve --http HOST:PORT --oauth`, and removes them. A "
        "name belongs to the first person who comes by it, for good: sessions, files and costs go by it. If your "
        "provider gives it to somebody else, they are refused until it is released here.",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    invite = below.add_parser("invite", help="invite somebody: prints a link with which they make a passkey, once")
    invite.add_argument("name", help="what the policy, the costs and the sessions know them by")
    invite.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="a group of the policy; repeatable"
    )
    link = below.add_parser("link", help="another link for somebody, for one more passkey on another device")
    link.add_argument("name")
    for made in (invite, link):
        made.add_argument(
            "--hours", type=positive, default=int(INVITE_SECONDS / _HOUR), help="how long the link counts (default: 72)"
        )
    listed = below.add_parser("list", help="everybody who is invited, and who has which other name")
    remove = below.add_parser("remove", help="remove somebody: passkeys, tokens, sign-ins and streams end at once")
    remove.add_argument("name")
    remove.add_argument("--yes", action="store_true", help="do not ask")
    forget = below.add_parser(
        "forget",
        help="release a name",
        description="Whoever comes by the name next has it, with the sessions and files that go by it. What was "
        "shared by it or with it ends. A server that runs takes it into account when it is restarted.",
    )
    forget.add_argument("name")
    runs = ((invite, _invite), (link, _link), (listed, _list), (remove, _remove), (forget, _forget))
    for parser, run in runs:
        add_json(parser)
        add_config_file(parser)
        parser.set_defaults(run=run)


def _opened(arguments: argparse.Namespace) -> tuple[Settings, InvitedPeople]:
    settings = load_settings(file=arguments.config)
    private_directory(settings.state_dir)
    return settings, InvitedPeople(database_in(settings.state_dir))


def _invite(arguments: argparse.Namespace) -> int:
    from ..server.transports.callers import load_tokens  # noqa: PLC0415 - loads the MCP SDK

    settings, people = _opened(arguments)
    address = _address(settings, people)
    taken = {"default", *load_tokens(settings, may_be_empty=True).values()}
    if arguments.name in taken or is_reserved(arguments.name):
        raise InvalidArgument(f"{arguments.name} is the name of a caller with a token; nobody else can have it.")
    secret = people.invite(arguments.name, arguments.group, arguments.hours * _HOUR)
    announce_change(settings.state_dir)
    return _print_link(arguments, address, secret)


def _link(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    address = _address(settings, people)
    return _print_link(arguments, address, people.new_link(arguments.name, arguments.hours * _HOUR))


def _address(settings: Settings, people: InvitedPeople) -> str:
    """Where people reach the server. InvalidArgument if nobody has said so yet; nothing is changed then."""
    address = settings.web_url or people.address()
    if address is None:
        raise InvalidArgument(
            "It is not known where people reach the server: start it with `claude-code-mcp serve --http HOST:PORT "
            "--oauth` first, or set CLAUDE_CODE_MCP_WEB_URL."
        )
    return address.rstrip("/")


def _print_link(arguments: argparse.Namespace, address: str, secret: str) -> int:
    # Behind the #: browsers do not send that, so the secret is in no log on the way.
    url, expires_at = f"{address}/invite#{secret}", time.time() + arguments.hours * _HOUR
    if arguments.json:
        print_json({"name": arguments.name, "url": url, "expiresAt": iso(expires_at)})
    else:
        print(f"Send this link to {arguments.name}. It works once, for {arguments.hours} hours:\n\n  {url}\n")
        print(f"Their client connects to {address}/mcp")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    found = people.everybody()
    invited = {person.name for person in found}
    names = [name for name in PersonNames(database_in(settings.state_dir)).all() if name.name not in invited]
    if arguments.json:
        fields = [
            {
                "name": person.name,
                "groups": [*person.groups],
                "invitedAt": iso(person.invited_at),
                "passkeys": person.passkeys,
                "lastUsedAt": iso(person.used_at) if person.used_at is not None else None,
                "openLinks": person.invites,
            }
            for person in found
        ]
        owned = [{**camel_names(asdict(name)), "since": iso(name.since)} for name in names]
        print_json({"people": fields, "names": owned})
    elif not found and not names:
        print("Nobody is invited. `claude-code-mcp people invite NAME` prints a link.")
    else:
        _print_invited(found)
        _print_names(names, below=bool(found))
    return 0


def _print_invited(people: Sequence[ListedPerson]) -> None:
    if not people:
        return
    rows = [("NAME", "GROUPS", "PASSKEYS", "LAST SIGN-IN")]
    for person in people:
        waiting = "invited" if person.invites else "link expired"
        last = iso(person.used_at) if person.used_at is not None else waiting
        rows.append((person.name, visible(", ".join(person.groups)), str(person.passkeys), last))
    print("\n".join(table(rows)))


def _print_names(names: Sequence[PersonName], *, below: bool) -> None:
    """Those who have come by a provider or a proxy, and the names of invited people who were removed."""
    if not names:
        return
    rows = [("NAME", "SUBJECT", "ISSUER", "SINCE")]
    # What the provider says of people is shown on the operator's terminal.
    rows += [(visible(name.name), visible(name.subject), visible(name.issuer), iso(name.since)) for name in names]
    if below:
        print()
    print("\n".join(table(rows)))


def _remove(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    if not arguments.yes and not agreed(f"Remove {arguments.name}? Everything of theirs that runs ends at once."):
        return int(ExitCode.FAILED)
    removed = people.remove(arguments.name)
    if removed is None:
        raise NotFound(f"There is nobody called {arguments.name}.")
    # After the removal was committed: a server that looks now must not find them.
    announce_change(settings.state_dir)
    _audit_ended_shares(settings, removed)
    fields = {"removed": arguments.name, "sharesEnded": len(removed.shares)}
    return print_outcome(arguments, fields, f"{arguments.name} is removed.{_shares_ended(removed)}")


def _forget(arguments: argparse.Namespace) -> int:
    settings, _ = _opened(arguments)
    forgotten = PersonNames(database_in(settings.state_dir)).forget(arguments.name)
    if forgotten is None:
        raise NotFound(f"Nobody has the name {visible(arguments.name)}.")
    _audit_ended_shares(settings, forgotten)
    fields = {"name": arguments.name, "free": True, "sharesEnded": len(forgotten.shares)}
    return print_outcome(arguments, fields, f"The name {visible(arguments.name)} is free.{_shares_ended(forgotten)}")


def _shares_ended(removal: Removal) -> str:
    ended = len(removal.shares)
    return f" {count_of(ended, 'share')} of theirs, or with them, ended." if ended else ""


def _audit_ended_shares(settings: Settings, removal: Removal) -> None:
    """By this command, which has ended them: a server that runs only hears that there are fewer."""
    from ..app import open_audit  # noqa: PLC0415 - loads what a server is made of
    from ..sessions.session_access import unshared_with_person  # noqa: PLC0415

    audit = open_audit(settings, settings.state_dir / "audit.jsonl") if removal.shares else None
    if audit is not None:
        for share in removal.shares:
            audit.act(unshared_with_person(share))
        audit.close()


# -- the audit trail ---------------------------------------------------------------------------------------------------


def _add_audit(commands: Any) -> None:
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
    path = arguments.file
    if path is None:
        settings = load_settings(file=arguments.config)
        if settings.audit_file == "off":
            raise InvalidArgument("The audit trail is switched off.")
        path = settings.audit_file or settings.state_dir / "audit.jsonl"
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
            if count:
                print(f"{count} lines {what}.")
        if report.begins_within:
            print("It begins within the trail: its first line, and what was before that, cannot be checked.")
        if missing:
            print(f"{arguments.expect} is not among them: lines were exchanged, or the end is gone.")
    return 0 if report.intact and not missing else 1
