"""What is kept on disk of each task, so that it can be asked about after a restart of the server.

One JSON file per task, for its owner alone (0600), replaced as a whole and durably. A task is known by its id, which
nobody can guess; that of another owner counts as absent. What cannot be read counts as absent too: a task holds nothing
that is not in its session as well. All functions block on the disk; call them from a thread.
"""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..private_files import TEMPORARY, private_directory, replace_file

log = logging.getLogger(__name__)

ENDED = frozenset({"completed", "failed", "cancelled"})
_LARGEST_FILE = 64 << 20
_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")
_SUFFIX = ".json"


class TaskRecord(BaseModel):
    """A task as it was last told. `result` and `error` are as they go on the wire, without secrets."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_id: str
    owner: str
    tool: str
    session_id: str | None = None
    message_id: str | None = None
    created_at: float
    updated_at: float
    ttl_ms: int
    status: str = "working"
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def expires_at(self) -> float:
        return self.updated_at + self.ttl_ms / 1000


class TaskRecords:
    """The records of all tasks below one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "tasks"

    def write(self, record: TaskRecord) -> None:
        """Replaces the record. OSError if that cannot be done; then the old one is untouched."""
        private_directory(self._directory)
        content = json.dumps(record.model_dump(exclude_none=True), separators=(",", ":"))
        replace_file(self._directory / f"{record.task_id}{_SUFFIX}", content.encode())

    def read(self, task_id: str, owner: str) -> TaskRecord | None:
        """The record of an owner's task; None if there is none that has not expired."""
        if not _ID.fullmatch(task_id):
            return None
        record = self._load(self._directory / f"{task_id}{_SUFFIX}")
        if record is None or record.task_id != task_id or record.owner != owner or record.expires_at < time.time():
            return None
        return record

    def _load(self, path: Path) -> TaskRecord | None:
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_FILE + 1)
            if len(content) > _LARGEST_FILE:
                return None
            return TaskRecord.model_validate(json.loads(content))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ValidationError, RecursionError) as error:
            log.warning("the record of a task cannot be read: %s", type(error).__name__)
            return None

    def clean_up(self, ttl_ms: int) -> int:
        """Removes what has not been written for longer than a task is kept; returns how many files that were."""
        removed = 0
        oldest = time.time() - ttl_ms / 1000
        for path in self._directory.glob("*") if self._directory.is_dir() else ():
            try:
                if path.suffix in (_SUFFIX, TEMPORARY) and path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
                    removed += 1
            except OSError:
                continue
        return removed
