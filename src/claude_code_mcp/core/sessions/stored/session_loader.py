"""Reads a session from disk: from its record, if this server has written one, and from its transcript."""

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ...claude.protocol import Conversation, Raw
from ...errors import PermissionDenied
from ...model.events import Event, Output
from ...model.options import SessionOptions
from ...model.outcome import Outcome, OutcomeCode
from ...model.states import State
from ...model.usage import Usage
from ...model.worktree import Worktree
from ...state.session_records import SessionRecord
from ...transcripts.recent_messages import Recent, read_recent
from ...transcripts.transcript_lines import in_folder
from ...transcripts.transcripts import Transcript, Transcripts, read_lines
from ...working_directory import own_directory
from ..live.readable_lines import ReadableLines
from ..option_notices import PROMPTS
from .session_stores import Stores


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Everything on disk about a session."""

    session_id: str
    record: SessionRecord | None
    transcript: Transcript | None
    recent: Recent
    runs_elsewhere: bool = False
    """Whether another server is running a turn of it."""
    directory: str | None = None
    """The caller's directory; None: the server's."""
    answers: int = 0
    """How often the model has answered according to the transcript, if that has more than the record."""

    @property
    def cwd(self) -> str:
        """Its directory: as recorded, unless the transcript has been moved since."""
        record, transcript = self.record, self.transcript
        if record is None:
            return (transcript.cwd if transcript is not None else None) or self.directory or own_directory()
        if transcript is None or transcript.cwd is None:
            return record.cwd
        in_place = in_folder(os.path.realpath(record.cwd), transcript.path.parent.name)
        return record.cwd if in_place else transcript.cwd

    @property
    def usage(self) -> Usage:
        """The session's usage so far. The CLI counts interactive use, our record counts killed processes: the larger
        value is more accurate."""
        sources = (self.record, self.transcript)
        return max((source.usage for source in sources if source is not None), key=lambda usage: usage.cost_usd)

    @property
    def model_turns(self) -> int:
        return max(self.answers, self.record.model_turns if self.record is not None else 0)

    @property
    def state(self) -> State:
        """The state in which it was left; a turn that no server runs was interrupted."""
        record = self.record
        if record is None:
            return State.IDLE
        if record.cancelled:
            return State.CANCELLED
        if record.running_since is not None:
            return State.RUNNING if self.runs_elsewhere else State.INTERRUPTED
        return record.outcome.state if record.outcome is not None else State.IDLE

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the last turn. An unfinished turn was interrupted, whatever the previous outcome was."""
        record = self.record
        if record is None:
            return Outcome(OutcomeCode.COMPLETED, result=self.recent.answer) if self.recent.answer else None
        if record.running_since is not None:
            return None if self.runs_elsewhere else _interrupted_since(record.running_since)
        if record.outcome is not None and record.result_cut:
            return replace(record.outcome, result=self.recent.answer or record.outcome.result)
        return record.outcome


def read_session(session_id: str, stores: Stores, directory: str | None = None) -> OnDisk | None:
    """Read a session; None if there is nothing to resume, RecordUnreadable if it must not be resumed. Blocks on the
    disk.

    A session that ended before it wrote a line has only its record and starts a new conversation. A session that had
    model turns and lost its transcript cannot be resumed.
    """
    record = stores.recorder.records.read(session_id)
    transcript = stores.transcripts.read(session_id)
    if transcript is None and (record is None or record.model_turns):
        return None
    recent = read_recent(transcript.path) if transcript is not None else Recent()
    # Only if the record says so: the check takes the lease for an instant, in which others find the session busy.
    running = record is not None and record.running_since is not None and stores.leases.may_be_held(session_id)
    # Costs beyond the record arose elsewhere: in a terminal, or on a server that could not record them.
    unknown = transcript is not None and (record is None or transcript.usage.cost_usd > record.usage.cost_usd + 1e-9)
    answers = stores.transcripts.answers(session_id) if unknown else 0
    return OnDisk(session_id, record, transcript, recent, running, directory, answers)


def resumed_options(
    recorded: SessionOptions, requested: SessionOptions | None, *, foreign_owner: str | None = None
) -> SessionOptions:
    """The options for resuming a session: the fields that this call sets, else the recorded ones.

    The session keeps its first system prompt, as in Claude Code (see `option_notices`). It keeps its worktree if it
    stays there. The policy is applied to the result elsewhere. A session of another owner (`foreign_owner`) was limited
    by that owner's policy, which only the recorded options reflect: changing any of them raises PermissionDenied.
    """
    names = requested.model_fields_set - {"worktree"} if requested is not None else set()
    changes = {name: value for name in sorted(names) if (value := getattr(requested, name)) is not None}
    differing = [name for name, value in changes.items() if value != getattr(recorded, name)]
    if foreign_owner is not None and differing:
        raise PermissionDenied(
            f"{differing[0]}: the session belongs to {foreign_owner} and keeps the options it was created with.",
            field=differing[0],
        )
    changes = {name: value for name, value in changes.items() if name not in PROMPTS}
    worktree = recorded.worktree
    if "cwd" in changes and not (isinstance(worktree, Worktree) and _is_inside(changes["cwd"], worktree.path)):
        changes["worktree"] = False  # it continues elsewhere
    return recorded.model_copy(update=changes)


def _is_inside(path: str, directory: str) -> bool:
    return os.path.realpath(path) == directory or os.path.realpath(path).startswith(directory + os.sep)


def messages_in_transcript(
    transcripts: Transcripts, session_id: str, message_ids: Set[str], cwd: str | None = None
) -> Set[str]:
    """Those of the messages that are in the session's transcript. Blocks on the disk."""
    path = transcripts.path_of(session_id, cwd)
    written = (uuid for line in read_lines(path) for uuid in _message_ids(line)) if path is not None else ()
    return {uuid for uuid in written if isinstance(uuid, str) and uuid in message_ids}


def _message_ids(line: Raw) -> Iterator[object]:
    yield line.get("uuid")
    attachment = line.get("attachment")  # of a message that was sent while a turn ran
    if isinstance(attachment, Mapping):
        yield attachment.get("source_uuid")


def restored_output(recent: Recent, readable_lines: ReadableLines) -> Iterator[Event]:
    """The readable lines of a transcript's end, as they were logged originally."""
    if not recent.complete:
        yield Output("[earlier output is no longer in memory; see the transcript]", "text")
    for message in recent.messages:
        at = _time_of(message.get("timestamp"))
        for kind, line in readable_lines.conversation(Conversation(dict(message), 0)):
            yield Output(line, kind, size=len(line), at=at)


def _time_of(timestamp: object) -> float:
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _interrupted_since(began: float) -> Outcome:
    when = datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
    detail = f"The turn that started at {when} was cut off because the server that ran it stopped."
    return Outcome(OutcomeCode.INTERRUPTED, detail=detail)
