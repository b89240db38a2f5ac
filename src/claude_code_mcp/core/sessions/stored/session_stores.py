"""The stores of sessions on disk, one object for each configuration directory of the CLI."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...config import Settings
from ...errors import TranscriptUnreadable
from ...state.session_leases import Leases
from ...state.session_records import MovedIds, SessionRecords
from ...state.state_directory import database_in
from ...transcripts.session_catalog import Catalog
from ...transcripts.transcripts import ProjectFolders, Transcripts
from ..background_tasks import StartTask
from .disk_threads import DiskThreads
from .record_writer import RecordWriter
from .replica import SessionReplica
from .session_library import SessionLibrary

_RECORD_GRACE = 24 * 3600.0
"""How long the record of a session without a transcript is kept after it was last written."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of the sessions in one configuration directory of the CLI."""

    leases: Leases
    transcripts: Transcripts
    moved_ids: MovedIds
    recorder: RecordWriter
    library: SessionLibrary

    @classmethod
    def below(
        cls,
        config_dir: str,
        settings: Settings,
        start_task: StartTask,
        redact: Callable[[Any], Any],
        projects: ProjectFolders,
        replica: SessionReplica | None = None,
    ) -> "Stores":
        database = database_in(settings.state_dir)
        leases, records = Leases(database.directory), SessionRecords(database, config_dir)
        return cls(
            leases,
            Transcripts(projects),
            MovedIds(database, config_dir),
            RecordWriter(records, start_task, replica.record_written if replica is not None else None),
            SessionLibrary(config_dir, settings.state_dir, redact, records=records, leases=leases, projects=projects),
        )

    def clean_up(self) -> None:
        """Delete the records of sessions that no longer exist. Blocks on the disk; failures are retried the next
        time."""
        # A directory that is temporarily missing must not cause deletions; an unreadable transcript exists.
        if self.transcripts.available:
            with contextlib.suppress(OSError, TranscriptUnreadable):
                for kept in (self.recorder.records, self.moved_ids):
                    kept.clean_up(lambda session_id: self.transcripts.path_of(session_id) is not None, _RECORD_GRACE)

    @property
    def catalog(self) -> Catalog:
        return self.library.catalog

    @property
    def threads(self) -> DiskThreads:
        """The threads for reading transcripts."""
        return self.library.threads
