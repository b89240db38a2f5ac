"""What is kept between runs: tokens in a keyring or a file, and who needs a sign-in."""

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import keyring
import keyring.backend
import pytest
from mcp.shared.auth import OAuthToken

from claude_code_mcp.hub.auth.credentials import REMEMBERED, CredentialStorage, FileVault, KeyringVault, NeedsAuthMemory
from claude_code_mcp.state.database import Database
from claude_code_mcp.state.documents import Documents


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A keyring that works, for systems that have none."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[MemoryKeyring]:
    before, working = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(working)
    yield working
    keyring.set_keyring(before)


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


async def test_what_lay_in_a_file_moves_to_the_keyring_once_there_is_one(ring: MemoryKeyring, tmp_path: Path) -> None:
    files = FileVault(tmp_path / "vault")
    await files.save("key", "old")
    vault = KeyringVault(files)
    assert await vault.load("key") == "old"
    await vault.save("key", "new")
    assert await files.load("key") is None
    assert await vault.load("key") == "new"


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


async def test_a_memory_that_cannot_be_read_knows_nothing(tmp_path: Path) -> None:
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
