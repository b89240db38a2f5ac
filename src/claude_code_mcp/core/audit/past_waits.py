"""The waits of a session for a person, from the essential lines of the audit trail.

They include the questions from before the server started. Lines are claims: a session that is not sandboxed can write
to the file. They are only shown.
"""

import json
import os
from pathlib import Path
from typing import Any

from ..errors import TranscriptUnreadable
from ..model.question import POLICY_CHANNEL
from ..transcripts.timeline import WaitTime
from ..transcripts.transcript_lines import seconds_of
from .audit_chain import FILES_KEPT
from .trail import essential_path

_MAX_BYTES = 64 << 20
"""Maximum bytes that are read, from the end of the newest file."""
_MAX_WAITS = 500
_DECISIONS = {"question_answered": "", "question_expired": "expired"}


def past_waits(trail: Path, session_id: str) -> dict[str, WaitTime]:
    """The last waits for settled questions of a session, by the id of the call, or of the question if it is not about a
    call; none without a trail. `trail` is the path of the complete trail. Blocks on the disk. TranscriptUnreadable if
    a file of the trail cannot be read."""
    path, found, left = essential_path(trail), dict[str, WaitTime](), _MAX_BYTES
    wanted = json.dumps(session_id).encode()
    for file in (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES_KEPT + 1))):
        if left <= 0 or len(found) >= _MAX_WAITS or not file.is_file():
            break
        try:
            with file.open("rb") as lines:
                lines.seek(max(0, lines.seek(0, os.SEEK_END) - left))
                content = lines.read(left)
        except OSError as error:
            raise TranscriptUnreadable(f"The audit trail cannot be read: {error.strerror}.") from None
        left -= len(content)
        for line in reversed(content.splitlines()):
            if wanted in line and len(found) < _MAX_WAITS and (wait := _wait_of(line, session_id)) is not None:
                found.setdefault(*wait)
    return found


def _wait_of(line: bytes, session_id: str) -> tuple[str, WaitTime] | None:
    try:
        entry: Any = json.loads(line)
        ended = _DECISIONS[entry["act"]]
        until, waited = seconds_of(entry["at"]), entry["waited_ms"]
        by, client = str(entry["by"]), entry.get("client")
        if entry["session"] != session_id or by == POLICY_CHANNEL or until is None:
            return None
        if not isinstance(waited, int | float) or not 0 <= waited <= until * 1000:
            return None
        decision = ended or str(entry.get("decision") or "")
        whose = f"{by} ({client})" if client else by
        wait = WaitTime(until - waited / 1000, until, str(entry.get("tool") or ""), decision, whose)
        return str(entry.get("call") or entry["question"]), wait
    except (ValueError, KeyError, TypeError):
        return None
