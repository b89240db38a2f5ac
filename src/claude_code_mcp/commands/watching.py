"""`ps`, `questions`, `show` and `logs`: what the sessions of a running server do, ask and say."""

import argparse
import json
import shutil
import sys
import time
from typing import Any

from ..client.live_sessions import LiveSessions, Report
from ..model.text import clip, visible
from .flags import positive, print_json, seconds
from .printing import print_question, table
from .verbs import add_session, add_verb, at_running_server, at_server

_CLEAR = "\x1b[H\x1b[J"


def add_to(commands: Any) -> None:
    ps = add_verb(commands, "ps", "list the sessions of the server: state, question, cost", at_running_server(_ps))
    ps.add_argument("--all", action="store_true", help="those too whose process is closed")
    ps.add_argument("--ids", action="store_true", help="print whole ids and nothing else")
    ps.add_argument("--watch", action="store_true", help="go on until Ctrl-C; with --json, a line for each change")
    ps.add_argument("--interval", type=seconds, default=2.0, metavar="SECONDS", help="with --watch (default 2)")
    add_verb(commands, "questions", "print every open question, whole", at_running_server(_questions))
    show = add_verb(commands, "show", "print the state, open questions and result of a session", at_server(_show))
    add_session(show)
    show.add_argument("--transcript", action="store_true", help="the conversation instead")
    show.add_argument("--full", action="store_true", help="with --transcript: whole inputs, results and diffs")
    logs = add_verb(commands, "logs", "print what a session has put out", at_running_server(_logs))
    add_session(logs)
    logs.add_argument("--lines", type=positive, default=50, metavar="N", help="the last N lines (default 50)")
    logs.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")


# -- ps -----------------------------------------------------------------------------------------------------------


def _ps(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    if not arguments.watch:
        _print_sessions(_listed(sessions, arguments), arguments)
        return 0
    shown = None
    while True:
        listed = _listed(sessions, arguments)
        if arguments.json and listed != shown:
            print(json.dumps(listed, ensure_ascii=False), flush=True)
        elif not arguments.json and (sys.stdout.isatty() or listed != shown):
            print(_CLEAR if sys.stdout.isatty() else "", end="")
            _print_sessions(listed, arguments)
            sys.stdout.flush()
        shown = listed
        time.sleep(arguments.interval)  # of a change in any session at all there is no event


def _listed(sessions: LiveSessions, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [session for session in sessions.live() if arguments.all or _is_alive(session)]


def _is_alive(session: dict[str, Any]) -> bool:
    return session["isActive"] or session.get("activeStatus") in ("running", "waiting_for_input")


def _print_sessions(listed: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(listed)
    elif arguments.ids:
        print("".join(f"{session['sessionId']}\n" for session in listed), end="")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = table(listed) if listed else ["No sessions."]
        print("\n".join(line if width is None else clip(line, width) for line in lines))


# -- questions ----------------------------------------------------------------------------------------------------


def _questions(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    asked = sessions.questions()
    if arguments.json:
        print_json(
            [
                {
                    "inputId": entry.id,
                    "sessionId": entry.session["sessionId"],
                    "type": entry.question.kind,
                    "toolName": entry.question.tool_name,
                    "toolInput": entry.question.tool_input,
                    "description": entry.question.description,
                    "canAllowForSession": entry.for_session,
                    "sessionRules": entry.question.session_rules,
                    "expiresAt": entry.expires_at,
                }
                for entry in asked
            ]
        )
        return 0
    for number, entry in enumerate(asked):
        print("\n" if number else "", end="")
        print_question(entry)
    print("" if asked else "No open questions.\n", end="")
    return 0


# -- one session --------------------------------------------------------------------------------------------------


def _show(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    if arguments.transcript:
        return _show_transcript(sessions, session_id, arguments)
    report = sessions.status(session_id)
    if arguments.json:
        print_json({**report, "result": sessions.result(report) or None})
        return 0
    print("\n".join(_summary(report)))
    for asked in sessions.questions_in(report):
        print()
        print_question(asked)
    result = sessions.result(report)
    print(f"\n{visible(result)}\n" if result else "", end="")
    return 0


def _show_transcript(sessions: LiveSessions, session_id: str, arguments: argparse.Namespace) -> int:
    pages = sessions.transcript(session_id, full=arguments.full)
    if arguments.json:
        print_json(list(pages))
        return 0
    for page in pages:
        print(visible(page.get("transcript") or ""))
    return 0


def _summary(report: Report) -> list[str]:
    """What is known of a session, a line each."""
    tokens = report.get("tokens") or {}
    facts = {
        "session": report["sessionId"],
        "status": report["status"],
        "cost": f"${report.get('costUsd') or 0:.4f}",
        "tokens": f"{tokens.get('input', 0)} in, {tokens.get('output', 0)} out",
        "turns": report.get("turnCount"),
        "stalled": f"nothing for {report['stalledSeconds']} s" if report.get("stalledSeconds") else None,
        "retrying": report.get("retrying"),
        "queued": report.get("queued"),
        "error": error_text(report),
    }
    return [f"{name:<9} {visible(str(value))}" for name, value in facts.items() if value is not None]


def error_text(report: Report) -> str | None:
    """Why the last turn failed."""
    error = report.get("error")
    return f"{error['code']}: {error['message']}" if error else None


def _logs(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    for report in sessions.follow(session_id, lines=arguments.lines):
        for line in sessions.lines(report):
            print(json.dumps({"line": line}, ensure_ascii=False) if arguments.json else visible(line))
        sys.stdout.flush()
        if not arguments.follow:
            break
    return 0
