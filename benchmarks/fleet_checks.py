"""What must hold of a fleet after each round of failures, read from its stores and asked at its gateways."""

import asyncio
import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.transcripts import FleetUnavailable, TranscriptStore

from .fleet_places import LIMIT, FleetPlaces, call

_MAX_NAMED = 5


@dataclass
class Said:
    """A message of a client."""

    word: str
    acknowledged: bool = False


@dataclass
class Conversation:
    """A session as its client knows it."""

    id: str
    cwd: str
    machine: str
    said: list[Said]
    tree: str = ""
    """Of its last turn that changed files."""
    question: str = ""
    answered: int = 0
    losses: int = 0
    """Turns that the fleet has told to be lost."""
    known_losses: set[str] = field(default_factory=set)


def tree_of(directory: str) -> str:
    """A hash of everything in a checkout: files, HEAD, branch and index."""
    digest = hashlib.sha256()
    for top, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(files):
            path = Path(top, name)
            digest.update(
                f"{path.relative_to(directory)}\0{path.stat().st_mode & 0o100}\0".encode() + path.read_bytes()
            )
    for command in ("rev-parse HEAD", "symbolic-ref HEAD", "ls-files --stage", "status --porcelain"):
        done = subprocess.run(["git", *command.split()], cwd=directory, capture_output=True, check=True)
        digest.update(done.stdout)
    return digest.hexdigest()


async def check_fleet(fleet: FleetPlaces, sessions: Sequence[Conversation]) -> list[str]:
    """What is wrong with the sessions, in sentences."""
    connection = await fleet.connected()
    try:
        problems = []
        for session in sessions:
            problems += await _answered_in_time(partial(_check_conversation, connection, session))
        return problems + await _check_lists(fleet, sessions)
    finally:
        await connection.abandon()


async def _answered_in_time(look: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """What is found by looking. The servers may be slow to answer, above all when one of them was just away: that they
    do not answer once is no finding."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return await look()
        except (nats.errors.Error, FleetUnavailable, TimeoutError) as problem:
            if time.monotonic() > deadline:
                return [f"the stores do not answer: {problem!r}"]
            await asyncio.sleep(1)


async def _check_conversation(connection: FleetConnection, session: Conversation) -> list[str]:
    problems = []
    epochs = await _epochs(connection, session.id)
    if epochs != sorted(epochs):
        problems.append(f"an earlier holder has written session {session.id} after a later one: {epochs}")
    entries = (await TranscriptStore(connection).load_all(session.id)).get("", [])
    twice = [
        each
        for each, count in Counter(entry.get("uuid") for entry in entries if entry.get("uuid")).items()
        if count > 1
    ]
    if twice:
        problems.append(f"session {session.id} has entries twice: {twice[:_MAX_NAMED]}")
    # What joins a turn that runs is not an entry of its own, but stands beside it.
    texts = [_text(entry) for entry in entries if entry.get("type") == "user"]
    texts += [str(entry.get("attachment")) for entry in entries if entry.get("type") == "attachment"]
    for said in session.said:
        count = sum(f'{said.word}"' in each or f"{said.word}\n" in each or f"{said.word} " in each for each in texts)
        if count > 1:
            problems.append(f"session {session.id} was told {said.word} {count} times")
        if said.acknowledged and not count and said.word not in session.known_losses:
            session.known_losses.add(said.word)
            if session.losses:
                session.losses -= 1
            else:
                problems.append(f"{said.word} was acknowledged, and session {session.id} has not heard it")
    answers = Counter(_answered(entries))
    if any(count > 1 for count in answers.values()):
        problems.append(f"a question of session {session.id} has several answers: {answers}")
    return problems


async def _epochs(connection: FleetConnection, session_id: str) -> list[int]:
    """Of every message of the session's stream, in its order."""
    subject = names.transcript(session_id)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, filter_subject=subject)
    subscription = await connection.jetstream.subscribe(
        subject, stream=names.TRANSCRIPTS, config=config, ordered_consumer=True
    )
    last = await connection.jetstream.get_last_msg(names.TRANSCRIPTS, subject)
    found = []
    try:
        while True:
            message = await subscription.next_msg(timeout=LIMIT)
            found.append(int((message.headers or {}).get("Fleet-Epoch", 0)))
            if message.metadata.sequence.stream >= (last.seq or 0):
                return found
    finally:
        await subscription.unsubscribe()


def _text(entry: dict[str, Any]) -> str:
    content = (entry.get("message") or {}).get("content")
    if isinstance(content, str):
        return content
    return " ".join(str(block.get("text")) for block in content or () if block.get("type") == "text")


def _answered(entries: Sequence[dict[str, Any]]) -> list[str]:
    """The calls of tools that have a result, as often as they have one."""
    contents = [(entry.get("message") or {}).get("content") for entry in entries if entry.get("type") == "user"]
    return [
        str(block.get("tool_use_id"))
        for content in contents
        if isinstance(content, list)
        for block in content
        if block.get("type") == "tool_result"
    ]


async def _check_lists(fleet: FleetPlaces, sessions: Sequence[Conversation]) -> list[str]:
    """Every session is listed once, at each gateway, as soon as every machine knows what others have."""
    wanted = {session.id for session in sessions}
    for gateway in fleet.gateways:
        deadline = time.monotonic() + LIMIT
        while True:
            done, listed = await call(gateway, "claude_list_sessions", limit=500)
            ids = [row["sessionId"] for row in listed.get("sessions", ()) if row["sessionId"] in wanted]
            if done and "unanswered" not in listed and sorted(ids) == sorted(wanted):
                break
            if time.monotonic() > deadline:
                return [f"{gateway.name} lists {json.dumps(listed)[:1500]}"]
            await asyncio.sleep(0.5)
    return []
