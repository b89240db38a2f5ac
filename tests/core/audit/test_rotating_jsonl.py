"""The file behind the audit trail: complete, private, bounded, and never in anybody's way."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.audit.trail import RotatingJsonl
from tests.support.waiting import HANG_SECONDS

MUCH = 100 << 20


def entry_of(line: str) -> dict[str, Any]:
    """What was written, without its place in the chain."""
    return {name: value for name, value in json.loads(line).items() if name != "chain"}


def entries(path: Path) -> list[dict[str, Any]]:
    return [entry_of(line) for line in path.read_text().splitlines()]


_ON_A_FULL_DISK = """
import resource, sys, time
from pathlib import Path
from claude_code_mcp.core.audit.trail import RotatingJsonl

path, room = Path(sys.argv[1]), int(sys.argv[2])
trail = RotatingJsonl(path, 100 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, resource.RLIM_INFINITY))
for number in range(2):
    trail.write({"lost": number})
while not trail._failing or not trail._queue.empty():
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
trail.write({"number": 2})
trail.close()
"""


def whole_entries(path: Path) -> list[dict[str, Any]]:
    """Those that can be read; a line that was cut off is none."""
    found = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            found.append(entry_of(line))
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize("room", [0, 5, 90, 95])
def test_a_line_that_was_cut_off_is_counted_and_spoils_no_other(tmp_path: Path, room: int) -> None:
    """The disk has room for a part of the entries: for none, for half of one, for one and the next's beginning."""
    path = tmp_path / "audit"
    path.write_text('{"number": 1}\n')
    subprocess.run([sys.executable, "-c", _ON_A_FULL_DISK, str(path), str(room)], check=True, timeout=HANG_SECONDS)
    found = whole_entries(path)
    written = [entry for entry in found if "lost" in entry]
    lost = sum(entry["entries"] for entry in found if entry.get("act") == "audit_lost")
    assert [entry["number"] for entry in found if "number" in entry] == [1, 2]
    assert lost + len(written) == 2
    assert lost


def test_truncated_line_of_a_killed_server_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_text('{"number": 1}\n{"num')
    trail = RotatingJsonl(path, MUCH)
    for number in (2, 3):
        trail.write({"number": number})
    trail.close()
    assert whole_entries(path) == [{"number": number} for number in (1, 2, 3)]


def test_a_clean_end_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.jsonl"
    trail = RotatingJsonl(path, MUCH)
    for number in range(5000):
        trail.write({"number": number})
    trail.close()
    assert [entry["number"] for entry in entries(path)] == list(range(5000))


def test_entries_of_many_threads_are_whole(tmp_path: Path) -> None:
    trail = RotatingJsonl(tmp_path / "audit", MUCH)

    def write() -> None:
        for _ in range(200):
            trail.write({"text": "x" * 500})

    writers = [threading.Thread(target=write) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    trail.close()
    assert entries(tmp_path / "audit") == [{"text": "x" * 500}] * 1600


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.touch(mode=0o666)
    trail = RotatingJsonl(path, 200)
    for number in range(50):
        trail.write({"number": number})
    trail.close()
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_server_continues_where_the_first_ended(tmp_path: Path) -> None:
    for number in range(2):
        trail = RotatingJsonl(tmp_path / "audit", MUCH)
        trail.write({"number": number})
        trail.close()
    assert [entry["number"] for entry in entries(tmp_path / "audit")] == [0, 1]


def test_a_full_file_is_put_aside_and_only_a_limited_number_of_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for number in range(20):
        trail = RotatingJsonl(path, 100)
        trail.write({"number": number, "text": "x" * 60})
        trail.close()
    numbers = [entries(tmp_path / name)[0]["number"] for name in ("audit", *(f"audit.{one}" for one in range(1, 6)))]
    assert numbers == [19, 18, 17, 16, 15, 14]
    assert not (tmp_path / "audit.6").exists()


def test_two_servers_share_a_file_that_rotates_without_losing_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    trails = [RotatingJsonl(path, 4000) for _ in range(2)]
    for number in range(60):
        trails[number % 2].write({"number": number, "text": "x" * 50})
    for trail in trails:
        trail.close()
    files = [path, *tmp_path.glob("audit.[1-5]")]
    assert sorted(entry["number"] for file in files for entry in entries(file)) == list(range(60))


def test_dropped_audit_lines_are_counted_in_the_trail(tmp_path: Path) -> None:
    """The disk stands still, as it were: the file is a pipe that nobody reads from at first."""
    path = tmp_path / "audit"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    trail = RotatingJsonl(path, MUCH, capacity=10)
    for number in range(4000):
        trail.write({"number": number, "text": "x" * 1000})
    chunks: list[bytes] = []
    os.set_blocking(reader, True)
    listener = threading.Thread(target=lambda: chunks.extend(iter(lambda: os.read(reader, 1 << 16), b"")))
    listener.start()
    trail.close()
    listener.join()
    os.close(reader)
    entries = [entry_of(line.decode()) for line in b"".join(chunks).splitlines()]
    lost = sum(entry["entries"] for entry in entries if entry.get("act") == "audit_lost")
    written = sum(1 for entry in entries if isinstance(entry.get("number"), int))
    assert lost > 0
    assert lost + written == 4000


def test_a_link_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "audit").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):  # noqa: PT011 - its words are the system's
        RotatingJsonl(tmp_path / "audit", MUCH)


def test_removed_file_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    trail = RotatingJsonl(path, MUCH)
    path.unlink()
    trail.write({"number": 1})
    trail.close()
    assert entries(path) == [{"number": 1}]
