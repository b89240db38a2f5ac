"""What a server publishes about its sessions to the other servers of its user."""

from pathlib import Path

from claude_code_mcp.core.sessions.background_tasks import BackgroundTasks
from claude_code_mcp.core.sessions.peer_servers import PeerServers
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.session_holders import SessionHolders
from tests.support.waiting import until_true

SESSIONS = [f"11111111-1111-4111-8111-{number:012}" for number in range(60)]
LAST = "22222222-2222-4222-8222-222222222222"


async def test_what_is_over_at_once_is_not_published_after_its_end(tmp_path: Path) -> None:
    """A start that is refused takes and releases a session in one step of the event loop."""
    database, tasks = Database(tmp_path), BackgroundTasks()
    servers, other = PeerServers(database, tasks.start, lambda data: data), SessionHolders(database, "another")
    for session_id in SESSIONS:
        servers.released(servers.holding(session_id))
    servers.holding(LAST)
    await until_true(lambda: other.holder(LAST))  # everything before it is published by then
    assert [other.holder(session_id) for session_id in SESSIONS] == [None] * len(SESSIONS)
    await servers.close()
    other.close()
