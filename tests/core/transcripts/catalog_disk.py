"""Transcripts and a history, written by hand."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcript_lines import folder_of


class Disk:
    """A configuration directory of the CLI; every file is newer than the one before."""

    def __init__(self, root: Path) -> None:
        self.config = root / "config"
        self.project = root / "project"
        self.project.mkdir()
        self.clock = 1_700_000_000

    @property
    def catalog(self) -> Catalog:
        return Catalog(str(self.config))

    def write(self, content: bytes, *, cwd: str | None = None, session_id: str | None = None) -> str:
        session_id = session_id or str(uuid.uuid4())
        folder = self.config / "projects" / folder_of(cwd or str(self.project))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{session_id}.jsonl"
        path.write_bytes(content)
        self.clock += 1
        os.utime(path, (self.clock, self.clock))
        return session_id

    def session(self, *contents: Any, before: tuple[Any, ...] = (), cwd: str | None = None, **more: Any) -> str:
        where = cwd or str(self.project)
        users = [user(content, cwd=where, **more) for content in contents]
        return self.write(lines(*before, *users), cwd=where)

    def path_of(self, session_id: str) -> Path:
        return next(self.config.glob(f"projects/*/{session_id}.jsonl"))

    def remember(self, *entries: dict[str, Any] | bytes) -> None:
        self.config.mkdir(exist_ok=True)
        with (self.config / "history.jsonl").open("ab") as file:
            for entry in entries:
                file.write(entry if isinstance(entry, bytes) else lines(entry))


def lines(*objects: Any) -> bytes:
    written = (json.dumps(one, separators=(",", ":")) for one in objects)
    return "".join(f"{line}\n" for line in written).encode()


def user(content: Any, *, cwd: str = "/somewhere", **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"isSidechain": False, "type": "user", "message": message, "cwd": cwd, **more}


def typed(session_id: str, display: str, at: int, project: str) -> dict[str, Any]:
    return {"display": display, "timestamp": at * 1000, "project": project, "sessionId": session_id}


def ids(catalog: Catalog, **question: Any) -> list[str]:
    return [entry.session_id for entry in catalog.list(**question)]
