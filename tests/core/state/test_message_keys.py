"""Keys of messages: taken once, by one server, for a while."""

from pathlib import Path

from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.message_keys import KEY_SECONDS, KeyName, KeyState, MessageKeys

NAME = KeyName("alice", "session", "key")


def test_a_key_is_pending_then_accepted_and_stays_so_for_the_next_server(tmp_path: Path) -> None:
    keys = MessageKeys(Database(tmp_path))
    taken = keys.take(NAME, "digest")
    assert taken.state is KeyState.NEW
    other = MessageKeys(Database(tmp_path))
    assert other.take(NAME, "digest").state is KeyState.PENDING
    keys.accept(NAME, "target")
    keys.close()
    for again in (other, MessageKeys(Database(tmp_path))):
        found = again.take(NAME, "another digest")
        assert (found.state, found.message_id) == (KeyState.ACCEPTED, taken.message_id)
        assert (found.digest, found.session_id) == ("digest", "target")


def test_a_pending_key_of_a_server_that_is_gone_is_taken_over_with_its_message_id(tmp_path: Path) -> None:
    gone = MessageKeys(Database(tmp_path))
    first = gone.take(NAME, "digest")
    gone.close()
    one, other = MessageKeys(Database(tmp_path)), MessageKeys(Database(tmp_path))
    taken = one.take(NAME, "digest")
    assert (taken.state, taken.message_id) == (KeyState.ORPHANED, first.message_id)
    assert other.take(NAME, "digest").state is KeyState.PENDING
    one.free_key(NAME)
    assert other.take(NAME, "digest").state is KeyState.NEW


def test_keys_belong_to_a_principal_and_a_session(tmp_path: Path) -> None:
    keys = MessageKeys(Database(tmp_path))
    keys.take(NAME, "digest")
    keys.accept(NAME, "target")
    for other in (KeyName("bob", "session", "key"), KeyName("alice", "other", "key"), KeyName("alice", "session", "k")):
        assert keys.take(other, "digest").state is KeyState.NEW
    keys.free_key(NAME)
    assert keys.take(NAME, "digest").state is KeyState.ACCEPTED, "an accepted key cannot be given back"


def test_old_keys_and_the_oldest_of_many_are_forgotten(tmp_path: Path) -> None:
    now = 1000.0
    keys = MessageKeys(Database(tmp_path), lambda: now, most=3)
    for number in range(4):
        now += 1
        keys.take(KeyName("alice", "session", str(number)), "digest")
        keys.accept(KeyName("alice", "session", str(number)), "target")
    states = [keys.take(KeyName("alice", "session", str(number)), "digest").state for number in (3, 2)]
    assert states == [KeyState.ACCEPTED, KeyState.ACCEPTED]
    assert keys.take(KeyName("alice", "session", "0"), "digest").state is KeyState.NEW
    now += KEY_SECONDS + 1
    assert keys.take(KeyName("alice", "session", "3"), "digest").state is KeyState.NEW
