"""The chain over the lines of the audit trail, and where the lines go beside the file."""

import contextlib
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.cli import parser
from claude_code_mcp.core.audit.audit_chain import last_chain, verify
from claude_code_mcp.core.audit.trail import RotatingJsonl, essential_path
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.telemetry.audit_sinks import AuditSink, make_sinks
from claude_code_mcp.plugins.telemetry.settings import TelemetrySettings
from tests.support.local_http import Handler, site
from tests.support.waiting import until

MUCH = 100 << 20


def write(path: Path, *numbers: int, max_bytes: int = MUCH, **more: Any) -> None:
    trail = RotatingJsonl(path, max_bytes, **more)
    for number in numbers:
        trail.write({"at": "now", "act": "test", "number": number})
    trail.close()


def numbers_in(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


# -- the chain --------------------------------------------------------------------------------------------------------


def test_lines_follow_each_other_over_restarts_and_servers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, 1, 2)
    one, two = RotatingJsonl(path, MUCH), RotatingJsonl(path, MUCH)
    for number in range(200):
        (one if number % 2 else two).write({"act": "test", "number": number})
    one.close()
    two.close()
    report = verify([path])
    assert (report.lines, report.intact, report.earlier, report.cut_off) == (202, True, 0, 0)
    assert report.last == last_chain(path)


def test_the_chain_continues_in_the_file_that_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(6):
        write(path, *range(10), max_bytes=3000)
    assert path.with_name("audit.jsonl.1").exists()
    assert parser.run(["audit", "verify", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["intact"]


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "a line is changed": lambda lines: [lines[0].replace('"number": 0', '"number": 9'), *lines[1:]],
    "a line in the middle is changed": lambda lines: [*lines[:5], lines[5].replace("test", "rest"), *lines[6:]],
    "a line is removed": lambda lines: [*lines[:4], *lines[5:]],
    "two lines are exchanged": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "a line is there twice": lambda lines: [*lines[:4], lines[4], *lines[4:]],
    "a line is put between": lambda lines: [*lines[:4], '{"act": "forged"}\n', *lines[4:]],
    "a chain is changed": lambda lines: [*lines[:4], lines[4][:-4] + '0"}\n', *lines[5:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_person_makes_of_the_lines_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"act": "from before"}\n')
    write(path, *range(10))
    noted = last_chain(path)
    assert verify([path], noted).intact
    first, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, *CHANGES[change](lines)]))
    report = verify([path], noted)
    assert not report.intact
    assert parser.run(["audit", "verify", str(path)]) == 1


BEGINNINGS: dict[str, Callable[[list[str]], list[str]]] = {
    "the first line is changed": lambda lines: [lines[0].replace('"number": 0', '"number": 9'), *lines[1:]],
    "the first lines are removed": lambda lines: lines[3:],
    "another line is put before": lambda lines: ['{"act": "forged"}\n', *lines[1:]],
}


@pytest.mark.parametrize("change", BEGINNINGS)
def test_what_a_person_makes_of_the_beginning_is_found(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, *range(10))
    noted = last_chain(path)
    assert noted is not None
    check = ["audit", "verify", str(path), "--expect", noted]
    assert parser.run(check) == 0
    path.write_text("".join(BEGINNINGS[change](path.read_text().splitlines(keepends=True))))
    assert parser.run(check) == 1
    assert "audit.jsonl:" in capsys.readouterr().out


