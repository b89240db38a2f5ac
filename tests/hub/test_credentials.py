"""What is kept between runs: tokens in a keyring or a file, and who needs a sign-in."""

import asyncio
import importlib.util
import logging
import stat
import sys
from pathlib import Path

import pytest
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import OAuthToken

from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.hub.auth.credentials import REMEMBERED, CredentialStorage, FileVault, KeyringVault, NeedsAuthMemory

from .conftest import MemoryKeyring


async def test_a_keyring_that_works_keeps_secrets_off_the_disk(ring: MemoryKeyring, tmp_path: Path) -> None:
    vault = KeyringVault(FileVault(tmp_path / "vault"))
    await vault.save("key", "secret")
    assert await vault.load("key") == "secret"
    assert list(ring.kept.values()) == ["secret"]
    assert not (tmp_path / "vault").exists()
    await vault.delete("key")
    assert await vault.load("key") is None


@pytest.mark.usefixtures("no_keyring")
async def test_without_a_keyring_there_is_a_file_for_its_owner_only(tmp_path: Path) -> None:
    vault = KeyringVault(FileVault(tmp_path / "vault"))
    await vault.save("key", "secret")
    assert await vault.load("key") == "secret"
    [file] = (tmp_path / "vault").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    await vault.delete("key")
    assert await vault.load("key") is None


async def test_without_the_extra_there_is_a_file_and_the_log_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("keyring", "keyring.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    vault = KeyringVault(FileVault(tmp_path))
    assert await vault.load("key") is None
    with caplog.at_level(logging.INFO):
        await vault.save("key", "secret")
    assert "a secret is stored in a file" in caplog.text
    assert "[keyring]" in caplog.text
    assert "secret" not in caplog.text.replace("a secret", "")
    assert await vault.load("key") == "secret"
    await vault.delete("key")
    assert await vault.load("key") is None


async def test_stored_secrets_move_to_the_keyring_when_available(ring: MemoryKeyring, tmp_path: Path) -> None:
    files = FileVault(tmp_path / "vault")
    await files.save("key", "old")
    vault = KeyringVault(files)
    assert await vault.load("key") == "old"
    await vault.save("key", "new")
    assert await files.load("key") is None
    assert await vault.load("key") == "new"


async def test_failing_keyring_is_not_treated_as_empty(ring: MemoryKeyring, tmp_path: Path) -> None:
    storage = CredentialStorage(KeyringVault(FileVault(tmp_path / "vault")), "x")
    await storage.set_tokens(OAuthToken(access_token="a", refresh_token="r"))
    ring.locked = True
    with pytest.raises(OAuthFlowError, match="KeyringLocked"):
        await storage.get_tokens()
    with pytest.raises(OAuthFlowError, match="keyring"):
        await storage.update(wanted_scope="more")
    with pytest.raises(OSError, match="keyring"):
        await storage.delete()
    ring.locked = False
    tokens = await storage.get_tokens()
    assert tokens is not None
    assert (tokens.access_token, tokens.refresh_token) == ("a", "r")
    assert not (tmp_path / "vault").exists()


async def test_what_was_saved_while_the_keyring_failed_counts_when_it_works_again(
    ring: MemoryKeyring, tmp_path: Path
) -> None:
    vault = KeyringVault(FileVault(tmp_path / "vault"))
    await vault.save("key", "old")
    ring.locked = True
    await vault.save("key", "new")
    assert await vault.load("key") == "new"
    ring.locked = False
    assert await vault.load("key") == "new"


async def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    vault = FileVault(tmp_path / "vault")
    await vault.save("key", "secret")
    [file] = (tmp_path / "vault").iterdir()
    file.unlink()
    file.mkdir()  # no file can take the place of a directory
    with pytest.raises(OSError, match="directory"):
        await vault.save("key", "secret")
    assert list((tmp_path / "vault").iterdir()) == [file]


async def test_tokens_come_back_with_the_time_that_is_left_to_them(tmp_path: Path) -> None:
    storage = CredentialStorage(FileVault(tmp_path), "x")
    await storage.set_tokens(OAuthToken(access_token="a", expires_in=100, refresh_token="r"))
    tokens = await storage.get_tokens()
    assert tokens is not None
    assert tokens.expires_in is not None
    assert 0 < tokens.expires_in <= 100
    await storage.set_tokens(OAuthToken(access_token="a", expires_in=-5))
    tokens = await storage.get_tokens()
    assert tokens is not None
    assert tokens.expires_in is not None
    assert tokens.expires_in < 0


async def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    vault = FileVault(tmp_path)
    await vault.save("x", "{not json")
    assert await CredentialStorage(vault, "x").get_tokens() is None


async def test_a_sign_in_that_is_needed_is_remembered_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    now = 1000.0
    memory = NeedsAuthMemory(Documents(Database(tmp_path), "needs"), lambda: now)
    await memory.remember("x", "tokens")
    now += REMEMBERED - 1
    assert await memory.remembered("x") == "tokens"
    now += 2
    assert await memory.remembered("x") is None


async def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    memories = [NeedsAuthMemory(Documents(Database(tmp_path), "needs")) for _ in range(4)]
    keys = [f"k{number}" for number in range(40)]
    await asyncio.gather(*(memories[number % 4].remember(key, "") for number, key in enumerate(keys)))
    assert all([await memories[0].remembered(key) == "" for key in keys])
    await asyncio.gather(*(memories[number % 4].forget(key) for number, key in enumerate(keys[:20])))
    assert [await memories[0].remembered(key) for key in keys] == [None] * 20 + [""] * 20


async def test_unreadable_memory_is_empty(tmp_path: Path) -> None:
    database = Database(tmp_path)
    memory = NeedsAuthMemory(Documents(database, "needs"))
    await memory.remember("x", "tokens")
    database.close()
    assert await memory.remembered("x") is None


async def test_each_principal_has_secrets_of_its_own(ring: MemoryKeyring, tmp_path: Path) -> None:
    anna, ben = (KeyringVault(FileVault(tmp_path / name), name) for name in ("anna", "ben"))
    await anna.save("key", "secret")
    assert await ben.load("key") is None
    assert await KeyringVault(FileVault(tmp_path / "nobody")).load("key") is None
    assert len(ring.kept) == 1
