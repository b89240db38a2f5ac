"""Sessions as resources: what happens in one, what was said in it, what all have cost; and to hear of changes."""

import json
from typing import Any
from urllib.parse import urlencode

from ..shared.client import McpClient

Report = dict[str, Any]
"""What the server says of a session, as JSON."""


class ResourceReader:
    """The resources of one server. For any thread, as its client is."""

    def __init__(self, client: McpClient) -> None:
        self._client = client

    def feed(self, session_id: str, cursor: str | None = None, wait: int = 0) -> Report:
        """What happened behind a cursor, or since the last turn began: whole messages and what is being written. Waits
        so many seconds for something."""
        return self.read(f"claude-session:///{session_id}/events", full=1, wait=wait, cursor=cursor)

    def items(self, session_id: str, before: str | None = None, agent: str | None = None) -> Report:
        """A page of what was said and done in a session, or by a subagent of it, from the end backwards; none of a
        session that has said nothing yet."""
        return self.read(f"claude-session:///{session_id}/turns", before=before, agent=agent)

    def subscribe(self, uri: str) -> None:
        """Has the client notified when this resource changes."""
        self._client.request("resources/subscribe", uri=uri)

    def unsubscribe(self, uri: str) -> None:
        self._client.request("resources/unsubscribe", uri=uri)

    def costs(self, by: str) -> Report:
        return self.read("claude-sessions:///costs", by=by)

    def read(self, address: str, **query: object) -> Report:
        """A resource of ours that is JSON."""
        wanted = urlencode({name: value for name, value in query.items() if value is not None})
        read = self._client.request("resources/read", uri=f"{address}?{wanted}" if wanted else address)
        content: Report = json.loads(read["contents"][0]["text"])
        return content
