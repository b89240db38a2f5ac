"""`people`: manages invited people on a server with `--oauth`, and the names of people who sign in elsewhere. `sessions
share` and `sessions unshare`: manages access to a session.

A running server applies invitations and removals at once, and released names after a restart.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...client.conventions import (
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
from ...client.live_sessions import LiveSessions
from ...client.session_files import add_session_command
from ...client.targets import add_target, at_server
from ...core.config import Settings, load_settings
from ...core.errors import InvalidArgument
from ...core.model.caller import is_reserved
from ...core.model.text import count_of, iso, visible
from ...core.private_files import private_directory
from ...core.state.state_directory import database_in
from .invited_people import INVITE_SECONDS, InvitedPeople, ListedPerson, announce_change
from .person_names import PersonName, PersonNames, Removal

_HOUR = 3600.0


def add_people(commands: Any) -> None:
    parser = commands.add_parser(
        "people",
        help="manage the people who may sign in",
        description="Invites people to a server that runs with `serve --http HOST:PORT --oauth`, and removes them. "
        "A name belongs permanently to the first person who uses it, because sessions, files and costs "
        "are stored under it. If your identity provider assigns the name to another person, they are "
        "refused until you release it here.",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    invite = below.add_parser("invite", help="invite a person: prints a link for creating a passkey, valid once")
    invite.add_argument("name", help="the person's name in the policy, costs and sessions")
    invite.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="a group of the policy; repeatable"
    )
    link = below.add_parser("link", help="print another link for a person, for a passkey on another device")
    link.add_argument("name")
    for made in (invite, link):
        made.add_argument(
            "--hours",
            type=positive,
            default=int(INVITE_SECONDS / _HOUR),
            help="hours for which the link is valid (default: 72)",
        )
    listed = below.add_parser("list", help="list invited people and the names in use")
    remove = below.add_parser("remove", help="remove a person: passkeys, tokens, sign-ins and streams end at once")
    remove.add_argument("name")
    remove.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    forget = below.add_parser(
        "forget",
        help="release a name",
        description="The next person who uses the name gets it, with its sessions and files. Shares by and with "
        "the name end. A running server applies this after a restart.",
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
    from ...server.transports.tokens_file import load_tokens  # noqa: PLC0415 - loads the MCP SDK

    settings, people = _opened(arguments)
    address = _address(settings, people)
    taken = {"default", *load_tokens(settings, may_be_empty=True).values()}
    if arguments.name in taken or is_reserved(arguments.name):
        raise InvalidArgument(f"{arguments.name} is the name of a caller with a token. Choose another name.")
    secret = people.invite(arguments.name, arguments.group, arguments.hours * _HOUR)
    announce_change(settings.state_dir)
    return _print_link(arguments, address, secret)


def _link(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    address = _address(settings, people)
    return _print_link(arguments, address, people.new_link(arguments.name, arguments.hours * _HOUR))


def _address(settings: Settings, people: InvitedPeople) -> str:
    """The server's address for people. Raises InvalidArgument if it is unknown; nothing is changed then."""
    address = settings.web_url or people.address()
    if address is None:
        raise InvalidArgument(
            "The server's public address is unknown: start it with `claude-code-mcp serve --http HOST:PORT "
            "--oauth` (or `fleet up`) first, or set CLAUDE_CODE_MCP_WEB_URL."
        )
    return address.rstrip("/")


def _print_link(arguments: argparse.Namespace, address: str, secret: str) -> int:
    # In the fragment, which browsers do not send, so that the secret appears in no log on the way.
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
        print("No one is invited yet. `claude-code-mcp people invite NAME` prints a link.")
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
    """Prints people who signed in through a provider or proxy, and the names of removed people."""
    if not names:
        return
    rows = [("NAME", "SUBJECT", "ISSUER", "SINCE")]
    # The provider controls these texts, and they are printed to the operator's terminal.
    rows += [(visible(name.name), visible(name.subject), visible(name.issuer), iso(name.since)) for name in names]
    if below:
        print()
    print("\n".join(table(rows)))


def _remove(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    if not arguments.yes and not agreed(f"Remove {arguments.name}? All their running sessions end at once."):
        return int(ExitCode.FAILED)
    removed = people.remove(arguments.name)
    if removed is None:
        raise NotFound(f"There is no person named {arguments.name}.")
    # After the removal is committed, so that a server that reads now does not find them.
    announce_change(settings.state_dir)
    _audit_ended_shares(settings, removed)
    fields = {"removed": arguments.name, "sharesEnded": len(removed.shares)}
    return print_outcome(arguments, fields, f"{arguments.name} was removed.{_shares_ended(removed)}")


def _forget(arguments: argparse.Namespace) -> int:
    settings, _ = _opened(arguments)
    forgotten = PersonNames(database_in(settings.state_dir)).forget(arguments.name)
    if forgotten is None:
        raise NotFound(f"The name {visible(arguments.name)} is not in use.")
    _audit_ended_shares(settings, forgotten)
    fields = {"name": arguments.name, "free": True, "sharesEnded": len(forgotten.shares)}
    return print_outcome(
        arguments, fields, f"The name {visible(arguments.name)}is available again.{_shares_ended(forgotten)}"
    )


def _shares_ended(removal: Removal) -> str:
    ended = len(removal.shares)
    return f" {count_of(ended, 'share')} by or with them ended." if ended else ""


def _audit_ended_shares(settings: Settings, removal: Removal) -> None:
    """Audits the shares ended by this command, because a running server only sees that there are fewer."""
    from ...app import open_audit  # noqa: PLC0415 - loads what a server is made of
    from ...installed_plugins import enabled_plugins  # noqa: PLC0415
    from .shared_sessions import unshared_with_person  # noqa: PLC0415

    audit = (
        open_audit(settings, settings.state_dir / "audit.jsonl", enabled_plugins(settings)) if removal.shares else None
    )
    if audit is not None:
        for share in removal.shares:
            audit.act(unshared_with_person(share))
        audit.close()


# -- sharing ---------------------------------------------------------------------------------------------------------


def add_share(actions: Any) -> None:
    """Through the server, which checks permissions, ends open views, and writes the audit trail."""
    share = add_session_command(
        actions, "share", "share a session with a person, to watch or to answer", at_server(_share)
    )
    share.add_argument("name", help="a person, or group:NAME")
    share.add_argument(
        "--access",
        choices=("watch", "answer"),
        default="watch",
        help="answer: may also write to the session (default: watch)",
    )
    add_target(share)


def add_unshare(actions: Any) -> None:
    unshare = add_session_command(
        actions, "unshare", "stop sharing; their open views of the session end", at_server(_unshare)
    )
    unshare.add_argument("name", help="a person, or group:NAME")
    add_target(unshare)


def _share(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    report = sessions.manage(session_id, "share", text=arguments.name, access=arguments.access)
    return print_outcome(arguments, report, visible(report["message"]))


def _unshare(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    # Always with a name: without one the tool would end the shares with everyone.
    report = sessions.manage(sessions.find(arguments.session), "unshare", text=arguments.name)
    return print_outcome(arguments, report, visible(report["message"]))