def test_the_chain_of_the_essential_lines_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    essential = essential_path(path)
    write(path, *range(10))
    write(essential, *range(3))
    noted = last_chain(essential)
    assert noted is not None
    assert parser.run(["audit", "verify", str(path), "--expect", noted, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["lines"], report["essential"]["lines"], report["intact"]) == (10, 3, True)
    essential.write_text(essential.read_text().replace('"number": 1', '"number": 7'))
    assert parser.run(["audit", "verify", str(path)]) == 1
    assert "audit.essential.jsonl:2" in capsys.readouterr().out


def test_where_the_oldest_lines_were_dropped_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(30):
        write(path, *range(10), max_bytes=3000)
    assert parser.run(["audit", "verify", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2, "the result, and that lines were dropped"


def test_truncated_audit_trail_is_detected_with_a_noted_hash(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, *range(5))
    noted = last_chain(path)
    assert noted is not None
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert verify([path]).intact
    assert parser.run(["audit", "verify", str(path), "--expect", noted]) == 1


def test_a_line_that_was_cut_off_is_no_link_and_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, 1, 2)
    with path.open("a") as file:
        file.write('{"at": "now", "act": "te')
    write(path, 3)
    report = verify([path])
    assert (report.lines, report.cut_off, report.intact) == (3, 1, True)


def test_a_line_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail = RotatingJsonl(path, MUCH)
    trail.write({"act": "test", "prompt": "x" * 300_000})
    trail.close()
    write(path, 1)
    assert verify([path]).lines == 2


# -- sinks ------------------------------------------------------------------------------------------------------------


@contextmanager
def collecting(statuses: list[int]) -> Iterator[tuple[str, list[str], list[str]]]:
    """A collector that answers so, then with 200; the lines that it took, and the tokens."""
    lines: list[str] = []
    tokens: list[str] = []

    class Collector(Handler):
        def do_POST(self) -> None:
            body = self.body().decode()
            status = statuses.pop(0) if statuses else 200
            tokens.append(self.headers.get("Authorization", ""))
            if status == 200:
                lines.extend(body.splitlines(keepends=True))
            self.answer(status)

    with site(Collector) as url:
        yield f"{url}/audit", lines, tokens


def test_a_collector_gets_every_line_as_it_is_in_the_file_also_after_failures(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with collecting([503, 500]) as (address, lines, tokens):
        trail = RotatingJsonl(path, MUCH, sinks=make_sinks([address], "a-token", stdout=False))
        for number in range(5):
            trail.write({"act": "test", "number": number})
        until(lambda: len(lines) == 5, "not all lines have come")
        trail.close()
    assert "".join(lines) == path.read_text()
    assert {*tokens} == {"Bearer a-token"}


def test_a_sink_that_is_away_holds_up_nothing_and_is_counted(tmp_path: Path) -> None:
    class UnavailableSink:
        def __call__(self, lines: Any) -> None:
            raise OSError("away")

        def close(self) -> None:
            pass

    path, sink = tmp_path / "audit.jsonl", AuditSink("away", UnavailableSink(), tries=2, pause=0.01)
    write(path, *range(5), sinks=[sink])
    assert numbers_in(path) == [*range(5)]
    assert sink.lost == 5


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_syslog_gets_messages_of_its_standard(tmp_path: Path, transport: str) -> None:
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(60)
        if transport == "tcp":
            listener.listen()
        sinks = make_sinks([f"syslog+{transport}://127.0.0.1:{listener.getsockname()[1]}"], None, stdout=False)
        write(tmp_path / "audit.jsonl", 7, sinks=sinks)
        with listener.accept()[0] if transport == "tcp" else contextlib.nullcontext(listener) as source:
            received = source.recv(65_536).decode()
    head, _, message = received.partition(" audit - ")
    assert head.startswith("<110>1 20")  # log audit, informational
    assert head.split()[3] == "claude-code-mcp"
    assert json.loads(message)["number"] == 7
    assert received.endswith("\n") == (transport == "tcp")


def test_standard_output_is_a_sink_over_http_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, 1, 2, sinks=make_sinks(["stdout"], None, stdout=True))
    assert capsys.readouterr().out == path.read_text()


@pytest.mark.parametrize("name", ["stdout", "http://collector.example.org/", "ftp://x", "syslog+udp://h:nan", "file"])
def test_invalid_audit_sink_prevents_the_start(name: str) -> None:
    with pytest.raises(InvalidArgument, match="AUDIT_SINKS"):
        make_sinks([name], None, stdout=False)


def test_sinks_are_a_list_in_the_settings() -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_AUDIT_SINKS": "stdout, syslog+udp://log.example.org:514"})
    assert settings.section(TelemetrySettings).audit_sinks == ("stdout", "syslog+udp://log.example.org:514")


@pytest.mark.skipif(sys.platform == "win32", reason="has no such socket")
def test_the_syslog_of_this_machine_is_one(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place))
        listener.settimeout(60)
        write(tmp_path / "audit.jsonl", 7, sinks=make_sinks([f"syslog:{place}"], None, stdout=False))
        assert json.loads(listener.recv(65_536).decode().partition(" audit - ")[2])["number"] == 7
